"""A second set of books: what each node's mass and weight must be, kept apart from the
algorithms.

Of a push-sum state, own + handed out - taken in (mass + sum of `sent` - sum of `seen`, of the
audit) changes by the node's own local updates only, whatever the network does. A restart takes
it back to what it was at the checkpoint. Two things change it otherwise: adopting another's
model, and a neighbour's disk that was lost: then both ends close the account of the edge, what
had come in stays (+ seen) and what had gone out is gone (- sent).

Who adopts another's model of push-sum has it times the weight that it had.

Pairwise exchanges keep no totals: there only the sum over all nodes is known, less the halves of
exchanges that one end has done and the other not yet (`exchanged`), and only while no node has
gone back to an older state. Whoever asked must do its half for the answer to that, and for no
other.

Of momentum and of an outer optimiser the memory is kept here as well, from local updates and from
the models that rounds began with and came to, by the papers' equations. So it is known what has to
get to the algorithm inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Audit, GossipAlgorithm, Topology
from edgegossip.types import LocalUpdate, Round, Vec, replace
from lab.sim.disk import Saved

Totals = Mapping[tuple[int, int], tuple[NDArray[np.float64], float]]
TOLERANCE = 1e-9  # of the largest term
OUTER_TOLERANCE = 1e-4  # of the largest value: float32's, over some rounds
STEP_TOLERANCE = 1e-5  # the same, of one step with momentum
FULL, LEAST = 0.5, 0.1  # of the long run's push-sum weight, and at least, from which on a local update counts in full


@dataclass
class Account:
    """Holds what one node's books must show."""

    mass: NDArray[np.float64]  # float64[n]
    weight: float
    incarnations: list[int]  # by peer: which of its incarnations our totals belong to
    # By peer: session and number of the exchange that is open. What is asked right after a
    # checkpoint is in that: checkpoints of one state share it with the account until the next.
    asked: dict[int, tuple[float, int]] = field(default_factory=dict)
    saved: Any = None  # the state that was saved last
    # The outer optimiser's, or the momentum and its largest term; empty: nothing; None: not known.
    memory: tuple[NDArray[np.float64], ...] | None = ()
    shown: Vec | None = None  # float32[n], to training, at the start of this round
    step: LocalUpdate | None = None  # of this round, where there is momentum
    round: Round = 0

    def copy(self) -> Account:
        """Return a copy that later entries of this one leave alone."""
        return replace(self, incarnations=list(self.incarnations))


@lru_cache(maxsize=1024)
def full_weights(topology: Topology) -> list[float]:
    """Return by node from which push-sum weight on a local update counts in full: of the weights in
    the long run, the eigenvector of a period's matrices to the eigenvalue 1, whose sum is n."""
    n, period = topology.n, range(topology.period)
    matrices = [topology.matrix(r) for r in period]
    values, vectors = np.linalg.eig(reduce(lambda product, w: w @ product, matrices, np.eye(n)))
    u = np.real(vectors[:, np.argmin(np.abs(values - 1.0))])
    rounds = accumulate(matrices, lambda u, w: w @ u, initial=n * u / u.sum())
    return [round(max(LEAST, FULL * min(1.0, *map(float, w))), 6) for w in zip(*rounds, strict=True)]


