"""A fleet in virtual time: nodes, their network and disks, and the checkers that watch them. Nodes
call in here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from edgegossip import frame as wire
from edgegossip.codecs import leaves_rate
from edgegossip.engine.events import (
    Accepted,
    Arrived,
    Effect,
    Log,
    MemberNews,
    ModelAdopted,
    NeighbourDown,
    NeighbourUp,
    RoundEnded,
    Timer,
)
from edgegossip.engine.events import FrameReceived as Received
from edgegossip.engine.joining import Patience, RemoteMembers
from edgegossip.engine.node import NodeConfig, NodeEngine, Stage
from edgegossip.gossip.base import Audit, GossipAlgorithm, Send
from edgegossip.types import LocalUpdate, Round, Vec
from lab.sim import checkers, naming, trace
from lab.sim.bounds import Bounds
from lab.sim.byzantine import Byzantine
from lab.sim.checkers import Violation
from lab.sim.disk import Disk, Saved
from lab.sim.faults import FLOOD
from lab.sim.ledger import Ledger, innermost
from lab.sim.network import UNFIT, Clock, Decoded, FailureDetector, Network
from lab.sim.node import Node, NodeEnvironment, Packet
from lab.sim.schedule import EQUAL_START, Schedule, Workload, edges, of, view_of
from lab.sim.trace import describe
from lab.sim.witness import ROUNDING_S, Witness

COMPUTE_S = 0.4, 0.8  # what training takes a node
LOAD_S = 0.05, 0.5  # what loading its model does
MOST_ROUNDS = 10**6  # of the run, until it is known how long it is
# As boards have it, in proportion to rounds that take less than a second; the room is for some
# dozen frames.
PATIENCE = Patience(grace_s=1.5, announce_s=2.0, catch_up_s=1.0, return_s=3.0, gone_s=6.0, pending_bytes=64 << 10)
NEWS_S = 0.2, 1.5  # until members have heard of one that is no neighbour
STATE = wire.Kind.STATE
MEMORY_EVERY = 16  # rounds between two looks at what a state holds where nobody floods others; else 1
ROW_MIXING = frozenset({"dpsgd", "deep-squeeze", "choco-sgd", "bagua-lp"})  # a model becomes an average of models
PUSH_SUM = frozenset({"sgp", "sparse-push", "quant-sgp"})  # so it does while every weight is positive


class World(NodeEnvironment):
    """Holds everything of one run of one schedule. `violations` is filled as it goes; the clock
    stops at the first one."""

    def __init__(
        self,
        schedule: Schedule,
        algorithm: GossipAlgorithm[Any],
        say: trace.Say | None,
        make_disk: Callable[[], Disk],
    ) -> None:
        n, seed = schedule.nodes, schedule.seed
        self.schedule, self.clock, self.trace = schedule, Clock(), trace.Trace(say)
        self.algorithm = algorithm
        self.topology = naming.topology_of(schedule.topology, n)
        repaired = self.algorithm.says.repaired
        view = view_of(self.topology, schedule.codec, n, schedule.values, seed, schedule.deadline_s, repaired)
        self._rated = leaves_rate(view.codec)
        self.by_wire = schedule.by_wire
        if not (self.by_wire or self._rated):
            view = replace(view, codec=Decoded(view.codec))
        self.limits = wire.Limits.of(view.layout, algorithm.bodies)
        self.name, plus, _ = algorithm.name.partition("+")
        self.plain = not plus
        self.patient = naming.param_of(algorithm, "quorum", 1.0) >= 1.0  # whether rounds wait for everybody
        self.workload = Workload(schedule.workload, n, schedule.values, seed, self.name in EQUAL_START)
        self.robust = naming.param_of(algorithm, "malicious", 0) > 0  # whom it leaves out differs from round to round
        bounded = self.robust and not (self._rated or naming.streams(algorithm) or self.name == "bagua-lp")
        bounded = bounded and not naming.param_of(algorithm, "staleness", 0)
        self.bounds = Bounds(algorithm, self.topology) if bounded else None
        averages = self.name in ROW_MIXING | PUSH_SUM and schedule.codec.name == "fp32" and not self.workload.trains
        averages = averages and naming.OUTER not in algorithm.name  # momentum overshoots
        self.hull = checkers.Hull.of(self.workload.starts) if averages else None
        self.seen: Counter[str] = Counter()  # what each kind of fault did
        self.violations: list[Violation] = []
        self.looked = {"crash"}  # rules that had something to look at
        self.rng = of(seed, "run")
        self._compute_s = [COMPUTE_S[0] + (COMPUTE_S[1] - COMPUTE_S[0]) * self.rng.random() for _ in range(n)]
        self.slow = [1.0] * n  # how many times longer training takes a node
        self._load_s = [LOAD_S[0] + (LOAD_S[1] - LOAD_S[0]) * self.rng.random() for _ in range(n)]
        self.nodes = [Node(self, i, replace(view, node=view.members[i]), make_disk()) for i in range(n)]
        self.index = {name: i for i, name in enumerate(view.members)}
        self.network = Network(self.clock, of(seed, "network"), n, self._deliver, self.seen)
        self.edges = sorted(edges(self.topology))
        linked = {frozenset(e) for e in self.edges}
        peers = [tuple(j for j in range(n) if frozenset((i, j)) in linked and i != j) for i in range(n)]
        self.detector = FailureDetector(self.clock, of(seed, "presence"), peers, self._reachable, self._fit, self._tell)
        self.data_of = [0] * n  # which model the data of each node's process make
        self.unfit_ended: set[int] = set()  # nodes whose process ended because it fitted nobody
        self._lost_s: list[dict[int, float]] = [{} for _ in range(n)]  # when it heard, by its clock, that a peer died
        news = of(seed, "members")
        self._members_talk = news.random() < 0.5  # whether nodes hear of those that are no neighbours
        self._news_random = news.random
        self.came: set[int] = set()  # nodes that have been there at some time
        self.left: set[int] = set()  # nodes that said goodbye, and have not come back
        self.heard = [0] * n  # messages that arrived at each node's process
        self.witness = Witness(schedule, self.algorithm, self.detector, self.topology, PATIENCE.catch_up_s, self.check)
        self._fresh_until_s = [0.0] * n  # until when a process that began with nothing must not go on without a model
        self.spoke_s = [0.0] * n  # when a node last said for whom it waits
        self.rounds = MOST_ROUNDS
        self.run_over = False  # the last rounds are being played, and whoever has done them leaves
        self.finishers: set[int] = set()  # nodes whose process has come to the end of the run
        self.liars: dict[int, list[tuple[str, float]]] = {}  # by node: (kind, share of its messages) while they last
        self.lied: set[int] = set()  # nodes that may have lied at some time
        self.byzantine = Byzantine(of(seed, "byzantine"), view.codec, view.layout, self.limits)
        self.ledger = Ledger(n, schedule.values, self.algorithm, self.topology)
        # Whether local steps follow a correction that neighbours say exactly.
        self._corrects = self.name == "k-gt" and self.plain and schedule.codec.name == "fp32"
        self._durable_s = [0.0] * n  # when a node's latest checkpoint is on its disk
        self._mixed: list[float | None] = [None] * n  # `Audit.mixed` of each node; None: its state has moved on since
        self.quiet = False  # all is well and nobody trains any more
        self.settled = False  # and everybody has caught up
        self.open_before = set[int]()  # nodes whose present round began before that
        self.last_round: Round | None = None  # after which nodes rest; None: not yet known
        self.round_of: list[Round] = [-1] * n  # last that a node's process reported
        self.furthest: Round = 0  # that anybody was in
        kinds = {f.kind for f in schedule.faults}
        self._confused = bool(
            kinds & {"byzantine-mutation", "byzantine-round"}
        )  # somebody may name two far rounds in a row
        self._memory_every = 1 if FLOOD in kinds else MEMORY_EVERY
        self.progress_s = [0.0] * n  # when a node last got on
        # At the start of its last rounds, as many as may still count somewhere.
        self.models: list[tuple[Vec, ...]] = [()] * n
        self.suspicions = self.departures = self.adoptions = self.restarts = self.states = 0
        self.listens_s = [0.0] * n  # since when messages for a node's process are not lost
        self.apart = False  # whether somebody began without one of its neighbours
        self._rates: dict[Round, tuple[float, int, bool]] = {}  # of a round, of who trained in it first
        self.uneven = False  # whether somebody had another one in the same round
        self.states_ahead = 0  # of them, those of a later round than the one that they ended at the receiver
        self._most = [checkers.pending_limit(self.topology, i, algorithm, self.limits.max_body_bytes) for i in range(n)]
        self.on_round: Callable[[Node], None] | None = None

    def end(self) -> None:
        """Let go of everything at once. Everybody knows the world and it knows everybody: what
        they held is used again while it is in the caches, and no garbage collection has to find
        it."""
        self.__dict__.clear()

    # -- what nodes ask

    @override
    def engine_of(self, node: Node, restarted: bool) -> NodeEngine:
        view, i = node.view, node.index
        config = NodeConfig.of(view.node, view.members, self.topology, self.rounds, restarted)
        known = {view.members[j]: self.nodes[j].up for j in self._remote(i) if j in self.came - self.left}
        return NodeEngine(self.algorithm, config, PATIENCE, RemoteMembers(known if self._members_talk else None))

    @override
    def start_of(self, index: int) -> Vec:
        return self.workload.starts[index]

    @override
    def load_s(self, index: int) -> float:
        return self._load_s[index]

    @override
    def compute_s(self, index: int) -> float:
        return self._compute_s[index] * self.slow[index]

    @override
    def enough(self, node: Node) -> bool:
        if self.last_round is None or self.run_over or node.engine.view is None:
            return False
        return self.algorithm.round(node.state) >= self.last_round

    @override
    def update(self, node: Node, model: Vec, correction: Vec | None) -> LocalUpdate:
        i = node.index
        self.witness.trains(node)
        if self._corrects and not (self.lied or self.restarts or self.adoptions or self.left_out()):
            self._check_correction(node, correction)
        local = self.workload.update(i, model, self.quiet, correction)
        how = local.lr, local.steps, local.corrected
        self.uneven |= how != self._rates.setdefault(self.algorithm.round(node.state), how)
        return local

    # -- what nodes tell

    @override
    def booted(self, node: Node, saved: Saved | None, state: Any) -> None:
        i, now = node.index, self.clock.now
        self.trace.event(now, i, trace.BOOT, node.view.boot)
        model = self.algorithm.model(state)
        self.trace.model(model)
        if self.trace.say is not None:
            how = "from nothing" if saved is None else f"from its checkpoint of round {saved.round}"
            self.trace.line(now, i, f"starts {how}, in round {self.algorithm.round(state)}")
        arrives_s = self.network.arrives_s(i)
        self.ledger.booted(i, saved, self.workload.starts[i], node.process > 1, self.listens_s[i], arrives_s)
        self.ledger.goes_on(i, state)
        self.apart = self.apart or bool(node.engine.down)
        self.round_of[i], self.progress_s[i] = self.algorithm.round(state) - 1, now
        self.models[i] = (model,)
        self._check_state(node, self.algorithm.audit(state))
        self.witness.booted(node, saved is None)
        self._fresh_until_s[i] = now + PATIENCE.catch_up_s if saved is None else 0.0

    @override
    def ticked(self, node: Node, timer: Timer) -> None:
        self.trace.event(self.clock.now, node.index, trace.TICK)
        if self.trace.say is not None:
            self.trace.line(self.clock.now, node.index, f"the {timer.value} timer is due")

    @override
    def stepped(self, node: Node, before: Any, local: LocalUpdate) -> None:
        wrong = "used an update of a model that it had given up"
        self.check("update", node.index, wrong if node.given_up else None)
        self.trace.event(self.clock.now, node.index, trace.STEP)
        self.open_before.discard(node.index)
        self.witness.stepped(node, self.algorithm.round(before))
        if self._corrects:
            self.ledger.went(node.index, self.algorithm.round(before), local)
        self._check_outer(node.index, before, between=True)
        delta: Any = local.delta
        if delta is not self.workload.still.delta or not self.plain:
            mixed = self._mixed[node.index] if self.name in PUSH_SUM else 1.0
            if mixed is None:
                mixed = self.algorithm.audit(before).mixed
            delta = self.ledger.stepped(node.index, before, node.state, local, mixed)
        if self.bounds is not None:
            round, base = self.algorithm.round(before), innermost(self.algorithm, before).astype(np.float64) + delta
            self.bounds.stepped(node.index, node.process, round, base)
            self.bounds.said(node.index, node.process, round, self.algorithm.audit(node.state))
        if self.trace.say is not None:
            self.trace.line(self.clock.now, node.index, f"steps in round {self.algorithm.round(before)}")

    @override
    def send(self, node: Node, send: Send) -> None:
        i, to, mark = node.index, self.index[send.to], trace.mark(send.frame)
        self.witness.sent(node, to, send)
        if self.bounds is not None:
            self.bounds.sent(i, node.process, send.frame, node.view)
        if self.witness.pairs:
            self.ledger.asks(i, to, send.frame)
        as_bytes = self.by_wire or i in self.liars
        lies, message = self.liars.get(i, ()), Packet(i, send.frame, "", mark)
        if as_bytes:
            changed = self.byzantine.packet(message, send.to, lies, self.rng.random, self.seen)
            if changed is None:
                self.trace.line(self.clock.now, i, f"does not send {to}: {describe(send.frame)}")
                return
            message = changed
        if self._rated and len(send.frame.body):
            message = message._replace(handed=[(node.process, self.clock.now, len(send.frame.body))])
        fate = self.network.send(i, to, message)
        if self.trace.say is not None:
            extra = (f", tampered with: {message.lie}" if message.lie else "") + (f", {fate}" if fate else "")
            self.trace.line(self.clock.now, i, f"-> {to}: {describe(send.frame)}{extra}")
        for more in self.byzantine.flooded(message, send.frame, lies, self.rng.random, self.topology.period, self.seen):
            self.network.send(i, to, more)

    @override
    def received(self, node: Node, accepted: Accepted, effects: list[Effect]) -> None:
        (name, data), frame, old, new = accepted
        i, ledger, sender, lie = node.index, self.ledger, self.index[name], getattr(data, "lie", "")
        if shut_out := node.shut_out:
            fault = f"took in a message of {sender}, which it had refused" if name in shut_out else None
            self.check("accepted", i, fault)
        if self.clock.now < self._fresh_until_s[i]:
            self.check("newcomer", i, self._went_on_without_a_model(old, new, effects))
        if frame.kind is STATE:
            self.states += 1
            self.states_ahead += frame.round > self.algorithm.round(old) + 1
        if self.trace.say is not None:
            self.trace.line(self.clock.now, i, f"<- {sender}: {describe(frame)}")
        self.witness.received(node, sender, accepted)
        if self.witness.pairs:
            self.check("ledger", i, ledger.answered(i, sender, frame, old, new))
        if not (ledger.disks_lost or lie):
            return
        owes = ledger.owes(i, sender)
        if not owes and not lie:
            return
        before, after = self.algorithm.audit(old), self.algorithm.audit(new)
        if owes:
            ledger.closed(i, sender, before, after, any(type(e) is ModelAdopted and e.state is new for e in effects))
        if lie == "byzantine-run":
            self.check("accepted", i, f"took in a message of another run from {sender}")
        if lie in ("byzantine-weight", "byzantine-state"):
            self.check("accepted", i, checkers.weight_lie_fault(sender, before, after))

    @override
    def kept(self, node: Node) -> None:
        self.check("memory", node.index, checkers.pending_fault(node.engine.pending, PATIENCE.pending_bytes))

    def _went_on_without_a_model(self, old: Any, new: Any, effects: list[Effect]) -> str | None:
        far = self.schedule.nodes * self.topology.period + 1
        if self.algorithm.asynchronous or self.algorithm.round(new) <= self.algorithm.round(old) + far:
            return None
        if any(type(e) is ModelAdopted and e.state is new for e in effects):
            return None
        return f"goes on in round {self.algorithm.round(new)} without anybody's model"

    @override
    def dropped(self, node: Node, sender: str) -> None:
        if self.trace.say is not None:
            self.trace.line(self.clock.now, node.index, f"has no room for a message of {self.index[sender]}, too early")
        self.check("share", node.index, checkers.share_fault(node.engine.pending, sender, self.limits.max_body_bytes))

    @override
    def refused(self, node: Node, peer: str, reason: str) -> None:
        i, sender = node.index, self.index[peer]
        self.trace.event(self.clock.now, i, trace.REFUSE, sender)
        if self.trace.say is not None:
            self.trace.line(self.clock.now, i, f"refuses {sender}: {reason}")
        self.detector.close(i, sender)
        self._lost_s[i].pop(sender, None)
        self.ignored(node, peer, reason)

    @override
    def ignored(self, node: Node, peer: str, reason: str) -> None:
        i, sender = node.index, self.index[peer]
        self.check("refused", i, None if sender in self.lied else f"refused an honest message of {sender}: {reason}")
        self.looked.add("accepted")

    @override
    def round_done(self, node: Node, ended: RoundEnded) -> None:
        i, now, done, state = node.index, self.clock.now, ended.done, ended.state
        model = self.algorithm.model(state)
        self.trace.event(now, i, trace.DONE, done.round)
        self.trace.model(model)
        if self.trace.say is not None:
            away = done.consensus_distance
            heard = "no neighbour heard" if math.isnan(away) else f"the neighbours are {away:.4g} away"
            self.trace.line(now, i, f"round {done.round} is done; {heard}")
        round = self.algorithm.round(state)
        back = done.round <= self.round_of[i] or round <= done.round
        text = f"round {done.round} done after {self.round_of[i]}, and {round} comes next"
        self.check("rounds", i, text if back else None)
        wrong = done.round >= node.engine.rounds or ended.last is not (round >= node.engine.rounds)
        if wrong or self.run_over:
            last = "the last one" if ended.last else "not the last one"
            text = f"did round {done.round} of {node.engine.rounds}, and says that it is {last}"
            self.check("end", i, text if wrong else None)
        self._fresh_until_s[i] = 0.0
        self._check_led(i, round)
        audit = self.algorithm.audit(state)
        if not self.robust:
            self.check("patience", i, self.witness.hasty(node, done.round, audit.row, self.lied))
        self.witness.done(node)
        here = [j for j in self.topology.neighbours(i, done.round).in_ if self.detector.connected(i, j)]
        # Of a lost message nobody says so. Where exchanges overlap, who was heard is of the round
        # before.
        if not (self.algorithm.asynchronous or self.algorithm.listens):
            count = sum(j in audit.row for j in here) if audit.row else done.heard
            self.suspicions += count < len(here)
        if self._nobody_may_be_left_out(audit):
            self.check("left-out", i, self._left_out(i, done.round, audit))
        self._check_outer(i, state)
        if self.bounds is not None:
            x = innermost(self.algorithm, state)
            self.check("robust", i, self.bounds.fault(i, done.round, x, audit.row, self.lied))
        self.witness.rated(node, ended.rates)
        if self.settled and not (self.algorithm.listens or self.robust):
            self.witness.mixed(i, done.round, audit, self.round_of, self.lied)
        self.round_of[i], self.progress_s[i] = done.round, now
        self.models[i] = (*self.models[i][-self.schedule.nodes :], model)
        self._check_state(node, audit)
        if self.lied and self.plain:
            self.check("accepted", i, checkers.implausible_fault(self.models[i]))
        if node.rounds_done % self._memory_every == 0:
            self._check_memory(node)
        if self.on_round is not None:
            self.on_round(node)

    @override
    def checkpoint(self, node: Node, state: Any) -> None:
        self._mixed[node.index] = None
        self._check_outer(node.index, state)
        saved = Saved(state, self.algorithm.round(state), self.ledger.noted(node.index, state))
        when = self._durable_s[node.index] = max(self.clock.now + node.disk.slow_s, self._durable_s[node.index])
        if when > self.clock.now:
            self.clock.at(when, self._written, node, node.process, saved)
        else:
            self._written(node, node.process, saved)

    @staticmethod
    def _written(node: Node, process: int, saved: Saved) -> None:
        if node.up and node.process == process and not node.disk.full:
            node.disk.write(saved)

    @override
    def logged(self, node: Node, line: Log) -> None:
        if self.trace.say is not None:
            self.trace.line(self.clock.now, node.index, line.text)
        self.witness.said(node, line, self.index.get(line.fields.get("peer", "")) in self.lied, self.clock.now)
        if line.event == "waiting":
            self.spoke_s[node.index] = self.clock.now
        if line.event != "suspect":
            return
        self.suspicions += 1
        if self.settled and self.patient:
            j, round = self.index[line.fields["peer"]], line.fields["round"]
            excused = j in self.lied or self._comes_late(node.index, j, round)
            self.check("left-out", node.index, None if excused else line.text)

    @override
    def adopted(self, node: Node, action: ModelAdopted) -> None:
        self.adoptions += 1
        self.trace.event(self.clock.now, node.index, trace.ADOPT, action.round)
        round, done = self.algorithm.round(action.state), self.round_of[node.index]
        fault = f"adopts a model in round {round}; {done} is done" if round <= done else None
        self.check("rounds", node.index, fault)
        self._fresh_until_s[node.index] = 0.0
        self._check_led(node.index, round)
        self.progress_s[node.index] = self.clock.now
        self.witness.adopted(node)
        audit = self.algorithm.audit(action.state)
        if self.bounds is not None:
            self.bounds.said(node.index, node.process, self.algorithm.round(action.state) - 1, audit)
        fault = self.ledger.rebase(node.index, audit, action.state)
        if audit.mass is not None:
            self.check("ledger", node.index, fault)

    @override
    def finished(self, node: Node) -> None:
        i, round = node.index, self.algorithm.round(node.state)
        self.trace.event(self.clock.now, i, trace.LEAVE, round)
        if not self.run_over or round < node.engine.rounds:
            self.violate("end", i, f"has finished in round {round} of {node.engine.rounds}")
        self.finishers.add(i)
        when = max(self.network.arrives_s(i), default=0.0)
        self.clock.at(when, self._leave, i, node.process)

    @override
    def failed(self, node: Node, reason: str) -> None:
        i, detector = node.index, self.detector
        if detector.fits_nobody(i, as_told=True) or detector.outvoted(i, as_told=True):
            self.unfit_ended.add(node.index)
            self.looked.add("unfit")
        else:
            self._check_failure(node, reason)
        self.finishers.add(node.index)
        self.kill(node.index, reason, left=True)

    def _check_failure(self, node: Node, reason: str) -> None:
        """A process that was started again may end where nobody is left."""
        i = node.index
        peers = self.detector.peers[i]
        if "fit" in reason or node.process == 1:
            self.violate("unfit", i, f"ends though not every neighbour trains something else: {reason}")
        if any(self.detector.connected(i, j) and not self.detector.knows_down(i, j) for j in peers):
            self.violate("end", i, f"gave up though a neighbour is there: {reason}")
        until_s = node.own_s - PATIENCE.gone_s + ROUNDING_S
        soon = [j for j, lost_s in self._lost_s[i].items() if until_s < lost_s]
        if soon:
            self.violate("end", i, f"gave up though {soon} may still come back: {reason}")
        # Who began shortly before it may be taken for one that began after it: that news was late.
        began_s = self.listens_s[i] - NEWS_S[1]
        before = [j for j in self._remote(i) if self.nodes[j].up and self.listens_s[j] < began_s]
        if self._members_talk and before:
            self.violate("end", i, f"gave up though {before} have been there all the time: {reason}")

    def _leave(self, i: int, process: int) -> None:
        node = self.nodes[i]
        if node.up and node.process == process:
            self.kill(i, "has finished, and leaves", left=True)

    # -- checks

    def check(self, rule: str, node: int | None, fault: str | None) -> None:
        """Take note that a rule had something to look at, and of what is wrong, if anything is."""
        self.looked.add(rule)
        if fault:
            self.violate(rule, node, fault)

    def violate(self, rule: str, node: int | None, text: str) -> None:
        """Take note of a broken promise, one of RULES; the run ends with it."""
        self.violations.append(Violation(rule, node, round(self.clock.now, 3), text))
        self.trace.line(self.clock.now, node, f"VIOLATION of {rule} ({checkers.RULES[rule]}): {text}")
        self.clock.stop()

    def audit(self, index: int) -> Audit | None:
        """Return a node's audit; None for a node that is not there."""
        node = self.nodes[index]
        return self.algorithm.audit(node.state) if node.trains else None

    def _check_state(self, node: Node, audit: Audit) -> None:
        i = node.index
        self._mixed[i] = audit.mixed
        self.check("finite", i, checkers.finite_fault(self.models[i][-1]))
        if self.hull is not None and self._only_averages():
            self.check("hull", i, self.hull.fault(self.models[i][-1]))
        self.check("weights", i, checkers.row_fault(audit, positive=not (self.restarts or self.lied)))
        if audit.mass is not None:
            self.check("ledger", i, self.ledger.fault(i, audit))

    def _check_outer(self, i: int, state: Any, between: bool = False) -> None:
        fault = self.ledger.followed(i, state, between)
        if naming.OUTER in self.schedule.algorithm.name:
            self.check("outer", i, fault)

    def _check_correction(self, node: Node, correction: Vec | None) -> None:
        """Check what local steps are to follow, where everybody has heard of everybody so far."""
        i, round, eta = node.index, self.algorithm.round(node.state), naming.param_of(self.algorithm, "eta", 1.0)
        heard = {i, *self.algorithm.audit(node.state).row}
        self._corrects = not round or heard.issuperset(self.topology.neighbours(i, round - 1).in_)
        row = eta * self.topology.matrix(round - 1)[i]
        row[i] += 1.0 - eta
        if self._corrects:
            self.check("correction", i, self.ledger.corrected(i, round, correction, row))

    def _check_led(self, i: int, round: Round) -> None:
        if not self._confused:
            text = f"goes on in round {round}, and nobody has been beyond round {self.furthest}"
            self.check("led", i, text if round > self.furthest + 1 else None)
        self.furthest = max(self.furthest, round)

    def _nobody_may_be_left_out(self, audit: Audit) -> bool:
        """Whether all is well and everybody is waited for. Where exchanges overlap, the last mixing
        is of a round before; whom it went on without is logged."""
        patient = self.settled and self.patient and bool(audit.row)
        return patient and not (self.algorithm.listens or self.robust)

    def _left_out(self, i: int, round: Round, audit: Audit) -> str | None:
        row = audit.row
        senders = self.topology.neighbours(i, round).in_
        out = [j for j in senders if j not in row and j not in self.lied and self.detector.connected(i, j)]
        out = [j for j in out if not (self.witness.spent(i, j) or self._comes_late(i, j, round))]
        return f"mixed without {out} in round {round}" if out else None

    def _comes_late(self, i: int, j: int, round: Round) -> bool:
        """Tell whether a node's round began before all was well, and a neighbour has not come to it
        yet: it may have waited for another that waited itself, and for longer than a deadline."""
        late = self.nodes[j]
        there = self.algorithm.round(late.state) + (late.engine.stage is Stage.EXCHANGING)
        return i in self.open_before and there <= round

    def left_out(self) -> bool:
        """Tell whether anybody mixed without a neighbour that mixed with it."""
        return bool(self.departures or self.suspicions or self.apart)

    def _only_averages(self) -> bool:
        """After a restart from an older checkpoint a push-sum node may take back more than it
        has."""
        return not self.lied and (self.name in ROW_MIXING or not self.restarts)

    def _check_memory(self, node: Node) -> None:
        held = checkers.pending_in(node.state)
        self.check("memory", node.index, checkers.memory_fault(held, self._most[node.index]))

    def look_at(self, node: Node) -> None:
        """Check what became of the frames that a node got, and whether it waits in silence."""
        i = node.index
        pending = node.engine.pending
        fault = checkers.frames_fault(node.handed, node.accepted, node.dropped, node.refused, pending)
        self.check("frames", i, fault)
        if not node.paused:
            self.witness.look(node, self.clock.now)
        waits = node.engine.stage in (Stage.JOINING, Stage.ALONE, Stage.EXCHANGING) and not node.paused
        silent_s = self.clock.now - max(node.since_s, self.spoke_s[i])
        if waits and silent_s > PATIENCE.announce_s:
            text = f"is {node.engine.stage.value} for {silent_s:.1f} s and does not say so"
            self.check("silence", i, text if silent_s > 2 * PATIENCE.announce_s + 1.0 else None)

    def waits_for_ever(self, node: Node) -> bool:
        """Tell whether it has not begun, and has good reason to: it came for the first time,
        some neighbour was never there, and nobody has sent it anything, so that nobody waits for
        it. Or it has nothing, and nobody to take a model from."""
        i, stage = node.index, node.engine.stage
        gone = [j for j in self.detector.peers[i] if not self.detector.connected(i, j)]
        if stage is Stage.ALONE:
            return len(gone) == len(self.detector.peers[i])
        never_there = any(not (self.detector.met(i, j) or self.detector.unfit(i, j)) for j in gone)
        return stage is Stage.JOINING and node.process == 1 and never_there and not self.heard[i]

    # -- between network and nodes

    def _deliver(self, receiver: int, packet: Packet) -> None:
        node = self.nodes[receiver]
        if not node.up:
            self.trace.line(self.clock.now, receiver, f"a message of {packet.sender} finds no process and is lost")
            return
        if not self._fit(receiver, packet.sender):
            self.trace.line(self.clock.now, receiver, f"has no stream of {packet.sender}, whose message is lost")
            return
        self.trace.event(self.clock.now, receiver, trace.DELIVER, packet.mark)
        self.heard[receiver] += 1
        if packet.handed:  # acknowledged once, however often it comes
            self._acknowledged(packet.sender, receiver, *packet.handed.pop())
        node.take(Received(node.view.members[packet.sender], packet.data))

    def _acknowledged(self, sender: int, receiver: int, process: int, start_s: float, size: int) -> None:
        node = self.nodes[sender]
        if node.up and node.process == process:
            arrived = Arrived(self.nodes[receiver].view.node, size, start_s, self.clock.now)
            self.witness.arrived(sender, arrived)
            node.take(arrived)

    def _tell(self, node: int, peer: int, up: bool, reason: str) -> None:
        if not self.nodes[node].up:
            return
        self.trace.event(self.clock.now, node, trace.NOTICE, peer + up / 2)
        self.trace.line(self.clock.now, node, f"hears that {peer} is {'there' if up else f'down: {reason}'}")
        self.departures += not up
        name, left = self.nodes[node].view.members[peer], peer in self.left
        if up:
            self.witness.fits(node, peer)
            self._lost_s[node][peer] = math.inf  # it has not been lost
            self.nodes[node].take(NeighbourUp(name))
            return
        if left or reason == UNFIT:
            self._lost_s[node].pop(peer, None)
        elif self._lost_s[node].get(peer) == math.inf:
            self._lost_s[node][peer] = self.nodes[node].own_s
        if reason == UNFIT:
            words = f"{self.nodes[node].view.node} and {name} {UNFIT}"
            self.nodes[node].take(NeighbourDown(name, words, disagrees=True))
        else:
            self.nodes[node].take(NeighbourDown(name, f"{name} left" if left else reason, left))

    def _reachable(self, a: int, b: int) -> bool:
        one, two = self.nodes[a], self.nodes[b]
        return one.up and two.up and not one.paused and not two.paused and not self.network.is_cut(a, b)

    def _fit(self, a: int, b: int) -> bool:
        return self.data_of[a] == self.data_of[b]

    def _remote(self, index: int) -> list[int]:
        """Members that are no neighbours."""
        near = {index, *self.detector.peers[index]}
        return [j for j in range(self.schedule.nodes) if j not in near]

    def _spread(self, about: int, left: bool, restarted: bool) -> None:
        """The members pass on that a process came or went."""
        if not self._members_talk:
            return
        here = self.nodes[about].up
        news = MemberNews(self.nodes[about].view.members[about], here, left, restarted)
        for j in self._remote(about):
            after_s = NEWS_S[0] + (NEWS_S[1] - NEWS_S[0]) * self._news_random()
            self.clock.after(after_s, self._hear, j, news)

    def _hear(self, j: int, news: MemberNews) -> None:
        if self.nodes[j].up:
            self.nodes[j].take(news)

    # -- processes

    def boot(self, index: int, saved: Saved | None) -> None:
        """Start a process of a node: it listens, and joins."""
        node, now = self.nodes[index], self.clock.now
        if self.trace.say is not None:
            self.trace.line(now, index, "listens, and looks for its neighbours")
        self.listens_s[index] = self.progress_s[index] = now
        self.heard[index] = 0
        self.witness.began(index)
        self._lost_s[index].clear()
        again = index in self.came
        self.came.add(index)
        self.left.discard(index)
        node.boot(saved, int(self.rng.random() * 2**48))
        self.detector.booted(index)
        self._spread(index, left=False, restarted=again)

    def kill(self, index: int, why: str, left: bool = False) -> None:
        """End a node's process. `left`: it says goodbye."""
        node = self.nodes[index]
        self.trace.event(self.clock.now, index, trace.CRASH)
        self.trace.line(self.clock.now, index, why)
        node.kill()
        self.witness.broken_s = min(self.witness.broken_s, self.clock.now)
        if left:
            self.left.add(index)
        self.detector.node_changed(index)
        self._spread(index, left, restarted=False)
