"""D-PSGD when neighbours are silent, go down, come back, or have gone on without this node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Kind
from edgegossip.gossip.base import Adopted, Checkpoint, Message, RoundDone, Send, SetTimer, Suspect
from edgegossip.types import LocalUpdate, UsageError
from tests.gossip.streams import take_mail

N = 12
ZERO = np.zeros(N, np.float32)
ONE = np.ones(N, np.float32)


def kinds(actions: list[Any]) -> list[type]:
    return [type(a) for a in actions]


def test_past_the_deadline_the_missing_weight_stays_with_the_node(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    fleet.step_all()
    fleet.hand(0, next(m for to, m in fleet.mail if to == 0 and m.sender == "board-1"))
    actions = fleet.tick(0)
    assert actions[0] == Suspect("board-3", "no message of round 0 within 5 s", "deadline", 0, 5.0)
    assert kinds(actions) == [Suspect, Checkpoint, RoundDone]
    x = fleet.start.astype(np.float64)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), x[0] * 2 / 3 + x[1] / 3, rtol=0, atol=1e-6)
    assert actions[2].consensus_distance == pytest.approx(np.linalg.norm(x[1] - x[0]), rel=1e-6)


def test_who_goes_down_is_not_waited_for_and_the_round_ends(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    fleet.step_all()
    fleet.hand(0, next(m for to, m in fleet.mail if to == 0 and m.sender == "board-1"))
    actions = fleet.down(0, 3)
    assert kinds(actions) == [SetTimer, Checkpoint, RoundDone] and actions[0].after_s is None
    sends = [a for a in fleet.step(0, ZERO) if isinstance(a, Send)]
    assert [a.to for a in sends] == ["board-1"]
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-1",)


def test_what_a_node_sent_before_it_went_down_counts(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    fleet.step_all([1, 2])
    fleet.deliver_all()
    fleet.down(0, 2)
    fleet.step(0, ZERO)
    np.testing.assert_allclose(fleet.algorithm.model(fleet.states[0]), fleet.start.mean(axis=0), rtol=0, atol=1e-6)


def test_who_comes_back_gets_the_message_of_the_round_and_is_waited_for(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    fleet.down(0, 3)
    fleet.step(0, ZERO)
    actions = fleet.down(0)
    assert kinds(actions) == [Send, Send] and {a.to for a in actions} == {"board-3"}
    asked, told = (a.frame for a in actions)  # whether it is far behind, first: its answer comes before later rounds
    assert asked.kind == Kind.HELLO and not asked.aux
    assert (told.kind, told.round, told.sequence) == (Kind.MODEL, 0, 1)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-1", "board-3")
    fleet.step_all([1, 2, 3])
    fleet.deliver_all()
    assert fleet.rounds == [1] * 4
    x = fleet.start.astype(np.float64)
    np.testing.assert_allclose(
        [fleet.algorithm.model(s) for s in fleet.states], fleet.topology.matrix(0) @ x, rtol=0, atol=1e-6
    )
    assert [a.frame.sequence for a in fleet.step(0, ZERO) if isinstance(a, Send)] == [2, 2]


def test_who_is_still_down_is_sent_nothing_when_another_comes_back(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=4)
    fleet.down(0, 1, 3)
    fleet.step(0, ZERO)
    assert {a.to for a in fleet.down(0, 1) if isinstance(a, Send)} == {"board-3"}


def test_only_down_may_change_during_a_run(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    with pytest.raises(UsageError, match="only change which members are down"):
        fleet.algorithm.membership(fleet.states[0], fleet.view(0, seed=9))


def ahead(fleet: Any, sender: int, round: int) -> Message:
    """What `sender` would send in a later round: its start model."""
    late = replace(fleet.states[sender], round=round)
    _, actions = fleet.algorithm.step(late, LocalUpdate(ZERO, 0.1, 1.0, 1, 1))
    return Message(fleet.members[sender], next(a.frame for a in actions if isinstance(a, Send)))


def test_a_node_left_behind_goes_on_in_its_neighbours_round(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)  # more than 4 + 1 rounds ahead counts as far
    alone(fleet, 1)
    fleet.step(0, ONE)
    assert fleet.hand(0, ahead(fleet, 1, 5)) == fleet.hand(0, ahead(fleet, 1, 6)) == []
    actions = fleet.hand(0, ahead(fleet, 1, 7))
    assert kinds(actions) == [SetTimer, Checkpoint, RoundDone] and actions[0].after_s is None
    assert actions[2].round == 5 and fleet.rounds[0] == 6
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.start[0] + 1)
    fleet.step(0, ZERO)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-3",)  # the message of round 6 was kept


def alone(fleet: Any, rounds: int) -> None:
    for _ in range(rounds):
        fleet.step(0, ZERO), fleet.tick(0)
    fleet.mail.clear()


def test_half_of_the_neighbours_lead_a_node_no_further_than_they_can_have_come(make_fleet: Any) -> None:
    """On a ring that is any liar."""
    fleet = make_fleet("ring", nodes=4)
    for round in (0, 1, 2):
        fleet.hand(0, ahead(fleet, 1, round))
        alone(fleet, 1)
    assert fleet.rounds[0] == 3
    for far in (9, 10, 1000, 1001):  # at four times our pace it would be in round 6
        assert fleet.hand(0, ahead(fleet, 1, far)) == []
    alone(fleet, 2)
    assert fleet.rounds[0] == 5 and fleet.hand(0, ahead(fleet, 1, 2000)) == []
    fleet.hand(0, ahead(fleet, 1, 12)), fleet.hand(0, ahead(fleet, 1, 13))
    assert fleet.rounds[0] == 5  # its own newest messages say that it is further still
    fleet.hand(0, ahead(fleet, 3, 11)), fleet.hand(0, ahead(fleet, 3, 12))
    assert fleet.rounds[0] == 11


@pytest.mark.parametrize("step", ["a few rounds", "as far as it gets"])
def test_half_of_the_neighbours_lead_nobody_on_and_on(make_fleet: Any, step: str) -> None:
    """Rounds that are left out are none that a node has played, and what a neighbour says in them
    is no way that it has come."""
    fleet = make_fleet("ring", nodes=4)
    alone(fleet, 1)
    for _ in range(8):
        now = fleet.rounds[0]
        most = now + 6 if step == "a few rounds" else 8 * now + 8
        for far in range(most, now, -1):
            for round in (far, far + 1):
                fleet.hand(0, ahead(fleet, 1, round))
            if fleet.rounds[0] != now:
                break
    assert fleet.rounds[0] <= 8  # -1, before it was heard of, and four times two
    alone(fleet, 10)
    for far in (now for k in range(40) for now in (fleet.rounds[0] + 6 + k % 30, fleet.rounds[0] + 7 + k % 30)):
        fleet.hand(0, ahead(fleet, 1, far))
    assert fleet.rounds[0] <= 8 + 10 * 4 + 5


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd", "sgp"])
def test_one_message_leads_nobody_to_a_far_round_and_none_that_cannot_be_decoded(make_fleet: Any, name: str) -> None:
    """Not even where it is of the only neighbour."""
    fleet = make_fleet("ring", nodes=4, algorithm=name)
    fleet.say_hello()
    fleet.down(0, 3)
    fleet.step(1, ZERO)
    sent = next(m for to, m in fleet.mail if to == 0 and m.sender == "board-1")

    def far(number: int, **changes: Any) -> Message:
        return replace(sent, frame=replace(sent.frame, round=1000 + number, sequence=2 + number, **changes))

    for message in (far(0), far(0), far(1, body=b"short"), far(2, body=b"short")):
        fleet.hand(0, message)
        assert fleet.rounds[0] == 0
    fleet.hand(0, far(3)), fleet.hand(0, far(4))
    assert fleet.rounds[0] == 1003


def test_a_node_left_behind_before_its_step_keeps_its_model(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4, max_ahead=2)
    assert fleet.hand(0, ahead(fleet, 3, 3)) == []
    assert fleet.hand(0, ahead(fleet, 3, 4)) == [Checkpoint()]
    assert fleet.rounds[0] == 3
    np.testing.assert_array_equal(fleet.algorithm.model(fleet.states[0]), fleet.start[0])


def test_one_neighbour_of_many_cannot_pull_a_node_ahead(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=4, max_ahead=1)
    for k in range(2, 12):
        assert fleet.hand(0, ahead(fleet, 1, k)) == []
    assert fleet.rounds[0] == 0 and len(fleet.states[0].inbox.of(1)) == 2  # only its newest are kept
    assert fleet.hand(0, ahead(fleet, 2, 9)) == []
    actions = fleet.hand(0, ahead(fleet, 2, 10))
    assert actions == [Checkpoint()] and fleet.rounds[0] == 9


@pytest.mark.parametrize("restarts", [False, True])
def test_half_of_the_neighbours_have_to_find_one_process_far_behind(make_fleet: Any, restarts: bool) -> None:
    fleet = make_fleet("complete", nodes=4, max_ahead=1)
    for k in (1, 2):
        fleet.states[k] = replace(fleet.states[k], round=10)
    fleet.states[0], hellos = fleet.algorithm.start(fleet.states[0])
    fleet.carry_out(0, hellos)
    fleet.step(0, ONE)
    for k in (1, 2):
        for _, m in take_mail(fleet, k):
            if m.frame.kind == Kind.HELLO:
                fleet.hand(k, m)
        for _, m in take_mail(fleet, 0):
            fleet.hand(0, m)
        if k == 1:
            assert fleet.rounds[0] == 0
            if restarts:
                fleet.restart(0, fleet.states[0])
    assert fleet.rounds[0] == (1 if restarts else 10)


@pytest.mark.parametrize("name", ["dpsgd", "deep-squeeze", "sgp"])
def test_who_comes_again_with_nothing_is_led_sooner_than_a_period_of_rounds_a_hop(make_fleet: Any, name: str) -> None:
    """One with a model is as far behind as random pairs let it be."""
    fleet = make_fleet("random-pairs", nodes=3, algorithm=name)
    fleet.say_hello()
    fleet.down(0, 2), fleet.down(1, 2)
    fleet.play(40, [0, 1])
    kept = fleet.states[2]
    for state, rounds in ((kept, [40, 40, 0]), (None, [40, 40, 40])):
        fleet.down(0, 2), fleet.down(1, 2)
        fleet.down(0), fleet.down(1)
        fleet.mail.clear()
        fleet.restart(2, state)
        fleet.deliver_all()
        assert fleet.rounds == rounds
    assert not fleet.states[2].bare


@pytest.mark.parametrize("name", ["dpsgd", "deep-squeeze", "d2"])
def test_a_newcomer_asks_again_whether_it_is_far_behind(make_fleet: Any, name: str) -> None:
    """Its hellos were lost: its neighbours never offer their models."""
    fleet = make_fleet("ring", nodes=4, algorithm=name)
    fleet.say_hello()
    for node in (1, 2, 3):
        fleet.down(node, 0)
    fleet.play(20, [1, 2, 3])
    fleet.restart(0)
    fleet.mail.clear()
    for node in (1, 2, 3):
        fleet.down(node)
    fleet.step(0, ZERO), fleet.tick(0)
    fleet.mail.clear()
    fleet.step(0, ZERO)
    assert [to for to, m in fleet.mail if m.frame.kind == Kind.HELLO] == [1, 3]
    adopted = []
    while fleet.mail:
        adopted += [a for a in fleet.deliver() if isinstance(a, Adopted)]
    assert [a.round for a in adopted] == [20]
    fleet.play(1)
    assert not [m for _, m in fleet.mail if m.frame.kind == Kind.HELLO]
    fleet.step(0, ZERO)
    assert not [m for _, m in fleet.mail if m.frame.kind == Kind.HELLO]  # all have been heard


def offers_to_a_newcomer(fleet: Any, others: tuple[int, ...], rounds: int) -> list[Message]:
    """Have node 0 come with nothing after so many rounds of the others; return what they offer."""
    fleet.say_hello()
    for node in others:
        fleet.down(node, 0)
    fleet.play(rounds, others)
    fleet.restart(0)
    fleet.mail.sort(key=lambda mail: mail[0])
    for node in others:
        fleet.down(node)
        fleet.deliver()
    return [m for to, m in fleet.mail if to == 0 and m.frame.kind == Kind.STATE]


def test_who_came_back_has_to_offer_its_model_again(make_fleet: Any) -> None:
    """Three of four neighbours would lead a newcomer to their round."""
    fleet = make_fleet("complete", nodes=5)
    first, *others = offers_to_a_newcomer(fleet, (1, 2, 3, 4), 20)
    fleet.hand(0, first)
    fleet.down(0, 1), fleet.down(0)
    fleet.hand(0, others[0]), fleet.hand(0, others[1])
    assert fleet.rounds[0] == 0
    fleet.hand(0, others[2])
    assert fleet.rounds[0] == 20


@pytest.mark.parametrize("rounds", [20, 8])
def test_offers_of_several_rounds_add_up_while_they_are_far_ahead(make_fleet: Any, rounds: int) -> None:
    """One neighbour heard of its return a round later than another, and neither says it twice."""
    fleet = make_fleet("complete", nodes=5)
    far = fleet.algorithm._ahead(fleet.states[0], True)
    first, second, third, _ = offers_to_a_newcomer(fleet, (1, 2, 3, 4), rounds)
    assert 0 + far < rounds
    fleet.hand(0, first), fleet.hand(0, second)
    for _ in range(3):
        fleet.step(0, ZERO), fleet.tick(0)
    assert fleet.rounds[0] == 3
    late = replace(third.frame, round=20)
    fleet.hand(0, replace(third, frame=late))
    assert fleet.rounds[0] == (20 if 3 + far < rounds else 3)


def test_who_offered_is_asked_again_once_the_others_are_gone(make_fleet: Any) -> None:
    """Two of five are not enough, and of three that are up they are."""
    fleet = make_fleet("complete", nodes=6)
    first, second, *_ = offers_to_a_newcomer(fleet, (1, 2, 3, 4, 5), 20)
    fleet.hand(0, first), fleet.hand(0, second)
    assert fleet.rounds[0] == 0
    fleet.mail.clear()
    fleet.down(0, 4, 5)
    fleet.deliver_all()
    assert fleet.rounds[0] == 20


def test_an_offer_of_one_that_counts_as_down_is_void_once_it_is_back(make_fleet: Any) -> None:
    """Two of three would lead a newcomer."""
    fleet = make_fleet("complete", nodes=4)
    first, second, third = offers_to_a_newcomer(fleet, (1, 2, 3), 20)
    fleet.down(0, fleet.members.index(first.sender))
    fleet.hand(0, first)
    fleet.down(0)
    fleet.hand(0, second)
    assert fleet.rounds[0] == 0
    fleet.hand(0, third)
    assert fleet.rounds[0] == 20


def test_one_that_stands_still_far_ahead_does_not_bar_those_that_go_on(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=5)
    offers = offers_to_a_newcomer(fleet, (1, 2, 3, 4), 20)
    beyond = 21 + fleet.algorithm._ahead(fleet.states[0])
    for k, offer in enumerate(offers):
        assert fleet.rounds[0] == 0
        fleet.hand(0, offer if k == 0 else replace(offer, frame=replace(offer.frame, round=beyond)))
    assert fleet.rounds[0] == beyond


def test_one_message_far_ahead_is_not_enough_where_far_is_less_than_a_period(make_fleet: Any) -> None:
    fleet = make_fleet("one-peer-exponential", nodes=8, max_ahead=1)
    sender = fleet.topology.neighbours(0, 2).in_[0]
    assert fleet.hand(0, ahead(fleet, sender, 2)) == [] and fleet.rounds[0] == 0


def without(fleet: Any, to: int, sender: int) -> None:
    """Lose what one has sent another."""
    fleet.mail[:] = [mail for mail in fleet.mail if (mail[0], mail[1].sender) != (to, fleet.members[sender])]


def spend(fleet: Any) -> None:
    """Have board-1 let two deadlines of node 0 pass."""
    fleet.say_hello()
    for _ in range(2):
        fleet.step_all()
        without(fleet, 0, 1)
        fleet.deliver_all()
        assert [a.node for a in fleet.tick(0) if isinstance(a, Suspect)] == ["board-1"]
        fleet.deliver_all()


def test_who_has_used_up_patience_is_not_waited_for_once_the_others_are_gone(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    spend(fleet)
    fleet.step(0, ZERO)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-3",)
    assert RoundDone in kinds(fleet.down(0, 3)) and not fleet.algorithm.waiting_for(fleet.states[0])


def test_who_comes_back_while_only_such_are_there_gets_a_whole_deadline(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=4)
    spend(fleet)
    fleet.down(0, 3)
    timers = [a for a in fleet.step(0, ZERO) if isinstance(a, SetTimer)]
    assert [a.after_s for a in timers] == [1.0]
    timers = [a for a in fleet.down(0) if isinstance(a, SetTimer)]
    assert [a.after_s for a in timers] == [fleet.states[0].view.deadline_s]
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-3",)
    assert [a.node for a in fleet.tick(0) if isinstance(a, Suspect)] == ["board-3"]


def test_who_is_led_on_uses_the_news_that_is_new_enough(make_fleet: Any) -> None:
    fleet = make_fleet("complete", nodes=5, max_ahead=1, staleness=2)
    fleet.hand(0, ahead(fleet, 4, 8))
    for sender in (1, 2, 3):
        for round in (9, 10):
            fleet.hand(0, ahead(fleet, sender, round))
    assert fleet.rounds[0] == 9
    fleet.step(0, ZERO)
    assert fleet.rounds[0] == 10


def test_an_early_message_that_turns_out_bad_is_suspect_and_not_waited_for(make_fleet: Any) -> None:
    fleet = make_fleet("ring", nodes=3)
    early = ahead(fleet, 1, 1)
    fleet.hand(0, replace(early, frame=replace(early.frame, body=b"short")))
    fleet.step_all()
    mail = [m for to, m in fleet.mail if to == 0]
    fleet.hand(0, mail[0])
    actions = fleet.hand(0, mail[1])
    assert kinds(actions) == [SetTimer, Checkpoint, RoundDone, Suspect]
    assert actions[3].node == "board-1" and actions[3].reason.startswith("message of round 1 refused: ")
    fleet.step(0, ZERO)
    assert fleet.algorithm.waiting_for(fleet.states[0]) == ("board-2",)


def test_a_later_message_of_an_edge_tells_that_this_rounds_is_lost(make_fleet: Any) -> None:
    """After a pause: neighbours are one round on and wait for the paused node, which waits for a
    message that was lost."""
    fleet = make_fleet("ring", nodes=3)
    fleet.step_all()
    paused, mail = 2, [(to, m) for to, m in fleet.mail if to != 2]
    fleet.mail.clear()
    fleet.down(0, paused), fleet.down(1, paused)
    for to, message in mail:
        fleet.hand(to, message)
    assert fleet.rounds == [1, 1, 0]
    fleet.step(0, ZERO), fleet.step(1, ZERO)
    fleet.mail.clear()
    fleet.down(0), fleet.down(1)  # it is back: it gets the messages of round 1, never those of round 0
    assert {m.frame.round for to, m in fleet.mail if to == paused} == {1}
    while fleet.mail and fleet.rounds[paused] == 0:
        fleet.deliver()
    assert fleet.rounds[paused] == 1
    fleet.step(paused, ZERO)
    fleet.deliver_all()
    assert min(fleet.rounds[:2]) >= 1 and fleet.rounds[paused] == 2
    assert not fleet.algorithm.waiting_for(fleet.states[paused])


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd", "quant-sgp"])
def test_a_hello_that_came_while_its_sender_counted_as_down_is_asked_for_again(make_fleet: Any, name: str) -> None:
    """A restarted board reaches its neighbours some moments before they reach it."""
    fleet = make_fleet("ring", nodes=3, algorithm=name)
    fleet.say_hello()
    fleet.down(1, 0), fleet.down(2, 0)
    fleet.play(20, [1, 2])
    fleet.restart(0)
    fleet.deliver_all()
    assert fleet.rounds[0] == 0  # nobody may answer yet
    fleet.down(1), fleet.down(2)
    adopted = []
    while fleet.mail:
        adopted += [a for a in fleet.deliver() if isinstance(a, Adopted)]
    assert [a.round for a in adopted] == [20] and fleet.rounds == [20] * 3
    fleet.play(3)
    assert fleet.rounds == [23] * 3


@pytest.mark.parametrize("name", ["dpsgd", "choco-sgd", "quant-sgp"])
def test_an_answer_that_was_lost_with_the_connection_is_asked_for_again(make_fleet: Any, name: str) -> None:
    """A board that restarts within the grace time says hello before its neighbours know that the
    old process is gone."""
    fleet = make_fleet("ring", nodes=3, algorithm=name)
    fleet.say_hello()
    fleet.play(20)
    fleet.restart(0)
    while hellos := [k for k, (_, m) in enumerate(fleet.mail) if m.frame.kind == Kind.HELLO]:
        fleet.deliver(hellos[0])
    assert any(m.frame.kind == Kind.STATE for _, m in fleet.mail)
    fleet.mail.clear()  # what was queued for the old process
    adopted = []
    for node in (1, 2):
        fleet.down(node, 0), fleet.down(node)
    while fleet.mail:
        adopted += [a for a in fleet.deliver() if isinstance(a, Adopted)]
    assert [a.round for a in adopted] == [20] and fleet.rounds == [20] * 3
    fleet.play(3)
    assert fleet.rounds == [23] * 3