class Ledger:
    """Keeps the accounts of all nodes. Methods return what is wrong, or None."""

    def __init__(
        self, nodes: int, values: int, algorithm: GossipAlgorithm[Any] | None = None, topology: Topology | None = None
    ) -> None:
        self._values, self._algorithm = values, algorithm
        self._full = [1.0] * nodes if topology is None else full_weights(topology)  # type: ignore[arg-type]
        # Around an outer optimiser whose exchanges overlap with computing there is one more layer.
        self._overlaps = hasattr(algorithm, "merge")
        outer = getattr(algorithm.algorithm if self._overlaps else algorithm, "optimizer", None)  # type: ignore[union-attr]
        self._outer = None if outer is None or outer.fragments > 1 else outer
        self._wraps = hasattr(algorithm, "algorithm") and not self._overlaps
        self._scale = float(getattr(algorithm, "scale", 1.0))
        self._momentum: Any = algorithm if hasattr(algorithm, "factor") else None
        self._directions: dict[tuple[int, Round], NDArray[np.float64]] = {}  # by node
        self._corrections = np.zeros((nodes, values))  # of each node's last round
        # [peer][node]: until then messages of its gone incarnations come
        self._gone_s = [[0.0] * nodes for _ in range(nodes)]
        self._incarnations = [0] * nodes  # how often each has lost its disk
        self.disks_lost = False  # whether any has
        self.accounts = [Account(np.zeros(values), 0.0, [0] * nodes) for _ in range(nodes)]

    def booted(
        self, node: int, saved: Saved | None, start: Vec, again: bool, listens_s: float, arrives_s: Sequence[float]
    ) -> None:
        """Open the account of a process that started from a checkpoint, or from model `start`
        with weight 1. It gets what arrives after `listens_s`, and the last message of its node's
        earlier processes arrives at `arrives_s`, by receiver. A Hello that comes that late may
        open an account with an incarnation of the peer that is gone already; it is closed when
        the peer's present incarnation is heard of."""
        if saved is not None and isinstance(saved.notes, Account):
            self.accounts[node] = saved.notes.copy()
            return
        if again:
            self._incarnations[node] += 1
            self.disks_lost = True
            self._gone_s[node] = list(arrives_s)
        incarnations = [
            0 if self._gone_s[peer][node] > listens_s else known for peer, known in enumerate(self._incarnations)
        ]
        self.accounts[node] = Account(start.astype(np.float64), 1.0, incarnations)

    def updated(self, node: int, delta: NDArray[np.floating], mixed: float = 1.0) -> None:
        """Enter a local update. `mixed`: the push-sum weight with which the node's model was
        made. Of a small one the update counts less."""
        account, share = self.accounts[node], min(1.0, max(mixed, 0.0) / self._full[node])
        account.mass = account.mass + (delta if share == 1.0 else share * delta)  # a new one: checkpoints hold the old

    def stepped(self, node: int, before: Any, after: Any, local: LocalUpdate, mixed: float) -> NDArray[np.floating]:
        """Enter a local update that was used in the state `before`, as what is around the algorithm
        has to change it, float[n]; return it. What float32 rounds off that is taken over from the
        books."""
        if not self._wraps:
            self.updated(node, local.delta, mixed)
            return local.delta
        account, delta, lead = self.accounts[node], local.delta.astype(np.float64), np.zeros(local.delta.size)
        if self._momentum is None:
            x = innermost(self._algorithm, before).astype(np.float64)
            lead = self._algorithm.model(before) - x  # type: ignore[union-attr]
            delta *= self._scale
            account.mass = account.mass + max(mixed, 0.0) * lead
            size = float(np.abs((delta, lead, x)).max(initial=0.0))
        else:
            account.step, size = local, 0.0
            if local.lr:
                f, (m, most) = self._momentum.factor, self._remembering(account, -delta, 1.0)
                delta = delta - local.lr * f * m if "nesterov" in self._momentum.kind else -local.lr * m
                size = 2.0 * local.lr * float(most.max(initial=0.0))
        self.updated(node, delta, mixed)
        audit = self._algorithm.audit(after)  # type: ignore[union-attr]
        if audit.mass is not None and not audit.finished:
            has = books(audit)[0]
            if float(np.abs(has - account.mass).max(initial=0.0)) <= STEP_TOLERANCE * size:
                account.mass = has
        return delta + lead

    def _remembering(self, account: Account, way: NDArray[np.float64], share: float) -> tuple[NDArray[np.float64], ...]:
        """Return f m + share way / lr, of the round's step, and the same sum of magnitudes."""
        assert account.step is not None
        f, new = self._momentum.factor, share / account.step.lr * way
        m, most = account.memory or (0.0, 0.0)
        return f * m + new, f * most + np.abs(new)

    def _goes_round(self, account: Account, state: Any) -> None:
        """Go on with momentum to the state after a round."""
        step, shown, f = account.step, account.shown, self._momentum.factor
        if step is None or not step.lr or shown is None:
            return
        way, share = -step.delta.astype(np.float64), 1.0
        if "quasi-global" in self._momentum.kind:
            way, share = shown.astype(np.float64) - self._momentum.model(state), 1.0 - f
        memory = self._remembering(account, way, share)
        if memory[1].max(initial=0.0) <= np.finfo(np.float32).max:
            account.memory = memory

    def owes(self, node: int, peer: int) -> bool:
        """Tell whether `peer` has lost its disk since this node opened its account with it."""
        return self.accounts[node].incarnations[peer] != self._incarnations[peer]

    def rebase(self, node: int, audit: Audit, state: Any = None) -> str | None:
        """Start the node's mass afresh: it took over somebody else's model. Its weight stays."""
        if audit.mass is not None:
            self.accounts[node].mass = books(audit)[0]
        if state is None or self._algorithm is None:
            return None
        self._begin_anew(node, state)
        if audit.mass is None or audit.finished or audit.weight != audit.mixed or audit.mixed <= self._full[node]:
            return None  # more has come since
        x = innermost(self._algorithm, state).astype(np.float64) * audit.mixed
        off, size = float(np.abs(audit.mass - x).max()), max(1.0, float(np.abs(x).max()))
        return f"took over a model with a mass that is {off:.3g} off its weight's" if not off <= 1e-5 * size else None

    # -- gradient tracking

    def went(self, node: int, round: Round, local: LocalUpdate) -> None:
        """Enter the direction of a round, z = (x - y) / (K lr) of K local steps from x to y."""
        self._directions[node, round] = local.delta.astype(np.float64) / (-local.lr * local.steps or -np.inf)

    def corrected(self, node: int, round: Round, correction: Vec | None, row: NDArray[np.float64]) -> str | None:
        """Say whether local steps are to follow another correction than c <- c - z + W z, 0 at
        first. `row`: W of the round before, of this node. Nothing has been lost so far."""
        wanted, directions = self._corrections[node], self._directions
        if round:
            wanted -= directions[node, round - 1]
            wanted += sum(row[j] * directions[j, round - 1] for j in np.flatnonzero(row).tolist())
        off = float(np.abs(wanted - (0.0 if correction is None else correction)).max())
        wrong = off > OUTER_TOLERANCE * max(1.0, float(np.abs(wanted).max()))
        return f"steps of round {round} follow a correction that is {off:.3g} off" if wrong else None

    # -- pairwise exchanges, and an outer optimiser

    def noted(self, node: int, state: Any) -> Account:
        """Return what a checkpoint of this state has of the node's account."""
        account = self.accounts[node]
        if account.saved is not state:
            account.asked, account.saved = dict(account.asked), state
        return account.copy()

    def asks(self, node: int, peer: int, frame: Frame) -> None:
        """Take note of a request."""
        if frame.kind is Kind.MODEL and Aux.SETTLED in frame.aux:
            self.accounts[node].asked[peer] = frame.aux[Aux.SESSION], frame.sequence

    def answered(self, node: int, peer: int, frame: Frame, before: Any, after: Any) -> str | None:
        """Say whether a node did its half for an answer to another exchange than it asked for."""
        if frame.kind is not Kind.MODEL or Aux.ANSWER not in frame.aux:
            return None
        algorithm, asked = self._algorithm, self.accounts[node].asked.get(peer)
        moved = innermost(algorithm, before) is not innermost(algorithm, after)
        if not moved or asked == (frame.aux.get(Aux.SESSION), frame.sequence):
            return None
        return f"took in an answer to exchange {frame.sequence} of {peer}, and had asked for {asked}"

    def goes_on(self, node: int, state: Any) -> None:
        """Begin the rounds of a process: what it trains from is shown anew."""
        if self._outer is not None or self._momentum is not None:
            account, (algorithm, state) = self.accounts[node], self._layer(state)
            account.shown, account.round, account.step = algorithm.model(state), algorithm.round(state), None

    def _layer(self, state: Any) -> tuple[Any, Any]:
        algorithm: Any = self._algorithm
        return (algorithm.algorithm, state.inner) if self._overlaps else (algorithm, state)

    def followed(self, node: int, state: Any, between: bool = False) -> str | None:
        """Go on to a state after a round, and say whether its outer optimiser stepped wrongly.
        `between`: it is that before an update is used. Only there it is seen of one whose exchanges
        overlap, if the last one is over by then."""
        outer, account = self._outer, self.accounts[node]
        if self._momentum is not None and not between and (round := self._momentum.round(state)) != account.round:
            if round == account.round + 1:
                self._goes_round(account, state)
                self.goes_on(node, state)
            else:
                self._begin_anew(node, state)
        # A checkpoint of the run's last exchange is between rounds, too.
        if outer is None or (between is not self._overlaps and (between or state.under_way)):
            return None
        if between and state.under_way:
            account.memory = None
            return None
        whole, (algorithm, state) = state, self._layer(state)
        if (round := algorithm.round(state)) == account.round:
            return None
        if account.memory is None:
            self.goes_on(node, whole)
            return None
        if round != account.round + 1 or account.shown is None:
            self._begin_anew(node, whole)
            return None
        before = account.shown.astype(np.float64)
        d = innermost(algorithm, state) - before
        zero = np.zeros_like(d)
        if outer.kind == "adam":
            m, v = account.memory or (zero, zero)
            m, v = (b * old + (1.0 - b) * new for b, old, new in zip(outer.betas, (m, v), (d, d * d), strict=True))
            account.memory, s = (m, v), outer.lr * m / (np.sqrt(v) + outer.epsilon)
        else:
            v = outer.momentum * (account.memory[0] if account.memory else zero) + d
            account.memory, s = (v,), outer.lr * (d + outer.momentum * v if outer.kind == "nesterov" else v)
        account.shown, account.round = algorithm.model(state), round
        size = max(1.0, *(float(np.abs(x).max(initial=0.0)) for x in (before, d, s, *account.memory)))
        off = float(np.abs(account.shown - before - s).max(initial=0.0))
        return f"the outer step of round {round - 1} is {off:.3g} off" if off > OUTER_TOLERANCE * size else None

    def _begin_anew(self, node: int, state: Any) -> None:
        self.accounts[node].memory = ()
        self.goes_on(node, state)

    def closed(self, node: int, peer: int, before: Audit, after: Audit, adopts: bool = False) -> None:
        """Follow when the account of an edge is closed: a message of a peer that has lost its
        disk was taken in. `adopts`: with the same message the node took over a model, so that
        only the weight tells; the mass is rebased."""
        account = self.accounts[node]
        if adopts and after.mass is not None:
            account.mass = books(after)[0]
        if after.mass is None or after.finished or self.fault(node, after) is None:
            return
        # Where a peer is met in several phases, each of them has books of its own, closed by a
        # message of its own.
        phases = sorted({phase for j, phase in (*before.seen, *before.sent) if j == peer})
        for among in (phases, *([phase] for phase in phases)):
            came, went = (total(totals, peer, self._values, among) for totals in (before.seen, before.sent))
            for seen, sent in ((1, 0), (0, 1), (1, 1)):
                mass = account.mass if adopts else account.mass + seen * came[0] - sent * went[0]
                weight = account.weight + seen * came[1] - sent * went[1]
                if _fault(after, mass, weight) is None:
                    account.mass, account.weight = mass, weight
                    if seen and sent and among == phases:
                        account.incarnations[peer] = self._incarnations[peer]
                    return

    def fault(self, node: int, audit: Audit) -> str | None:
        """Say what the node's books show wrongly."""
        if audit.mass is None or audit.finished:
            return None
        account = self.accounts[node]
        return _fault(audit, account.mass, account.weight)


