"""Chooses how many bytes a board's messages may take, link by link, for the codec `auto`. Pure.

What is measured are sends that arrived: bytes, when each was handed over and when it was
acknowledged. So the speed of a link holds whatever is in it: its bandwidth, its delay, others who
share it. No packet is sent to find out, and no clock is read.

Where a board has a limit of seconds, a message gets as many bytes as the link carries in that time.
Else the number of bytes B is the one that makes training quickest:

    minimise (compute + B / speed) x rounds(error(B))

`rounds` is by what factor lossy messages make more rounds necessary: 1 + w / 30. w is the noise of
a message over its signal, with e its relative error: e^2 where errors are unbiased and stay, by
which a gradient's second moment grows (Alistarh et al., "QSGD", 2017, theorem 3.4); e^2 / (1 - e^2)
where feedback or differences repair them, so many rounds later a value is said on average
(Karimireddy et al., "Error feedback fixes SignSGD", 2019, theorem II). Of whole models w is 240
e^2: their mean stays what it is, but gradients are taken so far from it. These numbers are
measured: in training to an accuracy much noise costs few rounds. Near where a board is now,
e^2 ~ B^-3 for `dither` and log e^2 ~ B^(1/2) for `deadzone`: fitted to gradients of four models,
anchored anew in every round at the error of the last message. So what counts is seconds to the same
model, as in DC2 (Abdelmoniem and Canini 2021), and not a share of the bandwidth, as in Kimad (Xin
et al. 2023).

The reflexes are those of congestion control. As in Google's for WebRTC (Carlucci et al. 2016) and
TCP's, a link that got slow is believed at once and one that got fast little by little: a number at
most doubles in a round. A change of less than a tenth is none (hysteresis). As BBR's (Cardwell et
al. 2016) the speed is measured, not probed for by losses, which gRPC hides.

A board's links share its uplink. Messages go out at one moment, and whether the network lets them
through side by side or one after the other, what counts is when the last one is through: links that
keep pace get equally many bytes. One that falls behind, so that bytes come through more slowly from
there on, is slow by itself: it gets fewer, and the others are not held back by it (max-min
fairness). Where all neighbours get the same message, the slowest decides. But one link alone
makes it no coarser than what still costs hardly a round: who acknowledges late, as a liar may,
would else silence a board towards all its neighbours. Messages whose errors stay need no such rule:
their least bytes cost an eighth more rounds.

How long a board waited for its neighbours does not count: two boards that took each other's slow
messages for a reason to send slow ones would never get out of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from edgegossip.codecs.base import Codec
from edgegossip.gossip.averaging import follows
from edgegossip.gossip.base import Says
from edgegossip.layout import Layout
from edgegossip.types import NodeId

COARSEST = 0.8  # error of a repaired message, which the averaging rate has to bear, too
FIRST_BITS = 1.0  # a value, before anything is measured
_MOST_BITS = 8.0
_GROWTH = 2.0  # in a round, at most
_DEAD_BAND = 1.1  # a smaller change is none
_HEADROOM = 0.9  # of the seconds that are allowed: within the dead band they are kept
_FALLS_BEHIND = 1.5  # a link from which on bytes come through so many times slower
_WORTH = 0.99  # a change that does not make training quicker by more is none
_USEFUL = (0.5, 0.65, COARSEST)  # errors that cost hardly a round: kept, aimed at, kept
_NEWS = 1.5  # a change that the log tells
_NEAR: tuple[float, ...] = tuple(2.0 ** (k / 4) for k in range(-12, 5))  # what is tried, in multiples of the bytes now
_TELLING = math.log(4.0)  # a change of bytes that tells delay and speed apart
_MOST_DELAY = 0.9  # of the least seconds that a message took
_FORGETS = 1.05  # by so much these grow with every message that takes longer
BEARS = {says: 0.125 if says is Says.MODELS else 30.0 for says in Says}  # noise over signal that doubles the rounds
_BLIND = 1e6  # the most that an error counts


@dataclass(frozen=True, slots=True)
class Goal:
    """Says what a board wants, of one model and kind of message."""

    values: int  # of the model
    says: Says
    least_bytes: int = 1  # of a message, whatever the links allow
    most_bytes: int = 0  # 0: as many as pay
    seconds: float = 0.0  # that a round's messages may be under way; 0: as many as pay


@dataclass(slots=True, eq=False)
class Link:
    """Says what is known of the way to one neighbour."""

    speed: float = 0.0  # bytes/s; 0: nothing was measured yet
    delay_s: float = 0.0  # of a message of no bytes
    allowed: float = 0.0  # bytes of the next message; 0: none was sent yet
    slow: bool = False  # by itself, whatever else the board sends
    until_s: float = -math.inf  # when the last frame had arrived
    logged: float = 0.0  # bytes of a message when they were last worth a line
    _last: tuple[float, float] = (0.0, 0.0)  # bytes and seconds measured last
    _least_s: float = math.inf  # that a message took, of late

    def seconds(self, size: float) -> float:
        """Return how long a message of so many bytes should take."""
        return self.delay_s + size / self.speed

    def measured(self, size: float, seconds: float) -> None:
        """Take in how long so many bytes took. What did not change with their number is delay, of
        which there is less than the quickest message took: the first one after a link got slow
        waits for what is still under way, whatever its size. A new speed is believed at once where
        it is far less, half where it is near, and at most `_GROWTH` times the old one."""
        before, before_s = self._last
        self._last = size, seconds
        if before and (change := min(1.0, abs(math.log(size / before)) / _TELLING)) > 0.1:
            slope = max(0.0, (seconds - before_s) / (size - before))
            self.delay_s += change * (max(0.0, seconds - slope * size) - self.delay_s)
        self._least_s = min(seconds, _FORGETS * self._least_s)
        self.delay_s = min(self.delay_s, _MOST_DELAY * self._least_s)
        speed = size / (seconds - self.delay_s)
        if not self.speed or speed < self.speed / _GROWTH:
            self.speed = speed
        else:
            self.speed *= math.sqrt(speed / self.speed) if speed < _GROWTH * self.speed else _GROWTH


@dataclass(slots=True)
class _Batch:
    """Adds up what arrived of the messages that were handed over at one moment."""

    begin_s: float = -math.inf
    first_s: float = -math.inf  # when the first of them had arrived
    through: int = 0  # bytes so far
    best: float = 0.0  # bytes/s, of those that had arrived at any time


@dataclass(slots=True)
class Rates:
    """Plans the bytes of one board's messages, round after round.

    Example:
        rates = Rates(Goal(values=100_000, says=Says.DIFFERENCES))
        allowed = rates.plan(["board-1", "board-2"], compute_s=0.8)  # {"board-1": 12500, ...}
        rates.told(12_460, error=0.2)
        rates.arrived("board-1", 12_600, start_s=10.0, end_s=10.4)
    """

    goal: Goal
    links: dict[NodeId, Link] = field(default_factory=dict)
    _batch: _Batch = field(default_factory=_Batch)  # the latest
    _bytes: float = 0.0  # of the last message whose error is known
    _error: float = 0.0  # of that

    @property
    def apart(self) -> bool:
        """Whether neighbours get messages of their own."""
        return self.goal.says is Says.MODELS

    def arrived(self, peer: NodeId, size_bytes: int, start_s: float, end_s: float) -> None:
        """Take note of a frame with values that was handed over and acknowledged then, seconds of
        any one clock. Frames are told in the order in which they arrived."""
        link = self.links.setdefault(peer, Link())
        seconds = max(end_s - max(start_s, link.until_s), 1e-6)
        link.until_s = end_s
        if start_s >= self._batch.first_s:
            self._batch = _Batch(start_s, end_s)
        link.measured(size_bytes, seconds)
        if link.slow:
            others = [other.speed for other in self.links.values() if other.speed and not other.slow]
            link.slow = link.speed * _FALLS_BEHIND < min(others, default=0.0)
        elif start_s < self._batch.begin_s:
            link.slow = True  # others have had what was handed over after it
        else:
            batch = self._batch
            batch.through += size_bytes
            pace = batch.through / max(end_s - batch.begin_s, 1e-6)
            link.slow = pace * _FALLS_BEHIND < batch.best
            batch.best = max(batch.best, pace)

    def told(self, size_bytes: int, error: float) -> None:
        """Take note of the relative error of a message of so many bytes."""
        if math.isfinite(error):
            self._bytes, self._error = float(size_bytes), min(error, _BLIND)

    def plan(self, peers: Iterable[NodeId], compute_s: float) -> dict[NodeId, int]:
        """Return how many bytes the next message to each of `peers` may take. `compute_s`: what a
        round takes beside messages."""
        links = {peer: self.links.setdefault(peer, Link()) for peer in peers}
        slow = [link for link in links.values() if link.slow and self.apart]
        together = [link for link in links.values() if link not in slow and link.allowed]
        known = [link for link in together if link.speed]
        if together:
            now = max(link.allowed for link in together)
            slowest = sorted(known, key=lambda link: link.seconds(now), reverse=True)[:2]
            if wanted := [self._next(now, link, compute_s) for link in slowest]:
                now = max(wanted[0], min(self._useful(now), wanted[-1])) if self.goal.says.repaired else wanted[0]
        else:
            now = self._held(FIRST_BITS * self.goal.values / 8)
        for link in links.values():
            link.allowed = self._next(link.allowed, link, compute_s) if link in slow else now
        return {peer: int(link.allowed) for peer, link in links.items()}

    def news(self) -> Iterator[tuple[NodeId, str]]:
        """Yield each neighbour whose rate has changed by so much that it is worth a line, with
        that."""
        for peer, link in self.links.items():
            if link.speed and not 1 / _NEWS < link.allowed / max(link.logged, 1.0) < _NEWS:
                link.logged = link.allowed
                speed = 8e-6 * link.speed
                yield peer, f"sends {peer} {self._bits(link):.2g} bits a value: its link carries {speed:.3g} Mbit/s"

    def figures(self) -> dict[str, float]:
        """Return metrics of a round's record (telemetry/records.py), of links whose speed is
        known."""
        figures = {}
        for peer, link in self.links.items():
            if link.speed and link.allowed:
                figures[f"rate/{peer}_bits"] = self._bits(link)
                figures[f"rate/{peer}_mbit"] = 8e-6 * link.speed
        return figures

    def _bits(self, link: Link) -> float:
        return 8 * link.allowed / max(1, self.goal.values)

    def _next(self, now: float, link: Link, compute_s: float) -> float:
        """The bytes of the next message over a link, of those of the last one."""
        if not now or not link.speed:
            return now
        budget = (_HEADROOM * self.goal.seconds - link.delay_s) * link.speed
        wanted = budget if self.goal.seconds else self._quickest(now, link, compute_s)
        if 1 / _DEAD_BAND < wanted / now < _DEAD_BAND:
            return self._held(now)
        return self._held(min(wanted, _GROWTH * now))

    def _quickest(self, now: float, link: Link, compute_s: float) -> float:
        """About the number of bytes with which training is quickest."""
        if not self._bytes:
            return now

        def cost(size: float) -> float:
            return (compute_s + link.seconds(size)) * self._rounds(size)

        best = min((now * times for times in _NEAR), key=cost)
        return best if cost(best) < _WORTH * cost(now) else now

    def _useful(self, now: float) -> float:
        """About the least number of bytes of a repaired message that says something."""
        if not self._bytes or _USEFUL[0] <= self._error <= _USEFUL[-1]:
            return now
        times = (math.log(_USEFUL[1]) / math.log(min(max(self._error, 1e-3), 0.99))) ** 2
        return now * min(max(times, _NEAR[0]), _GROWTH)

    def _rounds(self, size: float) -> float:
        """By what factor messages of this size make more rounds necessary."""
        squared, times = self._error**2, size / self._bytes
        bears = BEARS[self.goal.says]
        if not self.goal.says.repaired:
            return 1.0 + squared * float(times**-3.0) / bears
        if squared >= 1.0:
            return _BLIND / times  # the finer the better
        squared = squared ** math.sqrt(times) if squared else 0.0
        if squared > COARSEST**2 * _DEAD_BAND:
            return _BLIND / times
        return 1.0 + squared / (1.0 - squared) / bears

    def _held(self, size: float) -> float:
        least = self.goal.least_bytes
        most = min(_MOST_BITS * self.goal.values / 8, self.goal.most_bytes or math.inf)
        return min(max(size, least), max(most, least))


def rates_for(codec: Codec[Any], layout: Layout, says: Says) -> Rates | None:
    """Return the control of a board's rates, where the codec of its messages leaves them to it;
    else None."""
    if not follows(codec):
        return None
    wanted: Any = getattr(codec, "codecs", (codec,))[0]
    return Rates(Goal(layout.size, says, wanted.least_bytes(layout), wanted.bytes, wanted.seconds))
