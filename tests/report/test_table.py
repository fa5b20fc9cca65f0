from __future__ import annotations

import pytest

from edgegossip.report.table import run_table, runs_table
from edgegossip.report.units import bytes_text, number_text, seconds_text
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import read_run
from edgegossip.telemetry.summary import summarise, summarise_records
from edgegossip.untrusted import printable


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9_999, "10.0 kB"), (34_560_000, "34.6 MB"),
        (999_499, "999 kB"), (999_500, "1.00 MB"), (2.5e9, "2.50 GB"), (1e16, "10000 TB"),
    ],
)  # fmt: skip
def test_bytes(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.0, "0.000 s"), (0.0342, "0.034 s"), (0.9996, "1.00 s"), (9.999, "10.0 s"), (12.34, "12.3 s"),
        (119.4, "119 s"), (119.6, "2 min 00 s"), (125, "2 min 05 s"), (7199.6, "2 h 00 min"), (12_000, "3 h 20 min"),
    ],
)  # fmt: skip
def test_seconds(seconds, text):
    assert seconds_text(seconds) == text


def test_text_from_elsewhere_cannot_steer_the_terminal():
    assert printable("a\x1b[2Jb\nc\x07\u202e") == "a [2Jb c  "
    assert len(printable("x" * 1000)) == 500
    assert number_text(None, 2) == "-" and number_text(1.005, 1) == "1.0"


def test_the_table_shows_every_board_the_whole_and_who_was_lost(run_dir):
    text = run_table(summarise(read_run(run_dir)))
    lines = text.splitlines()
    reached, times = (line for line in lines if line.startswith("board-0"))
    for cell in ("90.00 %", "0.5000", "20.0 kB", "24.0 kB", "8.25"):
        assert cell in reached
    assert times.split("  ")[0].strip() == "board-0" and times.count("0.200 s") == 6 and "1.20 s" in times
    assert [line.count("0.100 s") for line in lines if line.startswith("board-2 (lost)")] == [0, 6]
    assert "84.0 kB" in next(line for line in lines if line.startswith("all "))
    assert "lost: board-2" in text and "20 rounds | 1.30 s wall" in lines[0]
    assert "\x1b" not in text and max(map(len, lines)) - len(" (lost)") < 80


def test_columns_are_aligned_and_unknown_values_are_dashes():
    head = {"run": "r", "mode": "server", "rounds_asked": 5}
    text = run_table(summarise_records(head, ["a", "a-much-longer-name"], [], []))
    lines = text.splitlines()
    for header in (k for k, line in enumerate(lines) if line.startswith("board")):
        rows = lines[header + 2 : header + 4]
        assert {len(row) for row in rows} == {len(lines[header])}
        assert set(rows[0].split()[2:]) == {"-"} and rows[1].startswith("a-much-longer-name")
    assert "0 of 5 rounds" in lines[0] and "not finished: a, a-much-longer-name" in text


def test_one_board_has_no_rows_for_all_of_them():
    text = run_table(summarise_records({"run": "r", "mode": "gossip", "rounds_asked": 5}, ["pi-01"], [], []))
    lines = text.splitlines()
    assert sum(line.startswith("pi-01") for line in lines) == 2
    assert not [line for line in lines if line.startswith(("all", "mean"))] and "means" not in text
    assert sum(line.startswith("---") for line in lines) == 2  # under each head, and no other
    both = run_table(summarise_records({"run": "r", "mode": "server"}, ["pi-01", "coordinator"], [], []))
    assert [line.split()[0] for line in both.splitlines() if line.startswith(("all ", "mean "))] == ["all", "mean"]


def joined(text):
    """Notes as they were before they were cut to the width of a terminal."""
    return " ".join(text.split())


def _evaluated(node, **scores):
    values = {"train/loss": 0.5, "eval/loss": 0.25, **{f"eval/{name}": v for name, v in scores.items()}}
    return MetricsRecord(node, 0, 1.0, values)


def test_the_scores_of_another_task_have_columns_and_accuracy_has_none():
    records = [_evaluated("a", mae=0.125, r2=0.5), _evaluated("b", mae=0.375, r2=0.25)]
    text = run_table(summarise_records({"run": "r"}, ["a", "b"], records, []))
    (head,) = (line for line in text.splitlines() if line.startswith("board") and "loss" in line)
    assert head.split()[:5] == ["board", "mae", "r2", "test", "loss"] and "accuracy" not in text
    (whole,) = (line for line in text.splitlines() if line.startswith("all "))
    assert whole.split()[1:4] == ["0.2500", "0.3750", "0.2500"] and "all: scores and test loss are means" in text


def test_with_the_loss_alone_there_is_no_column_of_scores():
    text = run_table(summarise_records({"run": "r"}, ["a", "b"], [_evaluated("a"), _evaluated("b")], []))
    (head,) = (line for line in text.splitlines() if line.startswith("board") and "loss" in line)
    assert head.split()[:3] == ["board", "test", "loss"] and "all: the test loss is a mean" in text


def test_what_did_not_happen_has_no_note():
    ends = [EventRecord(name, 2.0, "finished", "") for name in ("a", "b")]
    text = run_table(summarise_records({"run": "r"}, ["a", "b"], [_evaluated("a"), _evaluated("b")], ends))
    notes = [line.partition(": ")[0] for line in text.splitlines() if ": " in line]
    assert {"payload", "round time", "all"} <= set(notes) and "lost" not in text
    assert not {"coordinator", "alone", "started again", "resumed", "not finished"} & set(notes)


