r"""Measures what it costs a fleet when three of eighteen boards are away for a part of the run:
accuracy with and without, over many seeds.

    python -m tests.e2e.absence --data fashion-mnist --seeds 5 --away 5-105 5-205 \
        --out absence.jsonl

The run of tests/e2e/test_members_training.py on virtual nodes (edgegossip.study): the same
algorithm objects, frames and workloads, in one process and on a virtual clock, so that a difference
of a tenth of a point can be told from the noise of one seed and a small test set. At the first
round of --away the three die: what they hold and what is on its way to them is lost, the others
know. At the second they are back with nothing, say HELLO to their neighbours and take over a model.
Resumable: what OUT has is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.engine.events import Event, PeerDown, PeerUp, RoundEnded
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_view
from edgegossip.recipe import Recipe
from edgegossip.study.measure import Recorder
from edgegossip.study.run_case import DataSetCache
from edgegossip.study.virtual import VirtualFleet
from edgegossip.types import Round

NODES, DEAD = 18, (3, 8, 9)
SETTINGS = {"run.nodes": NODES, "run.rounds": 150, "training.local_steps": 30, "evaluation.every": 1000}
LIMIT = 0.005  # half a point


class Mortal(VirtualFleet):
    """Nodes of `dead` are away from round `gone` to round `back`, by the rounds of the first
    node."""

    def __init__(self, *arguments: Any, gone: Round, back: Round, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._gone, self._back = gone, back
        self._away: set[int] = set()

    def _ended(self, node: Any, ended: RoundEnded) -> None:
        super()._ended(node, ended)
        if node.view.index == 0 and ended.done.round == self._gone:
            self._leave()
        if node.view.index == 0 and ended.done.round == self._back:
            self._return()

    def _leave(self) -> None:
        self._away = set(DEAD)
        for k in DEAD:
            self._nodes[k].process += 1
            self._nodes[k].timers.clear()
            self._nodes[k].held.clear()
        self._tell(PeerDown, "its process is gone")

    def _return(self) -> None:
        self._away = set()
        for k in DEAD:
            node = self._nodes[k]
            node.view = replace(node.view, boot=node.view.boot ^ 1)
            node.engine, node.greeting = self._engine_of(node.view, restarted=True), True
        self._tell(PeerUp)
        for k in DEAD:
            self._boot(self._nodes[k])

    def _tell(self, event: Callable[..., Event], *why: str) -> None:
        for k, node in enumerate(self._nodes):
            for gone in (self._nodes[j].view.node for j in DEAD) if k not in DEAD else ():
                if gone in node.engine.config.neighbours:
                    self._take(node, event(gone, *why))

    def _take(self, node: Any, event: Event) -> None:
        if node.view.index not in self._away:
            super()._take(node, event)


def play(recipe: Recipe, opened: DataSetCache, away: tuple[Round, Round] | None) -> dict[str, float]:
    """Mean over all nodes of their final test accuracy and loss."""
    workloads = training.build_workloads(recipe, opened.get(recipe.data))
    members = default_members(NODES)
    views = [make_view(NodeSpec(recipe, name, members, bytes(16)), workloads[0].layout) for name in members]
    gone, back = away or (-1, -1)
    fleet = Mortal(make_algorithm(recipe), views, workloads, recipe.run.rounds, gone=gone, back=back)
    nothing = Recorder(NODES, frozenset(), frozenset(), lambda x: workloads[0].evaluate(x, None), lambda: 0)
    fleet.play(workloads[0].initial(recipe.run.seed), nothing)
    found = [workloads[0].evaluate(x, None) for x in fleet.models]
    return {"accuracy": fmean(m.accuracy for m in found), "loss": fmean(m.loss for m in found)}


def differences(rows: Sequence[dict[str, Any]], away: str) -> list[float]:
    """Of one absence, a seed each: accuracy with it less accuracy without."""
    by = {(row["seed"], row["away"]): row["accuracy"] for row in rows}
    return [by[s, away] - by[s, ""] for s, a in sorted(by) if a == away and (s, "") in by]


def report(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each data set and absence."""
    out = ["| data | away | seeds | accuracy without | difference in points: mean | of one seed (s.d.) | worst |"]
    out.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        without = fmean(row["accuracy"] for row in mine if row["away"] == "")
        for away in dict.fromkeys(row["away"] for row in mine if row["away"]):
            found = [100 * d for d in differences(mine, away)]
            spread = stdev(found) if len(found) > 1 else float("nan")
            numbers = f"{fmean(found):+.2f} | {spread:.2f} | {min(found):+.2f}"
            out.append(f"| {data} | {away} | {len(found)} | {without:.4f} | {numbers} |")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--dir", default="", help="folder of the data set")
    parser.add_argument("--train", type=int, default=0, help="use only so many training examples")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--away", nargs="+", default=["5-105", "5-55"], help="first round away, first round back")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--out", type=Path, default=Path("absence.jsonl"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["data"], row["seed"], row["away"]) for row in rows}
    own = {key: recipes.parse_value(text) for key, text in (s.split("=", 1) for s in options.settings)}
    data = {"data.name": options.data, "data.dir": options.dir, "data.train_examples": options.train}
    opened = DataSetCache()
    for seed in range(1, options.seeds + 1):
        for away in ("", *options.away):
            if (options.data, seed, away) in done:
                continue
            recipe = recipes.with_settings(
                recipes.load("quickstart-gossip"), {**SETTINGS, **data, **own, "run.seed": seed}
            )
            began = time.monotonic()
            first, _, second = away.partition("-")
            row: dict[str, Any] = {"data": options.data, "seed": seed, "away": away}
            row |= play(recipe, opened, (int(first), int(second)) if away else None)
            row["seconds"] = round(time.monotonic() - began, 1)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
            print(row, flush=True)
    print(report(rows))


if __name__ == "__main__":
    main()
