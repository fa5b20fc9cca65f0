"""A message and its content in one body: parts, each with its length before it. Flower's own way is a request an object."""

from __future__ import annotations

import struct
from collections.abc import Mapping

BUNDLE_BYTES = 8 << 20  # of content in one request; what is larger travels object by object, as Flower sends it
RUN_BUNDLE_BYTES = 32 << 20  # of replies to the coordinator, which is on the same machine
TAKE_PATH, GIVE_PATH = "/edgegossip/take", "/edgegossip/give"  # of boards
RUN_TAKE_PATH, RUN_GIVE_PATH = "/edgegossip/run/take", "/edgegossip/run/give"  # of the coordinator
HOLD_HEADER = "x-edgegossip-hold"  # for how many seconds an answer may be waited for
MAX_HOLD_S = 10.0
MAX_PARTS = 100_000

_LENGTH = struct.Struct("<I")


def pack(head: bytes, objects: Mapping[str, bytes]) -> bytes:
    """`head` is one of Flower's protobuf messages, `objects` are by id."""
    parts = [head]
    for object_id, content in objects.items():
        parts += [object_id.encode(), content]
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def unpack(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """What `pack` was given. Raises ValueError."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        if at + _LENGTH.size > len(body) or len(parts) >= MAX_PARTS:
            raise ValueError("a malformed bundle")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise ValueError("a bundle that was cut off")
        parts.append(body[at : at + length])
        at += length
    if len(parts) % 2 == 0:
        raise ValueError("a malformed bundle")
    return parts[0], {parts[k].decode("ascii"): parts[k + 1] for k in range(1, len(parts), 2)}