def innermost(algorithm: Any, state: Any) -> Vec:
    """Return the model of the algorithm inside all wrappers, float32[n]: what local updates that
    got through to it have moved."""
    while (inner := getattr(algorithm, "algorithm", None)) is not None:
        algorithm, state = inner, state.inner
    model: Vec = algorithm.model(state)
    return model


def books(audit: Audit) -> tuple[NDArray[np.float64], float]:
    """Return mass + sent - seen (float64[n]), and the same of the weights."""
    assert audit.mass is not None
    mass, weight = np.array(audit.mass, np.float64), float(audit.weight)
    for vector, scalar in audit.sent.values():
        mass += vector
        weight += scalar
    for vector, scalar in audit.seen.values():
        mass -= vector
        weight -= scalar
    return mass, weight


def largest_term(audit: Audit) -> float:
    """Return the largest magnitude among what `books` adds up."""
    vectors = [audit.mass, *(v for v, _ in audit.sent.values()), *(v for v, _ in audit.seen.values())]
    return max(abs(audit.weight), *(float(np.abs(v).max(initial=0.0)) for v in vectors if v is not None))


def exchanged(audits: Sequence[Audit]) -> NDArray[np.float64]:
    """Return the sum of the masses of all nodes as it would be without the exchanges that are
    open, float64[n]."""
    total_mass = np.zeros(0)
    for i, audit in enumerate(audits):
        if audit.mass is None:
            continue
        total_mass = audit.mass + (total_mass if total_mass.size else 0.0)
        for j, (sequence, change) in audit.taken.items():
            if sequence > audits[j].finished.get(i, 0):
                total_mass = total_mass - change
    return total_mass


