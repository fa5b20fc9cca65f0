"""`python -m lab.bench`: sizes and speeds, measured on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgegossip.cli.main import main
from edgegossip.cli.options import JSON, OUTPUT, SETTINGS, chosen, command
from edgegossip.options import REQUIRED, option
from edgegossip.types import ConfigError
from lab.bench.mesh import CASES, target_lines

_CHECK = "Compare with the targets; exit with 6 when one is missed."
# What torch, oneDNN and MKL read when they load.
TORCH_WITH_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@click.group()
def bench() -> None:
    """Measure the package on this machine, beside plain rivals in the same run."""


def _hold_to(isa: str | None) -> None:
    """Hold the kernels of this process and of those that it starts to an instruction set, and
    torch's where that is AVX2. torch must not be loaded yet. Raises ConfigError for one that this
    machine lacks."""
    from edgegossip import native

    if isa is None:
        return
    if isa not in native.available_isas():
        raise ConfigError(f"--isa {isa}: this machine has {', '.join(native.available_isas())}")
    os.environ["EDGEGOSSIP_ISA"] = isa
    if isa == "avx2":
        os.environ.update(TORCH_WITH_AVX2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """Options of `python -m lab.bench codecs`."""

    codecs: tuple[str, ...] = option(
        (),
        "A codec, such as qsgd or qsgd:bits=8,stage=elias; may be repeated. Default: all.",
        flag="--codec",
        metavar="NAME[:KEY=VALUE,...]",
    )
    coders: tuple[str, ...] = option((), "Only this entropy coder; may be repeated.", flag="--stage")
    inputs: tuple[str, ...] = option(
        ("synthetic", "gradient"),
        "synthetic, gradient, or a file (.npz, .npy) such as `bench dump` writes; may be repeated.",
        flag="--input",
    )
    sizes: tuple[str, ...] = option(
        (), "Values (250000, 2M) or bytes of float32 (8MB); may be repeated. Default: 8MB and 100MB.", flag="--size"
    )
    settings: tuple[str, ...] = SETTINGS()
    steps: int = option(30, "Training steps behind gradient.", low=1)
    threads: int = option(1, "Of kernels and of torch.", low=1, high=256)
    repeat: int = option(5, "Rounds; figures are medians.", low=1)
    min_seconds: float = option(2.0, "More rounds for a codec up to this time.", low=0.0)
    caches: str = option(
        "cold",
        "What a timed call finds there: nothing of it, as within a training step, or what its last call left.",
        choices=("cold", "warm"),
    )
    seed: int = option(1, "Of the input and the rounding.", low=0)
    isa: str | None = option(
        None, "Instruction set of the kernels; default: the best of this machine. torch is held to avx2, too."
    )
    rivals: bool = option(True, "Measure plain torch and numpy versions too.")
    compiled: bool = option(True, "torch.compile tuned torch, where there is a C++ compiler.", flag="--compile")
    check: bool = option(False, f"{_CHECK} Without --codec and --size, measure what the targets speak of; two minutes.")
    save: Path | None = OUTPUT(None, "Also write codecs.json and codecs.md into this folder.", path="folder")
    as_json: bool = JSON()


@command(Codecs, bench)
def codecs(options: Codecs) -> int:
    """Measure bits a value, entropy, error and speed of the codecs, beside memcpy and plain torch
    versions of them.

    \b
    Examples:
      python -m lab.bench codecs --size 8MB
      python -m lab.bench codecs --codec elastiquant --codec topk:ratio=0.001 --input synthetic
      python -m lab.bench codecs --input gradient --set data.name=cifar10 --set model.name=resnet20
      python -m lab.bench codecs --check -o lab/results/pages

    The network behind `gradient` is a recipe's; --set changes its [data], [model] and [training].
    """
    _hold_to(options.isa)
    from lab.bench.run_codecs import Options, run

    note: Callable[[str], None] = lambda text: click.echo(text, err=True)  # noqa: E731
    document, code = run(chosen(options, Options), sys.argv[1:], _lines(options.as_json), note)
    return _ended(document, code, options.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Options of `python -m lab.bench mesh`."""

    cases: tuple[str, ...] = option((), "Only this case; may be repeated.", flag="--case", choices=CASES)
    rings: tuple[int, ...] = option(
        (2, 4, 8, 16), "Processes in a ring; may be repeated.", flag="--boards", low=2, high=64
    )
    repeat: int = option(9, "Turns; figures are medians.", low=1)
    idle_s: float = option(20.0, "Of the idle case.", flag="--idle-seconds", low=1.0)
    memory_rounds: int = option(1000, "Of the memory case.", flag="--rounds", low=1)
    check: bool = option(False, _CHECK)
    save: Path | None = OUTPUT(None, "Also write mesh.json and mesh.md into this folder.", path="folder")
    as_json: bool = JSON()


