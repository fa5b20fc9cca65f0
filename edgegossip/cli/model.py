"""`edgegossip model`: a run's model as a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgegossip.cli.options import JSON

if TYPE_CHECKING:
    from edgegossip.export import Exported


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Its ending is the format: .safetensors, .npz, .onnx or .pt2.",
)
@click.option(
    "--board",
    metavar="NAME",
    help="A board's name, averaged or coordinator. Default: averaged over the boards of a gossip run, the "
    "coordinator's of a server run.",
)
@click.option(
    "--round",
    type=click.IntRange(0),
    metavar="N",
    help="As it was after N rounds, where a checkpoint of that round is kept. Default: the newest.",
)
@click.option(
    "--examples",
    type=click.IntRange(1, 1_000_000),
    default=256,
    show_default=True,
    help="Of the training set, to set the scales of an int8 model in a .onnx.",
)
@JSON
def model(
    runs: tuple[Path, ...], out: Path, board: str | None, round: int | None, examples: int, as_json: bool
) -> None:
    """Write the model of a run that has ended, or was stopped, to a file.

    RUN is a run folder; name those of several boards that ran by hand to average over them.
    .safetensors and .npz hold the values by the names of the state_dict: what travelled and, in a
    board's own model, what stayed on it. .onnx and .pt2 (torch.export) hold the program too, and
    are compared with the model on the run's test set.

    \b
    Examples:
      edgegossip model runs/20260102-030405-quickstart-gossip -o model.safetensors
      edgegossip model runs/*-fashion --board board-2 --round 40 -o model.npz
      edgegossip model runs/*-fashion -o model.onnx
      edgegossip model pi-*/runs/* -o model.safetensors
    """
    from edgegossip.export import write
    from edgegossip.report.models import RunModels

    models = RunModels(runs)
    done = write(models.model(board, round), models.recipe, out, examples=examples)
    click.echo(json.dumps(as_document(done)) if as_json else "\n".join(sentences(done)))


def as_document(done: Exported) -> dict[str, object]:
    """Return what `--json` prints."""
    document = asdict(done)
    if done.file.endswith(".onnx"):
        document["onnx_accuracy"] = done.file_accuracy
    return document


def sentences(done: Exported) -> list[str]:
    """Return what is said of a file that was written."""
    from edgegossip.report.units import bytes_text

    whose = f"the average over {len(done.away)} boards" if done.away else f"the model of {done.board}"
    size, fp32 = bytes_text(done.size_bytes), bytes_text(done.fp32_bytes)
    lines = [f"{done.file}: {whose} after {done.round} rounds, {size}; its values in fp32 are {fp32}"]
    if done.away:
        far = max(done.away, key=lambda name: done.away[name])
        mean = (sum(d * d for d in done.away.values()) / len(done.away)) ** 0.5
        lines.append(
            f"the boards' own models are {mean:.2%} of its norm away (root mean square); farthest: {far}, "
            f"{done.away[far]:.2%}"
        )
    if done.left_out:
        names = ", ".join(done.left_out[:4]) + (", ..." if len(done.left_out) > 4 else "")
        lines.append(f"left out, because each board has its own: {names}; --board NAME has them")
    if done.accuracy is not None:
        file = Path(done.file)
        by = "onnxruntime" if file.suffix == ".onnx" else "torch.export"
        beside = f"{by} is not installed"
        if done.file_accuracy is not None:
            beside = f"{done.file_accuracy:.4f} by {by}, outputs at most {done.difference:.2g} apart"
        lines.append(f"accuracy on {done.tested:,} test examples: {done.accuracy:.4f} in torch, {beside}")
    elif done.difference is not None:
        lines.append(f"outputs for {done.tested:,} test examples are at most {done.difference:.2g} apart from torch's")
    return lines
