"""Which devices may be overwritten: every rule, on trees of machines as lsblk, mountinfo and
/proc/swaps show them (trees/; each says whether it was recorded or written by hand)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgegossip.fleet.image import refusals as rules
from edgegossip.fleet.image.block_devices import (
    Device,
    Facts,
    Kept,
    Mount,
    Target,
    parse_lsblk,
    parse_mounts,
    parse_swaps,
)
from edgegossip.fleet.image.refusals import Wish, refusals
from edgegossip.types import HostError

TREES = Path(__file__).parent / "trees"
GIB = 1 << 30


def facts(tree, path):
    """As `gather` would make them on that machine."""
    held = json.loads((TREES / f"{tree}.json").read_text())
    devices = parse_lsblk(json.dumps(held["lsblk"]))
    known = {d.path: d.number for top in devices for d in top.family()} | held["numbers"]
    kept = (*parse_swaps(held["swaps"], known.__getitem__), *(Kept(*pair) for pair in held["kept"]))
    target = Target(path, "block" if path in known else "missing", known.get(path, ""))
    return Facts(target, devices, parse_mounts(held["mountinfo"]), kept, frozenset(held["cards"]))


def name(path):
    return path.rpartition("/")[2]


def why(tree, path, size=2 * GIB, fixed=False, confirmed=None):
    """Reasons against it when everything is said that can be said for it."""
    return refusals(facts(tree, path), Wish(size, name(path) if confirmed is None else confirmed, fixed))


@pytest.mark.parametrize(
    ("tree", "path", "fixed"),
    [
        ("laptop", "/dev/sdb", False),
        ("laptop", "/dev/mmcblk0", False),
        ("board", "/dev/sda", False),
        ("board", "/dev/mmcblk1", True),
        ("server", "/dev/sdg", True),
        ("live", "/dev/sdb", False),
        ("virtual-machine", "/dev/loop2", True),
    ],
)
def test_what_may_be_written(tree, path, fixed):
    assert why(tree, path, size=GIB // 32, fixed=fixed) == ()


@pytest.mark.parametrize(
    ("tree", "path", "says"),
    [
        # the system disk, by every way to it
        ("laptop", "/dev/nvme0n1", "this machine runs from it (it holds /, /boot, /boot/efi)"),
        ("server", "/dev/sda", "this machine runs from it"),
        ("board", "/dev/mmcblk0", "this machine runs from it"),
        ("live", "/dev/sda", "this machine runs from it (it holds /run/live/medium)"),
        ("virtual-machine", "/dev/vda", "this machine runs from it"),
        # mounted
        ("laptop", "/dev/sde", "it is mounted at /media/me/My Backup: unmount it first"),
        ("server", "/dev/sdd", "it is mounted at /srv/btr"),
        ("virtual-machine", "/dev/loop0", "it is mounted at /tmp/mnt one"),
        # swap: a partition, one in a volume group, a file
        ("server", "/dev/sda", "swap /dev/sda2 is on it"),
        ("laptop", "/dev/nvme0n1", "swap /dev/dm-2 is on it"),
        ("server", "/dev/sdb", "swap /srv/data/swap file is on it"),
        ("board", "/dev/zram0", "swap /dev/zram0 is on it"),
        ("virtual-machine", "/dev/loop1", "swap /dev/loop1 is on it"),
        # files behind loop devices
        ("virtual-machine", "/dev/vda", "loop2 (/tmp/loop2.img) lies on it"),
        # holders
        ("laptop", "/dev/nvme0n1", "dm-0 (crypt) is built on it"),
        ("laptop", "/dev/nvme0n1", "dm-1 (lvm) is built on it"),
        ("server", "/dev/sdb", "md0 (raid1) is built on it"),
        ("server", "/dev/sdc", "md0 (raid1) is built on it"),
        # members of file systems whose mounts do not name them
        ("server", "/dev/sde", "sde is part of a btrfs that is mounted"),
        ("server", "/dev/sdf", "sdf1 is part of a ZFS pool"),
        # no whole device
        ("laptop", "/dev/sdb1", "it is a partition: name the whole device, /dev/sdb"),
        ("laptop", "/dev/mmcblk0p1", "name the whole device, /dev/mmcblk0"),
        ("laptop", "/dev/mapper/vg-root", "it is no disk or card of its own (lvm)"),
        ("server", "/dev/md0", "(raid1)"),
        ("server", "/dev/sr0", "(rom)"),
        ("board", "/dev/mmcblk1boot0", "boot area of an eMMC"),
        # cards that cannot be written
        ("laptop", "/dev/sdd", "write-protected"),
        ("laptop", "/dev/sdc", "there is no card in this reader"),
        ("laptop", "/dev/sdz", "there is no such device"),
    ],
)
def test_refused_whatever_is_said(tree, path, says):
    for fixed in (False, True):
        found = why(tree, path, fixed=fixed)
        assert any(says in reason for reason in found), found
        assert all(reason.startswith(path) for reason in found)


@pytest.mark.parametrize(
    ("tree", "path"), [("server", "/dev/sdg"), ("board", "/dev/mmcblk1"), ("virtual-machine", "/dev/loop2")]
)
def test_a_fixed_disk_only_if_the_user_says_so(tree, path):
    (reason,) = why(tree, path, size=GIB // 32)
    assert "fixed disk" in reason and "--allow-fixed" in reason
    assert why(tree, path, size=GIB // 32, fixed=True) == ()


def test_a_soldered_emmc_is_no_card():
    card = facts("laptop", "/dev/mmcblk0")
    assert refusals(card, Wish(GIB, "mmcblk0")) == ()
    assert "fixed disk" in refusals(replace(card, cards=frozenset()), Wish(GIB, "mmcblk0"))[0]


def test_an_image_that_is_too_large():
    size = 31914983424
    assert why("laptop", "/dev/sdb", size=size) == ()
    (reason,) = why("laptop", "/dev/sdb", size=size + 1)
    assert f"the image needs {size + 1} bytes, and it has {size}" in reason


@pytest.mark.parametrize("said", ["", "sdc", "sdb1", "SDB", "yes"])
def test_nothing_without_the_devices_own_name(said):
    (reason,) = why("laptop", "/dev/sdb", confirmed=said)
    assert "everything on it (Generic STORAGE DEVICE, 31.9 GB, usb) will be lost: say --yes sdb" in reason
    assert (f"--yes {said} names another device" in reason) == bool(said)


def test_the_name_may_be_said_as_a_path():
    assert why("laptop", "/dev/sdb", confirmed="/dev/sdb") == ()


def test_nobody_is_asked_to_confirm_what_is_refused_anyway():
    assert not any("--yes" in reason for reason in why("laptop", "/dev/nvme0n1", confirmed=""))


def test_another_name_of_a_device_is_the_same_device():
    system = facts("laptop", "/dev/nvme0n1")
    alias = replace(system, target=replace(system.target, path="/dev/disk/by-id/nvme-SAMSUNG"))
    assert any("this machine runs from it" in reason for reason in refusals(alias, Wish(1, "nvme0n1", True)))


@pytest.mark.parametrize(
    ("kind", "says"), [("file", "plain file"), ("folder", "a folder, not a disk"), ("other", "not a disk")]
)
def test_what_is_no_device(kind, says):
    (reason,) = refusals(replace(facts("laptop", "/dev/sdb"), target=Target("/tmp/x", kind)), Wish(1, "x", True))
    assert says in reason


def test_a_device_that_lsblk_does_not_know():
    unknown = replace(facts("laptop", "/dev/sdb"), target=Target("/dev/sdq", "block", "65:0"))
    assert "lsblk does not know" in refusals(unknown, Wish(1, "sdq", True))[0]


def test_the_image_must_not_lie_on_the_device():
    card = facts("laptop", "/dev/sdb")
    found = refusals(replace(card, kept=(Kept("the image /media/x.img", "8:17"),)), Wish(1, "sdb"))
    assert found == ("/dev/sdb: the image /media/x.img lies on it",)


def with_card(file_system="", uuid="", mounts=(), **changes):
    """A stick of one partition at /dev/sdx, beside the disks of the laptop."""
    part = Device("sdx1", "/dev/sdx1", "8:113", "part", GIB, file_system=file_system, uuid=uuid)
    stick = Device("sdx", "/dev/sdx", "8:112", "disk", 4 * GIB, removable=True, children=(part,))
    stick = replace(stick, **changes)
    there = facts("laptop", "/dev/sdb")
    target = Target(stick.path, "block", stick.number)
    return replace(there, target=target, devices=(*there.devices, stick), mounts=(*there.mounts, *mounts))


@pytest.mark.parametrize(
    "mount",
    [
        Mount("0:44", "/home", "/dev/disk/by-uuid/u-1", "btrfs"),
        Mount("0:44", "/home", "UUID=u-1", "btrfs"),
        Mount("0:44", "/home", "/dev/disk/by-label/backup", "btrfs", "8:113"),
        Mount("0:44", "/home", "/dev/sdx1", "fuseblk"),
    ],
)
def test_a_mount_by_another_name_is_a_mount(mount):
    """Of file systems that show a number of their own."""
    wish = Wish(GIB, "sdx")
    assert refusals(with_card("btrfs", "u-1"), wish) == ()
    assert any(
        "this machine runs from it (it holds /home)" in why
        for why in refusals(with_card("btrfs", "u-1", (mount,)), wish)
    )
    elsewhere = replace(mount, point="/media/x")
    assert any("it is mounted at /media/x" in why for why in refusals(with_card("btrfs", "u-1", (elsewhere,)), wish))


def test_which_device_is_behind_a_mount_says_the_system():
    line = "36 35 0:44 / /home rw - btrfs {} rw\n"
    text = line.format("/dev/disk/by-label/my\\040disk") + line.format("tmpfs")
    asked = {"/dev/disk/by-label/my disk": "8:113"}
    assert [m.behind for m in parse_mounts(text, lambda path: asked.get(path, ""))] == ["8:113", ""]


@pytest.mark.parametrize(
    ("file_system", "says"),
    [
        ("LVM2_member", "sdx1 is part of LVM: `wipefs --all /dev/sdx1`"),
        ("linux_raid_member", "sdx1 is part of a RAID"),
        ("isw_raid_member", "sdx1 is part of a RAID"),
        ("bcache", "sdx1 is part of bcache"),
        ("zfs_member", ""),
        ("vfat", ""),
        ("crypto_LUKS", ""),
    ],
)
def test_parts_of_something_that_is_not_assembled(file_system, says):
    for fixed in (False, True):
        found = refusals(with_card(file_system), Wish(GIB, "sdx", fixed))
        assert bool(found) == bool(says) and all(says in why for why in found)


@pytest.mark.parametrize("name", ["bcache0", "zram0", "nbd3", "zd16", "drbd1"])
def test_what_lsblk_calls_a_disk_and_is_made_of_something_else(name):
    found = refusals(with_card(name=name, path=f"/dev/{name}", children=()), Wish(GIB, name, True))
    assert found == (f"/dev/{name}: it is no disk or card of its own (disk)",)


def test_every_rule_refuses_something_here():
    """A rule that no tree needs is a rule that no test holds."""
    said = set()
    trees = [facts(file.stem, "/dev/none") for file in TREES.glob("*.json")]
    for held in (*trees, with_card("LVM2_member")):
        for device in (d for top in held.devices for d in top.family()):
            there = replace(held, target=Target(device.path, "block", device.number))
            said |= {rule.__name__ for rule in rules._RULES for _ in rule(device, there, Wish(10**10))}
    assert said == {rule.__name__ for rule in rules._RULES}


@pytest.mark.parametrize("text", ["", "{}", '{"blockdevices": [{"name": "sda"}]}', "[]", '{"blockdevices": 3}'])
def test_an_lsblk_that_is_not_understood_writes_nothing(text):
    with pytest.raises(HostError, match="nothing is written"):
        parse_lsblk(text)
