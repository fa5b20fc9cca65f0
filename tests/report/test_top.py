"""`edgegossip top`: a table of boards that follows a folder, on a terminal and off it."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from edgegossip.report.live import follow, plain_table
from edgegossip.report.progress import Watcher, newest_run
from edgegossip.report.units import brief_text
from edgegossip.telemetry.records import EventRecord, MetricsRecord, to_line
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.types import DataError

RECIPE = '[run]\nname = "demo"\nmode = "gossip"\nrounds = 9\n'
NAMES = ["a", "b", "c"]


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path, "demo", RECIPE, {})
    folder.write_partition(NAMES, ["zero"], [[1], [1], [1]])
    yield folder
    folder.close()


def play(folder, step, slow="b"):
    for name in NAMES:
        parts = {
            "time/compute_s": 0.09 if name == slow else 0.03,
            "time/wait_s": 0.0 if name == slow else 0.06,
            "time/encode_s": 0.01,
        }
        values = {
            "train/loss": 0.5,
            "net/sent_bytes": 1000,
            "sys/temperature_c": 61.2,
            "sys/throttled": name == "c",
            **parts,
        }
        folder.write(MetricsRecord(name, step, 0.1 * (step + 1), values))


def end(folder):
    for name in NAMES:
        folder.write(EventRecord(name, 1.0, "finished", f"{name} finished"))


def test_a_run_that_was_killed_is_not_followed_for_ever(folder):
    play(folder, 0)
    stream, now = io.StringIO(), []
    watcher = Watcher(folder.path)
    watcher.read()
    later_s = time.time() + 60
    assert not watcher.abandoned(10.0, later_s)  # its writer only has nothing to say
    folder.close()
    assert watcher.abandoned(10.0, later_s) and not watcher.abandoned(10.0, time.time())
    for name in ("metrics.jsonl", "events.jsonl", "run.json", "recipe.toml"):
        if (folder.path / name).exists():
            os.utime(folder.path / name, (1.0, 1.0))
    follow(folder.path, stream=stream, environ={}, sleep=now.append)
    assert now == [] and "the run was stopped" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (4.2e-6, "4 us"),
        (0.00034, "340 us"),
        (0.00341, "3.41 ms"),
        (0.9996, "1.00 s"),
        (2.0, "2.00 s"),
    ],
)
def test_seconds_of_a_round(seconds, text):
    assert brief_text(seconds) == text


def test_the_table_has_each_boards_seconds_sensors_and_who_is_waited_for(folder):
    for step in range(4):
        play(folder, step)
    folder.write(EventRecord("a", 0.5, "waiting", "round 4: waiting for b for 5 s", {"missing": "b"}))
    watcher = Watcher(folder.path)
    watcher.read()
    lines = plain_table(watcher).splitlines()
    row = {line.split()[0]: line for line in lines[4:]}
    assert "round 4/9" in lines[0] and "sent 12.0 kB" in lines[0]
    assert row["a"].endswith("round 4: waiting for b for 5 s")
    assert row["b"].endswith("the others wait for it") and "90.0 ms" in row["b"]
    assert "60.0 ms" in row["c"] and "61 °C!" in row["c"] and "61 °C!" not in row["b"]


def test_off_a_terminal_it_prints_lines_until_the_run_is_over(folder):
    stream, step = io.StringIO(), iter(range(20))

    def sleep(_):
        now = next(step)
        if now < 8:
            play(folder, now)
        elif now == 8:
            folder.write(EventRecord("a", 0.9, "peer-down", "lost c: refused", {"peer": "c"}))
        elif now == 9:
            end(folder)

    follow(folder.path, stream=stream, environ={}, sleep=sleep)
    text = stream.getvalue()
    assert next(step) == 10
    assert sorted({int(n) for n in re.findall(r"round (\d)/9  training loss", text)}) == list(range(9))
    assert "0.900 s  !! a: lost c: refused\n" in text and "\x1b" not in text
    assert text.splitlines()[-1].startswith("c ") and text.rstrip().endswith("finished")


def test_a_run_begun_anew_in_the_same_folder_is_shown_anew(folder):
    play(folder, 0)
    play(folder, 1)
    watcher = Watcher(folder.path)
    watcher.read()
    (folder.path / "metrics.jsonl").write_bytes(to_line(MetricsRecord("a", 0, 0.1, {"train/loss": 0.7})))
    watcher.read()
    assert watcher.fleet.boards["a"].rounds == 1 and watcher.fleet.boards["b"].rounds == 0


def test_without_a_folder_it_is_the_newest_of_all_runs(folder, tmp_path):
    assert newest_run(tmp_path) == folder.path
    with pytest.raises(DataError, match="name one"):
        newest_run(tmp_path / "none")


def test_on_a_terminal_it_draws_in_place_and_ends_with_the_run(folder):
    pytest.importorskip("rich", reason="needs rich: pip install '.[report]'")
    play(folder, 0)
    main, terminal = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "190", "LINES": "30"}
    environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "edgegossip", "top", str(folder.path), "--every", "0.1"]
    top = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    os.close(terminal)
    try:
        seen = read_until(main, b"others wait for it")
        assert "█".encode() in seen and b"61 \xc2\xb0C!" in seen
        folder.write(EventRecord("a", 0.9, "peer-down", "lost c: refused", {"peer": "c"}))
        assert read_until(main, b"a: lost c: refused")
        end(folder)
        seen = read_until(main)
        assert top.wait(20) == 0
        assert b"finished" in seen
    finally:
        top.kill()
        top.wait()
        os.close(main)


def read_until(fd, *words, patience_s=40):
    """What is printed until all words are in it; without words, until the other end is closed."""
    seen, end_s = b"", time.monotonic() + patience_s
    while not words or not all(word in seen for word in words):
        assert time.monotonic() < end_s, seen
        if select.select([fd], [], [], 0.5)[0]:
            try:
                seen += os.read(fd, 65536)
            except OSError:
                break
    assert all(word in seen for word in words), seen
    return seen


@pytest.mark.parametrize(("scores", "head"), [({"perplexity": 12.5, "accuracy": 0.25}, "perplexity"), ({}, None)])
def test_the_table_has_the_score_that_the_run_goes_by(folder, scores, head):
    for name in NAMES:
        values = {"train/loss": 0.5, "eval/loss": 2.5, **{f"eval/{k}": v for k, v in scores.items()}}
        folder.write(MetricsRecord(name, 0, 0.1, values))
    watcher = Watcher(folder.path)
    watcher.read()
    lines = plain_table(watcher).splitlines()
    columns = lines[2].split()
    assert columns[:5] == ["board", "round", "train", "loss", head or "a"] and "accuracy" not in columns
    assert ("12.5000" in lines[4]) == bool(head) and lines[4].startswith("a ")


def test_what_is_said_is_in_its_order_on_one_clock(folder):
    """b's own clock began 10 s later than a's; c is lost by the clock of the run."""
    folder.write(EventRecord("b", 1.0, "started", "b trains", {"unix_s": 1011.0}))
    folder.write(EventRecord("b", 3.5, "peer-up", "c is back", {"peer": "c"}))
    folder.write(EventRecord("a", 1.0, "started", "a trains", {"unix_s": 1001.0}))
    folder.write(EventRecord("b", 2.5, "notice", "the disk is nearly full"))
    folder.write(EventRecord("c", 13.0, "lost", "lost c: it was killed"))
    folder.write(EventRecord("a", 12.75, "notice", "looks around"))
    watcher = Watcher(folder.path)
    said = watcher.read()
    assert [(t_s, notice.text) for t_s, notice in said] == [
        (12.5, "b: the disk is nearly full"),
        (12.75, "a: looks around"),
        (13.0, "lost c: it was killed"),
    ]
    assert "lost at 13.0 s" in plain_table(watcher) and "13.5 s wall" in plain_table(watcher)
