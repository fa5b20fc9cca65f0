"""The time of a check-in: a board comes back from any year, and no coordinator, mistaken or not,
takes it to a time when its certificates do not count."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgegossip.fleet.checkins import CheckIns, status, table
from edgegossip.fleet.store import Fleet
from edgegossip.security import certificates
from edgegossip.security.certificates import EPOCH
from edgegossip.security.https import MemberHandler
from edgegossip.security.identity import Identity
from edgegossip.types import PeerError
from edgegossip.update.client import Client
from tests.update.place import Machine, Place

DAY_S, YEAR_S = 86_400.0, 365.25 * 86_400.0
YEARS = (9999, 1970, 2038, 2106)
# Of a process whose clock is not the machine's; NTP has not set it. Linux itself goes no further
# than 2232 (TIME_SETTOD_SEC_MAX).
BOARD = """
import ctypes, sys, time
from datetime import UTC, datetime
from pathlib import Path
from edgegossip.update import agent

home = Path(sys.argv[1])
agent.SYNCHRONISED = home / "no NTP"
module = (home / "opt/current/site/edgegossip/__init__.py").resolve()
right_s = time.time() - time.monotonic()
for year in map(int, sys.argv[2:]):
    then = (ctypes.c_int64 * 2)(int(datetime(year, 6, 1, tzinfo=UTC).timestamp()))  # `time` goes no further than 2262
    assert ctypes.CDLL(None).clock_settime(time.CLOCK_REALTIME, then) == 0
    took_s = 0.0
    for _ in range(2):
        began_s = time.monotonic()
        try:
            agent.check_in(agent.ThisBoard(), agent.Places(home / "etc", home / "opt", str(module)), lambda text: None)
        except Exception as error:
            print(year, error, file=sys.stderr)
        took_s = max(took_s, time.monotonic() - began_s)
    off_s = abs(time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic() - right_s)
    print(year, round(max(0.0, off_s - took_s / 2)))  # nobody knows how long the answer was on its way
"""


@pytest.fixture
def issued(place: Place) -> float:
    """When the board's provisioning bundle was made: yesterday."""
    issued_s = time.time() - DAY_S
    board = {"name": "pi-01", "check_in": place.server.address, "issued_s": issued_s}
    (place.config / "board.json").write_text(json.dumps(board))
    return issued_s


def lies(monkeypatch: pytest.MonkeyPatch, **says: float) -> None:
    """Let the coordinator say something else."""
    answer = CheckIns.check_in
    monkeypatch.setattr(CheckIns, "check_in", lambda *args: {**answer(*args), **says})


def valid_for(place: Place, days: float) -> None:
    """Let the board's certificate end in so many days."""
    ca, key = (place.fleet.folder / name for name in ("ca.pem", "ca.key"))
    authority = certificates.Authority(
        certificates.private_key_from_pem(key.read_bytes()), certificates.certificate_from_pem(ca.read_bytes()).parsed
    )
    end = EPOCH.fromtimestamp(time.time() + days * DAY_S, EPOCH.tzinfo)
    own = certificates.issue(authority, "pi-01", "board", not_after=end)
    (place.config / "identity.pem").write_bytes(certificates.certificate_pem(own.certificate))
    (place.config / "identity.key").write_bytes(certificates.key_pem(own.key))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
def test_boards_come_back_from_any_year_within_two_check_ins(place: Place, issued: float, tmp_path: Path) -> None:
    """With OpenSSL's own look at the clock: certificates of 20 years have ended by 2106."""
    clock = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", clock, Path(__file__).with_name("clock.c"), "-ldl"], check=True)
    said = subprocess.run(
        [sys.executable, "-c", BOARD, place.board, *map(str, YEARS)],
        env={**os.environ, "LD_PRELOAD": str(clock)},
        capture_output=True,
        text=True,
    )
    found = dict(map(int, line.split()) for line in said.stdout.splitlines())
    assert found.keys() == set(YEARS) and all(abs(off_s) <= 2 for off_s in found.values()), said.stderr + said.stdout
    assert said.stderr == "", "and no check-in failed"


