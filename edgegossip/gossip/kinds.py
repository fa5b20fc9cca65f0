"""Kinds of frames by their bare names, the members of `frame.Kind`: Python 3.11 takes long to find one in its class, and a
message asks for several."""

from typing import Final

from edgegossip.frame import Kind

MODEL: Final = Kind.MODEL
DIFFERENCE: Final = Kind.DIFFERENCE
GRADIENT: Final = Kind.GRADIENT
UPDATE: Final = Kind.UPDATE
STATE: Final = Kind.STATE
HELLO: Final = Kind.HELLO
