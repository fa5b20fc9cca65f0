"""A run as a typed, validated document: TOML in, resolved TOML out.

Each section is a frozen dataclass; each field carries its default, its allowed range or choices and one line of help. The
checks, the error messages and `edgegossip recipe keys` all come from there. The package's recipes live in `recipes/*.toml`.
"""

from __future__ import annotations

import copy
import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError

MODES = ("gossip", "server")


def _key(default: Any, help: str, **limits: Any) -> Any:
    """A recipe key: `low`/`high` bound numbers (inclusive), `choices` lists the only valid words."""
    metadata = {"help": help, **limits}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class RunSection:
    name: str = _key("run", "name of the run; part of the run folder's name")
    mode: str = _key("gossip", "peer to peer, or through a coordinator", choices=MODES)
    nodes: int = _key(4, "number of boards", low=2, high=64)
    rounds: int = _key(100, "rounds to train", low=1, high=10_000_000)
    seed: int = _key(1, "seed of everything random", low=0, high=2**63 - 1)
    threads: int = _key(1, "compute threads a board", low=1, high=256)


@dataclass(frozen=True, slots=True)
class DataSection:
    name: str = _key("digits", "digits, mnist, fashion-mnist, cifar10, or module:function")
    dir: str = _key("", "folder that holds the data set; empty: where `edgegossip data download` puts it")
    partition: str = _key("iid", "how examples are shared out", choices=("iid", "skew", "dirichlet", "sorted"))
    skew: float = _key(0.0, "degree of skew, for partition = skew", low=0.0, high=1.0)
    alpha: float = _key(0.5, "concentration, for partition = dirichlet", low=1e-3, high=1e6)
    augment: bool = _key(False, "random crop (4 pixels of padding) and horizontal flip")
    train_examples: int = _key(0, "use only the first so many training examples; 0: all", low=0)
    test_examples: int = _key(0, "use only the first so many test examples; 0: all", low=0)


@dataclass(frozen=True, slots=True)
class ModelSection:
    name: str = _key("mlp", "a model of the package, or module:function")
    norm: str = _key(
        "evonorm-s0", "normalisation layer", choices=("batchnorm", "groupnorm", "evonorm-s0", "range-evonorm")
    )
    params: Mapping[str, Any] = _key({}, "keyword arguments of the model, such as hidden = [128, 64]")


@dataclass(frozen=True, slots=True)
class TrainingSection:
    batch_size: int = _key(32, "examples a step and board", low=1, high=65_536)
    local_steps: int = _key(1, "optimiser steps between two exchanges (tau)", low=1, high=1_000_000)
    lr: float = _key(0.1, "learning rate", low=0.0, high=1000.0)
    momentum: float = _key(0.9, "momentum of the local optimiser", low=0.0, high=0.9999)
    nesterov: bool = _key(True, "Nesterov's form of momentum")
    weight_decay: float = _key(1e-4, "L2 penalty on trainable tensors", low=0.0, high=10.0)
    schedule: str = _key("constant", "learning-rate schedule", choices=("constant", "step", "cosine"))
    milestones: list[float] = _key(
        [0.5, 0.75], "schedule = step: shares of the run after which lr drops", low=0.0, high=1.0
    )
    step_factor: float = _key(0.1, "schedule = step: factor at each milestone", low=1e-6, high=1.0)
    precision: str = _key(
        "fp32", "arithmetic of training; int8: integers, forward and backward", choices=("fp32", "int8")
    )
    dw: int = _key(16, "precision = int8: bits of the gradients that weight gradients are made of", choices=(16, 8))


@dataclass(frozen=True, slots=True)
class CodecSection:
    name: str = _key("fp32", "compression of what travels")
    params: Mapping[str, Any] = _key({}, "parameters of the codec")


@dataclass(frozen=True, slots=True)
class GossipSection:
    algorithm: str = _key("dpsgd", "decentralised algorithm")
    topology: str = _key("ring", "who talks to whom")
    topology_file: str = _key("", "topology = file: a JSON or edge-list file")
    topology_params: Mapping[str, Any] = _key({}, "parameters of the topology, such as degree = 3")
    params: Mapping[str, Any] = _key({}, "parameters of the algorithm")
    momentum: str = _key(
        "none",
        "momentum around the algorithm, in place of training.momentum",
        choices=("none", "heavy-ball", "nesterov", "quasi-global", "quasi-global-nesterov"),
    )
    momentum_factor: float = _key(0.9, "its factor", low=0.0, high=0.9999)
    deadline_s: float = _key(
        60.0, "a round waits this long for a silent neighbour, then goes on without it", low=0.1, high=86_400.0
    )


@dataclass(frozen=True, slots=True)
class ServerSection:
    strategy: str = _key(
        "fedavg",
        "how the coordinator combines updates: Flower's strategy of this name",
        choices=(
            "fedavg",
            "fedavgm",
            "fedadagrad",
            "fedadam",
            "fedyogi",
            "fedmedian",
            "fedtrimmedavg",
            "krum",
            "multikrum",
            "bulyan",
        ),
    )
    strategy_params: Mapping[str, Any] = _key({}, "parameters of the strategy, such as eta = 0.01")
    weighting: str = _key(
        "examples",
        "what a board's update counts for: its examples, or the same for all",
        choices=("examples", "uniform"),
    )
    fraction: float = _key(
        1.0, "share of the boards that take part in a round, drawn anew each time", low=0.0, high=1.0
    )
    quorum: int = _key(
        0,
        "a round ends with so many answers and goes on without the slower boards; 0: all that were asked",
        low=0,
        high=64,
    )
    downlink: str = _key(
        "fp32", "codec of what goes down; other than fp32: encoded differences, the whole model only after a gap"
    )
    downlink_params: Mapping[str, Any] = _key({}, "parameters of that codec")
    min_nodes: int = _key(1, "go on while at least so many boards are up", low=1, high=64)
    join_s: float = _key(
        0.0,
        "start without the boards that have not joined after so long, they may come later; 0: `coordinator` waits for all, "
        "`run` 120 s",
        low=0.0,
        high=604_800.0,
    )
    deadline_s: float = _key(
        60.0, "a round waits this long for a silent board, then goes on without it", low=0.1, high=86_400.0
    )


