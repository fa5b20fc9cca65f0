"""The words of a SPEC, and what is drawn from them."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import gossip
from edgegossip.frame import Aux
from edgegossip.gossip import topologies
from edgegossip.types import ConfigError
from lab.sim import Named, faults, schedule
from lab.sim.faults import KINDS, Fault

EDGES = [(0, 1), (1, 2), (2, 0), (3, 0), (0, 3)]


def drawn(spec: str, seed: int = 0, nodes: int = 4) -> tuple[Fault, ...]:
    return faults.draw(faults.parse(spec), Random(seed), nodes, EDGES, 10.0)


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_what_is_drawn_is_within_bounds_and_its_words_give_it_again(seed: int, nodes: int) -> None:
    links = [(i, (i + 1) % nodes) for i in range(nodes)]
    found = faults.draw(faults.parse("all"), Random(seed), nodes, links, 10.0)
    assert len({f.nodes for f in found if f.kind in faults.BYZANTINE}) <= 1
    for fault in found:
        back_s, on_s = fault.start + (faults.FEW + 2 + 4) * faults.AWAY_S, fault.start + faults.PAUSE_S[1]
        most_s = {"newcomer": back_s, "pause": max(10.0, on_s)}.get(fault.kind, 10.0)
        assert 0.0 <= fault.start <= fault.end <= most_s
        assert all(0 <= i < nodes for i in fault.nodes)
        assert KINDS[fault.kind].low - 0.01 <= fault.strength <= KINDS[fault.kind].high + 0.01
    assert faults.parse(",".join(map(str, found)) or "none").exact == found


def test_all_draws_every_kind_sooner_or_later() -> None:
    seen = {f.kind for seed in range(400) for f in drawn("all", seed)}
    assert seen == set(KINDS)


def test_a_kind_is_drawn_as_often_as_it_says_and_only_where_it_does_something() -> None:
    def share(algorithm: str, kind: str) -> float:
        spec = faults.parse("all")
        found = [faults.draw(spec, Random(seed), 4, EDGES, 10.0, algorithm) for seed in range(3000)]
        return sum(kind in {f.kind for f in faults_of_one} for faults_of_one in found) / len(found)

    assert share("dpsgd", "byzantine-state") == 0.0
    assert 0.2 < share("sgp", "byzantine-state") < 0.3
    assert all(0.07 < share(name, "byzantine-nan") < 0.12 for name in ("dpsgd", "sgp"))


@pytest.mark.parametrize("name", [n for n in gossip.names() if n != "ad-psgd"])  # whose full state is a model
def test_who_is_weighed_is_known(name: str) -> None:
    view = schedule.view_of(topologies.get("complete", 3), Named("fp32"), 3, values=4)
    algorithm: Any = gossip.get(name)
    state = algorithm.init(np.zeros(4, np.float32), view)
    numbers = algorithm.scheme.full(state.math, 1, 0).numbers
    assert bool({Aux.PUSH_SUM_WEIGHT, Aux.EXAMPLES, Aux.STEPS} & set(numbers)) == (name in faults.WEIGHED)


BESIDES = "byzantine-flood", "other-model", "byzantine-silent", "byzantine-round", "slow"


def test_what_has_a_share_comes_besides_what_is_drawn_and_changes_nothing_else() -> None:
    found = {seed: drawn("all", seed) for seed in range(2000)}
    flooded = [seed for seed, those in found.items() if any(f.kind == "byzantine-flood" for f in those)]
    assert 0.03 < len(flooded) / len(found) < 0.05
    without = ",".join(("all", *(f"-{kind}" for kind in BESIDES)))
    for seed, those in found.items():
        assert tuple(f for f in those if f.kind not in BESIDES) == drawn(without, seed)


def test_who_lies_and_who_leaves_leaves_two_honest_ones_to_compare() -> None:
    drawn = [schedule.draw(seed, schedule.Options()) for seed in range(500)]
    lying = [s for s in drawn if any(f.kind in faults.BYZANTINE for f in s.faults)]
    assert 0.15 < len(lying) / len(drawn) < 0.22 and min(s.nodes for s in lying) >= 4
    assert min(s.nodes for s in drawn if any(f.kind == "leave" for f in s.faults)) == 3
    robust = [s for s in drawn if "malicious_nodes" in s.algorithm.values]
    assert 0.04 < len(robust) / len(drawn) < 0.07
    assert 0.3 < sum(s in lying for s in robust) / len(robust) < 0.7
    asked = schedule.draw(1, schedule.Options(nodes=2, faults="all,byzantine-nan,leave"))
    assert {"byzantine-nan", "leave"} <= {f.kind for f in asked.faults}


def test_asked_kinds_come_as_often_as_asked_and_a_strength_is_kept() -> None:
    found = drawn("loss=0.25, crash=3 split")
    assert sorted(f.kind for f in found) == ["crash", "crash", "crash", "loss", "split"]
    assert next(f for f in found if f.kind == "loss").strength == 0.25
    assert drawn("none") == () and drawn("") == ()


def test_only_one_leaves_and_only_one_joins_late() -> None:
    for seed in range(50):
        found = [f.kind for f in drawn("leave=3,late-join=3", seed)]
        assert sorted(found) == ["late-join", "leave"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("los=0.1", "did you mean loss"),
        ("loss=2", "at most 1$"),
        ("loss=x", "is not a number"),
        ("crash@3:2", "FROM-TO"),
        ("crash@3-5", "1 node after the colon, not 0; such as crash@3-5:2"),
        ("split@3-5", r"the nodes of one side after the colon, not 0; such as split@3-5:0\+3"),
        ("crash@5-3:1", "ends before"),
        ("crash@3-5:9", "there are 4 nodes"),
    ],
)
def test_mistakes_are_named(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        drawn(spec)
