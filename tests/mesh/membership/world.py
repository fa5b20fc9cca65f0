"""Members on a virtual network: loss, delay, splits, deaths, processes that are held up. Everything
follows from the seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.protocol import (
    Changed,
    Message,
    Output,
    Ping,
    PingReq,
    Refuted,
    SendMessage,
    Status,
    SwimSettings,
    View,
)
from edgegossip.mesh.membership.wire import parse_rows
from edgegossip.mesh.membership.wire import rows as wire_rows
from edgegossip.types import DecodeError
from lab.sim.network import Clock

ADDRESS = "10.0.0.{}:7700"


class World:
    def __init__(
        self,
        members: int,
        seed: int = 0,
        *,
        loss: float = 0.0,
        delay_s: tuple[float, float] = (0.001, 0.02),
        refuses: bool = False,
        wire: bool = False,
    ) -> None:
        self.random, self.clock, self.settings = Random(seed), Clock(), SwimSettings()
        self.loss, self.delay_s, self.refuses = loss, delay_s, refuses
        self.wire = wire  # rows go through the checks of what comes over the network, which takes its time
        self.n, self.sessions = members, 0
        self.nodes: dict[int, Detector] = {}
        self.paused: dict[int, float] = {}  # member: until when it does not run
        self.armed: dict[Detector, float] = {}
        self.slow: dict[int, float] = {}  # member: so late does it handle what comes
        self.cut: Callable[[int, int], bool] = lambda a, b: False
        self.ticks = Counter[int]()  # how often each was woken by its own clock
        self.sent = self.sent_rows = self.refused = 0
        self.named_dead: list[tuple[float, int, int]] = []  # when, by whom, who
        self.outputs: list[tuple[float, int, Output]] = []
        for k in range(members):
            self.start(k)
        self.run(5.0)

    def start(self, k: int, seed_member: int | None = None) -> None:
        """A new process of a member, which asks another one first what it knows."""
        self.sessions += 1
        others = [m for m in self.nodes if m != k] if seed_member is None else [seed_member]
        known = tuple(enumerate(self.nodes[self.random.choice(others)].table)) if others else ()
        self.nodes[k] = Detector(
            self.n,
            k,
            ADDRESS.format(k),
            self.sessions,
            Random(self.random.random()),
            self.clock.now,
            self.settings,
            known,
        )
        self._arm(k)

    def kill(self, *members: int) -> None:
        for k in members:
            del self.nodes[k]

    def leave(self, k: int, seconds: float) -> None:
        """It says goodbye, and its process ends so much later."""
        self._perform(k, self.nodes[k].leave(self.clock.now))
        self.run(seconds)
        self.kill(k)

    def pause(self, k: int, seconds: float) -> None:
        self.paused[k] = self.clock.now + seconds

    def run(self, seconds: float) -> None:
        until_s = self.clock.now + seconds
        self.clock.run(until_s)
        self.clock.now = until_s

    def status(self, of: int, at: int) -> Status:
        return self.nodes[at].table[of].status

    def agree(self) -> bool:
        return len({tuple(node.table) for node in self.nodes.values()}) == 1

    def false_deaths(self, truly: Iterable[int] = ()) -> list[tuple[float, int, int]]:
        return [death for death in self.named_dead if death[2] not in set(truly)]

    # -- how it works

    def _arm(self, k: int) -> None:
        node = self.nodes[k]
        at = max(node.wake_s, self.paused.get(k, 0.0), self.clock.now)
        if at != self.armed.get(node):
            self.armed[node] = at
            self.clock.at(at, self._tick, k, node, at)

    def _tick(self, k: int, node: Detector, at: float) -> None:
        if self.nodes.get(k) is not node or self.armed.get(node) != at:
            return
        del self.armed[node]
        if self.paused.get(k, 0.0) > self.clock.now:
            self._arm(k)
        else:
            self.ticks[k] += 1
            self._perform(k, node.tick(self.clock.now))

    def _perform(self, k: int, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, SendMessage):
                self._send(k, output.to, output.message)
                continue
            self.outputs.append((self.clock.now, k, output))
            if isinstance(output, Changed) and output.after.status is Status.DEAD is not output.before.status:
                self.named_dead.append((self.clock.now, k, output.member))
        self._arm(k)

    def _send(self, a: int, b: int, message: Message) -> None:
        self.sent += 1
        self.sent_rows += len(message.view.rows)
        delay_s = self.random.uniform(*self.delay_s)
        if b not in self.nodes and self.refuses and isinstance(message, Ping | PingReq):
            self.clock.after(delay_s, self._failed, a, b, message.number, self.nodes[a])
        elif self.random.random() >= self.loss and not self.cut(a, b):
            self.clock.after(delay_s + self.slow.get(b, 0.0), self._deliver, a, b, message)

    def _failed(self, a: int, b: int, number: int, node: Detector) -> None:
        if self.nodes.get(a) is node:
            self._perform(a, node.failed(b, number, self.clock.now))

    def _deliver(self, a: int, b: int, message: Message) -> None:
        if b not in self.nodes:
            return
        if self.paused.get(b, 0.0) > self.clock.now:  # it waits in the socket
            self.clock.at(self.paused[b] + 0.01, self._deliver, a, b, message)
            return
        rows = message.view.rows
        if self.wire:
            try:
                rows = parse_rows(wire_rows(rows), self.n)
            except DecodeError:
                self.refused += 1
                return
        self._perform(
            b, self.nodes[b].receive(a, replace(message, view=View(message.view.digest, rows)), self.clock.now)
        )


def refutations(world: World) -> int:
    return sum(isinstance(output, Refuted) for _, _, output in world.outputs)
