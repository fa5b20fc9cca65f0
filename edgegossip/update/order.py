"""What a board runs from now on, signed by an operator of its fleet and for that board only:
`edgegossip fleet set` reaches boards that check in, without a new kit. Pure."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from edgegossip.types import DecodeError, NodeId, PeerError

DOMAIN = b"edgegossip order 1\0"
MAX_ARGUMENTS, MAX_LENGTH = 256, 4096


class Signer(Protocol):
    """An operator's identity."""

    def sign(self, data: bytes) -> bytes: ...


class Board(Protocol):
    """A board's identity."""

    @property
    def name(self) -> NodeId: ...

    def verify(self, who: str, data: bytes, signature: bytes) -> NodeId: ...


@dataclass(frozen=True, slots=True)
class Order:
    """The command line of `edgegossip node`, but for name and identity. A higher number is
    newer."""

    name: NodeId
    number: int
    arguments: tuple[str, ...]

    def signed(self, operator: Signer) -> dict[str, str]:
        """As it travels."""
        body = json.dumps(asdict(self), sort_keys=True)
        return {"body": body, "signature": b64encode(operator.sign(_digest(body))).decode()}

    @classmethod
    def read(cls, found: Mapping[str, Any], board: Board) -> Order:
        """Raises PeerError when no operator signed it or it is for another board, DecodeError when
        it makes no sense."""
        try:
            body, signature = str(found["body"]), b64decode(str(found["signature"]), validate=True)
            board.verify("operator", _digest(body), signature)
            document = json.loads(body)
            order = cls(str(document["name"]), int(document["number"]), tuple(map(str, document["arguments"])))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DecodeError(f"an order that makes no sense: {error}") from None
        if order.name != board.name:
            raise PeerError(f"an order for {order.name}; this is {board.name}")
        lines = order.arguments
        if not 0 < len(lines) <= MAX_ARGUMENTS or any(
            not line.isprintable() or not 0 < len(line) <= MAX_LENGTH or line.startswith("#") for line in lines
        ):
            raise DecodeError("an order that is no command line")
        return order


def _digest(body: str) -> bytes:
    return DOMAIN + hashlib.sha256(body.encode()).digest()
