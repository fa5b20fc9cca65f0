"""First boot over a fake root: what it makes of a bundle, and that the power may go at any
moment."""

from __future__ import annotations

import functools
import json
from random import Random

import pytest

from edgegossip.fleet import kitfile
from edgegossip.types import EdgegossipError
from lab.sim.disk import FakeDisk
from tests.deploy.board import FakeOs, PowerCut, cut_at, program, put

disk_module = program("disk")
firstboot = program("firstboot")
FOLDERS = ("/etc/systemd/system", "/boot/firmware", "/root", "/etc/NetworkManager/system-connections")
NOW_S = 1_700_000_000


@functools.cache
def refusal(bundle: bytes) -> str:
    try:
        kitfile.parse(bundle)
    except EdgegossipError as error:
        return str(error)
    return ""


class FakeMachine:
    """Programs that succeed, and are remembered; the release's check of a bundle is the real
    one."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk, self.now_s, self.commands, self.refuse = disk, 0.0, [], ""

    def now(self) -> float:
        return self.now_s

    def set_clock(self, seconds: float) -> None:
        self.now_s = seconds

    def run(self, command, text=""):
        self.disk.before("run", command[0])
        if self.refuse and self.refuse in command:
            raise firstboot.Failed(f"{self.refuse}: it does not work here")
        if "edgegossip.fleet.kitfile" in command:
            if why := refusal(bytes(self.disk._now["/boot/firmware/edgegossip.kit"].content)):
                raise firstboot.Failed(why)
            return "pi-01"
        self.commands.append((*command, text) if text else tuple(command))
        return "/dev/mmcblk0p2\n" if command[0] == "findmnt" else ""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The bundle of pi-01, and that of pi-02 of another fleet."""
    from edgegossip.fleet import orders, provisioning
    from edgegossip.fleet.store import Fleet

    found = []
    for name in ("pi-01", "pi-02"):
        fleet = Fleet.create(tmp_path_factory.mktemp("fleets") / name, name, 20).add(name, "board", 20)
        given = {
            "coordinator": "10.0.0.9:8000",
            "check_in": "10.0.0.9:7710" if name == "pi-01" else None,
            "wifi": (kitfile.Wifi.of("Gärten & Co", "correct horse", "DE"),),
        }
        orders.change(fleet, (name,), {**given, "ssh_keys": ("ssh-ed25519 AAAA me",)})
        found.append(provisioning.make_bundle(fleet, name, NOW_S))
    return found[0], found[1]


def card(bundle: bytes | None, network_manager: bool = False) -> FakeDisk:
    disk = FakeDisk()
    for folder in FOLDERS:
        disk.make_folder(folder)
    put(disk, "/sys/class/block/mmcblk0p2/partition", b"2\n")
    put(disk, "/usr/bin/ssh-keygen", b"")
    put(disk, firstboot.CARD_CONFIG, b"arm_64bit=1\n")
    if network_manager:
        put(disk, "/usr/sbin/NetworkManager", b"")
    if bundle is not None:
        put(disk, firstboot.CARD_BUNDLE, bundle)
    return disk


def boot(disk: FakeDisk, monkeypatch, machine: FakeMachine | None = None) -> tuple[int, FakeMachine, FakeOs]:
    fake = FakeOs(disk)
    monkeypatch.setattr(disk_module, "os", fake)
    machine = machine or FakeMachine(disk)
    board = disk_module.Disk()
    board.real = lambda path: "/sys/devices/soc/mmc/block/mmcblk0/mmcblk0p2"
    return firstboot.main(board, machine), machine, fake


def content(disk: FakeDisk) -> dict[str, bytes]:
    return {path: bytes(inode.content) for path, inode in disk._now.items() if not path.endswith(".new")}


