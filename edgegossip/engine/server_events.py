"""Lists what a driver and the server engine exchange: the plan of a run, events that go in, effects
that come out.

`server.py` says how a driver uses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgegossip import codecs
from edgegossip.agreement import Agreement
from edgegossip.codecs.base import Codec
from edgegossip.engine.server_boards import Address, BoardPresence
from edgegossip.engine.server_frames import FULL
from edgegossip.engine.server_records import Progress, Value
from edgegossip.frame import Frame
from edgegossip.layout import Layout
from edgegossip.types import EdgegossipError, Metrics, NodeId, PeerError, Round, Vec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Says what a server run is. Fixed from its beginning to its end."""

    boards: tuple[NodeId, ...]  # the only names that may join
    rounds: Round
    layout: Layout
    run_id: bytes  # 16 bytes
    codec: Codec[Any]  # of updates
    downlink: Codec[Any] = field(default_factory=lambda: codecs.get(FULL))  # fp32: whole models go down
    seed: int = 0  # of the choice of boards
    fraction: float = 1.0  # of the boards that a round asks
    min_nodes: int = 1  # boards without which the run does not go on
    quorum: int = 0  # answers that end a round; 0: all
    deadline_s: float = math.inf  # of a round
    join_s: float = math.inf  # for all boards to join
    return_s: float = 0.0  # for silent boards to come back when fewer than min_nodes are left
    weighting: str = "examples"  # or "uniform"
    evaluate_after: frozenset[Round] = frozenset()  # rounds whose model is evaluated, besides the last one's
    evaluation_examples: int = 0  # of the test set, during the run; 0: all
    better: str = "auto"  # which way a score is better, as of `types.better_of`
    patience: int = 0  # evaluations in a row without a better one after which the run ends; 0: it does not
    keeps_best: bool = False  # the model of the best evaluation is handed over (`Better`)
    evaluates_itself: bool = False  # the driver evaluates (`EvaluateHere`), not a board
    evaluates_everywhere: bool = False  # all boards evaluate, each on a test set of its own; not one for all
    certified: bool = False  # boards prove their names (`Joining.identity`)
    hands_out_model: bool = False  # every board gets the final model with the goodbye
    records_boards: bool = False  # a record a board and round of what its update and its profile say
    learning_rate: Callable[[Round], float] | None = None  # the recipe's, for level rules
    # What every board must have alike, as far as the coordinator knows; the boards say the rest.
    agreement: Agreement = Agreement({})
    instance: str = ""  # which of several runs of the same recipe it is, drawn when it begins


# Questions to boards


@dataclass(frozen=True, slots=True)
class Hello:
    """Describe the run; the board answers with `Joining`."""

    round: Round  # that comes next


@dataclass(frozen=True, slots=True)
class Train:
    """Train from this model and answer with the update.

    `examples`: evaluate it as well, on so many (0: all)."""

    frame: Frame
    examples: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate this model on so many examples of the test set (0: all)."""

    frame: Frame
    examples: int = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """Tell a board that the run is over. The answer has the profile of its last round."""

    words: str
    failed: bool
    frame: Frame | None = None  # the final model, for boards whose program goes on with it


Instruction: TypeAlias = Hello | Train | Evaluate | Bye


@dataclass(frozen=True, slots=True)
class Question:
    """Carries one instruction to a board.

    Boards of a round share frames: `frame is frame` where they get the same."""

    number: int
    address: Address
    name: NodeId  # "" for a stranger
    instruction: Instruction


# Answers of boards. What could not be read is there as the PeerError that says why.


@dataclass(frozen=True, slots=True)
class Joining:
    """Answers a stranger's Hello with its name.

    `identity`: the name that it has proved, where boards have to. `agreement`: what it must have
    alike with the others, as JSON; "": it says nothing."""

    name: NodeId
    problem: str = ""  # why it cannot take part
    identity: NodeId | None = None
    agreement: str = ""


@dataclass(frozen=True, slots=True)
class BoardAnswer:
    """Answers Train, Evaluate or Bye, as it came over the wire."""

    frame: bytes | memoryview | PeerError | None = None  # the update
    evaluation: Metrics | PeerError | None = None
    profile: tuple[Round, Mapping[str, Value]] | PeerError | None = None  # of the board's round before


@dataclass(frozen=True, slots=True)
class Failure:
    """Answers with an error.

    `away`: the transport did, in the board's place: it has been silent for too long."""

    reason: str
    away: bool = False


Answer: TypeAlias = Joining | BoardAnswer | Failure | PeerError


# Events


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Says that nothing has happened but that."""


@dataclass(frozen=True, slots=True)
class PresenceReport:
    """Shows all boards that the transport sees at this moment."""

    boards: tuple[BoardPresence, ...]


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """Says that a board's process is known to have ended: only another one of its name can come
    back."""

    name: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Brings an answer, or what stands for one."""

    number: int  # of the question
    answer: Answer


@dataclass(frozen=True, slots=True)
class Arriving:
    """Says that more has come of answers that are not whole yet."""

    numbers: frozenset[int]  # of their questions


@dataclass(frozen=True, slots=True)
class Delivering:
    """Says that more of a large question has gone to a board; whose it was, nobody knows."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Says that the transport does not know the board of this question any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Answers `EvaluateHere` with what was found."""

    metrics: Metrics


@dataclass(frozen=True, slots=True)
class ModelKept:
    """Answers `Trained`: the final model is safe."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run now. Boards hear these words."""

    words: str = "the run was stopped"


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Brings what the driver has found at once.

    A round that ends at its quorum takes all answers that came together."""

    events: tuple[Event, ...]


Event: TypeAlias = (
    TimePassed
    | PresenceReport
    | ProcessEnded
    | Answered
    | Arriving
    | Delivering
    | Undelivered
    | Evaluated
    | ModelKept
    | Stop
    | EventBatch
)


# Effects


@dataclass(frozen=True, slots=True)
class Ask:
    """Send these questions, one a board."""

    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop this question: nobody waits for its answer any more."""

    number: int


@dataclass(frozen=True, slots=True)
class EvaluateHere:
    """Evaluate float32[n] on so many examples of the test set (None: all); then feed
    `Evaluated`."""

    model: Vec
    examples: int | None


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """Record a round that is over.

    `model` float32[n] is the next one; `values` go into the coordinator's record of the round."""

    round: Round
    model: Vec
    values: Mapping[str, Value]
    used: tuple[NodeId, ...]  # whose updates are part of the model


@dataclass(frozen=True, slots=True)
class Save:
    """Keep how far the run is, before any later `Ask` is carried out."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Record:
    """Record metrics of a board, or of an evaluation."""

    node: NodeId
    round: Round
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Log:
    """Log something that people want to read. `fields` are for programs."""

    event: str
    text: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Better:
    """Keep the model, float32[n], that has had so many rounds, in place of the one before: no
    evaluation before was as good as that of it (`Metrics.merit`)."""

    model: Vec
    rounds: Round
    merit: float


@dataclass(frozen=True, slots=True)
class Trained:
    """Hand over the model, float32[n], of which all rounds have been played; then feed
    `ModelKept`.

    Boards wait meanwhile."""

    model: Vec


@dataclass(frozen=True, slots=True)
class Completed:
    """Drop checkpoints, if you like: everything is done, and boards will hear of it next."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Stop: the run is over and nothing more comes.

    `error`: what it failed with, None where it did not or was stopped."""

    error: EdgegossipError | None


Effect: TypeAlias = (
    Ask | Forget | EvaluateHere | RoundEnded | Save | Record | Log | Better | Trained | Completed | Finished
)
