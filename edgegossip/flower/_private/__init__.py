"""Everything of Flower 1.41 that is not its public API. The only package that may import it.

Flower's public API serves apps that Flower starts itself: a new process a message on the board, one
for the server, each behind fixed polls of seconds. To speak to its SuperLink directly we use the
HTTP clients that Flower's own processes use: the Fleet API as a board (link.py), the Runtime API as
a server app and the Control API to start a run (runtime.py). superlink.py is the SuperLink's own
process. A board imports link.py only: the others come with a web server.
`tests/flower/test_private.py` says by name what is gone when another Flower version moves
something.
"""
