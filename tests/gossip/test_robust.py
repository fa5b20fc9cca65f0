"""The laws of robust mixing: how far liars pull, that honest boards still average, and what is
refused in one sentence. That it is the papers' arithmetic is tested in paper/."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import codecs, gossip
from edgegossip.frame import Aux, Kind
from edgegossip.gossip import topologies
from edgegossip.gossip.base import Message, Send
from edgegossip.gossip.messages import control
from edgegossip.gossip.robust import RULES, with_robust_mixing
from edgegossip.gossip.topologies import build
from edgegossip.types import ConfigError, replace
from tests.gossip.conftest import Fleet, update
from tests.gossip.streams import ZERO, asked

NODES, LIARS, N = 8, 2, 12
HOLDS_FOR = ("dpsgd", "deep-squeeze", "choco-sgd", "bagua-lp")


def fleet_of(
    name: str, start: np.ndarray, malicious: int = LIARS, topology: str = "complete", rule: str = "nearest"
) -> Fleet:
    algorithm = with_robust_mixing(gossip.get(name), malicious, rule)
    fleet = Fleet(algorithm, topologies.get(topology, len(start)), codecs.get("fp32"), start)
    fleet.say_hello()
    return fleet


def start_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(NODES, N)).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", HOLDS_FOR)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**16), power=st.floats(-3.0, 3.0), together=st.booleans())
def test_a_liar_pulls_no_further_than_the_farthest_honest_neighbour(
    name: str, rule: str, seed: int, power: float, together: bool
) -> None:
    start = start_of(seed)
    start[-LIARS:] *= np.float32(10.0**power)
    if together:
        start[-1] = start[-2]
    fleet = fleet_of(name, start, rule=rule)
    fleet.play(1)
    for i in range(NODES - LIARS):
        honest = start[: NODES - LIARS] - start[i]
        farthest = float(np.linalg.norm(honest, axis=1).max())
        moved = float(np.linalg.norm(fleet.models[1][i] - start[i]))
        assert moved <= (1 - 1 / NODES) * farthest * 1.00001


@pytest.mark.parametrize(("name", "rule"), [*zip(HOLDS_FOR, itertools.cycle(RULES), strict=False)])
def test_honest_boards_still_average(name: str, rule: str) -> None:
    start = start_of(2)
    fleet = fleet_of(name, start, rule=rule)
    fleet.play(40)
    last = fleet.models[40].astype(np.float64)
    spread = np.linalg.norm(start - start.mean(axis=0), axis=1).max()
    assert np.linalg.norm(last - last.mean(axis=0), axis=1).max() < 1e-5 * spread
    assert np.linalg.norm(last.mean(axis=0) - start.mean(axis=0)) < 0.2 * spread


@pytest.mark.parametrize("name", ["dpsgd", "deep-squeeze", "choco-sgd"])  # bagua-lp mixes before it hears
@pytest.mark.parametrize("malicious", [0, LIARS])
def test_a_round_says_how_far_each_neighbour_lay(name: str, malicious: int) -> None:
    start = start_of(3)
    fleet = fleet_of(name, start, malicious)
    fleet.play(1)
    assert len(fleet.done) == NODES
    for node, done in fleet.done:
        expected = {f"board-{j}": np.linalg.norm(start[j] - start[node]) for j in range(NODES) if j != node}
        assert done.distances == pytest.approx(expected, rel=1e-5)
        assert done.consensus_distance == pytest.approx(np.sqrt(np.mean(np.square(list(expected.values())))), rel=1e-5)


@pytest.mark.parametrize("name", sorted(set(gossip.names()) - set(HOLDS_FOR)))
def test_algorithms_that_cannot_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_robust_mixing(gossip.get(name), 2)
    said = str(caught.value)
    assert said.startswith(f"gossip.malicious_nodes = 2 cannot hold for {name}: it ")
    assert said.endswith("; use gossip.algorithm = dpsgd, deep-squeeze, choco-sgd or bagua-lp")
    assert with_robust_mixing(gossip.get(name), 0).name == name


def parted() -> Any:
    """Two groups in which everybody knows everybody, and two boards that are in both."""
    groups = (range(7), range(5, 12))
    edges = {(i, j) for group in groups for j in group for i in group if i < j}
    return build("hourglass", 12, [sorted(edges)], directed=False, weights=None)


@pytest.mark.parametrize(
    ("topology", "malicious", "why"),
    [
        (
            topologies.get("ring", 8),
            2,
            "dpsgd cannot bear 2 malicious nodes on topology 'ring': a board has 2 neighbours, of whom 2 may lie, "
            "and needs 5; use topology = 'complete', or fewer gossip.malicious_nodes",
        ),
        (
            topologies.get("complete", 5),
            2,
            "dpsgd cannot bear 2 malicious nodes on topology 'complete': a board has 4 neighbours, of whom 2 may lie, "
            "and needs 5; a run needs 6 boards for so many, and topology = 'complete', or fewer gossip.malicious_nodes",
        ),
        (
            parted(),
            2,
            "dpsgd cannot bear 2 malicious nodes on topology 'hourglass': without these its other boards can be parted; "
            "use topology = 'complete', or fewer gossip.malicious_nodes",
        ),
    ],
)
def test_topologies_on_which_liars_win_are_refused_in_a_sentence(topology: Any, malicious: int, why: str) -> None:
    start = np.zeros((topology.n, N), np.float32)
    with pytest.raises(ConfigError) as caught:
        Fleet(with_robust_mixing(gossip.get("dpsgd"), malicious), topology, codecs.get("fp32"), start)
    assert str(caught.value) == why


def test_a_directed_graph_is_refused() -> None:
    with pytest.raises(ConfigError, match="dpsgd with gossip.malicious_nodes needs"):
        fleet_of("dpsgd", start_of(0), 1, "one-peer-exponential")
    with pytest.raises(ConfigError, match="; no algorithm for directed graphs bears malicious nodes$"):
        fleet_of("dpsgd", start_of(0), 1, "directed-ring")


def test_the_fewest_that_can_bear_it_start() -> None:
    Fleet(with_robust_mixing(gossip.get("dpsgd"), 1), parted(), codecs.get("fp32"), np.zeros((12, N), np.float32))
    fleet_of("choco-sgd", start_of(0)[:6], 2)


def far_ahead(fleet: Fleet, sender: int, round: int, model: np.ndarray) -> list[Message]:
    """Two messages of rounds far on, and the answer to a hello of one far behind: this model."""
    late = replace(fleet.states[sender], round=round)
    frames = []
    for state in (late, replace(late, round=round + 1)):
        _, actions = fleet.algorithm.step(state, update(ZERO))
        frames.append(next(a.frame for a in actions if isinstance(a, Send)))
    aux = {Aux.SESSION: 1, Aux.PARTS: 1, Aux.PART: 0, Aux.PHASE: 0, Aux.INCARNATION: 1, Aux.EPOCH: 1, Aux.MODEL: 1}
    session = asked(fleet, 0, sender, round)
    frames.append(control(fleet.view(sender), Kind.STATE, round, 1, {**aux, Aux.SESSION: session}, model))
    return [Message(fleet.members[sender], frame) for frame in frames]


@pytest.mark.parametrize("up", [1, 2, 3])
def test_a_liar_alone_leads_nobody_to_a_far_round_or_to_its_model_however_few_are_up(up: int) -> None:
    fleet = fleet_of("dpsgd", start_of(1)[:4], malicious=1)
    fleet.down(0, *range(1, 4 - up))
    for message in far_ahead(fleet, 3, 500, ZERO):
        fleet.hand(0, message)
    assert fleet.rounds[0] == 0


@pytest.mark.parametrize("lies_last", [False, True])
def test_a_board_far_behind_takes_over_an_honest_model_although_a_neighbour_lies(lies_last: bool) -> None:
    fleet = fleet_of("dpsgd", start_of(1)[:4], malicious=1)
    honest = fleet.start[0] + np.float32(0.01)
    claims = [far_ahead(fleet, 1, 500, honest)[-1], far_ahead(fleet, 3, 700, ZERO)[-1]]
    for message in claims if lies_last else claims[::-1]:
        assert fleet.rounds[0] == 0
        fleet.hand(0, message)
    assert fleet.rounds[0] == 500
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), honest)
