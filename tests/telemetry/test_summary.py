"""The summary's arithmetic, on records whose sums can be done in the head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.telemetry.clocks import Clocks
from edgegossip.telemetry.records import PARTS, EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import Summary, beside, recipe_of, summarise, summarise_records

HEAD = {"run": "r", "mode": "gossip", "rounds_asked": 2}
KEYS = "run mode nodes rounds accuracy loss seconds sent_bytes bits_per_value time_s failed_nodes"


def _round(node, step, t_s, **extra):
    values = {
        "train/loss": 1.0 / (step + 1),
        "net/payload_bytes": 100,
        "net/overhead_bytes": 10,
        "net/sent_bytes": 120,
        "net/received_bytes": 60,
        "codec/bits_per_value": 8.0,
        "time/compute_s": 1.0,
        "time/wait_s": 0.5,
        **extra,
    }
    return MetricsRecord(node, step, t_s, values)


def _end(node, name="finished", t_s=9.0):
    return EventRecord(node, t_s, name, name)


def test_a_whole_run():
    metrics = [
        _round("a", 0, 1.0),
        _round("b", 0, 1.5, **{"eval/loss": 0.6, "eval/accuracy": 0.2}),
        _round("a", 1, 2.0, **{"eval/accuracy": 0.8, "eval/loss": 0.4}),
        _round("b", 1, 3.0, **{"eval/accuracy": 0.6, "eval/loss": 0.6, "time/wait_s": 1.5}),
    ]
    document = summarise_records(HEAD, ["a", "b"], metrics, [_end("a", t_s=2.5), _end("b", t_s=3.5)])
    assert set(KEYS.split()) <= set(document)
    assert (document["nodes"], document["rounds"], document["seconds"]) == (2, 2, 3.5)
    assert document["accuracy"] == {"mean": 0.7, "min": 0.6, "max": 0.8}
    assert (document["loss"], document["train_loss"], document["bits_per_value"]) == (0.5, 0.5, 8.0)
    assert document["sent_bytes"] == {"payload": 400, "overhead": 40, "socket": 480, "link": None}
    assert document["time_s"] == {
        "compute": 2.0, "wait": 1.5, "encode": None, "transmit": None, "decode": None, "other": None,
    }  # fmt: skip
    assert document["failed_nodes"] == [] and document["unfinished_nodes"] == []
    assert [row["time_s"]["wait"] for row in document["boards"]] == [1.0, 2.0]
    assert [row["received_bytes"] for row in document["boards"]] == [120, 120]


def test_a_look_at_the_models_afterwards_is_no_part_of_the_run():
    records = [_round("a", 0, 1.0)], [_end("a", t_s=2.0), _end("a", "compared", 9.0), _end("a", "averaged", 9.5)]
    document = summarise_records(HEAD, ["a"], *records)
    assert document["seconds"] == 2.0 and document["failed_nodes"] == []


def test_boards_come_in_the_order_of_the_run_and_where_that_is_unknown_by_number():
    metrics = [_round(name, 0, 1.0) for name in ("board-10", "board-9", "a", "board-1")]
    rows = summarise_records(HEAD, [], metrics, [])["boards"]
    assert [row["node"] for row in rows] == ["a", "board-1", "board-9", "board-10"]
    rows = summarise_records(HEAD, ["board-9", "board-1"], metrics, [])["boards"]
    assert [row["node"] for row in rows] == ["board-9", "board-1", "a", "board-10"]


def test_every_score_is_summed_up_and_the_first_is_the_headline():
    metrics = [
        _round("a", 1, 1.0, **{"eval/loss": 0.3, "eval/mae": 0.2, "eval/r2": 0.5}),
        _round("b", 1, 1.0, **{"eval/loss": 0.5, "eval/mae": 0.4, "eval/r2": 0.7, "eval/examples": 9}),
    ]
    document = summarise_records(HEAD, ["a", "b"], metrics, [_end("a"), _end("b")])
    assert document["score"] == "mae" and list(document["scores"]) == ["mae", "r2"] and document["loss"] == 0.4
    assert {k: round(v, 9) for k, v in document["scores"]["mae"].items()} == {"mean": 0.3, "min": 0.2, "max": 0.4}
    assert document["accuracy"] == document["scores"]["mae"] and document["better"] == "lower"
    row = document["boards"][0]
    assert row["accuracy"] == 0.2 and row["scores"] == {"mae": 0.2, "r2": 0.5}


def test_a_score_of_that_name_stays_the_accuracy_beside_another_headline():
    values = {"eval/loss": 0.3, "eval/iou": 0.4, "eval/accuracy": 0.9}
    document = summarise_records(HEAD, ["a"], [_round("a", 1, 1.0, **values)], [_end("a")])
    assert (document["score"], document["better"], document["accuracy"]["mean"]) == ("iou", "higher", 0.9)
    assert document["boards"][0]["accuracy"] == 0.9


def test_a_run_that_evaluates_its_loss_alone_goes_by_that():
    document = summarise_records(HEAD, ["a"], [_round("a", 1, 1.0, **{"eval/loss": 0.3})], [_end("a")])
    assert (document["score"], document["better"], document["loss"]) == ("loss", "lower", 0.3)
    assert document["accuracy"] == document["scores"]["loss"] == {"mean": 0.3, "min": 0.3, "max": 0.3}
    assert document["boards"][0]["scores"] == {"loss": 0.3}
    assert summarise_records(HEAD, ["a"], [_round("a", 1, 1.0)], [_end("a")])["score"] is None


@pytest.mark.parametrize(("declared", "better"), [("auto", None), ("higher", "higher"), ("lower", "lower")])
def test_whether_more_of_a_score_of_ones_own_is_better_is_what_the_recipe_says(declared, better):
    metrics = [_round("a", 1, 1.0, **{"eval/bleu": 0.3})]
    assert summarise_records({**HEAD, "better": declared}, ["a"], metrics, [_end("a")])["better"] == better


def test_what_boards_reached_alone_and_with_the_average_stands_beside_what_they_reached_together():
    metrics = [_round(name, 1, 1.0, **{"eval/accuracy": score}) for name, score in (("a", 0.9), ("b", 0.5))]
    looks = [
        EventRecord("a", 3.0, "trained-alone", "a", {"eval/accuracy": 0.8, "eval/loss": 0.1}),
        EventRecord("b", 3.0, "trained-alone", "b", {"eval/accuracy": 0.7}),
        EventRecord("b", 2.0, "averaged", "b", {"eval/accuracy": 0.4, "eval/examples": 9}),
    ]
    document = summarise_records(HEAD, ["a", "b"], metrics, [_end("a"), _end("b"), *looks])
    assert beside(document) == [("a", 0.8, 0.9, None), ("b", 0.7, 0.5, 0.4)]
    assert document["alone"] == {"mean": 0.75, "min": 0.7, "max": 0.8} and document["average"]["mean"] == 0.4
    assert document["seconds"] == 9.0 and [row["state"] for row in document["boards"]] == ["finished"] * 2
    shared = [*metrics[:0], _round("a", 1, 1.0), MetricsRecord("coordinator", 1, 2.0, {"eval/accuracy": 0.6})]
    assert beside(summarise_records(HEAD, ["a"], shared, [_end("a"), looks[0]])) == [("a", 0.8, 0.6, None)]
    assert beside(summarise_records(HEAD, ["a", "b"], metrics, [])) == []


def test_boards_that_test_one_model_on_their_own_data_each_have_their_score_beside_the_coordinators_mean():
    metrics = [
        _round("a", 1, 1.0),
        MetricsRecord("a", 1, 1.1, {"eval/loss": 0.1, "eval/accuracy": 1.0, "eval/examples": 30}),
        _round("b", 1, 1.0),
        MetricsRecord("b", 1, 1.1, {"eval/loss": 0.5, "eval/accuracy": 0.6, "eval/examples": 10}),
        MetricsRecord("coordinator", 1, 1.2, {"eval/loss": 0.2, "eval/accuracy": 0.9, "eval/examples": 40}),
    ]
    document = summarise_records({**HEAD, "mode": "server"}, ["a", "b"], metrics, [_end("a"), _end("b")])
    assert document["accuracy"] == {"mean": 0.9, "min": 0.6, "max": 1.0} and document["loss"] == 0.2
    assert [row["accuracy"] for row in document["boards"]] == [1.0, 0.6, 0.9]
    assert document["rounds"] == 2


def test_a_lost_board_is_named_and_keeps_its_figures_but_not_a_say_in_the_means():
    metrics = [
        _round("a", 0, 1.0),
        _round("a", 1, 2.0, **{"eval/loss": 0.6, "eval/accuracy": 0.9}),
        _round("b", 0, 1.0, **{"eval/loss": 0.8, "eval/accuracy": 0.1, "time/wait_s": 7.0}),
    ]
    document = summarise_records(HEAD, ["a", "b", "c"], metrics, [_end("b", "lost"), _end("a")])
    assert document["failed_nodes"] == ["b"] and document["unfinished_nodes"] == ["c"]
    assert document["accuracy"] == {"mean": 0.9, "min": 0.9, "max": 0.9}
    assert (document["loss"], document["train_loss"], document["time_s"]["wait"]) == (0.6, 0.5, 1.0)
    assert document["sent_bytes"]["socket"] == 360
    lost, never = document["boards"][1:]
    assert (lost["state"], lost["rounds"], lost["accuracy"], lost["sent_bytes"]["socket"]) == ("lost", 1, 0.1, 120)
    assert (never["rounds"], never["seconds"], never["sent_bytes"]["payload"]) == (0, None, None)


def test_the_last_word_counts_for_a_board_that_came_back():
    metrics = [_round("a", 0, 1.0)]
    back = summarise_records(HEAD, ["a"], metrics, [_end("a", "lost"), _end("a")])
    gone = summarise_records(HEAD, ["a"], metrics, [_end("a"), _end("a", "lost")])
    assert (back["failed_nodes"], gone["failed_nodes"]) == ([], ["a"])


def test_all_boards_lost_leaves_no_accuracy_but_their_bytes():
    metrics = [_round("a", 0, 1.0, **{"eval/loss": 0.6, "eval/accuracy": 0.5})]
    document = summarise_records(HEAD, ["a"], metrics, [_end("a", "lost")])
    assert document["accuracy"] == {"mean": None, "min": None, "max": None}
    assert document["loss"] is None and document["sent_bytes"]["payload"] == 100
    assert document["boards"][0]["accuracy"] == 0.5 and document["rounds"] == 1


def test_a_run_that_goes_on_shows_the_boards_at_work():
    document = summarise_records(HEAD, ["a"], [_round("a", 0, 1.0, **{"eval/loss": 0.6, "eval/accuracy": 0.5})], [])
    assert document["accuracy"]["mean"] == 0.5 and document["unfinished_nodes"] == ["a"]


def test_a_board_whose_model_is_saved_has_finished_whatever_becomes_of_its_process_then():
    """With `run --alone` it waits for the average of all models, and may be killed meanwhile."""
    events = [_end("a", "trained"), _end("b", "trained"), _end("b")]
    document = summarise_records(HEAD, ["a", "b"], [_round("a", 0, 1.0), _round("b", 0, 1.0)], events)
    assert not document["unfinished_nodes"] and [row["state"] for row in document["boards"]] == ["finished"] * 2


def test_no_records_is_all_null_and_not_zero():
    document = summarise_records(HEAD, ["a"], [], [])
    assert document["seconds"] is None and document["bits_per_value"] is None and document["train_loss"] is None
    assert set(document["sent_bytes"].values()) == set(document["time_s"].values()) == {None}


def test_one_board_without_a_socket_count_makes_that_sum_unknown():
    blind = MetricsRecord("b", 0, 1.0, {"net/payload_bytes": 5})
    document = summarise_records(HEAD, ["a", "b"], [_round("a", 0, 1.0), blind], [])
    assert document["sent_bytes"] == {"payload": 105, "overhead": None, "socket": None, "link": None}


def test_a_coordinator_is_no_board_but_its_evaluation_stands_in():
    metrics = [_round("a", 0, 1.0), _round("coordinator", 0, 1.0, **{"eval/accuracy": 0.75, "eval/loss": 0.5})]
    document = summarise_records(HEAD, ["a"], metrics, [_end("a")])
    assert (document["nodes"], document["accuracy"]["mean"], document["loss"]) == (1, 0.75, 0.5)
    assert document["sent_bytes"]["socket"] == 120 and document["time_s"]["compute"] == 1.0
    assert [row["role"] for row in document["boards"]] == ["board", "coordinator"]
    assert document["unfinished_nodes"] == []


def test_bits_per_value_weighs_by_values_and_not_by_rounds():
    small = _round("a", 0, 1.0, **{"net/payload_bytes": 100, "codec/bits_per_value": 8.0})  # 100 values
    large = _round("a", 1, 2.0, **{"net/payload_bytes": 400, "codec/bits_per_value": 4.0})  # 800 values
    assert summarise_records(HEAD, ["a"], [small, large], [])["bits_per_value"] == 8 * 500 / 900


def test_null_and_nan_measurements_are_passed_over():
    odd = _round("a", 1, 2.0, **{"train/loss": None, "net/sent_bytes": float("nan"), "time/compute_s": None})
    row = summarise_records(HEAD, ["a"], [_round("a", 0, 1.0), odd], [])["boards"][0]
    assert (row["train_loss"], row["sent_bytes"]["socket"], row["time_s"]["compute"]) == (1.0, 120, 1.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 10**9)), max_size=30))
def test_sums_over_boards_are_the_sums_of_their_rows(rounds):
    metrics = [_round(n, s, 1.0, **{"net/sent_bytes": size}) for n, s, size in rounds]
    document = summarise_records(HEAD, [], metrics, [])
    assert (document["sent_bytes"]["socket"] or 0) == sum(size for _, _, size in rounds)
    assert sum(row["sent_bytes"]["socket"] for row in document["boards"]) == (document["sent_bytes"]["socket"] or 0)


def test_from_a_run_folder_and_back_as_strict_json(tmp_path):
    folder = RunFolder.create(tmp_path, "x", '[run]\nmode = "server"\nrounds = 7\n', {})
    folder.write_partition(["a", "b"], ["0"], [[1], [2]])
    folder.write(_round("a", 0, 1.0, **{f"time/{part}_s": 0.125 for part in PARTS}))
    folder.event("a", "finished", "done")
    document = summarise(read_run(folder.path))
    folder.write_summary(document)
    folder.close()
    assert (document["run"], document["mode"], document["rounds_asked"]) == (folder.path.name, "server", 7)
    assert document["unfinished_nodes"] == ["b"]
    assert json.loads(json.dumps(document, allow_nan=False)) == read_run(folder.path).summary


def test_energy_cpu_parts_and_the_peak_are_each_boards_own():
    watched = {"sys/rss_bytes": 100, "sys/peak_rss_bytes": 300, "sys/energy_j": 2.5, "cpu/compute_s": 0.5}
    again = {**watched, "sys/peak_rss_bytes": 200}  # of the process that went on
    metrics = [_round("a", 1, 1.0, **watched), _round("a", 0, 2.0, **again), _round("b", 0, 1.0)]
    a, b = summarise_records({}, ("a", "b"), metrics, ())["boards"]
    assert (a["energy_j"], a["cpu_time_s"]["compute"], a["peak_rss_bytes"]) == (5.0, 1.0, 300)
    assert b["energy_j"] is None
    assert (a["energy_rounds"], b["energy_rounds"]) == (2, 0) and a["rounds"] == 2


def _started(node, t_s, unix_s):
    return EventRecord(node, t_s, "started", f"{node} trains", {"unix_s": unix_s})


def test_all_times_are_on_the_clock_of_the_first_board():
    """b's own clock began 10 s later than a's, c's time of day is of another year."""
    rounds = [_round("a", 0, 2.0), _round("b", 0, 2.5), _round("c", 0, 3.0)]
    events = [_started("a", 1.0, 1001.0), _started("b", 1.0, 1011.0), _started("c", 1.0, 90_000_000.0)]
    assert summarise_records(HEAD, ["a", "b", "c"], rounds, events)["seconds"] == 12.5


