"""D-PSGD under loss, duplication, reordering, wrong suspicions and a long pause: it never stalls,
never leaves the convex hull of the models that there were, and rounds never go back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROUNDS, N = 12, 12
ZERO = np.zeros(N, np.float32)


def bad_weather(fleet: Any, rng: np.random.Generator, loss: float) -> None:
    """Until all nodes have done ROUNDS rounds: a random step, delivery, loss, duplicate, wrong word
    that somebody is down (or back), or, when nothing else can happen, the deadline of a node that
    waits."""
    nodes = len(fleet.members)
    low, high = fleet.start.min(axis=0) - 1e-5, fleet.start.max(axis=0) + 1e-5
    last = [0] * nodes
    for _ in range(20_000):
        ready = [i for i, s in enumerate(fleet.states) if s.stepped is None and s.round < ROUNDS]
        waiting = [i for i, s in enumerate(fleet.states) if s.stepped is not None]
        if not (ready or waiting or fleet.mail):
            break
        dice = rng.random()
        if dice < 0.03:
            gone = rng.choice(nodes, int(rng.integers(nodes)), replace=False)
            fleet.down(int(rng.integers(nodes)), *map(int, gone))
        elif ready and (dice < 0.4 or not fleet.mail):
            fleet.step(int(rng.choice(ready)), ZERO)
        elif fleet.mail:
            k = int(rng.integers(len(fleet.mail)))
            if rng.random() < 0.1:
                fleet.mail.append(fleet.mail[k])
            if rng.random() < loss:
                fleet.mail.pop(k)
            else:
                fleet.deliver(k)
        else:
            node = int(rng.choice(waiting))
            assert fleet.timers[node] in (5.0, 1.0)  # its deadline, or with nobody to rely on less
            fleet.tick(node)
        for i, s in enumerate(fleet.states):
            assert s.round >= last[i]
            last[i] = s.round
            assert (s.math.x >= low).all() and (s.math.x <= high).all()
    assert all(s.round >= ROUNDS for s in fleet.states)
    assert not any(fleet.timers.values())  # and nobody's is left running


@pytest.mark.no_cover
@settings(max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["ring", "directed-ring", "star", "complete", "one-peer-exponential"]),
    st.integers(2, 6),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from([0, 1, 3]),
)
def test_bad_weather(make_fleet: Any, seed: int, name: str, nodes: int, loss: float, max_ahead: int) -> None:
    fleet = make_fleet(name, nodes=nodes, max_ahead=max_ahead)
    bad_weather(fleet, np.random.default_rng(seed), loss)


@pytest.mark.parametrize("name", ["ring", "directed-ring", "complete", "one-peer-exponential"])
def test_a_board_that_slept_for_many_rounds_catches_up(make_fleet: Any, name: str) -> None:
    """The others take node 0 for dead, go on, and take it back; it must not be waited for round by
    round."""
    fleet = make_fleet(name, nodes=4)

    def play(nodes: tuple[int, ...], times: int) -> None:
        for _ in range(times):
            for node in nodes:
                if fleet.states[node].stepped is None:
                    fleet.step(node, ZERO)
            while fleet.mail:
                fleet.deliver()

    for node in (1, 2, 3):
        fleet.down(node, 0)
    play((1, 2, 3), 40)
    others = [fleet.states[node].round for node in (1, 2, 3)]
    assert min(others) >= 39 and fleet.states[0].round == 0
    for node in (1, 2, 3):
        fleet.down(node)
    play((0, 1, 2, 3), 3)
    deadlines = 0
    while fleet.states[0].round < 60:
        play((0, 1, 2, 3), 3)
        waiting = [i for i, s in enumerate(fleet.states) if s.stepped is not None]
        if waiting:
            deadlines += 1
            fleet.tick(min(waiting, key=lambda i: fleet.states[i].round))
        assert deadlines <= 20
    gathered = np.stack([s.math.x for s in fleet.states])
    assert np.ptp(gathered, axis=0).max() < 0.1 * np.ptp(fleet.start, axis=0).max()
