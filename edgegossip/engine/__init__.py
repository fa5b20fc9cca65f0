"""Decides what a board and what a coordinator do, without I/O: events and time go in, effects come
out."""
