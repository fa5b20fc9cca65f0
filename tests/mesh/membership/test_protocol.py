"""Laws of the members' protocol: merging tables is a join, their hash tells them apart, and how the
detector's times stretch and shrink."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.mesh.membership.protocol import (
    Delay,
    LocalHealth,
    MemberEntry,
    Status,
    SwimSettings,
    digest_of,
    merge,
    rows_of,
)

ENTRIES = st.builds(
    MemberEntry,
    st.sampled_from(Status),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["", "10.0.0.1:7700", "10.0.0.2:7700"]),
)


@given(ENTRIES, ENTRIES, ENTRIES)
@settings(deadline=None)
def test_merging_is_a_join(a: MemberEntry, b: MemberEntry, c: MemberEntry) -> None:
    assert merge(a, a) == a
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(merge(a, b), b) == merge(a, b)


@given(ENTRIES, ENTRIES)
def test_only_a_higher_incarnation_takes_back_what_was_said(a: MemberEntry, b: MemberEntry) -> None:
    merged = merge(a, b)
    assert merged.incarnation == max(a.incarnation, b.incarnation)
    if a.incarnation == b.incarnation:
        assert merged.status == max(a.status, b.status)


@given(st.lists(ENTRIES, min_size=1, max_size=4), st.lists(ENTRIES, min_size=1, max_size=4))
def test_the_digest_tells_tables_apart(a: list[MemberEntry], b: list[MemberEntry]) -> None:
    assert (digest_of(a) == digest_of(b)) == (a == b)


def test_rows_leave_out_who_was_never_seen() -> None:
    here = MemberEntry(Status.ALIVE, 1, 5, "10.0.0.1:7700")
    assert rows_of([MemberEntry(), here, MemberEntry()]) == ((1, here),)


# -- times


SETTINGS = SwimSettings()


@given(st.integers(1, 64))
def test_our_own_failed_probe_shortens_a_suspicion_down_to_a_floor(members: int) -> None:
    shortest_s = SETTINGS.suspicion_time_s(members, True)
    assert SETTINGS.suspicion_s <= shortest_s <= SETTINGS.suspicion_time_s(members, False)


def test_a_fleet_too_small_for_confirmations_does_not_wait_for_any() -> None:
    assert SETTINGS.suspicion_time_s(2, False) == SETTINGS.suspicion_s
    assert SETTINGS.suspicion_time_s(3, False) == SETTINGS.suspicion_s * SETTINGS.suspicion_factor
    assert SETTINGS.suspicion_time_s(3, True) == SETTINGS.suspicion_s


def test_health_stays_within_its_bounds() -> None:
    health = LocalHealth(3)
    health.note(-1)
    assert health.factor == 1
    for _ in range(9):
        health.note(1)
    assert health.factor == 4


def test_timeouts_follow_round_trips_within_bounds() -> None:
    trip = Delay(SETTINGS)
    assert trip.timeout_s(0.0) == SETTINGS.timeout_s
    for _ in range(30):
        trip.note(0.001, 1.0)
    assert trip.timeout_s(1.0) == SETTINGS.timeout_min_s
    for _ in range(30):
        trip.note(0.8, 2.0)
    assert 0.8 < trip.timeout_s(2.0) <= SETTINGS.timeout_max_s
    for _ in range(30):
        trip.note(9.0, 3.0)
    assert trip.timeout_s(3.0) == SETTINGS.timeout_max_s


def test_what_was_measured_long_ago_is_not_known_and_leaves_no_trace() -> None:
    trip = Delay(SETTINGS)
    assert not trip.known(0.0)
    trip.note(5.0, 0.0)
    assert trip.known(SETTINGS.recent_s) and trip.mean_s(SETTINGS.recent_s) == 5.0
    later_s = SETTINGS.recent_s + 0.1
    assert not trip.known(later_s) and trip.mean_s(later_s) == 0.0 and trip.timeout_s(later_s) == SETTINGS.timeout_s
    trip.note(0.01, later_s)
    assert trip.mean_s(later_s) == 0.01
    assert trip.timeout_s(later_s) == trip.timeout_s(2 * later_s + 1.0) == SETTINGS.timeout_min_s


def test_a_rush_is_forgotten_sooner_than_it_is_believed() -> None:
    trip = Delay(SETTINGS)
    for k in range(10):
        trip.note(0.01, k)
    trip.note(2.0, 10.0)
    assert trip.mean_s(10.0) < SETTINGS.usual_s + 0.01
    for k in range(10):
        trip.note(2.0, 11.0 + k)
    for k in range(7):
        trip.note(0.01, 21.0 + 3 * k)
    assert trip.mean_s(40.0) < SETTINGS.usual_s
