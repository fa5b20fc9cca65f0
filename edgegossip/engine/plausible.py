"""Decides which claims and updates of boards a coordinator believes.

Pure: rounds go in, refusals with their reasons come out.

An update arrives with claims: how many examples it is from, the loss, the learning rate. Any of
these can be wrong by mistake or on purpose, and one board must not spoil the run of all others.
Questions are asked in this order, from cheap to dear:

1. `check_reported`: does a claim make sense by itself?
2. `ExampleClaims`: would this update drown all others in a mean that is weighted by examples?
3. `NormFilter`: is the decoded update so long (L2) that it would spoil the model?
4. `Losses`: which losses go into the curve? A loss changes no model, so nobody is refused for it.
5. `ServerLevels`: how many levels do all boards use next, whatever a single one claims?

Who is refused again and again is left out for a while (`quarantine`).

All of them hold a board against the others of its round. Of three boards the median cannot be one
liar's; of one or two there is no such median, and each class says what it does then.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_high, median_low
from typing import Any, Generic, TypeVar

import numpy as np

from edgegossip.codecs.base import Codec
from edgegossip.codecs.checks import chunks
from edgegossip.codecs.levels import LevelRule, levels_for, smooth_loss
from edgegossip.codecs.uniform import ElastiCl
from edgegossip.frame import Aux, Frame
from edgegossip.types import NodeId, PeerError, Vec

ENOUGH = 3  # boards of which the median cannot be one liar's

# 1. One claim alone

MAX_EXAMPLES = 1e12  # of one update; more is nonsense that would drown the other boards
MAX_LOSS = 1e25  # either sign
MAX_RATE = 1e6


def check_reported(frame: Frame, levels: bool) -> None:
    """Check what an update claims, as far as it claims anything.

    Raises PeerError on what makes no sense.

    `levels`: losses decide how many levels all boards use (`ServerLevels`), so none may be
    negative."""
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
    """Check the claims of an update that has to state examples and loss. Raises PeerError."""
    if Aux.EXAMPLES not in frame.aux or Aux.LOSS not in frame.aux:
        raise PeerError("the update does not say how many examples it is from, and with what loss")
    check_reported(frame, levels)


# 2. Examples

EXAMPLES_RATIO = 1000.0
GROWN = 10.0  # times its first claim, or the typical one: a board may have come to more data
SINGLE = 1e7  # for two boards: no data set of one board has more, ImageNet has 1.3 million

Key = TypeVar("Key", bound=Hashable)


class ExampleClaims(Generic[Key]):
    """Judges claims of examples, round after round.

    Honest boards differ by a hundred times and all are taken. A claim is refused when it is more
    than EXAMPLES_RATIO times the typical one of the run: the lower median of what each board
    claimed last. Of two boards the median is no help, for the other may claim too few; the larger
    claim is then refused only when it is also beyond what one board has at all (SINGLE). Nor may a
    claim be more than GROWN times the board's first one and above the typical one. `claimed` holds
    what each board whose update was used claimed last; it belongs into checkpoints."""

    def __init__(self, what: str = "update") -> None:
        self._what = what
        self.claimed: dict[Key, float] = {}
        self._first: dict[Key, float] = {}

    def refused(self, claims: Mapping[Key, float]) -> dict[Key, str]:
        """Return who of those with these claims, all above 0, is refused, and why."""
        known = sorted({**self.claimed, **claims}.values())
        if len(known) < 2:
            return {}
        typical = median_low(known)
        most = EXAMPLES_RATIO * typical if len(known) >= ENOUGH else max(SINGLE, EXAMPLES_RATIO * typical)
        found = {}
        for key, claim in claims.items():
            if claim > most:
                found[key] = f"{claim / typical:.3g} times as many as the typical one"
            elif claim > max(GROWN * (first := self._first.get(key, claim)), typical):
                found[key] = f"{claim / first:.3g} times as many as its first one"
        return {
            key: f"the {self._what} claims to be from {claims[key]:g} examples, {why}" for key, why in found.items()
        }

    def used(self, claims: Mapping[Key, float]) -> None:
        """Take note that updates with these claims are part of the model."""
        self.claimed.update(claims)
        self._first = {**claims, **self._first}


# 3. Lengths

LENGTH_RATIO = 100.0  # honest updates of one round differ by less than a tenth of it, lr warm-up included
WARM_UP, WARM_UP_GROWTH = 10, 2.0  # the first rounds move the typical length by no more than this: lr warm-up
GROWTH = 1.1  # and later ones by no more than this
REACH = 10.0  # and rounds in a row that nobody measured by no more than this altogether

_PAST = " of the run so far"


@dataclass(slots=True)
class NormFilter:
    """Judges lengths of updates, round after round: finite, and yet so long that one would spoil
    the model for all.

    An update is refused when it is more than LENGTH_RATIO times as long as the typical one, the
    lower median of the round's. With fewer than three to compare there is no median to trust - one
    of two boards may be nearly done, and the other as honest - so they are held against the lower
    median of what each board sent last. In a fleet of two that is no help either: they are held
    against the longest update that both have come up to, or one of them in its first round, when
    the model is as long. A first update that is alone is taken.

    A liar just below the ratio moves the model; the others' next updates lead back and are longer
    for it, and so would be what the liar is held against. Therefore that grows slowly (GROWTH).
    Where most updates are longer still, training itself has changed, and the round's own typical
    one is right.

    What is no longer than the last one that was used of the same board is taken all the same:
    boards that have arrived hardly move, and one that was away still has its way to go.

    Its fields, by `asdict`, are what has to outlive this process."""

    longest: float = 0.0  # that both of two have come up to; 0: no update yet
    typical: float = 0.0  # of three or more boards, growing slowly; 0: not yet
    reach: float = WARM_UP_GROWTH  # the typical length may grow by this factor in the next round
    rounds: int = 0
    last: dict[NodeId, float] = field(default_factory=dict)  # lengths of updates that were used

    def refused(self, lengths: Mapping[NodeId, float], x: Vec) -> dict[NodeId, str]:
        """Return whose update is refused, and why. x float32[n]: the model that the updates
        change."""
        moved = sorted(length for length in lengths.values() if length > 0.0)
        typical, of = self._compared(moved, x)
        return {
            key: f"the update is {value / typical:.3g} times as long as the typical one{of}"
            for key, value in lengths.items()
            if typical > 0.0 and value > LENGTH_RATIO * typical and value > self.last.get(key, 0.0)
        }

    def used(self, lengths: Mapping[NodeId, float], x: Vec) -> None:
        """Take note of a round whose model is made of x float32[n] and updates of these lengths."""
        moved = sorted(length for length in lengths.values() if length > 0.0)
        if not moved:
            return
        self.last.update((name, value) for name, value in lengths.items() if value > 0.0)
        known = sorted(self.last.values())
        typical = median_low(moved if len(moved) >= ENOUGH else known)
        if len(known) >= ENOUGH:
            slow = min(max(typical, self.typical / self._growth), self.reach * self.typical)
            self.typical = slow if self.typical else typical
        if self.longest:
            self.longest = max(self.longest, min(typical, self.reach * self.longest))
        else:
            self.longest = max(typical, min(known[-1], length(x) or math.inf)) if len(known) < ENOUGH else typical
        self.rounds += 1
        self.reach = self._growth

    def unmeasured(self) -> None:
        """Take note of a round whose updates nobody measured."""
        self.rounds += 1
        self.reach = min(self._growth * self.reach, REACH)

    @property
    def _growth(self) -> float:
        return WARM_UP_GROWTH if self.rounds < WARM_UP else GROWTH

    def _compared(self, moved: Sequence[float], x: Vec) -> tuple[float, str]:
        """Return the length to compare with, 0 where nothing is known, and words for what it is
        of."""
        if len(moved) >= ENOUGH:
            return self._slow(median_low(moved), median_low(moved), "")
        least = moved[0] if len(moved) > 1 else 0.0
        if len(self.last) >= ENOUGH:
            return self._slow(median_low(self.last.values()), least, _PAST)
        if self.longest:
            return self._unless_all(self.longest, least, _PAST)
        if len(moved) > 1 and (model := length(x)):
            return max(least, model), ""
        return 0.0, ""

    def _slow(self, typical: float, least: float, of: str) -> tuple[float, str]:
        held = min(typical, self.reach * self.typical) if self.typical else typical
        return self._unless_all(held, least, of if held == typical else _PAST)

    def _unless_all(self, typical: float, least: float, of: str) -> tuple[float, str]:
        # Most updates are as long as `least`. Where that is too long, training itself runs away,
        # and refusing everybody would hide it.
        return (least, "") if least > LENGTH_RATIO * typical else (typical, of)


def length(x: Vec) -> float:
    """Return the L2 norm of float32[n], finite for finite x."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = 0.0
        for part in chunks(x.size):
            squares += float(np.einsum("i,i->", x[part], x[part]))  # not by BLAS: its threads would spin
        if not math.isfinite(squares):  # the sums of single parts are float32
            parts = (x[part].astype(np.float64) for part in chunks(x.size))
            squares = sum(float(np.einsum("i,i->", p, p)) for p in parts)
    return math.sqrt(squares) if math.isfinite(squares) else math.inf


