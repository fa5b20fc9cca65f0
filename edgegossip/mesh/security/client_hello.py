"""What a TLS ClientHello asks for in the clear (RFC 8446, 4.1.2): the server's name and the versions of TLS. Pure.

Only to decide who goes on with the connection. Nothing is believed here: the TLS library that gets it reads it again.
"""

from __future__ import annotations

from dataclasses import dataclass

_RECORD_HEAD_BYTES = 5
MAX_BYTES = _RECORD_HEAD_BYTES + (1 << 14)
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _SUPPORTED_VERSIONS = 0, 43
TLS_1_3 = 0x0304
_HOST_NAME = 0


@dataclass(frozen=True, slots=True)
class ClientHello:
    """Empty for what was not said."""

    server_name: str = ""
    versions: tuple[int, ...] = ()  # RFC 8446, 4.2.1; none before TLS 1.3


def needed_bytes(data: bytes) -> int:
    """How many bytes of a connection have to be there before `parse` can tell."""
    if len(data) < _RECORD_HEAD_BYTES or data[0] != _HANDSHAKE:
        return _RECORD_HEAD_BYTES
    return min(MAX_BYTES, _RECORD_HEAD_BYTES + int.from_bytes(data[3:5], "big"))


def parse(data: bytes) -> ClientHello | None:
    """None for what is no ClientHello in one record; that some TLS library may still understand."""
    if len(data) < needed_bytes(data) or data[0] != _HANDSHAKE:
        return None
    try:
        return _hello(_Reader(data[_RECORD_HEAD_BYTES : needed_bytes(data)]))
    except (IndexError, UnicodeDecodeError):
        return None


def _hello(record: _Reader) -> ClientHello | None:
    if record.number(1) != _CLIENT_HELLO:
        return None
    body = record.vector(3)
    body.take(2 + 32)  # legacy_version, random
    body.vector(1)  # legacy_session_id
    body.vector(2)  # cipher_suites
    body.vector(1)  # legacy_compression_methods
    extensions, name = body.vector(2), ""
    versions: tuple[int, ...] = ()
    while extensions.left:
        kind, value = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME and value.left:
            names = value.vector(2)
            if names.number(1) == _HOST_NAME:
                name = names.vector(2).rest().decode("ascii").lower()
        elif kind == _SUPPORTED_VERSIONS:
            versions = _versions(value.vector(1))
    return ClientHello(name, versions)


def _versions(value: _Reader) -> tuple[int, ...]:
    found: list[int] = []
    while value.left:
        found.append(value.number(2))
    return tuple(found)


class _Reader:
    """Raises IndexError beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise IndexError
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def vector(self, length_bytes: int) -> _Reader:
        return _Reader(self.take(self.number(length_bytes)))

    def rest(self) -> bytes:
        return self.take(self.left)
