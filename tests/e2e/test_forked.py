"""Boards and coordinators that are started one by one, and runs of which what they say and leave is
looked at. Each board is a process of its own; what all of them load is loaded once, for all
tests."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import tempfile
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

import edgegossip
from edgegossip import recipe as recipes
from edgegossip.fleet.launch import coordinator, gossip
from edgegossip.fleet.launch.fork_server import MODULES, OF_SCRIPTS, ForkServer
from edgegossip.fleet.store import Fleet
from edgegossip.modelfile import ModelFile
from edgegossip.node.bootstrap import follow
from edgegossip.node.storage import vector_of
from edgegossip.report.models import RunModels
from edgegossip.telemetry.records import PARTS
from edgegossip.telemetry.run_folder import RunData, read_run
from edgegossip.training import layout_of
from edgegossip.types import ConfigError, PeerError, UsageError
from lab.laws.laws import verify
from tests.e2e.command import TIMEOUT_S, Kept, free_port, free_ports, in_this_process
from tests.e2e.command import edgegossip as command
from tests.e2e.network import Namespaces, first_namespace, needs_namespaces
from tests.e2e.played import NODES, ROUNDS, played
from tests.e2e.test_local_data import holds_any, sets, sniffed, windows, written
from tests.e2e.test_restart import steps
from tests.e2e.test_resume import events_of
from tests.e2e.test_script import SCRIPT, check_that_a_script_holds
from tests.e2e.test_server_resume import undisturbed
from tests.e2e.test_verdict import RUIN, run


class Process:
    """A process that was started by hand. `runs`: where its run's folder will be."""

    def __init__(self, server: ForkServer, arguments: tuple[str, ...], runs: Path, namespace: str) -> None:
        self.runs, self.log = runs, runs.with_name(f"{runs.name}.log")
        command = (arguments[0], "--runs", str(runs), *arguments[1:])
        self.process = server.spawn(command, self.log, namespace)

    def folder(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def data(self) -> RunData:
        return read_run(self.folder())

    def wait_until(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not what():
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def ends_well(self) -> None:
        assert self.process.wait(TIMEOUT_S) == 0, self.log.read_text()


Start = Callable[..., AbstractContextManager[Process]]


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    loaded = (*MODULES["gossip"], *MODULES["server"], *OF_SCRIPTS, "edgegossip.fleet.launch.coordinator")
    with ForkServer(loaded, 1, tmp_path_factory.mktemp("forks") / "fork-server.log") as server:
        yield server


@pytest.fixture
def runs_fork_from_it(forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that this process starts take their boards from there, too."""
    for module in (coordinator, gossip):
        monkeypatch.setattr(module, "start_fork_server", lambda run: Kept(forks))


@pytest.fixture
def start(forks: ForkServer) -> Start:
    @contextmanager
    def start(*arguments: str, runs: Path, namespace: str = "") -> Iterator[Process]:
        started = Process(forks, arguments, runs, namespace)
        try:
            yield started
        finally:
            started.process.kill()
            started.process.wait()

    return start


class CountingRelay:
    """Hands on what comes, both ways, and counts it. `address`: where it listens."""

    def __init__(self, target: tuple[str, int], stack: ExitStack) -> None:
        self.passed_bytes, self._target = 0, target
        self._lock, self._stack = threading.Lock(), stack
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:  # that board is not there yet
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._hand_on, args=ends, daemon=True).start()

    def _hand_on(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                with self._lock:
                    self.passed_bytes += len(data)
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)


def test_what_boards_say_of_their_sockets_is_what_came_through_a_relay(start: Start, tmp_path: Path) -> None:
    """Each knows the other by the address of a relay."""
    common = ("quickstart-gossip", "--set", "run.rounds=30", "--set", "run.nodes=2")
    ports = {name: free_port() for name in ("left", "right")}
    with ExitStack() as stack:
        relays = {name: CountingRelay(("127.0.0.1", port), stack) for name, port in ports.items()}
        boards = []
        for name, other in (("left", "right"), ("right", "left")):
            where = ("--listen", f"127.0.0.1:{ports[name]}", "--peer", f"{other}={relays[other].address}")
            boards.append(stack.enter_context(start("node", *common, "--name", name, *where, runs=tmp_path / name)))
        for board in boards:
            board.ends_well()
        passed = sum(relay.passed_bytes for relay in relays.values())
    rows = [row for board in boards for row in board.data().metrics()]
    assert sum(row.number("net/payload_bytes") or 0 for row in rows) > 0.5 * passed
    assert sum(row.number("net/received_bytes") or 0 for row in rows) == pytest.approx(passed, rel=0.01)
    # On a busy machine the kernel sends some of it again.
    assert 0.99 * passed < sum(row.number("net/sent_bytes") or 0 for row in rows) < 1.5 * passed


def test_boards_join_one_that_founds_the_run(start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Who joins says its own script: what a peer sends names no program that this board would
    run."""
    for name in ("pi-1", "pi-2"):
        (tmp_path / f"of-{name}").mkdir()
        (tmp_path / f"of-{name}" / "train.py").write_text(textwrap.dedent(SCRIPT))

    def board(name: str, *where: str) -> AbstractContextManager[Process]:
        own = (str(tmp_path / f"of-{name}" / "train.py"), "--name", name, *where, "--", "--seed", "3")
        return start("node", *own, runs=tmp_path / name)

    [port] = free_ports(1)
    where = ("--members", "pi-1,pi-2", "--listen", f"127.0.0.1:{port}", "--set", "run.rounds=8")
    with board("pi-1", *where) as first:
        first.wait_until(lambda: any((tmp_path / "pi-1").glob("*/events.jsonl")))
        nothing = ("--join", f"127.0.0.1:{port}", "--name", "pi-2", "--runs", str(tmp_path / "runs"))
        code, _, err = in_this_process(capfd, "node", *nothing)
        assert code == 2 and "the run trains with train.py: name this board's own" in err
        with board("pi-2", "--join", f"127.0.0.1:{port}") as second:
            first.ends_well()
            second.ends_well()
    for name, running in (("pi-1", first), ("pi-2", second)):
        assert (tmp_path / f"of-{name}" / f"{name}.ended").exists()
        kept = np.load(running.folder() / "checkpoint" / f"{name}.npz")
        check_that_a_script_holds(tmp_path / f"of-{name}" / f"{name}.pt", kept)
        assert running.process.stdout.read().endswith(b"goodbye")


@needs_namespaces
def test_no_byte_of_the_data_is_in_a_packet_or_in_a_run_folder(start: Start, tmp_path: Path) -> None:
    """A board without a test set trains on, and only the other evaluates."""
    folders = written(tmp_path)
    pieces, packets, names = windows(folders), tmp_path / "packets", ("board-0", "board-1")
    assert holds_any((folders / "board-1" / "train_inputs.npy").read_bytes(), pieces)
    ports = dict(zip(names, free_ports(2), strict=True))
    with Namespaces() as spaces:
        namespace = first_namespace(spaces, "own")
        with sniffed(namespace, packets), ExitStack() as stack:
            boards = []
            for name, other in zip(names, reversed(names), strict=True):
                where = ("--listen", f"127.0.0.1:{ports[name]}", "--peer", f"{other}=127.0.0.1:{ports[other]}")
                own = ("node", "quickstart-gossip", *sets(folders, "gossip.topology=complete"), "--name", name, *where)
                boards.append(stack.enter_context(start(*own, runs=tmp_path / name, namespace=namespace)))
            for board in boards:
                board.ends_well()
    sent, rows = packets.read_bytes(), [row for board in boards for row in board.data().metrics()]
    assert {row.node for row in rows if row.number("eval/accuracy") is not None} == {"board-0"}
    assert len(sent) > 0.97 * sum(row.number("net/payload_bytes") or 0 for row in rows) > 0  # nothing was missed
    assert b"board-1" in sent and not holds_any(sent, pieces)
    files = [file for board in boards for file in board.folder().rglob("*") if file.is_file()]
    assert {"events.jsonl", "metrics.jsonl"} <= {file.name for file in files}
    assert not [file for file in files if holds_any(file.read_bytes(), pieces)]


BOARDS = ("pi-1", "pi-2")


@pytest.mark.timeout(300)
def test_the_coordinator_tells_its_boards_the_recipe_and_nobody_else(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 the same command goes on with the same curve; the boards come back by
    themselves."""
    fleet = Fleet.create(tmp_path / "fleet", "test", 20)
    for name in (*BOARDS, "pi-9"):
        fleet = fleet.add(name, "board", 20)
    where = f"127.0.0.1:{free_port()}"
    pairs = ("run.nodes=2", "run.rounds=12", "training.lr=0.07", "training.local_steps=2", "evaluation.every=12")
    pairs = (*pairs, "codec.name=co3", "server.downlink=8-bit-elastiquant")
    settings = tuple(word for pair in pairs for word in ("--set", pair))
    serve = ("coordinator", "quickstart-server", *settings, "--boards", ",".join(BOARDS), "--no-plots")
    how = ("--port", where.rpartition(":")[2], "--fleet", str(fleet.folder))
    with start(*serve, *how, runs=tmp_path / "c") as coordinator:
        (tmp_path / "at").mkdir()
        shutil.copytree(fleet.folder / "boards" / "pi-9", tmp_path / "at" / "identity")
        for arguments, code, words in (
            (("--identity", str(tmp_path / "at" / "identity")), 5, "pi-9 is not a board of this run"),
            (("--name", "pi-1", "--insecure"), 5, "speaks TLS: start this board with --identity"),
            (("--identity", str(fleet.folder / "boards" / "pi-1"), "--boards", "pi-1,pi-2"), 2, "leave it out"),
        ):
            stranger = ("node", "--coordinator", where, *arguments, "--runs", str(tmp_path / "no"))
            ended, _, err = in_this_process(capfd, *stranger)
            assert ended == code and words in err, (ended, err)
        with ExitStack() as stack:
            boards = []
            for name in BOARDS:
                identity = ("--identity", str(fleet.folder / "boards" / name))
                own = start("node", "--coordinator", where, *identity, runs=tmp_path / name)
                boards.append(stack.enter_context(own))
            coordinator.wait_until(lambda: sum("server/used" in r.values for r in coordinator.data().metrics()) >= 5)
            coordinator.process.kill()
            coordinator.process.wait()
            with start(*serve, *how, runs=tmp_path / "c") as again:
                for running in (again, *boards):
                    running.ends_well()
    data = coordinator.data()  # one, however often it was started
    used = {r.step: r.values["server/used"] for r in data.metrics() if "server/used" in r.values}
    assert used == dict.fromkeys(range(12), 2)
    assert sum("training goes on in round" in e.text for e in data.events()) == 1
    assert not list(data.path.glob("checkpoint/coordinator/*.ckpt"))
    for running in boards:
        recipe = recipes.load(str(running.folder() / "recipe.toml"))
        assert (recipe.training.lr, recipe.codec.name, recipe.run.rounds) == (0.07, "co3", 12)
    layout, expected = undisturbed(recipes.load("quickstart-server", pairs), BOARDS)
    np.testing.assert_array_equal(vector_of(ModelFile(data.path / "checkpoint" / "model.npz"), layout), expected)


def test_what_is_told_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.flower import connection

    recipe = recipes.load("quickstart-server", ("run.nodes=2",))
    told = recipes.to_toml(recipe)

    def heard(text: str, *settings: str, boards: tuple[str, ...] = ("a", "b")) -> recipes.Recipe:
        monkeypatch.setattr(connection, "fetch_run", lambda address, credentials: connection.RunningRun(text, boards))
        return follow("127.0.0.1:1", "a", None, settings, print, 1.0)[0]

    assert recipes.run_id(heard(told)) == recipes.run_id(recipe)
    assert heard(told, "run.threads=2", "data.dir=here").data.dir == "here"
    stolen = recipes.to_toml(recipes.with_settings(recipe, {"data.dir": "/etc"}))
    assert heard(stolen).data.dir == ""
    foreign = recipes.to_toml(recipes.with_settings(recipe, {"model.name": "os:system"}))
    with pytest.raises(ConfigError, match="a function that would be called on this board"):
        heard(foreign)
    with pytest.raises(ConfigError, match="the run decides that"):
        heard(told, "training.lr=1")
    with pytest.raises(ConfigError, match="not one of the run's boards b, c"):
        heard(told, boards=("b", "c"))
    for text in ("", "[run", "a = 1", told.replace('mode = "server"', 'mode = "gossip"'), "[" * 10_000):
        with pytest.raises((PeerError, ConfigError)):
            heard(text)
    with pytest.raises(PeerError, match="do not fit each other"):
        heard(told, boards=("a", "b", "c"))


def test_a_coordinator_that_is_not_there_is_waited_for_but_not_for_ever() -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match="no coordinator at"):
        follow(f"127.0.0.1:{free_port()}", "a", None, (), said.append, 0.2)


# `run --alone`: what each board learns by itself, together, and with the average of the models.
TURNS, STEPS, LR = 12, 2, 0.1
COMPARED = """
    import argparse
    from pathlib import Path

    import torch

    import edgegossip

    parser = argparse.ArgumentParser()
    parser.add_argument("board")
    parser.add_argument("index", type=int)
    own = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(4, 1, bias=False), "head": torch.nn.Linear(1, 1)})
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(own.index))
    y = x[:, :1] if own.index == 2 else x.sum(1, keepdim=True)  # the law of one board is another one
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    error = lambda: (model["head"](model["body"](x)) - y).square().mean()
    with edgegossip.join(model, state=[optimizer], keep=["head.*"]) as run:
        run.evaluate(lambda: {"rmse": error().sqrt().item(), "examples": len(x)})
        for round in run.rounds():
            for _ in range(2):
                optimizer.zero_grad()
                loss = error()
                loss.backward()
                optimizer.step()
            run.exchange(loss=loss.item(), examples=len(x))
    Path(own.board).write_text(f"alone {run.alone}")
"""


def data_of(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(index))
    return x, x[:, :1] if index == 2 else x.sum(1, keepdim=True)


def model_of(values: dict[str, torch.Tensor] | None = None) -> torch.nn.ModuleDict:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(4, 1, bias=False), "head": torch.nn.Linear(1, 1)})
    if values is not None:
        model.load_state_dict(values)
    return model


def rmse(model: torch.nn.ModuleDict, index: int) -> float:
    x, y = data_of(index)
    return (model["head"](model["body"](x)) - y).square().mean().sqrt().item()


def by_itself(index: int) -> float:
    (x, y), model = data_of(index), model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(TURNS * STEPS):
        optimizer.zero_grad()
        (model["head"](model["body"](x)) - y).square().mean().backward()
        optimizer.step()
    return rmse(model, index)


@pytest.mark.parametrize("mode", ["gossip", pytest.param("server", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("runs_fork_from_it")
def test_each_board_has_its_score_alone_together_and_with_the_average(
    mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On its own test set and with its own layers. What a script wrote to a file of its own is of
    the run together."""
    script, runs = tmp_path / "train.py", tmp_path / "runs"
    script.write_text(textwrap.dedent(COMPARED))
    unused = "server.join_s=50" if mode == "gossip" else "gossip.momentum_factor=0.5"
    pairs = (f"run.mode={mode}", f"run.rounds={TURNS}", "network.tls=off", unused)
    sets = [part for pair in pairs for part in ("--set", pair)]
    more = ("--boards", "3", "--alone", "--no-plots", "--runs", str(runs), *sets)
    code, out, err = in_this_process(capfd, "run", str(script), *more, "--", f"{tmp_path}/{{board}}", "{index}")
    assert code in (0, 8), (out, err)
    assert err.count("has no effect with run.mode") == 1
    assert [(tmp_path / f"board-{k}").read_text() for k in range(3)] == ["alone False"] * 3
    folder = next(path for path in runs.iterdir() if not path.name.endswith("-alone"))
    result = edgegossip.Result(folder)
    assert (result.summary["score"], result.summary["better"]) == ("rmse", "lower")
    rows = result.beside().set_index("board")
    for k in range(3):
        name = f"board-{k}"
        assert rows.alone[name] == pytest.approx(by_itself(k), rel=1e-3)
        assert rows.together[name] == pytest.approx(rmse(model_of(result.state_dict(name)), k), rel=1e-4)
        if mode == "gossip":
            average = {**result.state_dict(name), **result.state_dict()}  # which has no head
            assert rows.average[name] == pytest.approx(rmse(model_of(average), k), rel=1e-4)
    assert mode == "gossip" or np.isnan(rows.average).all()  # the coordinator's is the boards' mean already
    assert "board-2" in out and "alone" in out and "together" in out
    assert result.score == pytest.approx(rows.together.mean(), rel=1e-5)
    worse = [f["text"] for f in result.summary["verdict"] if f["kind"] == "worse"]
    assert len(worse) == 1 and f"at board-2, {rows.alone['board-2']:.4f} by itself" in worse[0]
    assert [verify(read_run(path)) for path in runs.iterdir()] == [[], []]
    alone = edgegossip.Result(next(path for path in runs.iterdir() if path.name.endswith("-alone")))
    assert alone.summary["sent_bytes"]["payload"] == 0 and alone.summary["verdict"] == []
    assert not any(event.name in ("peer-up", "peer-down") for event in read_run(alone.folder).events())


@pytest.mark.usefixtures("runs_fork_from_it")
def test_a_learning_rate_beyond_all_measure_is_a_ruin(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    two = ("run.nodes=2", "gossip.topology=complete", "run.rounds=40", "evaluation.every=40", "training.lr=50")
    code, verdict, _ = run(tmp_path, capfd, *two)
    assert code == RUIN and verdict[0]["kind"] in ("diverged", "chance") and "training.lr = 50" in verdict[0]["cure"]


@pytest.mark.usefixtures("runs_fork_from_it")
@pytest.mark.parametrize("mode", ["gossip", "server"])
def test_run_trains_and_accounts_for_bytes_and_seconds(
    mode: str, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    """And its folder is complete."""
    run = played(mode, tmp_path_factory, partial(in_this_process, capfd))
    assert run.code == 0, run.err
    best, who = RunModels([run.folder]).best_round, [f"board-{k}" for k in range(NODES)]
    names = who if mode == "gossip" else ["coordinator"]
    assert [file.name for file in sorted((run.folder / "best").iterdir())] == [f"{name}.{best}.npz" for name in names]
    reached: defaultdict[int, float] = defaultdict(float)  # the boards' evaluations, or the coordinator's
    for record in read_run(run.folder).metrics():
        reached[record.step + 1] += record.number("eval/accuracy") or 0.0
    assert reached[best] == pytest.approx(max(reached.values()))
    _check_accounts(run.folder, mode)
    _check_folder(run.folder, plots=3 if mode == "gossip" else 0)
    for word in ("board-0", f"board-{NODES - 1}", "compute", "transmit", "payload", "this command took"):
        assert word in run.out
    assert "\x1b[" not in run.out + run.err and "Traceback" not in run.out + run.err


def _check_accounts(folder: Path, mode: str) -> None:
    result = json.loads((folder / "summary.json").read_text())
    assert (result["mode"], result["nodes"], result["rounds"], result["failed_nodes"]) == (mode, NODES, ROUNDS, [])
    assert result["verdict"] == []
    assert 0.3 < result["accuracy"]["min"] <= result["accuracy"]["mean"] <= result["accuracy"]["max"] <= 1
    values = layout_of(recipes.load(f"quickstart-{mode}")).size
    bits = result["bits_per_value"]
    assert 8 < bits < 8.5
    copies = 2 if mode == "gossip" else 1
    sent = result["sent_bytes"]
    assert sent["payload"] == pytest.approx(NODES * ROUNDS * copies * values * bits / 8)
    assert sent["overhead"] > 0
    assert sent["payload"] + sent["overhead"] <= sent["socket"] * 1.001
    rows = [r for r in read_run(folder).metrics() if r.node.startswith("board")]
    assert len(rows) == NODES * ROUNDS
    for row in rows:
        parts = sum(row.number(f"time/{p}_s") or 0 for p in PARTS)
        assert parts == pytest.approx(row.number("time/round_s"), rel=1e-6)
        cpu = sum(row.number(f"cpu/{p}_s") or 0 for p in PARTS)
        assert cpu == pytest.approx(row.number("time/cpu_s"), abs=1e-5)
        stages = sum(row.number(f"time/{s}_s") or 0 for s in ("forward", "backward", "optimiser"))
        assert 0 < stages <= row.number("time/compute_s")


def _check_folder(folder: Path, plots: int) -> None:
    names = {p.name for p in folder.iterdir()}
    assert {"recipe.toml", "env.json", "events.jsonl", "metrics.jsonl", "summary.json", "checkpoint"} <= names
    found = len(list(folder.rglob("*.png")))
    assert found >= plots and bool(found) == bool(plots)
    assert list((folder / "checkpoint").iterdir())
    assert recipes.load(str(folder / "recipe.toml")).run.rounds == ROUNDS


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("runs_fork_from_it")
def test_a_board_that_is_killed_goes_on_and_so_does_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With identities; each time one finished round is lost at most. Boards train no further than a
    file allows."""
    rounds, steps_a_round, allowed, keys = 24, 5, tmp_path / "allowed", tmp_path / "keys"
    keys.mkdir()
    monkeypatch.setenv("TMPDIR", str(keys))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def allow(rounds: int) -> None:
        allowed.write_bytes(bytes(rounds * steps_a_round))

    pairs = ("network.tls=on", "network.restarts=1", "checkpoint.slack_s=0", "run.nodes=2", f"run.rounds={rounds}")
    pairs += ("gossip.topology=complete", f"training.local_steps={steps_a_round}", "evaluation.every=24")
    pairs += ("model.name=lab.soak.slow_mlp:slow_mlp", "model.params.pause_s=0", f"model.params.allowed={allowed}")
    sets = [word for pair in pairs for word in ("--set", pair)]
    allow(4)
    with command("run", "quickstart-gossip", *sets, "--no-plots", runs=tmp_path / "killed") as killed:
        killed.wait_until(lambda: killed.rounds_done(4, boards=2))
        board = killed.board("board-1")
        assert "--identity" in " ".join(board.cmdline()) and [*keys.glob("edgegossip-fleet-*")]
        board.kill()
        killed.wait_until(lambda: len(events_of(read_run(killed.folder()), "board-1", "started")) == 2)
        allow(12)  # of a board that has started again: 12 more
        killed.wait_until(lambda: killed.rounds_done(12, boards=2))
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        assert killed.nobody_left()
        folder = killed.folder()
    again = events_of(read_run(folder), "board-1", "started")[1]
    assert "from its checkpoint of round" in again.text and again.fields["round"] in (3, 4)
    before = {node: [r.step for r in read_run(folder).metrics() if r.node == node] for node in steps(killed)}
    allow(rounds)
    left = {*keys.iterdir()}  # of the run that was killed; test_identities.py has what becomes of it
    code, out, err = in_this_process(capfd, "run", "--resume", str(folder), "--no-plots", "--json")
    assert code == 0, err
    summary, data = json.loads(out), read_run(folder)
    assert (summary["failed_nodes"], summary["restarted_nodes"]) == ([], ["board-1"]) and summary["rounds"] == rounds
    assert [one["rounds"] for one in summary["resumes"]] == [min(done[-1] for done in before.values()) + 1]
    for node, done in before.items():
        began = events_of(data, node, "started")[-1].fields["round"]
        assert began >= done[-1], "more than one finished round was lost"
        own = [r.step for r in data.metrics() if r.node == node]
        assert own == [*done, *range(began, rounds)]
        times = [r.t_s for r in data.metrics() if r.node == node]
        assert times == sorted(times)
    assert summary["accuracy"]["min"] > 0.7
    assert {*keys.glob("edgegossip-fleet-*")} <= left
    logs = "".join(log.read_text() for log in folder.glob("logs/*.log"))
    assert "ssl_transport" not in logs and "Traceback" not in logs
    code, _, err = in_this_process(capfd, "run", "--resume", str(folder))
    assert code == 2 and "all of its boards have finished" in err
