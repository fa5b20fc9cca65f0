"""Boards with identities, started one by one as on real boards."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgegossip.fleet.store import Fleet
from tests.e2e.command import in_this_process

ROUNDS = ("--set", "run.rounds=6", "--set", "run.nodes=2")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Fleet.create(tmp_path_factory.mktemp("fleet") / "fleet", "test", 20)
    return made.add_all(("pi-01", "pi-02"), "board", 20).folder


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