def test_a_board_becomes_who_the_bundle_says(bundles, monkeypatch):
    disk = card(bundles[0])
    code, machine, fake = boot(disk, monkeypatch)
    files = content(disk)
    assert code == 0 and firstboot.CARD_BUNDLE not in files
    assert files["/etc/edgegossip/kit"] == bundles[0] and fake.modes["/etc/edgegossip/kit"] == 0o600
    assert fake.modes["/etc/edgegossip/identity.key"] == 0o600 and fake.modes["/etc/edgegossip/crl.pem"] == 0o644
    assert json.loads(files["/etc/edgegossip/board.json"])["name"] == "pi-01"
    assert files["/etc/edgegossip/check-in"] == b"10.0.0.9:7710\n"
    assert b"\n--coordinator\n10.0.0.9:8000\n" in files["/etc/edgegossip/node.args"]
    assert files["/etc/hostname"] == b"pi-01\n" and machine.now_s == NOW_S
    assert files["/etc/hosts"].decode().splitlines() == ["127.0.0.1\tlocalhost", "::1\tlocalhost", "127.0.1.1\tpi-01"]
    assert fake.modes["/root/.ssh/authorized_keys"] == 0o600 and fake.modes["/root/.ssh"] == 0o700
    wpa = files[firstboot.WPA].decode()
    assert "country=DE" in wpa and f"ssid={'Gärten & Co'.encode().hex()}" in wpa and fake.modes[firstboot.WPA] == 0o600
    assert fake.readlink(f"/etc/systemd/system/multi-user.target.wants/{firstboot.WPA_UNIT}").startswith("/lib/systemd")
    assert [c for c in machine.commands if c[0] in ("sfdisk", "partx", "resize2fs", "ssh-keygen")] == [
        ("sfdisk", "--no-reread", "--force", "--quiet", "-N", "2", "/dev/mmcblk0", ", +\n"),
        ("partx", "--update", "--nr", "2", "/dev/mmcblk0"),
        ("resize2fs", "/dev/mmcblk0p2"),
        ("ssh-keygen", "-A"),
    ]


def test_a_boot_partition_that_systemd_did_not_mount_is_mounted(bundles, monkeypatch, capsys):
    disk = card(None)
    hidden = {firstboot.CARD_CONFIG: disk._now.pop(firstboot.CARD_CONFIG)}
    machine = FakeMachine(disk)
    machine.refuse = "/boot/firmware"
    assert boot(disk, monkeypatch, machine)[0] == 0  # it may be broken: the board does what it did before
    assert "cannot be mounted: /boot/firmware: it does not work here" in capsys.readouterr().out
    run, machine = FakeMachine.run, FakeMachine(disk)

    def mounts(command, text=""):
        if tuple(command) == ("mount", "/boot/firmware"):
            disk._now.update(hidden)
            put(disk, firstboot.CARD_BUNDLE, bundles[0])
        return run(machine, command, text)

    monkeypatch.setattr(machine, "run", mounts)
    assert boot(disk, monkeypatch, machine)[0] == 0
    assert "was not mounted: it is now" in capsys.readouterr().out and firstboot.APPLIED in content(disk)


def test_the_second_boot_changes_nothing(bundles, monkeypatch):
    disk = card(bundles[0])
    boot(disk, monkeypatch)
    put(disk, "/etc/edgegossip/node.args", b"edited by hand\n")
    before = content(disk)
    code, machine, _ = boot(disk, monkeypatch)
    assert (code, content(disk), machine.commands) == (0, before, [("ssh-keygen", "-A")])
    assert machine.now_s == NOW_S, "a board without a clock chip begins no earlier at any boot"


def test_network_manager_gets_a_profile_of_its_own(bundles, monkeypatch):
    disk = card(bundles[0], network_manager=True)
    _, _machine, fake = boot(disk, monkeypatch)
    path = "/etc/NetworkManager/system-connections/edgegossip-0.nmconnection"
    assert (
        "".join(f"{b};" for b in "Gärten & Co".encode()) in content(disk)[path].decode() and fake.modes[path] == 0o600
    )
    assert firstboot.WPA not in content(disk)


def test_a_new_bundle_makes_it_another_board(bundles, monkeypatch):
    disk = card(bundles[0])
    boot(disk, monkeypatch)
    put(disk, firstboot.CARD_BUNDLE, bundles[1])
    put(disk, "/etc/edgegossip/order.json", b"{}")
    code, _, _ = boot(disk, monkeypatch)
    assert code == 0 and content(disk)["/etc/hostname"] == b"pi-02\n" and firstboot.CARD_BUNDLE not in content(disk)
    assert "/etc/edgegossip/order.json" not in content(disk), "an operator's word from before the bundle"
    assert "/etc/edgegossip/check-in" not in content(disk), "this one's bundle names no machine to check in with"
    assert b"PRIVATE KEY" not in b"".join(v for k, v in content(disk).items() if k.startswith("/boot"))


