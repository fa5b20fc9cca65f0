"""`edgegossip export`: a trained model as an ONNX file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from edgegossip.cli.options import JSON


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE", help="The ONNX file."
)
@click.option("--board", metavar="NAME", help="Whose model of a run folder. Default: the first board's.")
@click.option(
    "--examples",
    type=click.IntRange(1, 1_000_000),
    default=256,
    show_default=True,
    help="Of the training set, to set the scales of an int8 model.",
)
@JSON
def export(model: Path, out: Path, board: str | None, examples: int, as_json: bool) -> None:
    """Write the model of a run as an ONNX file, and compare the two on the run's test set.

    MODEL is a run folder, or a .npz file in its checkpoint/. A model that was trained in int8 becomes a QDQ model: int8
    weights, and fixed scales where int8 values flow.

    \b
    Examples:
      edgegossip export runs/20260102-030405-quickstart-gossip -o model.onnx
      edgegossip export runs/*-fashion/checkpoint/board-2.npz -o model.onnx --examples 1000
    """
    from edgegossip.export.run import export as export_model
    from edgegossip.report.units import bytes_text

    done = export_model(model, out, board=board, examples=examples)
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    click.echo(
        f"{done.file}: {bytes_text(done.size_bytes)}, the model's values in fp32 are {bytes_text(done.fp32_bytes)}"
    )
    beside = (
        "onnxruntime is not installed" if done.onnx_accuracy is None else f"{done.onnx_accuracy:.4f} by onnxruntime"
    )
    click.echo(f"accuracy on {done.tested:,} test examples: {done.accuracy:.4f} in torch, {beside}")
