"""A run as a typed, validated document: TOML in, resolved TOML out.

`recipe_sections.py` has the keys with their defaults, ranges and help. The checks, the error
messages and `edgegossip recipe keys` all come from there. The package's recipes lie in
`recipes/*.toml`.
"""

from __future__ import annotations

import copy
import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from edgegossip.choices import did_you_mean
from edgegossip.recipe_sections import (
    CheckpointSection,
    CodecSection,
    DataSection,
    EvaluationSection,
    GossipSection,
    ModelSection,
    NetworkSection,
    Recipe,
    RunSection,
    ServerSection,
    TrainingSection,
)
from edgegossip.types import ConfigError

__all__ = [
    "CheckpointSection",
    "CodecSection",
    "DataSection",
    "EvaluationSection",
    "GossipSection",
    "ModelSection",
    "NetworkSection",
    "Recipe",
    "RunSection",
    "ServerSection",
    "TrainingSection",
    "describe_keys",
    "essence",
    "evaluation_rounds",
    "from_dict",
    "is_script",
    "load",
    "names",
    "parse_value",
    "passed_on",
    "run_id",
    "to_toml",
    "told",
    "with_settings",
]


def evaluation_rounds(recipe: Recipe) -> frozenset[int]:
    """Rounds after which every board evaluates; the last round is always one of them."""
    every = recipe.evaluation.every or max(1, recipe.run.rounds // 10)
    return frozenset(range(every - 1, recipe.run.rounds, every)) | {recipe.run.rounds - 1}


def names() -> list[str]:
    """Recipes that the package carries."""
    return sorted(f.name.removesuffix(".toml") for f in _package().iterdir() if f.name.endswith(".toml"))


def load(source: str, sets: Iterable[str] = ()) -> Recipe:
    """A packaged recipe's name, a TOML file's path or a training script's, with `section.key=value`
    settings on top. Raises ConfigError."""
    document = _of_script(source) if is_script(source) else _parse(_read(source), source)
    for setting in sets:
        _apply(document, setting)
    return from_dict(document)


def is_script(source: str) -> bool:
    """Whether this names a training script in place of a recipe."""
    return source.endswith(".py")


def _of_script(source: str) -> dict[str, Any]:
    """The recipe of a training script: the defaults."""
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"no training script {source}")
    return {"run": {"name": path.stem, "script": str(path.resolve())}}


def from_dict(document: Mapping[str, Any]) -> Recipe:
    """Check a parsed TOML document and fill in the defaults. Raises ConfigError."""
    sections: dict[str, Any] = get_type_hints(Recipe)
    values = {}
    for name, content in document.items():
        if name not in sections:
            raise ConfigError(f"unknown section [{name}] in the recipe{_nearest(name, list(sections))}")
        if not isinstance(content, Mapping):
            raise ConfigError(f"{name} = {content!r}: [{name}] is a section; write {name}.<key> = value")
        values[name] = _section(name, sections[name], content)
    return Recipe(**values)


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with `section.key` (or `section.table.key`) set to these values. Raises
    ConfigError."""
    document = asdict(recipe)
    for key, value in settings.items():
        _put(document, key, copy.deepcopy(value), f"{key} = {_show(value)}")  # a later key may go into a table
    return from_dict(document)


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe; `from_dict(tomllib.loads(to_toml(r))) == r`."""
    return tomli_w.dumps(asdict(recipe))


def run_id(recipe: Recipe) -> bytes:
    """16 bytes that boards started separately from the same recipe agree on. What is each board's
    own matter (its data folder, script, threads, device, addresses, evaluations, checkpoints) does
    not count."""
    shared = passed_on(recipe)
    shared = replace(
        shared,
        run=replace(shared.run, threads=1),
        training=replace(shared.training, device="auto", deterministic=False),
        evaluation=EvaluationSection(),
        network=NetworkSection(),
    )
    return hashlib.sha256(essence(shared).encode()).digest()[:16]


def passed_on(recipe: Recipe) -> Recipe:
    """The recipe as other boards are told it: without what names files of this machine."""
    run = replace(recipe.run, script=Path(recipe.run.script).name, script_args=[])
    return replace(recipe, run=run, data=replace(recipe.data, dir=""))


def told(recipe: Recipe) -> str:
    """The recipe as other boards are told it, in TOML. Boards of an earlier version know no later
    keys."""
    return tomli_w.dumps(_without_later_keys(passed_on(recipe)))


def essence(recipe: Recipe) -> str:
    """The resolved recipe without what changes no result and was not always there, so that
    identities made of it last."""
    document = _without_later_keys(recipe)
    del document["checkpoint"]
    return tomli_w.dumps(document)


def _without_later_keys(recipe: Recipe) -> dict[str, Any]:
    """Its tables, without keys that came after the first version and have their defaults."""
    document = asdict(recipe)
    for name, kind in get_type_hints(Recipe).items():
        defaults = asdict(kind())
        for f in fields(kind):
            if f.metadata.get("later") and document[name][f.name] == defaults[f.name]:
                del document[name][f.name]
    return document


