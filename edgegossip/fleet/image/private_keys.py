"""Private keys, and keys of Wi-Fi networks, in plain sight: where they are in a stream of bytes,
and which ones programs carry to test themselves with.

Found: PEM however it is laid out (indented, in JSON or YAML, with any ends of lines, in UTF-16, as
base64 once more), PGP, DER of PKCS#8, SEC1 and PKCS#1, pre-shared keys of wpa_supplicant,
NetworkManager and bundles. Not found: what is compressed or encrypted."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

_WINDOW, _OVERLAP = 8 << 20, 16 << 10  # a key is no longer than the overlap
_LEAST = 40  # characters of base64; programs have the first line of a key in them as a word, without what follows

_BEGIN = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_HEADERS = re.compile(rb"(?:\s|\\+[nr])*(?:[A-Za-z-]+: [^\r\n\\]*(?:[\r\n]|\\+[nr])+[ \t]*)*")
_BETWEEN = re.compile(rb"""\\+[nrt]|[\s"',]+""")  # ends of lines and what programs and formats put around them
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_KINDS = (b"\x30", b"openssh-key-v1\0")  # DER's SEQUENCE, OpenSSH's own; an encrypted or a PGP key begins anyhow
_PLAIN_LINE = re.compile(rb"-----(?:\r?\n|\\+n)(?:\r?\n)?[A-Za-z0-9+/=]{40,}(?:\r?\n|\\+n)")

