"""Lines of JSON for collectors of logs."""

from __future__ import annotations

import io
import json
import math

import pytest

from edgegossip.report.json_log import ROUND_EVERY_S, JsonLog
from edgegossip.telemetry.records import EventRecord, MetricsRecord

HEAD = ["time", "level", "run", "node", "event", "text"]


class Log:
    """A log on virtual time."""

    def __init__(self) -> None:
        self.now_s, self.stream = 1767323045.678, io.StringIO()
        self.sink = JsonLog("demo", self.stream, lambda: self.now_s)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def log() -> Log:
    return Log()


def test_an_event_is_a_line_with_its_fields(log: Log) -> None:
    log.sink.write(EventRecord("pi-01", 1.0, "peer-down", 'lost pi-02:\n"refused" ö', {"peer": "pi-02"}))
    [line] = log.lines()
    assert list(line) == [*HEAD, "peer"] and log.stream.getvalue().endswith("\n")
    assert line["time"] == "2026-01-02T03:04:05.678Z" and line["peer"] == "pi-02" and line["run"] == "demo"
    assert line["text"] == 'lost pi-02:\n"refused" ö'


def test_what_people_should_look_at_is_a_warning(log: Log) -> None:
    for name in ("started", "lost", "error", "checkpoint-failed", "finished"):
        log.sink.write(EventRecord("pi-01", 1.0, name, name))
    levels = {line["event"]: line["level"] for line in log.lines()}
    assert levels == dict.fromkeys(levels, "warning") | {"started": "info", "finished": "info"}


def test_rounds_are_lines_now_and_then_for_each_board(log: Log) -> None:
    for step in range(40):
        for node in ("pi-01", "pi-02"):
            log.sink.write(MetricsRecord(node, step, 0.0, {"train/loss": 0.5, "eval/loss": math.inf}))
        log.now_s += ROUND_EVERY_S / 10
    lines = log.lines()
    assert [line["step"] for line in lines if line["node"] == "pi-02"] == [0, 10, 20, 30]
    assert len(lines) == 8 and lines[0]["train/loss"] == 0.5 and lines[0]["eval/loss"] is None
    assert lines[0]["text"] == "pi-01 has done round 1" and lines[0]["event"] == "round"


def test_no_field_hides_one_of_the_lines_own(log: Log) -> None:
    log.sink.write(EventRecord("pi-01", 1.0, "notice", "text", {"node": "pi-99", "level": "error", "x": 1}))
    [line] = log.lines()
    assert (line["node"], line["level"], line["x"]) == ("pi-01", "info", 1)
