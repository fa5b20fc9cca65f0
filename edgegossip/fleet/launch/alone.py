"""`run --alone`: what each board learns by itself, to hold beside what training together gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgegossip.gossip.base import Says
from edgegossip.gossip.topologies import NOBODY
from edgegossip.node.spec import make_algorithm
from edgegossip.recipe import CodecSection, GossipSection, OuterSection, Recipe, tests_by_board
from edgegossip.telemetry.records import EVALUATED, EventRecord, score_text
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise
from edgegossip.types import ConfigError


def alone(recipe: Recipe) -> Recipe:
    """Return the recipe of the same boards, data, rounds and seed without exchange: each trains
    with its local optimiser, a momentum around it included. Raises ConfigError where the two could
    not be compared: the run together may end early, or is tested on other data."""
    if recipe.evaluation.patience:
        raise ConfigError("--alone compares as many rounds of each: leave evaluation.patience out")
    if recipe.run.mode == "server" and recipe.evaluation.where == "coordinator" and tests_by_board(recipe):
        raise ConfigError(
            '--alone compares scores on each board\'s own test set: leave evaluation.where = "coordinator" out'
        )
    gossip = recipe.gossip if recipe.run.mode == "gossip" else GossipSection()
    momentum, factor = gossip.momentum, gossip.momentum_factor
    sums = recipe.run.mode == "gossip" and make_algorithm(recipe).says is Says.UPDATES
    if sums and (own := float(gossip.params.get("momentum", 0.0))):  # of what everybody sent, a board's own included
        momentum, factor = "nesterov" if gossip.params.get("nesterov") else "heavy-ball", own
    return replace(
        recipe,
        run=replace(recipe.run, name=f"{recipe.run.name}-alone", mode="gossip"),
        gossip=GossipSection(topology=NOBODY, momentum=momentum, momentum_factor=factor),
        codec=CodecSection(),
        outer=OuterSection(),
    )


def join_scores(together: RunFolder, by_itself: Path) -> None:
    """Write what each board reached by itself into the run folder of the run together: an event
    `trained-alone` a board, so that the folder tells it wherever it is taken. A board that was lost
    has reached nothing that could be compared."""
    for row in summarise(read_run(by_itself))["boards"]:
        fields: Mapping[str, Any] = {}
        if row["state"] == "lost":
            text = f"{row['node']} by itself was lost: {row['why']}"
        elif row["scores"]:
            fields = {f"{EVALUATED}{name}": value for name, value in row["scores"].items()}
            if row["loss"] is not None:
                fields = {f"{EVALUATED}loss": row["loss"], **fields}
            said = ", ".join(f"{name} {score_text(name, value)}" for name, value in row["scores"].items())
            text = f"{row['node']} by itself reached {said}"
        else:
            continue
        # At 0: the board's own clock starts later, and all that it says comes after this.
        together.write(EventRecord(row["node"], 0.0, "trained-alone", text, fields))