# Object identifiers of elliptic curves, RSA, and X25519 to Ed448 in a PKCS#8 key (RFC 5958), after
# its version.
_PKCS8 = re.compile(
    rb"\x30(?:[\x20-\x7f]|\x81.|\x82..)\x02\x01[\0\x01]\x30.\x06"
    rb"(?:\x07\x2a\x86\x48\xce\x3d\x02\x01|\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01|\x03\x2b\x65[\x6e-\x71]\x04)",
    re.DOTALL,
)
# An elliptic curve's of RFC 5915 on P-256, P-384, P-521 or secp256k1, and RSA's of RFC 8017.
_SEC1 = re.compile(
    rb"\x30(?:[\x20-\x7f]|\x81.)\x02\x01\x01\x04(?:\x20.{32}|\x30.{48}|\x42.{66})\xa0[\x07\x0a]\x06[\x05\x08]",
    re.DOTALL,
)
_PKCS1 = re.compile(
    rb"\x30\x82..\x02\x01\0\x02(?:\x81\x81.{129}|\x82\x01\x01.{257}|\x82\x01\x81.{385}|\x82\x02\x01.{513})"
    rb"\x02\x03\x01\0\x01\x02",
    re.DOTALL,
)
_WIFI = re.compile(rb"""psk\\*["']?\s*[=:]\s*\\*["']?([0-9a-fA-F]{64})(?![0-9a-fA-F])""")
# What base64 makes of the begin of a first line, at any of the three places of a group; characters
# that make that group whole.
_TWICE = ((b"LS0tLS1CRUdJ", b""), (b"0tLS0tQkVHSU", b"AC"), (b"tLS0tLUJFR0l", b"AAA"))
_BINARY = (
    (b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01", _PKCS8),
    (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01", _PKCS8),
    (b"\x06\x03\x2b\x65", _PKCS8),
    (b"\xa0\x0a\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07", _SEC1),
    (b"\xa0\x07\x06\x05\x2b\x81\x04\x00", _SEC1),
    (b"\x02\x03\x01\x00\x01\x02", _PKCS1),
)
_PROGRAMS = ("usr/lib/*/*.so*", "usr/bin/*", "usr/sbin/*", "boot/vmlinuz-*")
_MACHINE_CODE = (b"\x7fELF", b"MZ")  # the latter: a kernel that EFI starts
_Found: TypeAlias = tuple[int, bytes]  # where in the window, and what tells it from others


@dataclass(frozen=True, slots=True)
class Key:
    """Says where a key is, and which one. `at` is its first byte; `digest` (SHA-256) is of all of
    it, which tells it from any other."""

    at: int
    digest: str


def find_keys(stream: BinaryIO) -> Iterator[Key]:
    """Find keys in a stream, in a file system's image, too: a file of up to a block is in one
    piece, and longer ones nearly always are."""
    start, window = 0, b""  # `start`: where the window begins in the stream
    done = 0  # what begins before this was looked at
    while True:
        data = stream.read(_WINDOW)
        window += data
        sure = len(window) - (_OVERLAP if data else 0)  # what begins later is looked at with what follows it
        for at, content in sorted(_in_window(window)):
            if done <= start + at < start + sure:
                yield Key(start + at, hashlib.sha256(content).hexdigest())
        done = max(done, start + sure)
        if not data:
            return
        start, window = start + len(window[:-_OVERLAP]), window[-_OVERLAP:]


def _in_window(window: bytes) -> Iterator[_Found]:
    if window.count(0) == len(window):
        return
    yield from _pem(window)
    for literal, pattern in _BINARY:
        yield from _around(window, literal, pattern)
    for match in _each(window, b"psk", _WIFI, 0):
        yield match.start(), match[1]
    for at in _places(window, "-----BEGIN ".encode("utf-16-le")):
        text = window[at : at + 2 * _OVERLAP].decode("utf-16-le", errors="replace").encode("ascii", errors="replace")
        yield from ((at, content) for place, content in _pem(text) if place == 0)
    for literal, before in _TWICE:
        for at in _places(window, literal):
            run = _BASE64.match(_BETWEEN.sub(b"", window[at : at + _OVERLAP]))
            assert run is not None
            yield from (
                (at, content) for _, content in _pem(b"-----" + _decoded(before + run[0]).lstrip(b"\0-")[:_OVERLAP])
            )


def _pem(window: bytes) -> Iterator[_Found]:
    for at in _places(window, b"-----BEGIN "):
        begin = _BEGIN.match(window, at)
        if begin is None:
            continue
        after = window[begin.end() : at + _OVERLAP].partition(b"-----END")[0]
        headers = _HEADERS.match(after)
        assert headers is not None
        body = _BASE64.match(_BETWEEN.sub(b"", after[headers.end() :]))
        assert body is not None
        opaque = b": " in headers[0] or b"BLOCK" in begin[0]
        plain = _PLAIN_LINE.match(window, begin.end() - 5) is not None
        if len(body[0]) >= _LEAST and (opaque or plain or _decoded(body[0]).startswith(_KINDS)):
            yield at, body[0]


def _around(window: bytes, literal: bytes, pattern: re.Pattern[bytes]) -> Iterator[_Found]:
    """Yield structures that have `literal` in them, not far from where they begin: all of each, as
    its length says."""
    for match in _each(window, literal, pattern, 600):
        size = _length(window, match.start())
        yield match.start(), window[match.start() : match.start() + size]


def _each(window: bytes, literal: bytes, pattern: re.Pattern[bytes], before: int) -> Iterator[re.Match[bytes]]:
    """Yield matches around each place of `literal`, which is found much sooner than a pattern
    is."""
    reached = 0
    for at in _places(window, literal):
        for match in pattern.finditer(window, max(reached, at - before), at + 1024):
            reached = match.end()
            yield match


def _places(window: bytes, literal: bytes) -> Iterator[int]:
    at = window.find(literal)
    while at >= 0:
        yield at
        at = window.find(literal, at + 1)


def _length(window: bytes, at: int) -> int:
    """Return the length of the DER value there, with its head (X.690, 8.1.3)."""
    first = window[at + 1]
    if first < 0x80:
        return 2 + first
    count = first & 0x7F
    return 2 + count + int.from_bytes(window[at + 2 : at + 2 + count], "big")


def _decoded(text: bytes) -> bytes:
    text = text.rstrip(b"=")
    with_rest = text[: len(text) - (len(text) % 4 == 1)]
    try:
        return base64.b64decode(with_rest + b"=" * (-len(with_rest) % 4))
    except binascii.Error:
        return b""


def of_libraries(root: Path) -> list[str]:
    """Return digests of the keys in libraries and programs of a tree, and in its kernel (GnuTLS,
    OpenSSL's `speed` and Linux test themselves with some): they are printed in their sources."""
    found = set()
    for file in (path for pattern in _PROGRAMS for path in root.glob(pattern)):
        if file.is_file() and not file.is_symlink():
            with open(file, "rb") as stream:
                if stream.read(4).startswith(_MACHINE_CODE):
                    stream.seek(0)
                    found |= {key.digest for key in find_keys(stream)}
    return sorted(found)
