"""Schedules whose checkpoints are real files give the same runs as those whose checkpoints are the
states themselves."""

from __future__ import annotations

import pytest

from edgegossip import gossip
from lab.sim import Named, Options, draw, run_schedule
from lab.sim.disk import StoredDisk

FAULTS = "crash,torn-write,lost-write,old-checkpoint,empty-disk,loss=0.1"


def same(algorithm: str, seed: int, rounds: int, codec: str = "minmax8") -> None:
    schedule = draw(seed, Options((Named(algorithm),), codec=Named(codec), nodes=4, rounds=rounds, faults=FAULTS))
    kept, stored = run_schedule(schedule), run_schedule(schedule, make_disk=StoredDisk)
    assert (stored.digest, stored.violations, stored.seen) == (kept.digest, kept.violations, kept.seen)


@pytest.mark.parametrize(
    ("algorithm", "seed"), [("dpsgd", 1), ("quant-sgp", 2), ("ad-psgd", 3), ("choco-sgd+nesterov", 4)]
)
def test_real_files_give_the_same_run(algorithm: str, seed: int) -> None:
    same(algorithm, seed, 6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", gossip.names())
def test_real_files_give_the_same_runs(algorithm: str) -> None:
    for seed in range(20):
        same(algorithm, seed, 12)
