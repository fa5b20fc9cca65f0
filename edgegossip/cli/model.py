"""`edgegossip model`: the models that a recipe may name, and a run's model as a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgegossip.cli.options import JSON, OUTPUT, Listing, command
from edgegossip.options import REQUIRED, option
from edgegossip.telemetry.records import score_text

if TYPE_CHECKING:
    from edgegossip.export import Exported


@click.group()
def model() -> None:
    """List the models that recipes may name; write a run's model to a file."""


@command(Listing, model, name="list")
def list_(options: Listing) -> None:
    """Show the models, for model.name and model.params; module:function names your own."""
    from edgegossip.training import models

    found = models.described()
    if options.as_json:
        click.echo(json.dumps([{"name": name, "help": about, "params": list(own)} for name, about, own in found]))
    else:
        width = max(len(name) for name, _, _ in found)
        for name, about, own in found:
            params = f"; params: {', '.join(own)}" if own else ""
            click.echo(f"{name:{width}}  {about}{params}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommand:
    """Options of `edgegossip model save`."""

    runs: tuple[Path, ...] = option(REQUIRED, argument=True, exists=True, metavar="RUN...")
    out: Path = OUTPUT(
        REQUIRED,
        "Its ending is the format: .safetensors, .npz, .onnx or .pt2.",
        path="file",
        metavar="FILE",
    )
    board: str | None = option(
        None,
        "A board's name, averaged or coordinator. Default: averaged over the boards of a gossip run, the "
        "coordinator's of a server run.",
        metavar="NAME",
    )
    round: int | None = option(
        None,
        "As it was after N rounds, where a checkpoint of that round is kept. Default: the newest.",
        low=0,
        metavar="N",
    )
    best: bool = option(
        False, "As it was after the round whose evaluations were the best, of a run with checkpoint.best = true."
    )
    adapter: bool = option(
        False, "Values that travelled alone, such as an adapter without its frozen base; .safetensors or .npz."
    )
    examples: int = option(
        256, "Of the training set, to set the scales of an int8 model in a .onnx.", low=1, high=1_000_000
    )
    as_json: bool = JSON()


@command(SaveCommand, model)
def save(options: SaveCommand) -> None:
    """Write the model of a run that has ended, or was stopped, to a file.

    RUN is a run folder; name those of several boards that ran by hand to average over them.
    .safetensors and .npz hold the values by the names of the state_dict: what travelled and, in a
    board's own model, what stayed on it. .onnx and .pt2 (torch.export) hold the program too, and
    are compared with the model on the run's test set.

    \b
    Examples:
      edgegossip model save runs/20260102-030405-quickstart-gossip -o model.safetensors
      edgegossip model save runs/*-fashion --board board-2 --round 40 -o model.npz
      edgegossip model save runs/*-fashion -o model.onnx
      edgegossip model save runs/*-fashion --best -o best.safetensors
      edgegossip model save runs/*-distilbert --adapter -o adapter.safetensors
      edgegossip model save pi-*/runs/* -o model.safetensors
    """
    from edgegossip.export import write
    from edgegossip.report.models import RunModels

    if options.best and options.round is not None:
        raise click.UsageError("--best is of one round and --round of another: leave one out")
    models = RunModels(options.runs)
    found = models.model(options.board, models.best_round if options.best else options.round)
    if options.adapter:
        found = found.adapter(options.out)
    _say(write(found, models.recipe, options.out, examples=options.examples), options.as_json)


def _say(done: Exported, as_json: bool) -> None:
    if as_json:
        onnx = {"onnx_accuracy": done.file_accuracy} if done.file.endswith(".onnx") else {}
        click.echo(json.dumps({**asdict(done), **onnx}))
    else:
        click.echo("\n".join(_sentences(done)))


def _sentences(done: Exported) -> list[str]:
    from edgegossip.report.units import bytes_text
    from edgegossip.telemetry.cures import named

    whose = f"the model of {done.board}"
    if done.away:
        lost = f", without {named(done.without)}, which did not finish," if done.without else ""
        whose = f"the average over {len(done.away)} board{'s' * (len(done.away) != 1)}{lost}"
    size, fp32 = bytes_text(done.size_bytes), bytes_text(done.fp32_bytes)
    lines = [f"{done.file}: {whose} after {done.round} rounds, {size}; what travelled of it is {fp32} in fp32"]
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
    examples = f"{done.tested:,} test examples{f' of {done.tested_by}' if done.tested_by else ''}"
    if done.accuracy is not None:
        file = Path(done.file)
        by = "onnxruntime" if file.suffix == ".onnx" else "torch.export"
        beside = f"{by} is not installed"
        if done.file_accuracy is not None:
            beside = (
                f"{score_text('accuracy', done.file_accuracy)} by {by}, outputs at most {done.difference:.2g} apart"
            )
        lines.append(f"accuracy on {examples}: {score_text('accuracy', done.accuracy)} in torch, {beside}")
    elif done.difference is not None:
        lines.append(f"outputs for {examples} are at most {done.difference:.2g} apart from torch's")
    return lines
