"""Laws of the control of rates, on links whose speed is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.codecs import auto
from edgegossip.engine.rates import BEARS, COARSEST, Goal, Rates, rates_for
from edgegossip.gossip.base import Says
from edgegossip.layout import Layout, TensorSpec

VALUES = 200_000
LAYOUT = Layout.of([TensorSpec("w", (500, VALUES // 500))])
NORMAL = np.random.default_rng(0).standard_normal(VALUES, np.float32)
Speeds = Mapping[str, float]  # bytes/s of each link by itself


def error_of(size: float, repaired: bool) -> float:
    """About what dither and deadzone lose of a gradient."""
    bits = 8 * size / VALUES
    return math.exp(-2.1 * math.sqrt(bits)) if repaired else 0.25 * bits**-1.5


class Network:
    """Sends a round's messages, all handed over at once, over links of their own behind one
    uplink, which lets them through side by side or one after the other."""

    def __init__(self, goal: Goal, uplink: float = math.inf, in_turn: bool = False, delay_s: float = 0.0) -> None:
        self.rates, self.uplink, self.in_turn, self.delay_s = Rates(goal), uplink, in_turn, delay_s
        self.now_s = 0.0

    def round(self, speeds: Speeds, compute_s: float = 1.0) -> dict[str, int]:
        """Return what was planned; time goes on until the last message is there."""
        allowed = self.rates.plan(speeds, compute_s)
        self.rates.told(min(allowed.values()), error_of(min(allowed.values()), self.rates.goal.says.repaired))
        self.now_s += compute_s
        ends = self._in_turn(allowed, speeds) if self.in_turn else self._side_by_side(allowed, speeds)
        for peer, end_s in sorted(ends.items(), key=lambda item: item[1]):
            self.rates.arrived(peer, allowed[peer], self.now_s, self.now_s + end_s + self.delay_s)
        self.seconds = max(ends.values()) + self.delay_s
        self.now_s += self.seconds
        return allowed

    def _in_turn(self, allowed: Mapping[str, int], speeds: Speeds) -> dict[str, float]:
        ends, at = {}, 0.0
        for peer, size in allowed.items():
            at += size / self.uplink
            ends[peer] = max(at, size / speeds[peer])
        return ends

    def _side_by_side(self, allowed: Mapping[str, int], speeds: Speeds) -> dict[str, float]:
        left, ends, at = {p: float(b) for p, b in allowed.items()}, dict[str, float](), 0.0
        while left:
            paces, capacity = {}, self.uplink
            for n, peer in enumerate(sorted(left, key=lambda p: speeds[p])):  # max-min
                paces[peer] = min(speeds[peer], capacity / (len(left) - n))
                capacity -= paces[peer]
            step = min(left[p] / paces[p] for p in left)
            at += step
            for peer in list(left):
                left[peer] -= paces[peer] * step
                if left[peer] < 1e-6:
                    del left[peer]
                    ends[peer] = at
        return ends


def goal(repaired: bool = True, apart: bool = False, seconds: float = 0.0, most_bytes: int = 0) -> Goal:
    says = Says.MODELS if apart else Says.DIFFERENCES if repaired else Says.UPDATES
    return Goal(VALUES, says, least(says), most_bytes, seconds)


def least(says: Says) -> int:
    return VALUES // (256 if says.repaired else 32)


speeds = st.floats(2e3, 2e7)
goals = st.builds(goal, repaired=st.booleans(), apart=st.booleans(), seconds=st.sampled_from((0.0, 0.05, 0.5, 5.0)))


@given(goals, speeds, st.floats(0.0, 0.05), st.floats(0.01, 10.0))
def test_on_a_constant_link_it_comes_to_rest(wanted: Goal, speed: float, delay_s: float, compute_s: float) -> None:
    network = Network(wanted, delay_s=delay_s)
    found = [network.round({"b": speed * (1.0 + 0.03 * (k % 2))}, compute_s)["b"] for k in range(60)]
    assert len(set(found[-20:])) == 1
    assert all(after <= 2 * before + 1 for before, after in itertools.pairwise(found))


@given(st.booleans(), st.booleans(), st.floats(1e5, 1e6), st.floats(0.1, 1.0), st.sampled_from((0.0, 0.3)))
def test_a_limit_of_seconds_is_kept_and_used(
    repaired: bool, apart: bool, speed: float, seconds: float, delay: float
) -> None:
    network = Network(goal(repaired, apart, seconds), delay_s=delay * seconds)
    for _ in range(20):
        network.round({"b": speed, "c": 2 * speed})
    most = 8 * VALUES / 8 / speed
    assert min(0.75 * seconds, 0.95 * most) <= network.seconds <= seconds


def cost(size: float, says: Says, speed: float, compute_s: float) -> float:
    """Seconds to the same model."""
    repaired = says.repaired
    e = error_of(size, repaired) ** 2
    noise = e / (1 - e) if repaired else e
    rounds = math.inf if repaired and e > 1.11 * COARSEST**2 else 1 + noise / BEARS[says]
    return (compute_s + size / speed) * rounds


def least_cost(says: Says, *args: Any) -> float:
    smallest = least(says)
    return min(cost(min(VALUES, smallest * 2 ** (k / 16)), says, *args) for k in range(129))


@given(st.booleans(), st.booleans(), st.floats(2e5, 1e6), st.floats(0.1, 2.0))
def test_ten_times_slower_and_back(repaired: bool, apart: bool, fast: float, compute_s: float) -> None:
    """Within ten rounds it is where it should be."""
    network = Network(goal(repaired, apart))
    says = network.rates.goal.says
    for speed in (fast, fast / 10, fast):
        for _ in range(10):
            found = network.round({"b": speed, "c": speed}, compute_s)["b"]
        assert cost(found, says, speed, compute_s) <= 1.05 * least_cost(says, speed, compute_s)


@given(st.integers(2, 8), st.floats(1e5, 1e6), st.booleans(), st.sampled_from((0.0, 0.5)))
def test_neighbours_share_an_uplink_alike(boards: int, uplink: float, in_turn: bool, seconds: float) -> None:
    network = Network(goal(apart=True, seconds=seconds), uplink, in_turn)
    all_alike = {f"b{k}": math.inf for k in range(boards)}
    network.rates.plan(all_alike, 1.0)
    network.rates.links["b0"].allowed *= 4.0  # whatever it was before
    for _ in range(25):
        found = network.round(all_alike)
    assert max(found.values()) <= 1.25 * min(found.values())
    if seconds:
        assert sum(found.values()) <= seconds * uplink * 1.01 or min(found.values()) == VALUES // 32


def test_a_neighbour_that_is_slow_no_more_gets_what_the_others_get_and_costs_them_nothing() -> None:
    network = Network(goal(apart=True, seconds=0.5))
    found = [network.round({"a": 2e5, "b": 2e4 if k < 20 else 2e5, "c": 2e5}) for k in range(35)]
    assert all(one["a"] >= 0.5 * found[19]["a"] for one in found[20:])
    assert found[19]["b"] < 0.2 * found[19]["a"] and found[-1]["b"] == found[-1]["a"]


def test_where_all_get_the_same_the_slowest_decides() -> None:
    network = Network(goal(seconds=0.5))
    for _ in range(10):
        found = network.round({"fast": 1e6, "slow": 1e5})
    assert found["fast"] == found["slow"] == pytest.approx(5e4, rel=0.2)


@given(st.integers(2, 8), st.sampled_from((0.0, 0.5)), st.floats(1.0, 1e3), st.floats(1.0, 2.0))
def test_one_neighbour_that_acknowledges_late_silences_a_board_towards_nobody(
    boards: int, seconds: float, late: float, times_as_wrong: float
) -> None:
    """Its messages go on to say something, and are no larger than that needs. Two that are late
    are believed."""

    def error(size: int) -> float:
        return min(1.0, times_as_wrong * error_of(size, True))

    def found(late_ones: int) -> list[int]:
        network, planned = Network(goal(seconds=seconds)), list[int]()
        speeds = {f"b{k}": late if k < late_ones else 1e6 for k in range(boards)}
        for _ in range(60):
            planned.append(network.round(speeds)["b0"])
            network.rates.told(planned[-1], error(planned[-1]))
        return planned[-20:]

    one_late = found(1)
    assert all(0.4 < error(size) <= COARSEST for size in one_late) and max(one_late) <= 1.1 * min(one_late)
    if seconds:
        assert found(2)[-1] == least(Says.DIFFERENCES)


@given(st.integers(2, 8), st.floats(0.3, 30.0), st.sampled_from((0.0, 0.5)))
def test_one_that_acknowledges_rounds_later_takes_nobody_elses_bytes(
    boards: int, late_s: float, seconds: float
) -> None:
    """Where each neighbour gets a message of its own."""

    def found(late_s: float) -> dict[str, int]:
        rates, peers = Rates(goal(apart=True, seconds=seconds)), [f"b{k}" for k in range(boards)]
        ends: list[tuple[float, str, int, float]] = []
        for now_s in map(float, range(60)):
            for end_s, peer, size, start_s in sorted(one for one in ends if one[0] <= now_s):
                rates.arrived(peer, size, start_s, end_s)
            planned = rates.plan(peers, 0.5)
            rates.told(planned["b1"], error_of(planned["b1"], False))
            ends = [one for one in ends if one[0] > now_s]
            for peer, size in planned.items():
                ends.append((now_s + size / 1e7 + (late_s if peer == "b0" else 0.01), peer, size, now_s))
        return planned

    assert found(late_s)["b1"] >= found(0.01)["b1"] / 1.2


@given(st.booleans(), st.floats(0.01, 0.3))
def test_delay_is_not_taken_for_want_of_speed(repaired: bool, delay_s: float) -> None:
    """Small messages over a fast link with delay: fewer bytes would gain nothing."""
    network = Network(goal(repaired), delay_s=delay_s)
    says = network.rates.goal.says
    for _ in range(30):
        found = network.round({"b": 1e8}, compute_s=0.01)["b"]
    assert cost(found, says, 1e8, 0.01 + delay_s) <= 1.05 * least_cost(says, 1e8, 0.01 + delay_s)


def test_a_delay_that_grew_is_told_from_a_link_that_got_slow() -> None:
    rates = Rates(goal())
    rates.plan(["b"], 1.0)
    for k in range(100):
        size, delay_s = (10_000, 20_000)[k % 2], 0.01 if k < 20 else 0.1
        rates.arrived("b", size, float(k), k + delay_s + size / 1e6)
    assert rates.figures()["rate/b_mbit"] == pytest.approx(8.0, rel=0.1)


def test_a_link_that_got_slow_is_believed_at_once_and_one_that_got_fast_little_by_little() -> None:
    rates = Rates(goal())
    rates.plan(["b"], 1.0)
    for k, (speed, mbit) in enumerate([(1e5, 0.8), (1e6, 1.6), (2.42e5, 1.76), (1e4, 0.08)]):
        rates.arrived("b", 10_000, 10.0 * k, 10.0 * k + 10_000 / speed)
        assert rates.figures()["rate/b_mbit"] == pytest.approx(mbit)


def test_bytes_are_never_exceeded() -> None:
    network = Network(goal(most_bytes=10_000))
    assert max(network.round({"b": 1e9})["b"] for _ in range(20)) == 10_000


def test_news_and_figures_are_of_links_that_were_measured() -> None:
    net = Network(goal())
    assert net.rates.figures() == {} and list(net.rates.news()) == []
    net.rates.plan({"a": 1e5, "c": 1e5}, 1.0)  # to c nothing arrives
    allowed = net.round({"a": 1e5, "b": 1e5})
    news = dict(net.rates.news())
    assert set(news) == {"a", "b"} and "its link carries 0.8 Mbit/s" in news["a"]
    assert list(net.rates.news()) == []  # once
    figures = net.rates.figures()
    assert set(figures) == {"rate/a_bits", "rate/a_mbit", "rate/b_bits", "rate/b_mbit"}
    assert figures["rate/a_mbit"] == pytest.approx(0.8)
    assert figures["rate/a_bits"] == pytest.approx(8 * allowed["a"] / VALUES, rel=1e-3)


def test_an_error_that_is_no_number_or_not_known_moves_nothing() -> None:
    rates = Rates(goal())
    first = rates.plan(["a"], 1.0)["a"]
    rates.told(first, math.nan)
    rates.arrived("a", first, 0.0, 10.0)
    assert rates.plan(["a"], 1.0)["a"] == first


def test_a_message_that_says_nothing_is_followed_by_a_finer_one() -> None:
    rates = Rates(goal())
    first = rates.plan(["a"], 1.0)["a"]
    rates.told(first, 1.5)
    rates.arrived("a", first, 0.0, 0.01)
    assert rates.plan(["a"], 1.0)["a"] > first


def test_only_a_codec_that_leaves_the_rate_has_a_control() -> None:
    made = rates_for(codecs.get("auto", seconds=2.0), LAYOUT, Says.UPDATES)
    assert made is not None and made.goal == Goal(VALUES, Says.UPDATES, VALUES // 32, 0, 2.0)
    for codec in (codecs.get("fp32"), codecs.get("auto", error=0.5)):
        assert rates_for(codec, LAYOUT, Says.UPDATES) is None


@settings(max_examples=10)
@given(st.booleans(), st.integers(VALUES // 32, VALUES // 2), st.floats(1e3, 1e7))
def test_what_is_planned_is_what_is_sent(repaired: bool, most_bytes: int, speed: float) -> None:
    """However few bytes are allowed: they are never above those of the codec, nor below its
    least."""
    codec = auto.for_scheme(codecs.get("auto", bytes=most_bytes), repaired)
    rates = rates_for(codec, LAYOUT, Says.DIFFERENCES if repaired else Says.UPDATES)
    assert rates is not None
    for k in range(3):
        planned = rates.plan(["b"], 0.1)["b"]
        body, _ = codec.encode(NORMAL, codec.init(LAYOUT), codecs.Ctx(key=1, round=k, bytes=planned))
        assert 0.9 * planned <= len(body) <= planned <= most_bytes
        rates.told(len(body), 0.5)
        rates.arrived("b", len(body), 10.0 * k, 10.0 * k + len(body) / speed)
