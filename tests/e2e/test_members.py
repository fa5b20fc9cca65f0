"""Boards in network namespaces that find, lose and find each other again. One member never comes,
so its neighbours do not train."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import edgegossip
from tests.e2e.members import PORT, Members, members
from tests.e2e.network import needs_namespaces, network

pytestmark = [needs_namespaces, pytest.mark.timeout(240)]
BUSY_S = 20.0  # 10 s are promised; this machine may be running other tests
ALL = {1, 2, 3, 4, 5}
WAIT = "gossip.topology=complete"  # everybody waits for the one that never comes, and so nobody has torch


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Members]:
    with network(6) as net, members(net, tmp_path, 6, WAIT) as boards:
        boards.start_all(5)
        boards.wait_until(lambda: all(boards.knows(k, ALL) for k in ALL), "everybody knows everybody")
        yield boards


def named(fleet: Members, by: set[int], dead: set[int]) -> bool:
    return all(fleet.about(k, "member-dead", d) for k in by for d in dead)


def test_halves_name_each_other_and_heal(fleet: Members) -> None:
    left, right = {1, 2, 3}, {4, 5}
    fleet.net.split(sorted(right))
    fleet.wait_until(
        lambda: named(fleet, left, right) and named(fleet, right, left), "each half names the other", BUSY_S
    )
    assert not any(fleet.about(a, "member-dead", b) for half in (left, right) for a in half for b in half)
    assert any("may be split" in e["text"] for e in fleet.events(4, "notice"))
    fleet.net.heal()
    back = [(a, b) for a in left for b in right] + [(a, b) for a in right for b in left]
    fleet.wait_until(lambda: all(len(fleet.about(a, "member-here", b)) == 2 for a, b in back), "all are back")
    assert any("had been split" in e["text"] for k in ALL for e in fleet.events(k, "notice"))


@pytest.mark.slow
def test_a_cut_in_one_direction_is_no_death_and_a_sleeper_comes_back(fleet: Members) -> None:
    fleet.net.cut(2, 3)
    fleet.signal(signal.SIGSTOP, 5)
    fleet.wait_until(lambda: named(fleet, ALL - {5}, {5}), "the sleeper is named", BUSY_S)
    fleet.signal(signal.SIGCONT, 5)
    fleet.wait_until(lambda: all(len(fleet.about(k, "member-here", 5)) == 2 for k in ALL - {5}), "it is back")
    assert not any(fleet.about(5, "member-dead", k) for k in ALL)  # it blames nobody
    assert not any(fleet.about(a, "member-dead", b) for a in ALL for b in (2, 3))
    fleet.wait_for(2, "waiting", lambda e: "pi-3 (last seen" in e["text"])
    fleet.net.mend(2, 3)
    fleet.wait_for(2, "waiting", lambda e: "pi-3" not in e["text"])


@pytest.mark.slow
def test_a_stranger_is_refused_with_the_reason_in_both_logs(fleet: Members) -> None:
    where = ("--name", "pi-9", "--listen", f"{fleet.net.address(6)}:{PORT}", "--insecure")
    join = ("node", "--join", f"{fleet.net.address(1)}:{PORT}")
    with edgegossip(*join, *where, runs=fleet.runs / "stranger", prefix=fleet.net.inside(6)) as stranger:
        code, _, err = stranger.finish()
    assert code == 5 and "pi-9 is not a member of this run; its members are pi-1, pi-2" in err, err
    assert not list(fleet.runs.glob("stranger/*"))
    said = fleet.wait_for(1, "refused", lambda e: "pi-9 is not a member" in e["text"])["text"]
    assert said.startswith(f"refused pi-9 at {fleet.net.address(6)}:")


@pytest.mark.slow
def test_with_identities_the_run_is_signed_and_strangers_stay_out(tmp_path: Path) -> None:
    for arguments in (("init", str(tmp_path / "fleet")), ("add", "--fleet", str(tmp_path / "fleet"), "pi-1", "pi-2")):
        subprocess.run([sys.executable, "-m", "edgegossip", "fleet", *arguments], check=True, capture_output=True)
    with network(4) as net, members(net, tmp_path, 4, WAIT) as boards:
        boards.identities = tmp_path / "fleet" / "boards"
        boards.start_all(2)
        assert "signed by pi-1" in boards.wait_for(2, "entered")["text"]
        boards.wait_until(lambda: boards.knows(1, {1, 2}) and boards.knows(2, {1, 2}), "they know each other")
        boards.identities = None
        stranger = boards.start(3, seed=1)
        boards.wait_for(1, "refused", lambda e: "does not speak TLS" in e["text"])
        assert stranger.process.poll() is None and not boards.events(3)  # it says why it waits, and is not in
        boards.kill(2)
        boards.wait_until(lambda: bool(boards.about(1, "member-dead", 2)), "named", BUSY_S)
