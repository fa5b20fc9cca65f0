"""Lists what goes into a board's engine and what comes out of it (engine/node.py).

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
    """Names the timers of an engine; each runs at most once at a time."""

    DEADLINE = "deadline"  # the algorithm's own
    ANNOUNCE = "announce"  # whoever waits says for whom
    LATE = "late"  # the run is far on: who is not there by then is not waited for
    CATCH_UP = "catch-up"  # how long a newcomer holds back frames of rounds far ahead


# -- events


class NeighbourUp(NamedTuple):
    """Says that we can send to this neighbour: for the first time, or again."""

    peer: NodeId


class NeighbourDown(NamedTuple):
    """Says that a neighbour is out of reach."""

    peer: NodeId
    reason: str
    left: bool = False  # on purpose
    closed: bool = False  # by ourselves: it will not come back
    disagrees: bool = False  # it trains something else, as `reason` says; its next process may not


class MemberNews(NamedTuple):
    """Says what the members know of one that is no neighbour of ours."""

    peer: NodeId
    here: bool
    left: bool = False  # not here, on purpose
    restarted: bool = False  # here, as another process than before


class FrameReceived(NamedTuple):
    """Brings a whole frame from a neighbour, unchecked. `sender` is the transport's word, not the
    frame's."""

    sender: NodeId
    data: Data


class Arrived(NamedTuple):
    """Says that a neighbour has taken in a frame with values: how many bytes went over the link for
    it, and when it was handed over and acknowledged, seconds of any one clock."""

    peer: NodeId
    size_bytes: int
    start_s: float
    end_s: float


class TimerFired(NamedTuple):
    """Says that the time of a `StartTimer` has passed."""

    timer: Timer


class Loaded(NamedTuple):
    """Answers `Load`: the board can train. `view` needs no `down`; it starts from the model `x`,
    float32[n], or where an earlier process of it was, from the `state` of one of its Checkpoint
    effects."""

    view: NodeView
    x: Vec | None
    state: Any = None


class UpdateReady(NamedTuple):
    """Answers `Train` with the local update."""

    local: LocalUpdate


class Polled(NamedTuple):
    """Answers `Poll`: nothing waits in the transport any more, or time is over."""


Event: TypeAlias = (
    NeighbourUp | NeighbourDown | MemberNews | FrameReceived | Arrived | TimerFired | Loaded | UpdateReady | Polled
)


# -- effects, besides the algorithm's own Send


class StartTimer(NamedTuple):
    """Asks for `TimerFired` after so many seconds from the moment in which this is carried out, in
    the place of what was set before; None: not at all."""

    timer: Timer
    after_s: float | None


class Load(NamedTuple):
    """Asks for the model and the newest checkpoint: everybody is there who is waited for. Answer:
    Loaded. Until then events stay in the transport."""


class Started(NamedTuple):
    """Says that the algorithm has its first state, and says hello to its neighbours next."""

    state: Any


class CaughtUp(NamedTuple):
    """Says that the first round begins; what came before belongs to no round."""


class Train(NamedTuple):
    """Asks for the local update of `round` at `model`, which is not to be written to. Answer:
    UpdateReady. Until then events stay in the transport, unless the engine listens."""

    model: Vec
    round: Round
    correction: Vec | None = None  # to be added to the gradient of each step


class Poll(NamedTuple):
    """Asks for what has come already, for so many seconds at most. Answer: Polled."""

    at_most_s: float


class Accepted(NamedTuple):
    """Says that the algorithm took this frame in: its states before and after."""

    event: FrameReceived
    frame: Frame
    before: Any
    after: Any


class Dropped(NamedTuple):
    """Says that a frame came before its time and found no room; its sender will send again what is
    lacking."""

    sender: NodeId


class Ignored(NamedTuple):
    """Says that a frame came of a neighbour that is left out for a while, or why it has led to
    that."""

    sender: NodeId
    reason: str = ""


class ClosePeer(NamedTuple):
    """Asks to talk to this neighbour no more: it sent something bad."""

    peer: NodeId
    reason: str


class KeepState(NamedTuple):
    """Hands out a state that `Loaded` may bring back to another process of this board."""

    state: Any


class RoundEnded(NamedTuple):
    """Ends a round. `state` holds the model for the next one; `last`: which the run does not
    have."""

    local: LocalUpdate
    done: RoundDone
    state: Any
    last: bool
    rates: Mapping[str, float] = {}  # metrics of the links, where the codec leaves their rates to the engine


class ModelAdopted(NamedTuple):
    """Says that this board had been left behind and took over the model of `node`."""

    node: NodeId
    round: Round
    state: Any


class Log(NamedTuple):
    """Asks for a line in the event log: what it is, one sentence, and fields."""

    event: str
    text: str
    fields: Mapping[str, Any]


class Finished(NamedTuple):
    """Ends the run; the engine's model is what came of it."""


class Failed(NamedTuple):
    """Ends the run for this board, which may go on without it; `reason` says why."""

    reason: str


Effect: TypeAlias = (
    Send
    | StartTimer
    | Load
    | Started
    | CaughtUp
    | Train
    | Poll
    | Accepted
    | Dropped
    | Ignored
    | ClosePeer
    | KeepState
    | RoundEnded
    | ModelAdopted
    | Log
    | Finished
    | Failed
)
