"""A fleet in virtual time: nodes, their network and disks, and the checkers that watch them. Nodes call in here."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgegossip import frame as wire
from edgegossip.gossip.base import Action, Adopted, Audit, GossipAlgorithm, RoundDone, Send, Suspect
from edgegossip.sim import checkers, naming, trace
from edgegossip.sim.agreement import Averages
from edgegossip.sim.byzantine import Byzantine
from edgegossip.sim.checkers import Violation
from edgegossip.sim.clock import Clock
from edgegossip.sim.decoded import Decoded
from edgegossip.sim.describe import describe
from edgegossip.sim.disk import Disk, Saved
from edgegossip.sim.flood import flood
from edgegossip.sim.ledger import Ledger
from edgegossip.sim.network import Network
from edgegossip.sim.node import Frame, Node, Notice
from edgegossip.sim.presence import Presence
from edgegossip.sim.schedule import Schedule, edges, of, view_of
from edgegossip.sim.spy import spied
from edgegossip.sim.workload import EQUAL_START, Workload
from edgegossip.types import LocalUpdate, Round, Vec

COMPUTE_S = 0.4, 0.8  # what training takes a node
STATE = wire.Kind.STATE
MEMORY_EVERY = (
    16  # rounds between two looks at what a state holds where nobody lies; else it is looked at in every round
)
FLOOD = "byzantine-flood"
ROW_MIXING = frozenset({"dpsgd", "deep-squeeze", "choco-sgd", "bagua-lp"})  # a model becomes an average of models
PUSH_SUM = frozenset({"sgp", "sparse-push", "quant-sgp"})  # so it does while every weight is positive


class World:
    """Everything of one run of one schedule. `violations` is filled as it goes; the clock stops at the first one."""

    def __init__(
        self,
        schedule: Schedule,
        algorithm: GossipAlgorithm[Any],
        say: trace.Say | None,
        make_disk: Callable[[], Disk],
        make_node: Callable[..., Node],
    ) -> None:
        n, seed = schedule.nodes, schedule.seed
        self.schedule, self.clock, self.trace = schedule, Clock(), trace.Trace(say)
        self.algorithm, self.last_delta = spied(algorithm)
        self.topology = naming.topology_of(schedule.topology, n)
        view = view_of(self.topology, schedule.codec, n, schedule.values, seed, schedule.deadline_s)
        self.by_wire = schedule.by_wire
        if not self.by_wire:
            view = replace(view, codec=Decoded(view.codec))
        self.limits = wire.Limits.of(view.layout)
        self.name, plus, _ = algorithm.name.partition("+")
        self.plain = not plus
        self.patient = naming.param_of(algorithm, "quorum", 1.0) >= 1.0  # whether rounds wait for everybody
        self.workload = Workload(schedule.workload, n, schedule.values, seed, self.name in EQUAL_START)
        averages = self.name in ROW_MIXING | PUSH_SUM and schedule.codec.name == "fp32" and not self.workload.trains
        self.hull = checkers.Hull.of(self.workload.starts) if averages else None
        self.seen: Counter[str] = Counter()  # what each kind of fault did
        self.violations: list[Violation] = []
        self.rng = of(seed, "run")
        self.compute_s = [COMPUTE_S[0] + (COMPUTE_S[1] - COMPUTE_S[0]) * self.rng.random() for _ in range(n)]
        self.nodes = [make_node(self, i, replace(view, node=view.members[i]), make_disk()) for i in range(n)]
        self.index = {name: i for i, name in enumerate(view.members)}
        self.network = Network(self.clock, of(seed, "network"), n, self._deliver, self.seen)
        self.edges = sorted(edges(self.topology))
        linked = {frozenset(e) for e in self.edges}
        peers = [tuple(j for j in range(n) if frozenset((i, j)) in linked and i != j) for i in range(n)]
        self.presence = Presence(self.clock, of(seed, "presence"), peers, self._reachable, self._tell)
        self.liars: dict[int, list[tuple[str, float]]] = {}  # by node: (kind, share of its messages) while they last
        self.lied: set[int] = set()  # nodes that may have lied at some time
        self.byzantine = Byzantine(of(seed, "byzantine"), view.codec, view.layout, self.limits)
        self.ledger = Ledger(n, schedule.values)
        self._mixed: list[float | None] = [None] * n  # `Audit.mixed` of each node; None: its state has moved on since
        self.quiet = False  # all is well and nobody trains any more
        self.settled = False  # and everybody has caught up
        self.last_round: Round | None = None  # after which nodes rest; None: not yet known
        self.round_of: list[Round] = [-1] * n  # last that a node's process reported
        self.furthest: Round = 0  # that anybody was in
        self._confused = any(
            f.kind == "byzantine-mutation" for f in schedule.faults
        )  # may name two far rounds in a row
        self.progress_s = [0.0] * n  # when a node last got on
        self.models: list[tuple[Vec, ...]] = [
            ()
        ] * n  # at the start of its last rounds, as many as may still count somewhere
        self.suspicions = self.departures = self.adoptions = self.restarts = self.states = 0
        self.listens_s = [0.0] * n  # since when messages for a node's process are not lost
        self.apart = False  # whether somebody began without one of its neighbours
        self.states_ahead = 0  # of them, those of a later round than the one that they ended at the receiver
        self._most = [checkers.most_early(self.topology, i, algorithm, self.limits.max_body_bytes) for i in range(n)]
        self.averages = Averages()  # of the last phase
        self.on_round: Callable[[Node], None] | None = None

    def end(self) -> None:
        """Nothing can be asked any more. Everybody knows the world and it knows everybody: let go of at once, what they held is
        used again while it is in the caches, and no garbage collection has to find it."""
        self.__dict__.clear()

    # -- what nodes ask --------------------------------------------------------------------------------------

    def enough(self, node: Node) -> bool:
        return self.last_round is not None and self.algorithm.round(node.state) >= self.last_round

    def update(self, index: int, model: Vec) -> LocalUpdate:
        return self.workload.update(index, model, self.quiet)

    # -- what nodes tell -------------------------------------------------------------------------------------

    def booted(self, node: Node, saved: Saved | None) -> None:
        i, now = node.index, self.clock.now
        self.trace.event(now, i, trace.BOOT, node.view.boot)
        model = self.algorithm.model(node.state)
        self.trace.model(model)
        if self.trace.say is not None:
            how = "from nothing" if saved is None else f"from its checkpoint of round {saved.round}"
            self.trace.line(now, i, f"starts {how}, in round {self.algorithm.round(node.state)}")
        arrives_s = self.network.arrives_s(i)
        self.ledger.booted(i, saved, self.workload.starts[i], node.process > 1, self.listens_s[i], arrives_s)
        self.apart = self.apart or bool(node.view.down)
        self.round_of[i], self.progress_s[i] = self.algorithm.round(node.state) - 1, now
        self.models[i] = (model,)
        self._check_state(node, self.algorithm.audit(node.state))

    def stepped(self, node: Node, local: LocalUpdate) -> None:
        self.trace.event(self.clock.now, node.index, trace.STEP)
        delta = local.delta if self.last_delta is None else self.last_delta.delta
        if delta is not None and delta is not self.workload.still.delta:
            mixed = self._mixed[node.index] if self.name in PUSH_SUM else 1.0
            if mixed is None:
                mixed = self.algorithm.audit(node.state).mixed
            self.ledger.updated(node.index, delta, mixed)
        if self.trace.say is not None:
            self.trace.line(self.clock.now, node.index, f"steps in round {self.algorithm.round(node.state)}")

    def send(self, node: Node, send: Send) -> None:
        i, to, mark = node.index, self.index[send.to], trace.mark(send.frame)
        as_bytes = self.by_wire or i in self.liars
        message = self._in_bytes(i, send, mark) if as_bytes else Frame(i, send.frame, "", mark)
        fate = self.network.send(i, to, message)
        if self.trace.say is not None:
            extra = (f", tampered with: {message.lie}" if message.lie else "") + (f", {fate}" if fate else "")
            self.trace.line(self.clock.now, i, f"-> {to}: {describe(send.frame)}{extra}")
        if i in self.liars:
            self._flood(i, to, send.frame)

    def received(self, node: Node, event: Frame, frame: wire.Frame, outcome: tuple[Any, list[Action]]) -> None:
        """A frame was taken in; node.state is still what it was before."""
        i, ledger = node.index, self.ledger
        if frame.kind is STATE:
            self.states += 1
            self.states_ahead += frame.round > self.algorithm.round(node.state) + 1
        if self.trace.say is not None:
            self.trace.line(self.clock.now, i, f"<- {event.sender}: {describe(frame)}")
        if not (ledger.disks_lost or event.lie):
            return
        owes = ledger.owes(i, event.sender)
        if not owes and not event.lie:
            return
        before, after = self.algorithm.audit(node.state), self.algorithm.audit(outcome[0])
        if owes:
            ledger.closed(i, event.sender, before, after, any(isinstance(a, Adopted) for a in outcome[1]))
        if event.lie == "byzantine-run":
            self.violate("accepted", i, f"took in a message of another run from {event.sender}")
        if event.lie in ("byzantine-weight", "byzantine-state") and (
            fault := checkers.weight_lie_fault(event.sender, before, after)
        ):
            self.violate("accepted", i, fault)

    def refused(self, node: Node, event: Frame, reason: str) -> None:
        i = node.index
        self.trace.event(self.clock.now, i, trace.REFUSE, event.sender)
        if self.trace.say is not None:
            self.trace.line(self.clock.now, i, f"refuses {event.sender}: {reason}")
        self.presence.close(i, event.sender)
        if event.sender not in self.lied:
            self.violate("refused", i, f"refused an honest message of {event.sender}: {reason}")

    def round_done(self, node: Node, done: RoundDone) -> None:
        i, now = node.index, self.clock.now
        model = self.algorithm.model(node.state)
        self.trace.event(now, i, trace.DONE, done.round)
        self.trace.model(model)
        if self.trace.say is not None:
            away = done.consensus_distance
            heard = "no neighbour heard" if math.isnan(away) else f"the neighbours are {away:.4g} away"
            self.trace.line(now, i, f"round {done.round} is done; {heard}")
        round = self.algorithm.round(node.state)
        if done.round <= self.round_of[i] or round <= done.round:
            self.violate("rounds", i, f"round {done.round} done after {self.round_of[i]}, and {round} comes next")
        self._check_led(i, round)
        audit = self.algorithm.audit(node.state)
        if fault := self._left_out(i, done.round, audit):
            self.violate("left-out", i, fault)
        self.round_of[i], self.progress_s[i] = done.round, now
        self.models[i] = (*self.models[i][-self.schedule.nodes :], model)
        self._check_state(node, audit)
        if self.lied and self.plain and (fault := checkers.implausible_fault(self.models[i])):
            self.violate("accepted", i, fault)
        if self.lied or node.rounds_done % MEMORY_EVERY == 0:
            self._check_memory(node)
        if self.on_round is not None:
            self.on_round(node)

    def checkpoint(self, node: Node) -> None:
        state, self._mixed[node.index] = node.state, None
        node.disk.write(Saved(state, self.algorithm.round(state), self.ledger.accounts[node.index].copy()))

    def suspected(self, node: Node, suspect: Suspect) -> None:
        self.suspicions += 1
        if self.trace.say is not None:
            self.trace.line(self.clock.now, node.index, f"goes on without {self.index[suspect.node]}: {suspect.reason}")
        if self.settled and self.patient and self.index[suspect.node] not in self.lied:
            self.violate("left-out", node.index, f"went on without {suspect.node}: {suspect.reason}")

    def adopted(self, node: Node, action: Adopted) -> None:
        self.adoptions += 1
        self.trace.event(self.clock.now, node.index, trace.ADOPT, action.round)
        if self.trace.say is not None:
            text = f"takes over the model of {self.index[action.node]}, in round {action.round}"
            self.trace.line(self.clock.now, node.index, text)
        if (round := self.algorithm.round(node.state)) <= self.round_of[node.index]:
            self.violate("rounds", node.index, f"adopts a model in round {round}; {self.round_of[node.index]} is done")
        self._check_led(node.index, round)
        self.progress_s[node.index] = self.clock.now
        self.ledger.rebase(node.index, self.algorithm.audit(node.state))

    # -- checks ----------------------------------------------------------------------------------------------

    def violate(self, rule: str, node: int | None, text: str) -> None:
        self.violations.append(Violation(rule, node, round(self.clock.now, 3), text))
        self.trace.line(self.clock.now, node, f"VIOLATION of {rule} ({checkers.RULES[rule]}): {text}")
        self.clock.stop()

    def audit(self, index: int) -> Audit | None:
        """None for a node that is not there."""
        node = self.nodes[index]
        return self.algorithm.audit(node.state) if node.up else None

    def _check_state(self, node: Node, audit: Audit) -> None:
        i = node.index
        self._mixed[i] = audit.mixed
        if fault := checkers.finite_fault(self.models[i][-1]):
            self.violate("finite", i, fault)
        if self.hull is not None and self._only_averages() and (fault := self.hull.fault(self.models[i][-1])):
            self.violate("hull", i, fault)
        if fault := checkers.row_fault(audit, positive=not (self.restarts or self.lied)):
            self.violate("weights", i, fault)
        if audit.mass is not None and (fault := self.ledger.fault(i, audit)):
            self.violate("ledger", i, fault)

    def _check_led(self, i: int, round: Round) -> None:
        if round > self.furthest + 1 and not self._confused:
            self.violate("led", i, f"goes on in round {round}, and nobody has been beyond round {self.furthest}")
        self.furthest = max(self.furthest, round)

    def _left_out(self, i: int, round: Round, audit: Audit) -> str | None:
        """Whom a mixing left out, though all is well and everybody is waited for."""
        if not (self.settled and self.patient and audit.row):
            return None
        row = audit.row
        senders = self.topology.neighbours(i, round).in_
        out = [j for j in senders if j not in row and j not in self.lied and self.presence.connected(i, j)]
        return f"mixed without {out} in round {round}" if row and out else None

    def _only_averages(self) -> bool:
        """After a restart from an older checkpoint a push-sum node may take back more than it has."""
        return not self.lied and (self.name in ROW_MIXING or not self.restarts)

    def _check_memory(self, node: Node) -> None:
        if fault := checkers.memory_fault(checkers.held(node.state), self._most[node.index]):
            self.violate("memory", node.index, fault)

    # -- between network and nodes ---------------------------------------------------------------------------

    def _in_bytes(self, i: int, send: Send, mark: float) -> Frame:
        """As it goes over a wire, and as liars change it."""
        data = b"".join(wire.build(send.frame))
        for kind, share in self.liars.get(i, ()):
            if kind != FLOOD and self.rng.random() < share:
                changed = self.byzantine.tamper(kind, send.frame, send.to)
                if changed is not None and changed != data:
                    if kind != "byzantine-state" or send.frame.kind is STATE:  # else it only has one asked for
                        self.seen[kind] += 1
                    return Frame(i, changed, kind, zlib.crc32(changed))
        return Frame(i, data, "", mark)

    def _flood(self, i: int, to: int, frame: wire.Frame) -> None:
        for kind, share in self.liars[i]:
            if kind == FLOOD and self.rng.random() < share:
                more = [
                    Frame(i, data, kind, zlib.crc32(data)) for data in flood(frame, self.topology.period, self.limits)
                ]
                for message in more:
                    self.network.send(i, to, message)
                if more:
                    self.seen[kind] += 1
                    self.trace.line(self.clock.now, i, f"-> {to}: {len(more)} messages of later rounds ({kind})")

    def _deliver(self, receiver: int, frame: Frame) -> None:
        node = self.nodes[receiver]
        if not node.up:
            self.trace.line(self.clock.now, receiver, f"a message of {frame.sender} finds no process and is lost")
            return
        self.trace.event(self.clock.now, receiver, trace.DELIVER, frame.mark)
        node.take(frame)

    def _tell(self, node: int, peer: int, up: bool) -> None:
        if self.nodes[node].up:
            self.trace.event(self.clock.now, node, trace.NOTICE, peer + up / 2)
            self.trace.line(self.clock.now, node, f"hears that {peer} is {'back' if up else 'down'}")
            self.departures += not up
            self.nodes[node].take(Notice(peer, up))

    def _reachable(self, a: int, b: int) -> bool:
        one, two = self.nodes[a], self.nodes[b]
        return one.up and two.up and not one.paused and not two.paused and not self.network.is_cut(a, b)

    # -- processes -------------------------------------------------------------------------------------------

    def boot(self, index: int, saved: Saved | None) -> None:
        """A process of a node starts; the first one together with the others."""
        node = self.nodes[index]
        down = self.presence.known_down(index) if node.starting else None
        self.listens_s[index] = 0.0 if node.starting else self.clock.now
        node.up, node.paused = True, False
        down = self.presence.booted(index) if down is None else down
        node.boot(saved, down, int(self.rng.random() * 2**48))

    def kill(self, index: int, why: str) -> None:
        node = self.nodes[index]
        self.trace.event(self.clock.now, index, trace.CRASH)
        self.trace.line(self.clock.now, index, why)
        node.kill()
        self.presence.node_changed(index)