def test_each_interruption_is_told_once_with_its_time_and_rounds():
    """a is killed and started again, and goes on by the clock of the run; b, which began 0.5 s
    after a, is lost."""
    rounds = [_round("a", k, 1.0 + k) for k in range(6)] + [_round("b", k, 0.5 + k) for k in range(3)]
    events = [_started("a", 0.5, 1000.5), _started("b", 0.25, 1000.75)]
    events += [EventRecord("a", 3.5, "restarted", "a is started again: it was killed by SIGKILL")]
    events += [
        EventRecord("b", 2.75, "error", "b: out of memory"),
        EventRecord("b", 3.75, "lost", "lost b: exit code 1"),
    ]
    events += [_end("a", t_s=7.0)]
    document = summarise_records(HEAD, ["a", "b"], rounds, events)
    assert document["interruptions"] == [
        {"node": "b", "event": "error", "t_s": 3.25, "rounds": 3, "why": "out of memory"},
        {"node": "a", "event": "restarted", "t_s": 3.5, "rounds": 3, "why": "it was killed by SIGKILL"},
    ]
    live = Summary(["a", "b"])
    for record in (*events, *rounds):  # a follower reads events first
        live.take(record)
    assert live.document(HEAD)["interruptions"] == document["interruptions"]


def test_a_run_that_was_stopped_and_goes_on_interrupted_only_the_board_that_was_lost():
    """b is lost, then all are stopped, and resumed when a had done four rounds."""
    rounds = [_round("a", k, 1.0 + k) for k in range(6)]
    rounds += [_round("b", 0, 1.5), *(_round("b", k, 4.5 + k / 4) for k in range(1, 6))]
    events = [EventRecord("b", 2.0, "lost", "lost b: it was killed by SIGKILL")]
    events += [EventRecord(node, 4.25, "resumed", f"{node} goes on: the run is resumed") for node in "ab"]
    events += [EventRecord(node, 4.5, "loading", f"{node} loads") for node in "ab"]
    events += [_end("a", t_s=7.0), _end("b", t_s=7.0)]
    document = summarise_records(HEAD, ["a", "b"], rounds, events)
    assert document["resumes"] == [{"t_s": 4.25, "rounds": 1}]
    assert document["interruptions"] == [
        {"node": "b", "event": "restarted", "t_s": 2.0, "rounds": 1, "why": "it was killed by SIGKILL"}
    ]
    assert document["restarted_nodes"] == ["b"] and [row["restarts"] for row in document["boards"]] == [0, 1]
    assert (
        document["failed_nodes"] == []
        and document["sent_bytes"] == summarise_records(HEAD, "ab", rounds, [])["sent_bytes"]
    )


