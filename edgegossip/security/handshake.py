"""The admission handshake: what two boards say to each other, inside mutual TLS, before a gRPC
connection is made, and the one-time tokens with which they are let in after it. Pure.

    caller      "EGK1"  u64 number of its revocation list
    listener    u8 1 = come in, 0 = no   u64 number of its list
                text: a one-time token, or the reason for a no
                blob: its list, when it is newer than the caller's, else empty
    caller      blob: its list, when it is newer than the listener's, else empty

Numbers are big-endian, a text or blob has its length before it as u32. It gives the caller the
reason when it is refused, which gRPC would hide, and the token to come in with, and it is how
revocations spread."""

from __future__ import annotations

import secrets
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgegossip.types import DecodeError

T = TypeVar("T")
_MAGIC = b"EGK1"
_NUMBER = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BQ")
HELLO_BYTES = len(_MAGIC) + _NUMBER.size
MAX_BLOB_BYTES = 1 << 20
MAX_TEXT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds what the listener says."""

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


class OneTimeTokens(Generic[T]):
    """Issues one-time tokens: who was admitted may connect once, within `VALID_S`. The caller
    passes monotonic seconds.

    A token is the first label of the server name (SNI) that a caller asks for when it connects, so
    the TLS front end reads it in the clear and knows who is to come. It proves nothing: whoever
    overhears one and is quicker still has to show the certificate that it was issued to.

    `owner` tells whose certificate a holder shows: of each the newest `EACH` tokens are good. One
    that asks without end drops its own tokens and nobody else's. That bounds memory too, since only
    an authority makes certificates and nothing outlives `VALID_S`."""

    VALID_S = 10.0
    EACH = 4  # as many as a board keeps of one peer's

    def __init__(self, owner: Callable[[T], Hashable]) -> None:
        self._owner = owner
        self._issued: OrderedDict[str, tuple[T, float]] = OrderedDict()  # the oldest first
        self._owned: dict[Hashable, list[str]] = {}  # their tokens, the oldest first; none for who has none

    def __len__(self) -> int:
        return len(self._issued)

    def __contains__(self, token: str) -> bool:
        """Return whether it was issued and not used; it may be too old."""
        return token in self._issued

    def issue(self, holder: T, now_s: float) -> str:
        """Issue a new token: 32 hexadecimal digits."""
        self._forget_old(now_s)
        token = secrets.token_hex(16)
        self._issued[token] = (holder, now_s + self.VALID_S)
        own = self._owned.setdefault(self._owner(holder), [])
        own.append(token)
        if len(own) > self.EACH:
            self._remove(own[0])
        return token

    def redeem(self, token: str, now_s: float) -> T | None:
        """Return its holder; None for one that was never issued, is used or too old."""
        self._forget_old(now_s)
        return self._remove(token) if token in self._issued else None

    def revoke(self, which: Callable[[T], bool]) -> None:
        """Take back the tokens of some holders."""
        for token in [token for token, (holder, _) in self._issued.items() if which(holder)]:
            self._remove(token)

    def _forget_old(self, now_s: float) -> None:
        while self._issued:
            token, (_, until_s) = next(iter(self._issued.items()))
            if until_s > now_s:
                return
            self._remove(token)

    def _remove(self, token: str) -> T:
        holder, _ = self._issued.pop(token)
        owner = self._owner(holder)
        self._owned[owner].remove(token)
        if not self._owned[owner]:
            del self._owned[owner]
        return holder
