"""What `bench codecs` measures: codecs with parameters, grouped so that the stages of one quantiser
are measured in turn."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from edgegossip import codecs
from edgegossip.codecs import Codec
from edgegossip.codecs.quantised import stage_error
from edgegossip.types import ConfigError

_STAGES = ("raw", "huffman", "auto")
_MORE_STAGES: Mapping[str, tuple[str, ...]] = {
    "qsgd": ("elias", "zstd", "ans"),
    "qsgd-inf": ("ans",),
    "elastiquant": ("elias", "zstd", "ans"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A codec with its parameters and the stages to measure; stages empty: it has none."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The codec as --codec takes it, without its stage."""
        given = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name}:{given}" if given else self.name

    def build(self, stage: str | None) -> Codec[Any]:
        """The codec in this stage."""
        return codecs.get(self.name, **self.params, **({"stage": stage} if stage else {}))


def default_cases() -> tuple[Case, ...]:
    """Every codec of the package but the wrappers, which need another codec."""
    return tuple(parse_case(name) for name in codecs.names() if not _is_wrapper(name))


def _is_wrapper(name: str) -> bool:
    return any(getattr(p, "codec", False) for p in codecs.REGISTRY.families[name].params)


def parse_cases(texts: Sequence[str], stages: Sequence[str] = ()) -> tuple[Case, ...]:
    """The cases of --codec options (default: all), with those of the --stage options that a codec
    can have; one that has stages and none of these is left out. Raises ConfigError for a stage that
    no case has."""
    cases = tuple(parse_case(text) for text in texts) or default_cases()
    if not stages:
        return cases
    for stage in stages if any(case.stages for case in cases) else ():
        if not any(_can_have(case, stage) for case in cases):
            raise ConfigError(f"--stage {stage}: none of these codecs has it")
    narrowed = (Case(c.name, c.params, tuple(s for s in stages if _can_have(c, s))) for c in cases)
    return tuple(new for new, old in zip(narrowed, cases, strict=True) if new.stages or not old.stages)


def _can_have(case: Case, stage: str) -> bool:
    if not case.stages:
        return False
    try:
        case.build(stage)
    except ConfigError:
        return False
    return True


def parse_case(text: str) -> Case:
    """NAME or NAME:key=value,key=value. Without a stage, those that are worth measuring. Raises
    ConfigError."""
    name, _, rest = text.partition(":")
    params = _params(text, rest)
    stage = params.pop("stage", None)
    codecs.get(name, **params, **({} if stage is None else {"stage": stage}))
    return Case(name, params, (stage,) if stage is not None else _stages(name, params))


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


def _stages(name: str, params: dict[str, Any]) -> tuple[str, ...]:
    """A preset's own stage; all that make sense of a quantised codec with these parameters; none of
    others."""
    family = codecs.REGISTRY.families[name]
    stage = next((p for p in family.params if p.name == "stage"), None)
    if stage is None:
        return ()
    if family.wire_id is None:
        return (str(stage.default),)
    wanted = [s for s in stage.choices if s in _STAGES or s in _MORE_STAGES.get(name, ())]
    return tuple(s for s in wanted if not stage_error(s, params.get("bits", 4)))


def description(codec: Codec[Any]) -> tuple[str, dict[str, Any]]:
    """Family and parameters of a built codec, presets and defaults resolved. Of error feedback:
    those of the codec inside, and `feedback`, the share of the error that is kept."""
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
