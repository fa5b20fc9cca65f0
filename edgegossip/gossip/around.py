"""What is put around a gossip algorithm and is one itself: it changes the local update before the
inner `step`, by what it remembers of the rounds before (`momentum.py`, `outer.py`, `overlap.py`).

It asks for no `correction` of local steps. What it makes of an update would be made of that too,
and come back with the next one; an algorithm that has one adds it when the update is there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from typing_extensions import override

from edgegossip.codecs.base import Codec
from edgegossip.gossip.base import Action, Adopted, Audit, GossipAlgorithm, Message, NodeView, RoundDone, Says
from edgegossip.gossip.traits import Traits
from edgegossip.layout import Layout
from edgegossip.types import NodeId, Round, Vec, replace

S = TypeVar("S", bound=Any)  # a dataclass with the fields `inner`, the state of the algorithm inside, and `layout`


@dataclass(frozen=True, slots=True)
class Around(GossipAlgorithm[S]):
    """Does what `algorithm` does, and is told where a round begins anew and where it is done. Who
    derives from it has `step`, `begin` and `done`."""

    algorithm: GossipAlgorithm[Any]

    @abstractmethod
    def begin(self, inner: Any, layout: Layout) -> S:
        """Return the state of one that remembers nothing, at the start of a round."""

    @abstractmethod
    def done(self, s: S, inner: Any) -> S:
        """Return the state at the start of the next round: that of `s` was gone through, and the
        algorithm inside came to `inner`."""

    @property
    @override
    def traits(self) -> Traits:
        return self.algorithm.traits

    @property
    @override
    def asynchronous(self) -> bool:
        return self.algorithm.asynchronous

    @property
    @override
    def listens(self) -> bool:
        return self.algorithm.listens

    @property
    @override
    def says(self) -> Says:
        return self.algorithm.says

    @property
    @override
    def bodies(self) -> int:
        return self.algorithm.bodies

    @override
    def rate(self, codec: Codec[Any]) -> float | None:
        return self.algorithm.rate(codec)

    @override
    def init(self, x: Vec, view: NodeView) -> S:
        return self.begin(self.algorithm.init(x, view), view.layout)

    @override
    def restorable(self, s: S) -> S:
        return replace(s, inner=self.algorithm.restorable(s.inner))

    @override
    def start(self, s: S) -> tuple[S, list[Action]]:
        return self.follow(s, *self.algorithm.start(s.inner))

    @override
    def receive(self, s: S, m: Message) -> tuple[S, list[Action]]:
        return self.follow(s, *self.algorithm.receive(s.inner, m))

    @override
    def tick(self, s: S, now_s: float) -> tuple[S, list[Action]]:
        return self.follow(s, *self.algorithm.tick(s.inner, now_s))

    @override
    def membership(self, s: S, view: NodeView) -> tuple[S, list[Action]]:
        return self.follow(s, *self.algorithm.membership(s.inner, view))

    @override
    def model(self, s: S) -> Vec:
        return self.algorithm.model(s.inner)

    @override
    def weight(self, s: S) -> float:
        return self.algorithm.weight(s.inner)

    @override
    def round(self, s: S) -> Round:
        return self.algorithm.round(s.inner)

    @override
    def waiting_for(self, s: S) -> tuple[NodeId, ...]:
        return self.algorithm.waiting_for(s.inner)

    @override
    def exchanged(self, s: S) -> slice:
        return self.algorithm.exchanged(s.inner)

    @override
    def audit(self, s: S) -> Audit:
        return self.algorithm.audit(s.inner)

    def follow(self, s: S, inner: Any, actions: Sequence[Action]) -> tuple[S, list[Action]]:
        """Return the state after the inner algorithm went from s.inner to `inner`. One that skipped
        rounds, or took over another's model, begins anew."""
        if not actions:  # a round never ends in silence
            return replace(s, inner=inner), []
        done = adopted = False
        for action in actions:
            kind = type(action)
            if kind is RoundDone:
                done = True
            elif kind is Adopted:
                adopted = True
        round = self.algorithm.round
        if adopted or round(inner) - round(s.inner) != done:
            s = self.begin(inner, s.layout)
        elif done:
            s = self.done(s, inner)
        else:
            s = replace(s, inner=inner)
        return s, list(actions)
