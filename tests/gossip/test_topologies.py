"""Built-in topologies at every size from 2 to 64: edges, weights, gaps, errors."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.gossip import topologies
from edgegossip.gossip.topologies import build
from edgegossip.gossip.weights import is_column_stochastic, is_doubly_stochastic, is_symmetric, spectral_gap
from edgegossip.types import ConfigError, UsageError

BUILT_IN = tuple(name for name in topologies.names() if name != "file")
DIRECTED = ("directed-ring", "epidemic", "exponential", "one-peer-exponential")
UNEVEN = ("epidemic",)  # nodes hear from more or fewer others than they tell
SIZES = (*range(2, 10), 12, 16, 17, 31, 64)


def edges(name: str, n: int, round: int = 0, **params: Any) -> set[tuple[int, int]]:
    return set(topologies.get(name, n, **params).edges(round))


def both_ways(*pairs: tuple[int, int]) -> set[tuple[int, int]]:
    return {e for a, b in pairs for e in ((a, b), (b, a))}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_topology_is_connected_and_its_weights_are_what_they_should_be(name: str) -> None:
    for n in SIZES:
        topology = topologies.get(name, n)
        assert (topology.name, topology.n, topology.directed) == (name, n, name in DIRECTED)
        union = np.zeros((n, n), bool)
        for r in range(topology.period):
            w = topology.matrix(r)
            union |= w > 0
            assert (is_doubly_stochastic(w) or name in UNEVEN) and is_column_stochastic(w) and not w.flags.writeable
            assert is_symmetric(w) or topology.directed
        assert (np.linalg.matrix_power(union.astype(float), n) > 0).all()
        assert 0.0 < topology.spectral_gap() <= 1.0


@pytest.mark.parametrize("name", BUILT_IN)
def test_neighbours_agree_with_the_matrix_in_every_round(name: str) -> None:
    for topology in (topologies.get(name, n) for n in (2, 3, 7, 16)):
        for r, i in itertools.product(range(2 * topology.period + 1), range(n := topology.n)):
            w = topology.matrix(r)
            assert np.array_equal(w, topology.matrix(r + topology.period))
            here = topology.neighbours(i, r)
            assert here.in_ == tuple(j for j in range(n) if j != i and w[i, j] > 0)
            assert here.out == tuple(j for j in range(n) if j != i and w[j, i] > 0)
            assert dict(here.weights) == {j: w[i, j] for j in (i, *here.in_)}


def test_edges_of_small_graphs() -> None:
    assert edges("ring", 2) == both_ways((0, 1)) == edges("directed-ring", 2) == edges("star", 2)
    assert edges("ring", 4) == both_ways((0, 1), (1, 2), (2, 3), (3, 0))
    assert edges("directed-ring", 3) == {(0, 1), (1, 2), (2, 0)}
    assert edges("star", 4) == both_ways((0, 1), (0, 2), (0, 3))
    assert edges("complete", 3) == both_ways((0, 1), (0, 2), (1, 2))
    assert edges("exponential", 6) == {(i, (i + k) % 6) for i in range(6) for k in (1, 2, 4)}
    for k in range(6):
        assert edges("one-peer-exponential", 6, round=k) == {(i, (i + (1, 2, 4)[k % 3]) % 6) for i in range(6)}


def test_torus_shapes() -> None:
    assert edges("torus", 4) == both_ways((0, 1), (2, 3), (0, 2), (1, 3))
    assert edges("torus", 7) == edges("ring", 7)  # a prime: one row
    grid = topologies.get("torus", 12)  # 3 x 4
    assert set(grid.neighbours(0, 0).out) == {1, 3, 4, 8}
    tall = topologies.get("torus", 12, cols=2)  # 6 x 2
    assert set(tall.neighbours(0, 0).out) == {1, 2, 10}
    assert np.array_equal(tall.matrix(0), topologies.get("torus", 12, rows=6).matrix(0))
    assert np.array_equal(tall.matrix(0), topologies.get("torus", 12, rows=6, cols=2).matrix(0))


@given(st.integers(3, 64), st.integers(2, 10), st.integers(0, 2**64 - 1))
def test_random_regular_is_regular_connected_and_the_same_for_the_same_seed(n: int, degree: int, seed: int) -> None:
    degree = min(degree, n - 1)
    degree -= n * degree % 2
    topology = topologies.get("random-regular", n, degree=degree, seed=seed)  # unconnected would raise
    for i in range(n):
        assert len(topology.neighbours(i, 0).out) == len(topology.neighbours(i, 0).in_) == degree
    again = topologies.get("random-regular", n, degree=degree, seed=seed)
    assert topology.edges(0) == again.edges(0)


def test_random_regular_draws_again_until_it_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two separate 4-cliques have degree 3 as well: 35 of the 19,355 cubic graphs on 8 nodes. This
    seed meets one."""
    verdicts = []
    check = topologies._is_connected
    monkeypatch.setattr(topologies, "_is_connected", lambda *a: verdicts.append(check(*a)) or verdicts[-1])
    assert topologies.get("random-regular", 8, degree=3, seed=1065).spectral_gap() > 0
    assert verdicts == [False, True]


