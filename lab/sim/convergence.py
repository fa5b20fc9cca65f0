"""What the nodes must come to once all is well: how close, and to what; and what must be true
when nothing is on its way any more.

A lossless synchronous averaging contracts the nodes' spread (largest minus smallest value of a
coordinate) by the ergodicity coefficient of the product P of the mixing matrices in force,
max_ik 1/2 sum_j |P_ij - P_kj| (Seneta, "Non-negative matrices and Markov chains", 1981, section
3.1): a bound that needs no constant, from the topology alone. Compressed difference coding
converges too, more slowly: there the spread must fall below a share of what it was, within a
number of rounds. Plain compressed models need not converge at all, only stay near.

With error compensation no single model need converge, but what a node says is, over time, what
it means: sum_t C_t = sum_t v_t + e_0 - e_T, with e bounded. So (W - I) (mean over T rounds of C)
= (x_T - x_0) / (eta T) goes to zero, and the means over time of the models agree to O(1 / T)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgegossip.gossip.base import Topology
from edgegossip.types import Vec
from lab.sim import checkers, ledger, naming
from lab.sim.node import Node
from lab.sim.world import World

LEFT = 0.01  # of the spread after the last rounds, as far as the matrices promise
Manner = Literal["mixes", "shrinks", "averages", "bounded", "equal"]
Matrix = NDArray[np.float64]
MIXING = (
    "dpsgd",
    "deep-squeeze",
    "choco-sgd",
    "sgp",
    "sparse-push",
    "quant-sgp",
    "gt-dsgd",
    "k-gt",
    "motef",
)  # by W in each round, if lossless
FLOOR = 2e-5  # of the largest value: float32 does not agree better
SHRINK = 0.5  # of the spread must be gone where no bound is known
AVERAGED = 0.05  # of the largest value: what errors that are still kept may keep means over time apart
COMPENSATED = ("deep-squeeze", "sparse-push")
NEAR = 4.0  # times the spread and the largest value, where nodes need only stay near
MORE = "more"  # not yet close enough, but it may come


class Averages:
    """Keeps the mean over time of each node's model."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, NDArray[np.float64]]] = {}

    def add(self, node: int, model: NDArray[np.floating]) -> None:
        """Take in a node's model at the end of a round, float[n]."""
        count, total = self._sums.get(node, (0, np.zeros(len(model))))
        self._sums[node] = count + 1, total + model

    def spread(self) -> float:
        """Return how far the nodes' means are apart, see `spread`."""
        return spread([total / count for count, total in self._sums.values()])


def spread(models: Sequence[NDArray[np.floating]]) -> float:
    """Return the maximum over coordinates of largest minus smallest; 0 for fewer than two."""
    if len(models) < 2:
        return 0.0
    stack = np.asarray(models, np.float64)
    return float((stack.max(axis=0) - stack.min(axis=0)).max())


def effective(topology: Topology, round: int, talks: NDArray[np.bool_], eta: float, column: bool) -> Matrix:
    """Return W of one round, float64[n, n], where j's message reaches i only if talks[i, j]:
    what is not handed over stays, with the receiver (rows sum to 1) or with the sender
    (`column`: columns do)."""
    w = np.where(talks, topology.matrix(round), 0.0) * eta
    np.fill_diagonal(w, 0.0)
    np.fill_diagonal(w, 1.0 - w.sum(axis=0 if column else 1))
    return w


def contraction(
    topology: Topology,
    rounds: range,
    live: Sequence[int],
    talks: NDArray[np.bool_],
    eta: float,
    weights: NDArray[np.float64] | None,
) -> float:
    """Return the factor by which the spread of the live nodes' models falls over these rounds,
    at least. `weights`: push-sum weights, float64[n]; the ratio mass / weight then mixes by the
    rows P_ij u_j / sum_j P_ij u_j."""
    product = np.eye(topology.n)
    for r in rounds:
        product = effective(topology, r, talks, eta, weights is not None) @ product
    p = product[np.ix_(live, live)]
    if weights is not None:
        p = p * weights[list(live)]
    p = p / p.sum(axis=1, keepdims=True)
    return float(np.abs(p[:, None, :] - p[None, :, :]).sum(axis=2).max() / 2.0)


