"""A board's part in a run whose boards share the cores of one machine and yet do not slow each
other down.

A conductor (scale/netns/conductor.py) gives each board a turn to compute, and lets all of them send
at the same moment. The board's clock is not the wall's. While it computes and encodes it goes by
the CPU time of this process, or by so many times that as the conductor says; while it waits for its
turn it stands still; when it meets the others before they send, it is put on to the latest of them,
which is time spent waiting; from then until the round is over, while bytes cross the network, it
goes by the wall, or by a fraction of it if the conductor has slowed the network down by as much.
Then, while the board puts the round down, CPU time counts again. So a round's parts are what they
would be on a board with a core of its own.

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

from edgegossip.agreement import Agreement
from edgegossip.layout import Layout
from edgegossip.mesh.base import Buffers, SendReceipt, Transport, TransportEvent
from edgegossip.telemetry.spans import NS_PER_S, RoundClock, Span
from edgegossip.training.base import Workload
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round, RunError, Vec

PATIENCE_S = 3600.0  # for one answer of the conductor: a turn comes after those of all other boards
CONNECT_S = 30.0


class Charged:
    """A clock that is charged with CPU time, with wall time, or with nothing. Integer nanoseconds;
    never goes back."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._wall_ns, self._cpu_ns = wall_ns, cpu_ns
        self._source: Callable[[], int] | None = wall_ns
        self._at, self._since = 0, wall_ns()

    def now_ns(self) -> int:
        if self._source is None:
            return self._at
        return self._at + self._source() - self._since

    def by_wall(self, dilation: float = 1.0) -> None:
        """`dilation`: so many seconds of the wall are one of this clock's."""
        wall_ns = self._wall_ns
        self._go_by(wall_ns if dilation == 1.0 else lambda: int(wall_ns() / dilation))

    def by_cpu(self, slower: float = 1.0) -> None:
        """`slower`: so much slower than this machine's the processor is that the board is to
        have."""
        cpu_ns = self._cpu_ns
        self._go_by(cpu_ns if slower == 1.0 else lambda: int(cpu_ns() * slower))

    def stop(self) -> int:
        """Stand still; where."""
        self._go_by(None)
        return self._at

    def put_on(self, to_ns: int) -> int:
        """By how much it was put forward."""
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

    def span(self, part: str) -> Span:
        if part == "encode":
            self._encodes()
        return super().span(part)


class Pace:
    """The line to the conductor, and this board's clock."""

    def __init__(self, path: Path, name: NodeId) -> None:
        """Raises RunError when nobody is there."""
        self.clock = Charged()
        self.rounds = _Rounds(self.clock.now_ns, self._encodes)
        self._holds = self._computed = False  # the turn, and with an update that is not sent yet
        self._handling = 1.0  # so many times CPU seconds count once the update is there
        self._marks: dict[str, int] = {}
        self._sent: dict[str, list[int]] = {}  # to whom -> [frames, bytes, nanoseconds until the last was acknowledged]
        try:
            self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._line.settimeout(CONNECT_S)
            self._line.connect(str(path))
            self._line.settimeout(PATIENCE_S)
        except OSError as error:
            raise RunError(f"the conductor of this run is not there: {error}") from None
        self._answers = self._line.makefile("rb")
        self._say({"name": name})

    def turn(self, round: Round) -> None:
        """Wait for the turn to compute. What the round before was like is told on the way."""
        done_ns = self.clock.stop()
        if self._marks:
            self._marks["done"] = done_ns
            self._marks["cpu"] += time.process_time_ns()  # of the exchange
        self._say({"ask": "turn", "marks": self._marks, "sent": self._sent})
        self._marks, self._sent = {}, {}
        answer = self._answer()
        self._holds = True
        self._handling = answer["handling"]
        self.clock.by_cpu(answer["slower"])
        self._marks |= {"round": round, "start": self.clock.now_ns(), "update": -time.process_time_ns()}

    def computed(self) -> None:
        """The update is there; it is not sent before the others have theirs."""
        self._computed = True
        self._marks["computed"] = self.clock.now_ns()
        self._marks["update"] += time.process_time_ns()

    def _encodes(self) -> None:
        """From now on messages are made."""
        if self._holds and self._computed:
            self.clock.by_cpu(self._handling)

    def over(self) -> None:
        """The round is. Putting it down is the processor's work again, which others on this machine
        have, too, just then."""
        self.clock.by_cpu(self._handling)

    def leave(self) -> None:
        """Give up the turn with nothing to send."""
        self._holds = False
        self._marks = {}
        self.clock.by_wall()
        self._say({"ask": "leave"})

    def meet(self) -> None:
        """Before anything is sent or awaited: all boards are ready when this returns. Does nothing
        a second time."""
        if not (self._holds and self._computed):
            return
        self._holds = self._computed = False
        self._marks["ready"] = self.clock.stop()
        self._say({"ask": "meet", "now_ns": self._marks["ready"]})
        answer = self._answer()
        self._marks["go"], self._marks["cpu"] = int(answer["now_ns"]), -time.process_time_ns()
        waited_ns = self.clock.put_on(self._marks["go"])
        self.rounds.charge("wait", waited_ns / NS_PER_S)
        self.clock.by_wall(answer["dilation"])

    def acknowledged(self, receipt: SendReceipt) -> None:
        sums = self._sent.setdefault(receipt.to, [0, 0, 0])
        sums[0] += 1
        sums[1] += receipt.message_bytes
        sums[2] = self.clock.now_ns() - self._marks.get("go", 0)

    def _say(self, document: Mapping[str, Any]) -> None:
        try:
            self._line.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            raise RunError("the conductor of this run is gone") from None

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise RunError("the conductor of this run is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer


class PacedWorkload:
    """Computes when it is this board's turn."""

    def __init__(self, workload: Workload, pace: Pace) -> None:
        self._workload, self._pace = workload, pace

    @property
    def layout(self) -> Layout:
        return self._workload.layout

    def initial(self, seed: int) -> Vec:
        return self._workload.initial(seed)

    def local_update(self, x: Vec, round: Round) -> LocalUpdate:
        self._pace.turn(round)
        local = self._workload.local_update(x, round)
        self._pace.computed()
        return replace(local, stages_s={})  # they are of this processor

    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        self._pace.turn(-1)
        try:
            return self._workload.evaluate(x, examples)
        finally:
            self._pace.leave()

    def snapshot(self) -> Mapping[str, Any]:
        return self._workload.snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._workload.restore(snapshot)

    def agreement(self) -> Agreement:
        return self._workload.agreement()

    def over(self, x: Vec | None) -> None:
        self._workload.over(x)

    def abandon(self) -> None:
        self._workload.abandon()

    def state(self, x: Vec | None) -> Mapping[str, Any]:
        return self._workload.state(x)


class PacedTransport:
    """Sends, and looks for what has come, once all boards are ready to."""

    def __init__(self, transport: Transport, pace: Pace) -> None:
        self._transport, self._pace = transport, pace
        self.close_peer, self.limit_frames = transport.close_peer, transport.limit_frames
        self.wake, self.close, self.arriving = transport.wake, transport.close, transport.arriving

    def send(self, to: NodeId, frame: Buffers) -> int:
        self._pace.meet()
        return self._transport.send(to, frame)

    def incoming(self, timeout_s: float | None) -> TransportEvent | None:
        self._pace.meet()
        event = self._transport.incoming(timeout_s)
        if isinstance(event, SendReceipt):
            self._pace.acknowledged(event)
        return event
