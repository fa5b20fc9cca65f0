"""A board that follows: what it refuses, when it asks, and whom it waits for."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgegossip.scale import follow as following
from edgegossip.scale.follow import MAX_ANSWER_BYTES, FollowOptions, JobClient, parse_job
from edgegossip.types import PeerError, RunError

KEY = "0123456789abcdef"


def _follower(address: str, name: str, runs: Path = Path("runs")) -> FollowOptions:
    return FollowOptions(address, name, "127.0.0.1:7700", None, False, (), runs)


class Machine:
    """One that answers a board as it is told; it keeps what is handed in and what is asked."""

    def __init__(self) -> None:
        self.answer: Any = {"state": "wait"}
        self.handed_in: list[dict[str, Any]] = []
        self.asked: list[str] = []
        machine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                machine.asked.append(self.path)
                self.send(machine.answer)

            def do_POST(self) -> None:
                machine.handed_in.append(
                    json.loads(self.rfile.read(int(self.headers["content-length"])).partition(b"\n")[0])
                )
                self.send({"state": "taken"})

            def send(self, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "ASK_S", 0.05)
    monkeypatch.setattr(following, "RUNNING_ASK_S", 0.1)


def _until(what: Callable[[], bool]) -> None:
    stop_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < stop_s
        time.sleep(0.02)


def _start(machine: Machine, runs: Path) -> tuple[threading.Thread, list[str], list[int]]:
    said: list[str] = []
    codes: list[int] = []
    board = _follower(machine.address, "a", runs)
    thread = threading.Thread(target=lambda: codes.append(following.follow(board, said.append)), daemon=True)
    thread.start()
    return thread, said, codes


ODD = (
    ({"cell": "x/../../victim/a"}, "its key is not 16 hexadecimal digits"),
    ({"cell": KEY + "\n"}, "its key is not 16 hexadecimal digits"),
    ({"cell": 16}, "its key is not 16 hexadecimal digits"),
    ({"recipe": "name = \ud800"}, "its recipe is no text"),
    ({"recipe": None}, "its recipe is no text"),
    ({"peers": ["b"]}, "its peers are not names with their addresses"),
    ({"peers": {"../b": "127.0.0.1:1"}}, "its peers are not names with their addresses"),
    ({"peers": {"b": "--insecure"}}, "its peers are not names with their addresses"),
    ({"peers": {"b": "[fe80::1%\0]:1"}}, "its peers are not names with their addresses"),
    ({"peers": {"b": 1}}, "its peers are not names with their addresses"),
)


@pytest.mark.usefixtures("quick")
def test_an_odd_cell_is_refused_and_the_board_stays(machine: Machine, tmp_path: Path) -> None:
    thread, said, codes = _start(machine, tmp_path / "runs" / "deep")
    for odd, why in ODD:
        machine.handed_in.clear()
        machine.answer = {"state": "go", "cell": KEY, "recipe": "", "peers": {}} | odd
        _until(lambda: bool(machine.handed_in))
        machine.answer = {"state": "wait"}
        refused = machine.handed_in[0]
        assert refused["code"] == 2 and refused["reason"].endswith(why)
    machine.answer = {"state": "over"}
    thread.join(60)
    assert codes == [0] and not list(tmp_path.iterdir())
    assert len(said) <= 2 + len(ODD) and any("16 hexadecimal digits" in sentence for sentence in said)


def test_what_a_board_runs_is_looked_at_first() -> None:
    job = parse_job({"cell": KEY, "recipe": "r", "peers": {"b": "[fe80::1%eth0]:7700"}})
    assert (job.cell, job.recipe_toml, dict(job.peers)) == (KEY, "r", {"b": "[fe80::1%eth0]:7700"})


@pytest.mark.usefixtures("quick")
def test_a_board_asks_while_its_cell_runs_and_ends_one_that_was_given_up(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cell is run, as often as it is asked for; the first one is not handed in."""
    from edgegossip import recipe as recipes

    ends, made, start = itertools.chain((600,), itertools.repeat(0)), list[subprocess.Popen[bytes]](), subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: made.append(start(*a, **k)) or made[-1])
    monkeypatch.setattr(
        following, "command", lambda *_: [sys.executable, "-c", f"import time; time.sleep({next(ends)})"]
    )
    text = recipes.to_toml(recipes.load("quickstart-gossip"))
    go = {"state": "go", "cell": KEY, "recipe": text, "peers": {}}
    machine.answer = go
    thread, said, codes = _start(machine, tmp_path)
    _until(lambda: sum("running=1" in path for path in machine.asked) >= 3)
    assert not machine.handed_in
    machine.answer = go | {"cell": KEY[::-1]}
    _until(lambda: bool(machine.handed_in))
    machine.answer = {"state": "over"}
    thread.join(60)
    assert f"cell {KEY} was given up" in said and codes == [0]
    assert {(document["cell"], document["code"]) for document in machine.handed_in} == {(KEY[::-1], 0)}
    first, *others = [process.returncode for process in made]
    assert first == -signal.SIGTERM and set(others) == {0}


def test_an_operator_that_is_away_is_waited_for_while_a_cell_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    operator = JobClient(_follower(address, "a"), None)
    assert operator.wants(KEY)
    monkeypatch.setattr(following, "PATIENCE_S", -1.0)
    with pytest.raises(RunError, match="was out of reach"):
        operator.wants(KEY)


def test_an_answer_without_end_is_not_read_to_its_end(machine: Machine) -> None:
    machine.answer = {"state": "wait", "words": "x" * MAX_ANSWER_BYTES}
    with pytest.raises(PeerError, match=f"an answer of more than {MAX_ANSWER_BYTES} bytes"):
        JobClient(_follower(machine.address, "a"), None).job()


def test_an_answer_that_is_cut_short_is_an_operator_that_went_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut() -> None:
            for answer in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"):
                connection, _ = server.accept()
                connection.recv(4096)
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        operator = JobClient(_follower(f"127.0.0.1:{server.getsockname()[1]}", "a"), None)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                operator.job()
        thread.join(30)