@pytest.mark.parametrize("told_s", [math.nan, math.inf, -math.inf, 253_402_300_800.0, -1.0, 1e300])
def test_a_time_that_is_none_is_an_answer_without_sense(
    place: Place, issued: float, monkeypatch: pytest.MonkeyPatch, told_s: float
) -> None:
    lies(monkeypatch, time_s=told_s)
    machine = Machine(behind_s=500)
    with pytest.raises(PeerError, match="makes no sense"):
        place.check_in(machine)
    assert machine.behind_s == 500


@pytest.mark.parametrize("days", [-1.5, 19.1 * 365.25, 30_000.0])
def test_a_coordinator_whose_own_clock_is_wrong_takes_no_board_along(
    place: Place, issued: float, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """Its revocation list counts all the same, and when its clock is right again, so is the
    board's."""
    place.fleet.revoke("pi-02")
    with monkeypatch.context() as wrong:
        lies(wrong, time_s=time.time() + days * DAY_S)
        machine = place.check_in(Machine(behind_s=500))
        assert machine.behind_s == 500 and "set the clock of the coordinator's machine" in machine.said[0]
        assert Identity.load(place.config).revocations.number == 2
    assert abs(place.check_in(machine).behind_s) < 2


@pytest.mark.parametrize("days", [-19.1 * 365.25, 2.0])
def test_outside_that_time_ntp_is_not_believed(place: Place, issued: float, days: float) -> None:
    """Anybody may answer for NTP."""
    machine = place.check_in(Machine(behind_s=days * DAY_S, synchronised=True))
    assert abs(machine.behind_s) < 2 and len(machine.said) == 1
    assert place.check_in(Machine(behind_s=-1000, synchronised=True)).behind_s == -1000


def test_the_certificate_that_ends_first_counts(place: Place, issued: float) -> None:
    valid_for(place, 366)
    assert abs(place.check_in(Machine(behind_s=500)).behind_s) < 2
    valid_for(place, 364)
    machine = place.check_in(Machine(behind_s=500))
    assert machine.behind_s == 500 and "fleet add --again" in machine.said[0]


def test_a_coordinator_that_the_new_list_revokes_sets_no_clock(
    place: Place, issued: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own list says so: a board hears of it before it believes anything else."""
    machine = Machine(behind_s=500)
    admission = place.server.check_ins.admission
    monkeypatch.setattr(admission, "look", lambda: False)  # it serves on with the context that it has
    fleet = place.fleet.revoke("the-coordinator")
    admission.identity.revocations.offer(Identity.load(fleet.folder / "operator").revocations.present.der)
    with pytest.raises(PeerError, match="its certificate was revoked"):
        place.check_in(machine)
    assert machine.behind_s == 500 and Identity.load(place.config).revocations.number == 2


def test_a_clock_that_stays_beyond_the_coordinators_certificate_ends_the_check_in(
    place: Place, issued: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake does not look at dates: what the board does then goes by them all the same."""
    place.push("2")
    lies(monkeypatch, time_s=time.time() + 30 * YEAR_S)
    machine = Machine(behind_s=-30 * YEAR_S + 500)
    with pytest.raises(PeerError, match="its certificate has expired"):
        place.check_in(machine)
    assert machine.guards == 0 and not (place.home / "wanted").exists()


def test_fleet_status_says_whose_clock_differs(place: Place, issued: float) -> None:
    """It may be the laptop's: the boards' own logs say so too, but nobody reads them."""
    machine = Machine(behind_s=-700, synchronised=True)
    for says in ("its clock is 700 s ahead of ours", ""):
        place.check_in(machine)
        one, two = status(Fleet.open(place.fleet.folder), time.time())
        assert (one.clock, two.clock) == (says, "")
        assert (says or "round 3") in table((one, two), str)[1] and "clock" not in table((one, two), str)[2]
        machine.behind_s = 3.0  # the way here takes a little, too
    with Client(place.identity(), place.server.address) as client:
        for clock_s in (math.nan, math.inf, "now", True, None):
            client.check_in({"clock_s": clock_s})
            assert status(Fleet.open(place.fleet.folder), time.time())[0].clock == ""


def test_an_answer_that_is_nested_too_deep_is_one_sentence(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = MemberHandler.answer
    monkeypatch.setattr(MemberHandler, "answer", lambda self, body: answer(self, b"[" * 60_000))
    with pytest.raises(PeerError, match="makes no sense"):
        place.check_in()
