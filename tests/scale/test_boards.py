"""Cells on boards that hand in what they like, or die."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgegossip.report.style import Figures
from edgegossip.scale import campaign, job_server
from edgegossip.scale.cells import Cell
from edgegossip.scale.follow import FollowOptions, JobClient
from edgegossip.scale.job_server import BoardsBackend, JobServer
from edgegossip.scale.summary import PARTS
from edgegossip.sweep.results import ResultStore
from edgegossip.types import PeerError, RunError


@pytest.fixture
def boards() -> Iterator[BoardsBackend]:
    made = BoardsBackend("a,b", "127.0.0.1:0", None, True, lambda _: None)
    yield made
    made.close(over=False)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> campaign.ScaleOptions:
    return campaign.ScaleOptions(
        recipe="quickstart-gossip", settings=(), devices="2", schemes="sgd", on="boards", rate="", link="shared", rounds=1,
        out=tmp_path_factory.mktemp("out"), figures=Figures(plots=False), boards="a,b", security=(None, True),
    )  # fmt: skip


@pytest.fixture(scope="module")
def cell(asked: campaign.ScaleOptions) -> Cell:
    return campaign.plan(asked)[1][0]


def _follower(address: str, name: str, runs: Path = Path("runs")) -> FollowOptions:
    return FollowOptions(address, name, "127.0.0.1:7700", None, False, (), runs)


def _lines(cell: Cell, name: str, seconds: float = 0.1) -> list[str]:
    parts = {f"time/{part}_s": seconds for part in PARTS.values()}
    return [json.dumps({"node": name, "step": k, "t_s": float(k), **parts}) for k in range(cell.recipe.run.rounds)]


def _play(
    boards: BoardsBackend, cell: Cell, b: Mapping[str, Any], a: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The cell's line in the file of results, when board b hands in this, and a whole records
    unless told otherwise."""

    def board(name: str, more: Mapping[str, Any]) -> None:
        operator = JobClient(_follower(boards.address, name), None)
        while operator.job()["state"] != "go":
            time.sleep(0.02)
        whole = {"code": 0, "reason": "", "accuracy": 0.5, "metrics": _lines(cell, name)}
        try:
            operator.hand_in({"name": name, "cell": cell.key, **whole, **more})
        except PeerError as error:
            refused.append(str(error))

    refused: list[str] = []
    threads = [threading.Thread(target=board, args=told, daemon=True) for told in (("a", a or {}), ("b", b))]
    for thread in threads:
        thread.start()
    try:
        return campaign._run_cell(boards, cell, first=True) | {"refused": refused}
    finally:
        for thread in threads:
            thread.join(30)


def test_records_of_all_boards_are_a_row(boards: BoardsBackend, cell: Cell) -> None:
    result = _play(boards, cell, {"accuracy": None})
    assert result["state"] == "done" and result["row"]["accuracy"] == 0.5 and result["row"]["t_s"] > 0
    assert result["how"] == {"boards": ("a", "b"), "fleet": ""} and not result["refused"]


def test_a_cell_whose_process_failed_on_a_board_has_failed(boards: BoardsBackend, cell: Cell) -> None:
    """Whatever else it hands in."""
    result = _play(boards, cell, {"code": 6, "reason": "out of memory"})
    assert result["state"] == "failed" and result["reason"] == "b: out of memory"
    result = _play(boards, cell, {"code": -9})
    assert result["reason"] == "b: its process ended with exit code -9"


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"accuracy": float("nan")}, "b: .*an accuracy of nan"),
        ({"accuracy": 1e308}, "b: .*an accuracy of 1e"),
        ({"code": float("inf")}, "b: .*infinity"),
    ],
)
def test_odd_records_are_a_failed_cell(
    boards: BoardsBackend, cell: Cell, asked: campaign.ScaleOptions, tmp_path: Path, odd: dict[str, Any], why: str
) -> None:
    result = _play(boards, cell, odd)
    assert result["state"] == "failed" and len(result["refused"]) == 1
    with pytest.raises(RunError, match=why):
        raise RunError(result["reason"])
    with ResultStore(tmp_path / "scale.jsonl", "scalability run") as results:
        results.add(result)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_rounds_that_took_no_time_are_a_failed_cell(boards: BoardsBackend, cell: Cell, seconds: float) -> None:
    b, a = ({"metrics": _lines(cell, name, seconds)} for name in "ba")
    result = _play(boards, cell, b, a)
    assert result["state"] == "failed" and "its rounds took" in result["reason"]


def test_half_a_character_in_a_reason_is_no_trouble(boards: BoardsBackend, cell: Cell) -> None:
    result = _play(boards, cell, {"code": 2, "reason": "no \ud800"})
    assert result["reason"] == "b: no ?"


def test_boards_that_die_in_a_cell_are_noticed(
    boards: BoardsBackend, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(job_server, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    for name in "ab":
        boards._jobs.job(name, "127.0.0.1", 7700)

    def wait(seconds: float) -> dict[str, Any]:
        """So long only a asks."""
        nonlocal now_s
        now_s += seconds
        boards._jobs.job("a", "127.0.0.1", 7700, running=True)
        return {}

    monkeypatch.setattr(boards._jobs, "wait", wait)
    with pytest.raises(RunError, match="lost b: not heard of for 120 s"):
        boards.run(cell)
    assert now_s == job_server.SILENT_S


def test_a_board_at_an_earlier_cell_is_not_there() -> None:
    jobs = JobServer(["a"])
    jobs.job("a", "127.0.0.1", 7700, running=True)
    assert jobs.missing(["a"]) == ["a"] and jobs.silent(["a"], 30.0) == []
    jobs.job("a", "127.0.0.1", 7700)
    assert jobs.missing(["a"]) == []


def test_boards_stay_for_an_operator_that_goes_on() -> None:
    said: list[str] = []
    first = BoardsBackend("a,b", "127.0.0.1:0", None, True, said.append)
    operator = JobClient(_follower(first.address, "a"), None)
    assert operator.job() == {"state": "wait"}
    first.close(over=False)
    assert said[-1] == "boards go on asking here for 10 minutes"
    with pytest.raises(ConnectionError, match="it went away"):
        operator.job()
    again = BoardsBackend("a,b", first.address, None, True, said.append)
    try:
        assert operator.job() == {"state": "wait"}
    finally:
        again.close(over=True)
