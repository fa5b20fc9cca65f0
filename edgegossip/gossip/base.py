"""Defines the gossip interface: decentralised algorithms as state machines without I/O, in the
manner of h11 and etcd's raft.

An algorithm never sends, waits or reads a clock. It takes a state and an input and returns the next
state and a list of actions; whoever drives it (a board's node program, the simulator, a one-process
study) carries them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Codec
from edgegossip.frame import Frame
from edgegossip.gossip.traits import Traits
from edgegossip.layout import Layout
from edgegossip.types import LocalUpdate, NodeId, Round, Vec

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Holds one node's edges in one round, as indices into the member list.

    `weights[j]` is W_ij, the weight at this node i of what j sends; it has this node itself and
    every in-neighbour as keys. Self-loops are not listed in `in_` or `out`."""

    in_: tuple[int, ...]
    out: tuple[int, ...]
    weights: Mapping[int, float]


class Topology(Protocol):
    """Says who talks to whom, round by round, for n nodes. Rounds repeat with `period`."""

    name: str
    n: int
    period: int

    def neighbours(self, node: int, round: Round) -> Neighbours:
        """Return the edges of a node in a round."""

    def matrix(self, round: Round) -> NDArray[np.float64]:
        """Return W, float64[n, n]; W[i, j] is the weight at i of what j sends."""

    def to_json(self, members: Sequence[NodeId]) -> dict[str, Any]:
        """Return what a run folder's topology.json holds; it can be given back as a topology
        file."""

    def spectral_gap(self) -> float:
        """Return 1 - |second largest eigenvalue| of W; for a time-varying graph of the product over
        a period, per round."""


Room: TypeAlias = Callable[[int], NDArray[np.uint8] | None]  # uint8[so many] to write to


def memory_only(size_bytes: int) -> None:
    """Return None: there is no room but memory."""
    del size_bytes


