"""Writes files that are whole or not there: under another name, synced, then renamed. Reads texts
as any editor or spreadsheet saves them."""

from __future__ import annotations

import codecs
import errno
import json
import os
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from edgegossip.types import DataError, EdgegossipError, HostError

MAX_TEXT_BYTES = 16 << 20  # of a text that a user gives
_MARKS = {  # byte order marks, the longest first, and what reads the text with its mark
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)  # file systems without it, or where nothing can be new


@contextmanager
def refused_as(kind: type[EdgegossipError], where: Path) -> Iterator[None]:
    """Raise what the file system refuses in the block (OSError) as a `kind` of one sentence, which
    names the file, or failing that `where`."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename else where
        raise kind(f"{name}: {(error.strerror or str(error)).lower()}") from error


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Give a file to write in the block. After it `path` holds what was written; after an
    exception, a crash or power loss it holds that or what it held before. Raises OSError.

    Example:
        with replacing(Path("model.bin")) as file:
            file.write(data)
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` with `data`, as `write_atomic` does, with these permissions (0o600: for its
    owner alone). Raises OSError."""
    with replacing(path, mode) as file:
        file.write(data)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with `data`; after a crash or power loss it holds the old bytes or the new
    ones. Raises HostError."""
    try:
        write_file(path, data)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def write_json(path: Path, document: Any) -> None:
    """Write `document` as indented JSON, atomically. Numbers that are not finite must be None
    already. Raises HostError."""
    write_atomic(path, (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def make_folder(path: Path) -> None:
    """Make a new folder with those above it, whose names survive power loss: also of those above
    that another process made and was killed before it synced them. Raises OSError."""
    path.mkdir(parents=True)
    for above in path.absolute().parents:
        with suppress(PermissionError):  # a folder that we may not read is none that we made
            sync_folder(above)


def expanded(path: str | Path) -> Path:
    """Return the path with its `~` or `~user` replaced by the home folder. Raises HostError where
    there is none, as for a container's user that is a number alone."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise HostError(
            f"{path}: this machine knows no such home folder: write the path without ~, such as data.dir=/srv/data, or set "
            "HOME for this user"
        ) from None


def seen_from_here(path: Path) -> Path:
    """Return the path from the working directory, where it lies below that: shorter to read."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(fd)


def encoding_of(head: bytes) -> str:
    """Return the encoding of a text by its first bytes: what its byte order mark says, or UTF-8."""
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")


def decoded(data: bytes) -> str:
    """Return a text in UTF-8, or in what its byte order mark says; its lines end with a line feed.

    Raises ValueError, with the line, for other bytes."""
    try:
        text = data.decode(encoding_of(data))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: not text in UTF-8; save it in UTF-8") from None
    if (at := text.find("\0")) >= 0:
        raise ValueError(f"line {text.count(chr(10), 0, at) + 1}: a zero byte, which no text has; save it in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: Path) -> str:
    """Return the text of a file as `decoded` does. Raises ValueError that says why it cannot."""
    try:
        return decoded(path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a text in TOML says. Raises ValueError, and nothing else, for any other text."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("brackets in brackets without end") from None


def text_of(given: str, what: str) -> tuple[str, str]:
    """Return a text that a user gave, and words for where it is. `given` is a path, or where it
    begins with a brace the JSON itself: so it travels in a recipe.

    Raises DataError that names `what` ("topology file") and the path for a file that cannot be
    read, has more than MAX_TEXT_BYTES or is not UTF-8.

    Example:
        text, source = text_of("edges.txt", "topology file")
    """
    if given.startswith("{"):
        return given, "in the recipe"
    try:
        with open(given, "rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise DataError(f"{what} {given} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise DataError(f"{what} {given} is larger than {MAX_TEXT_BYTES // 2**20} MiB")
    try:
        return decoded(data), given
    except ValueError as error:
        raise DataError(f"{what} {given}, {error}") from None
