"""Boards with identities, started one by one as on real boards."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgegossip.fleet.store import Fleet
from tests.e2e.command import edgegossip, in_this_process

ROUNDS = ("--set", "run.rounds=6", "--set", "run.nodes=2")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Fleet.create(tmp_path_factory.mktemp("fleet") / "fleet", "test", 20)
    return made.add_all(("pi-01", "pi-02"), "board", 20).folder


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.slow  # test_forked.py has boards with identities, under `run`
def test_two_boards_of_a_fleet(fleet, tmp_path):
    ports = {"pi-01": free_port(), "pi-02": free_port()}
    with ExitStack() as stack:
        boards = []
        for name, other in (("pi-01", "pi-02"), ("pi-02", "pi-01")):
            where = ("--listen", f"127.0.0.1:{ports[name]}", "--peer", f"{other}=127.0.0.1:{ports[other]}")
            mine = ("--name", name, "--identity", str(fleet / "boards" / name))
            command = ("node", "quickstart-gossip", *ROUNDS, *mine, *where)
            boards.append(stack.enter_context(edgegossip(*command, runs=tmp_path / name)))
        for board in boards:
            code, out, err = board.finish()
            assert code == 0, (out, err)
            assert "ssl_transport" not in err


def test_an_identity_that_is_not_ours(fleet, tmp_path, capfd):
    def node(*arguments: str) -> tuple[int, str]:
        where = ("--peer", "pi-02=127.0.0.1:1", "--runs", str(tmp_path))
        code, _, err = in_this_process(capfd, "node", *arguments, *where)
        return code, err

    ours = ("quickstart-gossip", *ROUNDS, "--name", "pi-01", "--identity")
    code, err = node(*ours, str(fleet / "boards" / "pi-02"))
    assert code == 2 and "this is pi-02 (board), not the board pi-01: say --name pi-02" in err
    code, err = node(*ours, str(tmp_path / "nothing"))
    assert code == 3 and "--identity takes a folder that `edgegossip fleet add` made" in err
    assert not [*tmp_path.iterdir()]
