"""Releases of the program in the fleet's folder: built and signed there, and which board should
have which.

    releases.json          {"next": NUMBER, "bundles": {NUMBER: {...}}, "wanted": {BOARD: NUMBER}}
    releases/NUMBER.bundle  see edgegossip.update.bundle

A number is never given twice. To go back to an older release, push it again: it gets a new number,
and boards go by that alone."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from edgegossip.files import refused_as, replacing, write_file
from edgegossip.fleet.lock import locked
from edgegossip.fleet.store import Fleet
from edgegossip.types import ConfigError, DataError, DecodeError, EdgegossipError, NodeId, UsageError
from edgegossip.update.bundle import (
    DOMAIN,
    LOCK,
    MAX_SIGNATURE_BYTES,
    MAX_STORED_BYTES,
    PIECE_BYTES,
    Blob,
    BundleEntry,
    Head,
    ReleaseManifest,
    check_path,
    is_ours,
    parse_head,
    parse_manifest,
)

INDEX = "releases.json"
WITH_PACKAGES = "build one that brings them, from `edgegossip image release --with-packages`"
MAKE = "make it with `edgegossip image release`"
_MACHINES = {183: "aarch64", 62: "x86_64", 40: "armv7l"}  # e_machine of ELF headers
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Index:
    """Says what releases are in the folder, and which one each board should have."""

    next: int
    bundles: Mapping[str, Mapping[str, Any]]
    wanted: Mapping[NodeId, int]


def load(folder: Path) -> Index:
    """Read releases.json of a fleet's folder. Raises DataError."""
    try:
        found = json.loads((folder / INDEX).read_bytes())
        return Index(int(found["next"]), dict(found["bundles"]), {k: int(v) for k, v in found["wanted"].items()})
    except FileNotFoundError:
        return Index(1, {}, {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder / INDEX} is damaged ({error}); restore it from a copy") from error


def bundle_file(folder: Path, sequence: int) -> Path:
    """Return where the folder keeps the release of that number."""
    return folder / "releases" / f"{sequence}.bundle"


def build(fleet: Fleet, site: Site, output: Path) -> ReleaseManifest:
    """Pack a folder as a signed bundle in `output`. Raises ConfigError, UsageError."""
    needed = "" if site.whole else site.packages
    have = {p for name in fleet.boards if (p := _packages(fleet, name))}
    if needed and have and needed not in have:
        raise ConfigError(f"no board that has checked in has the packages that {site.folder} needs: {WITH_PACKAGES}")
    files = _files(site.folder, site.whole)
    manifest = ReleaseManifest(fleet.fleet_id, site.version, 1, site.machine, site.python, (), needed)
    with refused_as(UsageError, output), tempfile.TemporaryFile(dir=output.parent) as blobs:
        manifest = replace(manifest, entries=tuple(_pack(site.folder, files, blobs)))
        with _changing(fleet) as index:
            manifest = replace(manifest, sequence=index.next, signed_s=int(time.time()))
            parse_manifest(manifest.pack())  # what no board would take must not leave this machine
            _keep(fleet.folder, replace(index, next=index.next + 1))
        blobs.seek(0)
        _join(fleet, manifest, blobs, output)
    return manifest


def push(fleet: Fleet, file: Path, boards: Sequence[NodeId]) -> tuple[int, tuple[NodeId, ...]]:
    """Take down that boards (none: all of the fleet) should have the release in that file; they
    hear of it by an order (`orders.push`). Returns its number, and them. Raises ConfigError,
    DataError, UsageError."""
    head, begin = read_head(file)
    operator = fleet.operator()
    try:
        manifest = head.manifest(operator)
    except EdgegossipError as error:
        raise DataError(f"{file}: {error}") from error
    names = tuple(fleet.valid_board(name).name for name in boards) or fleet.boards
    if not names:
        raise ConfigError(f"{fleet.folder} has no boards: edgegossip fleet add NAME")
    if other := [n for n in names if manifest.packages and _packages(fleet, n) not in ("", manifest.packages)]:
        raise ConfigError(f"{', '.join(other)} have other Python packages than {file} needs: {WITH_PACKAGES}")
    with _changing(fleet) as index:
        again = bool(index.bundles) and manifest.sequence < max(map(int, index.bundles))
        if again:
            manifest = replace(manifest, sequence=index.next)
        first_s = index.bundles.get(str(manifest.sequence), {}).get("signed_s", int(time.time()))
        # Boards compare it with the day their provisioning bundle was made.
        manifest = replace(manifest, signed_s=first_s)
        number, target = manifest.sequence, bundle_file(fleet.folder, manifest.sequence)
        with refused_as(UsageError, target):
            target.parent.mkdir(mode=0o700, exist_ok=True)
            with open(file, "rb") as source:
                source.seek(begin)
                _join(fleet, manifest, source, target)
        about = {k: getattr(manifest, k) for k in ("version", "machine", "python", "signed_s")}
        bundles = {**index.bundles, str(number): about}
        wanted = {**index.wanted, **dict.fromkeys(names, number)}
        _keep(fleet.folder, Index(max(index.next, number + 1), bundles, wanted))
    return number, names


def read_head(file: Path) -> tuple[Head, int]:
    """Read the head of a bundle, and where its blobs begin. Raises DataError."""
    try:
        with refused_as(DataError, file), open(file, "rb") as stream:
            head = stream.read(MAX_STORED_BYTES + MAX_SIGNATURE_BYTES + 64)
        found = parse_head(head)
    except DecodeError as error:
        raise DataError(f"{file}: {error}; make it with `edgegossip fleet release build`") from error
    if found is None:
        raise DataError(f"{file} is cut short; make it again with `edgegossip fleet release build`")
    return found


def _packages(fleet: Fleet, name: NodeId) -> str:
    """Return which packages a board said that it has; empty when it has not said."""
    return str((fleet.last_check_in(name) or {}).get("packages", ""))


def _files(site: Path, whole: bool) -> list[Path]:
    """List what goes into the bundle; the list of packages only with them, for it is theirs."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.is_symlink():
            raise ConfigError(f"{path} is a symbolic link: releases have none")
        if path.is_file():
            name = path.relative_to(site).as_posix()
            check_path(f"site/{name}")
            if whole or name != LOCK:
                found.append(path)
        elif not path.is_dir():
            raise ConfigError(f"{path} is neither a file nor a folder")
    return found


def _pack(site: Path, files: Iterable[Path], blobs: BinaryIO) -> Iterator[BundleEntry]:
    """Yield the entries of the files; each content goes to `blobs` once."""
    known: dict[str, Blob] = {}
    at = 0
    for path in files:
        whole, pieces = hashlib.sha256(), []
        with open(path, "rb") as stream:
            while content := stream.read(PIECE_BYTES):
                whole.update(content)
                sha256 = hashlib.sha256(content).hexdigest()
                if sha256 not in known:
                    stored = zlib.compress(content, 6)
                    known[sha256] = Blob(sha256, len(content), at, len(stored))
                    blobs.write(stored)
                    at += len(stored)
                pieces.append(known[sha256])
        executable = bool(path.stat().st_mode & 0o100)
        yield BundleEntry(f"site/{path.relative_to(site).as_posix()}", executable, whole.hexdigest(), tuple(pieces))


def _join(fleet: Fleet, manifest: ReleaseManifest, blobs: BinaryIO, output: Path) -> None:
    """Write a signed head, then `blobs` from where it is to its end. Raises OSError."""
    packed = manifest.pack()
    head = Head(packed, fleet.operator().sign(DOMAIN + hashlib.sha256(packed).digest()))
    with replacing(output) as stream:
        stream.write(head.write())
        while part := blobs.read(1 << 20):
            stream.write(part)


def _keep(folder: Path, index: Index) -> None:
    document = {"next": index.next, "bundles": index.bundles, "wanted": index.wanted}
    write_file(folder / INDEX, (json.dumps(document, indent=1) + "\n").encode(), 0o600)


@contextmanager
def _changing(fleet: Fleet) -> Iterator[Index]:
    with locked(fleet.folder):
        yield load(fleet.folder)


@dataclass(frozen=True, slots=True)
class Site:
    """Describes a folder that is to become a release: what a board would have on its PYTHONPATH."""

    folder: Path
    version: str
    machine: str  # as `uname -m`
    python: str  # 3.11
    packages: str  # SHA-256 of its packages.lock
    whole: bool  # whether those packages are in it


def examine(folder: Path) -> Site:
    """Look a folder through before it is signed: whatever could not start on a board is refused
    here, and not by every board a quarter of an hour later. Raises ConfigError for a folder that is
    no release, or one that lacks something."""
    lock = folder / LOCK
    version, module = _version_of(folder), _module(folder)
    if not lock.is_file():
        raise ConfigError(f"{folder} has no {LOCK}, so no board could tell whether it has the packages: {MAKE}")
    data = lock.read_bytes()
    names = {path.name for path in folder.iterdir()} - {LOCK}
    whole = not all(is_ours(f"site/{name}/") for name in names)
    if whole and (missing := _missing(data.decode(errors="replace"), names)):
        raise ConfigError(f"{folder} lacks {', '.join(missing[:5])} of its {LOCK}, and could not start: {MAKE}")
    return Site(folder, version, _machine(module), _python(folder, module), hashlib.sha256(data).hexdigest(), whole)


def _version_of(site: Path) -> str:
    """Return the version of the package in it. Raises ConfigError."""
    try:
        text = (site / "edgegossip" / "version.py").read_text()
    except OSError as error:
        raise ConfigError(f"{site}: no edgegossip is in it: {MAKE}") from error
    found = re.search(r'^VERSION = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ConfigError(f"{site}: its edgegossip does not say its version: say --release VERSION")
    return found[1]


def _module(site: Path) -> Path:
    found = sorted((site / "edgegossip/native").glob("_native*.so"))
    if not found:
        raise ConfigError(f"{site}: its edgegossip has no native module (_native*.so), and could not start: {MAKE}")
    return found[0]


def _machine(module: Path) -> str:
    with open(module, "rb") as stream:
        head = stream.read(20)
    code = int.from_bytes(head[18:20], "little")
    if head[:4] != b"\x7fELF" or code not in _MACHINES:
        raise ConfigError(f"{module} is for no machine that is known")
    return _MACHINES[code]


def _python(site: Path, module: Path) -> str:
    """Tell the version of Python from the compiled files; else from the module's name, which has no
    version where one serves several."""
    names = [path.name for path in (site / "edgegossip/__pycache__").glob("__init__.cpython-*.pyc")]
    found = {m[1] for name in (*names, module.name) if (m := re.search(r"cpython-3(\d+)[.-]", name))}
    if len(found) != 1:
        raise ConfigError(f"{site} is compiled for {'no Python' if not found else 'several Pythons'}: {MAKE}")
    return f"3.{found.pop()}"


def _missing(lock: str, names: set[str]) -> list[str]:
    """List packages of a lock file that no folder NAME-VERSION.dist-info stands for."""
    there = {_normalised(name.removesuffix(".dist-info")) for name in names if name.endswith(".dist-info")}
    return [
        f"{name} {version}" for name, version in _PIN.findall(lock) if _normalised(f"{name}-{version}") not in there
    ]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
