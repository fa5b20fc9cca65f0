"""A liar that floods: what it sends, and that a node of the right code keeps little of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgegossip import frame as wire
from edgegossip.frame import Frame, Kind
from lab.sim import Named, Options, checkers, draw, run_schedule, world
from lab.sim.byzantine import MESSAGES, flood

LIMITS = wire.Limits(100)
MODEL = Frame(Kind.MODEL, 1, b"", 0, b"r" * 16, 4, 3, 0, b"body")


def test_no_round_comes_twice_and_each_is_of_the_same_phase() -> None:
    sent = [wire.parse(data, LIMITS) for r in range(9) for data in flood(replace(MODEL, round=r), 3, LIMITS)]
    assert len({f.round for f in sent}) == len(sent) == 9 * MESSAGES
    assert all(f.round % 3 == k // MESSAGES % 3 and f.round >= 100 for k, f in enumerate(sent))
    assert {len(f.body) for f in sent} == {100}
    assert [f.sequence for f in sent[:MESSAGES]] == list(range(4, 4 + MESSAGES))


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.STATE])
def test_nothing_goes_with_hellos_and_full_states(kind: Kind) -> None:
    assert not list(flood(replace(MODEL, kind=kind), 1, LIMITS))


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd", "sgp", "parallel-sgd"])
def test_a_flooded_node_keeps_what_it_may_and_no_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[checkers.PendingMessages, checkers.PendingMessages]] = []
    plain = checkers.memory_fault

    def looked(held: checkers.PendingMessages, most: checkers.PendingMessages) -> str | None:
        looks.append((held, most))
        return plain(held, most)

    monkeypatch.setattr(world.checkers, "memory_fault", looked)
    options = Options(
        algorithms=(Named(name),),
        topology=Named("complete"),
        codec=Named("fp32"),
        nodes=3,
        rounds=8,
        faults="byzantine-flood=1@0-6:1",
    )
    outcome = run_schedule(draw(1, options))
    assert not outcome.violations and outcome.seen["byzantine-flood"] > 5
    assert max(held.messages for held, _ in looks) >= 3 + 2  # all that it may keep early of one neighbour
