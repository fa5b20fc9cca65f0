from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.telemetry.records import MAX_LINE_BYTES, EventRecord, LogText, MetricsRecord, parse_record, to_line
from edgegossip.types import UsageError

_names = st.text(min_size=1, max_size=12)
_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=20), st.floats(allow_nan=False)
)
_values = _values.filter(lambda v: not (isinstance(v, float) and abs(v) > 1e100))
_own = {"node", "step", "t_s", "event", "text"}
_fields = st.dictionaries(_names.filter(lambda n: n not in _own), _values, max_size=5)
_t_s = st.floats(0, 1e9)


@given(st.one_of(
    st.builds(MetricsRecord, _names, st.integers(0, 10**7), _t_s, _fields),
    st.builds(EventRecord, _names, _t_s, _names, st.text(max_size=40), _fields),
))  # fmt: skip
def test_round_trip(record):
    line = to_line(record)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert parse_record(line) == record


def test_numbers_that_are_not_finite_become_null():
    line = to_line(MetricsRecord("a", 0, 0.0, {"x": math.nan, "y": math.inf, "z": np.float32("-inf"), "n": 1.5}))
    body = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (body["x"], body["y"], body["z"], body["n"]) == (None, None, None, 1.5)
    record = parse_record(line)
    assert isinstance(record, MetricsRecord)
    assert record.number("x") is None and record.number("n") == 1.5 and record.number("absent") is None


def test_numpy_scalars_become_plain():
    values = {"a": np.float32(0.5), "b": np.int64(7), "c": np.bool_(True), "d": np.array(2.0)}
    record = parse_record(to_line(MetricsRecord("n", np.int64(3), 1.0, values)))
    assert record == MetricsRecord("n", 3, 1.0, {"a": 0.5, "b": 7, "c": True, "d": 2.0})


def test_what_cannot_be_a_value_is_refused():
    with pytest.raises(UsageError, match="list"):
        to_line(MetricsRecord("n", 0, 0.0, {"a": [1]}))
    with pytest.raises(UsageError, match="'node'"):
        to_line(EventRecord("n", 0.0, "x", "y", {"node": "other"}))


@pytest.mark.parametrize(
    "line",
    [
        b"Downloading weights\n",
        b"{not json}\n",
        b"{}\n",
        b'{"node": "a", "step": -1, "t_s": 0}\n',
        b'{"node": "a", "step": true, "t_s": 0}\n',
        b'{"node": "", "step": 1, "t_s": 0}\n',
        b'{"node": "a", "step": 1, "t_s": "soon"}\n',
        b'{"node": "a", "step": 1, "t_s": 0, "x": [1]}\n',
        b'{"node": "a", "t_s": 0, "event": "x"}\n',
        b'{"node": "a", "t_s": 0, "event": 5, "text": "x"}\n',
        b"[" * 20 + b"\n",
        b'{"a":' * 50_000 + b"\n",
        b'{"node": "a", "step": 1, "t_s": 0, "x": "' + b"y" * MAX_LINE_BYTES + b'"}\n',
    ],
)
def test_other_lines_are_log_text(line):
    assert isinstance(parse_record(line), LogText)


@given(st.binary(max_size=200))
def test_no_line_raises(line):
    parse_record(line)


def test_nan_and_huge_numbers_from_a_child_are_not_taken_for_numbers():
    record = parse_record(b'{"node": "a", "step": 1, "t_s": 0, "x": NaN, "y": 1e999}\n')
    assert isinstance(record, MetricsRecord)
    assert record.number("x") is None and record.number("y") is None
    assert isinstance(parse_record('{"node": "a", "step": 1, "t_s": 1e999}'), LogText)
    assert isinstance(parse_record('{"node": "a", "step": 1, "t_s": 1' + "0" * 400 + "}"), LogText)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e308", "1E+101", "1" + "0" * 150 + ".0"])
def test_a_number_whose_sum_with_another_would_be_infinite_is_not_known(number):
    record = parse_record(f'{{"node": "a", "step": 1, "t_s": 2.0, "x": {number}, "y": 1e99, "z": 1e-320}}')
    assert record == MetricsRecord("a", 1, 2.0, {"x": None, "y": 1e99, "z": 1e-320})
    assert isinstance(parse_record(f'{{"node": "a", "step": 1, "t_s": {number}}}'), LogText)


def test_a_board_speaks_for_itself_only():
    line = to_line(EventRecord("board-1", 0.0, "lost", "text"))
    assert isinstance(parse_record(line, node="board-1"), EventRecord)
    assert isinstance(parse_record(line, node="board-2"), LogText)
