"""Malformed messages by the million against a live board.
`python -m tests.mesh.malformed --help`."""