def test_a_board_that_comes_back_by_itself_was_away_meanwhile():
    """Its records go on where they ended, and the time of day says how long it was away: 100 s.
    A coordinator that began 5 s after it says that it was lost."""
    rounds = [_round("a", 0, 2.0), _round("a", 1, 4.0)]
    events = [_started("a", 1.0, 1001.0), EventRecord("coordinator", 1.0, "started", "x", {"unix_s": 1006.0})]
    events.append(EventRecord("a", 2.0, "lost", "lost a: it was silent"))
    events += [EventRecord("a", 2.5, "loading", "a loads"), _started("a", 3.0, 1103.0)]
    document = summarise_records(HEAD, ["a"], rounds, events)
    assert document["seconds"] == 104.0
    [one] = document["interruptions"]
    assert (one["event"], one["t_s"], one["rounds"]) == ("restarted", 7.0, 1) and document["restarted_nodes"] == ["a"]
    alone = summarise_records(HEAD, ["a"], rounds, [e for e in events if e.name != "lost"])
    assert [(one["event"], one["t_s"], one["rounds"]) for one in alone["interruptions"]] == [("restarted", 102.5, 1)]
    clocks = Clocks()
    for event in events:
        clocks.take(event)
    assert [clocks.at(event) for event in events] == [1.0, 6.0, 7.0, 102.5, 103.0]
    assert [clocks.of("a", t_s) for t_s in (2.0, 4.0)] == [2.0, 104.0]


