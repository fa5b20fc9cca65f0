"""Writing cards, on loop devices that these tests make themselves. They never name another
device."""

import gzip
import hashlib
import json
import lzma
import os
import random
import shutil
import struct
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner

from edgegossip.cli.image import flash as command
from edgegossip.fleet.image import block_devices, disk, flashing
from edgegossip.fleet.image.block_devices import gather
from edgegossip.fleet.image.disk import FAT32_LBA, LINUX, Partition
from edgegossip.fleet.image.flashing import flash_card, open_source
from edgegossip.fleet.image.refusals import Wish
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


@pytest.fixture
def another(tmp_path):
    """Another one of them."""
    with loop_device(tmp_path / "another card") as made:
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


@pytest.mark.parametrize("pack", ["", ".xz", ".gz"])
def test_writes_and_verifies(image, loop, pack):
    device, behind = loop
    data = image.read_bytes()
    if pack:
        image = image.with_name(f"card.img{pack}")
        image.write_bytes(lzma.compress(data, preset=0) if pack == ".xz" else gzip.compress(data, 1))
    done = flash(image, device)
    assert (done["size"], done["written"], done["verified"]) == (SIZE, True, True)
    held = behind.read_bytes()
    assert held[:SIZE] == data and held[SIZE:] == b"\xee" * (ROOM - SIZE)


def test_refusals_that_loop_devices_can_show(image, loop, tmp_path):
    device, behind = loop
    refused(image, device, "say --yes loop", confirmed="")
    refused(image, device, "--allow-fixed", fixed=False)
    refused(image, str(behind), "plain file")
    refused(image, str(tmp_path), "a folder")
    refused(image, "/dev/null", "not a disk")
    large = tmp_path / "large.img"
    with open(large, "wb") as stream:
        stream.truncate(ROOM + 512)
    refused(large, device, "the image needs")
    assert set(behind.read_bytes()) == {0xEE}


