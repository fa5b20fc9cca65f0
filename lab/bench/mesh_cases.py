"""What `bench mesh` measures, and the processes that it measures: sessions of their own, which end
with their standard input. Every figure is a median over repetitions in which the mesh and its
rivals take turns.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from statistics import fmean, median
from types import TracebackType
from typing import Any

from edgegossip.types import HostError

Row = dict[str, Any]
CASES = ("throughput", "latency", "ring", "idle", "memory")
BIG_BYTES, SMALL_BYTES, RING_BYTES = 8_000_000, 65_536, 1_000_000
IDLE_NODES, MEMORY_NODES = 18, 4
_BARE_KINDS = ("grpc-1", "grpc-2", "grpc-4")  # the fastest counts
_TUNED_KINDS = ("tuned-1", "tuned-2", "tuned-4", "tuned-8")  # at its best; 8: a frame is one message
_PAIR_KINDS = ("mesh", *_BARE_KINDS, *_TUNED_KINDS, "tcp")
_FRAMES = 12  # of a repetition of throughput
_PINGS = 200
_RINGS = 24  # rounds of a repetition
_WARM_UP = 4
_LOOKS = 60  # at memory
_SMALL_ROUNDS = 4  # times as many rounds of small frames, which are quick and hide less
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Settings:
    """`cases` among CASES; `rings` are the sizes of the rings."""

    cases: tuple[str, ...] = CASES
    rings: tuple[int, ...] = (2, 4, 8, 16)
    repeat: int = 9
    idle_s: float = 20.0
    memory_rounds: int = 1000


def measure(settings: Settings, got: Callable[[Row], None]) -> list[Row]:
    """Measure all cases; each row goes to `got` as soon as it is there."""
    rows: list[Row] = []

    def add(new: Sequence[Row]) -> None:
        rows.extend(new)
        for row in new:
            got(row)

    if {"throughput", "latency"} & set(settings.cases):
        add([row for row in _pair(settings.repeat) if row["case"] in settings.cases])
    if "ring" in settings.cases:
        for nodes in settings.rings:
            add([_ring(nodes, settings.repeat)])
    if "idle" in settings.cases:
        add([_idle(IDLE_NODES, settings.idle_s)])
    if "memory" in settings.cases:
        add([_memory(MEMORY_NODES, settings.memory_rounds, RING_BYTES)])
        add([_memory(MEMORY_NODES, _SMALL_ROUNDS * settings.memory_rounds, SMALL_BYTES)])
    return rows


def row(case: str, nodes: int, frame_bytes: int, **figures: float) -> Row:
    """Return a row with every field; None where there is no figure. `ratio_to_grpc` is the mesh's
    figure divided by bare gRPC's: of rates for throughput, where more is better, of times
    elsewhere, where less is; `ratio_to_tuned_grpc` the same with gRPC at its best, whose figures
    are the `tuned_` ones."""
    fields = ("mesh_mb_s", "grpc_mb_s", "tcp_mb_s", "ratio_to_grpc", "latency_ms", "grpc_latency_ms", "tcp_latency_ms")
    more = (
        "tuned_grpc_mb_s",
        "tuned_grpc_latency_ms",
        "tuned_grpc_round_ms",
        "ratio_to_tuned_grpc",
        "round_ms",
        "grpc_round_ms",
        "cpu_percent",
        "rounds",
        "rss_bytes",
        "rss_growth_bytes",
    )
    empty: Row = {"case": case, "nodes": nodes, "frame_bytes": frame_bytes, **dict.fromkeys((*fields, *more))}
    unknown = set(figures) - set(empty)
    assert not unknown, unknown
    return empty | figures


def _pair(repeat: int) -> list[Row]:
    with ExitStack() as stack:
        fleets = {kind: stack.enter_context(Fleet(kind, 2)) for kind in _PAIR_KINDS}
        seconds: dict[str, list[float]] = {kind: [] for kind in _PAIR_KINDS}
        trips: dict[str, list[float]] = {kind: [] for kind in _PAIR_KINDS}
        for i in range(repeat + 1):
            for kind, fleet in fleets.items():
                took_s = fleet.pair("send_frames", "take_frames", frames=_FRAMES, size=BIG_BYTES)
                there_and_back_s = fleet.pair("ping", "pong", times=_PINGS, size=SMALL_BYTES)
                if i:  # the first one warms up
                    seconds[kind].append(took_s / _FRAMES)
                    trips[kind].append(median(there_and_back_s))
    rate = {kind: BIG_BYTES / median(values) / _MB for kind, values in seconds.items()}
    one_way_ms = {kind: median(values) / 2 * 1e3 for kind, values in trips.items()}
    bare_rate, bare_ms = max(rate[kind] for kind in _BARE_KINDS), min(one_way_ms[kind] for kind in _BARE_KINDS)
    tuned_rate, tuned_ms = max(rate[kind] for kind in _TUNED_KINDS), min(one_way_ms[kind] for kind in _TUNED_KINDS)
    return [
        row(
            "throughput",
            2,
            BIG_BYTES,
            mesh_mb_s=rate["mesh"],
            grpc_mb_s=bare_rate,
            tuned_grpc_mb_s=tuned_rate,
            tcp_mb_s=rate["tcp"],
            ratio_to_grpc=rate["mesh"] / bare_rate,
            ratio_to_tuned_grpc=rate["mesh"] / tuned_rate,
        ),
        row(
            "latency",
            2,
            SMALL_BYTES,
            latency_ms=one_way_ms["mesh"],
            grpc_latency_ms=bare_ms,
            tuned_grpc_latency_ms=tuned_ms,
            tcp_latency_ms=one_way_ms["tcp"],
            ratio_to_grpc=one_way_ms["mesh"] / bare_ms,
            ratio_to_tuned_grpc=one_way_ms["mesh"] / tuned_ms,
        ),
    ]


def _ring(nodes: int, repeat: int) -> Row:
    """A round moves two frames a process, one with two processes."""
    with Fleet("mesh", nodes) as mesh, Fleet("grpc", nodes) as bare, Fleet("tuned-1", nodes) as tuned:
        fleets = (mesh, bare, tuned)
        times: dict[str, list[float]] = {fleet.kind: [] for fleet in fleets}
        for _ in range(repeat):
            for fleet in fleets:
                ends_s = fleet.ring(_WARM_UP + _RINGS, RING_BYTES)
                times[fleet.kind].append(median((ends[-1] - ends[_WARM_UP - 1]) / _RINGS for ends in ends_s))
    round_s = {kind: median(values) for kind, values in times.items()}
    moved_mb = nodes * len(mesh.neighbours(0)) * RING_BYTES / _MB
    return row(
        "ring",
        nodes,
        RING_BYTES,
        mesh_mb_s=moved_mb / round_s["mesh"],
        grpc_mb_s=moved_mb / round_s["grpc"],
        tuned_grpc_mb_s=moved_mb / round_s[tuned.kind],
        round_ms=round_s["mesh"] * 1e3,
        grpc_round_ms=round_s["grpc"] * 1e3,
        tuned_grpc_round_ms=round_s[tuned.kind] * 1e3,
        ratio_to_grpc=round_s["mesh"] / round_s["grpc"],
        ratio_to_tuned_grpc=round_s["mesh"] / round_s[tuned.kind],
        rounds=_RINGS,
    )


def _idle(nodes: int, seconds: float) -> Row:
    """CPU time of all processes together while each waits for its peers, in percent of one core:
    streams, members' probes."""
    with Fleet(f"member-{nodes}", nodes) as fleet:
        fleet.ring(2, SMALL_BYTES)
        time.sleep(2.0)  # what starting left behind ends
        cpu_s = sum(fleet.all("idle", seconds=seconds))
        rss_bytes = max(use["rss_bytes"] for use in fleet.all("usage"))
    return row("idle", nodes, 0, cpu_percent=100 * cpu_s / seconds, rss_bytes=rss_bytes)


