"""Checks of what a parsed TOML document says: each takes the key's name, for the sentence, and the
value, and gives the value in the type that the dataclass has. Each raises ConfigError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError

Check = Callable[[str, Any], Any]


def checked(document: Mapping[str, Any], kind: Any, checks: Mapping[str, Check], what: str) -> dict[str, Any]:
    """The document's values in the types of the dataclass; every key is known, none that is needed
    is missing."""
    if not isinstance(document, Mapping):
        raise ConfigError(f"{what} is a table of keys and values, not {document!r}")
    for key in document:
        if key not in checks:
            raise ConfigError(f"{what}: unknown key {key}{did_you_mean(key, checks)}")
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING} & checks.keys()
    if missing := sorted(needed - document.keys()):
        raise ConfigError(f"{what} lacks {', '.join(missing)}")
    return {key: checks[key](f"{what}: {key}", value) for key, value in document.items()}


def text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} = {value!r}: must be text")
    return value


def flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} = {value!r}: must be true or false")
    return value


def positive(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e18:
        raise ConfigError(f"{key} = {value!r}: must be a number above 0")
    return float(value)


def seconds(key: str, value: Any) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else positive(key, value)


def share(key: str, value: Any) -> float:
    share = seconds(key, value)
    if share >= 1:
        raise ConfigError(f"{key} = {value!r}: must be below 1")
    return share


def count(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} = {value!r}: must be a whole number of at least 1")
    return value


def texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{key} = {value!r}: must be a list of words")
    return tuple(text(key, word) for word in value)


def table_of(check: Check) -> Check:
    def checked(key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} = {value!r}: must be a table")
        return {name: check(f"{key}.{name}", content) for name, content in value.items()}

    return checked


def whole(key: str, value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else table_of(text)(key, value)
