"""Private keys in plain sight: where they are in a stream of bytes, and which ones libraries carry to test themselves with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# A PEM key with its content, also inside a kit, where JSON writes the ends of lines in its own way. Programs have its first line
# in them as a word, without what follows.
_END = rb"(?:\r?\n|\\+n)"
_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"
    + _END
    + rb"(?:[A-Za-z-]+: [^\r\n]*\r?\n)*(?:\r?\n)?[A-Za-z0-9+/=]{40,}"
    + _END
)
_WINDOW, _OVERLAP = 8 << 20, 4096


@dataclass(frozen=True, slots=True)
class Key:
    """`at` is its first byte; `digest` (SHA-256) is of its first lines, which tell it from any other."""

    at: int
    digest: str


def find_keys(stream: BinaryIO) -> Iterator[Key]:
    """In a file system's image, too: a file of up to a block is in one piece, and longer ones nearly always are."""
    at, before = 0, b""
    while data := stream.read(_WINDOW):
        window = before + data
        for match in _KEY.finditer(window):
            if match.end() > len(before):  # else it was found already
                yield Key(at - len(before) + match.start(), hashlib.sha256(match[0]).hexdigest())
        before = window[-_OVERLAP:]
        at += len(data)


def of_libraries(root: Path) -> list[str]:
    """Digests of the keys in shared libraries of a tree (GnuTLS tests itself with some): they are printed in its source."""
    found = set()
    for file in root.glob("usr/lib/*/*.so*"):
        if file.is_file() and not file.is_symlink():
            with open(file, "rb") as stream:
                if stream.read(4) == b"\x7fELF":
                    stream.seek(0)
                    found |= {key.digest for key in find_keys(stream)}
    return sorted(found)
