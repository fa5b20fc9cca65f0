"""Gives the boards of one machine their turns to compute, and lets them send together (dilation.py
is the boards' side): a time-dilation scheduler.

A board is waiting for its turn, computing, ready to send, or exchanging. Nobody gets a turn while
anybody exchanges, so what boards compute costs the network nothing and the other way round; nobody
sends before everybody is ready. As many boards compute at a time as the machine has cores for.
Between two exchanges nothing is on the way: then the network's counters are read.

Handling messages takes processor time, too, and many boards have but few cores here. When those are
busy while boards exchange, and the link is not full, the time of the run is dilated from then on:
the link becomes slower by a factor and the boards' clocks with it, so that relative to the network
every board has more of a processor (Gupta et al., "To infinity and beyond: time-warped network
emulation", NSDI 2006).

The same way devices are emulated that are slower than a core of this machine: processor time counts
so many times, and the network is as much faster as the clocks. Of boards that have a profile it is
kept at what makes the last local updates in the mean as long as the profile says (emulated.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from edgegossip.types import NodeId
from lab.netns.emulated import EmulatedDevice

PATIENCE_S = 900.0  # nobody says a word for so long: something hangs, and the run is ended
_TICK_S = 1.0
# Of the link; of the cores: what is handled one after the other is in the way long before all of
# them are busy.
FULL, BUSY = 0.93, 0.35
SPARE = 1.5  # so much more than what the last exchange would have needed
MOST_STEP = 16.0  # at a time
SHORTEST_S = 0.01  # an exchange below this is all latency


class ShapedNetwork(Protocol):
    """Is the network, as far as the scheduler cares."""

    rate_bps: float

    def carried_bytes(self) -> Sequence[int]:
        """Return the bytes that each link has carried since the beginning."""

    def slow_down(self, dilation: float) -> None:
        """Slow the network down by so much from now on."""


@dataclass(slots=True, eq=False)
class _Board:
    line: socket.socket
    name: NodeId = ""
    state: str = "exchanging"
    now_ns: int = 0
    partial: bytes = b""


@dataclass(slots=True)
class Exchange:
    """Says what all boards did between two phases of computing."""

    seconds: float  # of the wall, from the first frame to the last board's end of the round
    carried_bytes: int  # by the link that carried the most
    cpu_s: float  # of this machine, all processes, while it lasted
    dilation: float  # so many seconds of the wall counted as one; below 1 where boards are slower than this machine

    @property
    def charged_s(self) -> float:
        """Return its seconds on the boards' clocks."""
        return self.seconds / self.dilation


@dataclass(slots=True)
class Timings:
    """Says what a run was like, as far as the scheduler could see it."""

    exchanges: list[Exchange] = field(default_factory=list)
    # One a board and round; times are nanoseconds of its clock.
    marks: list[dict[str, Any]] = field(default_factory=list)


