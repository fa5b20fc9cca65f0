"""Flower's robust strategies over compressed updates: with two liars of eight the model ends near
the honest boards' mean, whatever the codec, and what cannot is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgegossip import codecs
from edgegossip.engine.combine import Combiner, WeightedUpdate
from edgegossip.engine.server_frames import Channel, Uplink
from edgegossip.flower.combine import check_enough, combiner, make_strategy, nearest_means, turned_against
from edgegossip.gossip.robust import far_beyond
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import ServerSection
from edgegossip.types import ConfigError, LocalUpdate

LAYOUT = Layout.of([TensorSpec("w", (20, 10)), TensorSpec("b", (20,))])
HONEST, LIARS, ROUNDS, RATE = 6, 2, 30, 0.15
STRATEGIES: dict[str, dict[str, Any]] = {
    "krum": {"num_malicious_nodes": LIARS},
    "multikrum": {"num_malicious_nodes": LIARS, "num_nodes_to_select": HONEST},
    "fedtrimmedavg": {"beta": 0.25},
    "fedmedian": {},
}
ATTACKS = ("sign-flip", "scaled", "alie")
DENSE = ["fp32", "minmax8", "4-bit-elastiquant", "elasticl", "co3", "signsgd", "ef-signsgd", "8-bit-qsgd", "powersgd"]
QUICK = ("fp32", "4-bit-elastiquant", "co3", "ef-signsgd")  # exact, coarse, entropy-coded, with a memory
SPARSE: dict[str, dict[str, Any]] = {
    "topk": {"ratio": 0.3},
    "randk": {"ratio": 0.3},
    "qsgd": {"bits": 2},
    "terngrad": {},
}


def made(strategy: str, codec: str, **params: Any) -> tuple[Combiner, Channel]:
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get(codec, **params))
    return combiner(make_strategy(strategy, STRATEGIES[strategy]), channel, uniform=True), channel


def distance(combined: Combiner, channel: Channel, attack: str) -> float:
    """How far the model ends from the mean of what honest boards go to, in lengths of the way."""
    rng = np.random.default_rng(0)
    goals = rng.normal(size=LAYOUT.size) + 0.2 * rng.normal(size=(HONEST, LAYOUT.size))
    uplinks = [Uplink(channel, f"b{k}") for k in range(HONEST + LIARS)]
    x = np.zeros(LAYOUT.size, np.float32)
    for round in range(ROUNDS):
        deltas = [RATE * (goal - x) for goal in goals]
        mean, std = np.mean(deltas, axis=0), np.std(deltas, axis=0)
        lie = {"sign-flip": -mean, "scaled": -10 * mean, "alie": mean - 1.5 * std}[attack]
        shares = []
        for k, (uplink, delta) in enumerate(zip(uplinks, [*deltas, *[lie] * LIARS], strict=True)):
            update = LocalUpdate(delta.astype(np.float32), RATE, float(np.mean(mean**2)), 10, 1)
            shares.append(WeightedUpdate(f"b{k}", uplink.frame(update, round, {}), 10.0, k + 1))
        model = combined.combine(round, x, shares).model
        assert model is not None
        x = model
    goal = goals.mean(axis=0)
    return float(np.linalg.norm(x - goal) / np.linalg.norm(goal))


@pytest.mark.parametrize("strategy", ["krum", "multikrum", "bulyan", "fedmedian", "fedtrimmedavg"])
def test_claims_of_examples_move_no_robust_strategy(strategy: str, in_run: int) -> None:
    channel, rng = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32")), np.random.default_rng(0)
    params = {"num_nodes_to_select": 7} if strategy == "multikrum" else {}
    deltas, models = (1 + 0.1 * rng.normal(size=(7, LAYOUT.size))).astype(np.float32), []
    for claimed in ([10.0] * 7, [10.0, 9000.0, *[10.0] * 5]):
        combined = combiner(make_strategy(strategy, params), channel, uniform=False)
        shares = [
            WeightedUpdate(
                f"b{k}", Uplink(channel, f"b{k}").frame(LocalUpdate(d, 0.1, 1.0, 10, 1), 0, {}), claim, k + 1
            )
            for k, (d, claim) in enumerate(zip(deltas, claimed, strict=True))
        ]
        models.append(combined.combine(0, np.zeros(LAYOUT.size, np.float32), shares).model)
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize(
    "codec", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DENSE]
)
def test_two_liars_of_eight_do_not_lead_the_model_away(codec: str, in_run: int) -> None:
    """Honest boards' goals are 0.2 apart; krum follows one board of them. Every codec with every
    other strategy; the attacks take turns."""
    first = DENSE.index(codec)
    for k, strategy in list(enumerate(STRATEGIES))[first % 2 :: 2]:
        attack = ATTACKS[(first + k) % len(ATTACKS)]
        bound = 0.45 if "krum" in strategy else 0.25
        assert distance(*made(strategy, codec), attack) < bound, (strategy, attack)


@pytest.mark.parametrize(
    "codec", ["topk", "qsgd", *(pytest.param(c, marks=pytest.mark.slow) for c in ("randk", "terngrad"))]
)
def test_nor_where_most_values_are_not_sent(codec: str, in_run: int) -> None:
    attack = ATTACKS[list(SPARSE).index(codec) % len(ATTACKS)]
    assert distance(*made("multikrum", codec, **SPARSE[codec]), attack) < 0.45


@pytest.mark.parametrize("strategy", ["fedmedian", "fedtrimmedavg"])
@pytest.mark.parametrize("codec", [*SPARSE, "dgc"])
def test_a_middle_of_values_that_nobody_sent_is_refused(strategy: str, codec: str) -> None:
    with pytest.raises(ConfigError, match=f"{strategy} hardly learns with codec {codec}, .*use krum or multikrum"):
        made(strategy, codec, **SPARSE.get(codec, {}))


def test_an_update_becomes_a_mean_with_its_nearest_and_stands_for_the_farthest() -> None:
    at = {"a": 0.0, "b": 1.0, "c": 3.0, "liar": 100.0}
    found = nearest_means({name: np.full(2, value, np.float32) for name, value in at.items()}, 1)
    wanted = {"a": 1.0, "b": 1.25, "c": 1.75, "liar": 51.0}
    assert list(found) == list(at)
    for name, mean in found.items():
        np.testing.assert_allclose(mean, wanted[name], rtol=1e-6)


def test_an_update_that_is_refused_is_nobodys_nearest(in_run: int) -> None:
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    combined = combiner(make_strategy("fedmedian", {}), channel, uniform=True, malicious=1)
    shares = []
    for k, value in enumerate((0.0, 1.0, 2.0, 10.0, 1e4)):
        update = LocalUpdate(np.full(LAYOUT.size, value, np.float32), 0.1, 1.0, 10, 1)
        shares.append(WeightedUpdate(f"b{k}", Uplink(channel, f"b{k}").frame(update, 0, {}), 10.0, k + 1))
    found = combined.combine(0, np.zeros(LAYOUT.size, np.float32), shares)
    assert set(found.refused) == {"b4"} and found.model is not None
    np.testing.assert_allclose(found.model, 1.125, rtol=1e-6)  # of 0.75, 1, 1.25 and 5.75


def skewed(seed: int) -> dict[str, np.ndarray]:
    """Updates of boards each of which has two of eight labels, and a length of its own: each label
    has values of its own, and so have all together."""
    rng = np.random.default_rng(seed)
    ways = rng.normal(size=(HONEST + LIARS, LAYOUT.size))
    sizes = rng.uniform(0.3, 3.0, size=len(ways))
    updates = [s * (ways[k] + ways[(k + 1) % len(ways)] + 0.5 * ways.sum(axis=0)) for k, s in enumerate(sizes)]
    return {f"b{k}": u.astype(np.float32) for k, u in enumerate(updates)}


def named(strategy: str, updates: dict[str, np.ndarray]) -> set[str]:
    """Whom a coordinator finds far beyond the others in a round."""
    combined, channel = made(strategy, "fp32")
    shares = []
    for k, (name, delta) in enumerate(updates.items()):
        frame = Uplink(channel, name).frame(LocalUpdate(delta, 0.1, 1.0, 10, 1), 0, {})
        shares.append(WeightedUpdate(name, frame, 10.0, k + 1))
    return set(far_beyond(combined.combine(0, np.zeros(LAYOUT.size, np.float32), shares).distances))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_coordinator_names_liars_and_no_board_whose_labels_differ(strategy: str, in_run: int) -> None:
    for seed in range(5):
        updates = skewed(seed)
        assert not named(strategy, updates)
        honest = list(updates.values())[:HONEST]
        for scale in (1.0, 10.0):
            lies = {f"b{HONEST + k}": -scale * np.mean(honest, axis=0) for k in range(LIARS)}
            assert named(strategy, {**updates, **lies}) == set(lies)


def test_an_update_that_is_many_times_as_far_is_named_whatever_its_way() -> None:
    updates = skewed(0)
    for times, found in ((8.0, False), (40.0, True)):
        further = turned_against({**updates, "b7": times * updates["b7"] / np.linalg.norm(updates["b7"]) * 40.0})
        assert (set(far_beyond(further)) == {"b7"}) == found, further


def test_an_update_is_turned_away_by_its_angle_to_the_middle_one_of_the_others() -> None:
    at = {"a": (1, 0), "b": (2, 0), "c": (0, 3), "none": (0, 0), "liar": (-2, 0)}
    found = turned_against({name: np.array(way, np.float32) for name, way in at.items()})
    assert found == {"a": 1.0, "b": 1.0, "c": 1.0, "none": 1.0, "liar": pytest.approx(3.0)}
    assert turned_against({"a": np.ones(2, np.float32)}) == {"a": 1.0} and turned_against({}) == {}


@pytest.mark.parametrize("strategy", ["multikrum", "fedmedian", "fedtrimmedavg"])
def test_where_data_differ_means_of_the_nearest_lead_nearer_to_the_honest(strategy: str, in_run: int) -> None:
    """Every board knows some values alone, which no middle one has."""
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    deltas = 0.1 * np.ones((8, LAYOUT.size), np.float32)
    for k in range(HONEST):
        deltas[k, k::HONEST] += 1.0
    goal = deltas[:HONEST].mean(axis=0)
    deltas[HONEST:] = -10 * goal
    away = {}
    for malicious in (0, LIARS):
        combined = combiner(make_strategy(strategy, STRATEGIES[strategy]), channel, uniform=True, malicious=malicious)
        shares = []
        for k, delta in enumerate(deltas):
            frame = Uplink(channel, f"b{k}").frame(LocalUpdate(delta, 0.1, 1.0, 10, 1), 0, {})
            shares.append(WeightedUpdate(f"b{k}", frame, 10.0, k + 1))
        model = combined.combine(0, np.zeros(LAYOUT.size, np.float32), shares).model
        assert model is not None
        away[malicious] = np.linalg.norm(model - goal)
    if strategy == "multikrum":  # which takes all six honest ones
        assert away[LIARS] == pytest.approx(away[0], abs=1e-5)
    else:
        assert away[LIARS] < 0.4 * away[0]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            {"strategy": "fedavg"},
            "cannot hold for server.strategy = fedavg, which takes what every board says: use fedmedian",
        ),
        ({"strategy": "fedadam"}, "cannot hold for server.strategy = fedadam"),
        ({"strategy": "fedmedian", "quorum": 6}, "= 5 answers, and 2 more for liars .*, got 6 in every round"),
    ],
)
def test_malicious_nodes_are_refused_where_nothing_bears_them(server: dict[str, Any], words: str) -> None:
    section = ServerSection(malicious_nodes=2, **server)
    with pytest.raises(ConfigError, match=words):
        check_enough(make_strategy(section.strategy, {}), section, 8)


@pytest.mark.parametrize(
    ("boards", "strategy", "key", "too_few", "words"),
    [
        (8, "fedtrimmedavg", "beta", 0.2, "of 8 answers beta = 0.2 leaves out 1 at either end; say .*beta = 0.25"),
        (8, "krum", "num_malicious_nodes", 1, "krum is told of 1; say server.strategy_params.num_malicious_nodes = 2"),
        (8, "multikrum", "num_malicious_nodes", 0, "multikrum is told of 0"),
        (13, "bulyan", "num_malicious_nodes", 0, "bulyan is told of 0"),
    ],
)
def test_a_strategy_that_bears_fewer_is_refused_and_one_that_does_as_it_says_is_not(
    boards: int, strategy: str, key: str, too_few: float, words: str
) -> None:
    section = ServerSection(malicious_nodes=2, strategy=strategy)
    with pytest.raises(ConfigError, match=f"server.malicious_nodes = 2 cannot hold: {words}"):
        check_enough(make_strategy(strategy, {key: too_few}), section, boards)
    check_enough(make_strategy(strategy, {key: 0.25 if key == "beta" else 2}), section, boards)


@given(st.integers(1, 8), st.integers(3, 18))
def test_the_beta_that_is_asked_for_leaves_out_as_many(liars: int, boards: int) -> None:
    assume(3 * liars < boards)
    section = ServerSection(malicious_nodes=liars, strategy="fedtrimmedavg")
    with pytest.raises(ConfigError, match=r"beta = ") as refused:
        check_enough(make_strategy("fedtrimmedavg", {"beta": 0.0}), section, boards)
    told = float(str(refused.value).rpartition(" = ")[2])
    check_enough(make_strategy("fedtrimmedavg", {"beta": told}), section, boards)


@pytest.mark.parametrize(
    ("strategy", "params", "boards"),
    [
        ("krum", {"num_malicious_nodes": 1}, 6),
        ("krum", {"num_malicious_nodes": 2}, 8),
        ("multikrum", {"num_malicious_nodes": 2, "num_nodes_to_select": 6}, 8),
        ("bulyan", {"num_malicious_nodes": 1}, 8),
        ("fedmedian", {}, 7),
        ("fedtrimmedavg", {"beta": 0.3}, 7),
    ],
)
def test_boards_are_as_many_as_liars_call_for(strategy: str, params: dict[str, Any], boards: int) -> None:
    section = ServerSection(malicious_nodes=params.get("num_malicious_nodes", 2), strategy=strategy)
    check_enough(make_strategy(strategy, params), section, boards)
    with pytest.raises(ConfigError, match=rf"{strategy} needs .* more for liars that send none, got {boards - 1} in"):
        check_enough(make_strategy(strategy, params), section, boards - 1)


@pytest.mark.parametrize("malicious", [0, 2])
def test_taking_more_than_the_honest_is_refused(malicious: int) -> None:
    told = {"num_malicious_nodes": 2, "num_nodes_to_select": 7}
    section = ServerSection(malicious_nodes=malicious, strategy="multikrum")
    with pytest.raises(ConfigError, match=r"takes 7 of 8 answers, 2 of .*; say .*num_nodes_to_select = 6$"):
        check_enough(make_strategy("multikrum", told), section, 8)


@pytest.mark.parametrize(
    ("strategy", "boards"), [("krum", 7), ("multikrum", 7), ("fedmedian", 5), ("fedtrimmedavg", 5)]
)
def test_a_round_holds_against_both_liars_or_changes_nothing(strategy: str, boards: int, in_run: int) -> None:
    rng = np.random.default_rng(0)
    deltas = (1 + 0.1 * rng.normal(size=(boards, LAYOUT.size))).astype(np.float32)
    deltas[:LIARS] = -20.0
    channel = Channel.of(LAYOUT, b"r" * 16, codecs.get("fp32"))
    for answers in range(1, boards + 1):
        combined = combiner(make_strategy(strategy, STRATEGIES[strategy]), channel, uniform=True, malicious=LIARS)
        shares = []
        for k, delta in enumerate(deltas[:answers]):
            frame = Uplink(channel, f"b{k}").frame(LocalUpdate(delta, 0.1, 1.0, 10, 1), 0, {})
            shares.append(WeightedUpdate(f"b{k}", frame, 10.0, k + 1))
        found = combined.combine(0, np.zeros(LAYOUT.size, np.float32), shares)
        if answers < boards:
            assert found.model is None and found.why.endswith(f" = {boards} answers, got {answers}")
    assert found.model is not None and not found.refused
    np.testing.assert_allclose(found.model, 1.0, atol=0.5)
