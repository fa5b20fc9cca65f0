"""Exports of a run folder, each read back by what it is made for."""

import csv

import pytest

from edgegossip.report.exports.columns import write_csv
from edgegossip.report.exports.tensorboard import write_tensorboard
from edgegossip.report.web.view import RunView
from edgegossip.telemetry.records import EventRecord, MetricsRecord
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
    assert len(view.whole()) == 2


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
