"""What a board says beside its update: how many examples it is from, with what loss, at what learning rate. Checked before
anything is computed from it. Knows nothing of Flower."""

from __future__ import annotations

from edgegossip.frame import Aux, Frame
from edgegossip.types import PeerError

MAX_EXAMPLES = 1e12  # of one update; more is nonsense that would drown the other boards
MAX_LOSS = 1e25  # either sign
MAX_RATE = 1e6


def check_reported(frame: Frame, levels: bool) -> None:
    """`levels`: the loss decides how many levels all boards use (`server_levels.py`). Raises PeerError on what makes no sense;
    what is not said is the caller's matter."""
    examples, loss = frame.aux.get(Aux.EXAMPLES), frame.aux.get(Aux.LOSS)
    if examples is not None and not 1 <= examples <= MAX_EXAMPLES:
        raise PeerError(f"the update claims to be from {examples:g} examples")
    if loss is not None and not abs(loss) <= MAX_LOSS:
        raise PeerError(f"the update claims a loss of {loss:g}")
    if levels and loss is not None and loss < 0.0:
        raise PeerError(f"the update claims a loss of {loss:g}; levels need losses of 0 or above")
    rate = frame.aux.get(Aux.LEARNING_RATE)
    if rate is not None and not 0 <= rate <= MAX_RATE:
        raise PeerError(f"the update claims a learning rate of {rate:g}")


def require_reported(frame: Frame, levels: bool) -> None:
    """The same of one that has to say examples and loss. Raises PeerError."""
    if Aux.EXAMPLES not in frame.aux or Aux.LOSS not in frame.aux:
        raise PeerError("the update does not say how many examples it is from, and with what loss")
    check_reported(frame, levels)
