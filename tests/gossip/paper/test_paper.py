"""Every algorithm is the paper's: 5 rounds (50 in the slow tests) against a dense float64
reference, on random graphs, with and without codecs.

The references (references.py) are written from the papers line by line and import nothing of the
package. What they are given comes from it: the matrices W of `gossip.topologies` (test_matrices.py
builds them anew from the edges), and the compression C, which is the real codec with the keys that
`gossip.messages.round_key` derives (compression.py; the codecs have tests of their own). So a
mistake in a codec, or in how a key is derived, is none that these tests could see; one in which
vector is compressed, with whose key or in which round, is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from edgegossip import gossip
from tests.gossip.paper.cases import CASES, MANY, ROUNDS, compare
from tests.gossip.paper.references import Tie

ASYNCHRONOUS = {"ad-psgd"}  # test_ad_psgd.py: its reference follows the order of the exchanges


def covering() -> list[Any]:
    """Every codec of every algorithm once, going round its graphs; every graph without a codec."""
    found = []
    for name, case in CASES.items():
        kinds = list(case.graphs)
        pairs = [(graph, case.codecs[0]) for graph in kinds]
        pairs += [(kinds[k % len(kinds)], codec) for k, codec in enumerate(case.codecs[1:])]
        for k, (graph, codec) in enumerate(pairs):
            found.append(pytest.param(name, graph, codec, k, id=f"{name}-{graph}-{codec[0]}-{codec[2]:g}"))
    return found


@pytest.mark.parametrize(("name", "graph", "codec", "seed"), covering())
def test_rounds_equal_the_paper(name: str, graph: str, codec: Any, seed: int) -> None:
    outcome = compare(name, graph, codec, nodes=6, seed=seed, zero_start=seed % 2 == 0)
    weights = [outcome.fleet.algorithm.audit(s).weight for s in outcome.fleet.states]
    np.testing.assert_allclose(weights, outcome.points[-1].u, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=1)
@given(data=st.data())
def test_any_number_of_nodes_and_any_graph(name: str, data: st.DataObject) -> None:
    draw_a_case(name, data, ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_number_of_nodes_and_any_graph_at_length(name: str, data: st.DataObject) -> None:
    draw_a_case(name, data, MANY)


def draw_a_case(name: str, data: st.DataObject, rounds: int) -> None:
    case = CASES[name]
    nodes = data.draw(st.integers(case.smallest, 9), "nodes")
    graph = data.draw(st.sampled_from(sorted(case.graphs)), "graph")
    codec = data.draw(st.sampled_from(case.codecs), "codec")
    zero_start = case.public_copies and data.draw(st.booleans(), "zero_start")
    seed = data.draw(st.integers(0, 2**16), "seed")
    try:
        compare(name, graph, codec, nodes=nodes, seed=seed, rounds=rounds, zero_start=zero_start)
    except Tie:
        reject()


@pytest.mark.parametrize("name", [name for name in CASES if "one-peer" in CASES[name].graphs])
def test_a_period_of_the_one_peer_graph_averages_exactly(name: str) -> None:
    outcome = compare(name, "one-peer", ("fp32", {}, 1.0), nodes=8, seed=0, rounds=3, lr=0.0)
    models = outcome.fleet.models
    np.testing.assert_allclose(models[3], np.broadcast_to(models[0].mean(axis=0), models[3].shape), rtol=0, atol=1e-6)


def test_every_algorithm_has_a_reference() -> None:
    assert all(gossip.get(name).asynchronous for name in ASYNCHRONOUS)
    missing = set(gossip.names()) - {case.algorithm for case in CASES.values()} - ASYNCHRONOUS
    assert not missing, f"write the reference of {sorted(missing)} from its paper"
