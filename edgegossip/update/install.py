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
from io import BufferedReader
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip.checkpoint.files import OsFiles
from edgegossip.types import HostError
from edgegossip.update.bundle import LOCK, Blob, BundleEntry, ReleaseManifest, content_of, is_ours

RELEASE = "release.json"
SPARE_BYTES = 64 << 20  # that stay free
OTHER_PACKAGES = (
    "needs other Python packages than this board has: push one that brings them (image release --with-packages)"
)

Fetch = Callable[[Blob], bytes]  # its stored bytes


class OsTree(OsFiles):
    """Is the file system of this machine, and what a tree of files needs of it: what is made,
    everybody may read, and nobody but its owner write. Paths are strings; everything raises OSError
    where nothing else is said."""

    @override
    def create(self, path: str) -> int:
        # Never a file that is there, which the running release may have too.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        os.fchmod(fd, 0o644)
        return fd

    @override
    def make_folder(self, path: str) -> None:
        super().make_folder(path)
        with suppress(PermissionError):
            os.chmod(path, 0o755)

    def read(self, path: str) -> bytes | None:
        """Return all of a file; None when there is none, or it is a link."""
        file = _open(path)
        if file is None:
            return None
        with file:
            return file.read()

    def digest(self, path: str) -> str:
        """Return the SHA-256 of a file in hexadecimal; empty when there is none, or it is a
        link."""
        file = _open(path)
        if file is None:
            return ""
        with file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def link(self, old: str, new: str) -> None:
        """Give a file another name (a hard link)."""
        os.link(old, new, follow_symlinks=False)

    def make_executable(self, path: str) -> None:
        """Let everybody execute a file."""
        os.chmod(path, 0o755)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all below it, if it is there."""
        shutil.rmtree(path, ignore_errors=True)

    def free_bytes(self, path: str) -> int:
        """Return how much room the file system of this path has."""
        return shutil.disk_usage(path).free

    def files(self, folder: str) -> list[str]:
        """Return the paths below a folder of all files in it and further down; links are none."""
        paths = [os.path.join(above, name) for above, _, names in os.walk(folder) for name in names]
        return sorted(os.path.relpath(path, folder) for path in paths if not os.path.islink(path))


def _open(path: str) -> BufferedReader | None:
    try:
        return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError:
        return None


def _folder_name(manifest: ReleaseManifest, digest: str) -> str:
    """Return the name of a release's folder: one of its own for each bundle, so that what an
    interrupted call left there is of the same one."""
    return f"{manifest.version}-{manifest.sequence}-{digest[:8]}"


def install(tree: OsTree, home: str, current: str, digest: str, manifest: ReleaseManifest, fetch: Fetch) -> str:
    """Put the release into home/releases; return the name of its folder there. `current` is that of
    the running release, `digest` that of the bundle. Raises HostError when there is no room or the
    running one has other packages, DecodeError when what is fetched is not what the manifest says,
    OSError."""
    releases, name = f"{home}/releases", _folder_name(manifest, digest)
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


def installed(tree: OsTree, folder: str) -> str:
    """Return the digest of the release that is there whole; empty for none."""
    return str(about(tree, folder).get("digest", ""))


def about(tree: OsTree, folder: str) -> dict[str, Any]:
    """Return what release.json says; {} for a release that came with the image, or is not whole."""
    try:
        found = json.loads(tree.read(f"{folder}/{RELEASE}") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def packages_of(tree: OsTree, folder: str) -> str:
    """Return which packages a release has: the SHA-256 of its lock file; empty when it does not
    say."""
    return tree.digest(f"{folder}/site/{LOCK}")


def _stays(path: str) -> bool:
    return path.startswith("site/") and not is_ours(path)


def _remove_others(tree: OsTree, releases: str, keep: set[str]) -> None:
    """Remove the release before the running one: the next trial has that one to go back to."""
    for name in tree.names(releases):
        if name not in keep:
            _forget(tree, f"{releases}/{name}/{RELEASE}")  # from now on it is not whole
            tree.remove_tree(f"{releases}/{name}")


def _source(tree: OsTree, entry: BundleEntry, folder: str, current: str) -> str | None:
    """Say where the content of this file is already: in its place, or in the running release; None:
    it must be fetched."""
    paths = (f"{folder}/{entry.path}", f"{current}/{entry.path}")
    return next((path for path in paths if tree.digest(path) == entry.sha256), None)


def _place(tree: OsTree, entry: BundleEntry, path: str, source: str | None, fetch: Fetch) -> None:
    if source is not None and source != path:
        _forget(tree, path)
        tree.link(source, path)
    elif source is None:
        _forget(tree, path)  # a rest of an earlier call may be a link to what runs: never write into it
        _write(tree, path, (content_of(piece, fetch(piece)) for piece in entry.pieces))
    if entry.executable:
        tree.make_executable(path)


def _write(tree: OsTree, path: str, parts: Iterable[bytes]) -> None:
    file = tree.create(path)
    try:
        for part in parts:
            tree.write(file, part)
        tree.sync(file)
    finally:
        tree.close(file)


def _forget(tree: OsTree, path: str) -> None:
    with suppress(FileNotFoundError):
        tree.remove(path)


def _write_last(tree: OsTree, path: str, data: bytes) -> None:
    temporary = f"{path}.new"
    _forget(tree, temporary)
    _write(tree, temporary, (data,))
    tree.rename(temporary, path)
    tree.sync_folder(posixpath.dirname(path))
    tree.sync_folder(posixpath.dirname(posixpath.dirname(path)))


def running_from(module: str) -> str:
    """Return the folder of releases/ that this very program was loaded from; empty when it was
    loaded from elsewhere."""
    parts = Path(module).resolve().parts
    return parts[parts.index("releases") + 1] if "releases" in parts[:-1] else ""
