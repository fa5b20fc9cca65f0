"""Which devices may be overwritten: every rule, on what lsblk says of a machine's disks. What is in
use the kernel refuses (test_flash.py)."""

import json
from pathlib import Path

import pytest

from edgegossip.fleet.image.refusals import Wish, parse_lsblk, refusals
from edgegossip.types import HostError

GIB = 1 << 30


def device(**said):
    """A stick of one partition, but for what is `said` of it."""
    part = {"kname": "sdb1", "pkname": "sdb", "path": "/dev/sdb1", "maj:min": "8:17", "type": "part", "size": GIB,
            "rm": True, "fstype": "vfat", "mountpoints": [None]}  # fmt: skip
    stick = {**part, "kname": "sdb", "path": "/dev/sdb", "maj:min": "8:16", "type": "disk", "size": 31914983424,
             "tran": "usb", "vendor": "Generic ", "model": "STORAGE DEVICE", "fstype": None, "children": [part]}  # fmt: skip
    of_part = said.pop("part", {})
    stick["children"] = [{**part, **of_part}]
    return parse_lsblk(json.dumps({"blockdevices": [{**stick, **said}]}))


def why(found, size=2 * GIB, fixed=False, confirmed=None):
    """Reasons against it when everything is said that can be said for it."""
    return refusals(found, Wish(size, found.name if confirmed is None else confirmed, fixed))


def test_a_card_may_be_written_by_its_name_or_its_path():
    assert why(device()) == why(device(), confirmed="/dev/sdb") == ()


NO_DISK = "it is no disk or card of its own (disk)"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"part": {"mountpoints": ["/media/me/My Backup"]}}, "sdb1 is in use at /media/me/My Backup: unmount it first"),
        ({"part": {"mountpoints": ["[SWAP]"]}}, "sdb1 is in use at [SWAP]"),
        (
            {"part": {"fstype": "LVM2_member"}},
            "sdb1 is part of something larger (LVM2_member): `wipefs --all /dev/sdb1`",
        ),
        *(
            ({"fstype": kind, "children": []}, f"sdb is part of something larger ({kind})")
            for kind in ("linux_raid_member", "bcache", "drbd", "ceph_bluestore")
        ),
        ({"type": "part", "pkname": "sda"}, "it is a partition: name the whole device, /dev/sda"),
        ({"type": "raid1"}, "it is no disk or card of its own (raid1)"),
        *(({"kname": name}, NO_DISK) for name in ("bcache0", "zram0", "ram1", "zd16", "drbd1", "nbd3", "rbd10")),
        ({"kname": "mmcblk1boot0"}, "boot area of an eMMC"),
        ({"size": 0}, "there is no card in this reader"),
    ],
)
def test_refused_whatever_is_said(said, says):
    for fixed in (False, True):
        found = why(device(**said), fixed=fixed)
        assert any(says in reason for reason in found), found
        assert all(reason.startswith("/dev/") for reason in found)


def test_a_fixed_disk_only_if_the_user_says_so():
    (reason,) = why(device(rm=False))
    assert "fixed disk" in reason and "--allow-fixed" in reason
    assert why(device(rm=False), fixed=True) == ()


@pytest.mark.parametrize(
    ("kind", "asks"), [("SD", False), ("MMC", True), (None, True)], ids=["card", "soldered eMMC", "not told"]
)
def test_an_sd_card_in_a_reader_of_its_own_is_no_fixed_disk(kind, asks, monkeypatch):
    def read(path):
        assert str(path) == "/sys/block/mmcblk0/device/type"
        if kind is None:
            raise FileNotFoundError(path)
        return f"{kind}\n"

    monkeypatch.setattr(Path, "read_text", read)
    found = why(device(kname="mmcblk0", rm=False, tran=None))
    assert ["--allow-fixed" in reason for reason in found] == [True] * asks


def test_an_image_that_is_too_large():
    size = 31914983424
    assert why(device(), size=size) == ()
    (reason,) = why(device(), size=size + 1)
    assert f"the image needs {size + 1} bytes, and it has {size}" in reason


@pytest.mark.parametrize("said", ["", "sdc", "sdb1", "yes"])
def test_nothing_without_the_devices_own_name(said):
    (reason,) = why(device(), confirmed=said)
    assert "everything on it (Generic STORAGE DEVICE, 31.9 GB, usb) will be lost: say --yes sdb" in reason
    assert (f"--yes {said} names another device" in reason) == bool(said)


def test_nobody_is_asked_to_confirm_what_is_refused_anyway():
    assert not any("--yes" in reason for reason in why(device(rm=False), confirmed=""))


@pytest.mark.parametrize("text", ["", "{}", '{"blockdevices": [{"name": "sda"}]}', "[]", '{"blockdevices": 3}'])
def test_an_lsblk_that_is_not_understood_writes_nothing(text):
    with pytest.raises(HostError, match="nothing is written"):
        parse_lsblk(text)
