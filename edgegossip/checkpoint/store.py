"""The last few checkpoints of one board, or of the coordinator, in a folder of its own.

A save writes `.NUMBER.part`, syncs it, renames it to `NUMBER.ckpt`, syncs the folder, and only then
removes what is old: when `save` has returned, the checkpoint survives kill -9 and power loss, and
at every moment before one that was whole is there. Numbers go up by one a file, whatever round it
is of, so the newest is the one with the largest number. A file that is torn or corrupt is passed
over; one that is whole and of another run is refused, because to begin anew silently would be
worse.

The order of calls on `Files` is all that matters, and `tests/checkpoint` goes through it: kill -9
at each of them, and a disk that loses and reorders what was not synced.

    store = Store(Path("checkpoint/board-0"), {"run": run_id})  # the identity, compared when read
    found = store.load()  # Found(value, meta, path, skipped), or None
    store.save({"codec": codec_state, "momentum": momentum}, round=12)  # durable when it returns
    writer = Writer(store, say=print)  # the same on a thread of its own
    writer.offer(13, {"codec": codec_state, "momentum": momentum})
    writer.close(patience_s=10.0)

A value is made of numbers, text, bytes, None, tuples, lists, mappings, sets, numpy arrays and
states of gossip and codecs (`registry.py`). Gossip states need the run that they belong to:
`store.load(RunContext.of(view))`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from edgegossip.checkpoint.files import OS_FILES, Damaged, Files
from edgegossip.checkpoint.format import Stored, Unusable, pieces
from edgegossip.checkpoint.registry import RunContext
from edgegossip.types import ConfigError, DataError, HostError

_NAME = re.compile(r"(\d{10})\.ckpt")
_PART = re.compile(r"\.\d{10}\.part")
_LOST = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # bad sectors, as file systems tell of them: other files may be whole
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Found:
    """Holds the newest checkpoint that can be used."""

    value: Any
    meta: Mapping[str, Any]
    path: str
    skipped: tuple[str, ...]  # a sentence on each newer file that was passed over


class Store:
    """Keeps the newest checkpoints in a folder.

    `identity` says what they are of: small values by name, kept in each and compared when it is
    read. `keep`: how many stay; `files`: the disk. Not thread-safe: `load` first, then one thread
    saves.

        store = Store(Path("checkpoint/board-0"), {"board": "board-0"})
        found = store.load()
        store.save({"momentum": momentum}, round=12)
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        *,
        keep: int = 2,
        files: Files = OS_FILES,
    ) -> None:
        self.folder, self._identity, self._keep = str(folder), dict(identity), max(1, keep)
        self._files = files
        self._good: list[int] = []  # numbers of files that are known to be whole, newest first
        self._bad: set[int] = set()
        self._next: int | None = None  # not known before the folder was looked at
        self._unlock: Callable[[], None] | None = None

    def load(self, run: RunContext | None = None) -> Found | None:
        """Return the newest checkpoint; None when there is none that is whole. `run` is needed for
        a gossip state. Raises ConfigError when the newest one is of something else, DataError when
        it is whole and cannot be understood, or when none can be read because of the disk,
        HostError when another process is at work here."""
        self._lock()
        skipped: list[str] = []
        try:
            numbers = self._numbers()
        except OSError as error:
            raise DataError(f"checkpoints in {self.folder} cannot be read: {error.strerror or error}") from None
        unread = ""
        for number in numbers:
            path = self._path(number)
            try:
                meta, value = self._read(path, run)
            except Damaged as error:
                self._bad.add(number)
                skipped.append(f"checkpoint {path} is passed over: {error}")
                continue
            except Unusable as error:
                raise DataError(f"checkpoint {path} cannot be used: {error}") from None
            except OSError as error:
                unread = f"checkpoint {path} cannot be read: {error.strerror or error}"
                if error.errno not in _LOST:
                    raise DataError(unread) from None
                self._bad.add(number)
                skipped.append(f"{unread}; it is passed over")
                continue
            self._good = [number]
            return Found(value, meta, path, tuple(skipped))
        if unread:
            raise DataError(unread)
        return None

    def save(self, value: Any, **meta: Any) -> int:
        """Make `value` durable, and return its bytes on the disk. `meta`: how far it is, such as
        its round. A full disk is given a second try without the older checkpoints. Raises OSError
        with what was there before untouched, UsageError on a value that cannot be kept."""
        try:
            return self._save(value, meta)
        except OSError as error:
            if error.errno not in _FULL or not self.make_room():
                raise
            return self._save(value, meta)

    def make_room(self) -> bool:
        """Remove all but the newest; return whether there were others."""
        return self._prune(1)

    def clear(self) -> None:
        """Remove every checkpoint: what they were for is over."""
        for number in self._numbers():
            self._remove(self._path(number))
        self._good.clear()

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def _read(self, path: str, run: RunContext | None) -> tuple[Mapping[str, Any], Any]:
        file = self._files.open(path)
        try:
            stored = Stored(file)
            self._check_identity(path, stored.meta)
            return stored.meta, stored.value(run)
        finally:
            file.close()

    def _check_identity(self, path: str, meta: Mapping[str, Any]) -> None:
        for name, mine in self._identity.items():
            if (theirs := meta.get(name)) != mine or type(theirs) is not type(mine):
                raise ConfigError(
                    f"checkpoint {path} is of another run: its {name} is {_show(theirs)}, not {_show(mine)}; give the recipe "
                    "and settings that it was made with, or another folder to begin anew"
                )

    def _lock(self) -> None:
        """Lock the folder, once, and remove what a process that died was writing."""
        if self._unlock is not None:
            return
        try:
            self._unlock = self._files.lock(self.folder)
        except BlockingIOError:
            raise HostError(
                f"another process keeps its checkpoints in {self.folder}: wait for it to end, or stop it"
            ) from None
        except OSError:  # not there yet
            return
        for name in self._files.names(self.folder):
            if _PART.fullmatch(name):
                self._remove(f"{self.folder}/{name}")

    def _save(self, value: Any, meta: Mapping[str, Any]) -> int:
        contents = pieces({**meta, **self._identity}, value)
        first = next(contents)  # what cannot be kept is refused before anything is touched
        self._files.make_folder(self.folder)
        self._lock()
        if self._next is None:
            self._next = max(self._numbers(), default=0) + 1
        number = self._next
        part = f"{self.folder}/.{number:010d}.part"
        try:
            size = self._write(part, first, contents)
            self._files.rename(part, self._path(number))
        except BaseException:
            self._remove(part)
            raise
        self._next += 1
        self._files.sync_folder(self.folder)
        self._good.insert(0, number)
        self._prune(self._keep)
        return size

    def _write(self, part: str, first: bytes | memoryview, rest: Iterable[bytes | memoryview]) -> int:
        file, size = self._files.create(part), 0
        try:
            for piece in chain((first,), rest):
                self._files.write(file, piece)
                size += memoryview(piece).nbytes
            self._files.sync(file)
        finally:
            self._files.close(file)
        return size

    def _prune(self, keep: int) -> bool:
        """Keep so many: those known to be whole before those that nobody has read, newest first.
        Return whether anything was removed."""
        there = self._numbers()
        good = [n for n in self._good if n in there]
        unread = [n for n in there if n not in good and n not in self._bad]
        kept = (good + unread)[:keep]
        removed = [self._remove(self._path(n)) for n in there if n not in kept] if kept else []
        self._good = [n for n in good if n in kept]
        return any(removed)

    def _remove(self, path: str) -> bool:
        with suppress(OSError):
            self._files.remove(path)
            return True
        return False

    def _numbers(self) -> list[int]:
        """Return those of all checkpoints, newest first."""
        found = (_NAME.fullmatch(name) for name in self._files.names(self.folder))
        return sorted((int(m[1]) for m in found if m), reverse=True)

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:010d}.ckpt"


def _show(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else "not there" if value is None else str(value)
