"""For how long boards are left out whose messages were refused."""

from __future__ import annotations

from edgegossip.engine.quarantine import FIRST, FORGET, LONGEST, PATIENCE, RoundQuarantine


def test_one_bad_update_is_forgiven_and_more_in_a_row_are_not() -> None:
    kept = RoundQuarantine(PATIENCE)
    assert kept.refused("a", 0, "x") == 0 and not kept.reason("a", 1)
    kept.used("a")
    assert kept.refused("a", 2, "x") == 0
    assert kept.refused("a", 3, "garbage") == FIRST
    assert [kept.reason("a", r) for r in range(4, 4 + FIRST + 1)] == ["garbage"] * FIRST + [""]
    assert not kept.reason("b", 4)


def test_a_board_that_is_asked_all_the_same_is_not_left_out_for_longer_later() -> None:
    kept = RoundQuarantine(PATIENCE)
    kept.refused("a", 0, "x")
    for round in range(1, 20):
        assert kept.refused("a", round, "x") == FIRST
        for _ in range(2):  # once more is no merit
            kept.spared("a")
        assert not kept.reason("a", round + 1)
    kept.spared("b")


def test_each_time_is_longer_and_good_rounds_shorten_the_next() -> None:
    kept, round, lengths = RoundQuarantine(PATIENCE), 0, []
    for _ in range(8):
        while not (length := kept.refused("a", round, "x")):
            round += 1
        lengths.append(length)
        round += 1 + length
    assert lengths == [2, 4, 8, 16, 32, 64, 64, 64] and lengths[-1] == LONGEST
    for _ in range(7 * FORGET):
        kept.used("a")
    found = [kept.refused("a", round + k, "x") for k in range(PATIENCE)]
    assert found[-1] == 2 * FIRST
