"""AD-PSGD as a state machine: one exchange, what goes on while it is under way, who joins late,
what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip import adpsgd, topologies
from edgegossip.gossip.base import Checkpoint, Message, RoundDone, Send, SetTimer, Suspect
from edgegossip.types import ConfigError, DecodeError, PeerError, UsageError
from tests.gossip.conftest import DEADLINE_S, update
from tests.gossip.pairs import ZERO, N, make_net

ONE = np.ones(N, np.float32)


def kinds(actions: list[Any]) -> list[type]:
    return [type(a) for a in actions]


def test_a_step_ends_the_round_and_asks_one_neighbour() -> None:
    net = make_net(4, "ring", codec="fp16")
    actions = net.step(1, ONE)
    assert kinds(actions) == [Checkpoint, Send, SetTimer, RoundDone]
    assert actions[1].to in ("board-0", "board-2") and actions[2].after_s == DEADLINE_S / 2
    frame = actions[1].frame
    assert (frame.kind, frame.round, frame.sequence, frame.run_id) == (Kind.MODEL, 0, 1, b"r" * 16)
    assert frame.aux == {Aux.SESSION: net.states[1].view.boot, Aux.SETTLED: 0, Aux.FRESH: 1}
    x = (net.start[1] + 1).astype(np.float32)
    np.testing.assert_array_equal(net.algorithm.model(net.states[1]), x)
    public = x.astype(np.float16).astype(np.float64)
    assert actions[3].round == 0 and math.isnan(actions[3].consensus_distance)
    assert actions[3].relative_error == pytest.approx(np.linalg.norm(public - x) / np.linalg.norm(x), rel=1e-3)
    assert net.algorithm.round(net.states[1]) == 1 and net.algorithm.waiting_for(net.states[1]) == ()


@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_an_exchange_averages_both(eta: float) -> None:
    net = make_net(2, eta=eta)
    net.step(0)
    actions = net.deliver()
    assert kinds(actions) == [Checkpoint, Send]
    answer = actions[1].frame
    assert (answer.kind, answer.sequence) == (Kind.MODEL, 1)
    assert answer.aux == {Aux.SESSION: net.states[0].view.boot, Aux.ANSWER: 1}
    x = net.start.astype(np.float64)
    np.testing.assert_allclose(net.now()[1], x[1] + eta * (x[0] - x[1]) / 2, atol=1e-6)
    actions = net.deliver()
    assert kinds(actions) == [Checkpoint, Send, SetTimer] and actions[2].after_s is None
    assert actions[1].frame.kind == Kind.HELLO and actions[1].frame.aux == {Aux.SESSION: net.states[0].view.boot}
    np.testing.assert_allclose(net.now()[0], x[0] + eta * (x[1] - x[0]) / 2, atol=1e-6)
    net.check_sum(1e-6)
    assert net.states[1].taken[0][0].answer is not None
    assert net.deliver() == [] and net.states[1].taken[0][0].answer is None
    assert not net.algorithm.audit(net.states[1]).taken
    net.check_sum(1e-6)
    assert not net.waits()


def test_the_next_step_waits_for_the_exchange_under_way() -> None:
    net = make_net(2)
    net.step(0)
    assert net.step(0, ONE) == [] and net.algorithm.waiting_for(net.states[0]) == ("board-1",)
    with pytest.raises(UsageError, match="round 1 of board-0 has its local update already"):
        net.step(0)
    net.deliver()
    actions = net.deliver()  # the answer ends this exchange and begins the next
    assert kinds(actions) == [Checkpoint, Send, SetTimer, Checkpoint, Send, SetTimer, RoundDone]
    assert (actions[2].after_s, actions[5].after_s) == (None, DEADLINE_S / 2)
    distance = float(np.linalg.norm(net.start[1] - net.start[0]))
    assert actions[6].round == 1 and actions[6].consensus_distance == pytest.approx(distance, rel=1e-5)
    assert net.algorithm.waiting_for(net.states[0]) == ()
    assert not actions[4].frame.aux.get(Aux.FRESH) and actions[4].frame.aux[Aux.SETTLED] == 1
    net.deliver_all()
    net.check_sum(1e-6)


def test_two_that_ask_each_other_average_once() -> None:
    net = make_net(2)
    net.step(0)
    net.step(1)
    x = net.start.astype(np.float64)
    actions = net.deliver(1)  # node 0 gets the request of 1 while it waits for 1
    assert actions[1].frame.kind == Kind.HELLO and actions[1].frame.aux[Aux.ANSWER] == 1
    net.deliver_all()
    np.testing.assert_allclose(net.now(), np.stack([x.mean(axis=0)] * 2), atol=1e-6)
    assert not net.waits() and not net.states[0].begun and not net.states[1].begun
    net.check_sum(1e-6)


def test_the_peer_is_drawn_from_seed_node_and_round() -> None:
    peers = {}
    for seed in (0, 0, 1):
        net = make_net(5, seed=seed)
        net.start[:] = 1
        drawn = []
        for _ in range(40):
            drawn.append(next(a.to for a in net.step(0) if isinstance(a, Send)))
            net.deliver_all()
        assert set(drawn) == {"board-1", "board-2", "board-3", "board-4"}
        assert peers.setdefault(seed, drawn) == drawn
    assert peers[0] != peers[1]


def test_alone_a_round_needs_nobody() -> None:
    net = make_net(2)
    assert net.down(0, 1) == []
    assert kinds(net.step(0, ONE)) == [Checkpoint, RoundDone]
    assert net.algorithm.round(net.states[0]) == 1 and not net.mail
    net.down(0)
    assert Send in kinds(net.step(0))


def test_a_peer_that_goes_down_is_not_waited_for() -> None:
    net = make_net(2)
    net.step(0)
    assert kinds(net.down(0, 1)) == [SetTimer]
    net.down(0)
    net.step(0)
    net.step(0)
    assert kinds(net.down(0, 1)) == [SetTimer, Checkpoint, RoundDone]
    assert net.algorithm.round(net.states[0]) == 3
    assert net.down(0, 1) == []  # nothing new


def test_who_is_fresh_and_far_behind_takes_over_the_model_that_it_asked_for() -> None:
    net = make_net(2, max_ahead=3)
    net.down(0, 1)
    for _ in range(5):
        net.step(0)
    net.down(0)
    net.states[0] = replace(net.states[0], fresh=False)
    net.step(1, ONE)
    actions = net.deliver()
    assert actions[1].frame.kind == Kind.STATE and actions[1].frame.round == 4
    np.testing.assert_array_equal(net.now()[0], net.start[0])
    actions = net.deliver()
    assert actions[1].node == "board-0" and actions[1].round == 4 and kinds(actions)[2:] == [SetTimer]
    np.testing.assert_array_equal(net.now()[1], net.start[0])
    assert net.algorithm.round(net.states[1]) == 4
    actions = net.step(1, ONE)
    assert actions[-1].round == 4 and Aux.FRESH not in actions[1].frame.aux


def test_who_is_fresh_and_far_behind_asks_for_the_model_when_asked_itself() -> None:
    net = make_net(2, codec="minmax8", max_ahead=3)
    net.down(0, 1)
    for _ in range(5):
        net.step(0)
    net.down(0)
    net.states[0] = replace(net.states[0], fresh=False)
    net.step(1)
    net.step(1)  # waits
    asked = net.mail.pop()
    net.step(0)
    answer = net.deliver()[1].frame
    assert answer.kind == Kind.HELLO and answer.aux[Aux.FRESH] == 1
    actions = net.deliver()  # node 0 takes no part either, and sends its model as it is
    assert kinds(actions) == [Checkpoint, Send, SetTimer] and actions[1].frame.kind == Kind.STATE
    twice = net.mail[0]
    actions = net.deliver()
    assert [a.round for a in actions if isinstance(a, RoundDone)] == [5]  # its step waited; its update is dropped
    np.testing.assert_array_equal(net.now()[1], net.now()[0])
    later = net.states[1].late
    assert net.hand(*twice) == [] and net.states[1].late == later + 1
    net.hand(*asked)  # of before: given up, and answered once more
    net.deliver_all()
    assert len(net.adopted) == 1
    assert np.abs(net.now()[1] - net.now()[0]).max() < 1e-2


def test_a_model_that_nobody_asked_for_is_not_taken_over() -> None:
    """By one that is fresh, of a neighbour far ahead."""
    net = make_net(2, max_ahead=3)
    net.step(0)
    asked = net.mail.pop()[1].frame
    before = net.now()[0]
    for sequence, session in ((asked.sequence + 1, 0), (asked.sequence, 1)):
        other = replace(asked, sequence=sequence, aux={**asked.aux, Aux.SESSION: asked.aux[Aux.SESSION] + session})
        frame = adpsgd._model(net.states[1].view, other, 500, np.full(N, 9.0, np.float32))
        assert net.hand(0, Message("board-1", frame)) == []
    np.testing.assert_array_equal(net.now()[0], before)
    assert net.states[0].fresh and net.states[0].late == 2


def test_a_model_that_was_not_needed_any_more_is_no_answer() -> None:
    """Node 1 is fresh when it asks, and not when it gets the model: it has averaged with somebody
    else."""
    net = make_net(3, max_ahead=2)
    net.down(0, 1, 2)
    for _ in range(5):
        net.step(0)
    net.down(0)
    net.states[0] = replace(net.states[0], fresh=False)
    while not any(m.frame.kind == Kind.STATE for _, m in net.mail):
        net.mail.clear()
        net.boots[1] += 1
        net.states[1] = net.algorithm.init(net.start[1], net.view(1, seed=net.boots[1]))
        net.step(1)
        if net.mail[0][0] == 0:
            net.deliver()
    net.states[1] = replace(net.states[1], fresh=False)
    before = net.now()[1]
    actions = net.deliver()
    assert kinds(actions) == [Checkpoint, SetTimer] and not net.states[1].begun
    np.testing.assert_array_equal(net.now()[1], before)


@pytest.mark.parametrize("name", ["directed-ring", "exponential", "one-peer-exponential"])
def test_a_directed_graph_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"undirected graph, which topology '{name}' is not; use one of: ring"):
        make_net(6, topologies.get(name, 6))


def test_bad_models_and_updates_are_refused() -> None:
    net = make_net(2)
    with pytest.raises(UsageError):
        net.algorithm.init(np.full(N, np.nan, np.float32), net.view(0))
    with pytest.raises(UsageError, match="w"):
        net.algorithm.step(net.states[0], update(np.full(N, np.inf)))
    with pytest.raises(UsageError, match="which members are down"):
        net.algorithm.membership(net.states[0], net.view(0, seed=99))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": Kind.DIFFERENCE}, "kind 2"),
    "codec": ({"codec_id": 99}, r"board-\d sent codec id 99 where fp32 \(id 1\) is expected"),
    "no session": ({"aux": {Aux.SETTLED: 0}}, "SESSION = None"),
    "a session that is no number of a boot": ({"aux": {Aux.SESSION: 0.5, Aux.SETTLED: 0}}, "SESSION = 0.5"),
    "the future settled": ({"aux": {Aux.SESSION: 1, Aux.SETTLED: 1}}, "SETTLED"),
    "sequence": ({"sequence": 2**60}, "sequence 1152921504606846976, which is out of range"),
    "body": ({"body": b"abc"}, "bytes"),
    "values too large": ({"body": np.full(N, 1e9, "<f4").tobytes()}, "too large to average"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_messages_are_refused_and_change_nothing(case: str) -> None:
    net = make_net(2)
    net.step(0)
    to, message = net.mail[0]
    changes, words = BAD[case]
    bad = Message(message.sender, replace(message.frame, **changes))
    with pytest.raises(PeerError, match=words) as caught:
        net.hand(to, bad)
    assert isinstance(caught.value, DecodeError) == (case == "body")
    net.deliver_all()
    net.check_sum(1e-6)


def test_suspects_are_named_with_the_reason() -> None:
    net = make_net(2, repeats=0)
    actions = net.step(0)
    assert actions[2].after_s == DEADLINE_S
    actions = net.tick(0)
    assert actions == [Suspect("board-1", "no answer to the model of round 0 within 5 s", "answer", 0, 5.0)]
    assert net.tick(0) == []


def test_who_never_answers_costs_two_deadlines_until_it_sends() -> None:
    net = make_net(3, repeats=0)

    def play(rounds: int) -> int:
        """How many deadlines of node 0 passed; only node 1 answers."""
        before = len(net.suspected)
        for _ in range(rounds):
            net.step(0)
            net.mail = [(to, m) for to, m in net.mail if to != 2]
            net.deliver_all()
            net.tick(0)
        return len(net.suspected) - before

    def says() -> int:
        """Node 2 asks node 0, and how many deadlines that lets it cost."""
        while not (mail := [m for to, m in net.mail if to == 0]):
            net.mail.clear()
            net.states[2] = replace(net.states[2], waiting=None)
            net.step(2)
        for _ in range(5):  # however much it sends
            net.hand(0, mail[0])
        net.mail.clear()
        return play(20)

    assert play(40) == 2 and net.states[0].sequences[2] > 10  # it is asked all the same
    assert [says() for _ in range(4)] == [1, 0, 1, 0]  # after two rounds in which it has sent, then four


def test_who_comes_and_goes_holds_up_few_steps() -> None:
    net, held_up = make_net(3), 0
    for _ in range(60):
        net.step(0)
        net.mail.clear()
        if net.states[0].stepped:
            held_up += 1
            net.down(0, net.states[0].waiting)
            net.down(0)
    assert held_up == 4  # two of each of the others


def test_an_answer_is_given_again_a_few_times_and_not_for_ever() -> None:
    """Whoever asks on and on would make this node send its model each time."""
    net = make_net(2)
    net.step(0)
    to, message = net.mail.pop()
    for _ in range(50):
        net.hand(to, message)
    assert len(net.mail) == 1 + net.algorithm.repeats + adpsgd.RESTARTS
    state = net.states[1]
    net.hand(to, message)
    assert state.settled == net.states[1].settled and net.algorithm.audit(state).taken


def test_sessions_of_a_peer_are_bounded() -> None:
    net = make_net(2)
    net.step(0)
    to, message = net.mail.pop()
    for boot in range(20):
        aux = {**message.frame.aux, Aux.SESSION: boot}
        net.hand(to, Message(message.sender, replace(message.frame, aux=aux)))
    assert len(net.states[1].taken[0]) == adpsgd.SESSIONS
    assert sum(t.answer is not None for t in net.states[1].taken[0]) == 1
    assert net.algorithm.step(net.states[1], update(ZERO))


def test_strangers_are_refused() -> None:
    net = make_net(4, "ring")
    net.step(0)
    _, message = net.mail[0]
    with pytest.raises(PeerError, match="board-0 is not a neighbour of board-2"):
        net.hand(2, message)
    with pytest.raises(PeerError, match="board-9 is not a member"):
        net.hand(1, Message("board-9", message.frame))
