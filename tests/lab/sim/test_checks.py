"""The checkers see what they are there for."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgegossip import gossip
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Audit
from lab.sim import checkers, convergence, ledger, naming
from lab.sim.ledger import Ledger
from lab.sim.naming import Named

ONE = np.ones(3)
AT_ONCE = 0.0, (0.0, 0.0)  # nothing is under way when a process starts


def audit(mass: float, weight: float, sent: float = 0.0, seen: float = 0.0) -> Audit:
    return Audit(
        mass=mass * ONE,
        weight=weight,
        sent={(1, 0): (sent * ONE, sent / 2)} if sent else {},
        seen={(1, 0): (seen * ONE, seen / 2)} if seen else {},
    )


def books(start: float = 2.0) -> Ledger:
    made = Ledger(2, 3, topology=topologies.get("ring", 2))
    made.booted(0, None, (start * ONE).astype(np.float32), False, *AT_ONCE)
    made.booted(1, None, (start * ONE).astype(np.float32), False, *AT_ONCE)
    return made


def test_ledger_follows_updates_only() -> None:
    made = books()
    assert made.fault(0, audit(2.0, 1.0)) is None
    assert made.fault(0, audit(1.0, 0.5, sent=1.0)) is None
    assert made.fault(0, audit(3.0, 1.5, seen=1.0)) is None
    made.updated(0, np.full(3, 0.5, np.float32))
    assert made.fault(0, audit(2.5, 1.0)) is None
    assert "mass" in str(made.fault(0, audit(2.0, 1.0)))
    assert "weight" in str(made.fault(0, audit(2.5, 1.0 + 1e-8)))
    assert "mass" in str(made.fault(0, audit(2.5 + 1e-8, 1.0)))
    assert made.fault(0, Audit()) is None


@pytest.mark.parametrize(
    ("seen", "sent", "mass", "weight"), [(1.0, 0.0, 3.0, 1.5), (0.0, 1.0, 1.0, 0.5), (1.0, 0.5, 2.5, 1.25)]
)
def test_ledger_closes_the_account_of_an_edge_when_a_disk_was_lost(
    seen: float, sent: float, mass: float, weight: float
) -> None:
    made = books()
    before, after = audit(mass, weight, sent, seen), audit(mass, weight)
    assert made.fault(0, before) is None and made.fault(0, after) is not None
    made.booted(1, None, np.zeros(3, np.float32), True, *AT_ONCE)
    assert made.owes(0, 1) and not made.owes(1, 0)
    made.closed(0, 1, before, after)
    assert made.fault(0, after) is None
    other = books()
    other.closed(0, 1, before, audit(mass + 0.1, weight))
    assert other.fault(0, audit(mass + 0.1, weight)) is not None


def test_ledger_takes_part_of_an_update_while_the_weight_is_small() -> None:
    made = books()
    made.updated(0, np.ones(3, np.float32), mixed=0.25)
    assert made.fault(0, audit(2.5, 1.0)) is None
    made.updated(0, np.ones(3, np.float32), mixed=-0.5)
    assert made.fault(0, audit(2.5, 1.0)) is None


@pytest.mark.parametrize(("arrives_s", "late"), [(2.5, True), (1.5, False)])
def test_ledger_knows_that_a_late_hello_may_open_an_account_with_an_incarnation_that_is_gone(
    arrives_s: float, late: bool
) -> None:
    """It reaches the process that listens since 2 s, or finds nobody."""
    made, start = Ledger(2, 3), np.zeros(3, np.float32)
    made.booted(1, None, start, False, 0.0, (0.0, 0.0))
    made.booted(1, None, start, True, 1.0, (arrives_s, 0.0))
    made.booted(0, None, start, False, 2.0, (0.0, 9.0))
    assert made.owes(0, 1) == late and not made.owes(1, 0)


def test_adoption_begins_afresh() -> None:
    made = books()
    made.rebase(0, audit(9.0, 1.0))
    assert made.fault(0, audit(9.0, 1.0)) is None and made.fault(0, audit(9.0, 1.1)) is not None
    made.rebase(0, Audit())


def test_open_exchanges_are_left_out() -> None:
    done = Audit(mass=2 * ONE, finished={1: 1})
    open_ = Audit(mass=3 * ONE, taken={0: (2, np.ones(3, np.float32))}, finished={0: 0})
    np.testing.assert_array_equal(ledger.exchanged([done, open_, Audit()]), 4 * ONE)
    np.testing.assert_array_equal(ledger.exchanged([Audit(mass=2 * ONE, finished={1: 2}), open_]), 5 * ONE)
    assert books().fault(0, done) is None


def test_edges_must_have_delivered() -> None:
    out, come = audit(1.0, 0.5, sent=1.0), Audit(mass=ONE, seen={(0, 0): (ONE, 0.5)})
    assert ledger.edge_fault([out, come], [(0, 1), (1, 0)]) is None
    assert ledger.edge_fault([out, None], [(0, 1)]) is None
    assert "never came in" in str(ledger.edge_fault([out, Audit(mass=ONE)], [(0, 1)]))


def test_models_and_rows() -> None:
    assert checkers.finite_fault(np.ones(3, np.float32)) is None
    for bad in (np.nan, np.inf, -np.inf):
        assert checkers.finite_fault(np.array([1.0, bad], np.float32))
    assert checkers.row_fault(Audit(row={0: 0.5, 1: 0.5}), positive=True) is None
    assert "sum to" in str(checkers.row_fault(Audit(row={0: 0.5, 1: 0.6}), positive=True))
    assert "is -0.5" in str(checkers.row_fault(Audit(row={0: 1.5, 1: -0.5}), positive=True))
    assert checkers.row_fault(Audit(weight=-0.1), positive=False) is None
    assert checkers.row_fault(Audit(weight=-0.1), positive=True)
    assert checkers.row_fault(Audit(weight=math.nan), positive=False)


def test_a_lie_about_the_weight() -> None:
    before, after = audit(1.0, 1.0, seen=1.0), audit(1.0, 1.0, seen=-1.0)
    assert checkers.weight_lie_fault(1, before, after) and not checkers.weight_lie_fault(0, before, after)
    assert not checkers.weight_lie_fault(1, audit(1.0, 1.0), after)


def test_replicas_against_the_original() -> None:
    vec = np.ones(3, np.float32)
    original, reach = Audit(public={0: (4, vec)}), {0: {1}, 1: {0}}
    holder = Audit(replicas={(0, 0): (4, vec.copy())})
    assert checkers.replica_fault([original, holder], reach) is None
    assert checkers.replica_fault([None, holder], reach) is None
    assert checkers.replica_fault([original, holder], {0: set(), 1: set()}) is None
    assert "message 3 of 4" in str(checkers.replica_fault([original, Audit(replicas={(0, 0): (3, vec)})], reach))
    assert "differs by" in str(checkers.replica_fault([original, Audit(replicas={(0, 0): (4, 2 * vec)})], reach))


def test_frames_are_found_wherever_a_state_keeps_them() -> None:
    frame = SimpleNamespace()
    from edgegossip.gossip.streams import PendingMessages
    from tests.lab.sim.test_parts import Frame, Kind

    frame = Frame(Kind.MODEL, 1, b"", 0, b"r" * 16, 0, 1, 0, b"body")
    state = {
        "inbox": PendingMessages({3: (frame, frame)}),
        "list": [frame, {"deep": (frame,)}],
        "x": np.ones(3),
        "n": 1,
        "none": None,
    }
    assert checkers.pending_in(state) == checkers.PendingMessages(4, 16)


@pytest.mark.parametrize(("among", "count"), [(2, 1), (4, 1), (7, 1), (4, 2), (10, 5)])
def test_who_chooses_fairly_is_never_foretold_and_who_does_not_soon_is(among: int, count: int) -> None:
    everybody = list(range(among))

    def faults(choose: Callable[[int], Sequence[int]], times: int) -> int:
        choices = checkers.Choices()
        return sum(choices.fault(k % 3, everybody, choose(k)) is not None for k in range(times))

    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert not faults(lambda _, rng=rng: rng.choice(among, count, replace=False).tolist(), 1000)  # type: ignore[misc]
    assert not faults(lambda k: [(k + n) % among for n in range(count)], 1000)
    first = (among - count) // 2
    assert faults(lambda _: range(first, first + count), 80)


def test_how_many_messages_may_be_early() -> None:
    def most(topology: str, name: str, **params: Any) -> checkers.PendingMessages:
        algorithm = gossip.get(name, **params)
        return checkers.pending_limit(naming.topology_of(Named(topology), 8), 0, algorithm, 100)

    assert most("ring", "dpsgd") == checkers.PendingMessages(2 * (8 + 2), 2 * (8 + 2) * 100)
    assert most("ring", "choco-sgd", staleness=2).messages == 2 * (8 * 3 + 2) + 2
    assert most("one-peer-exponential", "sgp").messages == 3 * (8 * 3 + 2) + 3 * 2
    assert most("ring", "dpsgd", max_ahead=4).messages == 2 * 5
    assert checkers.memory_fault(checkers.PendingMessages(10, 300), checkers.PendingMessages(10, 300)) is None
    assert "holds 11 messages, 10 may" in str(
        checkers.memory_fault(checkers.PendingMessages(11, 1), checkers.PendingMessages(10, 300))
    )
    assert "holds 301 bytes" in str(
        checkers.memory_fault(checkers.PendingMessages(1, 301), checkers.PendingMessages(10, 300))
    )


def test_contraction_is_what_the_matrix_does() -> None:
    rng = np.random.default_rng(0)
    for name, n in (("ring", 6), ("star", 5), ("one-peer-exponential", 8), ("complete", 3)):
        topology, talks = topologies.get(name, n), np.ones((n, n), np.bool_)
        factor = convergence.contraction(topology, range(3, 10), range(n), talks, 1.0, None)
        for _ in range(20):
            x = rng.normal(size=(n, 5))
            before = convergence.spread(list(x))
            for r in range(3, 10):
                x = topology.matrix(r) @ x
            assert convergence.spread(list(x)) <= factor * before + 1e-12


def test_rounds_that_mixing_takes() -> None:
    def rounds(name: str, live: tuple[int, ...], first: int = 0, share: float = 0.0) -> int:
        return convergence.rounds_to_mix(topologies.get(name, 8), first, live, (3, 6), share)

    everybody = tuple(range(8))
    assert rounds("complete", everybody) == 1
    assert [rounds("one-peer-exponential", everybody, first) for first in range(4)] == [3, 3, 3, 3]
    assert rounds("ring", everybody) == rounds("directed-ring", everybody) == 6
    assert [rounds("ring", everybody, share=s) for s in (0.9, 0.6, 0.41, 0.1)] == [3, 4, 5, 6]
    assert rounds("directed-ring", everybody, share=0.9) == 4 and rounds("complete", everybody, share=0.9) == 1


def test_who_is_gone_takes_no_weight_along() -> None:
    topology, talks = topologies.get("ring", 4), np.ones((4, 4), np.bool_)
    talks[2, :] = talks[:, 2] = False
    for column in (False, True):
        w = convergence.effective(topology, 0, talks, 1.0, column)
        np.testing.assert_allclose(w.sum(axis=0 if column else 1), 1.0)
        assert w[2, 2] == 1.0 and w[1, 2] == 0.0
    assert convergence.connected([0, 1, 3], talks, topology)
    talks[0, 3] = talks[3, 0] = False
    assert not convergence.connected([0, 1, 3], talks, topology)
    assert 0.0 < convergence.contraction(topology, range(5), [0, 1], talks, 1.0, None) < 1.0


def test_hull() -> None:
    hull = checkers.Hull.of([np.zeros(2, np.float32), np.ones(2, np.float32)])
    assert hull.fault(np.array([0.0, 1.0], np.float32)) is None
    assert "is 0.5 beyond" in str(hull.fault(np.array([0.5, 1.5], np.float32)))


def test_implausible() -> None:
    one, huge = np.ones(4, np.float32), np.full(4, 1e6, np.float32)
    assert checkers.implausible_fault([huge]) is None
    assert checkers.implausible_fault([huge, one]) is None
    assert "from 2 to 2e+06" in str(checkers.implausible_fault([one, huge]))
