"""What an operator's machine tells a board to run. It may be anybody's where the board goes without
TLS: nothing in it is believed before it was looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgegossip.mesh import address as addresses
from edgegossip.node.spec import check_names
from edgegossip.types import ConfigError, NodeId

_KEY = re.compile(r"[0-9a-f]{16}")  # of scale.cells.Cell; it becomes a folder's name


@dataclass(frozen=True, slots=True)
class Job:
    """A cell, and where its other boards listen (host:port, numeric)."""

    cell: str
    recipe_toml: str
    peers: Mapping[NodeId, str]


def parse_job(document: Mapping[str, Any]) -> Job:
    """Raises ValueError, with a clause, for one that a board does not run."""
    cell, recipe, peers = (document.get(key) for key in ("cell", "recipe", "peers"))
    if not (isinstance(cell, str) and _KEY.fullmatch(cell)):
        raise ValueError("its key is not 16 hexadecimal digits")
    if not (isinstance(recipe, str) and _encodes(recipe)):
        raise ValueError("its recipe is no text")
    if not (isinstance(peers, dict) and all(_is_peer(name, where) for name, where in peers.items())):
        raise ValueError("its peers are not names with their addresses")
    return Job(cell, recipe, peers)


def _encodes(text: str) -> bool:
    """JSON can say half a character, which no file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_peer(name: str, where: Any) -> bool:
    try:
        check_names("peers", (name,))
        return isinstance(where, str) and where.isprintable() and addresses.parse(where, "peers").is_numeric
    except ConfigError:
        return False