def rounds_to_mix(topology: Topology, first: int, live: tuple[int, ...], bounds: tuple[int, int], share: float) -> int:
    """Return after how many rounds from `first` on the matrices alone promise that no more than
    LEFT of the spread is left, or, after bounds[0] of them, no more than `share`; bounds[1]
    where it takes longer."""
    return _rounds_to_mix(topology, first % topology.period, live, bounds, share)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def _rounds_to_mix(topology: Any, first: int, live: tuple[int, ...], bounds: tuple[int, int], share: float) -> int:
    talks, (least, most) = np.ones((topology.n, topology.n), np.bool_), bounds
    for k in range(1, most):
        left = contraction(topology, range(first, first + k), live, talks, 1.0, None)
        if left <= LEFT or (k >= least and left <= share):
            return k
    return most


def connected(live: Sequence[int], talks: NDArray[np.bool_], topology: Topology) -> bool:
    """Tell whether every live node's model can get to every other one."""
    links = np.logical_or.reduce([topology.matrix(r) > 0 for r in range(topology.period)]) & talks
    onward = {j: [i for i in live if links[i, j]] for j in live}
    return all(len(_reached(onward, start)) == len(live) for start in live)


def _reached(onward: Mapping[int, Sequence[int]], start: int) -> set[int]:
    found, todo = {start}, [start]
    while todo:
        new = [i for i in onward[todo.pop()] if i not in found]
        found.update(new)
        todo += new
    return found


