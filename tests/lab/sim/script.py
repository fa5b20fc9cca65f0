"""Scripts for small cases, as etcd's raft has: commands, then `----`, then what they print.

nodes 3 ring choco-sgd codec=topk:ratio=0.5 values=4 a fleet; node i starts at (i, i, ...), and
disks are empty
step 0 [0.5]          a local update by (0.5, 0.5, ...), 0 if not said
deliver 0->1 | all    the oldest message of an edge; or of all edges, round after round, until none
                      is left
drop 0->1 [all]       lose the oldest message (or all)
dup 0->1              the oldest message is there twice
swap 0->1             the two oldest change places
nan 0->1              the body of the oldest message becomes NaN
weight 0->1 -1        its push-sum weight becomes that
other-run 0->1        it becomes one of another run
tick 1                the timer that node 1 has set is due
down 1 0 | up 1 0     node 1 hears that 0 is down, or back
crash 1               the process is gone, and what was under way to it
restart 1 [back=1] [empty]    from its newest checkpoint, an older one, or an empty disk
mail | state          what is under way; rounds, models, who waits for whom
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgegossip import frame as wire
from edgegossip.gossip.base import Action, Adopted, Checkpoint, Message, RoundDone, Send, SetTimer, Suspect
from edgegossip.types import LocalUpdate, PeerError
from lab.sim import checkers, naming, schedule
from lab.sim.disk import Disk, Saved
from lab.sim.trace import describe

BOOT = 1000  # of the first process; the next ones count on


def number(x: float) -> str:
    return f"{x:.4g}"


@dataclass
class Fleet:
    out: list[str] = field(default_factory=list)
    boots: int = BOOT

    def run(self, line: str) -> None:
        words = line.split()
        getattr(self, "do_" + words[0].replace("-", "_"))(*words[1:])

    # -- nodes

    def do_nodes(self, count: str, topology: str, algorithm: str = "dpsgd", *settings: str) -> None:
        given = dict(s.split("=", 1) for s in settings)
        self.n, self.values = int(count), int(given.get("values", 4))
        self.algorithm = naming.algorithm_of(naming.parse("script", algorithm))
        built = naming.topology_of(naming.parse("script", topology), self.n)
        codec = naming.parse("script", given.get("codec", "fp32"))
        view = schedule.view_of(built, codec, self.n, self.values, deadline_s=2.0)
        self.limits, self.members = wire.Limits.of(view.layout), view.members
        self.views = [replace(view, node=name) for name in view.members]
        self.mail: dict[tuple[int, int], deque[bytes]] = {
            (a, b): deque() for a in range(self.n) for b in range(self.n) if a != b
        }
        self.states: list[Any] = [None] * self.n
        self.disks = [Disk() for _ in range(self.n)]
        late = {int(i) for i in given.get("late", "").split("+") if i}
        for i in range(self.n):
            self.views[i] = self.views[i].with_down(frozenset(self.members[j] for j in late - {i}))
        for i in range(self.n):
            if i not in late:
                self.boot(i, None)

    def boot(self, i: int, saved: Saved | None) -> None:
        self.boots += 1
        self.views[i] = view = replace(self.views[i], boot=self.boots)
        if saved is None:
            state = self.algorithm.init(np.full(self.values, i, np.float32), view)
        else:
            state = self.algorithm.resume(saved.state, view)
        self.go_on(i, self.algorithm.start(state))

    def do_step(self, i: str, delta: str = "0") -> None:
        local = LocalUpdate(np.full(self.values, float(delta), np.float32), 0.1, 1.0, 1, 1)
        self.go_on(int(i), self.algorithm.step(self.states[int(i)], local))

    def do_tick(self, i: str) -> None:
        self.go_on(int(i), self.algorithm.tick(self.states[int(i)], 0.0))

    def do_down(self, i: str, j: str) -> None:
        self.told(int(i), self.views[int(i)].down | {self.members[int(j)]})

    def do_up(self, i: str, j: str) -> None:
        self.told(int(i), self.views[int(i)].down - {self.members[int(j)]})

    def told(self, i: int, down: frozenset[str]) -> None:
        self.views[i] = self.views[i].with_down(down)
        self.go_on(i, self.algorithm.membership(self.states[i], self.views[i]))

    def do_crash(self, i: str) -> None:
        self.states[int(i)] = None
        for (_, to), queue in self.mail.items():
            if to == int(i):
                queue.clear()

    def do_restart(self, i: str, *how: str) -> None:
        disk = self.disks[int(i)]
        if "empty" in how:
            disk.crash("empty-disk", 0)
        for word in how:
            if word.startswith("back="):
                disk.crash("old-checkpoint", int(word[5:]))
        self.boot(int(i), disk.read())

    # -- messages

    def queue(self, edge: str) -> deque[bytes]:
        a, b = edge.split("->")
        return self.mail[int(a), int(b)]

    def do_deliver(self, edge: str) -> None:
        if edge != "all":
            a, b = edge.split("->")
            self.deliver(int(a), int(b))
            return
        while any(self.mail.values()):
            for (a, b), queue in self.mail.items():
                if queue:
                    self.deliver(a, b)

    def deliver(self, a: int, b: int) -> None:
        data = self.mail[a, b].popleft()
        if self.states[b] is None:
            self.out.append(f"{b} is not there")
            return
        try:
            frame = wire.parse(data, self.limits)
            wire.expect(frame, run_id=self.views[b].run_id, layout_hash=self.views[b].layout.hash)
            outcome = self.algorithm.receive(self.states[b], Message(self.members[a], frame))
        except PeerError as error:
            self.out.append(f"{b} refuses {a}: {error}")
            self.told(b, self.views[b].down | {self.members[a]})
            return
        self.go_on(b, outcome)

    def do_drop(self, edge: str, how: str = "") -> None:
        self.queue(edge).popleft()
        if how == "all":
            self.queue(edge).clear()

    def do_dup(self, edge: str) -> None:
        self.queue(edge).appendleft(self.queue(edge)[0])

    def do_swap(self, edge: str) -> None:
        queue = self.queue(edge)
        queue[0], queue[1] = queue[1], queue[0]

    def tamper(self, edge: str, **changes: Any) -> None:
        frame = wire.parse(self.queue(edge).popleft(), self.limits)
        self.queue(edge).appendleft(b"".join(wire.build(replace(frame, **changes))))

    def do_nan(self, edge: str) -> None:
        size = len(wire.parse(self.queue(edge)[0], self.limits).body)
        self.tamper(edge, body=(struct.pack("<f", float("nan")) * size)[:size])

    def do_weight(self, edge: str, weight: str) -> None:
        aux = wire.parse(self.queue(edge)[0], self.limits).aux
        self.tamper(edge, aux={**aux, wire.Aux.PUSH_SUM_WEIGHT: float(weight)})

    def do_other_run(self, edge: str) -> None:
        self.tamper(edge, run_id=b"x" * 16)

    # -- what is seen

    def go_on(self, i: int, outcome: tuple[Any, list[Action]]) -> None:
        self.states[i], actions = outcome
        for action in actions:
            match action:
                case Send(to, frame):
                    k = self.members.index(to)
                    self.mail[i, k].append(b"".join(wire.build(frame)))
                    self.out.append(f"{i} -> {k}: {self.words(frame)}")
                case SetTimer(after_s):
                    self.out.append(f"{i} timer {'off' if after_s is None else f'{after_s:g} s'}")
                case Checkpoint():
                    self.disks[i].write(Saved(self.states[i], self.algorithm.round(self.states[i])))
                case RoundDone(round):
                    self.out.append(f"{i} done with round {round}: {self.model(i)}")
                case Suspect(node, reason):
                    self.out.append(f"{i} suspects {self.members.index(node)}: {reason}")
                case Adopted(node, round):
                    self.out.append(f"{i} takes over the model of {self.members.index(node)}, in round {round}")

    def words(self, frame: wire.Frame) -> str:
        """Without the sessions and incarnations, which are long random numbers."""
        hidden = {wire.Aux.SESSION, wire.Aux.INCARNATION, *(t for t in frame.aux if frame.aux[t] > 1e6)}
        return describe(replace(frame, aux={t: v for t, v in frame.aux.items() if t not in hidden}))

    def model(self, i: int) -> str:
        values = sorted({number(v) for v in self.algorithm.model(self.states[i])}, key=float)
        return " ".join(values)

    def do_mail(self) -> None:
        for (a, b), queue in self.mail.items():
            for data in queue:
                self.out.append(f"{a} -> {b}: {self.words(wire.parse(data, self.limits))}")

    def do_state(self) -> None:
        for i, s in enumerate(self.states):
            if s is None:
                self.out.append(f"{i} is not there")
                continue
            audit, waits = self.algorithm.audit(s), self.algorithm.waiting_for(s)
            text = f"{i} in round {self.algorithm.round(s)}: {self.model(i)}"
            if audit.sent or audit.seen:
                text += f", weight {number(audit.weight)}"
            if waits:
                text += f", waits for {'+'.join(str(self.members.index(w)) for w in waits)}"
            self.out.append(text)

    def do_replicas(self) -> None:
        audits = [None if s is None else self.algorithm.audit(s) for s in self.states]
        everybody = {i: set(range(self.n)) for i in range(self.n)}
        self.out.append(checkers.replica_fault(audits, everybody) or "replicas are equal")


def play(text: str) -> str:
    """The script again, with what its commands print now."""
    fleet, done = Fleet(), []
    for block in text.strip("\n").split("\n\n"):
        commands = block.split("\n----")[0].split("\n")
        fleet.out = []
        for line in commands:
            if line and not line.startswith("#"):
                fleet.run(line)
        done.append("\n".join([*commands, *(["----", *(fleet.out or ["ok"])] if not block.startswith("#!") else [])]))
    return "\n\n".join(done) + "\n"
