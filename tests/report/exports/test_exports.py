"""Exports of a run folder, each read back by what it is made for."""

import csv
import json

import pytest

from edgegossip.report.exports.columns import write_csv
from edgegossip.report.exports.tensorboard import write_tensorboard
from edgegossip.report.exports.trace import parse_spans, write_trace
from edgegossip.report.web.view import RunView
from edgegossip.telemetry.records import PARTS, EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run
from tests.report.web.synthetic import AHEAD_S, START_UNIX_S, write_run


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    """Six boards, one lost half-way, forty rounds."""
    view = RunView(write_run(tmp_path_factory.mktemp("runs"), boards=6, rounds=40))
    view.read()
    return view


@pytest.fixture(scope="module")
def records(view):
    return list(read_run(view.folder).metrics())


def test_csv_has_every_number_that_was_recorded(view, records, tmp_path):
    paths = {path.name: path for path in write_csv([view], tmp_path / "new" / "folder")}
    rows = {(row["node"], int(row["step"])): row for row in csv.DictReader(paths["metrics.csv"].open())}
    assert len(rows) == len(records)
    for record in records:
        row = rows[record.node, record.step]
        late_s = AHEAD_S * int(record.node.removeprefix("pi-"))  # the board's clock began so much later
        assert row["run"] == view.data.name and float(row["t_s"]) == pytest.approx(record.t_s + late_s, abs=1e-6)
        for name in set(row) - {"run", "node", "step", "t_s"}:
            assert row[name] == "" if record.number(name) is None and name not in record.values else True
            if record.number(name) is not None:
                assert float(row[name]) == record.number(name)
    assert "." not in rows[records[0].node, 0]["net/payload_bytes"]
    events = list(csv.DictReader(paths["events.csv"].open()))
    assert sorted(e["text"] for e in events) == sorted(e.text for e in read_run(view.folder).events())
    links = list(csv.DictReader(paths["links.csv"].open()))
    assert len(links) == 12  # a ring of six, both ways
    total = sum(
        r.number(name) for r in records for name in r.values if name.startswith("link/") and name.endswith("_bytes")
    )
    assert sum(int(row["bytes"]) for row in links) == total


def test_times_are_on_one_clock_and_events_in_their_order(tmp_path):
    """b began 10 s after a; a is killed at 13 s by the clock of the run, and b notices it."""
    folder = RunFolder.create(tmp_path, "x", "", {})
    for record in (
        EventRecord("b", 1.0, "started", "b trains", {"unix_s": 1011.0}),
        EventRecord("a", 1.0, "started", "a trains", {"unix_s": 1001.0}),
        EventRecord("b", 3.5, "peer-down", "lost a", {"peer": "a"}),
        EventRecord("a", 13.0, "lost", "lost a: it was killed"),
        MetricsRecord("b", 0, 2.0, {"time/round_s": 0.5, "time/compute_s": 0.5}),
    ):
        folder.write(record)
    folder.close()
    view = RunView(folder.path)
    view.read()
    write_csv([view], tmp_path)
    events = list(csv.DictReader((tmp_path / "events.csv").open()))
    expected = [(1.0, "started"), (11.0, "started"), (13.0, "lost"), (13.5, "peer-down")]
    assert [(float(e["t_s"]), e["event"]) for e in events] == expected
    assert [float(row["t_s"]) for row in csv.DictReader((tmp_path / "metrics.csv").open())] == [12.0]
    trace = json.loads(write_trace([view], tmp_path / "trace.json").read_text())["traceEvents"]
    assert [(e["ts"] / 1e6, e["name"]) for e in trace if e["ph"] == "i"] == expected
    assert [e["ts"] for e in trace if e["name"] == "round 1"] == [11.5e6]