def _memory(nodes: int, rounds: int, frame_bytes: int) -> Row:
    """Resident memory over `rounds` rounds, after as many that warm up. At any moment some frames
    are under way, and glibc keeps what was freed: with frames of 1 MB a look at one process is off
    by 5 MiB either way, in round 500 and in round 5,000. So growth is from the median of the first
    third of the looks to that of the last, on average over the processes, which all do the same."""
    count = min(_LOOKS, rounds)
    with Fleet("mesh", nodes) as fleet:
        fleet.ring(max(1, rounds), frame_bytes)
        looks = []
        for i in range(count):
            fleet.ring(rounds * (i + 1) // count - rounds * i // count, frame_bytes)
            looks.append([use["rss_bytes"] for use in fleet.all("usage")])
    part = max(1, count // 3)
    processes = list(zip(*looks, strict=True))
    grown = [median(process[-part:]) - median(process[:part]) for process in processes]
    rss_bytes = max(median(process[-part:]) for process in processes)
    return row("memory", nodes, frame_bytes, rounds=rounds, rss_bytes=rss_bytes, rss_growth_bytes=fmean(grown))


_START_S = 60.0
_END_S = 15.0
_ORDER_S = 300.0  # longest time that one order may take


class Worker:
    """Runs one process with one transport."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.bench.mesh_peers", kind, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(kind),
        )
        self._unread = b""

    def order(self, what: str, **details: Any) -> None:
        """Give an order; `answer` waits for its end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **details}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HostError(f"the process {self.name} of this measurement has ended; start it again") from error

    def answer(self, timeout_s: float = _ORDER_S) -> Any:
        """Return what the oldest unanswered order came to. Raises HostError when it failed, or no
        answer comes in time."""
        line = self._line(time.monotonic() + timeout_s)
        reply = json.loads(line)
        if "error" in reply:
            raise HostError(f"the process {self.name} ({self.kind}) of this measurement failed: {reply['error']}")
        return reply["result"]

    def close_input(self) -> None:
        """Ask it to end."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """Ask and wait; kill it when that takes too long."""
        self.close_input()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self, end_s: float) -> bytes:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([handle], [], [], max(0.0, end_s - time.monotonic()))
            data = os.read(handle, 1 << 16) if ready else b""
            if not data:
                why = "has ended" if ready else "does not answer"
                raise HostError(
                    f"the process {self.name} ({self.kind}) of this measurement {why}; see its output above"
                )
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _environment(kind: str) -> dict[str, str]:
    """Bare gRPC is as it comes, without the poller that the mesh chooses; `tuned` has that too."""
    mine = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return {"GRPC_EXPERIMENTS": "", **mine} if kind.startswith("grpc") else mine


class Fleet:
    """Runs `count` workers of one kind, started together. Each is connected to its neighbours in a
    ring."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.workers: list[Worker] = []
        self._count = count

    def __enter__(self) -> Fleet:
        try:
            self.workers = [Worker(self.kind, f"p{i:02}") for i in range(self._count)]
            addresses = [worker.answer(_START_S) for worker in self.workers]
            for i, worker in enumerate(self.workers):
                worker.order("connect", peers={f"p{n:02}": addresses[n] for n in self._neighbours(i)})
            for worker in self.workers:
                worker.answer(_START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._end()

    def neighbours(self, i: int) -> list[str]:
        """Return the names of the neighbours of the i-th process in the ring."""
        return [f"p{n:02}" for n in self._neighbours(i)]

    def all(self, what: str, **details: Any) -> list[Any]:
        """Give the same order to everybody; return their answers."""
        for worker in self.workers:
            worker.order(what, **details)
        return [worker.answer() for worker in self.workers]

    def ring(self, rounds: int, size: int) -> list[list[float]]:
        """Have rounds played around the ring; return each process's ends of rounds, seconds on its
        own clock."""
        for i, worker in enumerate(self.workers):
            worker.order("ring", neighbours=self.neighbours(i), rounds=rounds, size=size)
        return [worker.answer() for worker in self.workers]

    def pair(self, first: str, second: str, **details: Any) -> Any:
        """Give an order to the first worker against the second's; return the first one's answer."""
        a, b = self.workers[:2]
        b.order(second, sender=a.name, **details)
        a.order(first, to=b.name, **details)
        result = a.answer()
        b.answer()
        return result

    def _neighbours(self, i: int) -> Sequence[int]:
        return sorted({(i - 1) % self._count, (i + 1) % self._count} - {i})

    def _end(self) -> None:
        for worker in self.workers:  # all inputs first, so that they leave together
            worker.close_input()
        for worker in self.workers:
            worker.end()
