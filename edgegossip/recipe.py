"""A run as a typed, validated document: TOML in, resolved TOML out.

The sections below declare the keys with their defaults, ranges and help (`options.py`): the checks,
the error messages, `edgegossip recipe keys` and docs/reference.md come from them. The package's
recipes lie in `recipes/*.toml`.

A key that is `later` came after the first version. While it has its default it does not count in
the identity of a run, and other boards are not told it, so that boards of two versions still take
part in one.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from edgegossip.choices import did_you_mean, hints_of
from edgegossip.files import parse_toml, read_text
from edgegossip.options import Option, as_toml, option, options_of
from edgegossip.types import ConfigError

_MODES = {"gossip", "server"}


@dataclass(frozen=True, slots=True)
class RunSection:
    """What is trained together, by how many boards, and for how long."""

    name: str = option("run", "name of the run; part of the run folder's name")
    mode: str = option("gossip", "peer to peer, or through a coordinator", choices=("gossip", "server"))
    nodes: int = option(4, "number of boards", low=2, high=64)
    rounds: int = option(100, "rounds to train", low=1, high=10_000_000)
    seed: int = option(1, "seed of everything random", low=0, high=2**63 - 1)
    threads: int = option(1, "compute threads a board", low=1, high=256)
    script: str = option(
        "", "a training script that calls edgegossip.join, in place of data, model and training", later=True
    )
    script_args: list[str] = option([], "arguments of the script, each board's own matter", later=True)


@dataclass(frozen=True, slots=True)
class DataSection:
    """What each board trains on, and how it is shared out."""

    name: str = option(
        "digits",
        "digits, mnist, fashion-mnist, cifar10; image-folder, csv, parquet, huggingface, npz in "
        "data.dir; or module:function",
    )
    dir: str = option(
        "",
        "folder of the data; {board} and {index} are the board's name and number; empty: where "
        "`edgegossip data download` puts it",
    )
    partition: str = option(
        "iid",
        "how one data set is shared out; local: each board has its own and keeps all of it",
        choices=("iid", "skew", "dirichlet", "sorted", "local", "flwr"),
    )
    skew: float = option(0.0, "degree of skew, for partition = skew", low=0.0, high=1.0)
    alpha: float = option(0.5, "concentration, for partition = dirichlet", low=1e-3, high=1e6)
    augment: bool = option(False, "random crop (4 pixels of padding) and horizontal flip")
    train_examples: int = option(0, "use only the first so many training examples; 0: all", low=0)
    test_examples: int = option(0, "use only the first so many test examples; 0: all", low=0)
    params: Mapping[str, Any] = option(
        {}, 'keyword arguments of the loader or function, such as target = "price"', later=True
    )
    partitioner: str = option(
        "", "partition = flwr: a partitioner of flwr-datasets, such as DirichletPartitioner", later=True
    )
    partitioner_params: Mapping[str, Any] = option({}, "its parameters, such as alpha = 0.3", later=True)
    classes: int = option(
        0, "number of classes, the same for all boards; 0: found from the data", low=0, high=10_000_000, later=True
    )
    labels: list[str] = option([], "names of the classes in their order, the same for all boards", later=True)
    shape: list[int] = option(
        [], "shape of one input, such as [3, 64, 64]; empty: found from the data", low=1, later=True
    )
    dtype: str = option(
        "auto",
        "type of the inputs: bytes of images, numbers, or tokens; auto: found from the data",
        choices=("auto", "uint8", "float32", "int64"),
        later=True,
    )
    target: str = option(
        "auto",
        "what a model is to give: a class; a class at each of many places (masks, tokens); labels "
        "of which any may apply; values; the next of the input's tokens; or none, the input itself",
        choices=("auto", "class", "places", "labels", "values", "tokens", "none"),
        later=True,
    )
    target_shape: list[int] = option(
        [], "shape of one target, for target = values or places; empty: found", low=1, later=True
    )
    normalise: str = option(
        "auto",
        "(input - mean) / std: as declared, by each board's own data, by those of all boards together, or "
        "not; auto: images only",
        choices=("auto", "declared", "board", "together", "none"),
        later=True,
    )
    mean: list[float] = option([], "declared means, one a channel or one for all, in stored units", later=True)
    std: list[float] = option([], "declared standard deviations, likewise", low=1e-12, later=True)
    test_share: float = option(
        0.0, "hold out this share of the examples as test set where the data have none", low=0.0, high=0.9, later=True
    )
    shuffle_buffer: int = option(
        1000, "examples of a stream that are held and mixed", low=1, high=10_000_000, later=True
    )


@dataclass(frozen=True, slots=True)
class ModelSection:
    """What is trained, and which of its tensors travel."""

    name: str = option("mlp", "a model of the package, or module:function")
    norm: str = option(
        "evonorm-s0", "normalisation layer", choices=("batchnorm", "groupnorm", "evonorm-s0", "range-evonorm")
    )
    params: Mapping[str, Any] = option({}, "keyword arguments of the model, such as hidden = [128, 64]")
    share: list[str] = option(
        [], "only tensors whose names match one of these patterns travel, such as backbone.*; empty: all", later=True
    )
    keep: list[str] = option(
        [], "tensors whose names match stay on their board, which trains its own, such as head.*", later=True
    )


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """How a board trains between two exchanges."""

    task: str = option(
        "auto",
        "what is learnt: classification, multilabel, regression, segmentation, language-model, "
        "autoencoder, or module:function; auto: what the data's targets are for",
        later=True,
    )
    task_params: Mapping[str, Any] = option({}, 'parameters of the task, such as loss = "huber"', later=True)
    batch_size: int = option(32, "examples a step and board", low=1, high=65_536)
    local_steps: int = option(1, "optimiser steps between two exchanges (tau)", low=1, high=1_000_000)
    lr: float = option(0.1, "learning rate", low=0.0, high=1000.0)
    optimizer: str = option("sgd", "local optimiser: sgd, adam, adamw, rmsprop, or module:function", later=True)
    optimizer_params: Mapping[str, Any] = option(
        {}, "its keyword arguments in torch.optim, such as betas = [0.9, 0.95]", later=True
    )
    momentum: float = option(0.9, "momentum of optimizer = sgd", low=0.0, high=0.9999)
    nesterov: bool = option(True, "Nesterov's form of momentum")
    weight_decay: float = option(
        1e-4, "L2 penalty on trainable tensors; decoupled with optimizer = adamw", low=0.0, high=10.0
    )
    decay: str = option(
        "all",
        "which tensors weight_decay is for; weights: none of normalisation layers, no bias",
        choices=("all", "weights"),
        later=True,
    )
    clip: float = option(
        0.0,
        "gradients of the loss longer than this (L2 norm of all) are cut down to it; 0: never",
        low=0.0,
        high=1e6,
        later=True,
    )
    proximal: float = option(
        0.0,
        "FedProx (mu): each step is pulled back to the round's model by so much of the way from it; 0: not",
        low=0.0,
        high=1000.0,
        later=True,
    )
    label_smoothing: float = option(
        0.0, "share of each label that goes to all classes alike, in training", low=0.0, high=0.99, later=True
    )
    class_weights: list[float] = option(
        [], "what an example of each class counts for in training; empty: the same", low=0.0, high=1e6, later=True
    )
    warmup: int = option(
        0, "rounds in which the learning rate rises from nothing to lr", low=0, high=1_000_000, later=True
    )
    schedule: str = option(
        "constant", "learning-rate schedule", choices=("constant", "step", "cosine", "one-cycle", "plateau")
    )
    plateau_rounds: int = option(
        0,
        "schedule = plateau: lr drops by step_factor when the mean loss of so many rounds is no "
        "better than the best before; 0: a twentieth of the run",
        low=0,
        high=1_000_000,
        later=True,
    )
    milestones: list[float] = option(
        [0.5, 0.75], "schedule = step: shares of the run after which lr drops", low=0.0, high=1.0
    )
    step_rounds: int = option(
        0, "schedule = step: lr drops each so many rounds; 0: at the milestones", low=0, high=1_000_000, later=True
    )
    step_factor: float = option(0.1, "schedule = step or plateau: factor at each milestone or drop", low=1e-6, high=1.0)
    device: str = option("auto", "cpu, cuda, cuda:N or mps; auto: a GPU that torch sees, else the CPU", later=True)
    precision: str = option(
        "fp32",
        "arithmetic of training; bf16, fp16: mixed with fp32; int8: integers, forward and backward",
        choices=("fp32", "bf16", "fp16", "int8"),
    )
    deterministic: bool = option(
        False, "on a GPU: only kernels that give the same bits each time, some of them slower", later=True
    )
    cuda_graph: bool = option(
        False,
        "on a CUDA GPU: record a step's kernels once and replay them together; a small model trains "
        "several times as fast",
        later=True,
    )
    dw: int = option(16, "precision = int8: bits of the gradients that weight gradients are made of", choices=(16, 8))
    memory: str = option(
        "normal",
        "low: a few examples of the batch at a time, so that memory does not grow with it",
        choices=("normal", "low"),
    )


@dataclass(frozen=True, slots=True)
class CodecSection:
    """How what travels is compressed."""

    name: str = option("fp32", "compression of what travels")
    params: Mapping[str, Any] = option({}, "parameters of the codec")


@dataclass(frozen=True, slots=True)
class GossipSection:
    """Who exchanges what with whom in gossip mode."""

    algorithm: str = option("dpsgd", "decentralised algorithm")
    topology: str = option("ring", "who talks to whom")
    topology_file: str = option("", "topology = file: a JSON or edge-list file, or the JSON itself")
    topology_params: Mapping[str, Any] = option({}, "parameters of the topology, such as degree = 3")
    params: Mapping[str, Any] = option({}, "parameters of the algorithm")
    order: str = option(
        "auto",
        "dpsgd, choco-sgd: whether models travel before the local step, which is added to what mixing made of "
        "them, or after it; auto: as in the algorithm's paper, and after it where a script trains",
        choices=("auto", "adapt-with-combine", "adapt-then-combine"),
        later=True,
    )
    momentum: str = option(
        "none",
        "momentum around the algorithm, in place of training.momentum",
        choices=("none", "heavy-ball", "nesterov", "quasi-global", "quasi-global-nesterov"),
    )
    momentum_factor: float = option(0.9, "its factor", low=0.0, high=0.9999)
    malicious_nodes: int = option(
        0,
        "boards that may send anything: bounds how far each neighbour pulls",
        low=0,
        high=64,
        later=True,
    )
    malicious_rule: str = option(
        "nearest",
        "how: leaves out the farthest neighbours, or clips their pull (ClippedGossip)",
        choices=("nearest", "clip"),
        later=True,
    )
    deadline_s: float = option(
        60.0, "a round waits this long for a silent neighbour, then goes on without it", low=0.1, high=86_400.0
    )


@dataclass(frozen=True, slots=True)
class ServerSection:
    """How the coordinator makes a round in server mode."""

    strategy: str = option(
        "fedavg",
        "how the coordinator combines updates: Flower's strategy of this name; scaffold: fedavg with "
        "control variates, for boards whose data differ",
        choices=(
            "fedavg",
            "scaffold",
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
    strategy_params: Mapping[str, Any] = option({}, "parameters of the strategy, such as eta = 0.01")
    malicious_nodes: int = option(
        0,
        "boards that may send anything: a strategy that bears liars gets means of each update with its nearest ones",
        low=0,
        high=64,
        later=True,
    )
    weighting: str = option(
        "examples",
        "what a board's update counts for: its examples, or the same for all",
        choices=("examples", "uniform"),
    )
    fraction: float = option(
        1.0, "share of the boards that take part in a round, rounded up, drawn anew each time", low=0.0, high=1.0
    )
    quorum: int = option(
        0,
        "a round ends with so many answers and goes on without the slower boards; 0: all that were asked",
        low=0,
        high=64,
    )
    downlink: str = option(
        "fp32", "codec of what goes down; other than fp32: encoded differences, the whole model only after a gap"
    )
    downlink_params: Mapping[str, Any] = option({}, "parameters of that codec")
    min_nodes: int = option(1, "go on while at least so many boards are up", low=1, high=64)
    join_s: float = option(
        0.0,
        "start without the boards that have not joined after so long, they may come later; 0: `coordinator` waits for all, "
        "`run` 120 s",
        low=0.0,
        high=604_800.0,
    )
    deadline_s: float = option(
        60.0, "a round waits this long for a silent board, then goes on without it", low=0.1, high=86_400.0
    )


@dataclass(frozen=True, slots=True)
class OuterSection:
    """What an outer optimiser makes of how far a round moved the model, in either mode (DiLoCo,
    FedOpt, NoLoCo)."""

    optimizer: str = option(
        "none",
        "outer optimiser around the rounds: takes the way of a round, local steps and exchange together, for its gradient",
        choices=("none", "heavy-ball", "nesterov", "adam"),
        later=True,
    )
    lr: float = option(
        0.0, "its learning rate; 0: 0.7 for heavy-ball and nesterov, 0.01 for adam", low=0.0, high=1000.0, later=True
    )
    momentum: float = option(0.9, "its momentum, for heavy-ball and nesterov", low=0.0, high=0.9999, later=True)
    betas: list[float] = option(
        [0.9, 0.99], "its two momenta, for adam: of the step and of its square", low=0.0, high=0.9999, later=True
    )
    epsilon: float = option(
        1e-3, "what adam adds to the root of its square: how adaptive it is (tau)", low=1e-12, high=1.0, later=True
    )
    consensus: float = option(
        0.0,
        "gossip, heavy-ball or nesterov: how far a board goes towards its neighbours (gamma of NoLoCo); 0: as lr",
        low=0.0,
        high=2.0,
        later=True,
    )
    fragments: int = option(
        1,
        "gossip: groups of layers that the model is cut into, of which a round exchanges one, in turn (Streaming DiLoCo)",
        low=1,
        high=64,
        later=True,
    )
    overlap: bool = option(
        False,
        "gossip: what a board sends in a round is on its way while the next round's local steps are computed (Streaming DiLoCo)",
        later=True,
    )
    merge: float = option(
        0.5,
        "overlap: the weight of a board's own values where they meet those of the exchange (alpha)",
        low=0.0,
        high=0.95,
        later=True,
    )


@dataclass(frozen=True, slots=True)
class EvaluationSection:
    """When the model is tested, by whom, and on how much."""

    where: str = option("boards", "server mode: who evaluates", choices=("boards", "coordinator"), mode="server")
    every: int = option(0, "evaluate every so many rounds; 0: about ten times a run", low=0)
    examples: int = option(0, "test examples of an evaluation during the run; 0: all. The last one uses all", low=0)
    patience: int = option(
        0,
        "server mode: the run ends after so many evaluations in a row that are not better than the best before; 0: never",
        low=0,
        high=1_000_000,
        later=True,
    )
    better: str = option(
        "auto",
        "whether a higher or a lower score is better; auto: as edgegossip knows of the scores of its own tasks",
        choices=("auto", "higher", "lower"),
        later=True,
    )


@dataclass(frozen=True, slots=True)
class NetworkSection:
    """Where `run`'s own boards listen, and when a peer counts as lost."""

    host: str = option("127.0.0.1", "address that `run`'s own boards listen on")
    port: int = option(0, "first port of `run`'s own boards or of the coordinator; 0: any free one", low=0, high=65_535)
    tls: str = option(
        "auto",
        "`run`: its own boards speak TLS; auto: yes",
        choices=("auto", "on", "off"),
    )
    grace_s: float = option(3.0, "a peer out of reach for this long counts as lost", low=0.1, high=3600.0)
    restarts: int = option(
        0, "`run`, gossip: a board whose process dies is started again up to so many times", low=0, high=1000
    )