@pytest.mark.parametrize(("set_by_s", "away_s"), [(0.0, 0.25), (3600.0, 0.0)], ids=["exact", "time of day set"])
def test_a_process_that_was_started_again_is_on_the_clock_of_all(set_by_s, away_s):
    """By the clock of the run, which began 0.25 s after the first board, unless the time of day was
    set meanwhile."""
    clocks = Clocks()
    for event in (_started("a", 1.0, 1001.0), _started("b", 1.0, 1001.5)):
        clocks.take(event)
    clocks.take(EventRecord("b", 5.0, "restarted", "b is started again: it was killed by SIGKILL"))
    clocks.take(EventRecord("b", 5.5, "loading", "b loads its model"))
    clocks.take(_started("b", 6.0, 1006.25 + set_by_s))
    assert [clocks.of("b", t_s) for t_s in (4.0, 5.5, 7.0)] == [4.5, 5.5 + away_s, 7.0 + away_s]


@pytest.mark.parametrize("still_s", [5.0, 3600.0])
def test_for_how_long_a_run_stood_still_before_it_was_resumed_is_in_no_time(still_s):
    """The coordinator writes on as its boards do, though it has no such event of its own."""
    nodes = ("coordinator", "a")
    events = [_started(node, 1.0, 1001.0) for node in nodes]
    events.append(EventRecord("a", 5.0, "resumed", "a goes on: the run is resumed"))
    events += [EventRecord(node, 5.5, "listening", f"{node} listens") for node in nodes]
    events += [_started(node, 6.0, 1006.0 + still_s) for node in nodes]
    rounds = [_round(node, k, t_s) for node in nodes for k, t_s in enumerate((4.0, 8.0))]
    document = summarise_records(HEAD, ["a"], rounds, [*events, _end("a", t_s=9.0)])
    assert document["seconds"] == 9.0 and document["resumes"] == [{"t_s": 5.0, "rounds": 1}]


@pytest.mark.parametrize("text", ["[run\n", "run = " + "[" * 5000, "run = " + "1" * 5000, "\x00"])
def test_a_recipe_that_cannot_be_read_leaves_the_rest_of_the_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    assert recipe_of(read_run(tmp_path)) == {}
