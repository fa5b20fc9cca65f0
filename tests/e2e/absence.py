"""What it costs a fleet when three of eighteen boards are away for a part of the run: accuracy with and without, over many
seeds.

    python -m tests.e2e.absence --data fashion-mnist --seeds 5 --away 5-105 5-205 --out absence.jsonl

The run of tests/e2e/test_members_training.py on virtual nodes (edgegossip.study): the same algorithm objects, frames and
workloads, in one process and on a virtual clock, so that a difference of a tenth of a point can be told from the noise of
one seed and a small test set. At the first round of --away the three die: what they hold and what is on its way to them is
lost, the others know. At the second they are back with nothing, greet their neighbours and take over a model. Resumable:
what OUT has is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_view
from edgegossip.recipe import Recipe
from edgegossip.study.measure import Recorder
from edgegossip.study.run_case import Opened
from edgegossip.study.virtual import GREETING_S, VirtualFleet
from edgegossip.types import NodeId, Round, Vec

NODES, DEAD = 18, (3, 8, 9)
SETTINGS = {"run.nodes": NODES, "run.rounds": 150, "training.local_steps": 30, "evaluation.every": 1000}
LIMIT = 0.005  # half a point


class Mortal(VirtualFleet):
    """Nodes of `dead` are away from round `gone` to round `back`, by the rounds of the first node."""

    def __init__(self, *arguments: Any, gone: Round, back: Round, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._gone, self._back = gone, back
        self._away: set[int] = set()
        self._start: Vec | None = None

    def play(self, x: Vec, recorder: Recorder) -> None:
        self._start = x
        super().play(x, recorder)

    def _done(self, node: Any, round: Round) -> None:
        if node.view.index == 0 and round == self._gone:
            self._leave()
        if node.view.index == 0 and round == self._back:
            self._return()
        super()._done(node, round)

    def _leave(self) -> None:
        self._away = set(DEAD)
        for k in DEAD:
            node = self._nodes[k]
            node.computing, node.timer = None, node.timer + 1
            node.held.clear()
        self._tell(frozenset(self._nodes[k].view.node for k in DEAD))

    def _return(self) -> None:
        self._away = set()
        assert self._start is not None
        for k in DEAD:
            node = self._nodes[k]
            node.view = replace(node.view, boot=node.view.boot ^ 1, down=frozenset())
            node.held.clear()
            node.state = self._algorithm.init(self._start, node.view)
        self._tell(frozenset())
        for k in DEAD:
            node = self._nodes[k]
            self._advance(node, *self._algorithm.start(node.state))
            self._after(GREETING_S, lambda node=node: super(Mortal, self)._begin(node))  # type: ignore[misc]

    def _tell(self, down: frozenset[NodeId]) -> None:
        for k, node in enumerate(self._nodes):
            if k not in DEAD:
                node.view = node.view.with_down(down)
                self._advance(node, *self._algorithm.membership(node.state, node.view))

    def _begin(self, node: Any) -> None:
        if node.view.index not in self._away:
            super()._begin(node)

    def _computed(self, node: Any) -> None:
        if node.computing is not None:  # else it died meanwhile
            super()._computed(node)

    def _arrived(self, node: Any, sender: NodeId, data: bytes) -> None:
        if node.view.index not in self._away:
            super()._arrived(node, sender, data)


def play(recipe: Recipe, opened: Opened, away: tuple[Round, Round] | None) -> dict[str, float]:
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
    opened = Opened()
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
