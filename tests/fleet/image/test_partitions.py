"""The partition table: what is written is read again, sfdisk agrees, and what is cut or overlaps is
refused."""

import json
import lzma
import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.fleet.image import disk
from edgegossip.fleet.image.configure import layout
from edgegossip.fleet.image.disk import ALIGNMENT, FAT32_LBA, LINUX, SECTOR, Partition
from edgegossip.types import DataError

TWO = (Partition(FAT32_LBA, ALIGNMENT, 64 << 20, bootable=True), Partition(LINUX, 68 << 20, 1 << 30))


@given(st.lists(st.tuples(st.integers(1, 255), st.integers(1, 2**20), st.booleans()), max_size=4))
def test_what_is_written_is_read(parts):
    made, at = [], SECTOR
    for kind, sectors, bootable in parts:
        made.append(Partition(kind, at, sectors * SECTOR, bootable))
        at += sectors * SECTOR
    assert disk.parse_partitions(disk.partition_table(made), at) == tuple(made)


@pytest.mark.skipif(not shutil.which("sfdisk", path="/usr/sbin:/sbin:/usr/bin"), reason="no sfdisk to compare with")
def test_sfdisk_reads_the_same(tmp_path):
    image = tmp_path / "card.img"
    image.write_bytes(disk.partition_table(TWO))
    with open(image, "r+b") as stream:
        stream.truncate(TWO[1].end)
    done = subprocess.run(["/usr/sbin/sfdisk", "--json", image], capture_output=True, text=True, check=True)
    table = json.loads(done.stdout)["partitiontable"]
    assert (table["label"], int(table["id"], 16)) == ("dos", disk.DISK_ID)
    found = [
        (int(p["type"], 16), p["start"] * SECTOR, p["size"] * SECTOR, p.get("bootable", False))
        for p in table["partitions"]
    ]
    assert found == [(p.kind, p.start, p.size, p.bootable) for p in TWO]


@pytest.mark.parametrize(
    ("sector", "total", "says"),
    [
        (bytes(SECTOR), 1 << 40, "no partition table"),
        (lzma.compress(bytes(SECTOR)), 1 << 40, "compressed: unpack it first, with `xz -dk`"),
        (disk.partition_table(TWO)[:100], 1 << 40, "no partition table"),
        (disk.partition_table(TWO), TWO[1].end - 1, "cut short"),
        (disk.partition_table((TWO[0], Partition(LINUX, TWO[0].end - SECTOR, SECTOR))), 1 << 40, "overlap"),
        (disk.partition_table((Partition(LINUX, 0, SECTOR),)), 1 << 40, "overlap"),
    ],
)
def test_a_table_that_cannot_be_is_refused(sector, total, says):
    with pytest.raises(DataError, match=says):
        disk.parse_partitions(sector, total)


def test_a_card_of_another_kind_is_refused(tmp_path):
    image = tmp_path / "other.img"
    image.write_bytes(disk.partition_table(TWO[:1]))
    os.truncate(image, TWO[0].end)
    with pytest.raises(DataError, match="no card of this program"):
        layout(image)
