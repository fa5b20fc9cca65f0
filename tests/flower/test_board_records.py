"""What a coordinator keeps of boards whose records are elsewhere."""

import math
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from edgegossip.flower import protocol
from edgegossip.flower.board_records import BoardRecords
from edgegossip.frame import Aux
from edgegossip.types import DecodeError
from tests.flower import toy


class Frame:
    """What is read of one."""

    aux = {Aux.LOSS: 0.5, Aux.EXAMPLES: 8.0}
    body = b"12345678"


def reply(round: int | None = None, **values: float) -> Message:
    content = RecordDict({} if round is None else {protocol.PROFILE: protocol.profile(round, values)})
    return Message(content, dst_node_id=1, message_type="train")


@pytest.fixture
def records(sink: Any, in_run: int) -> BoardRecords:
    return BoardRecords(toy.LAYOUT, sink)


def written(sink: Any) -> list[tuple[str, int, Any, Any]]:
    return [(who, step, v.get("time/compute_s"), v.get("net/payload_bytes")) for who, step, v in sink.records]


def test_a_round_has_the_profile_that_comes_with_the_next_answer(records: BoardRecords, sink: Any) -> None:
    records.used("pi", 0, Frame())
    assert written(sink) == []
    assert records.answered("pi", reply(0, **{"time/compute_s": 1.5, "net/sent_bytes": 900})) is None
    assert written(sink) == [("pi", 0, 1.5, 8)] and sink.records[0][2]["net/sent_bytes"] == 900
    records.used("pi", 1, Frame())
    records.end({"pi": reply(1, **{"time/compute_s": 2.5})})
    assert written(sink)[1:] == [("pi", 1, 2.5, 8)]


def test_without_a_profile_a_round_has_what_the_update_said(records: BoardRecords, sink: Any) -> None:
    records.used("pi", 0, Frame())
    assert records.answered("pi", reply()) is None
    records.used("pi", 1, Frame())
    assert records.answered("pi", reply(0, **{"time/compute_s": 9.0})) is None  # of an earlier round: not this one's
    records.end({})
    assert written(sink) == [("pi", 0, None, 8), ("pi", 1, None, 8)]


def test_what_waits_outlives_the_coordinator(records: BoardRecords, sink: Any) -> None:
    records.used("pi", 3, Frame())
    other = BoardRecords(toy.LAYOUT, sink)
    other.resume(records.waiting)
    assert other.answered("pi", reply(3, **{"time/compute_s": 1.5})) is None
    other.end({})
    assert written(sink) == [("pi", 3, 1.5, 8)]


def test_a_profile_that_makes_no_sense_is_told_and_costs_nothing_else(records: BoardRecords, sink: Any) -> None:
    for content, why in (
        (RecordDict({protocol.PROFILE: MetricRecord({"time/compute_s": 1.0})}), "of which round"),
        (RecordDict({protocol.PROFILE: MetricRecord({"round": 0, "time/compute_s": math.nan})}), "time/compute_s"),
        (RecordDict({protocol.PROFILE: MetricRecord({"round": 0, "time/compute_s": [1.0]})}), "time/compute_s"),
    ):
        records.used("pi", 0, Frame())
        assert why in (records.answered("pi", Message(content, dst_node_id=1, message_type="train")) or "")
    records.end({})
    assert len(sink.records) == 3


def test_a_profile_has_the_numbers_of_known_metrics_only() -> None:
    values = {"time/compute_s": 1.0, "time/spans": "c1", "sys/power_w": math.inf, "made/up": 3.0, "train/examples": 7}
    made = protocol.profile(3, values)
    assert dict(made) == {"round": 3, "time/compute_s": 1.0, "train/examples": 7}
    made["made/up"] = 1.0
    assert protocol.read_profile(RecordDict({protocol.PROFILE: made})) == (
        3,
        {"time/compute_s": 1.0, "train/examples": 7},
    )
    assert protocol.read_profile(RecordDict({})) is None
    with pytest.raises(DecodeError, match="of which round"):
        protocol.read_profile(RecordDict({protocol.PROFILE: MetricRecord({"round": 0.5})}))
