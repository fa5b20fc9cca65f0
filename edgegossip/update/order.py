"""An order: the operator's word to one board, signed: what it runs, which release it has, and how
long that word counts.

The machine with which boards check in only hands orders on (edgegossip.fleet.checkins). Whoever
breaks into it can keep newer ones back, and no more: it has no operator's key, an older order is
refused by its number, another board's by its name, another release by its hash, and a board whose
order has ended says so. What The Update Framework and Uptane call roll-back, mix-and-match, freeze
and so on is told row by row in docs/updates.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgegossip.security.identity import Identity
from edgegossip.types import DecodeError, NodeId, PeerError

_DOMAIN = b"edgegossip order 2\0"
_MAX_ARGUMENTS, _MAX_ARGUMENT_LENGTH = 256, 4096
_YEAR_10000_S = 253_402_300_800
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Order:
    """Says what a board runs and which release it has. Times are Unix seconds."""

    name: NodeId
    number: int  # a higher one is newer
    signed_s: int
    until_s: int  # by then the operator is heard of again, or somebody keeps its word back
    revocations: int  # number of the fleet's revocation list when this was signed
    arguments: tuple[str, ...] = ()  # of `edgegossip node`, but for name and identity; none: whatever it runs
    release: int = 0  # number of the release that it has; 0: whichever it has
    manifest: str = ""  # SHA-256 of that release's manifest as it lies in the bundle, in hexadecimal

    def signed(self, operator: Identity) -> dict[str, str]:
        """Return the order as it travels, signed."""
        body = json.dumps(asdict(self), sort_keys=True)
        return {"body": body, "signature": b64encode(operator.sign(_digest(body))).decode()}

    @classmethod
    def read(cls, found: Mapping[str, Any], reader: Identity, name: NodeId) -> Order:
        """Verify and read an order for the board `name`. Raises PeerError when no operator signed
        it or it is for another board, DecodeError when it makes no sense."""
        try:
            body, signature = str(found["body"]), b64decode(str(found["signature"]), validate=True)
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(f"an order that makes no sense: {error}") from None
        reader.verify("operator", _digest(body), signature)
        order = cls.parse(body)
        if order.name != name:
            raise PeerError(f"an order for {order.name}; this is {name}")
        return order

    @classmethod
    def parse(cls, body: str) -> Order:
        """Read what is signed, whoever signed it. Raises DecodeError when it makes no sense."""
        try:
            document = json.loads(body)
            texts = {key: str(document[key]) for key in ("name", "manifest")}
            numbers = {key: int(document[key]) for key in ("number", "signed_s", "until_s", "revocations", "release")}
            order = cls(arguments=tuple(map(str, document["arguments"])), **texts, **numbers)  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise DecodeError(f"an order that makes no sense: {error}") from None
        if len(order.arguments) > _MAX_ARGUMENTS or any(
            not line.isprintable() or not 0 < len(line) <= _MAX_ARGUMENT_LENGTH or line.startswith("#")
            for line in order.arguments
        ):
            raise DecodeError("an order that is no command line")
        if order.release and not _HASH.fullmatch(order.manifest):
            raise DecodeError(f"an order for release {order.release} that does not say which that is")
        if not 0 <= order.signed_s <= order.until_s < _YEAR_10000_S:
            raise DecodeError(f"an order from {order.signed_s} s until {order.until_s} s")
        return order


def _digest(body: str) -> bytes:
    return _DOMAIN + hashlib.sha256(body.encode()).digest()
