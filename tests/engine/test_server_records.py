"""What a coordinator keeps: records of boards whose metrics are elsewhere, and how far it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.engine.server_records import BoardRecords, Progress
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import DataError, DecodeError, NodeId, Round
from tests.engine.conftest import Written
from tests.engine.toy import LAYOUT

FRAME = Frame(Kind.UPDATE, 1, b"", LAYOUT.hash, b"r" * 16, 0, 1, 1, b"12345678", {Aux.LOSS: 0.5, Aux.EXAMPLES: 8.0})


def rows(written: Written) -> list[tuple[NodeId, Round, Any, Any]]:
    return [(who, step, v.get("time/compute_s"), v.get("net/payload_bytes")) for who, step, v in written.all]


@pytest.fixture
def records(written: Written) -> BoardRecords:
    return BoardRecords(LAYOUT, written)


def test_a_round_has_the_profile_that_comes_with_the_next_answer(records: BoardRecords, written: Written) -> None:
    records.used("pi", 0, FRAME)
    assert rows(written) == []
    assert records.answered("pi", (0, {"time/compute_s": 1.5, "net/sent_bytes": 900})) is None
    assert rows(written) == [("pi", 0, 1.5, 8)] and written.all[0][2]["net/sent_bytes"] == 900
    records.used("pi", 1, FRAME)
    records.answered("pi", (1, {"time/compute_s": 2.5}))
    records.end()
    assert rows(written)[1:] == [("pi", 1, 2.5, 8)]


def test_without_a_profile_a_round_has_what_the_update_said(records: BoardRecords, written: Written) -> None:
    records.used("pi", 0, FRAME)
    assert records.answered("pi", None) is None
    records.used("pi", 1, FRAME)
    assert records.answered("pi", (0, {"time/compute_s": 9.0})) is None  # of an earlier round: not this one's
    records.end()
    assert rows(written) == [("pi", 0, None, 8), ("pi", 1, None, 8)]


def test_a_profile_that_makes_no_sense_is_logged_and_costs_nothing_else(
    records: BoardRecords, written: Written
) -> None:
    for _ in range(3):
        records.used("pi", 0, FRAME)
        assert records.answered("pi", DecodeError("the profile does not say of which round it is")) is not None
    assert records.answered("another", DecodeError("it has no record that waits")) is None
    records.end()
    assert rows(written) == [("pi", 0, None, 8)] * 3
    for _, _, values in written.all:
        assert (values["train/loss"], values["train/examples"]) == (0.5, 8)
        assert values["codec/bits_per_value"] == 8 * 8 / LAYOUT.size


def test_progress_of_another_model_is_refused() -> None:
    short, x = np.zeros(3, np.float32), np.zeros(LAYOUT.size, np.float32)
    Progress(1, x, x, corrections={"pi": x}).check(LAYOUT)
    for wrong in (Progress(1, short), Progress(1, x, short), Progress(1, x, corrections={"pi": short})):
        with pytest.raises(DataError, match="the coordinator's checkpoint cannot be used"):
            wrong.check(LAYOUT)