@dataclass(frozen=True, slots=True)
class ConvergenceCheck:
    """Compares the nodes that are left with where they started once all was well."""

    world: World
    live: Sequence[Node]
    since: Sequence[Vec]  # models that counted then
    first: int  # first round that all of them went through after that
    whole: bool  # whether everybody that is left can hear of everybody
    averages: Averages  # of the last phase

    def manner(self) -> Manner:
        """Say what may be demanded of the algorithm with this codec."""
        world, algorithm = self.world, self.world.algorithm
        name = world.name
        exact = world.schedule.codec.name == "fp32"
        if name == "parallel-sgd":
            return "equal"
        if world.robust:
            return "bounded"
        if naming.OUTER in world.schedule.algorithm.name:
            return "shrinks" if exact else "bounded"
        staleness, quorum = naming.param_of(algorithm, "staleness", 0), naming.param_of(algorithm, "quorum", 1.0)
        if exact and not staleness and quorum >= 1.0 and name in MIXING:
            return "mixes"
        if exact or any(world.algorithm.audit(n.state).public for n in self.live):
            return "shrinks"
        return "averages" if compensates(world) else "bounded"

    def consensus(self) -> str | None:
        """Say what is wrong; MORE: not yet close enough, but it may come."""
        world = self.world
        live = self.live
        if len(live) < 2 or not self.whole:
            return None
        manner = self.manner()
        # Those that must be equal are so but for what each remembers of the rounds before.
        shown = ledger.innermost if manner == "equal" else lambda algorithm, state: algorithm.model(state)
        models = [shown(world.algorithm, n.state) for n in live]
        before, now = spread(self.since), spread(models)
        size = float(np.abs(np.asarray([*models, *self.since], np.float64)).max())
        floor = FLOOR * max(size, 1.0)
        if manner == "equal":
            whole = len(live) == world.schedule.nodes and not world.lied  # a node that is gone may have told some only
            return f"models that must be equal differ by {now:.4g}" if whole and now > floor else None
        if manner == "shrinks":
            return MORE if now > SHRINK * before + floor else None
        if manner == "averages":
            return MORE if self.averages.spread() > SHRINK * before + AVERAGED * max(size, 1.0) else None
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
        factor = contraction(world.topology, rounds, ids, talking(world, live), eta, weights)
        bound = factor * (2.0 if weights is not None else 1.0) * before + floor
        if now <= bound:
            return None
        return (
            f"the spread is {now:.4g} after {len(rounds)} rounds from {before:.4g}; the topology promises {bound:.4g}"
        )

    def still_apart(self) -> str:
        """Say how far the models are apart after the last rounds that they were given."""
        now = spread([self.world.algorithm.model(n.state) for n in self.live])
        return f"the spread is {now:.4g}, and was {spread(self.since):.4g} when all was well"

    def both_ends(self) -> None:
        """Check that both ends of every edge hold the same: what was handed over, and replicas."""
        world, live, talks = self.world, self.live, talking(self.world, self.live)
        audits = [world.audit(i) for i in range(world.schedule.nodes)]
        reach = {n.index: {j for j in range(world.schedule.nodes) if talks[n.index, j]} for n in live}
        if world.algorithm.asynchronous:
            return
        if any(audit.replicas for audit in audits if audit is not None):
            world.check("replicas", None, checkers.replica_fault(audits, reach))
        if any(audit.sent for audit in audits if audit is not None):
            edges = [(j, i) for j, i in world.edges if talks[i, j]]
            world.check("edges", None, ledger.edge_fault(audits, edges))

    def mean(self) -> None:
        """Check that mass over weight of everybody is conserved, in push-sum whatever was lost;
        the plain mean if nothing was."""
        world, live = self.world, self.live
        n = world.schedule.nodes
        if len(live) < n or world.lied:
            return
        audits = [world.algorithm.audit(x.state) for x in live]
        models = np.asarray([ledger.innermost(world.algorithm, x.state) for x in live], np.float64)
        accounts, moved = world.ledger.accounts, world.restarts or world.adoptions
        if audits[0].finished:
            if moved:
                return
            mean, found = np.sum([a.mass for a in accounts], axis=0) / n, ledger.exchanged(audits) / n
        elif audits[0].mass is not None:
            mean = np.sum([a.mass for a in accounts], axis=0) / sum(a.weight for a in accounts)
            found = np.sum([a.mass for a in audits if a.mass is not None], axis=0) / sum(a.weight for a in audits)
        elif self._keeps_mean(bool(audits[0].public)) and not (moved or world.left_out()):
            mean, found = np.sum([a.mass for a in accounts], axis=0) / n, models.mean(axis=0)
        else:
            return
        off, size = float(np.abs(mean - found).max()), max(1.0, float(np.abs(models).max()))
        text = f"they agree on a value {off:.4g} away from the mean"
        world.check("mean", None, None if off <= FLOOR * size else text)

    def _keeps_mean(self, replicates: bool) -> bool:
        """Where rows are weighed by the receiver and nothing is lost, the plain mean moves by local
        updates only; old news count once at one end and again at the other, what a codec loses may
        be lost for good, momentum within an algorithm adds to updates. A full state may bring a
        later round's news, which its sender has not weighed against the receiver's: that of a model
        that nobody trains has none unless the sender was a round ahead. Corrections of gradient
        tracking sum to zero, but times a learning rate only where all have the same. Where
        exchanges overlap, what waits for one is in the account already."""
        schedule, algorithm = self.world.schedule, self.world.algorithm
        if algorithm.listens or self.world.robust or (self.world.uneven and algorithm.bodies > 1):
            return False
        plain = not naming.param_of(algorithm, "staleness", 0) and not naming.param_of(algorithm, "momentum", 0)
        news = self.world.states_ahead if schedule.workload == "consensus" else self.world.states
        return schedule.codec.name == "fp32" and plain and not (replicates and news)


def compensates(world: World) -> bool:
    """Tell whether what compression loses is said later, to the same neighbours, who wait for
    it."""
    patient = naming.param_of(world.algorithm, "quorum", 1.0) >= 1.0
    prompt = patient and not naming.param_of(world.algorithm, "staleness", 0) and world.topology.period == 1
    return world.name in COMPENSATED and world.schedule.codec.name != "fp32" and prompt


def talking(world: World, live: Sequence[Node]) -> NDArray[np.bool_]:
    """Return bool[n, n]: talks[i, j] says that j's messages get to i, if it sends any."""
    n, there = world.schedule.nodes, {x.index for x in live}
    detector, talks = world.detector, np.zeros((n, n), np.bool_)
    for i in there:
        talks[i, i] = True
        talks[i, [j for j in detector.peers[i] if j in there and detector.connected(i, j)]] = True
    return talks