# 4. Losses

LOSS_RATIO = 1e4
EVALUATED_RATIO = 1e6  # for evaluations against training: a model may fail badly on data that it has not seen
LOSS_STEP = 100.0  # one board alone moves the typical loss by no more than this a round


class Losses:
    """Judges which of the losses that boards claim are believed; one claim of -1e25 would be the
    whole curve.

    A loss is believed that is no more than LOSS_RATIO times as large, either sign, as the typical
    one: the lower median of the round's absolute losses. With fewer than three that is the typical
    one of the rounds before, or else the smaller. Losses up to LOSS_RATIO are believed whatever the
    others say, for a board may be nearly done. `typical` is that of the last round, None before the
    first."""

    def __init__(self) -> None:
        self.typical: float | None = None

    def believed(self, losses: Sequence[float]) -> list[bool]:
        """Judge one round's losses, in their order."""
        if not losses:
            return []
        sizes = sorted(map(abs, losses))
        least = median_low(sizes)
        typical = least if self.typical is None or len(sizes) >= ENOUGH else max(self.typical, *sizes[:-1], 0.0)
        found = [abs(loss) <= LOSS_RATIO * max(typical, 1.0) for loss in losses]
        if len(sizes) > 1 or self.typical is None:
            self.typical = least
        elif found[0]:
            self.typical = min(least, LOSS_STEP * self.typical)
        return found

    def makes_sense(self, evaluated: float) -> bool:
        """Tell whether a model of this training may have that loss on test data."""
        most = MAX_LOSS if self.typical is None else EVALUATED_RATIO * max(self.typical, 1.0)
        return abs(evaluated) <= most  # which no NaN is