def test_a_mounted_device_is_refused(image, loop, tmp_path):
    device, _ = loop
    point = tmp_path / "a point"
    point.mkdir()
    subprocess.run(["/sbin/mke2fs", "-q", device], check=True)
    if subprocess.run(["/bin/mount", device, point], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        refused(image, device, f"it is mounted at {point}: unmount it first")
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


def test_what_was_not_judged_is_not_written(image, loop, another, monkeypatch):
    """The name that lsblk gave leads to another disk by now."""
    (judged, behind), (other, untouched) = loop, another

    def gather_late(*arguments):
        facts = gather(*arguments)
        moved = [replace(d, path=other) if d.path == judged else d for d in facts.devices]
        return replace(facts, devices=tuple(moved))

    monkeypatch.setattr(block_devices, "gather", gather_late)
    with pytest.raises(HostError, match="another disk or card than a moment ago"):
        flash(image, judged)
    assert set(untouched.read_bytes()) == set(behind.read_bytes()) == {0xEE}


def test_another_card_in_the_same_reader_is_another_medium(image, loop):
    device, behind = loop
    judged = gather(device).medium
    assert judged.size == ROOM and judged.number.startswith("7:")
    for change in ({"sequence": "0"}, {"size": ROOM + 512}, {"removable": True}, {"number": "8:0"}):
        with pytest.raises(HostError, match="another disk or card"):
            flashing.write_card(open_source(image), device, replace(judged, **change), "", quiet)
    assert set(behind.read_bytes()) == {0xEE}


NO_IMAGES = {
    "it has no partition table": lambda data: random.Random(2).randbytes(len(data) - 2) + b"PK",
    "partition table is empty": lambda data: bytes(510) + b"\x55\xaa" + data[512:],
    "it was cut short": lambda data: data[: 8 * MIB],
}


@pytest.mark.parametrize(
    ("says", "pack"),
    [
        *((says, "") for says in NO_IMAGES),  # what is wrong is looked for in what was unpacked
        ("partition table is empty", ".gz"),
        ("it was cut short", ".xz"),
        pytest.param("it has no partition table", ".xz", marks=pytest.mark.slow),
        pytest.param("it has no partition table", ".gz", marks=pytest.mark.slow),
        pytest.param("partition table is empty", ".xz", marks=pytest.mark.slow),
        pytest.param("it was cut short", ".gz", marks=pytest.mark.slow),
    ],
)
def test_what_is_no_whole_image_of_a_card_is_not_written(tmp_path, image, loop, says, pack):
    device, behind = loop
    data, file = NO_IMAGES[says](image.read_bytes()), tmp_path / f"other.img{pack}"
    packers = {"": bytes, ".xz": lambda d: lzma.compress(d, preset=0), ".gz": lambda d: gzip.compress(d, 1)}
    file.write_bytes(packers[pack](data))
    for dry_run in (True, False):
        with pytest.raises(DataError, match=says):
            flash(file, device, dry_run=dry_run)
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


def test_how_large_a_gzip_file_is_tells_only_reading_it(tmp_path, image):
    """What it says of itself is its last member's, modulo 4 GiB."""
    data, file, said = image.read_bytes(), tmp_path / "card.img.gz", []
    file.write_bytes(gzip.compress(data[: 5 * MIB], 1) + gzip.compress(data[5 * MIB :], 1))
    source = open_source(file, said.append)
    assert source.size == SIZE and b"".join(source.chunks()) == data and "reading" in said[0]
    packed = bytearray(gzip.compress(data, 1))
    packed[-4:] = bytes(4)  # as it says of 4 GiB
    for bad in (packed, packed[: len(packed) // 2]):
        file.write_bytes(bad)
        with pytest.raises(DataError, match="is damaged"):
            open_source(file)


def test_what_the_medium_does_not_take_while_it_is_written_is_said(image, loop, monkeypatch):
    device, _ = loop
    monkeypatch.setattr(flashing, "_SYNC_EVERY", MIB)

    seen = []

    def fail(descriptor, at, count):
        seen.append((at, count))
        if len(seen) == 2:
            raise OSError(5, "Input/output error")
        real(descriptor, at, count)

    real = flashing._write_back
    monkeypatch.setattr(flashing, "_write_back", fail)
    with pytest.raises(HostError, match="input/output error"):
        flash(image, device)
    assert seen == [(0, 4 * MIB), (4 * MIB, 4 * MIB)]
    with opened(device) as descriptor:
        assert os.pread(descriptor, 4096, 0) == bytes(4096)
        with pytest.raises(OSError, match="Illegal seek|Invalid argument"):
            real(descriptor, -1, 1)


def test_the_first_bytes_come_last(image, loop):
    device, _ = loop
    seen = []

    def look(what, done, total):
        with opened(device) as descriptor:
            seen.append((what, os.pread(descriptor, 4096, 0)))

    flashing.write_card(open_source(image), device, gather(device).medium, "", look)
    assert {head for what, head in seen if what == "written"} == {bytes(4096)}
    assert {head for what, head in seen if what == "verified"} == {image.read_bytes()[:4096]}


def test_a_flipped_bit_is_caught(image, loop):
    device, behind = loop
    with opened(device) as descriptor:
        digest = flashing.write_image(open_source(image), descriptor, "", quiet)
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


def test_a_card_that_was_not_finished_does_not_boot(image, loop):
    device, _ = loop
    packed = image.with_name("card.img.xz")
    data = bytearray(lzma.compress(image.read_bytes(), preset=0))
    data[len(data) * 15 // 16] ^= 0xFF
    packed.write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        flash(packed, device)
    with opened(device) as descriptor:
        assert os.pread(descriptor, 4096, 0) == bytes(4096)
        assert os.pread(descriptor, 4096, 4096) == image.read_bytes()[4096:8192]


def test_an_image_that_is_not_the_one_that_was_built_does_not_boot(image, loop):
    device, _ = loop
    image.with_name("card.img.json").write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(DataError, match="not the image that was built"):
        flash(image, device)
    with opened(device) as descriptor:
        assert os.pread(descriptor, 4096, 0) == bytes(4096)


def test_who_wants_no_more_of_an_image_leaves_no_thread(tmp_path, image, monkeypatch):
    monkeypatch.setattr(flashing, "CHUNK", 4096)
    before = threading.active_count()
    pieces = flashing._ahead(open_source(image))
    assert len(next(pieces)) == 4096
    pieces.close()
    assert threading.active_count() == before


def test_sources_that_are_none(tmp_path, image):
    with pytest.raises(DataError, match="no such file"):
        open_source(tmp_path / "none.img")
    small = tmp_path / "small"
    small.write_bytes(b"x")
    with pytest.raises(DataError, match="too few"):
        open_source(small)
    short = tmp_path / "short.img"
    shutil.copy(image, short)
    source = open_source(short)
    os.truncate(short, SIZE - 512)
    with pytest.raises(DataError, match="says that it has"):
        for _ in source.chunks():
            pass