@dataclass(frozen=True, slots=True)
class EvaluationSection:
    where: str = _key("boards", "server mode: who evaluates", choices=("boards", "coordinator"))
    every: int = _key(0, "evaluate every so many rounds; 0: about ten times a run", low=0)
    examples: int = _key(0, "test examples of an evaluation during the run; 0: all. The last one uses all", low=0)


@dataclass(frozen=True, slots=True)
class NetworkSection:
    host: str = _key("127.0.0.1", "address that `run`'s own boards listen on")
    port: int = _key(0, "first port of `run`'s own boards or of the coordinator; 0: any free one", low=0, high=65_535)
    tls: str = _key(
        "auto",
        "`run`, gossip: its own boards speak TLS; auto: where the package cryptography is there",
        choices=("auto", "on", "off"),
    )
    grace_s: float = _key(3.0, "a peer out of reach for this long counts as lost", low=0.1, high=3600.0)
    restarts: int = _key(
        0, "`run`, gossip: a board whose process dies is started again up to so many times", low=0, high=1000
    )


@dataclass(frozen=True, slots=True)
class CheckpointSection:
    every: int = _key(
        1, "keep each board's and the coordinator's state every so many rounds; 0: never", low=0, high=1_000_000
    )
    keep: int = _key(2, "how many of the newest checkpoints stay", low=1, high=100)
    slack_s: float = _key(
        1.0,
        "rounds wait for the disk when more than one, and more seconds than this, could be lost",
        low=0.0,
        high=3600.0,
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """One run, fully resolved."""

    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    codec: CodecSection = field(default_factory=CodecSection)
    gossip: GossipSection = field(default_factory=GossipSection)
    server: ServerSection = field(default_factory=ServerSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)


def evaluation_rounds(recipe: Recipe) -> frozenset[int]:
    """Rounds after which every board evaluates; the last round is always one of them."""
    every = recipe.evaluation.every or max(1, recipe.run.rounds // 10)
    return frozenset(range(every - 1, recipe.run.rounds, every)) | {recipe.run.rounds - 1}


def names() -> list[str]:
    """Recipes that the package carries."""
    return sorted(f.name.removesuffix(".toml") for f in _package().iterdir() if f.name.endswith(".toml"))


def load(source: str, sets: Iterable[str] = ()) -> Recipe:
    """A packaged recipe's name or a TOML file's path, with `section.key=value` settings on top. Raises ConfigError."""
    document = _parse(_read(source), source)
    for setting in sets:
        _apply(document, setting)
    return from_dict(document)


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
    """The recipe with `section.key` (or `section.table.key`) set to these values. Raises ConfigError."""
    document = asdict(recipe)
    for key, value in settings.items():
        _put(document, key, copy.deepcopy(value), f"{key} = {_show(value)}")  # a later key may go into a table
    return from_dict(document)


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe; `from_dict(tomllib.loads(to_toml(r))) == r`."""
    return tomli_w.dumps(asdict(recipe))


def run_id(recipe: Recipe) -> bytes:
    """16 bytes that boards started separately from the same recipe agree on. What is each board's own matter (its data
    folder, threads, addresses, evaluations, checkpoints) does not count."""
    shared = replace(
        recipe,
        run=replace(recipe.run, threads=1),
        data=replace(recipe.data, dir=""),
        evaluation=EvaluationSection(),
        network=NetworkSection(),
    )
    return hashlib.sha256(essence(shared).encode()).digest()[:16]


def essence(recipe: Recipe) -> str:
    """The resolved recipe without what changes no result and was not always there, so that identities made of it last."""
    document = asdict(recipe)
    del document["checkpoint"]
    return tomli_w.dumps(document)


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


def _checked(key: str, value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    """The value in the field's type, or ConfigError with what is allowed."""
    if hint == list[float]:
        if not isinstance(value, list):
            raise ConfigError(f"{key} = {_show(value)}: must be a list of numbers")
        return [_checked(f"{key}[{k}]", v, float, limits) for k, v in enumerate(value)]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    wanted, word = {
        bool: (bool, "true or false"),
        int: (int, "a whole number"),
        float: (float, "a number"),
        str: (str, "text"),
    }.get(hint, (dict, "a table"))
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ConfigError(f"{key} = {_show(value)}: must be {word}{_limits(limits)}")
    if "choices" in limits and value not in limits["choices"]:
        choices = [str(choice) for choice in limits["choices"]]
        nearest = _nearest(str(value), choices)
        raise ConfigError(f"{key} = {_show(value)}: not one of {', '.join(choices)}{nearest}")
    if isinstance(value, (int, float)):
        low, high = limits.get("low", -math.inf), limits.get("high", math.inf)
        if not low <= value <= high:  # so that nan is refused too
            nearest = high if value > high else low
            raise ConfigError(f"{key} = {_show(value)}: out of range{_limits(limits)}; the nearest is {nearest}")
    return value


def _limits(limits: Mapping[str, Any]) -> str:
    low, high = limits.get("low"), limits.get("high")
    if "choices" in limits:
        return f" ({', '.join(map(str, limits['choices']))})"
    if low is not None and high is not None:
        return f" (from {low} to {high})"
    return f" (at least {low})" if low is not None else ""


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean x?" for the known word nearest in spelling, or the one whose help says it in words."""
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