def test_a_trace_has_every_round_with_its_parts_inside(view, records, tmp_path):
    events = json.loads(write_trace([view], tmp_path / "trace.json").read_text())["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    rounds = {(threads[e["pid"], e["tid"]], e["name"]): e for e in slices if e["cat"] == "round"}
    assert len(rounds) == len(records)
    for record in records:
        whole = rounds[record.node, f"round {record.step + 1}"]
        assert whole["dur"] == pytest.approx(1e6 * record.number("time/round_s"), abs=0.1)
        assert whole["args"]["train/loss"] == record.number("train/loss")
        inside = [
            e for e in slices
            if e["cat"] == "part" and threads[e["pid"], e["tid"]] == record.node
            and whole["ts"] - 2 <= e["ts"] < whole["ts"] + whole["dur"] - 2
        ]  # fmt: skip
        for part in PARTS:
            spent = sum(e["dur"] for e in inside if e["name"] == part)
            assert spent == pytest.approx(1e6 * record.number(f"time/{part}_s"), abs=3)
    first = {threads[e["pid"], e["tid"]]: e["ts"] + e["dur"] for e in slices if e["name"] == "round 1"}
    assert len(first) == 6 and max(first.values()) - min(first.values()) < 1  # all end together, to a microsecond
    counters = [e for e in events if e["ph"] == "C" and e["name"] == f"sys/temperature_c {records[0].node}"]
    assert counters[0]["args"]["value"] == records[0].number("sys/temperature_c")
    assert counters[0]["ts"] == pytest.approx(first[records[0].node], abs=1)  # read at the end of its round
    assert sum(e["ph"] == "i" for e in events) == len(view.tables.events)


def test_stretches_of_a_round_stand_as_they_were():
    assert parse_spans("C812c7e35t5w120d8?3x9") == [
        ("compute", 812e-6, True), ("compute", 7e-6, False), ("encode", 35e-6, False),
        ("transmit", 5e-6, False), ("wait", 120e-6, False), ("decode", 8e-6, False),
    ]  # fmt: skip


def test_what_is_sent_while_a_board_computes_stands_within_the_computing(tmp_path):
    folder = write_run(tmp_path, boards=2, rounds=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"node": "pi-00", "step": 2, "t_s": 9.5, "time/round_s": 1.0, "time/spans": "C600000c400000"}\n')
    view = RunView(folder)
    view.read()
    events = json.loads(write_trace([view], tmp_path / "trace.json").read_text())["traceEvents"]
    [sent] = [e for e in events if e.get("cat") == "beside"]
    assert sent["name"] == "transmit" and sent["dur"] == 0.6e6
    computed = [(e["ts"], e["dur"]) for e in events if e["name"] == "compute"]
    assert (sent["ts"], sent["dur"]) in computed


def test_numbers_that_no_one_should_have_written_stop_no_export(tmp_path):
    """A loss that ran away, and an infinite one."""
    folder = write_run(tmp_path, boards=2, rounds=2)
    with (folder / "metrics.jsonl").open("a") as file:
        for number in ("1e999", "9e99", "1e39"):
            file.write(
                f'{{"node": "pi-00", "step": 2, "t_s": 9.5, "train/loss": {number}, "time/round_s": {number}}}\n'
            )
    view = RunView(folder)
    view.read()
    write_csv([view], tmp_path / "csv")
    write_tensorboard([view], tmp_path / "board")
    trace = json.loads(write_trace([view], tmp_path / "trace.json").read_text())
    assert len(trace["traceEvents"]) > 10 and len(view.whole()) == 2


def test_tensorboard_reads_its_event_files(view, records, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    folders = write_tensorboard([view], tmp_path)
    assert len(folders) == 6
    read = reader.EventAccumulator(str(folders[0]), size_guidance={reader.SCALARS: 0}).Reload()
    own = [r for r in records if r.node == folders[0].name]
    losses = read.Scalars("train/loss")
    assert [e.step for e in losses] == [r.step for r in own]
    assert [e.value for e in losses] == pytest.approx([r.number("train/loss") for r in own], rel=1e-6)
    assert losses[3].wall_time == pytest.approx(START_UNIX_S - 0.02 + own[3].t_s)
    assert len(read.Scalars("eval/accuracy")) == sum("eval/accuracy" in r.values for r in own)
