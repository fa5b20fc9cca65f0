"""Boards of a study that lie: what they send, how it is asked for, and what clipping and robust
strategies make of it."""

from dataclasses import dataclass

import numpy as np
import pytest
from typing_extensions import override

from edgegossip.engine.node import NodeEngine
from edgegossip.gossip import tracking
from edgegossip.gossip.publish import Plain
from edgegossip.recipe import Recipe, with_settings
from edgegossip.studies.attack import Attack, AttackedBoards
from edgegossip.studies.cases import StudyPlan, make_cases, product
from edgegossip.studies.run_case import DataSetCache, check, run_case
from edgegossip.studies.summary import variants, write_plots
from edgegossip.types import ConfigError, LocalUpdate
from tests.studies.test_plots import faked


class _Steps:
    """A workload that moves by a vector of its own."""

    def __init__(self, step):
        self.step = np.array(step, np.float32)

    def local_update(self, x, round):
        return LocalUpdate(self.step, 1.0, 0.5, 7, 1)


HONEST = ([1.0, 2.0], [3.0, 2.0], [5.0, 2.0])  # mean (3, 2), standard deviation (1.633, 0)


@pytest.mark.parametrize(
    ("kind", "scale", "target"),
    [
        ("sign-flip", 1.0, [10 - 3, 10 - 2]),  # from where the honest were, their mean update backwards
        ("scaled", 10.0, [10 - 30, 10 - 20]),
        ("ipm", 0.5, [10 - 1.5, 10 - 1]),
        ("alie", 1.5, [10 + 3 - 1.5 * (8 / 3) ** 0.5, 10 + 2]),
    ],
)
def test_a_liar_sends_what_its_attack_says(kind, scale, target):
    boards = AttackedBoards([_Steps(step) for step in (*HONEST, [0.0, 0.0])], Attack(kind, 1, scale))
    x = np.full(2, 10.0, np.float32)
    for k in range(boards.honest):
        np.testing.assert_array_equal(boards.local_update(k, x, 0).result().delta, HONEST[k])
    own = np.array([-4.0, 8.0], np.float32)  # wherever it is itself
    lie = boards.local_update(3, own, 0).result()
    np.testing.assert_allclose(own + lie.delta, target, rtol=1e-6)
    assert boards.lies(3) and not boards.lies(2) and (lie.examples, lie.loss) == (7, 0.5)


def test_a_liar_claims_more_examples_than_anybody_has():
    boards = AttackedBoards([_Steps(step) for step in (*HONEST, [0.0, 0.0])], Attack("claims", 1, 1.0))
    x = np.full(2, 10.0, np.float32)
    honest = [boards.local_update(k, x, 0).result().weight for k in range(boards.honest)]
    lie = boards.local_update(3, x, 0).result()
    np.testing.assert_allclose(x + lie.delta, [10 - 3, 10 - 2], rtol=1e-6)
    assert honest == [7, 7, 7] and lie.weight == 900 * 7


def test_claims_of_examples_steer_the_plain_mean_and_no_robust_strategy(base):
    shared = with_settings(base, {"run.mode": "server", "run.nodes": 8, "run.rounds": 3, "data.partition": "iid"})
    for strategy, moved in (("fedavg", True), ("fedmedian", False)):
        lies = ("attack.kind", ["sign-flip", "claims"])
        cases = cases_of(shared, lies, **{"server.strategy": strategy, "attack.boards": 2})
        flipped, claimed = (run_case(case, DataSetCache())["loss"]["averaged"] for case in cases)
        assert (claimed > flipped + 0.1) == moved


def cases_of(base, *sweeps, **settings):
    return make_cases(base, StudyPlan(settings), product(sweeps))


def test_a_case_without_liars_is_the_same_whatever_is_said_of_them(base):
    plain, none = cases_of(base), cases_of(base, ("attack.kind", ["none"]), ("attack.boards", [2]))
    assert none[0].attack is None and none[0].key == plain[0].key
    (lies,) = cases_of(base, ("attack.kind", ["alie"]))
    assert lies.attack == Attack("alie", 1, 1.5) and lies.key != plain[0].key and lies.name == "alie"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attack.boards": 2}, "attack.kind is missing"),
        ({"attack.kind": "signflip"}, "attack.kind = .signflip.: not one of none, .*did you mean sign-flip"),
        ({"attack.kind": "alie", "attack.board": 1}, "unknown key attack.board; did you mean attack.boards"),
        (
            {"attack.kind": "alie", "attack.boards": 4},
            "attack.boards = 4: one of the boards is honest; the nearest is 3",
        ),
        ({"attack.kind": "alie", "attack.boards": True}, "attack.boards = true: must be a whole number"),
        ({"attack.kind": "alie", "attack.scale": float("nan")}, "attack.scale = nan: out of range"),
    ],
)
def test_mistakes_are_named(base, settings, words):
    with pytest.raises(ConfigError, match=words):
        cases_of(base, **settings)


ATTACKS = ("attack.kind", ["none", "sign-flip", "scaled", "alie", "label-flip"])


