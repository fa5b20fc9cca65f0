"""A second set of books: what each node's mass and weight must be, kept apart from the
algorithms.

Of a push-sum state, own + handed out - taken in (mass + sum of `sent` - sum of `seen`, of the
audit) changes by the node's own local updates only, whatever the network does. A restart takes
it back to what it was at the checkpoint. Two things change it otherwise: adopting another's
model, and a neighbour's disk that was lost: then both ends close the account of the edge, what
had come in stays (+ seen) and what had gone out is gone (- sent).

Pairwise exchanges keep no totals: there only the sum over all nodes is known, less the halves of
exchanges that one end has done and the other not yet (`exchanged`), and only while no node has
gone back to an older state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.gossip.base import Action, Audit, GossipAlgorithm
from edgegossip.lab.sim.disk import Saved
from edgegossip.types import LocalUpdate, Vec

Totals = Mapping[tuple[int, int], tuple[NDArray[np.float64], float]]
TOLERANCE = 1e-9  # of the largest term
FULL = 0.1  # push-sum weight from which on a local update counts in full


@dataclass(slots=True)
class Account:
    """Holds what one node's books must show."""

    mass: NDArray[np.float64]  # float64[n]
    weight: float
    incarnations: list[int]  # by peer: which of its incarnations our totals belong to

    def copy(self) -> Account:
        """Return a copy that later entries of this one leave alone."""
        return Account(self.mass, self.weight, list(self.incarnations))


class Ledger:
    """Keeps the accounts of all nodes. Methods return what is wrong, or None."""

    def __init__(self, nodes: int, values: int) -> None:
        self._values = values
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

    def updated(self, node: int, delta: Vec, mixed: float = 1.0) -> None:
        """Enter a local update. `mixed`: the push-sum weight with which the node's model was
        made. Of a small one the update counts less."""
        account, share = self.accounts[node], min(1.0, max(mixed, 0.0) / FULL)
        account.mass = account.mass + (delta if share == 1.0 else share * delta)  # a new one: checkpoints hold the old

    def owes(self, node: int, peer: int) -> bool:
        """Tell whether `peer` has lost its disk since this node opened its account with it."""
        return self.accounts[node].incarnations[peer] != self._incarnations[peer]

    def rebase(self, node: int, audit: Audit) -> None:
        """Start the node's mass afresh: it took over somebody else's model. Its weight stays."""
        if audit.mass is not None:
            self.accounts[node].mass = books(audit)[0]

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


# What a wrapper, such as momentum, makes of the local update before the algorithm inside gets it

_METHODS = ("init", "resume", "start", "receive", "tick", "membership", "model", "round", "waiting_for", "audit")


class LastDelta:
    """Holds the last local update that got through to the innermost algorithm."""

    delta: Vec | None = None


class Spy:
    """Stands in for an algorithm, and takes notes in `step`."""

    def __init__(self, algorithm: GossipAlgorithm[Any], last: LastDelta) -> None:
        self._algorithm, self._last = algorithm, last
        for name in _METHODS:  # found at once: a wrapper asks for them several times a message
            setattr(self, name, getattr(algorithm, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    def step(self, s: Any, local: LocalUpdate) -> tuple[Any, list[Action]]:
        """Note the update, and let the algorithm step."""
        self._last.delta = local.delta
        return self._algorithm.step(s, local)


def spied(algorithm: GossipAlgorithm[Any]) -> tuple[GossipAlgorithm[Any], LastDelta | None]:
    """Return the algorithm with a spy inside its wrappers; None if it has none, and its update is
    the one that it is given."""
    last = LastDelta()
    changed = _inside(algorithm, last)
    return (algorithm, None) if changed is None else (changed, last)


def _inside(algorithm: Any, last: LastDelta) -> Any:
    inner = getattr(algorithm, "algorithm", None)
    if inner is None or not is_dataclass(algorithm):
        return None
    return replace(algorithm, algorithm=_inside(inner, last) or Spy(inner, last))  # type: ignore[type-var]
