"""What a board and a coordinator do, without I/O: events and time go in, effects come out. Shells carry the effects out."""
