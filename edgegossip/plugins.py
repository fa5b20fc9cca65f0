"""Finds what other packages add: codecs, gossip algorithms and topologies.

A package says so in its metadata, by entry points of the groups `edgegossip.codecs`,
`edgegossip.algorithms` and `edgegossip.topologies`. Packages are looked through when a name is
asked for that is not built in; what is built in goes first."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from edgegossip.types import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind: TypeAlias = Literal["codecs", "algorithms", "topologies"]

_FOREIGN = 0x8000  # wire ids from here on are of other packages' codecs


@dataclass(frozen=True, slots=True)
class Plugin:
    """Holds one thing of another package: a codec's `Family`, what makes an algorithm or its
    scheme, or what builds a topology."""

    name: str
    what: Any
    origin: str  # package and version, such as "log8 1.2": boards of a run have the same


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names that installed packages add."""
    return tuple(_installed(kind))


def find(kind: Kind, name: str) -> Plugin | None:
    """Return what is added under this name; None where nothing is. Raises ConfigError where two
    packages add it, and where it cannot be loaded."""
    found = _installed(kind).get(name, ())
    if len(found) > 1:
        both = " and ".join(sorted(_origin(one) for one in found))
        raise ConfigError(f"{both} both add {name!r} to {kind}: uninstall one of them")
    return _loaded(found[0]) if found else None


def wire_id(name: str, version: str = "1") -> int:
    """Return the number, 32768 to 65535, that frames of another package's codec carry: of its name
    and of the version of its bodies, so that boards with different ones refuse each other's.

    Example:
        >>> wire_id("log8")
        53524
    """
    return _FOREIGN | zlib.crc32(f"{name} {version}".encode()) & (_FOREIGN - 1)


def used(document: Any, built_in: Container[str]) -> dict[str, str]:
    """Return the plug-ins that a recipe's codec tables, algorithm and topology name, with their
    origins; `document` is a table, a list or a word of it."""
    found: dict[str, str] = {}
    if isinstance(document, Mapping):
        kinds: Mapping[str, Kind] = {"name": "codecs", "algorithm": "algorithms", "topology": "topologies"}
        for key, value in document.items():
            if key not in kinds or not isinstance(value, str):
                found |= used(value, built_in)
            elif value not in built_in and (plugin := find(kinds[key], value)):
                found[value] = plugin.origin
    elif isinstance(document, Sequence) and not isinstance(document, str):
        for item in document:
            found |= used(item, built_in)
    return found


def is_of_one(module: str) -> bool:
    """Return whether this module is of a package that adds something."""
    outermost = module.partition(".")[0]
    added = (one for kind in get_args(Kind) for found in _installed(kind).values() for one in found)
    return any(one.module.partition(".")[0] == outermost for one in added)


def _installed(kind: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    return _on(kind, tuple(sys.path))


@lru_cache(maxsize=8)
def _on(kind: str, path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return those of the packages on sys.path by name, not loaded yet; one may be found twice."""
    from importlib.metadata import entry_points  # here: 3 MB that a board has no other use for

    found: dict[str, dict[str, EntryPoint]] = {}
    for one in entry_points(group=f"edgegossip.{kind}"):
        found.setdefault(one.name, {}).setdefault(_origin(one), one)
    return {name: tuple(by_origin.values()) for name, by_origin in found.items()}


@lru_cache(maxsize=256)
def _loaded(one: EntryPoint) -> Plugin:
    try:
        return Plugin(one.name, one.load(), _origin(one))
    except Exception as error:  # whatever another package's code does
        raise ConfigError(f"{one.name} of {_origin(one)} cannot be loaded: {type(error).__name__}: {error}") from error


def _origin(one: EntryPoint) -> str:
    return f"{one.dist.name} {one.dist.version}" if one.dist else one.module
