"""Lets a round's exchange go on while the next round's local steps are computed (Douillard et al.,
"Streaming DiLoCo with overlapping communication", 2025), around an outer optimiser (`outer.py`).

g is the model that boards share: what the algorithm inside came to, outer step included. y is the
board's own, which it trains. A round, with the local update delta:

    train        delta from y, while what the round before sent is on its way
    wait         for that exchange, if it is not over; it leads to a new g
    merge        y <- a (y + delta) + (1 - a) g  where that exchange was of, y + delta elsewhere
    send         y, as the local update y - g of the algorithm inside: nobody waits for it yet

a = `merge`. Messages may come at any time between; what came counts at the merge, so a run does not
depend on how fast the link was. The exchange of the last round is waited for.

The paper's tau, the steps that an exchange may take, is one round here. Its H, the steps between
two exchanges of the same values, is one round for each fragment (`fragments.py`): with P of them
H = P tau. Of what the steps of one round in P learn the share 1 - a is given up: with one fragment
that is each round.

Deviations. (1) Merging counts in local steps' updates: it is the algorithm's own matter what
becomes of a lost message or a restart. An exchange that was given up, or a model that was taken
over, is not merged. (2) A round ends when its message is sent: what it reports of an exchange is of
the one before. (3) The deadline counts from when the board has nothing left to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from edgegossip.codecs.checks import require_finite
from edgegossip.gossip.around import Around
from edgegossip.gossip.base import Action, Adopted, Checkpoint, NodeView, RoundDone, SetTimer
from edgegossip.layout import Layout
from edgegossip.types import LocalUpdate, NodeId, Round, UsageError, Vec, replace

NOTHING_HEARD = RoundDone(0, float("nan"), float("nan"))


@dataclass(frozen=True, eq=False)
class State:
    """Holds one node's state. Immutable; arrays in it are never written to once they are there."""

    inner: Any  # of the algorithm inside
    layout: Layout
    x: Vec  # float32[n], y: the model that training is shown
    under_way: bool = False  # the exchange of the round before
    span: tuple[int, int] | None = None  # the values that are to be merged, or of that exchange; None: no values
    told: RoundDone = NOTHING_HEARD  # of the last exchange that is over
    held: Any = None  # the local update that waits for the exchange under way
    ends: bool = False  # with the exchange under way, which is the run's last
    timer_s: float | None = None  # what the algorithm inside asked for, once there is nothing to compute

    @property
    def waits(self) -> bool:
        """Whether there is nothing to compute before the exchange is over."""
        return self.held is not None or self.ends


@dataclass(frozen=True, slots=True)
class Overlapped(Around[State]):
    """Exchanges while the next round is computed. Made by `outer.with_outer`."""

    merge: float

    @property
    @override
    def name(self) -> str:
        return f"{self.algorithm.name}+overlap"

    @property
    @override
    def listens(self) -> bool:
        return True

    @override
    def begin(self, inner: Any, layout: Layout) -> State:
        return State(inner, layout, self.algorithm.model(inner))

    @override
    def done(self, s: State, inner: Any) -> State:
        """Take note that the exchange under way is over: the next update is merged with it."""
        return replace(s, inner=inner, under_way=False)

    @override
    def resume(self, s: State, view: NodeView) -> State:
        """Go on from the own model. What was under way is lost, for this board."""
        inner = self.algorithm.resume(s.inner, view)
        return State(inner, s.layout, s.x, span=None if s.under_way else s.span)

    @override
    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Merge and send; wait with that for the exchange under way. Raises UsageError when called
        twice in a round, or when the update is not finite (names the tensor)."""
        if s.waits:
            raise UsageError(f"round {self.round(s)} has its local update already")
        s.layout.check(local.delta)
        require_finite(local.delta, s.layout)
        s = replace(s, held=local)
        return (s, [SetTimer(s.timer_s)]) if s.under_way else self._send(s)

    @override
    def model(self, s: State) -> Vec:
        return s.x

    @override
    def round(self, s: State) -> Round:
        return self.algorithm.round(s.inner) + (s.under_way and not s.ends)

    @override
    def waiting_for(self, s: State) -> tuple[NodeId, ...]:
        return self.algorithm.waiting_for(s.inner) if s.waits else ()

    @override
    def follow(self, s: State, inner: Any, actions: Sequence[Action]) -> tuple[State, list[Action]]:
        """Return the state after the inner algorithm went from s.inner to `inner`. What waited for
        it goes on; while the next round is computed, it ends no round, and sets no timer."""
        waits, round = s.waits, self.algorithm.round
        given_up = s.under_way and round(inner) > round(s.inner) + 1  # it was left behind
        if any(type(action) is Adopted for action in actions):
            passed = [a for a in actions if waits or type(a) not in (RoundDone, SetTimer)]
            return self.begin(inner, s.layout), passed
        passed = []
        s = replace(s, inner=inner)
        for action in actions:
            if type(action) is RoundDone:
                s = self.done(replace(s, told=action), inner)
            elif type(action) is SetTimer and not waits:
                s = replace(s, timer_s=action.after_s)
            elif type(action) is not Checkpoint:
                passed.append(action)
        if given_up:
            s = replace(s, span=None)
        if s.under_way or not s.waits:
            return s, passed
        s, more = self._send(s) if s.held is not None else self._end(s)
        return s, [*passed, *more]

    def _send(self, s: State) -> tuple[State, list[Action]]:
        """Merge what the exchange before came to, and send the model that this makes."""
        round, last = self.algorithm.round(s.inner), s.held.last
        delta = self._merged(s, s.held.delta)
        update, x = replace(s.held, delta=delta, consumable=False), self.algorithm.model(s.inner) + delta
        span = self.algorithm.exchanged(s.inner)
        s = replace(s, x=x, span=(span.start, span.stop), under_way=True, held=None, ends=False, timer_s=None)
        s, actions = self.follow(s, *self.algorithm.step(s.inner, update))
        if not last:
            return s, [*actions, Checkpoint(), replace(s.told, round=round)]
        if not s.under_way:
            s, more = self._end(s)
            return s, [*actions, *more]
        return replace(s, ends=True), [*actions, SetTimer(s.timer_s)]

    def _end(self, s: State) -> tuple[State, list[Action]]:
        """Merge the last exchange of the run; nothing was computed meanwhile."""
        x = self.algorithm.model(s.inner) + self._merged(s, np.zeros_like(s.x))
        s = replace(s, x=x, span=None, ends=False)
        return s, [Checkpoint(), replace(s.told, round=self.algorithm.round(s.inner) - 1)]

    def _merged(self, s: State, delta: Vec) -> Vec:
        """Return y - g, float32[n], where y has moved by `delta` and has g merged into it."""
        if s.span is None:
            return delta
        merged, span = delta.copy(), slice(*s.span)
        with np.errstate(over="ignore", invalid="ignore"):  # the inner `step` says what is not finite
            merged[span] += s.x[span] - self.algorithm.model(s.inner)[span]
            merged[span] *= np.float32(self.merge)
        return merged