def describe_keys() -> list[tuple[str, str, str]]:
    """(key, default, help with the allowed range) of every recipe key."""
    rows = []
    for section, kind in get_type_hints(Recipe).items():
        for f, default in zip(fields(kind), asdict(kind()).values(), strict=True):
            rows.append((f"{section}.{f.name}", _show(default), f.metadata["help"] + _limits(f.metadata)))
    return rows


def _package() -> Path:
    return Path(__file__).parent / "recipes"  # importlib.resources is 0.7 MiB that a board would keep


def _read(source: str) -> str:
    path = Path(source)
    if source in names():
        return (_package() / f"{source}.toml").read_text(encoding="utf-8")
    if path.suffix != ".toml" and not path.exists():
        known = ", ".join(names())
        raise ConfigError(
            f"no recipe named {source}{_nearest(source, names())} (recipes: {known}; or a path to a .toml file)"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read recipe {path}: {reason}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def _apply(document: dict[str, Any], setting: str) -> None:
    """Put one `a.b=value` (or `a.b.c=value` inside a table of parameters) into the document."""
    key, equals, text = setting.partition("=")
    if not equals:
        raise ConfigError(f"--set {setting}: write it as section.key=value, such as --set training.lr=0.05")
    _put(document, key.strip(), parse_value(text.strip()), f"--set {setting}")


def _put(document: dict[str, Any], key: str, value: Any, what: str) -> None:
    """document[a][b] = value for the key a.b; `what` names the setting in errors."""
    path = key.split(".")
    if len(path) < 2 or not all(path):
        raise ConfigError(f"{what}: write it as section.key=value, such as --set training.lr=0.05")
    table = document
    for depth, part in enumerate(path[:-1], 1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{what}: {'.'.join(path[:depth])} is a value, not a section")
    table[path[-1]] = value


def parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string, so that --set model.name=cnn needs no quotes."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _section(name: str, kind: Any, content: Mapping[str, Any]) -> Any:
    known = {f.name: f for f in fields(kind)}
    hints = get_type_hints(kind)
    for key in content:
        if key not in known:
            helps = {k: f.metadata["help"] for k, f in known.items()}
            raise ConfigError(f"unknown recipe key {name}.{key}{_nearest(key, helps, f'{name}.')}")
    checked = {key: _checked(f"{name}.{key}", value, hints[key], known[key].metadata) for key, value in content.items()}
    return kind(**checked)


_LISTS = {
    list[float]: (float, "numbers"),
    list[int]: (int, "whole numbers"),
    list[str]: (str, "texts"),
}


def _checked(key: str, value: Any, hint: Any, allowed: Mapping[str, Any]) -> Any:
    """The value in the field's type, or ConfigError with what is allowed."""
    if hint in _LISTS:
        kind, word = _LISTS[hint]
        if not isinstance(value, list):
            raise ConfigError(f"{key} = {_show(value)}: must be a list of {word}")
        return [_checked(f"{key}[{k}]", v, kind, allowed) for k, v in enumerate(value)]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    wanted, word = {
        bool: (bool, "true or false"),
        int: (int, "a whole number"),
        float: (float, "a number"),
        str: (str, "text"),
    }.get(hint, (dict, "a table"))
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ConfigError(f"{key} = {_show(value)}: must be {word}{_limits(allowed)}")
    if "choices" in allowed and value not in allowed["choices"]:
        choices = [str(choice) for choice in allowed["choices"]]
        raise ConfigError(f"{key} = {_show(value)}: not one of {', '.join(choices)}{_nearest(str(value), choices)}")
    if isinstance(value, (int, float)):
        low, high = allowed.get("low", -math.inf), allowed.get("high", math.inf)
        if not low <= value <= high:  # so that nan is refused too
            bound = high if value > high else low
            raise ConfigError(f"{key} = {_show(value)}: out of range{_limits(allowed)}; the nearest is {bound}")
    return value


def _limits(allowed: Mapping[str, Any]) -> str:
    low, high = allowed.get("low"), allowed.get("high")
    if "choices" in allowed:
        return f" ({', '.join(map(str, allowed['choices']))})"
    if low is not None and high is not None:
        return f" (from {low} to {high})"
    return f" (at least {low})" if low is not None else ""


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean x?" for the known word nearest in spelling, or the one whose help says it in
    words."""
    if isinstance(known, Mapping):
        plain = str(word).replace("_", " ").replace("-", " ").lower()
        for name, text in known.items():
            if len(plain) > 3 and plain in text.lower():
                return f"; did you mean {prefix}{name}?"
    return did_you_mean(word, known, prefix)


def _show(value: Any) -> str:
    """A value as TOML would write it."""
    try:
        text = tomli_w.dumps({"v": value}).strip().removeprefix("v = ").removeprefix("[v]").strip()
        return " ".join(text.split()).replace("[ ", "[").replace(", ]", "]") or "{}"
    except TypeError:
        return repr(value)
