"""Runs whose boards fail at random: whatever happens they end, with every round kept, and go on
from any of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgegossip.engine.server import Ask, Effect
from edgegossip.types import RunError
from tests.engine.fleet import Crash, Run, garbage

ROUNDS = 8
REASONS = ("are left", "no usable update", "too few boards answer")
SPREAD_S = 4.0  # in which everything happens


def make(seed: int) -> Run:
    rng = random.Random(seed)
    boards = rng.randint(1, 6)
    run = Run(
        boards=boards,
        rounds=ROUNDS,
        codec=rng.choice(["fp32", "elasticl", "minmax8"]),
        downlink=rng.choice(["fp32", "fp16"]),
        min_nodes=rng.randint(1, boards),
        quorum=rng.choice([0, 0, rng.randint(1, boards)]),
        fraction=rng.choice([1.0, 0.5]),
        deadline_s=rng.choice([0.3, 2.0, 20.0]),
        join_s=rng.choice([0.5, 60.0]),
        return_s=rng.choice([0.0, 60.0]),
        every=rng.randint(1, ROUNDS),
        weighting=rng.choice(["examples", "uniform"]),
        records_boards=rng.random() < 0.5,
        seed=seed,
    )

    def some(share: float) -> frozenset[int]:
        return frozenset(k for k in range(ROUNDS) if rng.random() < share)

    for board in run.boards:
        board.takes_s = rng.choice([0.05, 0.2, 1.0])
        board.joins_s = rng.choice([0.0, 0.0, SPREAD_S * rng.random()])
        board.back_s = rng.choice([0.0, SPREAD_S * rng.random()])
        board.away, board.ghost, board.lost = some(0.05), some(0.05), some(0.05)
        board.late, board.twice = some(0.1), some(0.2)
        board.spoil = dict.fromkeys(some(0.05), garbage)
        board.deaf = rng.random() < 0.1
        board.unavailable = rng.choice([0, 0, 1])
        if rng.random() < 0.2:
            since = SPREAD_S * rng.random()
            board.silent = (since, since + rng.choice([5.0, 20.0]))
    return run


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_runs_end_and_say_why(first: int) -> None:
    complete = 0
    for seed in range(first, first + 20):
        run = make(seed)
        effects: list[Effect] = []
        run.on_effect = effects.append
        try:
            x = run.play()
        except RunError as error:
            said = str(error)
        else:
            said = ""
        assert not said or any(words in said for words in REASONS), seed
        if said:
            continue
        complete += 1
        assert run.completed and [p.round for p in run.saved] == list(range(1, ROUNDS + 1)), seed
        assert [ended.round for ended in run.rounds] == list(range(ROUNDS)) and run.model is x, seed
        assert np.isfinite(x).all() and all(len(set(e.used)) == len(e.used) for e in run.rounds), seed
        missing = {text.split()[4] for text in run.texts("not-evaluated")}
        assert ROUNDS - 1 in run.evaluations() or str(ROUNDS - 1) in missing, seed
        numbers = [q.number for e in effects if isinstance(e, Ask) for q in e.questions]
        assert len(set(numbers)) == len(numbers), seed
    assert complete >= 5


@pytest.mark.parametrize("seed", range(8))
def test_the_same_schedule_is_the_same_run(seed: int) -> None:
    outcomes = []
    for _ in range(2):
        run = make(seed)
        try:
            run.play()
            last = "complete"
        except RunError as error:
            last = str(error)
        outcomes.append((run.logs, [p.model.tobytes() for p in run.saved], last, run.now_s))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("seed", range(24))
def test_a_killed_coordinator_loses_no_round_that_it_has_saved(seed: int) -> None:
    run, left = make(seed), [random.Random(seed).randint(0, 60)]

    def count(effect: Effect) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Crash

    run.on_effect = count
    try:
        try:
            run.play()
        except Crash:
            before = run.saved[-1].round if run.saved else 0
            run.play(run.saved[-1] if run.saved else None)
            rounds = [ended.round for ended in run.rounds]
            assert rounds[len(rounds) - (ROUNDS - before) :] == list(range(before, ROUNDS))
    except RunError as error:
        said = str(error)
    else:
        said = ""
        assert run.completed and run.saved[-1].round == ROUNDS
    assert not said or any(words in said for words in REASONS)
