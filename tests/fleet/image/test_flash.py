"""Writing cards, on loop devices that these tests make themselves. They never name another
device."""

import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgegossip.cli.image import flash as command
from edgegossip.fleet.image import disk, flashing
from edgegossip.fleet.image.disk import FAT32_LBA, LINUX, Partition
from edgegossip.fleet.image.flashing import flash_card
from edgegossip.fleet.image.refusals import Wish, look_up
from edgegossip.types import ConfigError, DataError, HostError

MIB = 1 << 20
SIZE, ROOM = 9 * MIB + 512, 16 * MIB
TABLE = disk.partition_table(
    (Partition(FAT32_LBA, 4 * MIB, MIB, bootable=True), Partition(LINUX, 5 * MIB, SIZE - 5 * MIB))
)


def quiet(*_):
    pass


@pytest.fixture
def image(tmp_path):
    """9 MiB and a sector: more than one piece, and no whole number of them."""
    file = tmp_path / "card.img"
    block = random.Random(1).randbytes(8192)
    file.write_bytes(b"".join(at.to_bytes(8, "big") + block for at in range(SIZE // 8192))[:SIZE])
    os.truncate(file, SIZE)
    with open(file, "r+b") as stream:
        stream.write(TABLE)
    return file


@pytest.fixture
def loop(tmp_path):
    """(device, file behind it): 16 MiB of 0xee."""
    with loop_device(tmp_path / "card") as made:
        yield made


@contextmanager
def loop_device(behind):
    if os.geteuid() or not shutil.which("losetup", path="/sbin:/usr/sbin"):
        pytest.skip("loop devices need root and losetup")
    behind.write_bytes(b"\xee" * ROOM)
    made = subprocess.run(["/sbin/losetup", "--find", "--show", behind], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device to be had here: {made.stderr.strip()}")
    device = made.stdout.strip()
    assert device.startswith("/dev/loop")
    try:
        yield device, behind
    finally:
        subprocess.run(["/sbin/losetup", "--detach", device], check=True)


def flash(image, device, fixed=True, confirmed=None, **options):
    name = device.rpartition("/")[2] if confirmed is None else confirmed
    return flash_card(image, device, Wish(0, name, fixed), quiet, **{"verify": True, "dry_run": False, **options})


def refused(image, device, says, **options):
    with pytest.raises(ConfigError, match="nothing was written") as caught:
        flash(image, device, **options)
    assert says in str(caught.value)


@contextmanager
def opened(device):
    descriptor = os.open(device, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_writes_and_verifies(image, loop):
    device, behind = loop
    done = flash(image, device)
    assert (done["size"], done["written"], done["verified"]) == (SIZE, True, True)
    held = behind.read_bytes()
    assert held[:SIZE] == image.read_bytes() and held[SIZE:] == b"\xee" * (ROOM - SIZE)


def test_refusals_that_loop_devices_can_show(image, loop, tmp_path):
    device, behind = loop
    refused(image, device, "say --yes loop", confirmed="")
    refused(image, device, "--allow-fixed", fixed=False)
    for other in (str(behind), str(tmp_path), "/dev/null"):
        refused(image, other, "is no disk or card")
    with pytest.raises(HostError, match="no such file"):
        flash(image, "/dev/none")
    os.truncate(image, ROOM + 512)
    refused(image, device, "the image needs")
    assert set(behind.read_bytes()) == {0xEE}


def test_a_mounted_device_is_refused(image, loop, tmp_path):
    device, _ = loop
    point = tmp_path / "a point"
    point.mkdir()
    subprocess.run(["/sbin/mke2fs", "-q", device], check=True)
    if subprocess.run(["/bin/mount", device, point], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(HostError, match=f"{device[5:]} at {point} uses it: unmount it first"):
            flash(image, device)
    finally:
        subprocess.run(["/bin/umount", point], check=True)


@pytest.mark.parametrize(
    ("about", "then"),
    [
        ({}, "no board's until its boot partition has a kit"),
        ({"name": "pi-01"}, ": put it into pi-01"),
        (None, ": put it into the board"),
    ],
)
def test_what_to_do_with_the_card_is_said(image, loop, about, then):
    if about is not None:
        sha256 = hashlib.sha256(image.read_bytes()).hexdigest()
        image.with_name(f"{image.name}.json").write_text(json.dumps({"sha256": sha256, "size": SIZE, **about}))
    device, _ = loop
    words = [str(image), device, "--allow-fixed", "--yes", device.removeprefix("/dev/")]
    done = CliRunner().invoke(command, words, standalone_mode=False)
    assert done.exception is None and then in done.output.splitlines()[-1], done.output


def test_a_dry_run_writes_nothing(image, loop):
    device, behind = loop
    assert flash(image, device, dry_run=True)["written"] is False
    assert set(behind.read_bytes()) == {0xEE}


def test_who_may_not_write_is_told_how(image, loop, monkeypatch):
    device, real = loop[0], os.open

    def denied(path, flags, *rest, **more):
        if str(path) == device and flags & os.O_EXCL:
            raise PermissionError(13, "Permission denied", device)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", denied)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match=r"permission denied: say it again as sudo \S*edgegossip flash \.\.\."):
        flash(image, device)


def test_what_somebody_holds_is_not_taken(image, loop):
    device, behind = loop
    held = os.open(device, os.O_RDWR | os.O_EXCL)
    try:
        with pytest.raises(HostError, match="cannot be taken for writing: something uses it"):
            flash(image, device)
    finally:
        os.close(held)
    assert set(behind.read_bytes()) == {0xEE}


def test_what_lsblk_did_not_look_at_is_not_written(image, loop, monkeypatch):
    device, behind = loop
    monkeypatch.setattr(flashing, "look_up", lambda path: replace(look_up(path), number="8:0"))
    with pytest.raises(HostError, match="another disk than lsblk says"):
        flash(image, device)
    assert set(behind.read_bytes()) == {0xEE}


NO_IMAGES = {
    "it has no partition table": lambda data: random.Random(2).randbytes(len(data) - 2) + b"PK",
    "partition table is empty": lambda data: bytes(510) + b"\x55\xaa" + data[512:],
    "it was cut short": lambda data: data[: 8 * MIB],
}


@pytest.mark.parametrize("says", NO_IMAGES)
def test_what_is_no_whole_image_of_a_card_is_not_written(tmp_path, image, loop, says):
    device, behind = loop
    file = tmp_path / "other.img"
    file.write_bytes(NO_IMAGES[says](image.read_bytes()))
    with pytest.raises(DataError, match=says):
        flash(file, device)
    assert set(behind.read_bytes()) == {0xEE}


def test_an_image_of_another_size_than_the_one_that_was_built_is_not_written(image, loop):
    image.with_name("card.img.json").write_text(json.dumps({"size": SIZE + 512}))
    with pytest.raises(DataError, match=f"the image that was built has {SIZE + 512}"):
        flash(image, loop[0])
    assert set(loop[1].read_bytes()) == {0xEE}


def test_images_with_a_guid_partition_table_are_images():
    """Its protective entry may name more sectors than there are (UEFI 2.10, 5.2.3)."""
    entry = struct.pack("<B3sB3sII", 0, bytes(3), 0xEE, bytes(3), 1, 0xFFFFFFFF)
    (found,) = disk.parse_partitions(bytes(446) + entry + bytes(48) + b"\x55\xaa", SIZE)
    assert (found.start, found.end) == (512, SIZE)


def test_what_the_medium_does_not_take_while_it_is_written_is_said(image, loop, monkeypatch):
    device, _ = loop
    monkeypatch.setattr(flashing, "_SYNC_EVERY", MIB)

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(HostError, match="input/output error"):
        flash(image, device)
    with opened(device) as descriptor:
        assert os.pread(descriptor, 4096, 0) == bytes(4096), "it does not boot"


def test_the_first_bytes_come_last(image, loop):
    device, _ = loop
    seen = []
    with opened(device) as descriptor:
        flashing.write_card(image, descriptor, "", lambda what, *_: seen.append((what, os.pread(descriptor, 4096, 0))))
    assert {head for what, head in seen if what == "written"} == {bytes(4096)}
    assert {head for what, head in seen if what == "verified"} == {image.read_bytes()[:4096]}


def test_a_flipped_bit_is_caught(image, loop):
    device, behind = loop
    with opened(device) as descriptor:
        digest = flashing.write_image(image, descriptor, "", quiet)
        flashing.read_back(descriptor, SIZE, digest, quiet)
        for at in (0, 5 * MIB + 3, SIZE - 1):
            with open(behind, "r+b") as medium:
                good = medium.read()[at]
                medium.seek(at)
                medium.write(bytes([good ^ 1]))
            with pytest.raises(DataError, match="not what was written"):
                flashing.read_back(descriptor, SIZE, digest, quiet)
            with open(behind, "r+b") as medium:
                medium.seek(at)
                medium.write(bytes([good]))
        flashing.read_back(descriptor, SIZE, digest, quiet)


def test_an_image_that_is_not_the_one_that_was_built_does_not_boot(image, loop):
    device, _ = loop
    image.with_name("card.img.json").write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(DataError, match="not the image that was built"):
        flash(image, device)
    with opened(device) as descriptor:
        assert os.pread(descriptor, 4096, 0) == bytes(4096)
