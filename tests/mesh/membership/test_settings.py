from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.mesh.membership.settings import LocalHealth, RoundTrip, SwimSettings
from edgegossip.types import ConfigError

SETTINGS = SwimSettings()


@given(st.integers(1, 64), st.integers(0, 64))
def test_confirmations_shorten_a_suspicion_down_to_a_floor(members: int, accusers: int) -> None:
    time_s = SETTINGS.suspicion_time_s(members, accusers)
    assert SETTINGS.suspicion_s <= time_s <= SETTINGS.suspicion_factor * SETTINGS.suspicion_time_s(members, members + 5)
    assert SETTINGS.suspicion_time_s(members, accusers + 1) <= time_s


def test_a_fleet_too_small_for_confirmations_does_not_wait_for_any() -> None:
    assert SETTINGS.suspicion_time_s(2, 1) == SETTINGS.suspicion_s
    assert SETTINGS.suspicion_time_s(3, 1) == SETTINGS.suspicion_s * SETTINGS.suspicion_factor
    assert SETTINGS.suspicion_time_s(3, 2) == SETTINGS.suspicion_s


def test_health_stays_within_its_bounds() -> None:
    health = LocalHealth(3)
    health.note(-1)
    assert health.factor == 1
    for _ in range(9):
        health.note(1)
    assert health.factor == 4


def test_timeouts_follow_round_trips_within_bounds() -> None:
    trip = RoundTrip(SETTINGS)
    assert trip.timeout_s == SETTINGS.timeout_s
    for _ in range(30):
        trip.note(0.001)
    assert trip.timeout_s == SETTINGS.timeout_min_s
    for _ in range(30):
        trip.note(0.8)
    assert 0.8 < trip.timeout_s <= SETTINGS.timeout_max_s
    for _ in range(30):
        trip.note(9.0)
    assert trip.timeout_s == SETTINGS.timeout_max_s


def test_a_setting_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="interval_s"):
        SwimSettings(interval_s=0)
