"""What must be true when a schedule is over and nothing is on its way any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgegossip.lab.sim import agreement, checkers, ledger, naming
from edgegossip.lab.sim.node import Node
from edgegossip.lab.sim.world import World
from edgegossip.types import Vec

MIXING = ("dpsgd", "deep-squeeze", "choco-sgd", "sgp", "sparse-push", "quant-sgp")  # by W in each round, if lossless
FLOOR = 2e-5  # of the largest value: float32 does not agree better
SHRINK = 0.5  # of the spread must be gone where no bound is known
AVERAGED = 0.05  # of the largest value: what errors that are still kept may keep means over time apart
COMPENSATED = ("deep-squeeze", "sparse-push")
NEAR = 4.0  # times the spread and the largest value, where nodes need only stay near
MORE = "more"  # not yet close enough, but it may come


@dataclass(frozen=True, slots=True)
class Ending:
    """The nodes that are left, and from where they started once all was well."""

    world: World
    live: Sequence[Node]
    since: Sequence[Vec]  # models that counted then
    first: int  # first round that all of them went through after that
    whole: bool  # whether everybody that is left can hear of everybody

    def manner(self) -> agreement.Manner:
        """What may be asked of the algorithm with this codec."""
        world, algorithm = self.world, self.world.algorithm
        name = world.name
        exact = world.schedule.codec.name == "fp32"
        if name == "parallel-sgd":
            return "equal"
        staleness, quorum = naming.param_of(algorithm, "staleness", 0), naming.param_of(algorithm, "quorum", 1.0)
        if exact and not staleness and quorum >= 1.0 and name in MIXING:
            return "mixes"
        if exact or any(world.algorithm.audit(n.state).public for n in self.live):
            return "shrinks"
        return "averages" if compensates(world) else "bounded"

    def consensus(self) -> str | None:
        """What is wrong; MORE: not yet close enough, but it may come."""
        world = self.world
        live = self.live
        if len(live) < 2 or not self.whole:
            return None
        models = [world.algorithm.model(n.state) for n in live]
        before, now = agreement.spread(self.since), agreement.spread(models)
        size = float(np.abs(np.asarray([*models, *self.since], np.float64)).max())
        manner, floor = self.manner(), FLOOR * max(size, 1.0)
        if manner == "equal":
            whole = len(live) == world.schedule.nodes and not world.lied  # a node that is gone may have told some only
            return f"models that must be equal differ by {now:.4g}" if whole and now > floor else None
        if manner == "shrinks":
            return MORE if now > SHRINK * before + floor else None
        if manner == "averages":
            return MORE if world.averages.spread() > SHRINK * before + AVERAGED * max(size, 1.0) else None
        if manner == "bounded":
            near = NEAR * (before + size)
            return None if now <= near else f"the spread grew from {before:.4g} to {now:.4g}"
        assert world.last_round is not None
        weights, ids = None, [n.index for n in live]
        audits = [world.algorithm.audit(n.state) for n in live]
        if audits[0].mass is not None:
            weights = np.zeros(world.schedule.nodes)
            weights[ids] = [a.weight for a in audits]
        eta = naming.param_of(world.algorithm, "eta", 0.0) or 1.0
        rounds = range(self.first, world.last_round - 1)
        factor = agreement.contraction(world.topology, rounds, ids, talking(world, live), eta, weights)
        bound = factor * (2.0 if weights is not None else 1.0) * before + floor
        if now <= bound:
            return None
        return (
            f"the spread is {now:.4g} after {len(rounds)} rounds from {before:.4g}; the topology promises {bound:.4g}"
        )

    def still_apart(self) -> str:
        now = agreement.spread([self.world.algorithm.model(n.state) for n in self.live])
        return f"the spread is {now:.4g}, and was {agreement.spread(self.since):.4g} when all was well"

    def both_ends(self) -> None:
        world, live, talks = self.world, self.live, talking(self.world, self.live)
        audits = [world.audit(i) for i in range(world.schedule.nodes)]
        reach = {n.index: {j for j in range(world.schedule.nodes) if talks[n.index, j]} for n in live}
        if world.algorithm.asynchronous:
            return
        if fault := checkers.replica_fault(audits, reach):
            world.violate("replicas", None, fault)
        elif fault := ledger.edge_fault(audits, [(j, i) for j, i in world.edges if talks[i, j]]):
            world.violate("edges", None, fault)

    def mean(self) -> None:
        """Mass over weight of everybody is conserved, in push-sum whatever was lost; the plain mean
        if nothing was."""
        world, live = self.world, self.live
        n = world.schedule.nodes
        if len(live) < n or world.lied:
            return
        audits = [world.algorithm.audit(x.state) for x in live]
        models = np.asarray([world.algorithm.model(x.state) for x in live], np.float64)
        accounts, moved = world.ledger.accounts, world.restarts or world.adoptions
        if audits[0].finished:
            if moved:
                return
            mean, found = np.sum([a.mass for a in accounts], axis=0) / n, ledger.exchanged(audits) / n
        elif audits[0].mass is not None:
            mean = np.sum([a.mass for a in accounts], axis=0) / sum(a.weight for a in accounts)
            found = np.sum([a.mass for a in audits if a.mass is not None], axis=0) / sum(a.weight for a in audits)
        elif self._keeps_mean(bool(audits[0].public)) and not (moved or self._left_out()):
            mean, found = np.sum([a.mass for a in accounts], axis=0) / n, models.mean(axis=0)
        else:
            return
        off, size = float(np.abs(mean - found).max()), max(1.0, float(np.abs(models).max()))
        if not off <= FLOOR * size:
            world.violate("mean", None, f"they agree on a value {off:.4g} away from the mean")

    def _left_out(self) -> bool:
        """Whether anybody mixed without a neighbour that mixed with it."""
        return bool(self.world.departures or self.world.suspicions or self.world.apart)

    def _keeps_mean(self, replicates: bool) -> bool:
        """Where rows are weighed by the receiver and nothing is lost, the plain mean moves by local
        updates only; old news count once at one end and again at the other, what a codec loses may
        be lost for good, momentum within an algorithm adds to updates. A full state may bring a
        later round's news, which its sender has not weighed against the receiver's: that of a model
        that nobody trains has none unless the sender was a round ahead."""
        schedule, algorithm = self.world.schedule, self.world.algorithm
        plain = not naming.param_of(algorithm, "staleness", 0) and not naming.param_of(algorithm, "momentum", 0)
        news = self.world.states_ahead if schedule.workload == "consensus" else self.world.states
        return schedule.codec.name == "fp32" and plain and not (replicates and news)


def compensates(world: World) -> bool:
    """Whether what compression loses is said later, to the same neighbours, who wait for it."""
    patient = naming.param_of(world.algorithm, "quorum", 1.0) >= 1.0
    prompt = patient and not naming.param_of(world.algorithm, "staleness", 0) and world.topology.period == 1
    return world.name in COMPENSATED and world.schedule.codec.name != "fp32" and prompt


def talking(world: World, live: Sequence[Node]) -> NDArray[np.bool_]:
    """bool[n, n]: talks[i, j] says that j's messages get to i, if it sends any."""
    n, there = world.schedule.nodes, {x.index for x in live}
    presence, talks = world.presence, np.zeros((n, n), np.bool_)
    for i in there:
        talks[i, i] = True
        talks[i, [j for j in presence.peers[i] if j in there and presence.connected(i, j)]] = True
    return talks