@command(Mesh, bench, epilog="\b\nTargets of --check:\n" + "\n".join(f"  {line}" for line in target_lines()))
def mesh(options: Mesh) -> int:
    """Measure rates, latency and rounds of the peer mesh between processes of this machine, beside
    bare gRPC and TCP.

    All cases with the defaults take two to four minutes on two free cores, more on a busy machine;
    --case and --repeat make it shorter.

    \b
    Examples:
      python -m lab.bench mesh --case throughput --case latency
      python -m lab.bench mesh --case ring --boards 8
      python -m lab.bench mesh --check -o lab/results/pages
    """
    from lab.bench.mesh import Settings, run

    settings = chosen(options, Settings, cases=options.cases or CASES)
    document, code = run(settings, sys.argv[1:], _lines(options.as_json), check=options.check, save=options.save)
    return _ended(document, code, options.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8:
    """Options of `python -m lab.bench int8`."""

    models: tuple[str, ...] = option(
        ("resnet20",),
        "Of the package, with its parameters; may be repeated.",
        flag="--model",
        metavar="NAME[:KEY=VALUE;...]",
    )
    batches: tuple[int, ...] = option((32, 128), flag="--batch", low=1, high=65_536)
    threads: tuple[int, ...] = option((1,), low=1, high=256)
    dws: tuple[str, ...] = option(("16", "8"), "Bits.", flag="--dw", choices=("16", "8"))
    repeat: int = option(5, "Rounds, or more of short steps.", low=1)
    inference: bool = option(False, "Time predictions, also of the exported ONNX models.")
    isa: str | None = option(
        None, "Instruction set of the kernels; default: the best of this machine. torch is held to avx2, too."
    )
    save: Path | None = OUTPUT(None, "Also write int8.json into this folder.", path="folder")
    as_json: bool = JSON()


@command(Int8, bench)
def int8(options: Int8) -> int:
    """Measure a training step in int8 beside torch in fp32, with batchnorm and with EvoNorm-S0:
    time, saved bytes, peak memory.

    \b
    Examples:
      python -m lab.bench int8
      python -m lab.bench int8 --model vgg11 --model resnet18 --batch 32 --threads 2
      python -m lab.bench int8 --model "mlp:hidden=[512,1024]" --batch 128
      python -m lab.bench int8 --inference
      python -m lab.bench int8 --isa avx2 --batch 32 --json
    """
    _hold_to(options.isa)
    from lab.bench.int8 import Options, run

    asked = chosen(options, Options, dws=tuple(map(int, options.dws)))
    return _ended(run(asked, sys.argv[1:], _lines(options.as_json)), 0, options.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """Options of `python -m lab.bench dump`."""

    file: Path = option(REQUIRED, argument=True, path="file")
    settings: tuple[str, ...] = SETTINGS()
    steps: int = option(30, "Training steps.", low=1)


@command(Dump, bench)
def dump(options: Dump) -> None:
    """Train a model and keep its gradients at the first, the middle and the last step in FILE
    (.npz), for --input FILE.

    \b
    Example:
      python -m lab.bench dump g.npz --set data.name=cifar10 --set data.dir=DIR \\
          --set model.name=resnet20 --steps 200
    """
    from lab.bench import inputs

    tensors = inputs.dump(inputs.recipe_for(options.settings), options.steps)
    inputs.save(options.file, tensors)
    click.echo(f"{options.file}: {len(tensors.arrays)} tensors, {sum(a.size for _, a in tensors.arrays)} values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Options of `python -m lab.bench server`."""

    nodes: tuple[int, ...] = option((2, 18), "Boards.", flag="--boards", low=1, high=64)
    payloads: tuple[str, ...] = option(
        ("0.1MB", "1MB", "10MB", "45MB"),
        "Of the model: values (250000) or bytes of float32 (1MB); may be repeated.",
        flag="--size",
    )
    codec: str = option("fp32", "What our boards send.", metavar="NAME[:KEY=VALUE,...]")
    tensors: int = option(8, "That the model is made of.", low=1, high=1000)
    rounds: int = option(12, "Of ours; the first is not timed.", low=2)
    stock_rounds: int = option(4, "Of stock Flower.", low=2)
    stock: bool = option(True, "Measure stock Flower too.")
    updates: int = option(18, "To average; 0: leave that out.", low=0)
    averaged: tuple[str, ...] = option(
        ("4-bit-elastiquant", "co3"),
        "Codec of the updates that are averaged; may be repeated.",
        metavar="NAME[:KEY=VALUE,...]",
    )
    check: bool = option(False, _CHECK)
    save: Path | None = OUTPUT(None, "Also write server.json and server.md into this folder.", path="folder")
    as_json: bool = JSON()


@command(Server, bench)
def server(options: Server) -> int:
    """Measure seconds, CPU and memory of a round through our coordinator and through stock Flower,
    in the same run.

    \b
    Examples:
      python -m lab.bench server --boards 2 --size 1MB
      python -m lab.bench server --boards 18 --size 1MB --no-stock --codec co3
      python -m lab.bench server --check -o lab/results/pages

    Boards train next to nothing: what is measured is the round itself.
    """
    from lab.bench.server import Options, run

    document, code = run(chosen(options, Options), sys.argv[1:], _lines(options.as_json))
    return _ended(document, code, options.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """Options of `python -m lab.bench profiling`."""

    recipe: str = option("quickstart-gossip", "Whose rounds are played.")
    settings: tuple[str, ...] = SETTINGS()
    rounds: int = option(60, "With profiling, and as many without.", low=5)
    check: bool = option(False, "Exit with 6 when it costs more than 1 %.")
    as_json: bool = JSON()


@command(Profiling, bench)
def profiling(options: Profiling) -> int:
    """Measure the CPU time that profiling costs a board: the same rounds with it and without it,
    alternating.

    \b
    Examples:
      python -m lab.bench profiling --set model.name=resnet20
      python -m lab.bench profiling --recipe cifar10-gossip --set model.name=resnet20 --check
    """
    from edgegossip import recipe as recipes
    from edgegossip.node.meters import NodeMeters
    from lab.bench.profiling import run, text_of

    meters = NodeMeters()
    meters.begin()
    document = run(recipes.load(options.recipe, options.settings), options.rounds, lambda: meters(due=False))
    click.echo(json.dumps(document) if options.as_json else text_of(document))
    return 6 if options.check and not document["ok"] else 0


def _lines(as_json: bool) -> Callable[[str], None]:
    """What prints rows as they are measured: nothing where one JSON document is asked for."""
    return (lambda text: None) if as_json else click.echo


def _ended(document: Any, code: int, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(document))
    return code


if __name__ == "__main__":
    main(command=bench, name="python -m lab.bench")
