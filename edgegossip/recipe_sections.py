"""The sections of a recipe. Each field carries its default, its allowed range or choices and one line of help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    format: str = _key("npz", "the file of a final model", choices=("npz", "safetensors"))
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
