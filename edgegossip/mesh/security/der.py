"""A reader for the part of DER (ITU-T X.690) that certificates and revocation lists use. Pure; checks every length.

Not a parser for any DER: tags of one byte, definite lengths, which is all that RFC 5280 structures need.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from edgegossip.types import DecodeError

BOOLEAN, INTEGER, BIT_STRING, OCTET_STRING, OID, SEQUENCE, SET = 0x01, 0x02, 0x03, 0x04, 0x06, 0x30, 0x31
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
FEW = 32  # values side by side, but for the entries of a revocation list: what a stranger sends must not keep us busy


@dataclass(frozen=True, slots=True)
class Element:
    """One value: its tag, its content, and the bytes of all of it."""

    tag: int
    content: bytes
    whole: bytes

    def children(self, at_most: int = FEW) -> list[Element]:
        """Raises DecodeError when the content is not a list of values, or one of more than `at_most`."""
        return list(_elements(self.content, at_most))

    def expect(self, tag: int) -> Element:
        """Itself. Raises DecodeError for another tag."""
        if self.tag != tag:
            raise DecodeError(f"DER tag {self.tag:#x} where {tag:#x} is due")
        return self

    def integer(self) -> int:
        """A non-negative INTEGER. Raises DecodeError."""
        content = self.expect(INTEGER).content
        if not content or content[0] & 0x80 or (len(content) > 1 and content[0] == 0 and not content[1] & 0x80):
            raise DecodeError("a DER number that is empty, negative or padded")
        return int.from_bytes(content, "big")

    def bits(self) -> bytes:
        """A BIT STRING of whole bytes. Raises DecodeError."""
        content = self.expect(BIT_STRING).content
        if not content or content[0] != 0:
            raise DecodeError("a DER bit string that is not made of bytes")
        return content[1:]


def parse(data: bytes) -> Element:
    """`data` as exactly one value. Raises DecodeError."""
    found = list(_elements(data, 1))
    if not found:
        raise DecodeError("no DER value where one is due")
    return found[0]


def items(elements: list[Element], at_least: int) -> list[Element]:
    """The same list. Raises DecodeError when it is shorter."""
    if len(elements) < at_least:
        raise DecodeError(f"{len(elements)} DER values where at least {at_least} are due")
    return elements


def _elements(data: bytes, at_most: int) -> Iterator[Element]:
    at = 0
    while at < len(data):
        if not at_most:
            raise DecodeError("more DER values than there may be")
        at_most -= 1
        start, tag = at, data[at]
        if tag & 0x1F == 0x1F or at + 2 > len(data):
            raise DecodeError("a DER value that this reader does not know, or that is cut off")
        length, at = data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 3 or at + count > len(data):
                raise DecodeError("a DER length that is indefinite, huge or cut off")
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
            if length < (0x80 if count == 1 else 1 << 8 * (count - 1)):
                raise DecodeError("a DER length that is not the shortest")
        if at + length > len(data):
            raise DecodeError("a DER value that is cut off")
        yield Element(tag, data[at : at + length], data[start : at + length])
        at += length


def seconds(element: Element) -> float:
    """A time as RFC 5280, 4.1.2.5 writes it (to the second, UTC), in seconds since the epoch. Raises DecodeError."""
    try:
        text = element.content.decode("ascii")
        if element.tag == UTC_TIME:
            text = ("20" if int(text[:2]) < 50 else "19") + text
        elif element.tag != GENERALIZED_TIME:
            raise DecodeError(f"DER tag {element.tag:#x} where a time is due")
        if len(text) != 15 or not text[:14].isdigit() or text[14] != "Z":
            raise DecodeError("a DER time that is not in UTC, to the second")
        parts = (text[0:4], text[4:6], text[6:8], text[8:10], text[10:12], text[12:14])
        year, month, day, hour, minute, second = map(int, parts)
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (UnicodeDecodeError, ValueError) as error:
        raise DecodeError("a DER time that is none") from error


def integer(value: int) -> bytes:
    """A non-negative INTEGER."""
    content = value.to_bytes(value.bit_length() // 8 + 1, "big")
    return bytes((INTEGER, len(content))) + content


def from_pem(text: bytes, label: str) -> bytes:
    """The content of the first PEM block with this label (RFC 7468). Raises DecodeError."""
    begin, end = f"-----BEGIN {label}-----".encode(), f"-----END {label}-----".encode()
    _, found, rest = text.partition(begin)
    body, closed, _ = rest.partition(end)
    if not found or not closed:
        raise DecodeError(f"no PEM block of a {label}")
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error as error:
        raise DecodeError(f"the PEM block of the {label} is not base64") from error


def to_pem(data: bytes, label: str) -> bytes:
    """`data` as a PEM block."""
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[i : i + 64] for i in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n".encode()
