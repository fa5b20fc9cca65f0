"""What cannot be otherwise in a run folder: tests and the soak hold folders to it."""
