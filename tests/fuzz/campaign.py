"""Millions of mutated frames: `python -m tests.fuzz.campaign --frames 2000000 --seed 1`.

The work is cut into chunks; what chunk k does depends on the seed and k alone. Checked of every
frame: nothing but PeerError, a refused sum untouched, values finite, no attempt slower than 10
times the slowest honest frame for its model; of every thousandth: the peak of Python's memory. Exit
code 1 when there is a failure.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from tests.fuzz.frames import LAYOUTS, Seed, mutate, seeds
from tests.fuzz.trial import SPARE_BYTES, TIMES_HONEST, attempt, honest_seconds, peak_bytes, seconds

MEMORY_EVERY = 1000
TRIES = 20  # of a frame that seems to be slow
MAX_FAILURES = 20  # kept of a chunk


@dataclass
class Report:
    """What one chunk, or a whole campaign, saw. Counts are by codec; "" is a frame refused before
    any codec saw it."""

    frames: int = 0
    decoded: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    slowest_times_honest: float = 0.0
    peak_bytes: int = 0

    def add(self, other: Report) -> None:
        self.frames += other.frames
        for name in ("decoded", "accepted", "refusals"):
            setattr(self, name, dict(Counter(getattr(self, name)) + Counter(getattr(other, name))))
        self.failures += other.failures
        self.slowest_times_honest = max(self.slowest_times_honest, other.slowest_times_honest)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


@cache
def starts() -> dict[int, np.ndarray]:
    """Layout hash -> a sum as it is before a frame arrives."""
    return {layout.hash: np.linspace(-3, 3, layout.size, dtype=np.float32) for layout in LAYOUTS}


@cache
def prepared() -> tuple[list[Seed], dict[int, float]]:
    """Honest frames, and how long they take."""
    honest = seeds()
    return honest, honest_seconds(honest, starts())


def run_chunk(seed: int, chunk: int, frames: int, timed: bool = True) -> Report:
    """Mutate and attempt this many frames. `timed`: the limit on time is checked too, which a busy
    machine may break."""
    rng = random.Random(f"{seed} {chunk}")
    honest, limits = prepared()
    report = Report()
    decoded, accepted, refusals = Counter[str](), Counter[str](), Counter[str]()
    for k in range(frames):
        parent = rng.choice(honest)
        data = mutate(parent.data, honest, rng)
        start = starts()[parent.layout.hash]
        begin = time.perf_counter()
        try:
            outcome = attempt(data, parent.layout, start)
            took = time.perf_counter() - begin
            honest_s = limits[parent.layout.hash]
            if timed and took > TIMES_HONEST * honest_s:  # or the machine was busy
                took = seconds(data, parent.layout, start, TRIES)
                assert took <= TIMES_HONEST * honest_s, f"takes {took:.6f} s, honest ones {honest_s:.6f} s"
            if k % MEMORY_EVERY == 0:
                peak = peak_bytes(data, parent.layout, start)
                report.peak_bytes = max(report.peak_bytes, peak)
                assert peak <= 4 * parent.layout.size + SPARE_BYTES, f"takes {peak} bytes"
        except Exception:
            if len(report.failures) < MAX_FAILURES:
                report.failures.append(f"chunk {chunk}, {parent.name}: {traceback.format_exc(limit=-3)}\n{data.hex()}")
            continue
        report.slowest_times_honest = max(report.slowest_times_honest, took / honest_s)
        decoded[outcome.codec] += 1
        if outcome.refusal:
            refusals[outcome.refusal] += 1
        else:
            accepted[outcome.codec] += 1
    report.frames = frames
    report.decoded, report.accepted, report.refusals = dict(decoded), dict(accepted), dict(refusals)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description="Fuzz the decoders.")
    parser.add_argument("--frames", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=10_000, help="frames a chunk")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--untimed", action="store_true", help="do not check the time of a frame")
    options = parser.parse_args(arguments)
    chunks = range(-(-options.frames // options.chunk))
    work = partial(run_chunk, options.seed, frames=options.chunk, timed=not options.untimed)
    total = Report()
    with ProcessPoolExecutor(options.processes) as pool:
        for report in (map if options.processes == 1 else pool.map)(work, chunks):
            total.add(report)
            print(f"{total.frames} of {options.frames} frames, {len(total.failures)} failures", flush=True)
    _print(total)
    return 1 if total.failures else 0


def _print(total: Report) -> None:
    print(f"{'decoder':<16} {'bodies':>10} {'accepted':>10}")
    for name in sorted(total.decoded):
        print(f"{name or '(no codec)':<16} {total.decoded[name]:>10} {total.accepted.get(name, 0):>10}")
    for failure in total.failures[:MAX_FAILURES]:
        print(failure, file=sys.stderr)
    print(
        f"{total.frames} frames, {len(total.failures)} failures; {len(total.refusals)} kinds of refusal; "
        f"slowest {total.slowest_times_honest:.1f} times an honest frame; peak {total.peak_bytes} bytes of Python"
    )


if __name__ == "__main__":
    sys.exit(main())
