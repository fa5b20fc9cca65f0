"""The recipe of boards that train by themselves."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.alone import alone, join_scores
from edgegossip.node.spec import make_algorithm, make_topology
from edgegossip.recipe import Recipe
from edgegossip.telemetry.records import MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import beside, summarise
from edgegossip.types import ConfigError


def _recipe(**sections: object) -> Recipe:
    return recipes.from_dict({"run": {"name": "r", "nodes": 3, "rounds": 7, "seed": 5}, **sections})


@pytest.mark.parametrize(
    "recipe",
    [
        _recipe(training={"lr": 0.3, "optimizer": "adam"}, codec={"name": "co3"}, gossip={"algorithm": "choco-sgd"}),
        _recipe(run={"name": "r", "mode": "server", "nodes": 3}, server={"strategy": "fedadam", "fraction": 0.5}),
        _recipe(gossip={"algorithm": "parallel-sgd", "topology": "complete"}, outer={"optimizer": "nesterov"}),
        _recipe(gossip={"topology": "complete", "malicious_nodes": 1}, run={"name": "r", "nodes": 5}),
    ],
    ids=["choco", "server", "parallel", "malicious"],
)
def test_only_the_exchange_is_left_out(recipe: Recipe) -> None:
    made, members = alone(recipe), tuple("abcde"[: recipe.run.nodes])
    assert made.run == replace(recipe.run, name="r-alone", mode="gossip")
    kept = ("data", "model", "training", "evaluation", "checkpoint", "guard", "network")
    assert all(getattr(made, section) == getattr(recipe, section) for section in kept)
    topology = make_topology(made, members)
    assert all(not topology.neighbours(k, 0).out and not topology.neighbours(k, 0).in_ for k in range(len(members)))
    make_algorithm(made)
    assert recipes.from_dict(tomllib.loads(recipes.to_toml(made))) == made


@pytest.mark.parametrize(
    ("gossip", "momentum"),
    [
        ({"momentum": "quasi-global", "momentum_factor": 0.5}, ("quasi-global", 0.5)),
        ({"algorithm": "parallel-sgd", "topology": "complete", "params": {"momentum": 0.7}}, ("heavy-ball", 0.7)),
        (
            {"algorithm": "parallel-sgd", "topology": "complete", "params": {"momentum": 0.7, "nesterov": True}},
            ("nesterov", 0.7),
        ),
        ({}, ("none", 0.9)),
    ],
)
def test_a_momentum_around_the_algorithm_is_the_boards_own(
    gossip: dict[str, object], momentum: tuple[str, float]
) -> None:
    made = alone(_recipe(gossip=gossip, training={"momentum": 0.0})).gossip
    assert (made.momentum, made.momentum_factor) == momentum
    in_server = alone(_recipe(run={"mode": "server", "name": "r", "nodes": 3}, gossip=gossip)).gossip
    assert in_server.momentum == "none"


@pytest.mark.parametrize(
    ("evaluation", "data", "said"),
    [
        ({"patience": 2}, {}, "leave evaluation.patience out"),
        ({"where": "coordinator"}, {"partition": "local"}, 'leave evaluation.where = "coordinator" out'),
    ],
)
def test_what_could_not_be_compared_is_refused(evaluation: Any, data: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        alone(_recipe(run={"mode": "server", "name": "r", "nodes": 3}, evaluation=evaluation, data=data))
    alone(_recipe(run={"mode": "server", "name": "r", "nodes": 3}, evaluation={"where": "coordinator"}))


def test_nobody_to_talk_to_has_no_parameters() -> None:
    with pytest.raises(ConfigError, match=r"gossip\.topology_params\.degree"):
        make_topology(_recipe(gossip={"topology": "none", "topology_params": {"degree": 3}}), ("a", "b"))


def test_what_a_board_reached_alone_comes_before_all_that_it_says(tmp_path: Path) -> None:
    """A board's clock starts later than that of the run folder."""
    by_itself = RunFolder.create(tmp_path, "alone", "", {})
    by_itself.write(MetricsRecord("board-0", 3, 9.0, {"eval/accuracy": 0.5, "eval/loss": 1.0, "eval/examples": 10}))
    by_itself.close()
    together = RunFolder.create(tmp_path, "together", "", {}, start_s=0.0)  # the machine's start: long ago
    join_scores(together, by_itself.path)
    together.close()
    (event,) = read_run(together.path).events()
    assert (event.name, event.t_s, event.fields["eval/accuracy"]) == ("trained-alone", 0.0, 0.5)


def test_a_board_that_was_lost_by_itself_is_held_against_nothing(tmp_path: Path) -> None:
    members = ("a", "b", "c")
    by_itself, together = (
        RunFolder.create(tmp_path, name, recipes.to_toml(_recipe()), {}) for name in ("r-alone", "r")
    )
    for folder, mae in ((by_itself, 0.25), (together, 0.5)):
        for name in members:
            folder.write(MetricsRecord(name, 6, 1.0, {"eval/mae": 4757.0 if (name, mae) == ("b", 0.25) else mae}))
    by_itself.event("b", "lost", "lost b: the training loss became inf")
    by_itself.close()
    join_scores(together, by_itself.path)
    together.close()
    run = read_run(together.path)
    assert [row[1:3] for row in beside(summarise(run))] == [(0.25, 0.5), (None, 0.5), (0.25, 0.5)]
    assert [event.text for event in run.events() if event.node == "b"] == [
        "b by itself was lost: the training loss became inf"
    ]
