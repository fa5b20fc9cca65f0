"""Virtual nodes: the algorithm's own arithmetic, the same bits again, and bytes that are those of
the frames."""

import dataclasses

import numpy as np
import pytest

from edgegossip import frame as wire
from edgegossip import gossip, training
from edgegossip.gossip.base import Adopted, RoundDone, Says, Send
from edgegossip.node.spec import NodeSpec, default_members, make_algorithm, make_topology, make_view
from edgegossip.recipe import run_id, with_settings
from edgegossip.studies.cases import StudyPlan, make_cases, product
from edgegossip.studies.measure import ModelRecorder, measure_rounds
from edgegossip.studies.run_case import DataSetCache, run_case
from edgegossip.studies.virtual import VirtualFleet
from edgegossip.types import LocalUpdate, Metrics, UsageError


def views_of(recipe, layout):
    members = default_members(recipe.run.nodes)
    return [make_view(NodeSpec(recipe, name, members, run_id(recipe)), layout) for name in members]


def recorder_of(recipe):
    rounds = measure_rounds(recipe.run.rounds)
    return ModelRecorder(recipe.run.nodes, frozenset(), rounds, lambda x: Metrics(0.0, 1), lambda: 0)


def result_of(recipe):
    (case,) = make_cases(recipe, StudyPlan())
    return run_case(case, DataSetCache())


def without_time(result):
    return {key: value for key, value in result.items() if not key.endswith("seconds")}


def test_dpsgd_over_virtual_nodes_is_the_matrix_recursion(base):
    """x <- W x + delta(x), from boards built one by one."""
    layout, x = training.initial_model(base)
    fleet = VirtualFleet(make_algorithm(base), views_of(base, layout), training.build_workloads(base), base.run.rounds)
    recorder = recorder_of(base)
    fleet.play(x, recorder)
    boards = [training.build_workload(base, k) for k in range(base.run.nodes)]
    w = make_topology(base, default_members(base.run.nodes)).matrix(0)
    models = np.stack([x.astype(np.float64)] * base.run.nodes)
    distances = []
    for round in range(base.run.rounds):
        updates = [board.local_update(m.astype(np.float32), round) for board, m in zip(boards, models, strict=True)]
        models = w @ models + np.stack([u.delta for u in updates])
        distances.append(np.sqrt(np.mean(np.sum((models - models.mean(0)) ** 2, axis=1))))
    np.testing.assert_allclose(np.stack(fleet.models), models, atol=2e-6)
    np.testing.assert_allclose([d for _, d in recorder.distances], distances, rtol=1e-3, atol=1e-5)
    assert fleet.train_loss == pytest.approx(np.mean([u.loss for u in updates]), rel=1e-4)


def test_a_study_sweeps_the_order_of_step_and_mixing(base):
    """From equal models, of one round: W (x + delta), where Lian's order has W x + delta."""
    base = with_settings(base, {"run.rounds": 1, "data.partition": "sorted"})
    cases = make_cases(
        base, StudyPlan(), product([("gossip.order", ["auto", "adapt-with-combine", "adapt-then-combine"])])
    )
    found = [run_case(case, DataSetCache()) for case in cases]
    apart = [r["consensus_distance"][-1][1] for r in found]
    assert 0 < apart[2] < apart[1] == apart[0]


@pytest.mark.parametrize("algorithm", gossip.names())
def test_every_algorithm_runs_and_repeats_bit_for_bit(base, algorithm):
    topology = "complete" if algorithm == "parallel-sgd" else "ring"
    recipe = with_settings(base, {"gossip.algorithm": algorithm, "gossip.topology": topology})
    if algorithm == "k-gt":  # which no momentum may repeat
        recipe = with_settings(recipe, {"training.momentum": 0.0})
    first, second = result_of(recipe), result_of(recipe)
    assert first["state"] == "done" and first["suspected"] == 0
    assert without_time(first) == without_time(second)
    assert len(first["consensus_distance"]) == recipe.run.rounds


def test_another_seed_is_another_run(base):
    assert result_of(base)["loss"] != result_of(with_settings(base, {"run.seed": 8}))["loss"]


