"""Streams over rounds: late openings, a quorum, bounded staleness, a gap in a directed ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Kind
from edgegossip.gossip.base import RoundDone, Suspect
from tests.gossip.streams import ZERO, N, assert_replicas_are_equal, audits, take_mail


def test_a_silent_receiver_gets_the_message_when_it_opens_the_stream(make_fleet: Any) -> None:
    """The hello comes after the first message was due."""
    fleet = make_fleet("ring", nodes=3, algorithm="choco-sgd", codec="fp16")
    for i, s in enumerate(fleet.states):
        fleet.states[i], actions = fleet.algorithm.start(s)
        fleet.carry_out(i, actions)
    hellos, fleet.mail = fleet.mail, []
    fleet.step_all()
    assert all(m.frame.kind == Kind.HELLO for _, m in fleet.mail)  # nobody has opened a stream
    fleet.mail = hellos + fleet.mail
    fleet.deliver_all()
    assert fleet.rounds == [1, 1, 1]
    assert_replicas_are_equal(fleet)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_quorum_shortens_the_wait_of_each_round(make_fleet: Any, restarts: bool) -> None:
    fleet = make_fleet("complete", nodes=4, quorum=0.6, linger_s=0.5)
    for round in range(2):
        fleet.step_all()
        mail = [m for _, m in take_mail(fleet, 0)]
        fleet.hand(0, mail[0])
        assert fleet.timers[0] == 5.0
        fleet.hand(0, mail[1])
        assert fleet.timers[0] == 0.5
        if restarts:
            fleet.restart(0, fleet.states[0])
        else:
            actions = fleet.tick(0)
            reason = f"no message of round {round} within 0.5 s after the others"
            assert actions[0] == Suspect(mail[2].sender, reason, "quorum", round, 0.5)
            assert any(isinstance(a, RoundDone) for a in actions)
        fleet.deliver_all()


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd", "deep-squeeze", "gt-dsgd", "motef", "sgp", "quant-sgp"])
def test_a_round_tells_how_far_the_models_of_its_neighbours_were(make_fleet: Any, name: str) -> None:
    fleet = make_fleet("ring", nodes=4, algorithm=name)
    fleet.say_hello()
    fleet.play(3)
    for node, done in fleet.done:
        models = fleet.models[done.round].astype(np.float64)
        far = [np.linalg.norm(models[(node + k) % 4] - models[node]) for k in (1, 3)]
        assert done.consensus_distance == pytest.approx(np.sqrt(np.mean(np.square(far))), rel=1e-4)


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd"])
def test_old_news_will_do_with_bounded_staleness(make_fleet: Any, name: str) -> None:
    fleet = make_fleet("ring", nodes=3, algorithm=name, staleness=1)
    fleet.say_hello()
    fleet.play(2)
    fleet.step(0, ZERO)
    assert fleet.rounds[0] == 3  # both neighbours' news of round 1 will do in round 2
    fleet.step(0, ZERO)
    assert fleet.rounds[0] == 3  # but not in round 3
    for _ in range(5):
        fleet.step_all([i for i in (1, 2) if fleet.states[i].stepped is None])
        fleet.deliver_all()
    assert fleet.rounds == [4, 5, 5]


@pytest.mark.parametrize("name", ["sgp", "sparse-push", "quant-sgp"])
def test_weight_does_not_drain_away_before_a_gap_in_a_directed_ring(make_fleet: Any, name: str) -> None:
    """Node 1 of 0 -> 1 -> 2 -> 3 -> 0 is gone: 2 gets nothing, and must not give away
    everything."""
    fleet = make_fleet("directed-ring", nodes=4, algorithm=name)
    fleet.say_hello()
    fleet.play(3)
    weights = [a.weight for a in audits(fleet)]
    for node in (0, 2, 3):
        fleet.down(node, 1)
    fleet.play(40, [0, 2, 3])
    held = audits(fleet)
    assert all(held[i].weight > 0.25 * weights[i] for i in (0, 2, 3))
    fleet.restart(1)
    for node in (0, 2, 3):
        fleet.down(node)
    fleet.deliver_all()
    fleet.play(60)
    models = np.stack([fleet.algorithm.model(s) for s in fleet.states])
    np.testing.assert_allclose(
        models, np.broadcast_to(models.mean(axis=0), models.shape), atol=1e-2
    )  # they agree again


@pytest.mark.parametrize("name", ["sgp", "sparse-push", "quant-sgp"])
def test_a_local_update_moves_the_model_of_a_node_with_little_weight_by_a_bounded_multiple(
    make_fleet: Any, name: str
) -> None:
    """Node 0 hands half of what it has to node 1 in every round and gets nothing back, as before a
    gap that it cannot see."""
    made = make_fleet("directed-ring", nodes=4, algorithm=name)
    made.say_hello()
    for _ in range(6):
        made.step(0, ZERO)
        made.tick(0)
    weight = made.algorithm.audit(made.states[0]).weight
    assert weight == pytest.approx(2.0**-6)
    before = made.algorithm.model(made.states[0])
    made.step(0, np.ones(N))
    made.tick(0)
    np.testing.assert_allclose(made.algorithm.model(made.states[0]) - before, np.full(N, 2.0), rtol=1e-4)
