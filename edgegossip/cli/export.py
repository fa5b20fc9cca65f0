"""`edgegossip export`: a trained model as an ONNX file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgegossip.cli.model import as_document, sentences
from edgegossip.cli.options import JSON


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The file: .onnx, or what else `edgegossip model` writes.",
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
    """Write the model of one board as an ONNX file, and compare the two on the run's test set.

    MODEL is a run folder, or a model's file in its checkpoint/. A model that was trained in int8
    becomes a QDQ model: int8 weights, and fixed scales where int8 values flow. `edgegossip model`
    also averages over boards, and writes other formats.

    \b
    Examples:
      edgegossip export runs/20260102-030405-quickstart-gossip -o model.onnx
      edgegossip export runs/*-fashion/checkpoint/board-2.npz -o model.onnx --examples 1000
    """
    from edgegossip.export import write
    from edgegossip.report.models import RunModels

    folder = model if model.is_dir() else model.parent.parent
    models = RunModels([folder])
    if not model.is_dir():
        board = models.board_of(model)
    done = write(models.model(board or models.first), models.recipe, out, examples=examples)
    click.echo(json.dumps(as_document(done)) if as_json else "\n".join(sentences(done)))
