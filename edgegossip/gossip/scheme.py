"""The mathematics of a synchronous algorithm, apart from its protocol: what a node says, what it makes of what it hears.

`synchronous.Synchronous` runs a scheme: rounds, deadlines, lost messages, newcomers. A scheme is an immutable description
with an explicit state, as codecs and algorithms are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from edgegossip.codecs.base import Body
from edgegossip.frame import Frame, Kind
from edgegossip.gossip.base import Audit, NodeView
from edgegossip.gossip.here import Here
from edgegossip.quick import quick
from edgegossip.types import LocalUpdate, Round, Vec

M = TypeVar("M")
Numbers = Mapping[int, float]  # aux values by tag


@quick
@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """A node's message of one round: the body is the same for all receivers, the numbers beside it need not be."""

    body: Body
    numbers: Mapping[int, Numbers]  # by receiver; a receiver that is not there gets none
    relative_error: float  # ||decoded - meant|| / ||meant||


@dataclass(frozen=True, slots=True, eq=False)
class Full:
    """Everything that one receiver needs to go on after a gap."""

    vectors: Sequence[Vec]  # `Scheme.parts` of them, float32[n]
    numbers: Numbers
    round: Round = 0  # the first one that is not in it


class Scheme(Protocol[M]):
    """A synchronous algorithm's mathematics with its parameters fixed."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind:
        """Of its messages."""

    @property
    def streams(self) -> bool:
        """Whether every message counts and must be taken in order; what is lost is then mended by `full` and `adopt`."""

    @property
    def replicates(self) -> bool:
        """Whether receivers hold a replica that each message moves on, so that nobody can skip one."""

    @property
    def totals(self) -> bool:
        """Whether both ends of an edge keep totals, which begin at zero when the receiver loses its disk."""

    @property
    def parts(self) -> int:
        """Vectors of `Full`."""

    def check(self, view: NodeView) -> None:
        """Raises ConfigError when the topology is not one that the algorithm works on."""

    def init(self, x: Vec, here: Here) -> M:
        """State before round 0; x is copied."""

    def fingerprint(self, m: M) -> int:
        """1..2^32: the same on two nodes whose replicas started alike, so that the first difference needs no `full`."""

    def publish(self, m: M, local: LocalUpdate, here: Here, to: Sequence[int]) -> tuple[M, Published]:
        """Take in the local update and say what the out-neighbours `to`, those that are up, are told."""

    def take(self, m: M, sender: int, frame: Frame, here: Here) -> M:
        """Take in a message of an in-neighbour; streams: the next one. Raises PeerError with m as it was."""

    def mix(self, m: M, here: Here, fresh: Sequence[int]) -> tuple[M, float]:
        """End the round, with the in-neighbours of whom there is news. The consensus distance."""

    def settle(self, m: M, model: Vec | None, here: Here) -> M:
        """End the round without mixing; with another node's model instead of the own if there is one."""

    def public(self, m: M, phase: int) -> Vec | None:
        """What receivers hold of this node when they are up to date, the same array until it changes; None if nothing."""

    def full(self, m: M, to: int, phase: int) -> Full:
        """For a receiver that has lost track."""

    def adopt(self, m: M, sender: int, phase: int, full: Full, here: Here) -> M:
        """The receiver's side of `full`. Raises PeerError with m as it was."""

    def forget(self, m: M, to: int, phase: int) -> M:
        """The receiver lost everything that it ever got."""

    def model(self, m: M) -> Vec: ...

    def audit(self, m: M, here: Here) -> Audit: ...