def total(totals: Totals, peer: int, values: int, phases: Sequence[int]) -> tuple[NDArray[np.float64], float]:
    """Add up what an edge carried in these phases of the topology's period."""
    mass, weight = np.zeros(values), 0.0
    for (other, phase), (vector, scalar) in totals.items():
        if other == peer and phase in phases:
            mass += vector
            weight += scalar
    return mass, weight


def _fault(audit: Audit, mass: NDArray[np.float64], weight: float) -> str | None:
    has, has_weight = books(audit)
    if not abs(has_weight - weight) <= TOLERANCE * max(1.0, abs(weight)):
        return f"weight handed out and kept is {has_weight:.12g}, the ledger says {weight:.12g}"
    has -= mass
    worst = float(np.maximum.reduce(np.absolute(has, out=has), initial=0.0))
    if not worst <= TOLERANCE and not worst <= TOLERANCE * (largest := largest_term(audit)):
        return f"mass handed out and kept is off the ledger by {worst:.3g} (largest term {largest:.3g})"
    return None


def edge_fault(audits: Sequence[Audit | None], pairs: Sequence[tuple[int, int]]) -> str | None:
    """Say what went out over an edge (sender, receiver) and has not come in, when nothing is on
    its way any more."""
    for j, i in pairs:
        out, come = audits[j], audits[i]
        if out is None or come is None:
            continue
        for (to, phase), (vector, scalar) in out.sent.items():
            if to != i:
                continue
            seen, weight = come.seen.get((j, phase), (np.zeros_like(vector), 0.0))
            scale = max(1.0, float(np.abs(vector).max(initial=0.0)))
            worst = float(np.abs(vector - seen).max(initial=abs(scalar - weight)))
            if not worst <= TOLERANCE * scale:
                return f"of what {j} handed to {i}, {worst:.3g} never came in"
    return None
