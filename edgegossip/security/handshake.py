"""The admission handshake: what two boards say to each other, inside mutual TLS, before a gRPC
connection is made. Pure.

    caller      "EGK1"  u64 number of its revocation list
    listener    u8 1 = come in, 0 = no   u64 number of its list   text: a one-time token (tokens.py), or the reason for a no
                blob: its list, when it is newer than the caller's, else empty
    caller      blob: its list, when it is newer than the listener's, else empty

Numbers are big-endian, a text or blob has its length before it as u32. It gives the caller the
reason when it is refused, which gRPC would hide, and the token to come in with, and it is how
revocations spread. The protocol's name in TLS (ALPN) says "knock"."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from edgegossip.types import DecodeError

_MAGIC = b"EGK1"
_NUMBER = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BQ")
HELLO_BYTES = len(_MAGIC) + _NUMBER.size
MAX_BLOB_BYTES = 1 << 20
MAX_TEXT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What the listener says."""

    welcome: bool
    number: int
    text: str  # the token, or why not
    crl: bytes


def hello(number: int) -> bytes:
    """Write the caller's first message, with the number of its revocation list."""
    return _MAGIC + _NUMBER.pack(number)


def parse_hello(data: bytes) -> int:
    """Read the number in the caller's first message. Raises DecodeError."""
    if len(data) != HELLO_BYTES or not data.startswith(_MAGIC):
        raise DecodeError("an admission handshake that is none")
    return int(_NUMBER.unpack_from(data, len(_MAGIC))[0])


def answer(a: Answer) -> bytes:
    """Write the listener's message."""
    text = a.text.encode()[:MAX_TEXT_BYTES]
    return _HEAD.pack(a.welcome, a.number) + blob(text) + blob(a.crl)


def parse_answer(data: bytes) -> Answer | None:
    """Read the listener's message; None while there is more to come. Raises DecodeError for what
    can be none."""
    if len(data) < _HEAD.size:
        return None
    welcome, number = _HEAD.unpack_from(data)
    text, at = _blob(data, _HEAD.size, MAX_TEXT_BYTES)
    crl, at = _blob(data, at, MAX_BLOB_BYTES) if text is not None else (None, at)
    if text is None or crl is None:
        return None
    if welcome > 1 or len(data) != at:
        raise DecodeError("an answer to an admission handshake that is none")
    return Answer(welcome == 1, number, text.decode(errors="replace"), crl)


def blob(data: bytes) -> bytes:
    """Write the caller's last message: a revocation list (DER), or nothing."""
    return _LENGTH.pack(len(data)) + data


def parse_blob(data: bytes) -> bytes | None:
    """Read the caller's last message; None while there is more to come. Raises DecodeError."""
    found, at = _blob(data, 0, MAX_BLOB_BYTES)
    if found is not None and at != len(data):
        raise DecodeError("something follows a revocation list")
    return found


def _blob(data: bytes, at: int, max_bytes: int) -> tuple[bytes | None, int]:
    if len(data) < at + _LENGTH.size:
        return None, at
    (length,) = _LENGTH.unpack_from(data, at)
    if length > max_bytes:
        raise DecodeError(f"{length} bytes are too many for an admission handshake")
    end = at + _LENGTH.size + length
    return (data[at + _LENGTH.size : end], end) if len(data) >= end else (None, at)
