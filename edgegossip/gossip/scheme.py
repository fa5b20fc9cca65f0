"""Defines the mathematics of an algorithm that goes by rounds, apart from its protocol: `Scheme`,
which `rounds.Synchronous` runs, and what the two exchange."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.codecs.keys import derive_key
from edgegossip.frame import Frame, Kind
from edgegossip.gossip.base import Audit, Neighbours, NodeView, Says
from edgegossip.gossip.fragments import CodecState, Fragment, cut, fragment_at
from edgegossip.gossip.messages import round_key
from edgegossip.gossip.traits import Traits
from edgegossip.types import LocalUpdate, NodeId, Round, Vec

M = TypeVar("M")
Numbers: TypeAlias = Mapping[int, float]  # aux values by tag


@dataclass(frozen=True, slots=True)
class RoundContext:
    """One node in one round. Made with `at`, once a round: it is asked several times a message."""

    view: NodeView
    index: int
    round: Round
    phase: int  # the round within the topology's period; streams of different phases are kept apart
    neighbours: Neighbours
    awaited: tuple[int, ...]  # in-neighbours that are up
    fragment: Fragment  # of the model: what the round exchanges
    fragments: int = 1
    part: int = 0  # of the bodies of its message, the one that is encoded

    @classmethod
    def at(cls, view: NodeView, index: int, round: Round, fragments: int = 1) -> RoundContext:
        """Return the context of a node's round, for a model in so many fragments."""
        neighbours, period = view.topology.neighbours(index, round), view.topology.period
        awaited, fragment = view.up(neighbours.in_), fragment_at(view.layout, fragments, period, round)
        return cls(view, index, round, round % period, neighbours, awaited, fragment, fragments)

    def fragment_of(self, frame: Frame) -> Fragment:
        """Return what of the model a frame holds; of a stream it may be of an earlier round."""
        if frame.round == self.round:
            return self.fragment
        return fragment_at(self.view.layout, self.fragments, self.view.topology.period, frame.round)

    @property
    def key(self) -> int:
        """The codec key of this node's message of this round; of its further bodies one derived
        from it."""
        key = round_key(self.view.seed, self.index, self.round)
        return derive_key(key, self.part) if self.part else key

    def for_codec(self, local: LocalUpdate) -> Ctx:
        """Return what the codec is told beside the vector."""
        return Ctx(self.key, self.round, local.loss, local.lr, bytes=min(local.allowed.values(), default=None))

    def codec_start(self) -> Any:
        """Return what the codec keeps before the first message: of each fragment its own."""
        codec, layout = self.view.codec, self.view.layout
        if self.fragments == 1:
            return codec.init(layout)
        return tuple(CodecState(f.layout, codec.init(f.layout)) for f in cut(layout, self.fragments))

    def encode(self, part: Vec, kept: Any, asked: Ctx) -> tuple[Body, Any]:
        """Encode the values of what the round exchanges; return what the codec keeps, too."""
        if self.fragments == 1:
            return self.view.codec.encode(part, kept, asked)
        k = self.fragment.index
        body, state = self.view.codec.encode(part, kept[k].state, asked)
        return body, (*kept[:k], replace(kept[k], state=state), *kept[k + 1 :])

    def decode(self, body: Body) -> Vec:
        """Return the values that `encode` made this of. Raises DecodeError."""
        return self.view.codec.decode(body, self.fragment.layout)

    def allowed(self, local: LocalUpdate) -> dict[int, int]:
        """Return the bytes that a message to each out-neighbour may take, where that is said."""
        return {k: local.allowed[name] for k in self.neighbours.out if (name := self.name(k)) in local.allowed}

    def ahead(self, round: Round) -> float:
        """Return of how many updates what is of that round may be the sum, beside what this node
        has: of one for each round that is still to come here."""
        return 1.0 + max(0, round - self.round)

    def name(self, j: int) -> NodeId:
        """Return the name of a member."""
        return self.view.members[j]


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """A node's message of one round: the numbers beside the body are each receiver's, and the body
    may be finer for some."""

    body: Body
    numbers: Mapping[int, Numbers]  # by receiver; a receiver that is not there gets none
    relative_error: float  # ||decoded - meant|| / ||meant||
    own: Mapping[int, Body] | None = None  # instead of `body`, for receivers that get another one