class TimeDilationScheduler:
    """Schedules the boards of one run. A context manager; everything happens on a thread of its
    own."""

    def __init__(
        self, path: Path, boards: int, cores: int, network: ShapedNetwork, device: EmulatedDevice = EmulatedDevice()
    ) -> None:
        """`path`: of the socket that boards connect to. `cores`: so many compute at a time."""
        self.path, self.timings = path, Timings()
        self._boards, self._cores, self._network = boards, cores, network
        self._device, self._slower, self._dilation = device, device.slower, 1.0 / device.slower
        self._updates_s: list[float] = []  # CPU seconds of the boards' local updates, the newest last
        if device.slower != 1.0:
            network.slow_down(self._dilation)
        self._live: list[_Board] = []
        self._came = 0
        self._turns: list[_Board] = []
        self._began: tuple[Sequence[int], float, float] | None = None  # the exchange in progress: bytes, CPU, wall
        self._over = threading.Event()
        self.hung, self.failure = False, ""
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(boards)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="scheduler")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(10)
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        """Boards whose lines are closed end by themselves, so nobody waits for a scheduler that is
        gone."""
        try:
            self._serve_boards()
        except Exception as error:  # such as a `tc` that failed; the cell fails with it
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            for board in self._live:
                board.line.close()
            self._server.close()

    def _serve_boards(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            heard_s = time.monotonic()
            while not self._over.is_set():
                ready = selector.select(_TICK_S)
                for key, _ in ready:
                    self._read(selector, key)
                if ready:
                    heard_s = time.monotonic()
                    self._schedule()
                elif self._live and time.monotonic() - heard_s > PATIENCE_S:
                    self.hung = True
                    break

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._server:
            line, _ = self._server.accept()
            line.setblocking(False)
            board = _Board(line)
            self._live.append(board)
            self._came += 1
            selector.register(line, selectors.EVENT_READ, board)
            return
        board = key.data
        try:
            data = board.line.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            selector.unregister(board.line)
            board.line.close()
            self._live.remove(board)
            return
        *lines, board.partial = (board.partial + data).split(b"\n")
        for text in lines:
            self._on_message(board, json.loads(text))

    def _on_message(self, board: _Board, said: dict[str, Any]) -> None:
        match said.get("ask"):
            case "turn":
                board.state = "waiting"
                self._turns.append(board)
                if said["marks"].get("round", -1) >= 0:
                    self.timings.marks.append({"node": board.name, **said["marks"]})
                    if said["marks"]["round"] > 0:  # the first one warms up
                        self._updates_s.append(1e-9 * said["marks"]["update"])
            case "meet":
                board.state, board.now_ns = "ready", said["now_ns"]
            case "leave":
                board.state = "left"
            case _:
                board.name = said["name"]

    def _schedule(self) -> None:
        """Whatever may go on now does."""
        if self._came < self._boards or not self._live:
            return
        states = [board.state for board in self._live]
        if all(state == "ready" for state in states):
            self._began = (self._network.carried_bytes(), _busy_s(), time.monotonic())
            to_ns = max(board.now_ns for board in self._live)
            for board in self._live:
                board.state = "exchanging"
                _tell(board, {"now_ns": to_ns, "dilation": self._dilation})
        elif "exchanging" not in states:
            self._end_exchange()
            self._slower = self._device.slower_after(self._updates_s, self._boards)
            while self._turns and sum(b.state == "computing" for b in self._live) < self._cores:
                board = self._turns.pop(0)
                board.state = "computing"
                _tell(board, {"slower": self._slower, "handling": self._device.handling})

    def _end_exchange(self) -> None:
        if self._began is None:
            return
        carried, cpu_s, wall_s = self._began
        seconds, self._began = time.monotonic() - wall_s, None
        new_bytes = max(after - before for after, before in zip(self._network.carried_bytes(), carried, strict=True))
        exchange = Exchange(seconds, new_bytes, _busy_s() - cpu_s, self._dilation)
        self.timings.exchanges.append(exchange)
        wanted = dilation_after(exchange, 8 * new_bytes / self._network.rate_bps, os.cpu_count() or 1)
        if wanted != self._dilation:
            self._dilation = wanted
            self._network.slow_down(wanted)


def dilation_after(exchange: Exchange, link_s: float, cores: int) -> float:
    """Return how much slower the network and the boards' clocks should be from now on. `link_s`:
    what the bytes take on a full link.

    Raised when the cores were busy and the link was not full: then the exchange took as long as
    the cores needed, and would take boards with cores of their own less. Never lowered."""
    took = exchange.charged_s / max(link_s, 1e-6)
    if took * FULL <= 1.0 or exchange.cpu_s < BUSY * cores * exchange.seconds or link_s < SHORTEST_S:
        return exchange.dilation
    return exchange.dilation * min(took, MOST_STEP) * SPARE


def _tell(board: _Board, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it is gone, and will be found so
        board.line.sendall(json.dumps(answer).encode() + b"\n")


def _busy_s() -> float:
    """CPU seconds that this machine has spent so far."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
