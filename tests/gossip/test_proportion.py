"""What is too large to average: each trained tensor beside its own kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Adopted, Message
from edgegossip.gossip.messages import control, require_proportion
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import PeerError

LAYOUT = Layout.of(
    [TensorSpec("embedding", (6,)), TensorSpec("bias", (2,)), *(TensorSpec(k, (2,), False) for k in ("mean", "var"))]
)
N = LAYOUT.size
TOPOLOGIES = {"parallel-sgd": "complete", "sgp": "directed-ring", "quant-sgp": "directed-ring"}
ALGORITHMS = ["dpsgd", "d2", "deep-squeeze", "choco-sgd", "bagua-lp", "sgp", "sparse-push", "quant-sgp"]
ALGORITHMS += ["gt-dsgd", "motef", "parallel-sgd", "ad-psgd"]


def fleet_of(make_fleet: Any, algorithm: str, nodes: int = 3, codec: str = "fp32") -> Any:
    """Boards that start from a model with statistics of 0 and 1, and a bias of 0."""
    start = np.concatenate([np.full(6, 0.5), np.zeros(4), np.ones(2)])
    fleet = make_fleet(TOPOLOGIES.get(algorithm, "ring"), nodes=nodes, n=N, algorithm=algorithm, alike=True)
    fleet.layout, fleet.codec = LAYOUT, codecs.for_layout(codecs.get(codec), LAYOUT)
    fleet.start = np.repeat(start[None].astype(np.float32), nodes, axis=0)
    fleet.states = [fleet.algorithm.init(x, fleet.view(k)) for k, x in enumerate(fleet.start)]
    return fleet


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e5, 1e10, 1e22])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_statistics_of_raw_inputs_are_averaged(make_fleet: Any, algorithm: str, scale: float) -> None:
    """One board's sensor rests: what honest boards measure may differ by any factor."""
    fleet = fleet_of(make_fleet, algorithm)
    fleet.say_hello()
    for _ in range(3):
        for k in range(3):
            model = fleet.algorithm.model(fleet.states[k])
            delta = np.full(N, 0.01)
            delta[8:] = scale * min(k, 1) - model[8:]
            fleet.step(k, delta)
        fleet.deliver_all()
    fleet.tick(0) if algorithm == "ad-psgd" else None
    assert all(done.heard for _, done in fleet.done[3:])
    assert sum(done.heard for _, done in fleet.done) >= (3 if algorithm == "ad-psgd" else 9)
    if algorithm in ("dpsgd", "sgp"):
        assert fleet.algorithm.model(fleet.states[0])[8] > 0.2 * scale


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("tensor", [0, 6], ids=["embedding", "bias"])
def test_a_trained_tensor_far_beyond_its_own_kind_is_refused(make_fleet: Any, algorithm: str, tensor: int) -> None:
    """However large the statistics beside it are."""
    fleet = fleet_of(make_fleet, algorithm)
    fleet.say_hello()
    delta = np.zeros(N)
    delta[8:] = 1e6
    for k in range(3):
        fleet.step(k, delta)
    to, m = next((to, m) for to, m in fleet.mail if len(m.frame.body))
    vec = np.concatenate([np.frombuffer(m.frame.body, "<f4")[:N].copy()])
    vec[tensor] = 3e5
    rest = bytes(m.frame.body)[4 * N :]
    before = fleet.states[to]
    with pytest.raises(PeerError, match=f"too large to average, in {'bias' if tensor else 'embedding'}"):
        fleet.hand(to, replace(m, frame=replace(m.frame, body=vec.tobytes() + rest)))
    assert fleet.states[to] is before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "ad-psgd"])
def test_who_has_not_trained_yet_has_nothing_to_hold_messages_against(make_fleet: Any, algorithm: str) -> None:
    """Prices of 250,000 are learnt in one round; a slow board gets them before it has trained."""
    fleet = fleet_of(make_fleet, algorithm)
    fleet.say_hello()
    delta = np.full(N, 0.01)
    delta[:6] = 3e5
    fleet.step(1, delta)
    fleet.step(2, delta)
    fleet.deliver_all()
    fleet.step(0, delta)
    fleet.deliver_all()
    assert [done.heard for _, done in fleet.done] == [len(fleet.topology.neighbours(k, 0).in_) for k, _ in fleet.done]
    assert len(fleet.done) == 3


def test_a_large_tensor_makes_no_room_for_another(make_fleet: Any) -> None:
    own = np.concatenate([np.full(6, 1e6), np.zeros(6)]).astype(np.float32)
    theirs = own.copy()
    theirs[6] = 1e5
    with pytest.raises(PeerError, match="in bias"):
        require_proportion("board-1", theirs, own, LAYOUT)
    require_proportion("board-1", theirs, own, LAYOUT, 50.0)
    statistic = own.copy()
    statistic[9] = np.nan
    with pytest.raises(PeerError, match="in mean"):
        require_proportion("board-1", statistic, own, LAYOUT)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("algorithm", ["choco-sgd", "quant-sgp", "motef"])
def test_who_begins_late_takes_a_model_that_has_learnt_what_its_own_has_not(make_fleet: Any, algorithm: str) -> None:
    """A bias that begins at 0 and ends at 3e5, as of prices: in one round it would be refused."""
    fleet = fleet_of(make_fleet, algorithm)
    fleet.say_hello()
    parts = fleet.algorithm.scheme.parts + 1
    model = fleet.start[0].copy()
    model[6:8] = 3e5
    actions = []
    for sender, _ in fleet.algorithm.in_keys(fleet.states[0]):
        hello = control(fleet.view(sender), Kind.HELLO, 100, 1, {}, None)
        session = next(a for a in fleet.hand(0, Message(f"board-{sender}", hello))).frame.aux[Aux.SESSION]
        aux = {Aux.SESSION: session, Aux.PHASE: 0, Aux.INCARNATION: 7, Aux.EPOCH: 8, Aux.MODEL: 1, Aux.PARTS: parts}
        for part in range(parts):
            numbers = {**aux, Aux.PART: part, Aux.PUSH_SUM_WEIGHT: 1.0}
            frame = control(fleet.view(sender), Kind.STATE, 100, 1, numbers, model)
            actions += fleet.hand(0, Message(f"board-{sender}", frame))
    assert any(isinstance(a, Adopted) for a in actions)
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), model)