def test_bytes_are_those_of_the_frames_that_were_sent(base, monkeypatch):
    built, build = [], wire.build

    def counting(frame):
        built.append((sum(map(len, build(frame))), len(frame.body)))
        return build(frame)

    monkeypatch.setattr(wire, "build", counting)
    result = result_of(with_settings(base, {"codec.name": "minmax8"}))
    assert len(built) >= 2 * base.run.nodes * base.run.rounds
    sent = result["sent_bytes"]
    assert sent["payload"] == sum(body for _, body in built)
    assert sent["payload"] + sent["overhead"] == sum(size for size, _ in built)
    assert result["bytes_per_node_round"] == sum(size for size, _ in built) / (4 * 6)
    assert 8 < result["bits_per_value"] < 9
    first = result["curve"][0]
    assert first["round"] == 2 and 0.4 < first["sent_bytes"] / sum(size for size, _ in built) < 0.6


@dataclasses.dataclass
class _Numbers:
    """A workload that adds 1 and has no data."""

    layout: object

    def local_update(self, x, round, correction=None):
        return LocalUpdate(np.ones_like(x), 1.0, 0.5, 1, 1)


class _Echo:
    """An algorithm that ends a round when the next node's message is there, with a timer and, if
    asked, no way on."""

    name, asynchronous, bodies, says = "echo", False, 1, Says.MODELS

    def __init__(self, asynchronous=False, deaf=False, adopts=False):
        self.asynchronous = self.listens = asynchronous
        self.deaf, self.adopts, self.log = deaf, adopts, []

    def init(self, x, view):
        return {"view": view, "x": x, "round": 0, "stepped": False, "got": 0}

    def start(self, s):
        return s, []

    def correction(self, s):
        return None

    def _maybe(self, s):
        if not (s["stepped"] and s["got"] > s["round"]):
            return s, []
        s = {**s, "round": s["round"] + 1, "stepped": False}
        return s, [RoundDone(s["round"] - 1, 0.0, 0.0)]

    def step(self, s, local):
        view = s["view"]
        to = view.members[(view.index + 1) % len(view.members)]
        frame = wire.Frame(wire.Kind.HELLO, 1, b"", view.layout.hash, view.run_id, s["round"], 1, 0, b"")
        s, actions = self._maybe({**s, "x": s["x"] + local.delta, "stepped": True})
        return s, [Send(to, frame), *actions]

    def receive(self, s, m):
        self.log.append((s["view"].index, s["stepped"]))
        if self.adopts and not s["stepped"]:
            self.adopts = False
            return {**s, "x": s["x"] + 100, "got": s["got"] + 1}, [Adopted(m.sender, s["round"])]
        return self._maybe({**s, "got": s["got"] + (not self.deaf)})

    def tick(self, s, now_s):
        return s, []

    def model(self, s):
        return s["x"]

    def round(self, s):
        return s["round"]

    def waiting_for(self, s):
        return (s["view"].members[s["view"].index - 1],)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_messages_reach_a_node_while_it_computes_only_under_an_asynchronous_algorithm(base, asynchronous):
    recipe = with_settings(base, {"run.rounds": 20})
    layout, x = training.initial_model(recipe)
    algorithm = _Echo(asynchronous)
    fleet = VirtualFleet(algorithm, views_of(recipe, layout), [_Numbers(layout)] * 4, 20)
    fleet.play(x, recorder_of(recipe))
    assert any(not stepped for _, stepped in algorithm.log) == asynchronous
    np.testing.assert_allclose(fleet.models[0], x + 20, rtol=1e-5)
    assert fleet.sent.payload_bytes == 0 and np.isnan(fleet.sent.bits_per_value)


class _Halving(_Numbers):
    """A workload whose update is minus half of the model."""

    def local_update(self, x, round):
        return LocalUpdate(-x / 2, 1.0, 0.5, 1, 1)


def test_an_update_of_a_model_that_was_given_up_is_made_anew(base):
    layout, x = training.initial_model(base)
    fleet = VirtualFleet(_Echo(True, adopts=True), views_of(base, layout), [_Halving(layout)] * 4, 1)
    fleet.play(x, recorder_of(with_settings(base, {"run.rounds": 1})))
    found = sorted(float(np.abs(model - x / 2).max().round(3)) for model in fleet.models)
    assert found == [0, 0, 0, 50]  # (x + 100) / 2, not x + 100 - x / 2


def test_whoever_waits_for_ever_is_named(base):
    layout, x = training.initial_model(base)
    fleet = VirtualFleet(_Echo(deaf=True), views_of(base, layout), [_Numbers(layout)] * 4, 3)
    with pytest.raises(UsageError, match="board-0 waits in round 0 for board-3"):
        fleet.play(x, recorder_of(base))
