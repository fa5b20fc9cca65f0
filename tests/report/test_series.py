from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.report.series import SeriesReader, align, column_mean, column_range, smooth
from edgegossip.telemetry.records import MetricsRecord


def _series(records):
    reader = SeriesReader()
    assert list(reader.watch(records)) == list(records)
    return reader.series()


_floats = st.floats(-1e6, 1e6) | st.just(float("nan"))
_lines = st.lists(_floats, min_size=1, max_size=300).map(np.array)


@given(_lines, st.integers(1, 40))
def test_smoothing_is_a_moving_mean_of_what_is_there(y, window):
    out = smooth(y, window)
    for k in range(y.size):
        near = y[max(0, k - window // 2) : k + (window + 1) // 2]
        near = near[np.isfinite(near)]
        if near.size:
            assert abs(out[k] - near.mean()) <= 1e-6 * max(1.0, np.nanmax(np.abs(y)))
        else:
            assert np.isnan(out[k])


def test_means_and_ranges_pass_over_what_is_missing():
    matrix = np.array([[1.0, np.nan, 3.0], [3.0, np.nan, np.nan]])
    np.testing.assert_equal(column_mean(matrix), [2.0, np.nan, 3.0])
    low, high = column_range(matrix)
    np.testing.assert_equal(low, [1.0, np.nan, 3.0])
    np.testing.assert_equal(high, [3.0, np.nan, 3.0])


def test_boards_are_put_on_one_axis_of_rounds():
    records = [
        MetricsRecord("a", 1, 2.0, {"train/loss": 0.5, "net/sent_bytes": 10}),
        MetricsRecord("a", 0, 1.0, {"train/loss": 1.0, "net/sent_bytes": 10, "time/round_s": 0.25}),
        MetricsRecord("b", 1, 4.0, {"train/loss": 0.7, "net/sent_bytes": 5}),
        MetricsRecord("b", 1, 4.5, {"train/loss": 0.9, "net/sent_bytes": 5}),
        MetricsRecord("a", 2, 3.0, {"train/loss": None}),
    ]
    series = _series(records)
    assert series["a"].step.tolist() == [0, 1, 2]
    curves = align(series)
    np.testing.assert_equal(curves.values["train/loss"], [[1.0, 0.5, np.nan], [np.nan, 0.9, np.nan]])
    assert curves.sent_bytes.tolist() == [10, 30, 30]
    assert curves.t_s.tolist() == [0.25, 1.5, 2.25]  # b comes at 1.25 and is there until 1.75


def test_no_records_is_an_empty_axis():
    assert align(_series([])).t_s.size == 0


def test_each_board_counts_from_its_own_first_round_and_time_never_runs_back():
    def record(node, step, t_s):
        return MetricsRecord(node, step, t_s, {"time/round_s": 1.0})

    early = [record("a", 0, 11.0), record("a", 1, 12.0), record("a", 2, 13.0)]
    slow = [record("b", 0, 101.0), record("b", 1, 105.0)]
    assert align(_series(early + slow)).t_s.tolist() == [1.0, 3.5, 3.5]


def test_scores_are_collected_under_their_names_from_where_they_begin():
    records = [MetricsRecord("a", k, float(k), {"train/loss": 1.0}) for k in range(3)]
    records.append(MetricsRecord("a", 3, 3.0, {"eval/loss": 0.5, "eval/mae": 0.25, "eval/examples": 9}))
    records.append(MetricsRecord("b", 3, 3.0, {"train/loss": 2.0}))
    series = _series(records)
    assert series["a"].columns["eval/mae"].tolist()[3] == 0.25
    assert np.isnan(series["a"].columns["eval/mae"][:3]).all() and "eval/mae" not in series["b"].columns
    curves = align(series)
    assert curves.values["eval/mae"].shape == (2, 4) and np.nansum(curves.values["eval/mae"]) == 0.25
    assert "eval/examples" not in curves.values


def test_what_a_coordinator_sends_and_its_clock_are_not_the_boards():
    def record(node, step, t_s):
        return MetricsRecord(node, step, t_s, {"net/sent_bytes": 100, "time/round_s": 1.0})

    boards = [record(node, step, step + 1.0) for node in "ab" for step in range(2)]
    curves = align(_series([*boards, record("coordinator", 0, 3.0), record("coordinator", 1, 9.0)]))
    assert curves.sent_bytes.tolist() == [200, 400] and curves.t_s.tolist() == [1.0, 2.0]


def test_bytes_that_were_counted_now_and_then_are_spread_over_the_rounds_before():
    counted = {1: 30, 4: 60}
    records = [
        MetricsRecord(
            "a", k, k + 1.0, {"time/round_s": 1.0, **({"net/sent_bytes": counted[k]} if k in counted else {})}
        )
        for k in range(6)
    ]
    records.insert(4, MetricsRecord("a", 3, 4.5, {"eval/loss": 1.0}))  # an evaluation's, which is of no round
    curves = align(_series(records))
    assert curves.sent_bytes.tolist() == [15, 30, 50, 70, 90, 90]
    np.testing.assert_equal(curves.steps, range(6))
