"""The program of a board: the engine with a clock, a transport, a disk and a model."""