def test_what_boards_reached_by_themselves_has_a_table():
    records = [_evaluated("a", mae=0.125), _evaluated("b", mae=0.375)]
    alone = [EventRecord(n, 2.0, "trained-alone", n, {"eval/mae": v}) for n, v in (("a", 0.25), ("b", 0.75))]
    average = [EventRecord("a", 2.0, "averaged", "a", {"eval/mae": 0.5})]
    text = run_table(summarise_records({"run": "r"}, ["a", "b"], records, [*alone, *average]))
    lines = [line.split() for line in text.splitlines()]
    at = lines.index(["board", "alone", "together", "average", "of", "models"])
    assert lines[at - 1] == ["mae"]
    assert lines[at + 2 : at + 4] == [["a", "0.2500", "0.1250", "0.5000"], ["b", "0.7500", "0.3750", "-"]]
    assert lines[at + 5] == ["all", "0.5000", "0.2500", "0.5000"] and "no exchange" in joined(text)
    lost = run_table(summarise_records({"run": "r"}, ["a", "b"], records, [*alone, EventRecord("b", 1.0, "lost", "b")]))
    lines = [line.split() for line in lost.splitlines()]
    at = lines.index(["board", "alone", "together"])
    assert lines[at + 3 : at + 6 : 2] == [["b", "0.7500", "-"], ["all", "0.2500", "0.1250"]]
    shorter = run_table(summarise_records({"run": "r"}, ["a", "b"], records, alone[:1]))  # b did not train by itself
    assert ["all", "0.2500", "0.1250"] in [line.split() for line in shorter.splitlines()] and "average" not in shorter
    assert "boards count the same" not in joined(text)
    records.append(MetricsRecord("coordinator", 0, 1.0, {"eval/mae": 0.2}))  # by examples
    served = run_table(summarise_records({"run": "r", "mode": "server"}, ["a", "b"], records, alone))
    assert ["all", "0.5000", "0.2500"] in [line.split() for line in served.splitlines()]
    assert "no exchange; all boards count the same there" in joined(served)


def test_a_run_that_patience_ended_says_so():
    said = "training ends after round 7: no evaluation was better than that after round 3 for so long"
    ended = EventRecord("coordinator", 3.0, "ended-early", f"{said} (evaluation.patience = 3)", {"rounds": "7"})
    document = summarise_records({"run": "r", "mode": "server", "rounds_asked": 40}, ["a"], [_evaluated("a")], [ended])
    assert document["ended_early"] == ended.text and said in joined(run_table(document))
    assert summarise_records({"run": "r"}, ["a"], [_evaluated("a")], [])["ended_early"] == ""


def test_where_the_coordinator_evaluates_the_table_says_whose_figures_they_are():
    values = {"net/sent_bytes": 100, "net/received_bytes": 40}
    records = [MetricsRecord(node, 0, 1.0, values) for node in ("a", "b")]
    records.append(MetricsRecord("coordinator", 0, 1.0, {"eval/loss": 0.5, "eval/accuracy": 0.75}))
    text = run_table(summarise_records({"run": "r", "mode": "server"}, ["a", "b"], records, []))
    (whole,) = (line for line in text.splitlines() if line.startswith("all "))
    assert whole.split()[1:4] == ["75.00", "%", "0.5000"] and "200 B" in whole
    assert "all: scores and test loss are of the coordinator's model, bytes are sums over all boards" in joined(text)


def test_the_table_says_when_boards_were_lost_and_started_again():
    records = [MetricsRecord(node, k, k + 1.0, {"net/sent_bytes": 1}) for node in ("a", "b") for k in range(4)]
    events = [
        EventRecord("a", 2.5, "restarted", "a is started again: it was killed"),
        EventRecord("b", 4.5, "lost", "lost b: it was killed"),
        EventRecord("a", 5.0, "finished", "a finished"),
    ]
    text = run_table(summarise_records({"run": "r"}, ["a", "b"], records, events))
    assert "lost: b after 4 rounds, at 4.50 s wall: it was killed" in text
    assert "started again: a (1x: after 2 rounds, at 2.50 s wall)" in joined(text)


def test_the_table_says_that_a_run_was_resumed_and_names_no_board_for_it():
    records = [MetricsRecord(node, k, k + 1.0, {"net/sent_bytes": 1}) for node in ("a", "b") for k in range(4)]
    events = [EventRecord(node, 2.5, "resumed", f"{node} goes on: the run is resumed") for node in ("a", "b")]
    text = run_table(summarise_records({"run": "r"}, ["a", "b"], records, events))
    assert "resumed after 2 rounds, at 2.50 s wall; figures are of the whole run" in text
    assert "started again" not in text


@pytest.mark.parametrize(("lost", "left"), [("a", True), ("ab", False)])
def test_where_all_boards_were_lost_none_is_left_for_a_mean(lost: str, left: bool) -> None:
    records = [MetricsRecord(name, 0, 1.0, {"eval/loss": 0.5}) for name in "ab"]
    events = [EventRecord(node, 1.0, "lost", f"lost {node}: no file") for node in lost]
    text = " ".join(run_table(summarise_records({"run": "r"}, ["a", "b"], records, events)).split())
    assert ("boards that are left" in text) == left and "bytes are sums over all boards" in text


@pytest.mark.parametrize(("lost", "ended"), [("abc", "3 boards were lost"), ("a", "3 boards not finished")])
def test_a_list_of_runs_says_what_became_of_most_boards(lost: str, ended: str) -> None:
    """Boards that fail before their first round end those that do not."""
    events = [EventRecord(node, 1.0, "lost", f"lost {node}: no file") for node in lost]
    (_, row) = runs_table([summarise_records({"run": "r", "mode": "gossip"}, [*"abcd"], [], events)])
    assert row.endswith(ended)
