"""The page without a browser: what is in it, and that nothing in a run can break out of its
data."""

import base64
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.report.web.page import page
from edgegossip.report.web.view import MOST_EVENTS, MOST_SPANS, PageState, RunView, Table, Tables, pack
from edgegossip.telemetry.records import EventRecord, MetricsRecord, to_line
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.types import DataError
from tests.report.web.packed import unpack
from tests.report.web.synthetic import write_run


@pytest.fixture(scope="module")
def view(tmp_path_factory):
    view = RunView(write_run(tmp_path_factory.mktemp("runs"), boards=6, rounds=60))
    view.read()
    return view


def packed_in(text):
    """Document and columns of each run."""
    first, rest = (
        [unpack(base64.b64decode(b)) for b in re.findall(rf'class="run-{kind}">([^<]*)<', text)]
        for kind in ("data", "rest")
    )
    whole = [
        (document, {node: {**columns[node], **more[node]} for node in columns})
        for (document, columns), (_, more) in zip(first, rest, strict=True)
    ]
    assert all(set(document["names"]) == set().union(*columns.values()) for document, columns in whole)
    return whole


@given(
    st.lists(st.floats(width=32, allow_nan=True), min_size=1),
    st.sampled_from(["time/compute_s", "train/loss", "t_s", "step"]),
)
def test_columns_come_back_as_exact_as_promised(values, name):
    column = np.array(values)
    document, columns = unpack(pack({"x": "ö"}, {"n": {name: column}}))
    back = columns["n"][name].astype(float)
    finite = np.isfinite(column)
    assert document == {"x": "ö"} and back.size == column.size
    assert (np.isnan(back) == np.isnan(column)).all()
    if name == "t_s":
        near = finite & (np.abs(column) < 1e9)
        assert (np.abs(back[near] - column[near]) <= 1e-5).all()
        return
    exact = name == "step" or (column[finite] == np.rint(column[finite])).all()
    error = 0 if exact else 2.0**-9 if name.startswith("time/") else 2.0**-15
    near = finite & (np.abs(column) > 1e-30) & (np.abs(column) < 1e30)
    assert (np.abs(back[near] - column[near]) <= error * np.abs(column[near])).all()


def test_a_page_has_all_rounds_and_asks_nobody(view):
    text = page([view])
    ((document, columns),) = packed_in(text)
    assert document["summary"] == view.summary() and document["name"] == view.data.name
    mode = document["summary"]["mode"]
    assert document["settings"]["run.mode"] == mode and "run" not in document["settings"], "keys as a recipe's"
    assert document["rows"] == [60, 60, 31, 60, 60, 60]
    own = columns["pi-03"]
    assert own["step"].tolist() == list(range(60)) and own["train/loss"][7] == pytest.approx(
        view.tables.nodes["pi-03"].columns["train/loss"][7], rel=2**-15
    )
    assert "default-src 'none'" in text and "connect-src 'none'" in text
    outside = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", text)
    assert all(url.startswith(("data:", "#")) for url in outside)
    assert "Leon Sorokin" in text  # uPlot's licence goes with it


def test_boards_with_a_folder_each_become_one_run(view, tmp_path):
    folders = []
    for node in ("pi-00", "pi-04"):
        folders.append(RunFolder.create(tmp_path, node, view.data.recipe_toml, {}))
        for record in (*read_run(view.folder).events(), *read_run(view.folder).metrics()):
            if record.node == node:
                folders[-1].write(record)
        folders[-1].close()
    for folder in folders:
        folder.write_run(b"\1", ["pi-00", "pi-04"])
    one = RunView(*(folder.path for folder in folders))
    one.read()
    both = view.summary()
    assert one.summary()["nodes"] == 2
    assert one.summary()["boards"] == [row for row in both["boards"] if row["node"] in ("pi-00", "pi-04")]
    ((document, columns),) = packed_in(page([one]))
    assert set(columns) == {"pi-00", "pi-04"} and len(document["clocks"]) == 2
    folders[1].write_run(b"\2", ["pi-04"])
    with pytest.raises(DataError, match="of another run"):
        RunView(*(folder.path for folder in folders))


def test_what_boards_say_stays_text(tmp_path):
    folder = write_run(tmp_path, boards=2, rounds=3)
    evil = "</script><script>alert(1)</script>"
    with (folder / "events.jsonl").open("ab") as file:
        file.write(to_line(EventRecord(evil, 1.0, "notice", evil)))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(to_line(MetricsRecord(evil, 0, 1.0, {evil: 1.0, "train/loss": 2.0})))
    view = RunView(folder)
    view.read()
    for live in (True, False):
        assert page([view], live=live).count("<script>") == 1 and evil not in page([view], live=live)


