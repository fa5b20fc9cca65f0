"""What `bench codecs` measures: codecs with parameters, grouped so that the coders of one quantiser
are measured in turn."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from typing import Any

from edgegossip import codecs
from edgegossip.codecs import Codec
from edgegossip.layout import MAX_VALUES
from edgegossip.types import ConfigError

_CODERS = ("raw", "huffman", "auto")
_MORE_CODERS: Mapping[str, tuple[str, ...]] = {
    "qsgd": ("elias", "zstd"),
    "elastiquant": ("elias", "zstd"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Names a codec with its parameters and the coders to measure; coders empty: it has none."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    coders: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the codec as --codec takes it, without its entropy coder."""
        given = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name}:{given}" if given else self.name

    def build(self, coder: str | None) -> Codec[Any]:
        """Return the codec with this entropy coder."""
        return codecs.get(self.name, **self.params, **({"stage": coder} if coder else {}))


def default_cases() -> tuple[Case, ...]:
    """Return every codec of the package but the wrappers, which need another codec, and auto, which
    is another codec."""
    return tuple(parse_case(name) for name in codecs.names() if name != "auto" and not _is_wrapper(name))


def _is_wrapper(name: str) -> bool:
    return any(getattr(p, "codec", False) for p in codecs.REGISTRY.families[name].params)


def parse_cases(texts: Sequence[str], coders: Sequence[str] = ()) -> tuple[Case, ...]:
    """Return the cases of --codec options (default: all), with those of the --stage options that a
    codec can have; one that has coders and none of these is left out. Raises ConfigError for a
    coder that no case has."""
    cases = tuple(parse_case(text) for text in texts) or default_cases()
    if not coders:
        return cases
    for coder in coders if any(case.coders for case in cases) else ():
        if not any(_can_have(case, coder) for case in cases):
            raise ConfigError(f"--stage {coder}: none of these codecs has it")
    narrowed = (Case(c.name, c.params, tuple(s for s in coders if _can_have(c, s))) for c in cases)
    return tuple(new for new, old in zip(narrowed, cases, strict=True) if new.coders or not old.coders)


def _can_have(case: Case, coder: str) -> bool:
    if not case.coders:
        return False
    try:
        case.build(coder)
    except ConfigError:
        return False
    return True


def parse_case(text: str) -> Case:
    """NAME or NAME:key=value,key=value. Without a coder, those that are worth measuring. Raises
    ConfigError."""
    name, _, rest = text.partition(":")
    params = _params(text, rest)
    coder = params.pop("stage", None)
    codecs.get(name, **params, **({} if coder is None else {"stage": coder}))
    return Case(name, params, (coder,) if coder is not None else _coders(name))


def _params(case: str, text: str) -> dict[str, Any]:
    """The parameters behind the colon of a --codec option; none without one. Raises ConfigError."""
    params: dict[str, Any] = {}
    for part in _parts(text) if text else ():
        key, value = _setting(case, part)
        if key in params:
            raise ConfigError(f"--codec {case}: {key} is given twice")
        params[key] = value
    return params


def _parts(text: str) -> Iterable[str]:
    """Divided at commas outside of brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _setting(case: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--codec {case}: write it as NAME:key=value,key=value, such as qsgd:bits=8,bucket=1024")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _coders(name: str) -> tuple[str, ...]:
    """A preset's own coder; all that are worth measuring of a quantised codec; none of others."""
    family = codecs.REGISTRY.families[name]
    coder = next((p for p in family.params if p.name == "stage"), None)
    if coder is None:
        return ()
    if family.wire_id is None:
        return (str(coder.default),)
    return tuple(s for s in coder.choices if s in _CODERS or s in _MORE_CODERS.get(name, ()))


def description(codec: Codec[Any]) -> tuple[str, dict[str, Any]]:
    """Return the family and parameters of a built codec, presets and defaults resolved. Of error
    feedback: those of the codec inside, and `feedback`, the share of the error that is kept."""
    params: dict[str, Any] = {f.name: getattr(codec, f.name) for f in fields(codec)} if is_dataclass(codec) else {}
    if "codec" not in params or "decay" not in params:
        return codec.name, params
    name, inside = description(params["codec"])
    return name, {**inside, "feedback": params["decay"]}


def parse_codec(text: str) -> tuple[str, dict[str, Any]]:
    """NAME or NAME:key=value,key=value as a recipe's [codec] has it: name and parameters. Raises
    ConfigError."""
    name, _, rest = text.partition(":")
    params = _params(text, rest)
    codecs.get(name, **params)
    return name, params


# Sizes as users write them. Pure.

_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|M|G|Ki|Mi|Gi)?(B)?")


def parse_size(text: str) -> int:
    """Return the number of values: "250000", "2M" (values), "8MB", "4MiB" (bytes of float32).
    Raises ConfigError, also for what is no whole number of values."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"--size {text}: write a number of values (250000, 2M) or of bytes of float32 (8MB, 100MB, 4MiB)"
        )
    number, factor, is_bytes = found.groups()
    # Decimal: 4.35k is 4350, and not the 4349.999... of float64.
    values = Decimal(number) * _FACTORS[factor or ""] / (4 if is_bytes else 1)
    if not 1 <= values <= MAX_VALUES:
        raise ConfigError(f"--size {text}: a vector has 1 to {MAX_VALUES} values")
    if values != int(values):
        unit = "float32, 4 bytes each" if is_bytes else "values"
        raise ConfigError(f"--size {text} is no whole number of {unit}")
    return int(values)
