"""Bad input ends in one clear sentence and a documented exit code, with nothing written."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.e2e.command import edgegossip, in_this_process

CASES = [
    (["quickstart-gosip"], 2, "did you mean quickstart-gossip"),
    (["quickstart-gossip", "--set", "training.learning_rate=1"], 2, "did you mean training.lr"),
    (["quickstart-gossip", "--set", "training.lr=-1"], 2, "out of range (from 0.0 to 1000.0)"),
    (["quickstart-gossip", "--boards", "1"], 2, "the nearest is 2"),
    (["quickstart-gossip", "--set", "codec.name=minmax9"], 2, "did you mean minmax8"),
    (["quickstart-gossip", "--set", "codec.params.bits=3"], 2, "bits"),
    (["quickstart-gossip", "--set", "model.name=mpl"], 2, "did you mean mlp"),
    (["quickstart-gossip", "--set", "gossip.topology=rings"], 2, "did you mean ring"),
    (["quickstart-gossip", "--set", "gossip.algorithm=dpsdg"], 2, "did you mean dpsgd"),
    (["quickstart-gossip", "--set", "data.name=digit"], 2, "did you mean digits"),
    (["cifar10-gossip", "--set", "data.dir=/nonexistent"], 3, "/nonexistent"),
    (["quickstart-gossip", "--set", "network.host=192.0.2.1"], 2, "the nearest is 127.0.0.1"),
    (["quickstart-server", "--set", "server.min_nodes=9"], 2, "the nearest is 4"),
    (["quickstart-gossip", "--set", "gossip.topology_file=x.json"], 2, "say gossip.topology = file"),
    (["quickstart-gossip", "--set", "model.params.hidden=abc"], 2, "hidden"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=lambda v: v[-1] if isinstance(v, list) else None)
def test_one_sentence_and_nothing_written(
    arguments: list[str], code: int, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    got, out, err = in_this_process(capfd, "run", *arguments, "--runs", str(runs))
    assert (got, out) == (code, ""), err
    assert words in err.replace("'", "") and err.count("\n") == 1 and err.startswith("edgegossip: ")
    assert not runs.exists()


def test_a_process_ends_with_that_sentence_and_code(tmp_path: Path) -> None:
    with edgegossip("run", "quickstart-gosip", runs=tmp_path / "runs") as running:
        got, out, err = running.finish()
    assert (got, out) == (2, "") and "did you mean quickstart-gossip" in err and err.count("\n") == 1, err


def test_topology_that_is_not_strongly_connected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edges = {"directed": True, "edges": [["board-0", "board-1"], ["board-1", "board-0"], ["board-2", "board-3"]]}
    (tmp_path / "t.json").write_text(json.dumps(edges))
    settings = ["--set", "gossip.topology=file", "--set", f"gossip.topology_file={tmp_path / 't.json'}"]
    code, _, err = in_this_process(capfd, "run", "quickstart-gossip", *settings, "--runs", str(tmp_path / "runs"))
    assert code == 2 and "no path leads from node" in err and "board-2" in err and err.count("\n") == 1, err


@pytest.mark.parametrize("mode", ["gossip", "server"])
def test_port_in_use(mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = ("--set", f"network.port={port}", "--runs", str(tmp_path / "runs"))
        code, _, err = in_this_process(capfd, "run", f"quickstart-{mode}", *where)
    assert code == 4 and f"127.0.0.1:{port}: address already in use" in err and err.count("\n") == 1, err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--peer", "b=127.0.0.1:xx"], 2, "port from 1 to 65535"),
        (["--peer", "b"], 2, "NAME=HOST:PORT"),
        (["--peer", "a=127.0.0.1:1"], 2, "that is this board itself"),
        (["--peer", "b=127.0.0.1:1", "--peer", "c=127.0.0.1:2"], 2, "--set run.nodes=3"),
        (["--peer", "b=127.0.0.1:1", "--listen", "foo"], 2, "write host:port"),
        (["--members", "a,b", "--advertise", "a:b:c"], 2, "--advertise 'a:b:c' is not an address"),
        (["--members", "a,b", "--name", "../../up"], 2, "--name: '../../up' cannot be a name"),
        (["--members", "a,../../up"], 2, "--members: '../../up' cannot be a name"),
        (["--peer", "../up=127.0.0.1:1"], 2, "--peer: '../up' cannot be a name"),
        (["--boards", "a,../up", "--coordinator", "127.0.0.1:1"], 2, "--boards: '../up' cannot be a name"),
        (["--peer", "b=127.0.0.1:1", "--listen", "0.0.0.0:0"], 2, "--insecure"),
    ],
    ids=lambda v: v[-1] if isinstance(v, list) else None,
)
def test_a_board_started_by_hand_with_a_mistake(
    arguments: list[str], code: int, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("node", "quickstart-gossip", "--set", "run.nodes=2", "--name", "a", *arguments)
    got, out, err = in_this_process(capfd, *command, "--runs", str(tmp_path / "runs"))
    assert (got, out) == (code, "") and words in err and err.count("\n") == 1, err
    assert not (tmp_path / "runs").exists()
