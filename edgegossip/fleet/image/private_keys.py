"""Private keys, and keys of Wi-Fi networks, in plain sight: where they are in a stream of bytes,
and which ones programs carry to test themselves with.

Found: PEM however its lines end or are quoted (files, JSON, YAML, a program's text), OpenSSH's and
PGP's among it, and pre-shared keys of wpa_supplicant, NetworkManager and bundles. Not found: what
is in binary form, encoded once more, compressed or encrypted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_WINDOW, _OVERLAP = 8 << 20, 16 << 10  # a key is no longer than the overlap
_BETWEEN = rb"""(?:\\+[nrt]|[\s"',])"""  # ends of lines, and what programs and formats put around them
# A whole first line follows: programs have the words alone in them, without any key.
_PEM = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:%(between)s|[A-Za-z-]+: [^\r\n\\]*)*((?:[A-Za-z0-9+/]{20,}={0,2}%(between)s*)+)" % {b"between": _BETWEEN}
)
_WIFI = re.compile(rb"""psk\\*["']?\s*[=:]\s*\\*["']?([0-9a-fA-F]{64})(?![0-9a-fA-F])""")
_LEAST = 40  # characters of base64
_PROGRAMS = ("usr/lib/*/*.so*", "usr/bin/*", "usr/sbin/*", "boot/vmlinuz-*")
_MACHINE_CODE = (b"\x7fELF", b"MZ")  # the latter: a kernel that EFI starts


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
        for match in _in_window(window):
            if done <= start + match.start() < start + sure:
                content = re.sub(_BETWEEN, b"", match[1])
                if len(content) >= _LEAST:
                    yield Key(start + match.start(), hashlib.sha256(content).hexdigest())
        done = max(done, start + sure)
        if not data:
            return
        start, window = start + len(window[:-_OVERLAP]), window[-_OVERLAP:]


def _in_window(window: bytes) -> Iterator[re.Match[bytes]]:
    """Yield matches around each place of a word that each has, which is found much sooner than a
    pattern is."""
    for literal, pattern in ((b"-----BEGIN ", _PEM), (b"psk", _WIFI)):
        at = window.find(literal)
        while at >= 0:
            if match := pattern.match(window, at, at + _OVERLAP):
                yield match
            at = window.find(literal, at + 1)


def of_libraries(root: Path) -> list[str]:
    """Return digests of the keys in libraries and programs of a tree, and in its kernel (GnuTLS and
    OpenSSL's `speed` test themselves with some): they are printed in their sources."""
    found = set()
    for file in (path for pattern in _PROGRAMS for path in root.glob(pattern)):
        if file.is_file() and not file.is_symlink():
            with open(file, "rb") as stream:
                if stream.read(4).startswith(_MACHINE_CODE):
                    stream.seek(0)
                    found |= {key.digest for key in find_keys(stream)}
    return sorted(found)
