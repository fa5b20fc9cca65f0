from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from edgegossip import native
from edgegossip.files import expanded, seen_from_here, write_atomic
from edgegossip.telemetry.machine import PACKAGES, board_name, cpu_name, environment, package_version, source_state
from edgegossip.telemetry.records import MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, is_written, read_run
from edgegossip.types import DataError, HostError

NOW = datetime(2026, 1, 2, 3, 4, 5)


def _create(parent, name="demo", **extra):
    return RunFolder.create(parent, name, "[run]\nrounds = 3\n", {"isa": None}, now=NOW, **extra)


def test_a_folder_that_is_opened_while_others_ask_is_seen_as_written(tmp_path):
    """Asking takes a lock for a moment, in which the folder's own claim fails."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    over = threading.Event()

    def ask():
        while not over.is_set():
            is_written(tmp_path / "run")

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        seen = []
        for _ in range(300):
            with closing(RunFolder(tmp_path / "run")):
                seen.append(is_written(tmp_path / "run"))
    finally:
        over.set()
        asking.join()
    assert all(seen)


SUMMED_UP = {
    "run": "r",
    "nodes": 2,
    "rounds": 3,
    "score": "accuracy",
    "scores": {"accuracy": {"mean": 0.5}},
    "sent_bytes": {"payload": 1},
    "verdict": [],
    "failed_nodes": [],
}


def test_what_is_written_is_read_back(tmp_path):
    clock = iter([0.0, 1.0, 2.0, 3.0]).__next__
    folder = _create(tmp_path / "runs", clock=clock)
    folder.metrics("board-0", 0, {"train/loss": 0.5, "codec/relative_error": float("nan")})
    folder.event("board-0", "started", "go", values=7)
    folder.write_topology({"name": "ring", "nodes": ["board-0"]})
    folder.write_partition(["board-0"], ["cat"], np.array([[4]]))
    folder.write_summary({**SUMMED_UP, "loss": None})
    folder.close()
    folder.close()
    assert folder.path.name == "20260102-030405-demo" and folder.checkpoint_dir.is_dir()
    run = read_run(folder.path)
    assert run.recipe_toml == "[run]\nrounds = 3\n" and run.env == {"isa": None}
    assert (
        run.topology["name"] == "ring"
        and run.partition["counts"] == [[4]]
        and run.summary == {**SUMMED_UP, "loss": None}
    )
    assert list(run.metrics()) == [MetricsRecord("board-0", 0, 1.0, {"train/loss": 0.5, "codec/relative_error": None})]
    (event,) = run.events()
    assert (event.name, event.t_s, dict(event.fields)) == ("started", 2.0, {"values": 7})
    assert run.unreadable_lines() == 0
    with pytest.raises(HostError, match="closed"):
        folder.event("a", "b", "c")


def test_the_name_of_a_new_folder_and_of_those_above_it_is_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    folder = _create(tmp_path / "a" / "runs")
    for name in (folder.path, tmp_path / "a" / "runs", tmp_path / "a", tmp_path):
        assert str(name.parent) in synced, f"nothing says that {name.name} survives a power cut"
    folder.close()


def test_folders_of_the_same_second_do_not_share(tmp_path):
    names = [_create(tmp_path).path.name for _ in range(3)]
    assert names == ["20260102-030405-demo", "20260102-030405-demo-2", "20260102-030405-demo-3"]


@pytest.mark.parametrize(
    ("name", "slug"), [("../../etc/x", "etc-x"), ("a b", "a-b"), ("..", "run"), ("", "run"), ("é" * 9, "run")]
)
def test_a_name_cannot_leave_the_runs_folder(tmp_path, name, slug):
    path = _create(tmp_path, name).path
    assert path.parent == tmp_path and path.name == f"20260102-030405-{slug}"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_last_line_is_passed_over_and_spoils_no_later_one(tmp_path, cut):
    folder = _create(tmp_path)
    for step in range(3):
        folder.metrics("board-0", step, {"train/loss": 1.0 / (step + 1)})
    folder.close()
    path = folder.path / "metrics.jsonl"
    os.truncate(path, path.stat().st_size - cut)
    assert [r.step for r in read_run(folder.path).metrics()] == ([0, 1, 2] if cut == 1 else [0, 1])
    again = RunFolder(folder.path)
    again.metrics("board-0", 3, {})
    again.close()
    run = read_run(folder.path)
    assert [r.step for r in run.metrics()] == ([0, 1, 2, 3] if cut == 1 else [0, 1, 3])
    assert run.unreadable_lines() == (0 if cut == 1 else 1)


def test_zeros_left_by_power_loss_are_passed_over(tmp_path):
    folder = _create(tmp_path)
    folder.metrics("a", 0, {})
    folder.close()
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 4096)
    assert [r.step for r in read_run(folder.path).metrics()] == [0]


WRITER = """
import sys
from pathlib import Path
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.telemetry.sinks import Tee
folder = RunFolder.create(Path(sys.argv[1]), "killed", "", {})
sink = Tee(folder)
for step in range(10**9):
    sink.metrics("board-0", step, {"train/loss": 1.0})
    if step == 200:
        print(folder.path, flush=True)