# 5. Levels

SPREAD = 10.0
CORRECT_AFTER = 8  # claims, of fewer than three boards a round, after which (f_0, eta_0) stays as it is


@dataclass(frozen=True, slots=True)
class ServerLevels:
    """Chooses the levels of all boards from their losses and learning rates: ElastiCL's rule where
    the paper has it, at the server.

    Sudharsan et al. 2021, equations 3 and 4. The state is `loss` f_k, and (f_0, eta_0) from the
    first round; it goes into checkpoints. Levels stay for an interval in which a board sends B_0
    bits; with 0 they are chosen each round.

    One board that claims a wild loss must not decide for all. So the mean is of losses that are
    taken as at most SPREAD times as large or small as their median; with fewer than three boards
    the smoothed loss so far stands in for those that are missing. Whatever a single board says of
    its loss and examples, f_k is within SPREAD of what the others say (of two: said before), and
    the levels within its square root. The learning rate is the median too: boards of one recipe
    have the same. Of fewer than three it is the one nearest to the recipe's, or where that is not
    known, of two, the median of them and the one before.

    What the first round says counts for ever. So where fewer than three boards have said it, (f_0,
    eta_0) and f_k are held against what the boards say until three do in one round, or
    CORRECT_AFTER have in all: more than SPREAD (of the latter, its square) beside that, they are
    replaced by it. In a fleet of two nobody can tell which of both lies."""

    s0: int
    smoothing: float
    loss: float | None = None
    first: tuple[float, float] | None = None
    levels: int = 0  # for the next round; 0: s0
    lr: float | None = None  # eta_k
    # losses and rates of the first rounds; None: f_0 and eta_0 stay as they are
    first_claims: tuple[tuple[float, float], ...] | None = ()
    interval_bits: float = 0.0  # B_0
    sent_bits: float = 0.0  # by a board since `levels` were chosen

    @classmethod
    def of(cls, codec: Codec[Any]) -> ServerLevels | None:
        """Return the rule as a run begins with it; None for a codec without one."""
        if not isinstance(codec, ElastiCl):
            return None
        return cls(codec.s0, codec.smoothing, interval_bits=codec.interval_bits)

    def aux(self) -> dict[int, float]:
        """Return what goes down beside the model."""
        return {Aux.LEVELS: float(self.levels or self.s0)}

    def after(self, frames: Sequence[Frame], planned: float | None = None) -> ServerLevels:
        """Return the state after one round's updates, whose claims have passed `check_reported`.

        The loss is the mean by examples. `planned`: the recipe's learning rate of this round, above
        0."""
        rates = [rate for f in frames if (rate := f.aux.get(Aux.LEARNING_RATE, 0.0)) > 0.0]
        examples = [f.aux[Aux.EXAMPLES] for f in frames]
        if not rates:
            return self
        total = sum(examples)
        losses = self._believed([f.aux[Aux.LOSS] for f in frames])
        mean = sum(count / total * loss for count, loss in zip(examples, losses, strict=True))
        lr = self._rate(rates, planned)
        if mean < 0.0 or (self.first is None and mean == 0.0):
            return self
        loss = smooth_loss(self.loss, mean, self.smoothing)
        found = replace(self, loss=loss, first=self.first or (loss, lr), lr=lr)._corrected(frames)
        assert found.loss is not None and found.first is not None
        sent_bits = self.sent_bits + 8.0 * median_low(sorted(len(f.body) for f in frames))
        if self.levels and sent_bits < self.interval_bits:
            return replace(found, sent_bits=sent_bits)
        f0, eta0 = found.first
        return replace(found, levels=levels_for(LevelRule(self.s0, eta0, f0), found.loss, lr), sent_bits=0.0)

    def _rate(self, rates: Sequence[float], planned: float | None) -> float:
        if len(rates) >= ENOUGH:
            return median_high(rates)
        if planned:
            return min(rates, key=lambda rate: abs(math.log(rate / planned)))
        return median_high([*rates, self.lr] if len(rates) > 1 and self.lr else rates)

    def _corrected(self, frames: Sequence[Frame]) -> ServerLevels:
        """Return the same with f_0, eta_0 and f_k that are not one liar's alone."""
        if self.first_claims is None or self.first is None or self.loss is None:
            return self
        now = tuple((f.aux[Aux.LOSS], self.lr or 0.0) for f in frames)
        claims = now if len(now) >= ENOUGH else (*self.first_claims, *now)
        if len(now) < ENOUGH and len(claims) < CORRECT_AFTER:
            return replace(self, first_claims=claims)
        loss, lr = median_low(sorted(f for f, _ in claims)), median_high(sorted(eta for _, eta in claims))
        spread = SPREAD if len(now) >= ENOUGH else SPREAD**2

        def near(value: float, typical: float) -> float:
            far = typical > 0.0 and not typical / spread <= value <= typical * spread
            return typical if far else value

        (f0, eta0), fk = self.first, self.loss
        return replace(self, first_claims=None, first=(near(f0, loss), near(eta0, lr)), loss=near(fk, loss))

    def _believed(self, losses: Sequence[float]) -> list[float]:
        """Return the losses, each moved to within SPREAD of the typical one."""
        known = [] if self.loss is None else [self.loss] * (ENOUGH - len(losses))
        smallest = min((loss for loss in losses if loss > 0.0), default=0.0)
        typical = median_low([*losses, *known]) or self.loss or smallest
        if typical <= 0.0:
            return list(losses)
        return [min(max(loss, typical / SPREAD), typical * SPREAD) for loss in losses]
