"""RoundClock on a clock that the test winds itself."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.telemetry.records import METRICS, PARTS
from edgegossip.telemetry.spans import _LOGGED, MOST_SPANS, RoundClock
from edgegossip.types import UsageError


class Clock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.ns = 1_000

    def __call__(self) -> int:
        return self.ns


def _pair() -> tuple[Clock, Clock, RoundClock]:
    wall, cpu = Clock(), Clock()
    return wall, cpu, RoundClock(wall, cpu)


def test_time_goes_to_the_innermost_span_and_the_rest_to_other():
    wall, cpu, clock = _pair()
    wall.ns += 5
    with clock.span("encode"):
        wall.ns += 10
        with clock.span("transmit"):
            assert clock.part == "transmit"
            wall.ns += 100
        wall.ns += 1
    cpu.ns += 42
    times = clock.finish_round()
    assert times.parts_ns == {"compute": 0, "encode": 11, "transmit": 100, "decode": 0, "wait": 0, "other": 5}
    assert (times.round_ns, times.cpu_ns) == (116, 42)


def test_cpu_time_goes_to_what_the_loop_was_at():
    wall, cpu, clock = _pair()
    for part, wall_ns, cpu_ns in (("compute", 900_000, 800_000), ("wait", 500_000, 20_000), ("decode", 10, 10)):
        with clock.span(part):
            wall.ns += wall_ns
            cpu.ns += cpu_ns
    wall.ns += 40_000
    times = clock.finish_round()
    assert times.cpu_parts_ns == {
        "compute": 800_000,
        "encode": 0,
        "transmit": 0,
        "decode": 0,
        "wait": 20_000,
        "other": 10,
    }
    metrics = times.metrics()
    assert metrics["cpu/compute_s"] == 0.0008 and metrics["time/compute_s"] == 0.0009 and set(metrics) <= set(METRICS)
    assert sum(clock.finish_round().cpu_parts_ns.values()) == 0


@given(st.lists(st.tuples(st.sampled_from(PARTS), st.integers(0, 90_000), st.integers(0, 200_000)), max_size=20))
def test_cpu_parts_add_up_to_the_rounds_cpu_time(stretches):
    wall, cpu, clock = _pair()
    for part, wall_ns, cpu_ns in stretches:
        with clock.span(part):
            wall.ns += wall_ns
            cpu.ns += cpu_ns
        if wall_ns % 5 == 0:
            times = clock.finish_round()
            assert sum(times.cpu_parts_ns.values()) == times.cpu_ns
    times = clock.finish_round()
    assert sum(times.cpu_parts_ns.values()) == times.cpu_ns


def test_a_round_that_ends_inside_a_span_leaves_the_rest_to_the_next_one():
    wall, _, clock = _pair()
    with clock.span("decode"):
        wall.ns += 7
        first = clock.finish_round()
        wall.ns += 2
    second = clock.finish_round()
    assert (first.parts_ns["decode"], first.round_ns) == (7, 7)
    assert (second.parts_ns["decode"], second.round_ns) == (2, 2)


def test_the_part_of_a_span_may_be_chosen_at_its_end():
    wall, _, clock = _pair()
    with clock.span("wait") as span:
        wall.ns += 9
        span.part = "transmit"
    times = clock.finish_round()
    assert (times.parts_ns["transmit"], times.parts_ns["wait"]) == (9, 0)


def test_charge_moves_time_that_has_passed_and_no_more():
    wall, _, clock = _pair()
    with clock.span("wait"):
        wall.ns += 3_000
        assert clock.charge("transmit", 1e-6) == 1e-6
        assert clock.charge("transmit", 5.0) == 2e-6
        assert clock.charge("transmit", -1.0) == 0.0
    times = clock.finish_round()
    assert (times.parts_ns["transmit"], times.parts_ns["wait"], times.round_ns) == (3_000, 0, 3_000)


def test_a_charge_is_in_the_stretches_too():
    """Ten to compute, five to send, and then 50 on a barrier inside the span that sends."""
    wall, _, clock = _pair()
    with clock.span("compute"):
        wall.ns += 10_000_000
    with clock.span("transmit"):
        wall.ns += 55_000_000
        clock.charge("wait", 0.05)
        wall.ns += 2_000_000
    assert clock.finish_round().spans() == "c10000t5000w50000t2000"


def test_an_exception_ends_its_span():
    wall, _, clock = _pair()
    with contextlib.suppress(ZeroDivisionError), clock.span("compute"):
        wall.ns += 4
        raise ZeroDivisionError
    wall.ns += 6
    assert clock.finish_round().parts_ns == {
        "compute": 4,
        "other": 6,
        "encode": 0,
        "transmit": 0,
        "decode": 0,
        "wait": 0,
    }


def test_unknown_parts_are_named():
    _, _, clock = _pair()
    with pytest.raises(UsageError, match=r"no part 'computing'.*compute, encode"):
        clock.span("computing")
    with pytest.raises(UsageError, match="no part"):
        clock.charge("sleep", 1.0)


def test_spans_that_overlap_without_nesting_are_refused():
    _, _, clock = _pair()
    outer, inner = clock.span("encode"), clock.span("decode")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(UsageError, match="still open"):
        outer.__exit__(None, None, None)


_moves = st.recursive(
    st.integers(0, 10**12),
    lambda inner: st.tuples(st.sampled_from(PARTS), st.lists(inner, max_size=4)),
    max_leaves=25,
)


@given(st.lists(_moves, max_size=6), st.data())
def test_parts_always_add_up_to_the_wall_time(tree, data):
    """Any nesting, with rounds ended and time charged at any point: nothing is lost and nothing is
    counted twice."""
    wall, _, clock = _pair()
    start_ns, finished, expected = wall.ns, [], dict.fromkeys(PARTS, 0)
    charging = data.draw(st.booleans())

    def walk(node, part):
        if isinstance(node, int):
            wall.ns += node
            expected[part] += node
            if data.draw(st.booleans()):
                finished.append(clock.finish_round())
            elif charging:
                clock.charge(data.draw(st.sampled_from(PARTS)), node / 2e9)
            return
        with clock.span(node[0]):
            for child in node[1]:
                walk(child, node[0])

    for node in tree:
        walk(node, "other")
    finished.append(clock.finish_round())
    assert all(sum(t.parts_ns.values()) == t.round_ns for t in finished)
    for times in finished:
        stretches = dict.fromkeys(PARTS, 0)
        for span, ns, _ in times.log:
            stretches[span.part] += ns
        assert stretches == times.parts_ns
    assert sum(t.round_ns for t in finished) == wall.ns - start_ns
    if not charging:
        assert {p: sum(t.parts_ns[p] for t in finished) for p in PARTS} == expected


def test_the_default_clocks_run():
    clock = RoundClock()
    with clock.span("compute"):
        sum(range(10_000))
    times = clock.finish_round()
    assert times.parts_ns["compute"] > 0 and times.round_s == times.round_ns / 1e9


def test_spans_of_a_round_fill_it_in_their_order():
    wall, _, clock = _pair()
    with clock.span("compute"):
        wall.ns += 812_000
    with clock.span("encode"):
        wall.ns += 35_400
        with clock.span("transmit"):
            wall.ns += 5_400
        wall.ns += 200  # too short to see: goes to what is before it
    with clock.span("wait"):
        wall.ns += 120_000
    times = clock.finish_round()
    assert times.spans() == "c812e35t6w120"
    assert times.metrics(step=0)["time/spans"] == times.spans()
    assert "time/spans" not in times.metrics(step=7)  # of so short rounds every hundredth
    assert "time/spans" not in times.metrics()
    wall.ns += 300_000_000
    assert clock.finish_round().metrics(step=7)["time/spans"] == "o300000"


def test_what_is_computed_while_frames_are_on_their_way_is_told_apart():
    """And is computing all the same: the parts of the round stay as they are."""
    wall, _, clock = _pair()
    with clock.span("compute"):
        wall.ns += 3_000
        clock.beside(True)
        wall.ns += 40_000
        clock.beside(True)
        wall.ns += 5_000
        clock.beside(False)
        wall.ns += 7_000
    times = clock.finish_round()
    assert times.spans() == "c3C45c7" and times.parts_ns["compute"] == times.round_ns == 55_000


def test_a_round_of_too_many_spans_has_none_written_down():
    wall, _, clock = _pair()
    for part in ["wait", "transmit"] * MOST_SPANS:
        with clock.span(part):
            wall.ns += 1_000
    assert clock.finish_round().spans() == ""
    with clock.span("wait"):
        wall.ns += 1_000
    assert clock.finish_round().spans() == "w1"


def test_a_round_of_more_stretches_than_are_kept_has_none_written_down():
    """Merged they would be few, but of the round's beginning only."""
    wall, _, clock = _pair()
    for _ in range(_LOGGED):
        with clock.span("wait"):
            wall.ns += 1_000
    with clock.span("compute"):
        wall.ns += 5_000_000
    times = clock.finish_round()
    assert times.spans() == "" and "time/spans" not in times.metrics(step=0)
