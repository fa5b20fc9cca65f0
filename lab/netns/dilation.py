"""A board whose process shares the cores of one machine with others and yet is not slowed down by
them: its transport, workload and clock under time dilation.

The scheduler (`scheduler.py`) gives each board a turn to compute, and lets all of them send at the
same moment. The board's clock is not the wall's. While it computes and encodes it goes by the CPU
time of this process, or by so many times that as the scheduler says; while it waits for its turn it
stands still; when it meets the others before they send, it is put on to the latest of them, which
is time spent waiting; from then until the round is over, while bytes cross the network, it goes by
the wall, or by a fraction of it if the scheduler has slowed the network down by as much. Then,
while the board puts the round down, CPU time counts again. So a round's parts are what they would
be on a board with a core of its own.

Frames of an update leave together once everybody has one: that suits algorithms that go by rounds.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip.mesh.base import Buffers, MeshLimits, Transport, TransportEvent
from edgegossip.node.main import Runtime
from edgegossip.telemetry.spans import NS_PER_S, RoundClock, Span
from edgegossip.training.base import AroundWorkload, Workload
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round, RunError, Vec

PATIENCE_S = 3600.0  # for one answer of the scheduler: a turn comes after those of all other boards
CONNECT_S = 30.0


class DilatedClock:
    """Goes by CPU time, by the wall, or stands still. Integer nanoseconds; never goes back."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._wall_ns, self._cpu_ns = wall_ns, cpu_ns
        self._source: Callable[[], int] | None = wall_ns
        self._at, self._since = 0, wall_ns()

    def now_ns(self) -> int:
        """Return the time."""
        if self._source is None:
            return self._at
        return self._at + self._source() - self._since

    def by_wall(self, dilation: float = 1.0) -> None:
        """Go by the wall from now on. `dilation`: so many of its seconds are one of this
        clock's."""
        wall_ns = self._wall_ns
        self._go_by(wall_ns if dilation == 1.0 else lambda: int(wall_ns() / dilation))

    def by_cpu(self, slower: float = 1.0) -> None:
        """Go by CPU time from now on. `slower`: by how much the processor that the board is to have
        is slower than this machine's."""
        cpu_ns = self._cpu_ns
        self._go_by(cpu_ns if slower == 1.0 else lambda: int(cpu_ns() * slower))

    def stop(self) -> int:
        """Stand still; return where."""
        self._go_by(None)
        return self._at

    def put_on(self, to_ns: int) -> int:
        """Put the clock on to that time, if it is later; return by how much."""
        passed = max(0, to_ns - self.now_ns())
        self._go_by(self._source)
        self._at += passed
        return passed

    def _go_by(self, source: Callable[[], int] | None) -> None:
        self._at = self.now_ns()
        self._source, self._since = source, 0 if source is None else source()


class _Rounds(RoundClock):
    """Says so when a board begins to encode."""

    def __init__(self, clock_ns: Callable[[], int], encodes: Callable[[], None]) -> None:
        super().__init__(clock_ns)
        self._encodes = encodes

    @override
    def span(self, part: str) -> Span:
        if part == "encode":
            self._encodes()
        return super().span(part)


