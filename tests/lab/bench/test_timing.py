"""The statistics of timed rounds, on times made up for the purpose and on a clock that functions
turn themselves."""

import pytest

from lab.bench import timing
from lab.bench.timing import Times, in_turn


class Clock:
    """Stands still but for what `spends` adds."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def spends(self, *seconds):
        """A function that takes these times in turn, and the last one from then on."""
        left = list(seconds)

        def function():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return function


def test_a_machine_that_slows_down_slows_both_of_a_pair():
    """Memory that is half as fast in some rounds leaves every ratio at 2; medians of either alone
    would not."""
    times = Times(3, {"memcpy": [2.0, 4.0, 4.0], "encode": [1.0, 2.0, 2.0]})
    assert times.paired("memcpy", "encode") == 2.0


def test_pairs_are_of_one_round_and_not_of_two_medians():
    times = Times(3, {"memcpy": [1.0, 2.0, 9.0], "encode": [1.0, 8.0, 3.0]})
    assert times.paired("memcpy", "encode") == 1.0  # of 1, 1/4 and 3
    assert times.unpaired("memcpy", "encode") == pytest.approx(2 / 3)


def test_only_functions_of_all_rounds_are_paired():
    times = Times(2, {"torch": [6.0], "encode": [1.0, 3.0]})
    with pytest.raises(ValueError, match="shorter|longer"):
        times.paired("torch", "encode")
    assert times.unpaired("torch", "encode") == 3.0
    assert "torch" in times and "numpy" not in times


def test_rounds_keep_their_order_and_leave_out_what_is_not_timed(monkeypatch):
    clock = Clock(monkeypatch)
    work = {"a": clock.spends(100.0, 1.0, 2.0, 3.0), "b": clock.spends(0.5)}
    times = in_turn(work, 3, before=clock.spends(50.0))
    assert times.rounds == 3
    assert times.seconds == {"a": [1.0, 2.0, 3.0], "b": [0.5, 0.5, 0.5]}


def test_there_are_rounds_until_they_have_taken_their_time(monkeypatch):
    clock = Clock(monkeypatch)
    assert in_turn({"a": clock.spends(1.0)}, 1, at_least_s=5.0, before=clock.spends(1.0)).rounds == 3


def test_slow_ones_sit_out_after_their_budget(monkeypatch):
    clock = Clock(monkeypatch)
    work = {"a": clock.spends(1.0), "slow": clock.spends(2.0, 1.0, 1.0, 7.0), "slower": clock.spends(4.0, 1.0)}
    times = in_turn(work, 5, slow={"slow", "slower"}, slow_budget_s=4.0)
    assert times.seconds["slow"] == [1.0, 1.0]  # with 2 s of the first round
    assert times.seconds["slower"] == [4.0]  # the first round's, for there is no other
    assert times.median("a") == 1.0
