"""What cannot be otherwise in a run folder, and tests that hold folders to it."""
