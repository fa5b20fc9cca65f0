"""Boards check in over real sockets: time, revocations and releases come from the fleet's machine,
and to nobody else."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from edgegossip.fleet import orders, provisioning, releases
from edgegossip.fleet.checkins import Server, open_check_ins, status, table
from edgegossip.fleet.releases import examine
from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.security.identity import Identity
from edgegossip.types import ConfigError, PeerError, UsageError
from edgegossip.update import agent
from edgegossip.update.bundle import parse_manifest
from edgegossip.update.client import Client
from tests.update.place import Machine


def test_the_fleet_sees_the_board_and_the_board_gets_the_time(place):
    machine = place.check_in(Machine(behind_s=1e9))
    assert abs(machine.behind_s) < 2 and "behind: set to the coordinator's" in machine.said[0]
    assert abs(place.check_in(Machine(behind_s=500, synchronised=True)).behind_s) == 500, "NTP knows better"
    one, two = status(Fleet.open(place.fleet.folder), time.time())
    assert (one.name, one.seen, one.state, one.status) == ("pi-01", "here", "active", "round 3") and two.seen == "never"
    assert any("pi-01" in line and "round 3" in line for line in table((one, two), lambda s: f"{s:.0f} s"))
    assert len(place.said) == 1, "said once, not every minute"


def test_a_board_that_always_says_something_else_has_few_lines(place):
    with Client(place.identity(), place.server.address) as client:
        for number in range(100):
            client.check_in({"version": str(number)})
    assert 4 < len(place.said) < 30
    assert status(Fleet.open(place.fleet.folder), time.time())[0].version == "99", "kept all the same"


def test_the_fleet_sees_what_a_board_runs_beside_us(place):
    def seen():
        place.check_in()
        return status(Fleet.open(place.fleet.folder), time.time())[0]

    def lines():
        return table((seen(),), lambda s: f"{s:.0f} s")[1]

    for name, text in {
        "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n',
        "etc/debian_version": "12.11\n",
    }.items():
        (place.board / name).write_text(text)
    one = seen()
    assert (one.system, one.kernel, one.pending) == ("Debian 12.11", os.uname().release, None)
    assert "no word of security updates, never upgraded" in lines()
    (place.home / "upgrades").write_text('{"pending": 3, "at_s": 1}')
    stamp = place.board / "var/lib/apt/periodic/upgrade-stamp"
    stamp.parent.mkdir(parents=True)
    stamp.touch()
    os.utime(stamp, (time.time() - 7200,) * 2)
    (place.board / "run").mkdir()
    (place.board / "run/reboot-required").touch()
    one = seen()
    assert one.pending == 3 and one.restart_due and 7199 < one.upgraded_ago_s < 7300
    assert re.search(r"Debian 12.11, \S+, 3 security updates wait, upgraded 72\d\d s ago, restart due", lines())
    (place.board / "etc/os-release").write_text('PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\n')
    (place.home / "upgrades").write_text("[]")
    assert seen().system == "Ubuntu 22.04.5 LTS" and seen().pending is None


def test_a_release_comes_and_is_checked_in_from(place):
    place.push("2")
    machine = place.check_in()
    wanted = json.loads((place.home / "wanted").read_text())
    assert machine.guards == 1 and wanted["sequence"] == 1
    assert (place.home / "releases" / wanted["name"] / "site/edgegossip/version.py").read_text() == 'VERSION = "2"\n'
    os.remove(place.home / "current")
    (place.home / "current").symlink_to(f"releases/{wanted['name']}")  # as the guard does
    machine.service["NRestarts"] = "3"
    place.check_in(machine)
    assert (place.home / "checked-in").read_text() != wanted["name"], "a board that keeps failing is not at work"
    machine.service["NRestarts"] = "0"
    place.check_in(machine)
    assert (place.home / "checked-in").read_text() == wanted["name"] and machine.guards == 1, "it has it now"
    assert status(Fleet.open(place.fleet.folder), time.time())[0].release == 1


def test_a_board_with_other_packages_does_not_try_it(place):
    place.push("2", lock="another==1 \\\n")
    machine = Machine()
    with pytest.raises(PeerError, match="other Python packages than this board has.*--with-packages"):
        place.check_in(machine)
    place.check_in(machine)  # which says so
    assert machine.guards == 0, "it was not tried"
    assert "--with-packages" in status(Fleet.open(place.fleet.folder), time.time())[0].update
    with pytest.raises(ConfigError, match="pi-01 have other Python packages than .*2.bundle needs"):
        orders.push(place.fleet, place.folder / "2.bundle", [])
    with pytest.raises(ConfigError, match="no board that has checked in has the packages.*--with-packages"):
        place.push("3", lock="another==1 \\\n")
    brought = {"another.py": b"x = 1\n", "another-1.dist-info/METADATA": b""}
    place.push("4", lock="another==1 \\\n", **brought)
    place.check_in(machine)
    new = place.home / "releases" / json.loads((place.home / "wanted").read_text())["name"] / "site"
    assert machine.guards == 1 and (new / "another.py").exists() and not (new / "dependency.py").exists()


def test_what_a_board_runs_is_changed_from_afar(place):
    machine = place.check_in()
    assert machine.restarts == 0, "nothing was said yet"
    orders.change(place.fleet, ("pi-01", "pi-02"), {"coordinator": "10.0.0.9:8000", "settings": ("run.threads=7",)})
    place.check_in(machine)
    arguments = (place.config / "node.args").read_text().splitlines()[1:]
    assert machine.restarts == 1 and arguments[:4] == ["--coordinator", "10.0.0.9:8000", "--set", "run.threads=7"]
    (place.config / "node.args").write_text("edited by hand\n")
    place.check_in(machine)
    assert machine.restarts == 1 and (place.config / "node.args").read_text() == "edited by hand\n", "told once"
    orders.change(place.fleet, ("pi-01",), {"join": ("10.0.0.1:7700",), "founder": "pi-02"})
    place.check_in(machine)
    assert machine.restarts == 2 and "--join" in (place.config / "node.args").read_text()


def test_a_server_that_boards_check_in_with_has_no_key_of_the_operators(place, tmp_path):
    """It serves from a copy of what docs/deploy.md names, and is as good as the laptop to a
    board."""
    readme = (Path(__file__).parents[2] / "docs/deploy.md").read_text().replace("\\\n", " ")
    names = re.search(r"rsync [^\n]*--ignore-missing-args ([^\n]*) root@server:", readme)[1].split()
    place.push("2")
    orders.change(place.fleet, ("pi-01",), {"coordinator": "10.0.0.9:8000"})
    copy, said = tmp_path / "copy", []

    def bring():
        for name in names:
            source = place.fleet.folder / name
            if source.is_dir():
                shutil.copytree(source, copy / name, dirs_exist_ok=True)
            elif source.exists():
                (copy / name).parent.mkdir(exist_ok=True)
                shutil.copy(source, copy / name)

    bring()
    own = {"coordinators/the-coordinator/identity.key"}
    assert {f.relative_to(copy).as_posix() for f in copy.rglob("*.key")} == own, "the server's own, and no other"
    with Server(open_check_ins(copy, coordinator_of(copy), said.append), "127.0.0.1:0") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        place.names(server.address)
        machine = place.check_in(Machine(behind_s=1e9))
        assert abs(machine.behind_s) < 2 and machine.restarts == 1 and machine.guards == 1, "time, order and release"
        assert "10.0.0.9:8000" in (place.config / "node.args").read_text()
        place.fleet.revoke("pi-02")
        bring()
        server.check_ins.admission.identity.revocations.look_at_file()
        place.check_in(machine)
        assert Identity.load(place.config).revocations.number == 2
        server.shutdown()
    one, two = status(Fleet.open(copy), time.time())
    assert (one.seen, one.state, two.seen) == ("here", "active", "revoked")


def test_only_the_operator_says_what_boards_run(place):
    """Its key signs at `fleet set`, and nothing is kept that could not be signed."""
    signed, operator = place.fleet.folder / "orders", place.fleet.folder / "operator"
    operator.rename(place.folder / "at-home")
    with pytest.raises(UsageError, match="no such file"):
        orders.change(place.fleet, ("pi-01",), {"coordinator": "10.0.0.9:8000"})
    assert not signed.exists() and not provisioning.load_profile(place.fleet.folder, "pi-01").runs
    (place.folder / "at-home").rename(operator)
    orders.change(place.fleet, ("pi-01",), {"coordinator": "10.0.0.9:8000"})
    place.fleet.revoke("the-operator")
    machine = place.check_in()
    assert machine.restarts == 0, "an order of a revoked operator is not passed on"
    assert "pi-01.json is no order for pi-01" in place.said[-1] and "fleet set" in place.said[-1]


def test_a_folder_without_a_coordinator_says_where_one_is_made(place):
    folder = place.fleet.folder
    place.fleet.revoke("the-coordinator")
    (folder / "ca.key").unlink()
    with pytest.raises(UsageError, match="where that key is, say `edgegossip fleet add --role coordinator"):
        coordinator_of(folder)


@pytest.mark.parametrize("what", ["pushed to another", "given up", "tried now"])
def test_no_release_is_fetched_that_is_not_due(place, what):
    place.push("2", "pi-02" if what == "pushed to another" else "pi-01")
    if what == "given up":
        (place.home / "failed").write_text('{"1": "it did not check in"}')
    if what == "tried now":
        (place.home / "trial").write_text("{}")
    assert place.check_in().guards == 0 and not (place.home / "wanted").exists()
    if what == "given up":
        (one, _) = status(Fleet.open(place.fleet.folder), time.time())
        assert one.update == "release 1 failed: it did not check in"


@pytest.mark.parametrize(
    ("version", "bundle_made_after_s", "taken"),
    [
        ("0.1.0", 1000, False),  # a newer card, and a push of last year
        ("0.1.0", -1000, True),  # pushed since: the operator wants the older one
        ("0.10.0", 1000, True),  # a card from an older image: the fleet's release is newer
        ("0.9.0", 1000, True),
    ],
)
def test_a_new_card_is_not_set_back_by_an_old_push(place, monkeypatch, version, bundle_made_after_s, taken):
    monkeypatch.setattr(agent, "VERSION", "0.9.0")
    place.push(version)
    board = {"name": "pi-01", "check_in": place.server.address, "issued_s": time.time() + bundle_made_after_s}
    (place.config / "board.json").write_text(json.dumps(board))
    if taken:
        assert place.check_in().guards == 1
        return
    with pytest.raises(PeerError, match="older than version 0.9.0, which the card brought"):
        place.check_in()
    assert place.check_in().guards == 0 and not (place.home / "wanted").exists(), "and it is not asked for again"
    place.push("0.2.0")
    place.names(place.server.address)  # a board that runs a release goes by numbers alone
    place.check_in()
    (place.config / "board.json").write_text(json.dumps(board))
    assert json.loads((place.home / "wanted").read_text())["sequence"] == 2


def test_a_push_says_when_it_was_first_made(place, monkeypatch):
    """Not when the bundle was built; and the same for all boards that it goes to after one
    another."""
    signed = []
    for at_s in (1e9, 2e9, 3e9):
        monkeypatch.setattr(releases.time, "time", lambda at_s=at_s: at_s)
        if at_s == 1e9:
            place.push("2", "pi-01")
            releases.build(place.fleet, examine(place.folder / "site-2"), place.folder / "later.bundle")
        else:
            orders.push(place.fleet, place.folder / "later.bundle", ("pi-01",))
        head, _ = releases.read_head(releases.bundle_file(place.fleet.folder, 1 if at_s == 1e9 else 2))
        signed.append(parse_manifest(head.packed).signed_s)
    assert signed == [1e9, 2e9, 2e9]


def test_a_release_for_another_kind_of_board_is_given_up_once(place):
    """So are those before it: what failed once is not tried again."""
    (place.home / "failed").write_text('{"7": "it did not check in"}')
    place.push("2", machine="riscv64")
    with pytest.raises(PeerError, match="is for riscv64"):
        place.check_in()
    failed = json.loads((place.home / "failed").read_text())
    assert place.check_in().guards == 0 and "riscv64" in failed["1"] and set(failed) == {"1", "7"}


def test_a_board_reads_no_other_boards_release(place):
    place.push("2", "pi-02")
    with Client(place.identity(), place.server.address) as client, pytest.raises(PeerError, match="is not for pi-01"):
        client.head(1)


def test_a_bundle_that_somebody_exchanged_is_refused(place, tmp_path):
    """On the fleet's machine itself, by whoever can write files there but has no operator's key."""
    place.push("2")
    other = Fleet.create(tmp_path / "other", "other", 20)
    releases.build(other, examine(place.folder / "site-2"), tmp_path / "evil.bundle")
    shutil.copy(tmp_path / "evil.bundle", releases.bundle_file(place.fleet.folder, 1))
    with pytest.raises(PeerError, match="not of our fleet"):
        place.check_in()
    assert not (place.home / "wanted").exists() and os.listdir(place.home / "releases") == ["factory"]


def test_a_machine_that_is_away_is_one_sentence(place):
    place.names("127.0.0.1:9")
    with pytest.raises(PeerError, match="127.0.0.1:9: connection refused"):
        place.check_in()


@pytest.mark.parametrize(("trouble", "code", "tries"), [(PeerError("away"), 0, 3), (UsageError("no place"), 1, 1)])
def test_the_first_check_in_of_a_boot_is_patient_and_later_ones_are_not(
    tmp_path, monkeypatch, capsys, trouble, code, tries
):
    now_s, seen = [0.0], []

    def check_in(machine, places, say, *, fetch):
        seen.append(fetch)
        raise trouble

    monkeypatch.setattr(agent, "check_in", check_in)
    monkeypatch.setattr(agent, "PATIENCE_S", 5.0)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda for_s: now_s.append(now_s.pop() + for_s))
    monkeypatch.setattr(os, "umask", lambda mask: seen.append(mask))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert agent.main() == code and seen == [0o022] + [False] * tries
    assert capsys.readouterr().err == f"{trouble}\n"
    seen.clear()
    assert agent.main() == code and seen == [0o022, True]