@dataclass(frozen=True, slots=True)
class CheckpointSection:
    """What is kept on disk, and how often."""

    every: int = option(
        1, "keep each board's and the coordinator's state every so many rounds; 0: never", low=0, high=1_000_000
    )
    keep: int = option(2, "how many of the newest checkpoints stay", low=1, high=100)
    best: bool = option(
        False,
        "keep the models of the best evaluations as well, in the run folder's best/, for `model save --best`",
        later=True,
    )
    format: str = option("npz", "the file of a final model", choices=("npz", "safetensors"), later=True)
    slack_s: float = option(
        1.0,
        "rounds wait for the disk when more than one, and more seconds than this, could be lost",
        low=0.0,
        high=3600.0,
    )
    gb_a_day: float = option(
        0.0,
        "a board writes at most so many GB of checkpoints a day, because cards wear; 0: no bound",
        low=0.0,
        high=1e6,
        later=True,
    )

    @property
    def daily_bytes(self) -> float:
        """Bytes that checkpoints of one board may take in a day."""
        return self.gb_a_day * 1e9 or math.inf


@dataclass(frozen=True, slots=True)
class GuardSection:
    """How a board spares itself before its kernel does: each board's own matter."""

    least: float = option(
        1.0,
        "a board that is hot, throttled or on a low battery takes down to this share of a round's steps, then computes "
        "down to this share of the time; 1: it goes on, and only says when memory or battery run low",
        low=0.05,
        high=1.0,
        later=True,
    )
    temperature_c: float = option(
        78.0,
        "from here on it takes fewer steps; 5 degrees above guard.least of them, and from there on it rests",
        low=20.0,
        high=150.0,
        later=True,
    )
    battery_percent: float = option(
        20.0,
        "on battery, with less charge than this, likewise; at a quarter of it guard.least of the steps; 0: never",
        low=0.0,
        high=100.0,
        later=True,
    )
    memory_mb: int = option(
        64,
        "with less than so many MB available it says so, and with guard.least below 1 takes its batches in parts; 0: never",
        low=0,
        high=1_000_000,
        later=True,
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
    outer: OuterSection = field(default_factory=OuterSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    guard: GuardSection = field(default_factory=GuardSection)


def evaluation_rounds(recipe: Recipe) -> frozenset[int]:
    """Return the rounds after which every board evaluates; the last round is always one of them."""
    every = recipe.evaluation.every or max(1, recipe.run.rounds // 10)
    return frozenset(range(every - 1, recipe.run.rounds, every)) | {recipe.run.rounds - 1}


def tests_by_board(recipe: Recipe) -> bool:
    """Whether each board has a test set of its own, so that scores of two boards are of two."""
    return bool(recipe.run.script) or recipe.data.partition == "local"


def unread(recipe: Recipe) -> list[str]:
    """Return the keys that were set and are for the other mode only: those of its section, and who
    declares a mode of its own."""
    return [
        f"{section}.{key.name}"
        for section, kind in sections().items()
        for key in options_of(kind)
        if key.more.get("mode", section) in _MODES - {recipe.run.mode}
        and getattr(getattr(recipe, section), key.name) != key.default
    ]


def require_read(recipe: Recipe) -> None:
    """Raise ConfigError for a key that is not read in the recipe's mode, where the mode has one of
    the same name that was left as it is: who set the one relies on what the other does."""
    mine = getattr(recipe, recipe.run.mode)
    defaults = {key.name: key.default for key in options_of(type(mine))}
    for key in unread(recipe):
        section, name = key.split(".")
        if name in defaults and getattr(mine, name) == defaults[name]:
            value = as_toml(getattr(getattr(recipe, section), name))
            raise ConfigError(
                f"{key} = {value} is not read with run.mode = {recipe.run.mode}: set {recipe.run.mode}.{name}"
            )


def require_all_rounds(recipe: Recipe, what: str) -> None:
    """Raise ConfigError for keys that have no effect in `what`, which plays all rounds and keeps no
    models."""
    if recipe.evaluation.patience:
        raise ConfigError(f"evaluation.patience = {recipe.evaluation.patience}: {what} plays all rounds; say 0")
    if recipe.checkpoint.best:
        raise ConfigError(f"checkpoint.best = true: {what} keeps no models; say false")


def names() -> list[str]:
    """Return the names of the recipes that the package carries."""
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
    known, values = sections(), {}
    for name, content in document.items():
        if name not in known:
            raise ConfigError(f"unknown section [{name}] in the recipe{did_you_mean(name, known)}")
        if not isinstance(content, Mapping):
            raise ConfigError(f"{name} = {content!r}: [{name}] is a section; write {name}.<key> = value")
        values[name] = _section(name, known[name], content)
    return Recipe(**values)


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with `section.key` (or `section.table.key`) set to these values. Raises
    ConfigError."""
    document = asdict(recipe)
    for key, value in settings.items():
        _put(document, key, copy.deepcopy(value), f"{key} = {as_toml(value)}")  # a later key may go into a table
    return from_dict(document)


def keys_of(settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a Python caller sets, by recipe key, for `with_settings`; keywords win.

    A key is written section.key, or section__key as a keyword. A key of [run] may stand alone, and
    a whole section may be a table: {"training.lr": 0.1}, codec__name="topk", nodes=4,
    codec={"name": "topk"}. Raises ConfigError for a word that is none of these, with the nearest.
    """
    found: dict[str, Any] = {}
    keys = {section: [key.name for key in options_of(kind)] for section, kind in sections().items()}
    for word, value in {**(settings or {}), **{k.replace("__", "."): v for k, v in keywords.items()}}.items():
        if "." in word:
            found[word] = value
        elif word in keys["run"]:
            found[f"run.{word}"] = value
        elif word in keys and isinstance(value, Mapping):
            found |= {f"{word}.{key}": inner for key, inner in value.items()}
        else:
            raise ConfigError(f"{word} = {as_toml(value)}: no such setting{_meant(word, keys)}")
    return found


def _meant(word: str, keys: Mapping[str, Sequence[str]]) -> str:
    """What a word without a section was meant to be, for the end of a message."""
    sections = [word] if word in keys else [section for section in keys if word in keys[section]]
    meant = [f"{section}__{keys[word][0] if word in keys else word}" for section in sections]
    return f"; did you mean {' or '.join(meant)}?" if meant else did_you_mean(word, [*keys["run"], *keys])


def to_toml(recipe: Recipe) -> str:
    """Return the resolved recipe; `from_dict(tomllib.loads(to_toml(r))) == r`."""
    return tomli_w.dumps(asdict(recipe))


def flat(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe by dotted keys: {"run.nodes": 4, ...}."""
    return {f"{section}.{key}": value for section, table in asdict(recipe).items() for key, value in table.items()}


def run_id(recipe: Recipe) -> bytes:
    """Return 16 bytes that boards started separately from the same recipe agree on. What is each
    board's own matter (its data folder, script, threads, device, addresses, evaluations,
    checkpoints, guard) does not count."""
    shared = portable(recipe)
    shared = replace(
        shared,
        run=replace(shared.run, threads=1),
        training=replace(shared.training, device="auto", deterministic=False, cuda_graph=False),
        evaluation=EvaluationSection(),
        network=NetworkSection(),
        guard=GuardSection(),
    )
    return hashlib.sha256(canonical_toml(shared).encode()).digest()[:16]


def portable(recipe: Recipe) -> Recipe:
    """Return the recipe as it is sent to other boards: without what names files of this machine."""
    run = replace(recipe.run, script=Path(recipe.run.script).name, script_args=[])
    return replace(recipe, run=run, data=replace(recipe.data, dir=""))


def shared_toml(recipe: Recipe) -> str:
    """Return the recipe as other boards are told it, in TOML. Boards of an earlier version know no
    later keys."""
    return tomli_w.dumps(_without_later_keys(portable(recipe)))


def canonical_toml(recipe: Recipe) -> str:
    """Return the resolved recipe without what changes no result and was not always there, so that
    identities made of it last."""
    document = _without_later_keys(recipe)
    del document["checkpoint"]
    return tomli_w.dumps(document)


def _without_later_keys(recipe: Recipe) -> dict[str, Any]:
    """Its tables, without `later` keys that have their defaults, and without a table of no
    others."""
    document = asdict(recipe)
    for section, kind in sections().items():
        for key in options_of(kind):
            if key.more.get("later") and document[section][key.name] == key.default:
                del document[section][key.name]
        if not document[section]:
            del document[section]
    return document


def sections() -> Mapping[str, Any]:
    """Return the sections of a recipe by name; `options.declared` has the keys of each."""
    return hints_of(Recipe)


def describe_keys() -> list[tuple[str, str, str]]:
    """Return (key, default, help with the allowed range) of every recipe key."""
    return [
        (f"{section}.{key.name}", as_toml(key.default), key.help + key.limits)
        for section, kind in sections().items()
        for key in options_of(kind)
    ]


def _package() -> Path:
    return Path(__file__).parent / "recipes"  # importlib.resources is 0.7 MiB that a board would keep


def _read(source: str) -> str:
    path = Path(source)
    if source in names():
        return (_package() / f"{source}.toml").read_text(encoding="utf-8")
    if path.suffix != ".toml" and not path.exists():
        known = ", ".join(names())
        raise ConfigError(
            f"no recipe named {source}{did_you_mean(source, names())} (recipes: {known}; or a path to a .toml file)"
        )
    try:
        return read_text(path)
    except ValueError as error:
        raise ConfigError(f"cannot read recipe {path}: {error}") from None


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def _apply(document: dict[str, Any], setting: str) -> None:
    """Put one `a.b=value` (or `a.b.c=value` inside a table of parameters) into the document."""
    _put(document, *parse_setting(setting), f"--set {setting}")


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


def parse_setting(setting: str) -> tuple[str, Any]:
    """Read `section.key=value` as (key, value). Raises ConfigError."""
    key, equals, text = setting.partition("=")
    if not equals:
        raise ConfigError(f"--set {setting}: write it as section.key=value, such as --set training.lr=0.05")
    return key.strip(), parse_value(text.strip())


def parse_value(text: str) -> Any:
    """Parse a TOML value; a bare word is a string, so that --set model.name=cnn needs no quotes."""
    try:
        return parse_toml(f"v = {text}")["v"]
    except ValueError:
        return text


def _section(name: str, kind: Any, content: Mapping[str, Any]) -> Any:
    known = {key.name: key for key in options_of(kind)}
    for key in content:
        if key not in known:
            raise ConfigError(f"unknown recipe key {name}.{key}{_nearest_key(name, key, known)}")
    return kind(**{key: known[key].check(f"{name}.{key}", value) for key, value in content.items()})


def _nearest_key(section: str, word: str, known: Mapping[str, Option]) -> str:
    """Return "; did you mean x?" for the key whose help says the word, or is nearest to it."""
    plain = word.replace("_", " ").replace("-", " ").lower()
    said = [key.name for key in known.values() if len(plain) > 3 and plain in key.help.lower()]
    return f"; did you mean {section}.{said[0]}?" if said else did_you_mean(word, known, f"{section}.")
