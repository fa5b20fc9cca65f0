"""What profiling costs a board: rounds with it and without it, alternating in one process.

A round is what a gossip board does between two exchanges, without the network: a local update of
the recipe's model, its encoding, and the decoding of two neighbours' messages. With profiling, the
same calls are inside the spans that a board opens, and the round ends as a board's does: sockets,
process and sensors are read, and a record is written to a file. Times are CPU seconds of the whole
process, the thread that samples power included; figures are means over rounds without the slowest
tenth.
"""

from __future__ import annotations

import gc
import os
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import process_time
from typing import Any

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.recipe import Recipe
from edgegossip.telemetry.machine import environment
from edgegossip.telemetry.sinks import PipeSink
from edgegossip.telemetry.spans import RoundClock
from edgegossip.training import build_workload
from edgegossip.training.base import stage_metrics
from edgegossip.types import LocalUpdate

Meters = Callable[[], Mapping[str, Any]]
LIMIT = 0.01  # what profiling may cost
_NEIGHBOURS = 2
_EVENTS = 8  # spans that a board opens in a round for what comes in, beside those of the work itself


class _Round:
    """One board's round."""

    def __init__(self, recipe: Recipe) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.workload = build_workload(recipe, 0)
        self.layout = self.workload.layout
        self.x = self.workload.initial(recipe.run.seed)
        self.codec = codecs.get(recipe.codec.name, **recipe.codec.params)
        self.state: Any = self.codec.init(self.layout)

    def play(self, span: Callable[[str], Any]) -> LocalUpdate:
        with span("compute"):
            update = self.workload.local_update(self.x, 0)
        with span("encode"):
            body, self.state = self.codec.encode(update.delta, self.state, Ctx(1, 0, update.loss, update.lr))
        for _ in range(_EVENTS):
            with span("transmit"):
                pass
        for _ in range(_NEIGHBOURS):
            with span("wait"):
                pass
            with span("decode"):
                self.codec.decode(body, self.layout)
        return update


class _Profiler:
    """What a board has for it; `end` is what its reporter does after a round."""

    def __init__(self, folder: Path, meters: Meters) -> None:
        self.clock = RoundClock()
        self._meters = meters
        self._fd = os.open(folder / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._sink = PipeSink(self._fd)

    def end(self, step: int, update: LocalUpdate) -> None:
        values: dict[str, Any] = {**stage_metrics(update.stages_s), **self._meters()}
        values |= self.clock.finish_round().metrics(step)
        self._sink.metrics("board", step, values)

    def close(self) -> None:
        os.close(self._fd)


def run(recipe: Recipe, rounds: int, meters: Meters) -> dict[str, Any]:
    """Return the document of `bench profiling --json`. `meters`: what a board asks at the end of a
    round. Raises ConfigError and DataError as `run` does."""
    board = _Round(recipe)
    board.play(nullcontext)
    with tempfile.TemporaryDirectory() as folder, _connections(2 * _NEIGHBOURS):
        profiler = _Profiler(Path(folder), meters)
        try:
            with_s, without_s, own_s = _measure(board, profiler, rounds)
        finally:
            profiler.close()
    base = _typical(without_s)
    return {
        "machine": environment(),
        "recipe": recipe.run.name,
        "model": recipe.model.name,
        "rounds": rounds,
        "without_ms": 1000 * base,
        "with_ms": 1000 * _typical(with_s),
        "profiling_ms": 1000 * _typical(own_s),
        "difference": _typical([a - b for a, b in zip(with_s, without_s, strict=True)]) / base,
        "overhead": _typical(own_s) / base,
        "limit": LIMIT,
        "ok": _typical(own_s) / base < LIMIT,
    }


def _measure(board: _Round, profiler: _Profiler, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """CPU seconds of rounds with profiling, of rounds without, and of profiling alone, on an empty
    round."""
    with_s, without_s, own_s = [], [], []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for step in range(rounds):
            start = process_time()
            update = board.play(profiler.clock.span)
            profiler.end(step, update)
            with_s.append(process_time() - start)
            start = process_time()
            board.play(nullcontext)
            without_s.append(process_time() - start)
            start = process_time()
            _spans(profiler.clock.span)
            profiler.end(step, update)
            own_s.append(process_time() - start)
    finally:
        if was_enabled:
            gc.enable()
    return with_s, without_s, own_s


def _typical(seconds: Sequence[float]) -> float:
    """The mean without the slowest tenth: what is done in some rounds only counts, what another
    process did to a few does not."""
    kept = sorted(seconds)[: max(1, len(seconds) * 9 // 10)]
    return sum(kept) / len(kept)


def _spans(span: Callable[[str], Any]) -> None:
    """As many as `_Round.play` opens."""
    for _ in range(2 + _EVENTS + 2 * _NEIGHBOURS):
        with span("wait"):
            pass


@contextmanager
def _connections(count: int) -> Iterator[None]:
    """TCP connections that the socket meter finds, as a board with neighbours has them."""
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            for _ in range(count):
                ends.append(socket.create_connection(listener.getsockname()[:2]))
                ends.append(listener.accept()[0])
            yield
        finally:
            for end in ends:
                end.close()


def text_of(document: dict[str, Any]) -> str:
    """Return the document in words, for people."""
    return (
        f"{document['model']}, {document['rounds']} rounds each, CPU time: {document['without_ms']:.2f} ms without profiling, "
        f"{document['with_ms']:.2f} ms with; profiling alone takes {document['profiling_ms']:.3f} ms a round, "
        f"{document['overhead']:.2%} ({'under' if document['ok'] else 'OVER'} the limit of {LIMIT:.0%}); difference of pairs "
        f"{document['difference']:+.2%}"
    )
