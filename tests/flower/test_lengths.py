"""Which lengths of updates are out of proportion, round after round: honest ones never, a liar's not for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.flower.lengths import Proportion
from edgegossip.flower.quarantine import Quarantine

X = np.ones(100, np.float32)


class Fleet:
    """Boards that each pull the model (a number) towards 0 by a tenth; the last one sends `factor` times that."""

    def __init__(self, boards: int, factor: float) -> None:
        self.judge, self.model, self.highest, self.refused = Proportion(), 10.0, 10.0, 0
        self._quarantine, self._round = Quarantine(), 0
        self._factors = {f"b{k}": 1.0 for k in range(boards - 1)} | {"liar": factor}

    def round(self, names: list[str]) -> None:
        self._round += 1
        names = [name for name in names if not self._quarantine.reason(name, self._round)]
        base = np.full(1, self.model, np.float32)
        updates = {name: -0.1 * self.model * self._factors[name] for name in names}
        lengths = {name: abs(v) for name, v in updates.items()}
        refused = self.judge.refused(lengths, base)
        self.refused += len(refused)
        used = {name: v for name, v in updates.items() if name not in refused}
        for name in used:
            self._quarantine.used(name)
        for name, reason in refused.items() if used else ():
            self._quarantine.refused(name, self._round, reason)
        if used:
            self.judge.used({name: lengths[name] for name in used}, base)
            self.model += sum(used.values()) / len(used)
        self.highest = max(self.highest, abs(self.model))


@pytest.mark.parametrize("factor", [-90.0, 90.0, 99.0])
@pytest.mark.parametrize(("boards", "part"), [(5, 2), (6, 6), (6, 3), (9, 1), (10, 4)])
def test_a_liar_just_below_the_ratio_does_not_blow_up_the_model(factor: float, boards: int, part: int) -> None:
    fleet, rng = Fleet(boards, factor), np.random.default_rng(1)
    names = [*(f"b{k}" for k in range(boards - 1)), "liar"]
    for _ in range(300):
        fleet.round([names[k] for k in rng.choice(boards, part, replace=False)])
    assert fleet.highest < 1e6  # without a slow memory of what was typical it is 1e115


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(0.3, 1.0), st.booleans())
def test_honest_boards_with_very_unequal_data_are_heard(
    boards: int, part: int, seed: int, shrink: float, warm_up: bool
) -> None:
    judge, rng = Proportion(), np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(0.0, 1.0, boards)  # a hundred times the data are ten times the way, and noise
    for round in range(40):
        rate = min(1.0, (round + 1) / 20) if warm_up else shrink**round
        some = rng.permutation(boards if round > 10 else max(1, boards // 2))[:part]
        lengths = {f"b{k}": float(rate * sizes[k] * rng.uniform(0.5, 1.5)) for k in some}
        if round % 3:
            assert not judge.refused(lengths, X)
            judge.used(lengths, X)
        else:
            judge.unmeasured()


def test_what_is_known_goes_on_in_another_process() -> None:
    judge, again = Proportion(), Proportion()
    for value in (1.0, 2.0, 4.0):
        judge.used({f"b{k}": value * (k + 1) for k in range(4)}, X)
        judge.unmeasured()
    assert judge.memory["reach"] == 4.0
    again.restore(judge.memory)
    assert again.memory == judge.memory and len(judge.memory) == 8
    for lengths in ({"b0": 900.0}, {"b0": 790.0, "b1": 4.0}, {"b0": 390.0, "b1": 4.0, "b2": 4.0}):
        assert again.refused(lengths, X) == judge.refused(lengths, X)
    old = Proportion()
    old.restore({"longest": 3.0, "usual": 1.0})
    assert not old.refused({"a": 290.0}, X) and old.refused({"a": 310.0}, X)


def test_a_fleet_whose_updates_all_grow_goes_on() -> None:
    judge = Proportion()
    for power in range(0, 30, 3):
        for boards in (2, 3, 5):
            lengths = {f"b{k}": (k + 1) * 10.0**power for k in range(boards)}
            assert not judge.refused(lengths, X)
            judge.used(lengths, X)
