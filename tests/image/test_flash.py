"""Writing cards, on loop devices that these tests make themselves. They never name another device."""

import gzip
import json
import lzma
import os
import random
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from edgegossip.image import writing
from edgegossip.image.card_source import open_source
from edgegossip.image.flashing import flash_card
from edgegossip.image.refusals import Wish
from edgegossip.types import ConfigError, DataError, HostError

MIB = 1 << 20
SIZE, ROOM = 9 * MIB + 512, 16 * MIB


def quiet(*_):
    pass


@pytest.fixture
def image(tmp_path):
    """9 MiB and a sector: more than one piece, and no whole number of them."""
    file = tmp_path / "card.img"
    block = random.Random(1).randbytes(8192)
    file.write_bytes(b"".join(at.to_bytes(8, "big") + block for at in range(SIZE // 8192))[:SIZE])
    os.truncate(file, SIZE)
    return file


@pytest.fixture
def loop(tmp_path):
    """(device, file behind it): 16 MiB of 0xee."""
    if os.geteuid() or not shutil.which("losetup", path="/sbin:/usr/sbin"):
        pytest.skip("loop devices need root and losetup")
    behind = tmp_path / "card"
    behind.write_bytes(b"\xee" * ROOM)
    made = subprocess.run(["/sbin/losetup", "--find", "--show", behind], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device to be had here: {made.stderr.strip()}")
    device = made.stdout.strip()
    assert device.startswith("/dev/loop")
    yield device, behind
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


def test_a_dry_run_writes_nothing(image, loop):
    device, behind = loop
    assert flash(image, device, dry_run=True)["written"] is False
    assert set(behind.read_bytes()) == {0xEE}


def test_what_somebody_holds_is_not_taken(image, loop):
    device, behind = loop
    held = os.open(device, os.O_RDWR | os.O_EXCL)
    try:
        with pytest.raises(HostError, match="cannot be taken for writing: something uses it"):
            flash(image, device)
    finally:
        os.close(held)
    assert set(behind.read_bytes()) == {0xEE}


def test_the_first_bytes_come_last(image, loop):
    device, _ = loop
    seen = []

    def look(what, done, total):
        with opened(device) as descriptor:
            seen.append((what, os.pread(descriptor, 4096, 0)))

    writing.flash(open_source(image), device, "", look)
    assert {head for what, head in seen if what == "written"} == {bytes(4096)}
    assert {head for what, head in seen if what == "verified"} == {image.read_bytes()[:4096]}


def test_a_flipped_bit_is_caught(image, loop):
    device, behind = loop
    with opened(device) as descriptor:
        digest = writing.write(open_source(image), descriptor, "", quiet)
        writing.read_back(descriptor, SIZE, digest, quiet)
        for at in (0, 5 * MIB + 3, SIZE - 1):
            with open(behind, "r+b") as medium:
                good = medium.read()[at]
                medium.seek(at)
                medium.write(bytes([good ^ 1]))
            with pytest.raises(DataError, match="not what was written"):
                writing.read_back(descriptor, SIZE, digest, quiet)
            with open(behind, "r+b") as medium:
                medium.seek(at)
                medium.write(bytes([good]))
        writing.read_back(descriptor, SIZE, digest, quiet)


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