def test_only_what_is_new_is_packed_again(view):
    total = len(view.tables.events)
    document, columns = unpack(view.new(PageState(0, [60, 58, 0, 60, 60, 60], total - 1, 50)))
    assert [event["n"] for event in document["events"]] == [total - 1]
    assert {step for spans in document["spans"].values() for step in spans} == {str(s) for s in range(51, 60)}
    assert {node: len(c.get("step", ())) for node, c in columns.items()} == {
        "pi-00": 0, "pi-01": 2, "pi-02": 31, "pi-03": 0, "pi-04": 0, "pi-05": 0,
    }  # fmt: skip
    assert view.new(PageState(0, [60, 60, 31, 60, 60, 60], total, 59)) is None
    for known in (PageState(1, [60] * 6, total), PageState(0, [99] * 6, total), PageState(-1)):  # of another run
        assert unpack(view.new(known))[0]["starts"] == {}
    assert document["starts"]["pi-01"] == 58 and columns["pi-01"]["step"].tolist() == [58, 59]


def test_very_long_runs_are_binned_and_sums_stay(view):
    table = Table()
    for step in range(1000):
        values = {"net/sent_bytes": 100 + step % 3, "time/round_s": 0.1} | (
            {"eval/loss": step / 1000} if step % 100 == 50 else {}
        )
        table.add(MetricsRecord("a", step, 0.1 * step, values))
    rows = table.rows(most=64)
    assert rows["rounds"].sum() == 1000 and rows["step"].size <= 64 and rows["step"][-1] == 999
    assert (rows["net/sent_bytes"] * rows["rounds"]).sum() == pytest.approx(sum(100 + s % 3 for s in range(1000)))
    known = rows["eval/loss"][np.isfinite(rows["eval/loss"])]
    assert known.tolist() == [s / 1000 for s in range(50, 1000, 100)]


def test_bytes_that_are_counted_now_and_then_are_counted_once_in_a_very_long_run():
    table = Table()
    for step in range(1000):
        values = {"net/sent_bytes": 700, "sys/energy_j": 7.0} if step % 7 == 6 else {}
        table.add(MetricsRecord("a", step, 0.1 * step, {"time/round_s": 0.1, **values}))
    rows = table.rows(most=64)
    for name, total in (("net/sent_bytes", 142 * 700), ("sys/energy_j", 142 * 7.0)):
        assert np.nansum(rows[name] * rows["rounds"]) == pytest.approx(total)


def test_metrics_that_come_late_or_go_are_missing_where_they_were_not():
    table = Table()
    table.add(MetricsRecord("a", 0, 0.1, {"x": 1.0, "text": "no number", "link/b_s": 1.0}))
    table.add(MetricsRecord("a", 1, 0.2, {"y": 2}))
    table.add(MetricsRecord("a", 2, 0.3, {"x": None, "y": 3.5, "z": float("nan")}))
    rows = table.rows()
    assert set(rows) == {"step", "t_s", "x", "y"}
    assert np.array_equal(rows["x"], [1, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(rows["y"], [np.nan, 2, 3.5], equal_nan=True)


def test_links_spans_and_events_of_long_runs_are_bounded():
    tables = Tables()
    for step in range(1000):
        tables.take(MetricsRecord("a", step, 1.0, {"time/spans": f"c{step}", "link/b/c_bytes": 10, "link/b/c_s": 0.5}))
        for _ in range(4):
            tables.take(EventRecord("a", 1.0, "notice", str(step)))
    assert tables.links == {("a", "b/c"): [10_000.0, 500.0]}
    spans = tables.shown_spans()["a"]
    assert 100 < len(spans) <= MOST_SPANS and spans[0] == "c0"
    events = tables.shown_events()
    assert len(events) == MOST_EVENTS and events[0]["n"] == 0 and events[-1]["n"] == 3999


def test_boards_of_a_coordinator_have_one_link_each():
    tables = Tables()
    tables.take(MetricsRecord("a", 0, 1.0, {"net/sent_bytes": 100, "net/received_bytes": 50, "time/transmit_s": 2.0}))
    tables.take(MetricsRecord("coordinator", 0, 1.0, {"net/sent_bytes": 50}))
    links = tables.shown_links("server", "coordinator")
    assert links == {("a", "coordinator"): [100, 2.0], ("coordinator", "a"): [50, 2.0]}


def test_every_script_is_in_the_page():
    from edgegossip.report.web.page import SCRIPTS

    there = {f.name for f in (files("edgegossip.report.web") / "static").iterdir() if f.name.endswith(".js")}
    assert there == {*SCRIPTS, "uPlot.iife.min.js"}
