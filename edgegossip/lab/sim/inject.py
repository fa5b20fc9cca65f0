"""Makes the faults of a schedule happen: each begins and ends at its time, whatever others do
meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from edgegossip.lab.sim import faults, trace
from edgegossip.lab.sim.faults import KINDS, Fault
from edgegossip.lab.sim.world import World

SLICES = 100  # half periods of a flapping link, at most


class Injector:
    """Puts every fault on the world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._absent: dict[int, int] = {}  # by node: faults that keep it away now
        for fault in world.schedule.faults:
            begin = getattr(self, "_" + fault.kind.replace("-", "_"), None) or self._of_scope(fault)
            world.clock.at(fault.start, self._begin, fault, begin)

    def late(self) -> frozenset[int]:
        """Nodes that are not there at the start."""
        return frozenset(f.nodes[0] for f in self._world.schedule.faults if f.kind == "late-join")

    def may_come(self, i: int) -> bool:
        """Whether no fault keeps a node away."""
        return not self._absent.get(i)

    def _begin(self, fault: Fault, begin) -> None:  # type: ignore[no-untyped-def]
        world = self._world
        world.trace.event(world.clock.now, -1, trace.FAULT, fault.end)
        world.trace.line(world.clock.now, None, f"fault: {fault} ({KINDS[fault.kind].help})")
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
    # ----------------------------------------------------------------------------------

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
        world.presence.changed(pairs)

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
    # ----------------------------------------------------------------------------------------------

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
            if world.nodes[i].up:
                self._go(i, "other-model: the process is gone")
            else:
                self._absent[i] = self._absent.get(i, 0) + 1
            world.data_of[i] = model
        for i in nodes:
            self._come(i)

    def _right_model(self, nodes: Iterable[int]) -> None:
        """Who ended because of these comes again, too."""
        world = self._world
        self._set_model(nodes, 0)
        for i in sorted(world.unfit_ended):
            if not world.nodes[i].up and self.may_come(i):
                world.finishers.discard(i)
                world.boot(i, world.nodes[i].disk.read())
        world.unfit_ended.clear()

    def _leave(self, fault: Fault) -> None:
        (i,) = fault.nodes
        if self._world.nodes[i].up:
            self._world.seen["leave"] += 1
            self._go(i, "leaves", left=True)
        else:
            self._absent[i] = self._absent.get(i, 0) + 1
        self._world.restarts += 1

    def expel(self, i: int) -> None:
        """Take a node out for good."""
        if self._world.nodes[i].up:
            self._go(i, "is sent away")
        else:
            self._absent[i] = self._absent.get(i, 0) + 1

    def _go(self, i: int, why: str, left: bool = False) -> None:
        self._absent[i] = self._absent.get(i, 0) + 1
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
        world.presence.node_changed(i)
        world.clock.at(fault.end, self._unpause, i, node.process)

    def _unpause(self, i: int, process: int) -> None:
        world, node = self._world, self._world.nodes[i]
        if node.process != process or not node.paused:
            return
        world.trace.line(world.clock.now, i, "goes on")
        world.progress_s[i] = world.clock.now
        world.presence.node_changed(i)
        node.unpause()

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