@given(st.integers(2, 24), st.integers(4, 40), st.integers(0, 2**64 - 1))
def test_random_pairs_are_matchings_that_join_all_and_the_same_for_the_same_seed(
    n: int, rounds: int, seed: int
) -> None:
    topology = topologies.get("random-pairs", n, rounds=rounds, seed=seed)  # unconnected would raise
    for r in range(rounds):
        peers = [topology.neighbours(i, r).out for i in range(n)]
        assert sorted(map(len, peers)) == [0] * (n % 2) + [1] * (n - n % 2)
        assert all(peers[peer] == (i,) for i, found in enumerate(peers) for peer in found)
    again = topologies.get("random-pairs", n, rounds=rounds, seed=seed)
    assert [topology.edges(r) for r in range(rounds)] == [again.edges(r) for r in range(rounds)]
    if n > 4:
        assert len({topology.edges(r) for r in range(rounds)}) > 1


@given(st.integers(2, 24), st.integers(1, 23), st.integers(4, 24), st.integers(0, 2**64 - 1))
def test_epidemic_draws_as_many_out_peers_for_all_and_the_same_for_the_same_seed(
    n: int, peers: int, rounds: int, seed: int
) -> None:
    peers = min(peers, n - 1)
    rounds += 20 // peers
    topology = topologies.get("epidemic", n, peers=peers, rounds=rounds, seed=seed)  # unconnected would raise
    for r in range(rounds):
        assert {len(topology.neighbours(i, r).out) for i in range(n)} == {peers}
        assert np.allclose(topology.matrix(r)[topology.matrix(r) > 0], 1 / (peers + 1))
    again = topologies.get("epidemic", n, peers=peers, rounds=rounds, seed=seed)
    assert [topology.edges(r) for r in range(rounds)] == [again.edges(r) for r in range(rounds)]


def test_epidemic_draws_all_others_equally_often_and_each_round_anew() -> None:
    n, rounds = 6, 1024
    topology = topologies.get("epidemic", n, peers=2, rounds=rounds, seed=5)
    often = np.mean([topology.matrix(r) > 0 for r in range(rounds)], axis=0)[~np.eye(n, dtype=bool)]
    assert np.abs(often - 2 / 5).max() < 4 * math.sqrt(2 / 5 * 3 / 5 / rounds)
    golden = topologies.get("epidemic", 6)
    assert golden.period == 8 and [golden.neighbours(i, 0).out for i in range(6)] == [
        (2, 3),
        (4, 5),
        (1, 5),
        (2, 4),
        (0, 1),
        (2, 4),
    ]