@dataclass(frozen=True, slots=True)
class NodeView:
    """Holds what a node knows of the run it takes part in. Every member has the same `members` in
    the same order."""

    node: NodeId
    members: tuple[NodeId, ...]
    topology: Topology
    layout: Layout
    codec: Codec[Any]
    run_id: bytes  # 16 bytes
    seed: int
    deadline_s: float  # how long a round waits for a silent neighbour before it goes on without it
    down: frozenset[NodeId] = field(default_factory=frozenset)  # members known to be gone
    boot: int = 0  # drawn at random by whoever starts the node, 0..2^48 - 1: tells its processes apart, in any order
    bare: bool = False  # it was in the run before, and has nothing of it
    # Where a message is made that may be as large as the model, and waits until it is sent; None:
    # in memory.
    room: Room = memory_only

    @property
    def index(self) -> int:
        """The node's place among the members."""
        return self.members.index(self.node)

    def up(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return those of `nodes` that are not known to be gone."""
        down = self.down
        return tuple([j for j in nodes if self.members[j] not in down]) if down else tuple(nodes)

    def with_down(self, down: frozenset[NodeId]) -> NodeView:
        """Return the same view with these members known to be gone."""
        return replace(self, down=frozenset(down))


@dataclass(frozen=True, slots=True)
class Message:
    """A parsed, checked frame and the transport's word on who sent it. The frame may be kept for a
    later round, so its body must stay as it is."""

    sender: NodeId
    frame: Frame


@dataclass(frozen=True, slots=True)
class Send:
    """Send this frame to a member."""

    to: NodeId
    frame: Frame


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `tick` after this many seconds. An algorithm has one timer: a later SetTimer replaces
    it, None cancels it."""

    after_s: float | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Keep the state, if you like: from this point it may be restored."""


@dataclass(frozen=True)
class RoundDone:
    """Note that the node has its model for round + 1. One that was left behind may skip rounds; it
    reports the last of them."""

    round: Round
    consensus_distance: float  # root mean square over in-neighbours of ||x_j - x_i||_2; nan without any
    relative_error: float  # ||decoded - sent|| / ||sent|| of this node's own message; nan when nothing was sent
    distances: Mapping[NodeId, float] = field(default_factory=dict)  # ||x_j - x_i||_2 by in-neighbour, where known
    heard: int = 0  # neighbours whose news counted
    directions: Mapping[NodeId, float] = field(default_factory=dict)  # lengths, the own too, where directions travel


@dataclass(frozen=True, slots=True)
class Suspect:
    """Note that the algorithm went on without `node`. The driver decides whether that node is
    gone. `cause` is one of deadline, quorum, answer, refused."""

    node: NodeId
    reason: str
    cause: str
    round: Round
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Adopted:
    """Note that the node had been left behind and took over the model of `node`; it goes on in
    `round`."""

    node: NodeId
    round: Round


Action: TypeAlias = Send | SetTimer | Checkpoint | RoundDone | Suspect | Adopted


@dataclass(frozen=True, eq=False)
class Audit:
    """Shows what a state holds, for checkers and diagnosis. Everything is a view: not to be written
    to.

    Push-sum: `mass` and `weight` are the node's own, `mixed` the weight without what came in since
    the round began; `sent[k]` and `seen[j]` the totals, as (vector, weight), that went out to k and
    came in from j. The sum over all nodes of mass + sent - seen changes by local updates only.

    Replicas: `public` is the node's public copy, which all receivers should hold, `replicas[j]` its
    copy of j's, each with a mark that is the same at both ends when the copy is up to date. Keys
    are (member index, phase of the topology's period).

    Pairwise exchanges: `taken[i]` is the exchange that i began and of which this node has done its
    half, without knowing that i has, too, as (sequence, what it added); `finished[j]` the sequence
    of the last one begun with j that is over for this node. The sum over all nodes of mass, less
    every taken change whose sequence is above what i has finished with this node, changes by local
    updates only. Elsewhere empty or None."""

    mass: NDArray[np.float64] | None = None  # float64[n]
    weight: float = 1.0
    mixed: float = 1.0
    sent: Mapping[tuple[int, int], tuple[NDArray[np.float64], float]] = field(default_factory=dict)
    seen: Mapping[tuple[int, int], tuple[NDArray[np.float64], float]] = field(default_factory=dict)
    public: Mapping[int, tuple[int, Vec]] = field(default_factory=dict)  # by phase: (messages so far, float32[n])
    replicas: Mapping[tuple[int, int], tuple[int, Vec]] = field(default_factory=dict)
    taken: Mapping[int, tuple[int, Vec]] = field(default_factory=dict)
    finished: Mapping[int, int] = field(default_factory=dict)
    row: Mapping[int, float] = field(default_factory=dict)  # weights of the last mixing, by member, own included


class Says(Enum):
    """Tells what an algorithm's messages say, and so what becomes of what its codec loses."""

    MODELS = "models"  # each stands for itself, so a neighbour may get a finer one; what is lost stays lost
    UPDATES = "updates"  # the same for everybody; what is lost stays lost
    COMPENSATED = "compensated"  # whole models, the same for everybody; later ones make up for what one loses
    DIFFERENCES = (
        "differences"  # to what was said before, the same for everybody; later ones make up for what one loses
    )

    @property
    def repaired(self) -> bool:
        """Whether later messages make up for what one loses."""
        return self in (Says.COMPENSATED, Says.DIFFERENCES)


class GossipAlgorithm(Protocol[S]):
    """A decentralised algorithm with its parameters fixed: a state machine without I/O.

    Every method takes a state and returns the next one, with the actions that the caller carries
    out in their order. States are values: a PeerError leaves the caller with the one it had.

    Example:
        algorithm = gossip.get("choco-sgd")
        state = algorithm.init(x, view)
        state, actions = algorithm.start(state)
        state, actions = algorithm.step(state, train(algorithm.model(state)))
        state, actions = algorithm.receive(state, Message(sender, frame))  # until RoundDone
    """

    @property
    def name(self) -> str:
        """The algorithm's name, as in a recipe."""

    @property
    def traits(self) -> Traits:
        """What may be put around it."""

    @property
    def asynchronous(self) -> bool:
        """Whether boards go by no rounds in common: none waits for what another does in its."""

    @property
    def listens(self) -> bool:
        """Whether messages should be taken in while the local update is computed, too."""
        return self.asynchronous

    @property
    def says(self) -> Says:
        """What its messages say."""

    @property
    def bodies(self) -> int:
        """How many vectors a message holds, each encoded for itself."""
        return 1

    def rate(self, codec: Codec[Any]) -> float | None:
        """Return the averaging rate with this codec; None where the codec does not decide it."""
        return None

    def init(self, x: Vec, view: NodeView) -> S:
        """Return the state before round 0. `x` float32[n] is the first model, and is copied.

        Raises ConfigError when the topology's weights are not of the kind that the algorithm needs,
        UsageError when x does not fit the layout or is not finite."""

    def resume(self, s: S, view: NodeView) -> S:
        """Go on from a state that an earlier process of this node kept (any that came with a
        Checkpoint, however old). `view` is of the same run and has another boot."""

    def restorable(self, s: S) -> S:
        """Return what of a state that came with a Checkpoint is to be kept, for `resume`."""
        return s

    def start(self, s: S) -> tuple[S, list[Action]]:
        """Say hello to the neighbours. Called once, after `init` or `resume` and before anything
        else."""

    def step(self, s: S, local: LocalUpdate) -> tuple[S, list[Action]]:
        """Take in the local update that was trained at `model(s)`; called once a round. Raises
        UsageError when called twice in a round, or when the update is not finite (names the
        tensor)."""

    def receive(self, s: S, m: Message) -> tuple[S, list[Action]]:
        """Take in a message of this run and model, which `frame.expect` says. Raises PeerError
        (DecodeError for a bad body) with the state untouched."""

    def tick(self, s: S, now_s: float) -> tuple[S, list[Action]]:
        """Go on: the timer that the algorithm set is due. `now_s` is monotonic."""

    def membership(self, s: S, view: NodeView) -> tuple[S, list[Action]]:
        """Take note of members that went down or came back (`view.down`). May end a round that
        waited for them."""

    def model(self, s: S) -> Vec:
        """Return the model to train and to evaluate, float32[n], de-biased where the algorithm
        keeps a weight. Not to be written to."""

    def weight(self, s: S) -> float:
        """Return what the model counts for: a local update of d moves it by d / weight, so that no
        gradient counts more than another in the fleet's mean."""
        return 1.0

    def correction(self, s: S) -> Vec | None:
        """Return what each step of the local update at `model(s)` is to add to its gradient,
        float32[n] (`LocalUpdate.corrected`); None: nothing."""
        return None

    def round(self, s: S) -> Round:
        """Return the round in progress."""

    def waiting_for(self, s: S) -> tuple[NodeId, ...]:
        """Return those whose messages the round in progress still lacks; nobody before `step` and
        when nothing is missing."""

    def exchanged(self, s: S) -> slice:
        """Return the values that the round in progress exchanges, a part of float32[n]."""
        return slice(0, len(self.model(s)))

    def audit(self, s: S) -> Audit:
        """Return what the state holds, for checkers."""
