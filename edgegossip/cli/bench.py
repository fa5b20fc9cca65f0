"""`edgegossip bench`: sizes and speeds, measured on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from edgegossip.cli.options import JSON, SETTINGS, Seconds
from edgegossip.lab.bench.mesh import CASES, targets


@click.group()
def bench() -> None:
    """Measure the package on this machine, beside plain rivals in the same run."""


@bench.command()
@click.option(
    "--codec",
    "names",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="A codec, such as qsgd or qsgd:bits=8,stage=elias; may be repeated. Default: all.",
)
@click.option("--stage", "stages", multiple=True, help="Only this entropy stage; may be repeated.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    default=("synthetic", "gradient"),
    show_default=True,
    help="synthetic, gradient, or a file (.npz, .npy) such as `bench dump` writes; may be repeated.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=("8MB", "100MB"),
    show_default=True,
    help="Values (250000, 2M) or bytes of float32 (8MB); may be repeated.",
)
@SETTINGS
@click.option("--steps", default=30, show_default=True, type=click.IntRange(1), help="Training steps behind gradient.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 256), help="Of kernels and of torch.")
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1), help="Rounds; figures are medians.")
@click.option(
    "--min-seconds",
    default=3.0,
    show_default=True,
    type=Seconds(0.0),
    help="More rounds for a codec up to this time.",
)
@click.option(
    "--caches",
    default="cold",
    show_default=True,
    type=click.Choice(("cold", "warm")),
    help="What a timed call finds there: nothing of it, as within a training step, or what its last call left.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of the input and the rounding.")
@click.option("--isa", help="Instruction set of the kernels; default: the best of this machine.")
@click.option("--rivals/--no-rivals", default=True, help="Measure plain torch and numpy versions too.")
@click.option("--check", is_flag=True, help="Compare with the targets; exit with 6 when one is missed.")
@click.option("--save", type=click.Path(file_okay=False), help="Also write codecs.json and codecs.md into this folder.")
@JSON
def codecs(
    names: tuple[str, ...],
    stages: tuple[str, ...],
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    settings: tuple[str, ...],
    steps: int,
    threads: int,
    repeat: int,
    min_seconds: float,
    caches: str,
    seed: int,
    isa: str | None,
    rivals: bool,
    check: bool,
    save: str | None,
    as_json: bool,
) -> int:
    """Bits a value, entropy, error and speed of the codecs, beside memcpy and plain torch versions
    of them.

    \b
    Examples:
      edgegossip bench codecs --size 8MB
      edgegossip bench codecs --codec elastiquant --codec topk:ratio=0.001 --input synthetic
      edgegossip bench codecs --input gradient --set data.name=cifar10 --set model.name=resnet20
      edgegossip bench codecs --check --save docs/results

    The network behind `gradient` is a recipe's; --set changes its [data], [model] and [training].
    """
    from edgegossip.lab.bench.run_codecs import Asked, run

    folder = Path(save) if save else None
    asked = Asked(
        names,
        stages,
        inputs,
        sizes,
        settings,
        steps,
        threads,
        repeat,
        min_seconds,
        caches,
        seed,
        isa,
        rivals,
        check,
        folder,
    )
    document, code = run(
        asked, sys.argv[1:], (lambda text: None) if as_json else click.echo, lambda text: click.echo(text, err=True)
    )
    if as_json:
        click.echo(json.dumps(document))
    return code


@bench.command(epilog="\b\nTargets of --check:\n" + "\n".join(f"  {line}" for line in targets.lines()))
@click.option("--case", "names", multiple=True, type=click.Choice(CASES), help="Only this case; may be repeated.")
@click.option(
    "--nodes",
    "rings",
    multiple=True,
    default=(2, 4, 8, 16),
    show_default=True,
    type=click.IntRange(2, 64),
    help="Processes in a ring; may be repeated.",
)
@click.option("--repeat", default=9, show_default=True, type=click.IntRange(1), help="Turns; figures are medians.")
@click.option("--idle-seconds", default=20.0, show_default=True, type=click.FloatRange(1.0), help="Of the idle case.")
@click.option("--rounds", default=1000, show_default=True, type=click.IntRange(1), help="Of the memory case.")
@click.option("--check", is_flag=True, help="Compare with the targets; exit with 6 when one is missed.")
@click.option("--save", type=click.Path(file_okay=False), help="Also write mesh.json and mesh.md into this folder.")
@JSON
def mesh(
    names: tuple[str, ...],
    rings: tuple[int, ...],
    repeat: int,
    idle_seconds: float,
    rounds: int,
    check: bool,
    save: str | None,
    as_json: bool,
) -> int:
    """Rates, latency and rounds of the peer mesh between processes of this machine, beside bare
    gRPC and TCP.

    All cases with the defaults take two to four minutes on two free cores, more on a busy machine;
    --case and --repeat make it shorter.

    \b
    Examples:
      edgegossip bench mesh --case throughput --case latency
      edgegossip bench mesh --case ring --nodes 8
      edgegossip bench mesh --check --save docs/results
    """
    from edgegossip.lab.bench.mesh.cases import Settings
    from edgegossip.lab.bench.mesh.run import run

    settings = Settings(names or CASES, rings, repeat, idle_seconds, rounds)
    out = (lambda text: None) if as_json else click.echo
    document, code = run(settings, sys.argv[1:], out, check=check, save=Path(save) if save else None)
    if as_json:
        click.echo(json.dumps(document))
    return code


@bench.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("resnet20",),
    show_default=True,
    metavar="NAME[:KEY=VALUE;...]",
    help="Of the package, with its parameters; may be repeated.",
)
@click.option("--batch", "batches", multiple=True, default=(32, 128), show_default=True, type=click.IntRange(1, 65_536))
@click.option("--threads", multiple=True, default=(1,), show_default=True, type=click.IntRange(1, 256))
@click.option(
    "--dw", "dws", multiple=True, default=("16", "8"), show_default=True, type=click.Choice(["16", "8"]), help="Bits."
)
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1), help="Rounds, or more of short steps.")
@click.option("--inference", is_flag=True, help="Time predictions, also of the exported ONNX models.")
@click.option("--save", type=click.Path(file_okay=False), help="Also write int8.json into this folder.")
@JSON
def int8(
    models: tuple[str, ...],
    batches: tuple[int, ...],
    threads: tuple[int, ...],
    dws: tuple[str, ...],
    repeat: int,
    inference: bool,
    save: str | None,
    as_json: bool,
) -> int:
    """A training step in int8 beside torch in fp32, with batchnorm and with EvoNorm-S0: time, saved
    bytes, peak memory.

    \b
    Examples:
      edgegossip bench int8
      edgegossip bench int8 --model vgg11 --model resnet18 --batch 32 --threads 2
      edgegossip bench int8 --model "mlp:hidden=[512,1024]" --batch 128
      edgegossip bench int8 --inference
      EDGEGOSSIP_ISA=portable edgegossip bench int8 --batch 32 --json
    """
    from edgegossip.lab.bench.int8.run import Asked, run

    folder = Path(save) if save else None
    asked = Asked(models, batches, threads, tuple(map(int, dws)), repeat, folder, inference)
    document = run(asked, sys.argv[1:], (lambda text: None) if as_json else click.echo)
    if as_json:
        click.echo(json.dumps(document))
    return 0


@bench.command()
@click.argument("file", type=click.Path(dir_okay=False))
@SETTINGS
@click.option("--steps", default=30, show_default=True, type=click.IntRange(1), help="Training steps.")
def dump(file: str, settings: tuple[str, ...], steps: int) -> None:
    """Train a model and keep its gradients at the first, the middle and the last step in FILE
    (.npz), for --input FILE.

    \b
    Example:
      edgegossip bench dump g.npz --set data.name=cifar10 --set data.dir=DIR --set model.name=resnet20 --steps 200
    """
    from edgegossip.lab.bench import gradients, inputs

    tensors = gradients.dump(gradients.recipe_for(settings), steps)
    inputs.save(Path(file), tensors)
    click.echo(f"{file}: {len(tensors.arrays)} tensors, {sum(a.size for _, a in tensors.arrays)} values")


@bench.command()
@click.option("--nodes", multiple=True, type=click.IntRange(1, 64), default=(2, 18), show_default=True, help="Boards.")
@click.option(
    "--size",
    "payloads",
    multiple=True,
    default=("0.1MB", "1MB", "10MB", "45MB"),
    show_default=True,
    help="Of the model: values (250000) or bytes of float32 (1MB); may be repeated.",
)
@click.option(
    "--codec", default="fp32", show_default=True, metavar="NAME[:KEY=VALUE,...]", help="What our boards send."
)
@click.option(
    "--tensors", default=8, show_default=True, type=click.IntRange(1, 1000), help="That the model is made of."
)
@click.option(
    "--rounds", default=12, show_default=True, type=click.IntRange(2), help="Of ours; the first is not timed."
)
@click.option("--stock-rounds", default=4, show_default=True, type=click.IntRange(2), help="Of stock Flower.")
@click.option("--stock/--no-stock", default=True, help="Measure stock Flower too.")
@click.option("--updates", default=18, show_default=True, type=click.IntRange(0), help="To average; 0: leave that out.")
@click.option(
    "--averaged",
    multiple=True,
    default=("4-bit-elastiquant", "co3"),
    show_default=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="Codec of the updates that are averaged; may be repeated.",
)
@click.option("--check", is_flag=True, help="Compare with the targets; exit with 6 when one is missed.")
@click.option("--save", type=click.Path(file_okay=False), help="Also write server.json and server.md into this folder.")
@JSON
def server(
    nodes: tuple[int, ...],
    payloads: tuple[str, ...],
    codec: str,
    tensors: int,
    rounds: int,
    stock_rounds: int,
    stock: bool,
    updates: int,
    averaged: tuple[str, ...],
    check: bool,
    save: str | None,
    as_json: bool,
) -> int:
    """Seconds, CPU and memory of a round through our coordinator and through stock Flower, in the
    same run.

    \b
    Examples:
      edgegossip bench server --nodes 2 --size 1MB
      edgegossip bench server --nodes 18 --size 1MB --no-stock --codec co3
      edgegossip bench server --check --save docs/results

    Boards train next to nothing: what is measured is the round itself.
    """
    from edgegossip.lab.bench.server import Asked, run

    folder = Path(save) if save else None
    asked = Asked(nodes, payloads, codec, tensors, rounds, stock_rounds, stock, updates, averaged, check, folder)
    document, code = run(asked, sys.argv[1:], (lambda text: None) if as_json else click.echo)
    if as_json:
        click.echo(json.dumps(document))
    return code


@bench.command()
@click.option("--recipe", default="quickstart-gossip", show_default=True, help="Whose rounds are played.")
@SETTINGS
@click.option(
    "--rounds", default=60, show_default=True, type=click.IntRange(5), help="With profiling, and as many without."
)
@click.option("--check", is_flag=True, help="Exit with 6 when it costs more than 1 %.")
@JSON
def profiling(recipe: str, settings: tuple[str, ...], rounds: int, check: bool, as_json: bool) -> int:
    """CPU time that profiling costs a board: the same rounds with it and without it, turn and turn
    about.

    \b
    Examples:
      edgegossip bench profiling --set model.name=resnet20
      edgegossip bench profiling --recipe cifar10-gossip --set model.name=resnet20 --check
    """
    from edgegossip import recipe as recipes
    from edgegossip.lab.bench.profiling import run, text_of
    from edgegossip.node.meters import NodeMeters

    meters = NodeMeters()
    meters.begin()
    document = run(recipes.load(recipe, settings), rounds, lambda: meters(due=False))
    click.echo(json.dumps(document) if as_json else text_of(document))
    return 6 if check and not document["ok"] else 0
