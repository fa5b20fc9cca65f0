"""Cells on a virtual clock: real frames, rates of this machine as measured or of a board's profile,
links as fluids."""
