"""Boards that stop after a round and go on from their checkpoints lose nothing: the models come out
as if nobody had stopped, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from edgegossip import gossip
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.checkpoint.registry import RunContext
from edgegossip.gossip.base import Says
from edgegossip.gossip.momentum import with_momentum
from tests.gossip.conftest import update

N, ROUNDS, BOARDS = 12, 6, 4
PUSHED = ("ring", "directed-ring", "one-peer-exponential")
CASES = [
    *((name, "ring") for name in ("dpsgd", "d2", "deep-squeeze", "choco-sgd", "bagua-lp", "ad-psgd")),
    *((name, "ring") for name in ("gt-dsgd", "k-gt", "motef")),
    *((name, topology) for name in ("sgp", "sparse-push", "quant-sgp") for topology in PUSHED),
    ("parallel-sgd", "complete"),
    ("dpsgd+quasi-global", "ring"),
    ("choco-sgd+quasi-global", "ring"),
]

OUTLIVE_A_ROUND = {"by_node", "copies", "edges", "heard", "momentum", "past", "rates", "row", "said", "seen", "sent"}


def trained(round: int, node: int, model: np.ndarray) -> np.ndarray:
    return 0.1 * (np.random.default_rng([round, node]).normal(size=N) + node - model)


def played(make_fleet: Any, name: str, topology: str, codec: str, stops: int, who: Any, ahead: bool) -> np.ndarray:
    """The final models, where the boards `who` stop after round `stops` (-1: nobody does); `ahead`:
    the others have their next update ready before they are back."""
    algorithm, _, momentum = name.partition("+")
    fleet = make_fleet(topology, nodes=BOARDS, codec=codec, algorithm=algorithm, alike=True)
    if momentum:
        fleet.algorithm = with_momentum(gossip.get(algorithm), momentum, 0.9)
        fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    fleet.say_hello()
    for round in range(ROUNDS):
        early = [k for k in range(BOARDS) if ahead and round == stops + 1 and k not in who]
        if not early and round == stops + 1:
            restarted(fleet, who)
        for k in (*early, *(k for k in range(BOARDS) if k not in early)):
            if early and k == who[0]:
                fleet.deliver_all()
                restarted(fleet, who)
            fleet.step(k, trained(round, k, fleet.algorithm.model(fleet.states[k])))
        fleet.deliver_all()
    assert fleet.rounds == [ROUNDS] * BOARDS
    return np.stack([fleet.algorithm.model(s) for s in fleet.states])


def restarted(fleet: Any, who: Any) -> None:
    """New processes of these boards, each from its checkpoint's bytes."""
    for k in who:
        run = RunContext.of(fleet.view(k))
        fleet.restart(k, from_bytes(to_bytes(fleet.states[k]), run))
    fleet.deliver_all()


WHO = {"one": (0,), "two": (1, 2), "all": tuple(range(BOARDS))}


def cases() -> Iterator[Any]:
    """Each with one of the codecs and some of the boards, in turn; the other ways are slow."""
    for k, (name, topology) in enumerate(CASES):
        for c, codec in enumerate(("fp32", "4-bit-elastiquant")):
            for w, (word, who) in enumerate(WHO.items()):
                marks = () if (k % 2, k % 3) == (c, w) else pytest.mark.slow
                yield pytest.param(name, topology, codec, who, marks=marks, id=f"{name}-{topology}-{codec}-{word}")


@pytest.mark.parametrize(("name", "topology", "codec", "who"), [*cases()])
def test_a_clean_restart_changes_nothing(make_fleet: Any, name: str, topology: str, codec: str, who: Any) -> None:
    expected = played(make_fleet, name, topology, codec, -1, (), False)
    for ahead in (False, True)[: 1 + (len(who) < BOARDS and name != "ad-psgd")]:
        for stops in (0, 1, ROUNDS - 2):
            found = played(make_fleet, name, topology, codec, stops, who, ahead)
            np.testing.assert_array_equal(found, expected, err_msg=f"after round {stops}, ahead: {ahead}")


@pytest.mark.parametrize("name", [n for n in gossip.names() if not gossip.get(n).asynchronous])
def test_with_the_model_of_another_a_board_publishes_as_one_that_begins_with_it(make_fleet: Any, name: str) -> None:
    """It remembers nothing of its own: no error, no copy, no direction."""
    fleet = make_fleet("complete", algorithm=name, codec="topk", alike=True)
    fleet.say_hello()
    for round in range(3):
        for k in range(BOARDS):
            fleet.step(k, trained(round, k, fleet.algorithm.model(fleet.states[k])))
        fleet.deliver_all()
    state, scheme = fleet.states[0], fleet.algorithm.scheme
    new, local = np.arange(N, dtype=np.float32), update(trained(3, 0, state.math.x))
    maths = scheme.abandon(state.math, new, state.ctx), scheme.init(new, state.ctx)
    assert all(np.array_equal(scheme.model(math), new) for math in maths)
    published = [bytes(scheme.publish(math, local, state.ctx, ())[1].body) for math in maths]
    assert published[0] == published[1]


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("name", [n for n in gossip.names() if not gossip.get(n).asynchronous])
def test_what_a_round_holds_for_itself_is_gone_when_it_is_over(make_fleet: Any, name: str, nodes: int) -> None:
    apart = nodes > 2 and gossip.get(name).says is Says.MODELS  # a message of its own for each neighbour
    codec = "auto" if apart else "fp32"
    fleet = make_fleet("complete", nodes=nodes, algorithm=name, codec=codec, alike=True)

    def held() -> set[str]:
        values = ((f.name, getattr(state.math, f.name)) for state in fleet.states for f in fields(state.math))
        return {name for name, value in values if value is not None and getattr(value, "count", 1)}

    begin = held()
    fleet.say_hello()
    allowed = {name: 40 + 8 * k for k, name in enumerate(fleet.members)}
    for k in range(nodes):
        local = replace(update(trained(0, k, fleet.start[k])), allowed=allowed)
        fleet.states[k], actions = fleet.algorithm.step(fleet.states[k], local)
        fleet.carry_out(k, actions)
    fleet.deliver_all()
    assert fleet.rounds == [1] * nodes and held() <= begin | OUTLIVE_A_ROUND


@pytest.mark.parametrize("name", ["sgp", "quant-sgp"])
def test_totals_that_have_grown_for_long_are_said_in_full(make_fleet: Any, name: str) -> None:
    """A third of a number takes all bits of a total, of which a full state says 48."""

    def ends(stop: int) -> np.ndarray:
        fleet = make_fleet("complete", nodes=3, n=600, algorithm=name, alike=True)
        fleet.say_hello()
        for round in range(60):
            if round == stop:
                fleet.restart(1, fleet.states[1])
                fleet.deliver_all()
            for k in range(3):
                moved = np.random.default_rng([round, k]).normal(size=600)
                fleet.step(k, 0.1 * moved + 0.3 * k)
            fleet.deliver_all()
        return np.stack([fleet.algorithm.audit(s).mass for s in fleet.states])

    np.testing.assert_array_equal(ends(50), ends(-1))
