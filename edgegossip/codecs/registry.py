"""Codecs by name (recipes, command line) and by wire id (frames).

A family is one named codec with its parameters. A file of codecs ends in a tuple `FAMILIES`, whose
names `codecs/__init__.py` lists, so that a file is imported when one of its codecs is asked for.
Names and wire ids are separate on purpose: a preset or a wrapper whose bodies another codec can
decode has a name and no id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

from edgegossip import plugins
from edgegossip.choices import did_you_mean
from edgegossip.codecs.base import MAX_PARAMS_BYTES, Codec
from edgegossip.types import ConfigError, DecodeError

FromWire: TypeAlias = Callable[[int, bytes], Codec[Any]]  # (codec id, parameters) of a frame


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a family: a bool, int, float, str or tuple of floats with a default, a range
    (inclusive, of each number) or the only valid words. `codec`: another codec, given as its name,
    as a table {name = ..., parameters} or as an object."""

    name: str
    default: bool | int | float | str | tuple[float, ...]
    help: str
    low: float | None = None
    high: float | None = None  # only together with low
    choices: tuple[str, ...] = ()
    codec: bool = False

    def check(self, codec: str, value: object) -> Any:
        """Return the value in the default's type; numpy's numbers are numbers. Raises ConfigError
        that names key, value and what is allowed."""
        wanted = type(self.default)
        if wanted is tuple:
            return self._check_list(codec, value)
        if wanted is float or wanted is int:
            return self._check_number(codec, value, wanted)
        if type(value) is not wanted:
            raise self._refused(codec, value, f"is not {_ARTICLES[wanted]}")
        if self.choices and value not in self.choices:
            nearest = did_you_mean(value, self.choices)
            raise self._refused(codec, value, f"is not one of {', '.join(self.choices)}{nearest}")
        return value

    def _check_number(self, codec: str, value: object, wanted: type) -> int | float:
        """The range first: a whole number of it can be beyond what a float holds."""
        if not _is_number(value, Integral if wanted is int else Real):
            raise self._refused(codec, value, f"is not {_ARTICLES[wanted]}")
        number = int(value) if isinstance(value, Integral) else float(value)
        self._check_range(codec, number)
        try:
            return number if wanted is int else float(number)
        except OverflowError:
            raise self._refused(codec, value, f"is not {_ARTICLES[wanted]} that a float64 holds") from None

    def _check_list(self, codec: str, value: object) -> tuple[float, ...]:
        if not isinstance(value, (list, tuple)) or not all(_is_number(v, Real) for v in value):
            raise self._refused(codec, value, f"is not {_ARTICLES[tuple]}")
        return tuple(self._check_number(codec, v, float) for v in value)

    def _check_range(self, codec: str, value: float) -> None:
        # Not "value < low": NaN, for which every comparison is false, must be refused too.
        if self.low is not None and self.high is not None and not self.low <= value <= self.high:
            raise self._refused(codec, value, f"is outside {self.low} to {self.high}")
        if self.low is not None and not value >= self.low:
            raise self._refused(codec, value, f"is below {self.low}")

    def _refused(self, codec: str, value: object, why: str) -> ConfigError:
        return ConfigError(f"codec {codec}: {self.name} = {_shown(value)} {why}")


def check_fields(codec: object, name: str, params: Iterable[Param]) -> None:
    """Check what `__post_init__` of a codec's dataclass demands of the fields that these parameters
    fill, so that one made directly is as sound as one of `get`. Each becomes what `Param.check`
    makes of it. Raises ConfigError."""
    for param in params:
        object.__setattr__(codec, param.name, param.check(name, getattr(codec, param.name)))


def _is_number(value: object, kind: type) -> TypeGuard[Real]:
    """Whether it is one of this kind: Python's, numpy's, or another's; true and false are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """As it is written in Python; in short, where that is longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:40]}... ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Family:
    """One codec name. `make` takes the parameters as keywords, all of them, checked one by one; it
    raises ConfigError when they do not go together. A receiver rebuilds one with a `wire_id` from
    the frame's parameters: by `from_params` (DecodeError on bad bytes), by `from_params_around`,
    which also gets what rebuilds those inside, or, where there are none, by `make` alone."""

    name: str
    make: Callable[..., Codec[Any]]
    help: str
    params: tuple[Param, ...] = ()
    wire_id: int | None = None
    from_params: Callable[[bytes], Codec[Any]] | None = None
    from_params_around: Callable[[bytes, FromWire], Codec[Any]] | None = None


K = TypeVar("K", str, int)