def test_a_study_that_sweeps_attacks_runs_and_plots(base, tmp_path, monkeypatch):
    plots = pytest.importorskip("edgegossip.sweep.plots", reason="an extra: pip install '.[report]'")
    monkeypatch.setattr(plots, "save", lambda figure, path: path)
    base = with_settings(base, {"run.nodes": 5, "gossip.topology": "complete", "run.rounds": 3})
    cases = cases_of(base, ("gossip.malicious_nodes", [0, 1]), ("attack.kind", ["none", "scaled", "label-flip"]))
    cache = DataSetCache()
    results = {case.key: run_case(case, cache) for case in cases}
    assert [result["state"] for result in results.values()].count("failed") <= 1  # scaled, and nothing against it
    assert all("attack" in results[case.key] for case in cases if case.attack)
    assert write_plots(tmp_path, cases, results)
    losses = {case.name: results[case.key].get("loss", {}).get("averaged", np.inf) for case in cases}
    assert losses["malicious_nodes=1, scaled"] < losses["malicious_nodes=0, scaled"]


def test_attacks_are_problems_and_have_panels_of_their_own():
    cases = make_cases(Recipe(), StudyPlan(), product([ATTACKS, ("gossip.algorithm", ["dpsgd", "choco-sgd"])]))
    found = [(v.panel, v.color, v.mark) for v in variants(cases, faked(cases))]
    assert found[:2] == [("", "dpsgd", ""), ("", "choco-sgd", "")]
    assert found[2:4] == [("sign-flip", "dpsgd", ""), ("sign-flip", "choco-sgd", "")]


@pytest.mark.parametrize("strategy", ["multikrum", "fedtrimmedavg"])
def test_a_robust_strategy_of_a_server_study_bears_two_liars_of_twelve(base, strategy):
    """Twelve: by name, board-10 and board-11 come before the honest board-2."""
    params = {"server.strategy_params": {"num_malicious_nodes": 2}} if "krum" in strategy else {}
    server = {"run.mode": "server", "run.nodes": 12, "run.rounds": 4, "server.strategy": strategy, **params}
    shared = with_settings(base, {**server, "data.partition": "iid"})
    attacked, honest = cases_of(shared, ("attack.kind", ["scaled", "none"]), **{"attack.boards": 2})
    first, second = run_case(attacked, DataSetCache()), run_case(attacked, DataSetCache())
    assert first["state"] == "done" and first["loss"] == second["loss"]
    assert first["loss"]["averaged"] < run_case(honest, DataSetCache())["loss"]["averaged"] + 0.3


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            {"server.strategy": "bulyan", "server.strategy_params": {"num_malicious_nodes": 2}},
            "bulyan needs .*= 11 answers",
        ),
        ({"server.fraction": 0.5}, "a study plays every node in every round"),
        ({"server.malicious_nodes": 2}, "cannot hold for server.strategy = fedavg"),
        ({"server.malicious_nodes": 2, "server.strategy": "fedadam"}, "cannot hold for server.strategy = fedadam"),
        ({"server.strategy": "krumm"}, "did you mean krum"),
    ],
)
def test_a_server_study_that_cannot_run_is_refused_before_it_starts(base, server, words):
    with pytest.raises(ConfigError, match=words):
        check(with_settings(base, {"run.mode": "server", "run.nodes": 8, **server}))


@dataclass(frozen=True)
class Steers(Plain):
    """Says of its direction, the second body of its message, so many times as much."""

    times: float = 1.0

    @override
    def publish(self, memory, v, local, ctx):
        lies = ctx.part == 1 and ctx.name(ctx.index) == "board-3"
        return super().publish(memory, np.float32(self.times) * v if lies else v, local, ctx)


@pytest.mark.parametrize(
    ("times", "skew"), [(-1.0, 0.0), (3.0, 0.5), (-3.0, 0.9), (1.0, 0.0), (1.0, 0.5), (1.0, 0.9), (0.0, 0.5)]
)
def test_who_steers_by_its_direction_is_named_once_and_nobody_else_is(base, monkeypatch, times, skew):
    """Its length is what shows: who says less than it has does little."""
    said = []
    monkeypatch.setattr(NodeEngine, "_log", lambda self, *line, **fields: said.append((self.config.node, line, fields)))
    monkeypatch.setattr(tracking, "Plain", lambda: Steers(times=times))
    settings = {"run.rounds": 25, "data.partition": "skew", "data.skew": skew, "training.momentum": 0.0}
    settings |= {"gossip.algorithm": "gt-dsgd", "training.nesterov": False, "training.lr": 0.02}
    (case,) = cases_of(with_settings(base, settings), ("run.seed", [1]))
    run_case(case, DataSetCache())
    said = [(node, text, fields["peer"]) for node, (event, text), fields in said if event == "outlier"]
    named = [(node, peer) for node, _, peer in said]
    assert sorted(named) == [("board-0", "board-3"), ("board-2", "board-3")] * (abs(times) > 0.5 and times != 1.0)
    assert all("with gossip.malicious_nodes bounds what it can do" in text for _, text, _ in said)