class DilatedRuntime(Runtime):
    """Connects a board to the scheduler at the socket `path`, and is what the board then runs on:
    `clock` has its rounds, `time` is the clock that they are measured by."""

    clock: RoundClock

    def __init__(self, path: Path, name: NodeId) -> None:
        self.time = DilatedClock()
        self.time.stop()  # until the board is connected
        self.clock = _Rounds(self.time.now_ns, self._encodes)
        self._path, self._name = path, name
        self._holds = self._computed = False  # the turn, and with an update that is not sent yet
        self._handling = 1.0  # so many times CPU seconds count once the update is there
        self._marks: dict[str, int] = {}

    def connect(self) -> None:
        """Connect, and begin the first round. Raises RunError when nobody is there."""
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(str(self._path))
            self._socket.settimeout(PATIENCE_S)
        except OSError as error:
            raise RunError(f"the time-dilation scheduler of this run is not there: {error}") from None
        self._answers = self._socket.makefile("rb")
        self._send({"name": self._name})
        self.clock.finish_round()  # what came before belongs to no round
        self.time.by_wall()

    @override
    def limits(self, limits: MeshLimits) -> MeshLimits:
        # Slower than the wall, an acknowledgement behind a full queue takes as much longer. A
        # connection that were given up for that would send all of it again.
        return replace(limits, keepalive_s=60.0, keepalive_timeout_s=120.0, hung_s=600.0, hello_s=30.0)

    @override
    def transport(self, inner: Transport) -> Transport:
        return _DilatedTransport(inner, self)

    @override
    def workload(self, inner: Workload) -> Workload:
        self.connect()
        return _DilatedWorkload(inner, self)

    @override
    def round_over(self) -> None:
        # What follows is the processor's work again, which others on this machine have, too, just
        # then.
        self.time.by_cpu(self._handling)

    def turn(self, round: Round) -> None:
        """Wait for the turn to compute. What the round before was like is told on the way."""
        done_ns = self.time.stop()
        if self._marks:
            self._marks["done"] = done_ns
            self._marks["cpu"] += time.process_time_ns()  # of the exchange
        self._send({"ask": "turn", "marks": self._marks})
        self._marks = {}
        answer = self._answer()
        self._holds = True
        self._handling = answer["handling"]
        self.time.by_cpu(answer["slower"])
        self._marks |= {"round": round, "start": self.time.now_ns(), "update": -time.process_time_ns()}

    def computed(self) -> None:
        """Take note that the update is there; it is not sent before the others have theirs."""
        self._computed = True
        self._marks["computed"] = self.time.now_ns()
        self._marks["update"] += time.process_time_ns()

    def leave(self) -> None:
        """Give up the turn with nothing to send."""
        self._holds = False
        self._marks = {}
        self.time.by_wall()
        self._send({"ask": "leave"})

    def meet(self) -> None:
        """Wait, before anything is sent or awaited, until all boards are ready to. Does nothing a
        second time."""
        if not (self._holds and self._computed):
            return
        self._holds = self._computed = False
        self._marks["ready"] = self.time.stop()
        self._send({"ask": "meet", "now_ns": self._marks["ready"]})
        answer = self._answer()
        self._marks["go"], self._marks["cpu"] = int(answer["now_ns"]), -time.process_time_ns()
        waited_ns = self.time.put_on(self._marks["go"])
        self.clock.charge("wait", waited_ns / NS_PER_S)
        self.time.by_wall(answer["dilation"])

    def close(self) -> None:
        """Close the connection: the scheduler goes on without this board."""
        self._socket.close()
        self._answers.close()

    def _encodes(self) -> None:
        """From now on messages are made."""
        if self._holds and self._computed:
            self.time.by_cpu(self._handling)

    def _send(self, document: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            raise RunError("the time-dilation scheduler of this run is gone") from None

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise RunError("the time-dilation scheduler of this run is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _DilatedWorkload(AroundWorkload):
    """Computes when it is this board's turn."""

    def __init__(self, workload: Workload, device: DilatedRuntime) -> None:
        super().__init__(workload)
        self._device = device

    @override
    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        self._device.turn(round)
        local = self._workload.local_update(x, round, correction)
        self._device.computed()
        return replace(local, stages_s={})  # they are of this processor

    @override
    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        self._device.turn(-1)
        try:
            return self._workload.evaluate(x, examples)
        finally:
            self._device.leave()


class _DilatedTransport:
    """Implements `Transport`: sends, and looks for what has come, once all boards are ready to."""

    def __init__(self, transport: Transport, device: DilatedRuntime) -> None:
        self._transport, self._device = transport, device
        self.close_peer, self.limit_frames = transport.close_peer, transport.limit_frames
        self.wake, self.close, self.arriving = transport.wake, transport.close, transport.arriving

    def send(self, to: NodeId, frame: Buffers) -> int:
        self._device.meet()
        return self._transport.send(to, frame)

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        self._device.meet()
        return self._transport.incoming(timeout_s)
