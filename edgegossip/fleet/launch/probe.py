"""What a training script would train on each board, before a run: every board's process runs it up
to its `join`, or its first round, and ends there. What the script does until then, it does."""

from __future__ import annotations

import json
import queue
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from edgegossip import recipe as recipes
from edgegossip.agreement import Agreement, difference
from edgegossip.fleet.launch.fork_server import MODULES, OF_SCRIPTS, ForkServer
from edgegossip.fleet.launch.supervisor import BoardProcess, Message, spawn, stop_all
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import Recipe
from edgegossip.telemetry.spans import Watch
from edgegossip.types import NodeId

JOIN_S = 600.0  # for a script to come there


@dataclass(frozen=True, slots=True)
class Joined:
    """Is what joined on one board, the most memory that it had taken by then, and what a run would
    say of it; or the `problem` that kept it from joining."""

    layout: Layout | None = None
    agreement: Agreement = Agreement({})
    peak_rss_bytes: int = 0
    notices: tuple[str, ...] = ()
    problem: str = ""


def probe(
    recipe: Recipe, names: Sequence[NodeId], members: Sequence[NodeId], ends_at: str = "join"
) -> Mapping[NodeId, Joined]:
    """Run the recipe's script up to its `join`, or with "first round" to that, for each of these
    `members` of the run, or its coordinator, all at the same time. Takes JOIN_S at most. Raises
    HostError when no process can be started."""
    messages: queue.Queue[Message] = queue.Queue()
    boards: list[BoardProcess] = []
    with tempfile.TemporaryDirectory(prefix="edgegossip-probe-") as place:
        folder = Path(place)
        (folder / "recipe.toml").write_text(recipes.to_toml(recipe), encoding="utf-8")
        modules = (*MODULES[recipe.run.mode], *OF_SCRIPTS)
        with ForkServer(modules, recipe.run.threads, folder / "fork-server.log") as fork_server:
            try:
                for name in names:
                    words = ["node", str(folder / "recipe.toml"), "--probe", ends_at, "--name", name]
                    words += ["--boards", ",".join(members), "--save", str(folder / f"{name}.json")]
                    boards.append(spawn(fork_server, name, words, folder / f"{name}.log", messages))
                _await(boards, messages, ends_at)
            finally:
                stop_all(boards)
        return {board.name: _found(board, folder / f"{board.name}.json", ends_at) for board in boards}


def misfit(joined: Mapping[NodeId, Joined]) -> str:
    """Say in which way boards' models do not fit together; empty where they do."""
    fit = [(one.agreement, f"on {name}") for name, one in joined.items() if not one.problem]
    return next(filter(None, (difference(fit[0][0], theirs, fit[0][1], there) for theirs, there in fit[1:])), "")


def _await(boards: Sequence[BoardProcess], messages: queue.Queue[Message], ends_at: str) -> None:
    """Wait until each has said what joined, or has ended, or JOIN_S are over."""
    watch, by_name = Watch(), {board.name: board for board in boards}
    while (late := [b.name for b in boards if b.code is None and not b.joined]) and watch.s < JOIN_S:
        if watch.due():
            click.echo(f"waiting {watch.s:.0f} s for the script to come to its {ends_at}: {', '.join(late)}", err=True)
        with suppress(queue.Empty):
            message = messages.get(timeout=0.2)
            by_name[message.node].update(message)


def _found(board: BoardProcess, file: Path, ends_at: str) -> Joined:
    if file.is_file():
        document = json.loads(file.read_bytes())
        layout = Layout.of(TensorSpec(name, tuple(shape), trainable) for name, shape, trainable in document["layout"])
        memory, notices = int(document["peak_rss_bytes"] or 0), tuple(document["notices"])
        return Joined(layout, Agreement(document["agreement"]), memory, notices)
    if board.code is None:
        return Joined(problem=f"it did not come to its {ends_at} within {JOIN_S:.0f} s")
    said = board.log.read_text("utf-8", "replace").strip().splitlines()
    last = f": {said[-1]}" if said else ""
    ended = board.exit_reason() if board.code < 0 else f"its process ended with exit code {board.code}{last}"
    return Joined(problem=board.last_error or ended)
