"""The store on a disk that loses power or kills the process at every boundary, fills up, or holds
what is not ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from edgegossip.checkpoint.files import Files
from edgegossip.checkpoint.format import PIECE_BYTES
from edgegossip.checkpoint.store import Store
from edgegossip.types import ConfigError, DataError, HostError, UsageError
from lab.sim.disk import FakeDisk

FOLDER = Path("/runs/one/checkpoint/board-0")
IDENTITY = {"run": b"1234", "model": 7}


class Cut(BaseException):
    """The power is gone, or the process."""


class Countdown:
    """Raises Cut at the operation with this number."""

    def __init__(self, at: int) -> None:
        self.left, self.operations = at, list[str]()

    def __call__(self, operation: str, path: str) -> None:
        self.operations.append(operation)
        if self.left == 0:
            raise Cut
        self.left -= 1


def store_on(disk: FakeDisk, keep: int = 2, **identity: object) -> Store:
    return Store(FOLDER, {**IDENTITY, **identity}, keep=keep, files=disk)


def value_of(round: int) -> dict[str, object]:
    return {"round": round, "x": np.full(17_000, round, np.float32), "m": np.arange(200) + round}


def check(value: object, round: int) -> None:
    assert isinstance(value, dict) and value["round"] == round
    assert np.array_equal(value["x"], np.full(17_000, round)) and np.array_equal(value["m"], np.arange(200) + round)


def play(disk: FakeDisk, rounds: int, keep: int = 2) -> int:
    """Saves so many rounds after the newest one. The last one whose save returned, though the disk
    cuts in."""
    store = store_on(disk, keep)
    found = store.load()
    acknowledged = found.meta["round"] if found else 0
    try:
        for round in range(acknowledged + 1, acknowledged + 1 + rounds):
            store.save(value_of(round), round=round)
            acknowledged = round
    except Cut:
        pass
    return acknowledged


def newest(disk: FakeDisk) -> int:
    found = store_on(disk).load()
    if found is None:
        return 0
    check(found.value, found.meta["round"])
    return int(found.meta["round"])


def operations(rounds: int) -> list[str]:
    disk = FakeDisk(counter := Countdown(-1))
    play(disk, rounds)
    return counter.operations


def test_what_is_saved_is_found_and_the_oldest_go() -> None:
    disk = FakeDisk()
    assert play(disk, 5) == newest(disk.after_kill()) == 5
    assert sorted(disk.names(str(FOLDER))) == ["0000000004.ckpt", "0000000005.ckpt"]


@pytest.mark.parametrize("cuts", [*range(3), *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 200))])
def test_whatever_is_not_synced_is_lost_and_it_starts_with_what_was_acknowledged(cuts: int) -> None:
    """At every boundary of four saves, and again while it recovers from that."""
    count = len(operations(4))
    assert count > 30
    for at in range(count):
        rng = Random(1000 * cuts + at)
        disk = FakeDisk(Countdown(at))
        acknowledged = play(disk, 4)
        disk = disk.after_power_cut(rng)
        first = newest(disk)
        assert first in (acknowledged, acknowledged + 1)
        disk = disk.after_kill()
        disk.before = Countdown(rng.randrange(count))
        acknowledged = play(disk, 4)
        assert acknowledged >= first
        assert newest(disk.after_power_cut(rng)) in (acknowledged, acknowledged + 1)


def test_without_the_sync_of_the_file_or_the_folder_it_would_be_lost() -> None:
    """The fake disk does lose what is not synced."""
    for left_out in ("sync", "sync_folder"):
        lost = 0
        for seed in range(30):
            disk = FakeDisk()
            setattr(disk, left_out, lambda path: None)
            acknowledged = play(disk, 4)
            lost += newest(disk.after_power_cut(Random(seed))) < acknowledged
        assert lost > 5, left_out


@pytest.mark.parametrize("keep_bytes", [0, 5, 11, 12, 20, 100, 1500, 60_000])
def test_a_torn_file_is_passed_over_with_a_word_and_goes_first(keep_bytes: int) -> None:
    disk = FakeDisk()
    play(disk, 3, keep=3)
    torn = f"{FOLDER}/0000000003.ckpt"
    disk.damage(torn, keep_bytes)
    store = store_on(disk := disk.after_kill(), keep=3)
    found = store.load()
    assert found is not None and found.meta["round"] == 2
    assert len(found.skipped) == 1 and torn in found.skipped[0]
    store.save(value_of(3), round=3)
    assert sorted(disk.names(str(FOLDER))) == ["0000000001.ckpt", "0000000002.ckpt", "0000000004.ckpt"]
    assert newest(disk.after_kill()) == 3


def test_every_flipped_bit_is_noticed() -> None:
    disk = FakeDisk()
    play(disk, 2)
    path = f"{FOLDER}/0000000002.ckpt"
    whole = bytes(disk.open(path)._data)
    for at in (*range(300), *range(300, len(whole) - 300, 211), *range(len(whole) - 300, len(whole))):
        bad = bytearray(whole)
        bad[at] ^= 1 << at % 8
        disk._now[path].content = bad
        found, problem = None, ""
        try:
            found = newest(disk.after_kill())
        except DataError as error:  # the version: whole, and not for us
            problem = str(error)
        assert "it is of version" in problem if at in range(8, 10) else found == 1


def test_a_checkpoint_of_another_run_is_refused_and_not_passed_over() -> None:
    disk = FakeDisk()
    play(disk, 1)
    with pytest.raises(ConfigError, match=r"0000000001.ckpt is of another run: its model is 7, not 8"):
        store_on(disk.after_kill(), model=8).load()
    with pytest.raises(ConfigError, match="its run is 31323334, not 35"):
        store_on(disk.after_kill(), run=b"5").load()


def test_two_processes_do_not_share_a_folder() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    store.save(value_of(1), round=1)
    with pytest.raises(HostError, match="another process keeps its checkpoints in"):
        store_on(disk).load()
    store.close()
    assert store_on(disk).load() is not None


def test_on_a_full_disk_older_ones_make_room_and_what_was_there_stays() -> None:
    disk = FakeDisk()
    store = store_on(disk)
    store.save(value_of(1), round=1)
    one = disk.open(f"{FOLDER}/0000000001.ckpt").size
    store.save(value_of(2), round=2)
    disk.capacity_bytes = 2 * one + one // 2
    store.save(value_of(3), round=3)
    assert disk.names(str(FOLDER)) == ["0000000002.ckpt", "0000000003.ckpt"]
    disk.capacity_bytes = one + one // 2
    with pytest.raises(OSError, match="No space left"):
        store.save(value_of(4), round=4)
    assert disk.names(str(FOLDER)) == ["0000000003.ckpt"]
    disk.capacity_bytes = None
    store.save(value_of(5), round=5)
    assert newest(disk.after_kill()) == 5


@pytest.mark.parametrize("bad", [1, 2])
def test_a_checkpoint_on_a_bad_sector_is_passed_over(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest, or both: then the disk is to be mended, for a board that begins anew has
    forgotten all."""
    disk = FakeDisk()
    play(disk, 2)
    disk, reads = disk.after_kill(), 0
    real = disk.open

    def open(path: str) -> object:
        nonlocal reads
        reads += 1
        if reads <= bad:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(disk, "open", open)
    store = store_on(disk)
    if bad == 2:
        with pytest.raises(DataError, match="cannot be read: Input/output error"):
            store.load()
        return
    found = store.load()
    assert found is not None and found.meta["round"] == 1
    assert "0000000002.ckpt cannot be read: Input/output error; it is passed over" in found.skipped[0]


