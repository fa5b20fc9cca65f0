"""A release as one signed file. Pure: bytes in, values out.

    8 bytes  "EGREL\\0\\0\\1"
    4 + n    length (big-endian) and manifest: a JSON object, deflated (RFC 1950)
    4 + m    length and signature over SHA-256 of the manifest as it lies there: a fleet's
             operator's (security/identity.py)
    blobs    the content of files in pieces of 4 MiB, each deflated, each once

The manifest names the fleet, version, sequence number, machine and Python, every file with size,
SHA-256 and its pieces, and every piece; and, where it has our own package only, the name of the
packages that the board must have already. So a board checks one signature, then takes the pieces
that it has not got; what one is worth, its SHA-256 says. There are no links, owners, or times of
files in it, and paths are plain names below site/. The signature is that of operators, P-256 like
everything in a fleet (not Ed25519): boards have that code, and a lost operator's key can be
revoked. Sequence numbers only ever grow; `signed_s` is when this one was first pushed.

A release is two layers in one folder: our own package, and the packages of a lock file, which
change seldom and are a hundred times as large. A copy of that file, site/packages.lock, says which
they are; its SHA-256 is their name.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgegossip.types import DecodeError, PeerError

if TYPE_CHECKING:
    from edgegossip.security.identity import Identity

MAGIC = b"EGREL\0\0\1"
DOMAIN = b"edgegossip release 1\0"
MAX_MANIFEST_BYTES = 16 << 20  # inflated: some 100,000 files
MAX_STORED_BYTES = 8 << 20  # the same as it travels
MAX_SIGNATURE_BYTES = 8192
MAX_FILES = 50_000
PIECE_BYTES = 4 << 20  # a board holds one at a time
MAX_TOTAL_BYTES = 4 << 30
LOCK = "packages.lock"  # below site/
_OURS = re.compile(r"site/edgegossip(-[^/]*\.(dist-info|data))?/")
_TEXTS = ("fleet_id", "version", "machine", "python", "packages")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}")
_NAME = re.compile(r"[^\0/\x01-\x1f\x7f]{1,255}")


@dataclass(frozen=True, slots=True)
class Blob:
    """Describes a piece of a file: where its deflated bytes begin among the blobs, and how many
    there are."""

    sha256: str
    size_bytes: int
    at: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Describes one file of the release."""

    path: str  # below the release's folder, such as site/edgegossip/frame.py
    executable: bool
    sha256: str  # of all of it
    pieces: tuple[Blob, ...]

    @property
    def size_bytes(self) -> int:
        """How large the file is."""
        return sum(piece.size_bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class ReleaseManifest:
    """Says what a release is made of."""

    fleet_id: str
    version: str
    sequence: int
    machine: str  # as `uname -m`: aarch64
    python: str  # 3.11
    entries: tuple[BundleEntry, ...]
    packages: str = ""  # SHA-256 of the packages.lock whose packages a board keeps; empty: they are among the entries
    signed_s: int = 0  # Unix seconds when its number was given or it was first pushed; 0: not said

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The pieces of all files, each content once, in their order."""
        return tuple(sorted({piece for e in self.entries for piece in e.pieces}, key=lambda b: b.at))

    def pack(self) -> bytes:
        """Write the manifest as it is signed and travels: deflated JSON."""
        blobs = self.blobs
        number = {b: k for k, b in enumerate(blobs)}
        document = {
            **{k: getattr(self, k) for k in (*_TEXTS, "sequence", "signed_s")},
            "blobs": [[b.sha256, b.size_bytes, b.stored_bytes] for b in blobs],
            "files": [[e.path, int(e.executable), e.sha256, [number[b] for b in e.pieces]] for e in self.entries],
        }
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)


@dataclass(frozen=True, slots=True)
class Head:
    """Holds the start of a bundle, before its blobs."""

    packed: bytes  # the manifest
    signature: bytes

    def write(self) -> bytes:
        """Write the start of a bundle, up to its blobs."""
        return b"".join((MAGIC, _sized(self.packed), _sized(self.signature)))

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest as it lies there, in hexadecimal; it names the bundle."""
        return hashlib.sha256(self.packed).hexdigest()

    def manifest(self, reader: Identity) -> ReleaseManifest:
        """Verify the signature and read the manifest. Raises PeerError when no operator of that
        fleet signed it, DecodeError when it makes no sense."""
        reader.verify("operator", DOMAIN + hashlib.sha256(self.packed).digest(), self.signature)
        manifest = parse_manifest(self.packed)
        if manifest.fleet_id != reader.fleet:
            raise PeerError(f"a release of fleet {manifest.fleet_id}; ours is {reader.fleet}")
        return manifest


def parse_head(data: bytes) -> tuple[Head, int] | None:
    """Read the start of a bundle: return it and the position at which its blobs begin, or None
    while there is more to come. Raises DecodeError."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise DecodeError("it is no bundle of a release")
    at, parts = len(MAGIC), []
    for what, limit in (("manifest", MAX_STORED_BYTES), ("signature", MAX_SIGNATURE_BYTES)):
        if len(data) < at + 4:
            return None
        length = int.from_bytes(data[at : at + 4], "big")
        if length > limit:
            raise DecodeError(f"a {what} of {length} bytes; at most {limit} are taken")
        if len(data) < at + 4 + length:
            return None
        parts.append(bytes(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return Head(parts[0], parts[1]), at


def parse_manifest(packed: bytes) -> ReleaseManifest:
    """Read a manifest and check every path, size and number in it. Raises DecodeError."""
    try:
        document = json.loads(_inflate(packed, MAX_MANIFEST_BYTES))
        blobs = _blobs(document["blobs"])
        entries = tuple(_entry(line, blobs) for line in document["files"])
        fields = {k: str(document[k]) for k in _TEXTS}
        signed_s = int(document.get("signed_s", 0))
        manifest = ReleaseManifest(sequence=int(document["sequence"]), entries=entries, signed_s=signed_s, **fields)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DecodeError(f"a manifest that makes no sense: {error}") from None
    _check(manifest)
    return manifest


def _inflate(data: bytes, most_bytes: int) -> bytes:
    """Inflate (RFC 1950) at most so many bytes. Raises DecodeError for more, and for what does not
    end where it should."""
    machine = zlib.decompressobj()
    try:
        found = machine.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise DecodeError(f"it cannot be inflated: {error}") from None
    if len(found) > most_bytes or not machine.eof or machine.unused_data:
        raise DecodeError(f"it inflates to other than the {most_bytes} bytes that it may have at most")
    return found


def content_of(blob: Blob, stored: bytes) -> bytes:
    """Return what a blob holds, from its deflated bytes. Raises DecodeError unless it is what the
    manifest says."""
    content = _inflate(stored, blob.size_bytes)
    if hashlib.sha256(content).hexdigest() != blob.sha256:
        raise DecodeError("a file of it is not what the manifest says")
    return content


def _blobs(lines: Sequence[Any]) -> list[Blob]:
    found, at = [], 0
    for sha256, size, stored in lines:
        if not (_count(size) and _count(stored) and 0 < size <= PIECE_BYTES and stored <= size + size // 1000 + 64):
            raise DecodeError(
                f"a manifest with a piece of {size} bytes, {stored} deflated; at most {PIECE_BYTES} are taken"
            )
        found.append(Blob(_hash(sha256), size, at, stored))
        at += stored
    return found


def _entry(line: Sequence[Any], blobs: Sequence[Blob]) -> BundleEntry:
    path, executable, sha256, numbers = line
    check_path(path)
    if not all(map(_count, numbers)):
        raise DecodeError("a manifest with a file without content")
    return BundleEntry(path, bool(executable), _hash(sha256), tuple(blobs[n] for n in numbers))


def _hash(text: object) -> str:
    if not (isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text)):
        raise DecodeError("a manifest with a hash that is none")
    return text


def check_path(path: object) -> None:
    """Raise DecodeError for anything but plain names below site/."""
    names = path.split("/") if isinstance(path, str) else []
    if len(names) < 2 or names[0] != "site" or len(str(path)) > 1024:
        raise DecodeError(f"a manifest with the path {path!r}; all are below site/")
    if not all(_NAME.fullmatch(name) and name not in (".", "..") for name in names):
        raise DecodeError(f"a manifest with the path {path!r}, which leads elsewhere")


def is_ours(path: str) -> bool:
    """Return whether this file of a release (site/...) is of our own package, and not of those that
    it needs."""
    return _OURS.match(path) is not None


def _check(manifest: ReleaseManifest) -> None:
    if not _VERSION.fullmatch(manifest.version) or not 0 < manifest.sequence < 1 << 53:
        raise DecodeError(f"a release of version {manifest.version!r}, sequence {manifest.sequence}")
    paths = [e.path for e in manifest.entries]
    if manifest.packages and (not all(map(is_ours, paths)) or not _hash(manifest.packages)):
        raise DecodeError("a release without packages, with files that are not ours")
    if not 0 < len(paths) <= MAX_FILES:
        raise DecodeError(f"a release of {len(paths)} files; 1 to {MAX_FILES} are taken")
    files, folders = set(paths), {path.rsplit("/", k)[0] for path in paths for k in range(1, path.count("/") + 1)}
    if len(files) != len(paths) or files & folders:
        raise DecodeError("a manifest with two files of one name")
    if sum(e.size_bytes for e in manifest.entries) > MAX_TOTAL_BYTES:
        raise DecodeError(f"a release of more than {MAX_TOTAL_BYTES} bytes")


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
