"""Rounds through a virtual coordinator: FedAvg by hand, and by Flower."""

import numpy as np
import pytest

from edgegossip import codecs, training
from edgegossip import frame as wire
from edgegossip.codecs.base import Ctx
from edgegossip.engine.server_frames import frame_key
from edgegossip.node.spec import default_members
from edgegossip.recipe import run_id, with_settings
from edgegossip.studies.cases import StudyPlan, make_cases
from edgegossip.studies.measure import ModelRecorder
from edgegossip.studies.run_case import DataSetCache, check, run_case
from edgegossip.studies.server import VirtualServer
from edgegossip.types import ConfigError, LocalUpdate, Metrics, UsageError


@pytest.fixture
def recipe(base):
    shares = {"data.partition": "dirichlet", "data.alpha": 0.3, "training.batch_size": 200}  # of unequal size
    return with_settings(base, {"run.mode": "server", **shares, "codec.name": "ef-signsgd"})


def test_it_is_fedavg_of_decoded_updates_by_hand(recipe):
    layout, x0 = training.initial_model(recipe)
    codec = codecs.get("ef-signsgd")
    members, run = default_members(4), run_id(recipe)
    server = VirtualServer(layout, run, codec, members, training.build_workloads(recipe), recipe.run.rounds)
    server.play(x0, ModelRecorder(4, frozenset(), frozenset(), lambda x: Metrics(0, 1), lambda: 0))
    boards = [training.build_workload(recipe, k) for k in range(4)]
    states, x, payload, examples = [codec.init(layout)] * 4, x0, 0, set()
    for round in range(recipe.run.rounds):
        total, weights = np.zeros(layout.size), 0
        for k, board in enumerate(boards):
            update = board.local_update(x, round)
            ctx = Ctx(frame_key(run, members[k], round), round, update.loss, update.lr)
            body, states[k] = codec.encode(update.delta, states[k], ctx)
            total += update.examples * (x.astype(np.float64) + codec.decode(body, layout))
            weights, payload = weights + update.examples, payload + len(body)
            examples.add(update.examples)
        x = (total / weights).astype(np.float32)
    assert len(examples) > 1
    np.testing.assert_allclose(server.model, x, atol=1e-6)
    assert server.sent.payload_bytes == payload and server.refused == 0


def test_bytes_down_are_one_exact_model_a_node_and_round(recipe):
    (case,) = make_cases(recipe, StudyPlan())
    result = run_case(case, DataSetCache())
    layout = training.layout_of(recipe)
    assert result["state"] == "done" and result["refused"] == 0 and result["consensus_distance"] == []
    assert result["received_bytes"] == 4 * 6 * (4 * layout.size + wire.HEADER_BYTES)
    rates = result["accuracy"]
    assert rates["averaged"] == rates["mean"] == rates["min"] == rates["max"] > 0
    assert result["bits_per_value"] < 2


def test_the_levels_of_each_round_are_in_the_result(recipe):
    rule = {"codec.name": "elasticl", "codec.params": {"s0": 4, "smoothing": 0.0}, "training.momentum": 0.0}
    slower = {"training.schedule": "step", "training.step_rounds": 3, "training.step_factor": 0.01}
    (case,) = make_cases(with_settings(recipe, rule | slower), StudyPlan())
    levels = run_case(case, DataSetCache())["levels"]
    assert levels[:2] == [4, 4] and levels[4:] == [1, 1]  # a round behind the rate, which falls after the third


def test_scaffold_sends_its_control_variate_beside_the_model_and_nothing_more_up(recipe):
    plain = {"training.momentum": 0.0, "training.optimizer": "sgd", "training.local_steps": 3}
    results = {}
    for strategy in ("fedavg", "scaffold"):
        (case,) = make_cases(with_settings(recipe, {**plain, "server.strategy": strategy}), StudyPlan())
        results[strategy] = run_case(case, DataSetCache())
    size = training.layout_of(recipe).size
    fedavg, scaffold = results["fedavg"], results["scaffold"]
    assert scaffold["state"] == fedavg["state"] == "done" and scaffold["loss"] != fedavg["loss"]
    assert scaffold["received_bytes"] - fedavg["received_bytes"] == 4 * 6 * (4 * size + wire.AUX_BYTES)
    assert scaffold["sent_bytes"] == fedavg["sent_bytes"]
    with pytest.raises(ConfigError, match="scaffold corrects each gradient.*training.momentum = 0"):
        check(with_settings(recipe, {"server.strategy": "scaffold", "training.momentum": 0.9}))


class _Huge:
    def __init__(self, layout):
        self.layout = layout

    def local_update(self, x, round):
        return LocalUpdate(np.full(self.layout.size, 3e38, np.float32), 1.0, 1.0, 1, 1)


def test_updates_that_would_overflow_are_refused_and_a_round_without_any_ends_the_run(recipe):
    layout, x = training.initial_model(recipe)
    server = VirtualServer(layout, run_id(recipe), codecs.get("fp32"), default_members(2), [_Huge(layout)] * 2, 5)
    recorder = ModelRecorder(2, frozenset(), frozenset(), lambda x: Metrics(0, 1), lambda: 0)
    with pytest.raises(UsageError, match="no update of round 1 can be used.*not be finite"):
        server.play(x, recorder)
    assert server.refused == 2


@pytest.mark.parametrize(("optimizer", "algorithm"), [("nesterov", "dpsgd"), ("adam", "parallel-sgd")])
def test_an_outer_optimiser_is_the_same_with_a_coordinator_and_without(base, optimizer, algorithm):
    """Where everybody hears everybody it is one method: DiLoCo, or FedOpt. Boards have AdamW."""
    local = {"training.optimizer": "adamw", "training.lr": 0.003, "training.local_steps": 4, "codec.name": "fp32"}
    outer = {"outer.optimizer": optimizer, "outer.lr": 0.5 if optimizer == "nesterov" else 0.02}
    server = {"run.mode": "server", "server.weighting": "uniform"}
    gossip = {"run.mode": "gossip", "gossip.algorithm": algorithm, "gossip.topology": "complete"}
    cases = [make_cases(with_settings(base, {**local, **outer, **mode}), StudyPlan())[0] for mode in (server, gossip)]
    with_server, without = (run_case(case, DataSetCache()) for case in cases)
    assert with_server["state"] == without["state"] == "done"
    assert with_server["loss"]["averaged"] == pytest.approx(without["loss"]["averaged"], rel=1e-3)
    assert without["consensus_distance"][-1][1] < 1e-3
    alone = run_case(make_cases(with_settings(base, {**local, **server}), StudyPlan())[0], DataSetCache())
    assert alone["loss"]["averaged"] != pytest.approx(with_server["loss"]["averaged"], rel=1e-2)


@pytest.mark.parametrize(("key", "value"), [("evaluation.patience", 2), ("checkpoint.best", True)])
def test_what_a_study_does_not_do_is_refused(recipe, key, value):
    with pytest.raises(ConfigError, match=f"{key} = .*: a study "):
        check(with_settings(recipe, {key: value}))
