"""The sections of a recipe. Each field carries its default, its allowed range or choices and one
line of help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = ("gossip", "server")


def _key(default: Any, help: str, **limits: Any) -> Any:
    """A recipe key: `low`/`high` bound numbers (inclusive), `choices` lists the only valid words.
    `later`: the key came after the first version; while it has its default it does not count in the
    identity of a run, and other boards are not told it, so that boards of two versions still take
    part in one."""
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
    script: str = _key(
        "", "a training script that calls edgegossip.join, in place of data, model and training", later=True
    )
    script_args: list[str] = _key([], "arguments of the script, each board's own matter", later=True)


@dataclass(frozen=True, slots=True)
class DataSection:
    name: str = _key(
        "digits",
        "digits, mnist, fashion-mnist, cifar10; image-folder, csv, parquet, huggingface, npz in "
        "data.dir; or module:function",
    )
    dir: str = _key(
        "",
        "folder of the data; {board} and {index} are the board's name and number; empty: where "
        "`edgegossip data download` puts it",
    )
    partition: str = _key(
        "iid",
        "how one data set is shared out; local: each board has its own and keeps all of it",
        choices=("iid", "skew", "dirichlet", "sorted", "local", "flwr"),
    )
    skew: float = _key(0.0, "degree of skew, for partition = skew", low=0.0, high=1.0)
    alpha: float = _key(0.5, "concentration, for partition = dirichlet", low=1e-3, high=1e6)
    augment: bool = _key(False, "random crop (4 pixels of padding) and horizontal flip")
    train_examples: int = _key(0, "use only the first so many training examples; 0: all", low=0)
    test_examples: int = _key(0, "use only the first so many test examples; 0: all", low=0)
    params: Mapping[str, Any] = _key(
        {}, 'keyword arguments of the loader or function, such as target = "price"', later=True
    )
    partitioner: str = _key(
        "", "partition = flwr: a partitioner of flwr-datasets, such as DirichletPartitioner", later=True
    )
    partitioner_params: Mapping[str, Any] = _key({}, "its parameters, such as alpha = 0.3", later=True)
    classes: int = _key(
        0, "number of classes, the same for all boards; 0: found from the data", low=0, high=10_000_000, later=True
    )
    labels: list[str] = _key([], "names of the classes in their order, the same for all boards", later=True)
    shape: list[int] = _key(
        [], "shape of one input, such as [3, 64, 64]; empty: found from the data", low=1, later=True
    )
    dtype: str = _key(
        "auto",
        "type of the inputs: bytes of images, numbers, or tokens; auto: found from the data",
        choices=("auto", "uint8", "float32", "int64"),
        later=True,
    )
    target: str = _key(
        "auto",
        "what a model is to give: a class; a class at each of many places (masks, tokens); labels "
        "of which any may apply; values; the next of the input's tokens; or none, the input itself",
        choices=("auto", "class", "places", "labels", "values", "tokens", "none"),
        later=True,
    )
    target_shape: list[int] = _key(
        [], "shape of one target, for target = values or places; empty: found", low=1, later=True
    )
    normalise: str = _key(
        "auto",
        "(input - mean) / std: as declared, by each board's own data, by those of all boards together, or "
        "not; auto: images only",
        choices=("auto", "declared", "board", "together", "none"),
        later=True,
    )
    mean: list[float] = _key([], "declared means, one a channel or one for all, in stored units", later=True)
    std: list[float] = _key([], "declared standard deviations, likewise", low=1e-12, later=True)
    test_share: float = _key(
        0.0, "hold out this share of the examples as test set where the data have none", low=0.0, high=0.9, later=True
    )
    shuffle_buffer: int = _key(1000, "examples of a stream that are held and mixed", low=1, high=10_000_000, later=True)


@dataclass(frozen=True, slots=True)
class ModelSection:
    name: str = _key("mlp", "a model of the package, or module:function")
    norm: str = _key(
        "evonorm-s0", "normalisation layer", choices=("batchnorm", "groupnorm", "evonorm-s0", "range-evonorm")
    )
    params: Mapping[str, Any] = _key({}, "keyword arguments of the model, such as hidden = [128, 64]")
    share: list[str] = _key(
        [], "only tensors whose names match one of these patterns travel, such as backbone.*; empty: all", later=True
    )
    keep: list[str] = _key(
        [], "tensors whose names match stay on their board, which trains its own, such as head.*", later=True
    )


@dataclass(frozen=True, slots=True)
class TrainingSection:
    task: str = _key(
        "auto",
        "what is learnt: classification, multilabel, regression, segmentation, language-model, "
        "autoencoder, or module:function; auto: what the data's targets are for",
        later=True,
    )
    task_params: Mapping[str, Any] = _key({}, 'parameters of the task, such as loss = "huber"', later=True)
    batch_size: int = _key(32, "examples a step and board", low=1, high=65_536)
    local_steps: int = _key(1, "optimiser steps between two exchanges (tau)", low=1, high=1_000_000)
    lr: float = _key(0.1, "learning rate", low=0.0, high=1000.0)
    optimizer: str = _key("sgd", "local optimiser: sgd, adam, adamw, rmsprop, or module:function", later=True)
    optimizer_params: Mapping[str, Any] = _key(
        {}, "its keyword arguments in torch.optim, such as betas = [0.9, 0.95]", later=True
    )
    momentum: float = _key(0.9, "momentum of optimizer = sgd", low=0.0, high=0.9999)
    nesterov: bool = _key(True, "Nesterov's form of momentum")
    weight_decay: float = _key(
        1e-4, "L2 penalty on trainable tensors; decoupled with optimizer = adamw", low=0.0, high=10.0
    )
    decay: str = _key(
        "all",
        "which tensors weight_decay is for; weights: none of normalisation layers, no bias",
        choices=("all", "weights"),
        later=True,
    )
    clip: float = _key(
        0.0, "gradients longer than this (L2 norm of all) are cut down to it; 0: never", low=0.0, high=1e6, later=True
    )
    label_smoothing: float = _key(
        0.0, "share of each label that goes to all classes alike, in training", low=0.0, high=0.99, later=True
    )
    class_weights: list[float] = _key(
        [], "what an example of each class counts for in training; empty: the same", low=0.0, high=1e6, later=True
    )
    warmup: int = _key(
        0, "rounds in which the learning rate rises from nothing to lr", low=0, high=1_000_000, later=True
    )
    schedule: str = _key(
        "constant", "learning-rate schedule", choices=("constant", "step", "cosine", "one-cycle", "plateau")
    )
    plateau_rounds: int = _key(
        0,
        "schedule = plateau: lr drops by step_factor when the mean loss of so many rounds is no "
        "better than the best before; 0: a twentieth of the run",
        low=0,
        high=1_000_000,
        later=True,
    )
    milestones: list[float] = _key(
        [0.5, 0.75], "schedule = step: shares of the run after which lr drops", low=0.0, high=1.0
    )
    step_factor: float = _key(0.1, "schedule = step or plateau: factor at each milestone or drop", low=1e-6, high=1.0)
    device: str = _key("auto", "cpu, cuda, cuda:N or mps; auto: a GPU that torch sees, else the CPU", later=True)
    precision: str = _key(
        "fp32",
        "arithmetic of training; bf16, fp16: mixed with fp32; int8: integers, forward and backward",
        choices=("fp32", "bf16", "fp16", "int8"),
    )
    deterministic: bool = _key(
        False, "on a GPU: only kernels that give the same bits each time, some of them slower", later=True
    )
    dw: int = _key(16, "precision = int8: bits of the gradients that weight gradients are made of", choices=(16, 8))
    memory: str = _key(
        "normal",
        "low: a few examples of the batch at a time, so that memory does not grow with it",
        choices=("normal", "low"),
    )


@dataclass(frozen=True, slots=True)
class CodecSection:
    name: str = _key("fp32", "compression of what travels")
    params: Mapping[str, Any] = _key({}, "parameters of the codec")


@dataclass(frozen=True, slots=True)
class GossipSection:
    algorithm: str = _key("dpsgd", "decentralised algorithm")
    topology: str = _key("ring", "who talks to whom")
    topology_file: str = _key("", "topology = file: a JSON or edge-list file, or the JSON itself")
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
        "`run`: its own boards speak TLS; auto: yes",
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
    format: str = _key("npz", "the file of a final model", choices=("npz", "safetensors"), later=True)
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