"""


def test_kill_9_of_the_writer_leaves_a_readable_folder(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    path = Path(child.stdout.readline().strip())
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    run = read_run(path)
    steps = [record.step for record in run.metrics()]
    assert len(steps) >= 200 and steps == list(range(len(steps)))
    assert run.unreadable_lines() == 0 and run.summary is None


def test_threads_do_not_mix_their_lines(tmp_path):
    folder = _create(tmp_path)

    def write(node):
        for step in range(200):
            folder.metrics(node, step, {"note": "x" * 300})

    threads = [threading.Thread(target=write, args=(f"board-{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder.close()
    run = read_run(folder.path)
    assert sum(1 for _ in run.metrics()) == 800 and run.unreadable_lines() == 0


def test_a_summary_that_is_whole_is_read(tmp_path):
    folder = _create(tmp_path)
    folder.close()
    for whole in (SUMMED_UP, {**SUMMED_UP, "score": None, "scores": {}, "sent_bytes": {"payload": None}}):
        (folder.path / "summary.json").write_text(json.dumps(whole))
        assert read_run(folder.path).summary == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("partition.json", '{"nodes": ["a"]}'),
        ("partition.json", '{"nodes": ["a"], "classes": ["0", "1"], "counts": [[1]]}'),
        ("partition.json", '{"nodes": ["a"], "classes": ["0"], "counts": [["many"]]}'),
        ("topology.json", '{"members": ["a"], "rounds": 5}'),
        ("topology.json", '{"members": ["a"], "rounds": [{"edges": [["a"]]}]}'),
        ("topology.json", '{"members": null}'),
        *(
            ("summary.json", json.dumps({**SUMMED_UP, **wrong}))
            for wrong in (
                {"nodes": "x"},
                {"rounds": 10**400},
                {"score": "loss"},
                {"scores": []},
                {"scores": {"accuracy": {"mean": "x"}}},
                {"sent_bytes": {}},
                {"verdict": [3]},
                {"verdict": [{"kind": [], "ruin": True}]},
                {"verdict": None},
                {"failed_nodes": 1},
                {"unfinished_nodes": {"a": 1}},
            )
        ),
        ("env.json", "[" * 100_000),
        ("run.json", '{"run_id": "ab'),
    ],
)
def test_a_document_that_is_damaged_is_named(tmp_path, name, text):
    folder = _create(tmp_path)
    folder.close()
    (folder.path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name} does not hold .*delete it"):
        read_run(folder.path)


def test_a_document_of_more_values_than_a_run_writes_is_not_read(tmp_path):
    """A list takes 56 bytes of memory, and three in the file."""
    folder = _create(tmp_path)
    folder.close()
    (folder.path / "partition.json").write_text('{"nodes": [' + "[]," * 1_000_001 + "[]]}")
    with pytest.raises(DataError, match="partition.json has more than 1,000,000 values; delete it"):
        read_run(folder.path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot create the run folder"):
        _create(tmp_path / "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_records_and_is_said_seldom(tmp_path):
    made = _create(tmp_path)
    made.close()
    metrics = made.path / "metrics.jsonl"
    metrics.unlink()
    metrics.symlink_to("/dev/full")
    said, now = [], [0.0]
    folder = RunFolder(made.path, clock=lambda: now[0], warn=said.append)
    for step in range(1000):
        now[0] += 1.0
        folder.metrics("a", step, {})
    assert len(said) == 2 and "No space left on device; the run goes on" in said[0]
    os.dup2(os.open(made.path / "again.jsonl", os.O_WRONLY | os.O_CREAT), folder._metrics_fd)  # there is room again
    folder.write(MetricsRecord("a", 1000, 990.0, {}))  # it waited, in a queue
    folder.metrics("a", 1001, {})
    folder.close()
    metrics.unlink()
    (made.path / "again.jsonl").rename(metrics)
    data = read_run(made.path)
    assert [r.step for r in data.metrics()] == [1000, 1001] and data.unreadable_lines() == 0
    (event,) = data.events()
    assert event.name == "records-lost" and event.fields["records"] == 1000 and event.t_s == 990.0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_records_that_are_missing_at_the_end_are_said(tmp_path):
    folder = _create(tmp_path)
    kept = os.dup(folder._metrics_fd)
    os.dup2(os.open("/dev/full", os.O_WRONLY), folder._metrics_fd)
    for step in range(3):
        folder.write(MetricsRecord("a", step, float(step), {}))
    os.dup2(kept, folder._metrics_fd)
    folder.close()
    (event,) = read_run(folder.path).events()
    assert (event.name, event.fields["records"], event.t_s) == ("records-lost", 3, 2.0)


def test_a_folder_that_is_opened_again_goes_on_where_it_was(tmp_path, monkeypatch):
    now = [100.0]
    folder = RunFolder.create(tmp_path, "x", "", {}, start_s=100.0, clock=lambda: now[0])
    folder.write_run(b"\1\2", ("a", "b"))
    now[0] = 142.0
    folder.metrics("a", 0, {})
    now[0] = 163.0
    folder.event("a", "peer-down", "b is gone")
    folder.close()
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)  # another machine, or another start of this one
    again = RunFolder.reopen(folder.path)
    monkeypatch.setattr(again, "_clock", lambda: 12.0)
    again.metrics("a", 1, {})
    again.event("a", "peer-up", "b is back")
    again.close()
    data = read_run(folder.path)
    assert [r.step for r in data.metrics()] == [0, 1] and data.run == {"run_id": "0102", "members": ["a", "b"]}
    assert [r.t_s for r in data.metrics()] == [42.0, 70.0] and [r.t_s for r in data.events()] == [63.0, 70.0]
    with pytest.raises(DataError, match=r"there is no folder .*nothing; `edgegossip runs` lists your runs"):
        RunFolder.reopen(tmp_path / "nothing")
    with pytest.raises(DataError, match="is not a run folder"):
        RunFolder.reopen(tmp_path)


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomic(path, b"old")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(HostError, match="Input/output error"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x.json"]


def test_environment_imports_nothing_heavy():
    code = (
        "import sys, json; from edgegossip.telemetry.machine import environment;"
        "print(json.dumps(environment(['edgegossip', 'run'])));"
        "bad = {'torch', 'flwr', 'grpc', 'matplotlib', 'rich', 'importlib.metadata'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["isa"] == native.isa() and document["command"] == ["edgegossip", "run"]
    assert document["packages"]["numpy"] == np.__version__ and document["memory_bytes"] > 0
    assert datetime.fromisoformat(document["started"]).tzinfo is not None
    assert environment()["python"].split()[1] == ".".join(map(str, sys.version_info[:3]))


def test_a_result_names_its_commit_and_whether_the_tree_was_clean(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True).stdout

    assert source_state(tmp_path) == (None, None)
    git("init", "-q")
    assert source_state(tmp_path) == (None, None)  # nothing is committed
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    head = git("rev-parse", "HEAD").strip()
    (tmp_path / "beside").write_text("no file of the commit")
    assert source_state(tmp_path) == (head[:12], False)
    (tmp_path / "a").write_text("2")
    assert source_state(tmp_path) == (head[:12], True)
    assert {"commit", "dirty", "isa", "cpu"} <= set(environment())


def test_package_versions_are_those_of_the_metadata(tmp_path):
    for name in PACKAGES:
        try:
            wanted = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wanted = None
        assert package_version(name, sys.path) == wanted
    (tmp_path / "num-1.dist-info").mkdir()
    (tmp_path / "num-py-2.0.dist-info").mkdir()
    assert package_version("num-py", ["absent", str(tmp_path)]) == "2.0"
    assert package_version("nothing", [str(tmp_path)]) is None


def test_board_and_cpu_names(tmp_path):
    (tmp_path / "model").write_bytes(b"Raspberry Pi 4 Model B Rev 1.4\0")
    assert board_name(tmp_path) == "Raspberry Pi 4 Model B Rev 1.4"
    assert board_name(tmp_path / "absent") is None
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC\n")
    assert cpu_name(tmp_path / "cpuinfo") == "AMD EPYC"


def test_a_folder_stays_where_it_is_when_the_working_directory_changes(tmp_path, monkeypatch):
    """A user's script, or hydra, may change it: checkpoints and summary belong to the run."""
    monkeypatch.chdir(tmp_path)
    with closing(_create(Path("runs"))) as folder:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        folder.write_summary(SUMMED_UP)
        assert folder.checkpoint_dir.is_dir()
        assert seen_from_here(folder.path) == folder.path
        monkeypatch.chdir(tmp_path)
        assert seen_from_here(folder.path) == Path("runs/20260102-030405-demo")
    again = RunFolder.reopen(Path("runs/20260102-030405-demo"))
    monkeypatch.chdir("/")
    with closing(again):
        assert read_run(again.path).summary == SUMMED_UP


@pytest.mark.parametrize("path", ["~/data", "~nobody-of-this-name/data"])
def test_a_home_that_is_not_there_is_a_sentence(path, monkeypatch):
    """As of a container's user without an entry."""

    def unknown(*_):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(HostError, match=f"{path}: this machine knows no such home folder: write .* without ~"):
        expanded(path)
    assert expanded("/srv/~") == Path("/srv/~")