def test_epidemic_that_joins_not_all_nodes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 nodes nine a draw are heard by nobody."""
    monkeypatch.setattr(topologies, "_DRAWS", 3)
    with pytest.raises(ConfigError, match="4 rounds of 1 peers join all of them in none of 3 draws; raise rounds"):
        topologies.get("epidemic", 500, peers=1, rounds=4)


def test_spectral_gaps_have_their_closed_forms() -> None:
    for n in SIZES:
        angle = 2 * math.pi * np.arange(1, n) / n
        ring = np.abs(1 / 3 + 2 / 3 * np.cos(angle)).max() if n > 2 else 0.0
        assert topologies.get("ring", n).spectral_gap() == pytest.approx(1 - ring)
        assert topologies.get("complete", n).spectral_gap() == pytest.approx(1)
        assert topologies.get("star", n).spectral_gap() == pytest.approx(1 / n if n > 2 else 1)
        assert topologies.get("directed-ring", n).spectral_gap() == pytest.approx(1 - math.cos(math.pi / n))
        if n % 2 == 0:
            assert topologies.get("exponential", n).spectral_gap() == pytest.approx(2 / (1 + math.ceil(math.log2(n))))
        if n & (n - 1) == 0:
            assert topologies.get("one-peer-exponential", n).spectral_gap() == pytest.approx(1)


def test_weights_can_be_chosen() -> None:
    star = topologies.get("star", 5, weights="column")
    assert star.weights == "column" and is_column_stochastic(star.matrix(0))
    assert not is_doubly_stochastic(star.matrix(0))
    ring = topologies.get("ring", 6, weights="uniform")
    assert np.allclose(ring.matrix(0), topologies.get("ring", 6).matrix(0))
    with pytest.raises(ConfigError, match="undirected graph"):
        topologies.get("directed-ring", 4, weights="metropolis")
    with pytest.raises(ConfigError, match="unknown weights 'metroplis'; did you mean metropolis"):
        topologies.get("ring", 4, weights="metroplis")
    with pytest.raises(ConfigError, match="unknown weights 3"):
        topologies.get("ring", 4, weights=3)


@pytest.mark.parametrize(
    ("name", "n", "params", "message"),
    [
        ("rign", 4, {}, "unknown topology 'rign'; did you mean ring"),
        ("ring", 1, {}, "at least 2 nodes, not 1"),
        ("ring", 4, {"degre": 3}, "unknown parameter of topology 'ring' 'degre'; valid: weights"),
        ("random-regular", 8, {"degree": 8}, "integer from 2 to 7; the nearest valid value is 7"),
        ("random-regular", 7, {"degree": 3}, "needs an even degree; 3 is odd, use 2"),
        ("random-regular", 8, {"seed": -1}, "seed of random-regular = -1"),
        ("torus", 12, {"rows": 5}, "rows = 5 does not divide 12 nodes; the nearest that does is 4"),
        ("torus", 12, {"rows": 3, "cols": 2}, "3 x 2 is not 12 nodes; with rows = 3 use cols = 4"),
        ("epidemic", 8, {"peers": 8}, "peers of epidemic on 8 nodes = 8 must be an integer from 1 to 7"),
        ("file", 4, {}, "topology 'file' needs the parameter 'text'"),
    ],
)
def test_wrong_choices_name_the_nearest_right_one(name: str, n: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topologies.get(name, n, **params)


def test_a_graph_in_pieces_names_who_cannot_reach_whom() -> None:
    with pytest.raises(ConfigError, match="no path leads from node '0' to node '2'"):
        build("pairs", 4, [[(0, 1), (2, 3)]], directed=False, weights=None)
    with pytest.raises(ConfigError, match="no path leads from node '2' to node '0'"):
        build("sink", 3, [[(0, 1), (1, 0), (1, 2)]], directed=True, weights=None)
    halves = build("halves", 4, [[(0, 1), (2, 3)], [(1, 2), (3, 0)]], directed=False, weights=None)
    assert halves.period == 2 and halves.spectral_gap() == pytest.approx(1.0)  # pairwise averages round a 4-cycle


def test_to_json_is_plain_json_with_names() -> None:
    topology = topologies.get("one-peer-exponential", 4)
    record = json.loads(json.dumps(topology.to_json(["a", "b", "c", "d"])))
    assert record["members"] == ["a", "b", "c", "d"] and record["period"] == 2 and record["directed"] is True
    assert record["rounds"][1]["edges"] == [["a", "c"], ["b", "d"], ["c", "a"], ["d", "b"]]
    assert record["rounds"][0]["weights"] == topology.matrix(0).tolist()
    assert record["spectral_gap"] == pytest.approx(spectral_gap([topology.matrix(0), topology.matrix(1)]))
    with pytest.raises(UsageError, match="has 4 nodes, but 3 names"):
        topology.to_json(["a", "b", "c"])
