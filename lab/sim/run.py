"""Runs one schedule: faults, then quiet, in which everything must heal; and what must be true in
the end.

1. Faults, for `schedule.seconds`: `FaultInjector` begins and ends each at its time, whatever
others do meanwhile. 2. All is well and nobody trains any more; nodes that lied are evicted. Once
everybody knows who is there, all must get to the same round. 3. As many more rounds as mixing
takes, and more where a compressed algorithm needs them; then the nodes must agree as
`convergence` says, on the mean where it is conserved, and both ends of every edge must hold the
same. 4. The run is said to have two rounds more: everybody must come to its end and leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.engine.node import Stage
from edgegossip.types import ConfigError, EdgegossipError, Vec
from lab.sim import checkers, convergence, faults, naming, trace
from lab.sim.checkers import Violation
from lab.sim.convergence import MORE, Averages, ConvergenceCheck, compensates, talking
from lab.sim.disk import Disk
from lab.sim.faults import EVERY_KIND, Fault
from lab.sim.network import FIRST_S, NOTICE_S
from lab.sim.node import Node
from lab.sim.schedule import ROUND_S, Schedule, of, unfit
from lab.sim.world import PATIENCE, PUSH_SUM, World

SLICES = 100  # half periods of a flapping link, at most
LAST_ROUNDS = 2  # after all has been looked at, the run ends
DIES_LATE = 0.3  # share of the schedules in which somebody dies in them
START_S = 0.3  # nodes start within
LONGEST_JOIN_S = PATIENCE.gone_s + PATIENCE.return_s + PATIENCE.announce_s + FIRST_S[1]
GIVEN_UP = 0.7  # share of the schedules in which nobody waits for a late one
LOOK_S = 0.1  # between two looks at whether everybody knows who is there
QUIET_ROUNDS = 3, 8  # at least and at most: as many as mixing takes
MIXED = 3  # rounds after which as much of the spread may be left as this, which the matrices promise:
PROMISED = 0.9, 0.4  # the other under push-sum, whose bound is twice as wide
AVERAGED_ROUNDS = 8  # where it is means over time that must agree
MORE_ROUNDS = 4, 8, 16, *[20] * 24  # for algorithms that take longer
CATCH_UP_ROUNDS = 60  # of a deadline each, that catching up may take


class FaultInjector:
    """Puts every fault of a schedule on the world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._absent: dict[int, int] = {}  # by node: faults that keep it away now
        for fault in world.schedule.faults:
            begin = getattr(self, "_" + fault.kind.replace("-", "_"), None) or self._of_scope(fault)
            world.clock.at(fault.start, self._begin, fault, begin)

    def late(self) -> frozenset[int]:
        """Return the nodes that are not there at the start."""
        return frozenset(f.nodes[0] for f in self._world.schedule.faults if f.kind == "late-join")

    def may_come(self, i: int) -> bool:
        """Tell whether no fault keeps a node away."""
        return not self._absent.get(i)

    def _begin(self, fault: Fault, begin) -> None:  # type: ignore[no-untyped-def]
        world = self._world
        world.trace.event(world.clock.now, -1, trace.FAULT, fault.end)
        world.trace.line(world.clock.now, None, f"fault: {fault} ({EVERY_KIND[fault.kind].help})")
        begin(fault)
        if fault.end > fault.start and fault.kind not in faults.ENDLESS:
            world.clock.at(fault.end, self._end, fault)

    def _end(self, fault: Fault) -> None:
        self._world.trace.line(self._world.clock.now, None, f"end of fault: {fault}")

    def _of_scope(self, fault: Fault):  # type: ignore[no-untyped-def]
        if fault.kind in faults.CRASHES:
            return self._crashing
        if fault.kind in faults.BYZANTINE:
            return self._lying
        return self._messages

    # -- messages and links

    def _messages(self, fault: Fault) -> None:
        """Overlapping faults of one kind: the last one's strength counts until its end, and then
        none."""
        setattr(self._world.network, fault.kind, fault.strength)
        self._world.clock.at(fault.end, setattr, self._world.network, fault.kind, 0.0)

    def _one_way_cut(self, fault: Fault) -> None:
        self._cut([(fault.nodes[0], fault.nodes[1])], fault)

    def _split(self, fault: Fault) -> None:
        side = set(fault.nodes)
        rest = [i for i in range(self._world.schedule.nodes) if i not in side]
        self._cut([pair for a in side for b in rest for pair in ((a, b), (b, a))], fault)

    def _cut(self, pairs: list[tuple[int, int]], fault: Fault) -> None:
        self._set_cut(pairs, fault.kind, True)
        self._world.clock.at(fault.end, self._set_cut, pairs, fault.kind, False)

    def _set_cut(self, pairs: Iterable[tuple[int, int]], kind: str, cut: bool) -> None:
        world = self._world
        for a, b in pairs:
            (world.network.cut if cut else world.network.mend)(a, b, kind)
        world.detector.changed(pairs)

    def _flapping(self, fault: Fault) -> None:
        a, b = fault.nodes
        pairs, when = [(a, b), (b, a)], fault.start
        for k in range(SLICES):
            if when >= fault.end:
                break
            self._world.clock.at(when, self._set_cut, pairs, fault.kind, k % 2 == 0)
            when += fault.strength
        self._world.clock.at(fault.end, self._set_cut, pairs, fault.kind, False)

    def _slow_link(self, fault: Fault) -> None:
        a, b = fault.nodes
        self._world.network.slow(a, b, fault.strength)
        self._world.clock.at(fault.end, self._world.network.slow, a, b, 0.0)

    # -- nodes

    def _crashing(self, fault: Fault) -> None:
        world, (i,) = self._world, fault.nodes
        node = world.nodes[i]
        if not node.up:
            return
        if node.disk.crash("empty-disk" if fault.kind == "newcomer" else fault.kind, int(fault.strength)):
            world.seen[fault.kind] += 1
        world.restarts += 1
        self._go(i, f"{fault.kind}: the process is gone")
        world.clock.at(fault.end, self._come, i)

    def _late_join(self, fault: Fault) -> None:
        (i,) = fault.nodes
        self._absent[i] = self._absent.get(i, 0) + 1
        self._world.seen["late-join"] += 1
        self._world.restarts += 1
        self._world.clock.at(fault.end, self._come, i)

    def _other_model(self, fault: Fault) -> None:
        world = self._world
        world.seen[fault.kind] += 1
        self._set_model(fault.nodes, 1)
        world.clock.at(fault.end, self._right_model, fault.nodes)

    def _set_model(self, nodes: Iterable[int], model: int) -> None:
        """Processes with other data come in place of these, with nothing on their disks: what they
        held is of another model."""
        world = self._world
        for i in nodes:
            world.restarts += 1
            world.nodes[i].disk.crash("empty-disk", 1)
            self._go(i, "other-model: the process is gone")
            world.data_of[i] = model
        for i in nodes:
            self._come(i)

    def _right_model(self, nodes: Iterable[int]) -> None:
        self._set_model(nodes, 0)
        self._unfit_come()

    def _unfit_come(self) -> None:
        """Who ended because it did not fit others comes again."""
        world = self._world
        for i in sorted(world.unfit_ended):
            if not world.nodes[i].up and self.may_come(i):
                world.finishers.discard(i)
                world.boot(i, world.nodes[i].disk.read())
        world.unfit_ended.clear()

    def _leave(self, fault: Fault) -> None:
        (i,) = fault.nodes
        self._world.seen["leave"] += self._world.nodes[i].up
        self._go(i, "leaves", left=True)
        self._world.restarts += 1

    def evict(self, i: int) -> None:
        """Take a node out for good."""
        self._go(i, "is sent away")

    def _go(self, i: int, why: str, left: bool = False) -> None:
        self._absent[i] = self._absent.get(i, 0) + 1
        if self._world.nodes[i].up:
            self._world.kill(i, why, left)

    def _come(self, i: int) -> None:
        """Back, unless another fault keeps it away."""
        self._absent[i] -= 1
        if not self._absent[i]:
            self._world.boot(i, self._world.nodes[i].disk.read())

    def _pause(self, fault: Fault) -> None:
        world, (i,) = self._world, fault.nodes
        node = world.nodes[i]
        if not node.up or node.paused:
            return
        world.seen["pause"] += 1
        node.pause()
        world.detector.node_changed(i)
        world.clock.at(fault.end, self._unpause, i, node.process)

    def _unpause(self, i: int, process: int) -> None:
        world, node = self._world, self._world.nodes[i]
        if node.process != process or not node.paused:
            return
        world.trace.line(world.clock.now, i, "goes on")
        world.progress_s[i] = world.clock.now
        world.detector.node_changed(i)
        node.unpause()

    def _deaf(self, fault: Fault) -> None:
        self._world.network.deaf[fault.nodes[0]] += 1
        self._world.clock.at(fault.end, self._hears, fault.nodes[0])

    def _hears(self, i: int) -> None:
        self._world.network.deaf -= Counter([i])

    def _full_disk(self, fault: Fault) -> None:
        self._world.seen[fault.kind] += 1
        self._break_disk(fault, 1)
        self._world.clock.at(fault.end, self._break_disk, fault, -1)

    _failing_disk = _full_disk

    def _break_disk(self, fault: Fault, more: int) -> None:
        disk = self._world.nodes[fault.nodes[0]].disk
        disk.full += more * (fault.kind == "full-disk")
        disk.failing += more * (fault.kind == "failing-disk")

    def _slow_disk(self, fault: Fault) -> None:
        self._world.seen[fault.kind] += 1
        disk = self._world.nodes[fault.nodes[0]].disk
        disk.slow_s = fault.strength
        self._world.clock.at(fault.end, setattr, disk, "slow_s", 0.0)

    def _slow(self, fault: Fault) -> None:
        """Overlapping ones of one node: the last one's strength counts until its end."""
        (i,), world = fault.nodes, self._world
        world.seen[fault.kind] += 1
        world.slow[i] = fault.strength
        world.clock.at(fault.end, world.slow.__setitem__, i, 1.0)

    def _clock_jump(self, fault: Fault) -> None:
        world, (i,) = self._world, fault.nodes
        if world.nodes[i].up:
            world.seen["clock-jump"] += 1
        world.nodes[i].jump(fault.strength)

    def _lying(self, fault: Fault) -> None:
        (i,) = fault.nodes
        lies = self._world.liars.setdefault(i, [])
        self._world.lied.add(i)
        lies.append((fault.kind, fault.strength))
        self._world.clock.at(fault.end, self._honest_again, i, (fault.kind, fault.strength))

    def _honest_again(self, i: int, lie: tuple[str, float]) -> None:
        self._world.liars[i].remove(lie)
        if not self._world.liars[i]:
            del self._world.liars[i]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Says what became of one schedule."""

    schedule: Any  # a Schedule, or a ServerSchedule
    violations: tuple[Violation, ...]
    digest: str  # the same for the same seed and code, bit for bit
    seen: Mapping[str, int]  # what each kind of fault did
    events: int
    rounds: int  # that all nodes together finished; of a server run: updates that were used
    virtual_s: float
    spread: float | None  # of the models in the end, largest difference in any value; None after a violation
    model: Vec | None = None  # float32[n], the final one of a server run, which has no spread
    looked: frozenset[str] = frozenset()  # rules that had something to look at


def run_schedule(
    schedule: Schedule,
    *,
    make_disk: Callable[[], Disk] = Disk,
    say: trace.Say | None = None,
) -> Outcome:
    """Run a schedule to its end or to the first violation.

    Args:
        schedule: what happens, as `draw` makes it or by hand.
        make_disk: makes a node's disk: `Disk` or a variant of it.
        say: gets the trace, line by line; without it no lines are made.

    Raises:
        ConfigError: when the algorithm does not take the topology.
    """
    algorithm, s = naming.algorithm_of(schedule.algorithm), schedule
    if fault := unfit(s.algorithm, s.topology, s.codec, s.nodes, s.values):
        raise ConfigError(fault)
    world = World(schedule, algorithm, say, make_disk)
    run = _Run(world)
    with np.errstate(all="ignore"):
        run.play()
    outcome = Outcome(
        schedule,
        tuple(world.violations),
        world.trace.digest(),
        dict(world.seen),
        world.trace.events,
        sum(node.rounds_done for node in world.nodes),
        world.clock.now,
        None if world.violations else run.spread,
        looked=frozenset(world.looked),
    )
    world.end()
    return outcome


class _Run:
    """Goes through the phases of one run."""

    def __init__(self, world: World) -> None:
        self._world, self._injector = world, FaultInjector(world)
        self._deadline_s = world.schedule.deadline_s
        self._fresh: Counter[int] = Counter()  # rounds of each node since somebody was left out
        self._suspicions = -1
        self._whole = True  # whether everybody that is left can hear of everybody
        self._since: list[NDArray[np.float32]] = []  # the models from which the last phase starts
        self._from = 0  # its first full round
        self._more = 0
        self._averages = Averages()  # of the last phase
        self.spread = 0.0  # of the models in the end

    def play(self) -> None:
        world = self._world
        late = self._injector.late()
        start = of(world.schedule.seed, "start")
        if start.random() < GIVEN_UP:  # a late one was there before, and the others know that it is gone
            world.detector.lost |= late
        for node in world.nodes:
            when = START_S * start.random()
            if node.index not in late:
                world.clock.at(when, self._first_boot, node)
        world.clock.at(world.schedule.seconds, self._calm)
        world.clock.at(1.0, self._watch)
        try:
            world.clock.run(1e6)
        except EdgegossipError as error:
            world.violate("crash", None, f"{type(error).__name__}: {error}")
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            world.violate("crash", None, f"{type(error).__name__}: {error}")

    def _first_boot(self, node: Node) -> None:
        if self._injector.may_come(node.index) and node.index not in self._world.came:
            self._world.boot(node.index, None)

    # -- progress

    def _watch(self) -> None:
        """Every virtual second: whoever does not get on has stalled."""
        world = self._world
        jumps = sum(abs(f.strength) for f in world.schedule.faults if f.kind == "clock-jump" and f.strength < 0)
        patience = 3 * self._deadline_s + checkers.SLACK_S + jumps
        for node in world.nodes:
            if not node.up:
                continue
            world.look_at(node)
            if node.paused or node.idle or node.done or world.waits_for_ever(node):
                world.progress_s[node.index] = max(world.progress_s[node.index], world.clock.now - 1.0)
            world.looked.add("progress")
            waited = world.clock.now - world.progress_s[node.index]
            if waited <= patience + (0.0 if node.trains else LONGEST_JOIN_S):
                continue
            if not node.trains:
                text = f"{node.engine.stage.value} for {waited:.1f} s, though it could have begun"
                world.violate("progress", node.index, text)
                return
            missing = world.algorithm.waiting_for(node.state)
            text = f"no round done for {waited:.1f} s; waits for {', '.join(missing) or 'nobody'}"
            world.violate("progress", node.index, f"{text} in round {world.algorithm.round(node.state)}")
            return
        if world.quiet and not self._live() and not self._joining():
            world.trace.line(world.clock.now, None, "nobody is left")
            world.clock.stop()
            return
        if world.last_round is None and self._late():
            rounds = [world.algorithm.round(n.state) for n in self._live()]
            world.violate("catch-up", None, f"the nodes are still in rounds {rounds}")
            return
        world.clock.after(1.0, self._watch)

    def _late(self) -> bool:
        world = self._world
        return world.clock.now > world.schedule.seconds + NOTICE_S + CATCH_UP_ROUNDS * self._deadline_s

    # -- phases

    def _calm(self) -> None:
        """No faults any more, and no training."""
        world = self._world
        world.trace.line(world.clock.now, None, "all is well from now on")
        world.quiet = world.detector.prompt = True
        for i in sorted(world.lied):
            self._injector.evict(i)
        world.clock.after(LOOK_S, self._look_for_sync)

    def _look_for_sync(self) -> None:
        """Once everybody knows who is there, and is about as far as the others; at the latest when
        all must be known: where some were far ahead, a chain of neighbours may wait for one another
        for longer than a deadline. Not before a link that was slow has carried what queued at it:
        nothing overtakes that, so until then the link is as slow as it was, and a neighbour behind
        it is left out with good reason."""
        world = self._world
        if world.clock.now < world.network.through_s:
            world.clock.after(LOOK_S, self._look_for_sync)
            return
        rounds = [world.algorithm.round(n.state) for n in self._live()]
        uneven = len(rounds) > 1 and max(rounds) - min(rounds) > 1
        soon = world.clock.now < world.schedule.seconds + NOTICE_S + 0.5
        if self._joining() or ((world.detector.pending or uneven) and soon):
            world.clock.after(LOOK_S, self._look_for_sync)
            return
        if not self._live():
            world.clock.stop()
        self._whole = self._connected()
        world.on_round = self._after_round

    def _connected(self) -> bool:
        """Whether everybody that is left can hear of everybody."""
        live = self._live()
        ids = [n.index for n in live]
        return not live or convergence.connected(ids, talking(self._world, live), self._world.topology)

    def _live(self) -> list[Node]:
        return [n for n in self._world.nodes if n.trains]

    def _joining(self) -> bool:
        """Whether somebody is there who will begin soon."""
        return any(n.up and not n.trains and not self._world.waits_for_ever(n) for n in self._world.nodes)

    def _after_round(self, node: Node) -> None:
        """Once everybody is where the others are, the last phase begins: two periods of the
        topology of each node in which nobody was left out. In the first one everybody has waited
        for all whom it hears, in the second one for those who came late because of that: then
        nobody is more than a round behind what a neighbour waits for. Where old news of a neighbour
        will do for some rounds, it takes as many times longer until it is seen that newer ones are
        missing."""
        world = self._world
        if world.patient and self._whole and world.suspicions != self._suspicions:
            self._suspicions = world.suspicions
            self._fresh.clear()
        self._fresh[node.index] += 1
        live = self._live()
        whole_rounds = 2 * world.topology.period * (1 + int(naming.param_of(world.algorithm, "staleness", 0)))
        if self._joining() or any(self._fresh[n.index] < whole_rounds for n in live):
            return
        self._whole = self._connected()  # somebody may have begun since
        rounds = [world.algorithm.round(n.state) for n in live]
        if max(rounds) - min(rounds) > self._apart() and self._whole and not world.algorithm.asynchronous:
            return
        world.on_round = self._average if compensates(world) else None
        world.settled = self._whole
        world.open_before = {n.index for n in live if n.engine.stage is Stage.EXCHANGING}
        self._since = [x for n in live for x in world.models[n.index]]
        self._from = max(rounds) + 1
        world.looked.add("catch-up")
        world.last_round = max(rounds) + self._quiet_rounds([n.index for n in live])
        world.trace.line(world.clock.now, None, f"everybody is in round {min(rounds)} to {max(rounds)}")
        self._await_rest()

    def _quiet_rounds(self, live: list[int]) -> int:
        """Of which the last two do not count: nodes are not all in the same round."""
        (least, most), manner = QUIET_ROUNDS, self._ending().manner()
        if manner in ("averages", "bounded"):
            return AVERAGED_ROUNDS if manner == "averages" else least
        share = PROMISED[manner == "mixes" and self._world.name in PUSH_SUM]
        mixed = convergence.rounds_to_mix(self._world.topology, self._from, tuple(live), (MIXED, most - 2), share)
        return max(least, mixed + 2)

    def _ending(self) -> ConvergenceCheck:
        return ConvergenceCheck(self._world, self._live(), self._since, self._from, self._whole, self._averages)

    def _average(self, node: Node) -> None:
        self._averages.add(node.index, self._world.models[node.index][-1])

    def _apart(self) -> float:
        """How far two nodes may be from each other when all is well: a period of the topology, in
        which they meet, and the staleness on every hop between them, as long as that leaves nobody
        behind; with a quorum whatever a node may be behind before it is told."""
        world, n = self._world, self._world.schedule.nodes
        hops = (n - 1) * (world.topology.period + naming.param_of(world.algorithm, "staleness", 0))
        ahead = naming.param_of(world.algorithm, "max_ahead", 0) or hops + n
        return min(hops, ahead) if world.patient else hops + ahead

    def _await_rest(self) -> None:
        """Run until all rest and nothing is on its way any more."""
        world = self._world
        assert world.last_round is not None
        restless = [n.index for n in self._live() if world.algorithm.round(n.state) > world.last_round + 2]
        if restless:
            world.violate("end", restless[0], f"goes on beyond round {world.last_round}, the last one")
        elif all(n.idle for n in self._live()):
            world.clock.after(self._deadline_s + 1.0, self._conclude)
        else:
            world.clock.after(0.5, self._await_rest)

    def _conclude(self) -> None:
        world, live = self._world, self._live()
        self._whole = self._whole and self._connected()
        end = self._ending()
        wanted = end.consensus()
        if wanted == MORE and self._more < len(MORE_ROUNDS):
            assert world.last_round is not None
            world.last_round += MORE_ROUNDS[self._more]
            self._more += 1
            for node in live:
                world.progress_s[node.index] = world.clock.now
                node.wake()
            self._await_rest()
            return
        if self._whole and len(live) > 1:
            world.check("consensus", None, end.still_apart() if wanted == MORE else wanted)
        if not world.violations:
            end.both_ends()
        if not world.violations:
            end.mean()
        if not world.violations:
            world.witness.conclude([n.index for n in live])
        if not world.violations:
            self.spread = float(convergence.spread([world.algorithm.model(n.state) for n in live]))
            self._last_rounds(live)

    def _last_rounds(self, live: list[Node]) -> None:
        """The run ends as a recipe's does: after a round that all of them know. Whoever has done it
        leaves. Now and then one dies just then, and comes back to a run that is about to be over,
        or is."""
        world, rng = self._world, of(self._world.schedule.seed, "end")
        rounds = max([world.algorithm.round(n.state) for n in live], default=0) + LAST_ROUNDS
        world.trace.line(world.clock.now, None, f"the run has {rounds} rounds")
        world.rounds, world.run_over, world.settled, world.on_round = rounds, True, False, None
        dies = live[int(rng.random() * len(live))] if live and rng.random() < DIES_LATE else None
        if dies is not None:
            world.clock.after(rng.random() * LAST_ROUNDS * ROUND_S, self._die_late, dies, rng.random())
        for node in live:
            node.engine.rounds = rounds
            world.progress_s[node.index] = world.clock.now
        for node in live:
            node.wake()
        most_s = LAST_ROUNDS * 3 * self._deadline_s + checkers.SLACK_S
        if dies is not None:
            most_s += LONGEST_JOIN_S + LAST_ROUNDS * 3 * self._deadline_s
        self._await_end(live, world.clock.now + most_s)

    def _die_late(self, node: Node, away_s: float) -> None:
        world, i = self._world, node.index
        if not node.up:
            return
        world.restarts += 1
        world.finishers.discard(i)
        world.kill(i, "dies in the last rounds")
        world.clock.after(away_s, self._come_late, i)

    def _come_late(self, i: int) -> None:
        self._world.boot(i, self._world.nodes[i].disk.read())

    def _await_end(self, live: list[Node], until_s: float) -> None:
        world = self._world
        left = [n.index for n in live if n.index not in world.finishers]
        if left and world.clock.now > until_s:
            world.violate("end", left[0], "has not come to the end of the run")
        elif left or any(n.up for n in live):
            world.clock.after(0.2, self._await_end, live, until_s)
        else:
            world.trace.line(world.clock.now, None, "the end")
            world.clock.stop()
