"""Streams: differences and mass survive loss, repetition, reordering, restarts from any checkpoint and a lost disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip.base import Adopted, Message, RoundDone, Send, Suspect
from edgegossip.types import PeerError

N = 12
ZERO = np.zeros(N, np.float32)
STREAMS = [
    ("choco-sgd", "ring"),
    ("bagua-lp", "ring"),
    ("parallel-sgd", "complete"),
    ("sgp", "directed-ring"),
    ("sparse-push", "directed-ring"),
    ("quant-sgp", "directed-ring"),
    ("quant-sgp", "one-peer-exponential"),
]


@pytest.fixture(params=STREAMS, ids=lambda p: f"{p[0]}-{p[1]}")
def fleet(request: Any, make_fleet: Any) -> Any:
    """Four nodes that have greeted each other and played three rounds."""
    name, topology = request.param
    made = make_fleet(topology, nodes=4, algorithm=name, codec="8-bit-elastiquant", alike=name == "parallel-sgd")
    made.greet()
    made.play(3)
    assert made.rounds == [3] * 4
    return made


def audits(fleet: Any) -> list[Any]:
    return [fleet.algorithm.audit(s) for s in fleet.states]


def assert_replicas_are_equal(fleet: Any) -> None:
    held = audits(fleet)
    for audit in held:
        for (j, phase), (mark, copy) in audit.replicas.items():
            told, public = held[j].public[phase]
            assert told == mark
            np.testing.assert_array_equal(copy, public)


def total(fleet: Any) -> tuple[np.ndarray, float]:
    """Mass and weight of the whole fleet, what is under way included."""
    held = audits(fleet)
    mass = np.sum([a.mass for a in held], axis=0)
    weight = sum(a.weight for a in held)
    for i, audit in enumerate(held):
        for (k, phase), (sent, w) in audit.sent.items():
            seen, v = held[k].seen.get((i, phase), (0.0, 0.0))
            mass, weight = mass + sent - seen, weight + w - v
    return mass, weight


def is_push(fleet: Any) -> bool:
    return fleet.algorithm.name in ("sgp", "sparse-push", "quant-sgp")


def settle(fleet: Any, rounds: int = 6) -> None:
    """Rounds in which whoever waits in vain gets its deadline."""
    for _ in range(rounds):
        low = min(fleet.rounds)
        fleet.step_all([i for i, s in enumerate(fleet.states) if s.stepped is None and s.round <= low])
        fleet.deliver_all()
        for i, s in enumerate(fleet.states):
            if s.stepped is not None and s.round == min(fleet.rounds):
                fleet.tick(i)
        fleet.deliver_all()


def check(fleet: Any) -> None:
    assert_replicas_are_equal(fleet)
    if is_push(fleet):
        mass, weight = total(fleet)
        assert weight == pytest.approx(4.0, rel=1e-12)
        np.testing.assert_allclose(mass, fleet.start.astype(np.float64).sum(axis=0), rtol=0, atol=1e-9)


def take_mail(fleet: Any, to: int) -> list[tuple[int, Message]]:
    mine = [m for m in fleet.mail if m[0] == to]
    fleet.mail = [m for m in fleet.mail if m[0] != to]
    return mine


def test_nothing_is_lost_without_faults(fleet: Any) -> None:
    check(fleet)
    assert not any(s.late or s.duplicates for s in fleet.states)


def test_a_lost_message_is_mended_by_a_full_state(fleet: Any) -> None:
    fleet.step_all()
    assert take_mail(fleet, 1)
    settle(fleet)
    check(fleet)


def test_messages_in_any_order_and_twice_count_once(fleet: Any) -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        fleet.step_all([i for i, s in enumerate(fleet.states) if s.stepped is None])
        fleet.mail += list(fleet.mail)
        rng.shuffle(fleet.mail)
        fleet.deliver_all()
    settle(fleet)
    check(fleet)
    assert sum(s.duplicates for s in fleet.states) > 0


def test_a_restart_from_an_old_checkpoint(fleet: Any) -> None:
    kept = fleet.states[1]
    fleet.play(3)
    fleet.step_all()
    fleet.deliver(0)
    take_mail(fleet, 1)
    fleet.restart(1, kept)
    settle(fleet, 8)
    check(fleet)
    assert min(fleet.rounds) >= 8


def test_a_restart_in_the_middle_of_a_round(fleet: Any) -> None:
    fleet.step(1, ZERO)
    kept = fleet.states[1]
    assert kept.stepped is not None
    fleet.mail.clear()
    fleet.restart(1, kept)
    assert fleet.rounds[1] == 4
    settle(fleet, 8)
    check(fleet)


def test_a_lost_disk(fleet: Any) -> None:
    """What the node held is gone; the rest stays consistent, and the models agree again."""
    fleet.restart(1)
    settle(fleet, 200)
    assert_replicas_are_equal(fleet)
    if is_push(fleet):
        assert total(fleet)[1] > 0.0
    models = np.stack([fleet.algorithm.model(s) for s in fleet.states])
    assert np.ptp(models, axis=0).max() < (1e-3 if fleet.algorithm.name == "quant-sgp" else 0.2)


def test_a_node_that_lost_everything_late_takes_over_a_model(fleet: Any) -> None:
    fleet.play(30)
    fleet.restart(1)
    actions = []
    while fleet.mail:
        actions += fleet.deliver()
    adopted = [a for a in actions if isinstance(a, Adopted)]
    assert len(adopted) == 1 and fleet.rounds[1] == adopted[0].round == 33
    others = np.stack([fleet.algorithm.model(fleet.states[i]) for i in (0, 2, 3)])
    mine = fleet.algorithm.model(fleet.states[1])
    assert np.abs(mine - others.mean(axis=0)).max() <= np.ptp(others, axis=0).max() + 1e-6
    settle(fleet, 8)
    assert_replicas_are_equal(fleet)


def test_a_message_of_a_session_that_is_over_changes_nothing(fleet: Any) -> None:
    fleet.step_all()
    to, old = fleet.mail[0]
    sender = fleet.members.index(old.sender)
    fleet.deliver_all()
    fleet.restart(to)
    before = fleet.states[to]
    fleet.hand(to, old)
    assert fleet.states[to].math is before.math and fleet.states[to].late == 1
    assert sender in [j for j, _ in fleet.states[to].in_]


def test_a_late_hello_of_a_life_that_is_over_is_not_believed(fleet: Any) -> None:
    fleet.restart(1)
    hello = [(to, m) for to, m in fleet.mail if m.frame.kind == Kind.HELLO]
    fleet.deliver_all()
    fleet.restart(1)
    fleet.deliver_all()
    for to, m in hello:
        before = fleet.states[to]
        if fleet.algorithm.scheme.totals:
            assert fleet.hand(to, m) == [] and fleet.states[to] is before
        else:
            fleet.hand(to, m)  # a full state more, which is dropped
            fleet.deliver_all()
            assert fleet.states[1].in_edge((to, 0)).established


@pytest.mark.parametrize("name", ["sgp", "quant-sgp"])
def test_a_late_hello_of_a_life_that_was_never_heard_of_is_asked_back(make_fleet: Any, name: str) -> None:
    """It must not end the present life: nobody would believe its greetings any more."""
    fleet = make_fleet("directed-ring", nodes=3, algorithm=name)
    fleet.greet()
    unknown = [fleet.states[k] for k in range(3)]
    fleet.restart(1)
    late = next((to, m) for to, m in fleet.mail if m.frame.kind == Kind.HELLO and to == 0)
    fleet.mail.clear()
    fleet.restart(1)
    fleet.deliver_all()
    lives = fleet.states[0].out_edge((1, 0)).lives
    assert len(lives) == 2 and unknown[0].out_edge((1, 0)).lives == lives[:1]
    (asked,) = fleet.hand(*late)
    assert asked.frame.kind == Kind.HELLO and Aux.CHALLENGE in asked.frame.aux
    fleet.deliver_all()
    assert fleet.states[0].out_edge((1, 0)).lives == lives
    fleet.restart(1, fleet.states[1])
    fleet.deliver_all()
    edge = fleet.states[0].out_edge((1, 0))
    assert edge.lives == lives and edge.session in (
        fleet.states[1].in_edge((0, 0)).opening,
        fleet.states[1].in_edge((0, 0)).session,
    )


@pytest.mark.parametrize("name", ["sgp", "quant-sgp"])
def test_a_challenge_that_is_lost_with_the_connection_is_asked_for_again(make_fleet: Any, name: str) -> None:
    """The greeting of the new process outran the news that the old one is gone."""
    fleet = make_fleet("complete", nodes=3, algorithm=name)
    fleet.greet()
    fleet.play(30)
    fleet.restart(1)
    while greetings := [(to, m) for to, m in fleet.mail if to != 1]:
        fleet.mail.clear()
        for to, m in greetings:
            fleet.hand(to, m)
    assert [m.frame.kind for to, m in fleet.mail] == [Kind.HELLO] * 2
    fleet.mail.clear()
    for other in (0, 2):
        fleet.down(other, 1)
        fleet.down(other)
    actions = []
    while fleet.mail:
        actions += fleet.deliver()
    assert [type(a) for a in actions].count(Adopted) == 1 and fleet.rounds[1] >= 30


def test_a_full_state_that_comes_twice_or_late_counts_once(fleet: Any) -> None:
    fleet.step_all()
    take_mail(fleet, 1)
    states = []
    for _ in range(4):
        while fleet.mail:
            to, m = fleet.mail[0]
            if m.frame.kind == Kind.STATE:
                states.append((to, m))
            fleet.deliver()
        for i, state in enumerate(fleet.states):
            if state.stepped is not None:
                fleet.tick(i)
        fleet.step_all()
    fleet.deliver_all()
    assert states
    settle(fleet)
    for to, m in states:
        before = fleet.states[to].math
        fleet.hand(to, m)
        assert fleet.states[to].math is before
    check(fleet)


def stream_message(fleet: Any) -> tuple[int, Message]:
    fleet.step_all()
    return next((to, m) for to, m in fleet.mail if m.frame.kind not in (Kind.HELLO, Kind.STATE))


def without(frame: Frame, tag: Aux) -> Frame:
    return replace(frame, aux={t: v for t, v in frame.aux.items() if t != tag})


@pytest.mark.parametrize("value", [None, 0.0, 1.5, 2.0**48])
def test_a_session_that_is_no_number_of_one_is_refused(fleet: Any, value: float | None) -> None:
    to, m = stream_message(fleet)
    frame = without(m.frame, Aux.SESSION)
    if value is not None:
        frame = replace(frame, aux={**frame.aux, Aux.SESSION: value})
    before = fleet.states[to]
    with pytest.raises(PeerError, match="SESSION"):
        fleet.hand(to, replace(m, frame=frame))
    assert fleet.states[to] is before


def hello_to(fleet: Any, to: int, sender: int, aux: dict[int, float], round: int = 0) -> Message:
    fleet.restart(sender)
    m = next(m for k, m in fleet.mail if k == to and m.frame.kind == Kind.HELLO)
    fleet.mail.clear()
    return replace(m, frame=replace(m.frame, aux=aux, round=round))


def test_a_stranger_to_a_stream_is_refused(make_fleet: Any) -> None:
    fleet = make_fleet("directed-ring", nodes=4, algorithm="sgp")
    fleet.greet()
    fleet.restart(1)
    ((to, m),) = fleet.mail
    assert to == 0
    with pytest.raises(PeerError, match="opened a stream that board-3 does not send"):
        fleet.hand(3, m)
    with pytest.raises(PeerError, match="sends nothing to board-0"):
        fleet.hand(0, replace(m, frame=without(m.frame, Aux.SESSION)))


def test_more_than_a_few_full_states_a_round_are_not_given(fleet: Any) -> None:
    answers = 0
    for _ in range(6):
        fleet.restart(1)
        for to, m in list(fleet.mail):
            actions = fleet.hand(to, m)
            answers += any(isinstance(a, Send) and a.frame.kind == Kind.STATE for a in actions)
        fleet.mail.clear()
    senders = len({j for j, _ in fleet.states[1].in_})
    assert answers <= 3 * senders * fleet.topology.period


@pytest.mark.parametrize("tag", [Aux.PARTS, Aux.PART, Aux.PHASE])
def test_a_state_that_does_not_say_what_it_is_part_of_is_refused(fleet: Any, tag: Aux) -> None:
    fleet.restart(1)
    fleet.mail = [next(m for m in fleet.mail if m[1].frame.kind == Kind.HELLO)]
    while all(m.frame.kind == Kind.HELLO for _, m in fleet.mail):
        fleet.deliver()
    to, m = next((to, m) for to, m in fleet.mail if m.frame.kind == Kind.STATE)
    before = fleet.states[to]
    with pytest.raises(PeerError, match=tag.name):
        fleet.hand(to, replace(m, frame=without(m.frame, tag)))
    with pytest.raises(PeerError, match="not fp32"):
        fleet.hand(to, replace(m, frame=replace(m.frame, codec_id=7)))
    assert fleet.states[to] is before


def test_a_silent_receiver_gets_the_message_when_it_opens_the_stream(make_fleet: Any) -> None:
    """The greeting comes after the first message was due."""
    fleet = (
        make_fleet("directed-ring", nodes=3, algorithm="choco-sgd", codec="fp16")
        if False
        else make_fleet("ring", nodes=3, algorithm="choco-sgd", codec="fp16")
    )
    for i, s in enumerate(fleet.states):
        fleet.states[i], actions = fleet.algorithm.start(s)
        fleet.carry_out(i, actions)
    greetings, fleet.mail = fleet.mail, []
    fleet.step_all()
    assert all(m.frame.kind == Kind.HELLO for _, m in fleet.mail)  # nobody has opened a stream
    fleet.mail = greetings + fleet.mail
    fleet.deliver_all()
    assert fleet.rounds == [1, 1, 1]
    assert_replicas_are_equal(fleet)


def test_nodes_that_start_from_different_models_tell_them(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3, algorithm="choco-sgd", codec="fp16")
    fleet.greet()
    fleet.step_all()
    kinds = set()
    while fleet.mail:
        kinds.add(fleet.mail[0][1].frame.kind)
        fleet.deliver()
    assert_replicas_are_equal(fleet)
    assert fleet.rounds == [1, 1, 1]


def test_weights_that_cannot_be_are_refused(make_fleet: Any) -> None:
    fleet = make_fleet("directed-ring", nodes=3, algorithm="sgp")
    fleet.greet()
    fleet.play(1)
    fleet.step_all()
    to, m = fleet.mail[0]
    aux = dict(m.frame.aux)
    for change, text in [
        ({Aux.SHARE: -0.1}, "share of -0.1"),
        ({Aux.SHARE: 1.5}, "share of 1.5"),
        ({Aux.PUSH_SUM_WEIGHT: 0.0}, "weight of 0 after"),
        ({Aux.PUSH_SUM_WEIGHT: -1.0}, "weight of -1 after"),
        ({Aux.PUSH_SUM_WEIGHT: 1e9}, r"weight of 1e\+09 after"),
        ({Aux.LIFE: aux[Aux.LIFE] + 1}, "new life in the middle"),
    ]:
        before = fleet.states[to]
        with pytest.raises(PeerError, match=text):
            fleet.hand(to, replace(m, frame=replace(m.frame, aux={**aux, **change})))
        assert fleet.states[to] is before
    huge = np.full(N, 1e6, np.float32).tobytes()
    with pytest.raises(PeerError, match="too large to average"):
        fleet.hand(to, replace(m, frame=replace(m.frame, body=huge)))


def test_a_quorum_shortens_the_wait(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=4, quorum=0.6, linger_s=0.5)
    fleet.step_all()
    mail = [m for to, m in fleet.mail if to == 0]
    fleet.hand(0, mail[0])
    assert fleet.timers[0] == 5.0
    fleet.hand(0, mail[1])
    assert fleet.timers[0] == 0.5
    actions = fleet.tick(0)
    assert actions[0] == Suspect(mail[2].sender, "no message of round 0 within 0.5 s after the others")
    assert any(isinstance(a, RoundDone) for a in actions)


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd"])
def test_old_news_will_do_with_bounded_staleness(make_fleet: Any, name: str) -> None:
    fleet = make_fleet("ring", nodes=3, algorithm=name, staleness=1)
    fleet.greet()
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
    """Node 1 of 0 -> 1 -> 2 -> 3 -> 0 is gone: 2 gets nothing, and must not give away everything."""
    fleet = make_fleet("directed-ring", nodes=4, algorithm=name)
    fleet.greet()
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
    """Node 0 hands half of what it has to node 1 in every round and gets nothing back, as before a gap that it cannot see."""
    made = make_fleet("directed-ring", nodes=4, algorithm=name)
    made.greet()
    for _ in range(6):
        made.step(0, ZERO)
        made.tick(0)
    weight = made.algorithm.audit(made.states[0]).weight
    assert weight == pytest.approx(2.0**-6)
    before = made.algorithm.model(made.states[0])
    made.step(0, np.ones(N))
    made.tick(0)
    np.testing.assert_allclose(made.algorithm.model(made.states[0]) - before, np.full(N, 10.0), rtol=1e-4)
