"""A release becomes a folder of a board. The one that runs is never touched, and the new one counts
from when its release.json is there, which comes last; so whatever ends this in between leaves the
board as it was, and the next call goes on.

Files that the running release has already are linked, not fetched: a new version of this package is
a megabyte, torch a hundred. Every file, linked or fetched, is checked against the manifest's
SHA-256 before it counts. A release of our own package only takes over the packages of the running
one, which runs with these very files: they are linked as they are."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from edgegossip.checkpoint.files import Files, OsFiles
from edgegossip.types import HostError
from edgegossip.update.bundle import Blob, Entry, Manifest, content_of
from edgegossip.update.packages import LOCK, is_ours

H = TypeVar("H")
RELEASE = "release.json"
SPARE_BYTES = 64 << 20  # that stay free
OTHER_PACKAGES = (
    "needs other Python packages than this board has: push one that brings them (image release --with-packages)"
)

Fetch = Callable[[Blob], bytes]  # its stored bytes


class Tree(Files[H], Protocol[H]):
    """Files, and what a tree of them needs besides. Raises OSError."""

    def read(self, path: str) -> bytes | None:
        """All of a file; None when there is none, or it is a link."""

    def digest(self, path: str) -> str:
        """SHA-256 of a file; empty when there is none, or it is a link."""

    def link(self, old: str, new: str) -> None:
        """Another name for a file."""

    def make_executable(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """A folder and all below it, if it is there."""

    def free_bytes(self, path: str) -> int: ...

    def files(self, folder: str) -> list[str]:
        """Paths below a folder of all files in it and further down; links are none."""


class OsTree(OsFiles):
    """The real one: what it makes, everybody may read, and nobody but its owner write."""

    def create(self, path: str) -> int:
        """A new file: never one that is there, which the running release may have too."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        os.fchmod(fd, 0o644)
        return fd

    def make_folder(self, path: str) -> None:
        super().make_folder(path)
        with suppress(PermissionError):
            os.chmod(path, 0o755)

    def read(self, path: str) -> bytes | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with open(fd, "rb") as file:
            return file.read()

    def digest(self, path: str) -> str:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return ""
        with open(fd, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def link(self, old: str, new: str) -> None:
        os.link(old, new, follow_symlinks=False)

    def make_executable(self, path: str) -> None:
        os.chmod(path, 0o755)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free

    def files(self, folder: str) -> list[str]:
        paths = [os.path.join(above, name) for above, _, names in os.walk(folder) for name in names]
        return sorted(os.path.relpath(path, folder) for path in paths if not os.path.islink(path))


def folder_name(manifest: Manifest, digest: str) -> str:
    """Of its own for each bundle, so that what an interrupted call left there is of the same
    one."""
    return f"{manifest.version}-{manifest.sequence}-{digest[:8]}"


def install(tree: Tree[Any], home: str, current: str, digest: str, manifest: Manifest, fetch: Fetch) -> str:
    """Put the release into home/releases; the name of its folder there. `current`: that of the
    running release. Raises HostError when there is no room or the running one has other packages,
    DecodeError when what is fetched is not what the manifest says, OSError."""
    releases, name = f"{home}/releases", folder_name(manifest, digest)
    folder, running = f"{releases}/{name}", f"{releases}/{current}"
    if installed(tree, folder) == digest:
        return name
    if manifest.packages and manifest.packages != packages_of(tree, running):
        raise HostError(f"release {manifest.version} {OTHER_PACKAGES}")
    _remove_others(tree, releases, {current, name})
    plan = [(e, _source(tree, e, folder, running)) for e in manifest.entries]
    kept = [path for path in tree.files(running) if _stays(path)] if manifest.packages else []
    folders = sorted({posixpath.dirname(f"{folder}/{path}") for path in (*kept, *(e.path for e in manifest.entries))})
    missing = sum(e.size_bytes for e, source in plan if source is None)
    if (free := tree.free_bytes(home)) < missing + SPARE_BYTES:
        raise HostError(
            f"release {manifest.version} needs {missing + SPARE_BYTES >> 20} MiB, and {free >> 20} are free on this board"
        )
    for above in folders:
        tree.make_folder(above)
    for path in kept:
        _forget(tree, f"{folder}/{path}")
        tree.link(f"{running}/{path}", f"{folder}/{path}")
    for entry, source in plan:
        _place(tree, entry, f"{folder}/{entry.path}", source, fetch)
    for above in folders:
        tree.sync_folder(above)
    about = {"version": manifest.version, "sequence": manifest.sequence, "digest": digest}
    _write_last(tree, f"{folder}/{RELEASE}", (json.dumps(about) + "\n").encode())
    return name


def installed(tree: Tree[Any], folder: str) -> str:
    """Digest of the release that is there whole; empty for none."""
    return str(about(tree, folder).get("digest", ""))


def about(tree: Tree[Any], folder: str) -> dict[str, Any]:
    """What release.json says; {} for a release that came with the image, or is not whole."""
    try:
        found = json.loads(tree.read(f"{folder}/{RELEASE}") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def packages_of(tree: Tree[Any], folder: str) -> str:
    """Which packages a release has (packages.py); empty when it does not say."""
    return tree.digest(f"{folder}/site/{LOCK}")


def _stays(path: str) -> bool:
    return path.startswith("site/") and not is_ours(path)


def _remove_others(tree: Tree[Any], releases: str, keep: set[str]) -> None:
    """The release before the running one goes: the next trial has that one to go back to."""
    for name in tree.names(releases):
        if name not in keep:
            _forget(tree, f"{releases}/{name}/{RELEASE}")  # from now on it is not whole
            tree.remove_tree(f"{releases}/{name}")


def _source(tree: Tree[Any], entry: Entry, folder: str, current: str) -> str | None:
    """Where the content of this file is already: in its place, or in the running release; None: it
    must be fetched."""
    paths = (f"{folder}/{entry.path}", f"{current}/{entry.path}")
    return next((path for path in paths if tree.digest(path) == entry.sha256), None)


def _place(tree: Tree[Any], entry: Entry, path: str, source: str | None, fetch: Fetch) -> None:
    if source is not None and source != path:
        _forget(tree, path)
        tree.link(source, path)
    elif source is None:
        _forget(tree, path)  # a rest of an earlier call may be a link to what runs: never write into it
        _write(tree, path, (content_of(piece, fetch(piece)) for piece in entry.pieces))
    if entry.executable:
        tree.make_executable(path)


def _write(tree: Tree[Any], path: str, parts: Iterable[bytes]) -> None:
    file = tree.create(path)
    try:
        for part in parts:
            tree.write(file, part)
        tree.sync(file)
    finally:
        tree.close(file)


def _forget(tree: Tree[Any], path: str) -> None:
    with suppress(FileNotFoundError):
        tree.remove(path)


def _write_last(tree: Tree[Any], path: str, data: bytes) -> None:
    temporary = f"{path}.new"
    _forget(tree, temporary)
    _write(tree, temporary, (data,))
    tree.rename(temporary, path)
    tree.sync_folder(posixpath.dirname(path))
    tree.sync_folder(posixpath.dirname(posixpath.dirname(path)))


def running_from(module: str) -> str:
    """The folder of releases/ that this very program was loaded from; empty when it was loaded from
    elsewhere."""
    parts = Path(module).resolve().parts
    return parts[parts.index("releases") + 1] if "releases" in parts[:-1] else ""