@dataclass(frozen=True, slots=True)
class Spread:
    """Says how far neighbours' models lay from the node's own in one round."""

    distance: float = math.nan  # root mean square of ||x_j - x_i||_2; nan without any
    by_neighbour: Mapping[int, float] = field(default_factory=dict)  # ||x_j - x_i||_2, where each is known
    directions: Mapping[int, float] = field(default_factory=dict)  # ||q_j||_2, the own too, where directions travel

    @classmethod
    def of(cls, squares: Mapping[int, float]) -> Spread:
        """Return it of each neighbour's ||x_j - x_i||^2."""
        if not squares:
            return cls()
        mean = math.sqrt(sum(squares.values()) / len(squares))
        return cls(mean, {j: math.sqrt(square) for j, square in squares.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Holds everything that one receiver needs to go on after a gap: the contents of a STATE."""

    vectors: Sequence[Vec]  # `Scheme.parts` of them, float32[n]
    numbers: Numbers
    round: Round = 0  # the first one that is not in it
    since: Round = -1  # what the receiver has is of this round or a later one


def fingerprint_of(start: Vec) -> int:
    """Return 1..2^32, `Scheme.fingerprint` of replicas that start here."""
    return zlib.crc32(start.data) + 1


class Scheme(Protocol[M]):
    """A synchronous algorithm's mathematics with its parameters fixed.

    `rounds.Synchronous` runs it: rounds, deadlines, lost messages, newcomers. A scheme is an
    immutable description with an explicit state, as codecs and algorithms are."""

    name: str
    traits: Traits

    @property
    def kind(self) -> Kind:
        """The kind of its messages."""

    @property
    def streams(self) -> bool:
        """Whether every message counts and must be taken in order; what is lost is then mended by
        `full` and `adopt`."""
        return self.replicates

    @property
    def replicates(self) -> bool:
        """Whether receivers hold a replica that each message moves on, so that nobody can skip
        one."""

    @property
    def totals(self) -> bool:
        """Whether both ends of an edge keep totals, which begin at zero when the receiver loses its
        disk."""
        return False

    @property
    def malicious(self) -> int:
        """How many neighbours may lie."""
        return 0

    @property
    def says(self) -> Says:
        """What is encoded."""

    def rate(self, codec: Codec[Any]) -> float | None:
        """Return the averaging rate with this codec; None where the codec does not decide it."""
        return None

    @property
    def parts(self) -> int:
        """How many vectors a `Snapshot` has."""

    @property
    def bodies(self) -> int:
        """How many bodies a message has, one after the other: one for each vector."""
        return 1

    @property
    def fragments(self) -> int:
        """Into how many groups of layers the model is cut, of which a round exchanges one."""
        return 1

    def check(self, view: NodeView) -> None:
        """Raise ConfigError when the topology is not one that the algorithm works on."""

    def init(self, x: Vec, ctx: RoundContext) -> M:
        """Return the state before round 0; x is copied."""

    def fingerprint(self, m: M) -> int:
        """Return 1..2^32: the same on two nodes whose replicas started alike, so that the first
        difference needs no `full`."""

    def weight(self, m: M) -> float:
        """Return what the model counts for: a local update of d moves it by d / weight."""
        return 1.0

    def correction(self, m: M) -> Vec | None:
        """Return what each step of the next local update is to add to its gradient, float32[n];
        None: nothing."""
        return None

    def publish(self, m: M, local: LocalUpdate, ctx: RoundContext, to: Sequence[int]) -> tuple[M, Published]:
        """Take in the local update; return the message for the out-neighbours `to`, those that are
        up."""

    def take(self, m: M, sender: int, frame: Frame, ctx: RoundContext) -> M:
        """Take in a message of an in-neighbour; streams: the next one. Raises PeerError with m as
        it was."""

    def mix(self, m: M, ctx: RoundContext, fresh: Sequence[int]) -> tuple[M, Spread]:
        """End the round with the in-neighbours that are `fresh`, of whom there is news. Return how
        far they lay, too."""

    def abandon(self, m: M, model: Vec | None, ctx: RoundContext) -> M:
        """End the round without mixing; with another node's model instead of the own if there is
        one."""

    def public(self, m: M, phase: int) -> Vec | None:
        """Return what receivers hold of this node when they are up to date, the same array until it
        changes; None if nothing."""

    def full(self, m: M, to: int, phase: int) -> Snapshot:
        """Return all that a receiver needs that has lost track."""

    def adopt(self, m: M, sender: int, phase: int, full: Snapshot, ctx: RoundContext) -> M:
        """Take in the `full` of a sender. Raises PeerError with m as it was."""

    def forget(self, m: M, to: int, phase: int) -> M:
        """Begin anew with a receiver that lost everything that it ever got."""
        return m  # only what the sender counts for each receiver begins anew

    def model(self, m: M) -> Vec:
        """Return the model to train and to evaluate, float32[n]."""

    def audit(self, m: M, ctx: RoundContext) -> Audit:
        """Return what the state holds, for checkers."""
