"""The revocation list that a board goes by: the newest that its fleet's authority signed, wherever
it came from. Thread-safe."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from edgegossip.security.certificates import Certificate, RevocationList, parse_revocations, revocations_from_pem
from edgegossip.types import DataError, DecodeError, PeerError


class Revocations:
    """Lists only ever grow newer: an older one, or one that somebody else signed, changes
    nothing."""

    def __init__(self, authority: Certificate, present: RevocationList, file: Path | None = None) -> None:
        self._authority, self._present, self._file = authority, present, file
        self._lock = threading.Lock()
        self._looked = stamp(file)

    @classmethod
    def load(cls, file: Path, authority: Certificate) -> Revocations:
        """Load a list from its file. Raises DataError when the file is missing, damaged or signed
        by somebody else."""
        present = _read(file)
        if not present.is_signed_by(authority):
            raise DataError(f"{file} was not signed by this fleet's authority; copy the board's folder again")
        return cls(authority, present, file)

    @property
    def file_changed(self) -> bool:
        """Whether there is something for `look_at_file`."""
        return self._file is not None and stamp(self._file) != self._looked

    def look_at_file(self) -> bool:
        """Take over what somebody copied into the folder, if it is newer; whether it was. Raises
        DataError and PeerError."""
        found = stamp(self._file)
        if self._file is None or found == self._looked:
            return False
        self._looked = found
        return self.offer(_read(self._file).der)

    @property
    def present(self) -> RevocationList:
        return self._present

    @property
    def number(self) -> int:
        return self._present.number

    def revoked(self, serial: int) -> bool:
        return serial in self._present.serials

    def offer(self, data: bytes, told: int = -1) -> bool:
        """Take over a list in DER if it is newer; whether it was. It is kept for the next start
        where the folder can be written. `told`: the number of our list as the giver was told it.
        Raises PeerError for what the fleet's authority did not sign, and for a list that the giver
        knew to be of no use to us."""
        if data == self._present.der and told < 0:
            return False
        # In the order of what they cost us: anybody may send lists, and only the authority's are
        # worth reading to the end.
        try:
            offered = parse_revocations(data)
            if offered.number <= told:
                raise PeerError(f"revocation list {offered.number}, after it had been told that we have {told}")
            if offered.number <= self._present.number:
                return False
            if not offered.is_signed_by(self._authority):
                raise PeerError("a revocation list that our fleet's authority did not sign")
            offered.serials  # noqa: B018  (read now: a damaged entry is the giver's fault)
        except DecodeError as error:
            raise PeerError(f"a revocation list that is damaged: {error}") from error
        with self._lock:
            if offered.number <= self._present.number:
                return False
            self._present = offered
            if self._file is not None:
                with suppress(OSError):  # a read-only folder: peers tell it again after the next start
                    write_file(self._file, offered.pem)
                self._looked = stamp(self._file)
        return True


def _read(file: Path) -> RevocationList:
    try:
        return revocations_from_pem(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or str(error)).lower()}; copy the board's folder again") from error
    except DecodeError as error:
        raise DataError(f"{file} is damaged ({error}); copy the board's folder again") from error


def stamp(file: Path | None) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        status = os.stat(file) if file else None
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status else None


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put `data` in place of a file so that a power cut leaves the old or the new one. Raises
    OSError."""
    temporary = path.with_name(
        f".{path.name}.{os.getpid()}.{threading.get_ident()}"
    )  # two threads may write it at a time
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