def test_a_read_only_disk_can_be_read() -> None:
    disk = FakeDisk()
    play(disk, 2)
    disk = disk.after_kill()
    disk.read_only = True
    store = store_on(disk)
    found = store.load()
    assert found is not None and found.meta["round"] == 2
    with pytest.raises(OSError, match="Read-only"):
        store.save(value_of(3), round=3)


def test_what_cannot_be_kept_is_refused_before_the_disk_is_touched() -> None:
    disk = FakeDisk(counter := Countdown(-1))
    with pytest.raises(UsageError, match=r"the state\['f'\] is a builtins:function, which no checkpoint keeps"):
        store_on(disk).save({"f": lambda: 0}, round=1)
    assert not counter.operations


def _descriptors() -> list[str]:
    found = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [path for path in found if os.path.lexists(path)]


def test_a_real_folder(tmp_path: Path) -> None:
    large = np.arange(PIECE_BYTES, dtype=np.float64)
    folder = tmp_path / "a" / "b"
    store = Store(folder, IDENTITY)
    assert store.load() is None
    for round in (1, 2, 3):
        store.save({"x": large + round, "y": large.astype(np.float32)}, round=round)
    assert not [name for name in map(os.readlink, _descriptors()) if name.endswith((".ckpt", ".part"))]
    (folder / ".0000000009.part").write_bytes(b"of one that died")
    with pytest.raises(HostError, match="another process"):
        Store(folder, IDENTITY).load()
    store.close()
    store = Store(folder, IDENTITY)
    found = store.load()
    assert found is not None and np.array_equal(found.value["x"], large + 3) and found.meta == {**IDENTITY, "round": 3}
    assert sorted(p.name for p in folder.iterdir()) == ["0000000002.ckpt", "0000000003.ckpt"]
    assert store.make_room() and [p.name for p in folder.iterdir()] == ["0000000003.ckpt"] and not store.make_room()
    store.clear()
    assert not list(folder.iterdir())


def test_the_real_one_syncs_folders_that_are_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = list[str](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    folder = tmp_path / "runs" / "one" / "checkpoint" / "board-0"
    (tmp_path / "runs" / "one").mkdir(parents=True)  # by a process that was killed
    store = Store(folder, IDENTITY, files=Files())
    store.save(value_of(1), round=1)
    names = (folder, *folder.parents[: len(folder.parents) - len(tmp_path.parents)])
    assert {str(name.parent) for name in names} <= set(synced)
    synced.clear()
    store.save(value_of(2), round=2)
    assert synced[-1] == str(folder) and len(synced) == 2  # the file and its name
