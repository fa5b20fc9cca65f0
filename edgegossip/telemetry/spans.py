"""Where a round's wall time goes: an exclusive partition into compute, encode, transmit, decode,
wait and other.

Every nanosecond between two calls of `finish_round` belongs to exactly one part. Spans nest, and a
nested span takes its time away from the one around it; time outside any span is "other". Durations
are kept as integer nanoseconds, so the parts add up to the round without a rounding error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any

from edgegossip.telemetry.records import PARTS, SPANS
from edgegossip.types import Round, UsageError

NS_PER_S = 1_000_000_000
_CPU_AFTER_NS = 30_000  # asking for CPU time takes a system call: what so short a stretch used goes to the next one
_LOGGED = 4_000  # stretches of a round that are kept at all
MOST_SPANS = 400  # of one round that are written down; a round with more has none
_SPANS_OF = ((0.25, 1), (0.025, 10), (0.0, 100))  # of rounds that take so many seconds, every so many are written down


def _known(part: str) -> str:
    if part not in PARTS:
        raise UsageError(f"there is no part {part!r} of a round; the parts are {', '.join(PARTS)}")
    return part


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Holds one finished round. `sum(parts_ns.values()) == round_ns` always holds."""

    parts_ns: Mapping[str, int]  # every name of PARTS, wall nanoseconds
    round_ns: int  # wall nanoseconds from the last finish_round (or the clock's start) to this one
    cpu_ns: int  # CPU nanoseconds of the whole process, all threads, in the same interval
    cpu_parts_ns: Mapping[str, int] = field(default_factory=dict)  # the same part by part
    # The stretches of the round in their order: wall nanoseconds, and whether frames were on their
    # way beside it.
    log: Sequence[tuple[Span, int, bool]] = ()

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds of each part."""
        return {part: ns / NS_PER_S for part, ns in self.parts_ns.items()}

    @property
    def round_s(self) -> float:
        """Seconds of the round."""
        return self.round_ns / NS_PER_S

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the round, all threads."""
        return self.cpu_ns / NS_PER_S

    def metrics(self, step: Round | None = None) -> dict[str, float | str]:
        """Return the times under the names of metrics.jsonl: time/compute_s and so on,
        time/round_s, time/cpu_s, cpu/compute_s and so on; time/spans in some rounds `step`: every
        one, tenth or hundredth, the more the longer a round takes. Boards whose rounds take equally
        long choose the same ones."""
        values: dict[str, float | str] = {f"time/{part}_s": seconds for part, seconds in self.parts_s.items()}
        values |= {"time/round_s": self.round_s, "time/cpu_s": self.cpu_s}
        values |= {f"cpu/{part}_s": ns // 1000 / 1e6 for part, ns in self.cpu_parts_ns.items()}
        every = next(n for least_s, n in _SPANS_OF if self.round_s >= least_s)
        if step is not None and step % every == 0 and (text := self.spans()):
            values[SPANS] = text
        return values

    def spans(self) -> str:
        """Return the stretches as text: the first letter of each part and its microseconds, such as
        "c812e35t5w120d8"; a capital where frames of the board's own were on their way beside it.
        Without gaps they fill the round, to a microsecond. Empty when there are more than
        MOST_SPANS."""
        merged: list[list[Any]] = []
        end_ns = 0
        for span, ns, beside in self.log:
            letter = span.part[0].upper() if beside else span.part[0]
            end_ns += ns
            if merged and (merged[-1][0] == letter or ns < 500):
                merged[-1][1] = end_ns
            elif ns >= 500:
                merged.append([letter, end_ns])
        if len(merged) > MOST_SPANS:
            return ""
        ends_us = [0, *((end_ns + 500) // 1000 for _, end_ns in merged)]
        return "".join(
            f"{letter}{end - start}" for (letter, _), (start, end) in zip(merged, pairwise(ends_us), strict=True)
        )


class Span:
    """Measures one stretch of time, a context manager. `part` may be set to another name until the
    span ends; all of the span's own time (not that of spans inside it) in the round in progress
    then goes there."""

    __slots__ = ("_clock", "_cpu_ns", "_own_ns", "_part")

    def __init__(self, clock: RoundClock, part: str) -> None:
        self._clock = clock
        self._part = part if part in PARTS else _known(part)
        self._own_ns = 0
        self._cpu_ns = 0

    @property
    def part(self) -> str:
        """The part that the span's time goes to."""
        return self._part

    @part.setter
    def part(self, part: str) -> None:
        self._part = _known(part)

    def __enter__(self) -> Span:
        self._clock._open(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock._close(self)


class RoundClock:
    """Partitions the wall time of one thread's rounds. Not thread-safe: it belongs to the loop that
    drives the rounds.

    A round may be finished inside open spans; they go on and charge the next round. `clock_ns` and
    `cpu_clock_ns` return integer nanoseconds and never go back.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_clock_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._cpu_clock_ns = cpu_clock_ns
        self._parts_ns = dict.fromkeys(PARTS, 0)
        self._cpu_parts_ns = dict.fromkeys(PARTS, 0)
        self._stack = [Span(self, "other")]  # the outermost one never ends
        # The stretches of this round; a span may still change its part.
        self._log: list[tuple[Span, int, bool]] = []
        self._beside = False
        self._last_ns = clock_ns()
        self._cpu_start_ns = self._cpu_last_ns = cpu_clock_ns()
        self._cpu_asked_ns = self._last_ns

    def span(self, part: str) -> Span:
        """Return a context, `with clock.span("compute"): ...`, whose time goes to that part. Raises
        UsageError for an unknown part."""
        return Span(self, part)

    @property
    def part(self) -> str:
        """The part that time is charged to at this moment."""
        return self._stack[-1].part

    def beside(self, sends: bool) -> None:
        """Take note that frames are on their way, or are no more, beside whatever is done."""
        if sends != self._beside:
            self._settle()
            self._beside = sends

    def charge(self, part: str, seconds: float) -> float:
        """Move time that has already passed from the innermost open span to `part`; returns the
        seconds moved.

        No more is moved than that span has had in this round, so the partition stays exact whatever
        is asked for.
        """
        _known(part)
        self._settle()
        current = self._stack[-1]
        moved_ns = min(max(round(seconds * NS_PER_S), 0), current._own_ns)
        current._own_ns -= moved_ns
        self._parts_ns[part] += moved_ns
        self._move_stretches(current, Span(self, part), moved_ns)
        return moved_ns / NS_PER_S

    def _move_stretches(self, span: Span, to: Span, left_ns: int) -> None:
        """The span's last stretches are of `to`, so many nanoseconds."""
        at = len(self._log)
        while left_ns > 0 and at > 0:
            at -= 1
            owner, ns, beside = self._log[at]
            if owner is not span:
                continue
            moved_ns = min(ns, left_ns)
            self._log[at : at + 1] = [(span, ns - moved_ns, beside), (to, moved_ns, beside)]
            left_ns -= moved_ns

    def finish_round(self) -> RoundTimes:
        """End the round in progress and start the next one at the same instant."""
        self._settle()
        self._settle_cpu(self._last_ns)
        cpu_ns = self._cpu_last_ns
        for span in self._stack:
            self._bank(span)
        log = self._log if len(self._log) <= _LOGGED else ()  # of a round that was cut off nothing is told
        if log and len(self._stack) > 1:  # spans that go on may have another part by then
            log = [(Span(self, span.part), ns, beside) for span, ns, beside in log]
        times = RoundTimes(
            self._parts_ns, sum(self._parts_ns.values()), cpu_ns - self._cpu_start_ns, self._cpu_parts_ns, log
        )
        self._log = []
        self._parts_ns = dict.fromkeys(PARTS, 0)
        self._cpu_parts_ns = dict.fromkeys(PARTS, 0)
        self._cpu_start_ns = cpu_ns
        return times

    def _settle(self) -> None:
        now_ns = self._clock_ns()
        self._stack[-1]._own_ns += now_ns - self._last_ns
        if now_ns - self._cpu_asked_ns >= _CPU_AFTER_NS:
            self._settle_cpu(now_ns)
        if len(self._log) <= _LOGGED:
            self._log.append((self._stack[-1], now_ns - self._last_ns, self._beside))
        self._last_ns = now_ns

    def _settle_cpu(self, now_ns: int) -> None:
        cpu_ns = self._cpu_clock_ns()
        self._stack[-1]._cpu_ns += cpu_ns - self._cpu_last_ns
        self._cpu_last_ns, self._cpu_asked_ns = cpu_ns, now_ns

    def _bank(self, span: Span) -> None:
        self._parts_ns[span._part] += span._own_ns
        self._cpu_parts_ns[span._part] += span._cpu_ns
        span._own_ns = span._cpu_ns = 0

    def _open(self, span: Span) -> None:
        self._settle()
        self._stack.append(span)

    def _close(self, span: Span) -> None:
        if self._stack[-1] is not span:
            raise UsageError(f"the span {span.part!r} ended while {self.part!r} inside it was still open")
        self._settle()
        self._bank(self._stack.pop())


ANNOUNCE_S = 5.0  # whoever waits says for whom, this often


class Watch:
    """Is a stopwatch of somebody who waits: for how long, and when to say so again."""

    def __init__(self) -> None:
        self._start, self._told_s = time.monotonic(), 0.0

    @property
    def s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._start

    def due(self) -> bool:
        """Tell whether it is time to say for whom one waits: every ANNOUNCE_S."""
        if self.s - self._told_s < ANNOUNCE_S:
            return False
        self._told_s = self.s
        return True
