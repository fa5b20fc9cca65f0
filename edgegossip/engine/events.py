"""What goes into a board's engine and what comes out of it (engine/node.py).

Three effects are questions: `Load`, `Train` and `Poll` make a shell do something whose answer is an
event (`Loaded`, `UpdateReady`, `Polled`). At most one question is open, and it is the last of its
list of effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from edgegossip.frame import Frame
from edgegossip.gossip.base import NodeView, RoundDone, Send
from edgegossip.types import LocalUpdate, NodeId, Round, Vec

# A frame as it came off the wire. A shell that has it parsed already (the simulator's network) may
# hand it in as it is.
Data: TypeAlias = bytes | memoryview | Frame


class Timer(Enum):
    """The timers of an engine; each runs at most once at a time."""

    DEADLINE = "deadline"  # the algorithm's own
    ANNOUNCE = "announce"  # whoever waits says for whom
    LATE = "late"  # the run is far on: who is not there by then is not waited for
    CATCH_UP = "catch-up"  # how long a newcomer holds back frames of rounds far ahead


# -- events
# --------------------------------------------------------------------------------------------------


class PeerUp(NamedTuple):
    """We can send to this neighbour: for the first time, or again."""

    peer: NodeId


class PeerDown(NamedTuple):
    """A neighbour is out of reach."""

    peer: NodeId
    reason: str
    left: bool = False  # on purpose
    closed: bool = False  # by ourselves: it will not come back
    disagrees: bool = False  # it trains something else, as `reason` says; its next process may not


class MemberNews(NamedTuple):
    """What the members say of one that is no neighbour of ours."""

    peer: NodeId
    here: bool
    left: bool = False  # not here, on purpose
    restarted: bool = False  # here, as another process than before


class FrameReceived(NamedTuple):
    """A whole frame from a neighbour, unchecked. `sender` is the transport's word, not the
    frame's."""

    sender: NodeId
    data: Data


class TimerFired(NamedTuple):
    """The time of a `SetTimer` has passed."""

    timer: Timer


class Loaded(NamedTuple):
    """Answers `Load`: the board can train. `view` needs no `down`; it starts from the model `x`,
    float32[n], or where an earlier process of it was, from the `state` of one of its Checkpoint
    effects."""

    view: NodeView
    x: Vec | None
    state: Any = None


class UpdateReady(NamedTuple):
    """Answers `Train`."""

    local: LocalUpdate


class Polled(NamedTuple):
    """Answers `Poll`: nothing waits in the transport any more, or time is over."""


Event: TypeAlias = PeerUp | PeerDown | MemberNews | FrameReceived | TimerFired | Loaded | UpdateReady | Polled


# -- effects, besides the algorithm's own Send
# -----------------------------------------------------------------


class SetTimer(NamedTuple):
    """`TimerFired` after so many seconds from the moment in which this is carried out, in the place
    of what was set before; None: not at all."""

    timer: Timer
    after_s: float | None


class Load(NamedTuple):
    """Everybody is there who is waited for: load the model and the newest checkpoint. Answer:
    Loaded. Until then events stay in the transport."""


class Started(NamedTuple):
    """The algorithm has its first state, and greets its neighbours next."""

    state: Any


class CaughtUp(NamedTuple):
    """The first round begins; what came before belongs to no round."""


class Train(NamedTuple):
    """Compute the local update of `round` at `model`, which is not to be written to. Answer:
    UpdateReady. Until then events stay in the transport, unless the engine listens."""

    model: Vec
    round: Round


class Poll(NamedTuple):
    """Hand in what has come already, for so many seconds at most. Answer: Polled."""

    at_most_s: float


class Accepted(NamedTuple):
    """The algorithm took this frame in: its states before and after."""

    event: FrameReceived
    frame: Frame
    before: Any
    after: Any


class Dropped(NamedTuple):
    """A frame came too early and found no room; its sender will send again what is lacking."""

    sender: NodeId


class ClosePeer(NamedTuple):
    """This neighbour sent something bad: talk to it no more."""

    peer: NodeId
    reason: str


class Checkpoint(NamedTuple):
    """A state that `Loaded` may bring back to another process of this board."""

    state: Any


class RoundEnded(NamedTuple):
    """`state` holds the model for the next round; `last`: which the run does not have."""

    local: LocalUpdate
    done: RoundDone
    state: Any
    last: bool


class Adopted(NamedTuple):
    """This board had been left behind and took over the model of `node`."""

    node: NodeId
    round: Round
    state: Any


class Log(NamedTuple):
    """A line for the event log: what it is, one sentence, and fields."""

    event: str
    text: str
    fields: Mapping[str, str]


class Finished(NamedTuple):
    """The run is over; the engine's model is what came of it."""


class Failed(NamedTuple):
    """The run goes on without this board, or is over; why."""

    reason: str


Effect: TypeAlias = (
    Send
    | SetTimer
    | Load
    | Started
    | CaughtUp
    | Train
    | Poll
    | Accepted
    | Dropped
    | ClosePeer
    | Checkpoint
    | RoundEnded
    | Adopted
    | Log
    | Finished
    | Failed
)