class _Listed(Mapping[K, Family]):
    """Families by name or wire id, which `load` finds by name."""

    def __init__(self, names: Mapping[K, str], load: Callable[[str], Family]) -> None:
        self._names: Mapping[K, str] = names
        self._load = load

    def __getitem__(self, key: K) -> Family:
        return self._load(self._names[key])

    def __iter__(self) -> Iterator[K]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Registry:
    """Families by name and by wire id. Built once."""

    families: Mapping[str, Family]
    by_wire_id: Mapping[int, Family]

    @classmethod
    def from_files(cls, package: str, files: Mapping[str, Mapping[str, int | None]]) -> Registry:
        """Return a registry of the families that are in the modules `files` of this package, with
        their wire ids; each is imported when it is first asked for."""
        file_of = {name: file for file, names in files.items() for name in names}

        def load(name: str) -> Family:
            families: Iterable[Family] = import_module(f"{package}.{file_of[name]}").FAMILIES
            return next(family for family in families if family.name == name)

        by_wire_id = {number: name for names in files.values() for name, number in names.items() if number}
        return cls(_Listed({name: name for name in file_of}, load), _Listed(by_wire_id, load))

    def names(self) -> tuple[str, ...]:
        """Return the names that `get` knows, those of other packages last."""
        return (*self.families, *plugins.names("codecs"))

    def family(self, name: str) -> Family | None:
        """Return the family of this name, built in or of another package; None where there is
        none. Raises ConfigError for one that cannot be used."""
        if name in self.families:
            return self.families[name]
        found = plugins.find("codecs", name)
        if found is None:
            return None
        family = found.what
        if not isinstance(family, Family) or family.name != name:
            raise ConfigError(f"{found.origin} adds a codec {name!r} that is no codecs.Family of this name")
        if family.wire_id is not None and family.wire_id < 0x8000:
            raise ConfigError(
                f"{found.origin}: the wire id of codec {name} is {family.wire_id}; make it with plugins.wire_id({name!r})"
            )
        return family

    def get(self, name: str, params: Mapping[str, Any]) -> Codec[Any]:
        """Build a codec. Raises ConfigError on an unknown name or parameter, or a value out of
        range."""
        family = self.family(name)
        if family is None:
            valid = self.names()
            raise ConfigError(f"there is no codec {name!r}{did_you_mean(name, valid)}; valid: {', '.join(valid)}")
        known = {p.name: p for p in family.params}
        for key in params:
            if key not in known:
                allowed = f"valid: {', '.join(known)}" if known else "it has none"
                raise ConfigError(f"codec {name} has no parameter {key!r}{did_you_mean(key, known)}; {allowed}")
        given = {key: params.get(key, param.default) for key, param in known.items()}
        for key, value in given.items():
            given[key] = self._codec(name, key, value) if known[key].codec else known[key].check(name, value)
        return family.make(**given)

    def _codec(self, outer: str, key: str, value: object) -> Codec[Any]:
        """The codec inside another one."""
        if isinstance(value, str):
            return self.get(value, {})
        if isinstance(value, Mapping):
            rest = dict(value)
            if not isinstance(name := rest.pop("name", None), str):
                raise ConfigError(f'codec {outer}: {key} needs the name of a codec, such as {key}.name = "topk"')
            return self.get(name, rest)
        if callable(getattr(value, "encode", None)) and callable(getattr(value, "decode", None)):
            return cast("Codec[Any]", value)
        raise ConfigError(f"codec {outer}: {key} = {value!r} is not a codec's name or table")

    def from_wire(self, codec_id: int, params: bytes) -> Codec[Any]:
        """Return the codec that decodes a frame's body. Raises DecodeError on an unknown id or
        ill-formed parameters."""
        family = self.by_wire_id.get(codec_id) or self._foreign(codec_id)
        if family is None:
            known = ", ".join(f"{i} ({f.name})" for i, f in sorted(self.by_wire_id.items())) or "none"
            raise DecodeError(f"unknown codec id {codec_id}; this build knows {known}")
        if len(params) > MAX_PARAMS_BYTES:
            raise DecodeError(f"{len(params)} bytes of codec parameters exceed the limit of {MAX_PARAMS_BYTES}")
        if family.from_params_around is not None:
            return family.from_params_around(bytes(params), self.from_wire)
        if family.from_params is not None:
            return family.from_params(bytes(params))
        if params:
            raise DecodeError(f"{family.name} has no wire parameters, the frame carries {len(params)} bytes of them")
        return family.make()

    def _foreign(self, codec_id: int) -> Family | None:
        """The family of another package whose bodies go by this number."""
        for name in plugins.names("codecs"):
            with suppress(ConfigError):  # one that cannot be used decodes nothing
                if (family := self.family(name)) is not None and family.wire_id == codec_id:
                    return family
        return None


def from_packed(name: str, packed: struct.Struct, make: Callable[..., Codec[Any]]) -> Callable[[bytes], Codec[Any]]:
    """Return a `from_params` for parameters that travel packed so, of which `make` makes a codec;
    what it refuses is refused."""

    def from_params(params: bytes) -> Codec[Any]:
        if len(params) != packed.size:
            size = f"{packed.size} byte{'s' * (packed.size != 1)}"
            raise DecodeError(f"{name} has {size} of wire parameters, the frame carries {len(params)}")
        try:
            return make(*packed.unpack(params))
        except ConfigError as error:
            raise DecodeError(str(error)) from None

    return from_params


def preset(name: str, family: Family, help: str, **defaults: Any) -> Family:
    """Return another name for a family with other defaults. It has no wire id of its own: the
    family decodes its bodies."""
    unknown = set(defaults) - {p.name for p in family.params}
    if unknown:
        raise ValueError(f"preset {name}: {family.name} has no parameters {sorted(unknown)}")
    params = tuple(replace(p, default=defaults.get(p.name, p.default)) for p in family.params)
    return Family(name, family.make, help, params)


_ARTICLES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    tuple: "a list of numbers",
}
