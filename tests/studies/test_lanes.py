"""Nodes that compute at the same time: the results of one after the other, to the bit."""

import threading

import pytest
import torch

from edgegossip import training
from edgegossip.recipe import with_settings
from edgegossip.studies.cases import StudyPlan, make_cases
from edgegossip.studies.lanes import Lanes, lanes_of
from edgegossip.studies.run_case import DataSetCache, run_case
from edgegossip.training import models
from edgegossip.types import UsageError

CNN = {"model.name": "cnn", "model.params": {"channels": [4], "hidden": 8}}


def figures_of(recipe, **more):
    (case,) = make_cases(recipe, StudyPlan(more))
    result = run_case(case, DataSetCache())
    kept = {key: value for key, value in result.items() if not key.endswith("seconds") and key != "recipe"}
    return kept, case.key


@pytest.mark.parametrize(
    "settings",
    [
        {"gossip.momentum": "quasi-global", "training.momentum": 0.0, "codec.name": "qsgd"},
        {**CNN, "gossip.algorithm": "ad-psgd"},
        {
            "model.name": "resnet8",
            "model.params": {},
            "model.norm": "batchnorm",
            "run.rounds": 2,
            "training.momentum": 0.9,
        },
        {**CNN, "model.keep": ["6.*"], "training.optimizer": "adam", "training.lr": 0.01},
        {"run.mode": "server", "codec.name": "minmax8", "server.downlink": "minmax8"},
        {"run.mode": "server", "server.strategy": "scaffold", "training.momentum": 0.0},
        {"run.nodes": 5, "gossip.topology": "complete", "attack.kind": "alie"},
        {"run.mode": "server", "run.nodes": 5, "attack.kind": "sign-flip"},
    ],
    ids=lambda settings: " ".join(str(value) for value in settings.values() if isinstance(value, str)),
)
def test_the_bits_of_a_study_do_not_depend_on_its_threads(base, settings):
    attack = {key: value for key, value in settings.items() if key.startswith("attack.")}
    recipe = with_settings(base, {key: value for key, value in settings.items() if key not in attack})
    alone, together = (figures_of(with_settings(recipe, {"run.threads": threads}), **attack) for threads in (1, 3))
    assert alone == together and alone[0]["state"] == "done"


def test_a_run_that_diverges_says_so_from_any_lane(base):
    recipe = with_settings(base, {"training.lr": 1000.0, "run.rounds": 50, "training.momentum": 0.99})
    alone, together = (figures_of(with_settings(recipe, {"run.threads": threads}))[0] for threads in (1, 2))
    assert alone["state"] == together["state"] == "failed" and alone["reason"] == together["reason"] != ""
    assert "accuracy" not in alone and alone["sent_bytes"]["payload"] > 0


def test_lanes_work_at_the_same_time_and_each_in_order():
    meet, order = threading.Barrier(2, timeout=20), []
    with Lanes(2) as lanes:
        both = [lanes.submit(k, meet.wait) for k in (0, 1)]  # neither ends before the other begins
        assert sorted(one.result() for one in both) == [0, 1]
        last = [lanes.submit(2, order.append, k) for k in range(50)][-1]
        last.result()
    assert order == list(range(50))


def test_one_lane_does_its_work_at_once_and_raises_there():
    def fails():
        raise UsageError("no")

    with Lanes() as lanes:
        assert lanes.submit(3, threading.get_ident).result() == threading.get_ident()
        with pytest.raises(UsageError, match="no"):
            lanes.submit(0, fails)


def own_model(input_shape, classes, norm):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


@pytest.mark.parametrize(
    ("settings", "lanes"),
    [
        ({"run.threads": 1}, 1),
        ({"run.threads": 3}, 3),
        ({"run.threads": 64}, 4),  # no more than nodes
        ({"run.threads": 2, "training.precision": "bf16"}, 2),
        ({"run.threads": 2, "training.precision": "int8"}, 1),
        ({"run.threads": 2, "model.name": f"{__name__}:own_model", "model.params": {}}, 1),
    ],
)
def test_there_are_as_many_lanes_as_threads_where_nodes_do_not_meet(base, settings, lanes):
    recipe = with_settings(base, settings)
    count, of_a_node = lanes_of(recipe)
    assert count == lanes
    assert of_a_node.run.threads == (1 if lanes > 1 else recipe.run.threads)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "vgg11"])
def test_models_that_may_be_together_draw_nothing(base, name):
    recipe = with_settings(base, {"model.name": name, "model.params": {}})
    assert training.can_be_together(recipe) and not models.draws(recipe.model)
    model, before = training.build_model(recipe).train(), torch.get_rng_state()
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