def test_a_card_without_a_bundle_says_what_is_missing(monkeypatch, capsys):
    disk = card(None)
    code, machine, _ = boot(disk, monkeypatch)
    assert code == 0 and "has no provisioning bundle" in capsys.readouterr().out
    assert any(c[0] == "resize2fs" for c in machine.commands)


@pytest.mark.parametrize("how", ["cut", "changed", "zeros", "empty", "another"])
def test_a_bad_bundle_stays_and_is_explained_on_the_card(bundles, monkeypatch, capsys, how):
    bad = {
        "cut": bundles[0][:-200],
        "changed": bundles[0].replace(b"10.0.0.9", b"10.6.6.6"),
        "zeros": bytes(len(bundles[0])),
        "empty": b"",
        "another": b"{}",
    }[how]
    disk = card(bad)
    code, _, _ = boot(disk, monkeypatch)
    files = content(disk)
    assert code == 1 and files[firstboot.CARD_BUNDLE] == bad and "/etc/edgegossip/board.json" not in files
    assert len(files[firstboot.CARD_WORDS].splitlines()) == 1 and "<3>" in capsys.readouterr().err
    put(disk, firstboot.CARD_BUNDLE, bundles[0])
    assert boot(disk, monkeypatch)[0] == 0 and firstboot.CARD_WORDS not in content(disk)


def test_a_file_system_that_does_not_grow_stops_nobody(bundles, monkeypatch, capsys):
    disk = card(bundles[0])
    machine = FakeMachine(disk)
    machine.refuse = "sfdisk"
    assert boot(disk, monkeypatch, machine)[0] == 0 and "grow: sfdisk: it does not work here" in capsys.readouterr().out
    _, machine, _ = boot(disk, monkeypatch)
    assert any(c[0] == "resize2fs" for c in machine.commands), "tried again at the next boot"


def test_programs_that_fail_keep_nobody_from_training(bundles, monkeypatch, capsys):
    disk = card(bundles[0])
    machine = FakeMachine(disk)
    machine.refuse = "daemon-reload"
    assert (
        boot(disk, monkeypatch, machine)[0] == 0 and "daemon-reload: it does not work here" in capsys.readouterr().out
    )
    assert firstboot.APPLIED in content(disk)


def operations(start: FakeDisk, monkeypatch) -> int:
    count = [0]
    start.before = lambda operation, path: count.__setitem__(0, count[0] + 1)
    boot(start, monkeypatch)
    return count[0]


@pytest.mark.parametrize("renewed", [False, True])
def test_the_power_may_go_at_any_moment(bundles, monkeypatch, renewed):
    """At every boundary, three times; then the board comes up with the files of a first boot that
    went well, the bundle is never lost, and nothing of the key is left on the boot partition."""

    def fresh() -> FakeDisk:
        disk = card(bundles[0])
        if renewed:
            boot(disk, monkeypatch)
            disk.sync_folder("/boot/firmware")
            put(disk, firstboot.CARD_BUNDLE, bundles[1])
        return disk

    bundle = bundles[1] if renewed else bundles[0]
    well = fresh()
    total = operations(well, monkeypatch)
    expected = content(well)
    assert total > 20
    for number in range(total):
        for seed in range(3):
            disk = fresh()
            disk.before = cut_at(number)
            with pytest.raises(PowerCut):
                boot(disk, monkeypatch)
            disk.before = lambda operation, path: None
            found = disk.after_power_cut(Random(seed * 1000 + number))
            held = content(found)
            assert bundle in (held.get(firstboot.CARD_BUNDLE), held.get(firstboot.BUNDLE)), (
                f"cut {number}: the bundle is lost"
            )
            assert boot(found, monkeypatch)[0] == 0, f"cut {number}"
            assert content(found) == expected, f"cut {number}"
