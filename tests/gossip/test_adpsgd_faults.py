"""AD-PSGD under loss, duplication, reordering, deadlines and restarts, against an independent
ledger of the sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import RoundDone, Send, SetTimer, Suspect
from tests.gossip.conftest import DEADLINE_S
from tests.gossip.pairs import N, make_net

ONE = np.ones(N, np.float32)


def kinds(actions: list[Any]) -> list[type]:
    return [type(a) for a in actions]


def test_a_request_is_repeated_as_it_was_and_then_given_up() -> None:
    net = make_net(2, repeats=2)
    first = net.step(0)
    assert first[2].after_s == pytest.approx(DEADLINE_S / 3)
    net.step(0, ONE)
    net.mail.clear()
    for _ in range(2):
        actions = net.tick(0)
        assert actions == [first[1], SetTimer(DEADLINE_S / 3)]
    actions = net.tick(0)
    assert kinds(actions)[0] is Suspect and kinds(actions)[-1] is RoundDone
    assert actions[2].frame.sequence == 2 and actions[2].frame.aux[Aux.SETTLED] == 0
    net.check_sum()


def test_a_request_that_comes_twice_is_answered_twice_and_averaged_once() -> None:
    net = make_net(2)
    net.step(0)
    net.mail.append(net.mail[0])
    answer = net.deliver()[1]
    after = net.now()[1]
    assert net.deliver() == [answer]
    np.testing.assert_array_equal(net.now()[1], after)
    assert net.states[1].duplicates == 1
    net.mail.append(net.mail[0])
    net.deliver_all()
    assert net.states[0].late == 2  # the second answer, and its copy
    net.check_sum(1e-6)


def test_a_late_answer_still_ends_an_exchange_that_was_given_up() -> None:
    net = make_net(2, repeats=0)
    net.step(0)
    net.deliver()
    net.tick(0)
    assert net.suspected == [(0, "board-1")]
    net.check_sum(1e-6)  # with the half of node 1 open
    assert np.abs(net.open_halves()).max() > 0
    net.deliver_all()
    assert not net.open_halves().any()
    np.testing.assert_allclose(net.now()[0], net.now()[1], atol=1e-6)


def test_the_next_request_takes_back_what_was_given_up() -> None:
    net = make_net(2, repeats=0)
    before = net.now()[1]
    net.step(0)
    net.deliver()
    late = net.mail.pop()
    net.tick(0)
    net.step(0)
    net.check_sum(1e-6)
    request = net.mail.pop()
    net.step(0)
    _, change = net.algorithm.audit(net.states[1]).taken[0]
    np.testing.assert_allclose(net.now()[1] - change, before, atol=1e-6)
    net.hand(*request)
    np.testing.assert_allclose(net.now()[1], (before + net.now()[0]) / 2, atol=1e-6)
    net.check_sum(1e-6)
    net.hand(*late)
    assert net.states[0].late == 1
    net.check_sum(1e-6)
    net.deliver_all()
    net.check_sum(1e-6)


@pytest.mark.parametrize("answered", [False, True])
def test_a_restart_goes_on_with_the_exchange_of_its_checkpoint(answered: bool) -> None:
    net = make_net(2)
    net.step(0, ONE)
    net.tick(0)
    kept = net.states[0]
    if answered:
        net.deliver()
    net.mail.clear()
    actions = net.restart(0, kept)
    assert kinds(actions) == kinds(net.tick(0)) == [Send, SetTimer]  # a new process repeats it as often
    net.deliver_all()
    np.testing.assert_allclose(net.now()[0], net.now()[1], atol=1e-6)
    net.check_sum(1e-6)
    new = net.step(0)[1].frame
    assert new.sequence == 2 and new.aux[Aux.SESSION] != kept.begun[1].frame.aux[Aux.SESSION]
    net.deliver_all()
    net.check_sum(1e-6)


def test_a_restart_in_a_round_that_waited_counts_it_as_done() -> None:
    net = make_net(2)
    net.step(0)
    net.step(0, ONE)
    net.mail.clear()
    net.restart(0, net.states[0])
    assert net.algorithm.round(net.states[0]) == 2
    net.deliver_all()
    assert next(a for a in net.step(0) if isinstance(a, RoundDone)).round == 2
    net.check_sum(1e-6)


def test_a_restart_while_the_peer_is_down_gives_its_exchange_up() -> None:
    net = make_net(2)
    net.step(0)
    net.deliver()
    net.mail.clear()
    gone = net.view(0, down=frozenset({"board-1"}))
    net.states[0], actions = net.algorithm.start(net.algorithm.resume(net.states[0], gone))
    assert actions == []
    net.step(0)
    assert net.rounds[0] == 2  # without waiting
    net.down(0)
    net.step(0)
    net.deliver_all()
    net.check_sum(1e-6)
    assert not net.open_halves().any()


def test_an_older_checkpoint_takes_back_the_last_exchange_at_the_peer_too() -> None:
    net = make_net(2)
    net.step(0)
    net.deliver_all()
    kept, models = net.states[0], net.now()
    net.step(0)
    net.deliver()  # node 1 has averaged, node 0 not
    net.mail.clear()
    net.restart(0, kept)
    net.step(0)
    net.deliver_all()
    np.testing.assert_allclose(net.now().sum(axis=0), models.sum(axis=0), atol=1e-6)


def test_an_empty_disk_gets_the_model() -> None:
    net = make_net(2, max_ahead=2)
    for _ in range(6):
        net.step(0, ONE)
        net.step(1, ONE)
        net.deliver_all()
    assert net.restart(0) == []
    net.step(0)
    net.deliver_all()
    assert [(i, a.node, a.round) for i, a in net.adopted] == [(0, "board-1", 5)]
    np.testing.assert_array_equal(net.now()[0], net.now()[1])
    net.step(0)
    net.deliver_all()
    assert net.algorithm.round(net.states[0]) == 6 and not net.open_halves().any()


def test_old_messages_of_a_process_that_is_gone_are_known() -> None:
    net = make_net(2)
    net.step(0)
    old = net.mail[0]
    net.deliver_all()
    net.restart(0, net.states[0])
    net.step(0)
    net.deliver_all()
    models = net.now()
    assert net.hand(*old) == []
    np.testing.assert_array_equal(net.now(), models)
    assert [m.frame.kind for _, m in net.mail] == [] and old[1].frame.kind == Kind.MODEL


def test_an_answer_to_a_process_that_is_gone_is_not_taken_for_the_new_ones() -> None:
    """Both processes began an exchange of the same sequence: the second is from before the first
    one's."""
    net = make_net(2)
    kept = net.states[0]
    net.step(0, ONE)
    net.deliver()
    old = net.mail.pop()
    net.restart(0, kept)
    net.step(0)
    assert net.states[0].begun[1].frame.sequence == old[1].frame.sequence
    before = net.now()[0]
    assert net.hand(*old) == [] and net.states[0].late == 1
    np.testing.assert_array_equal(net.now()[0], before)


def test_who_takes_over_a_model_gives_up_what_it_had_begun() -> None:
    net = make_net(3, repeats=0, max_ahead=2)
    net.down(0, 1, 2)
    for _ in range(6):
        net.step(0, ONE)
    net.states[0] = replace(net.states[0], fresh=False)
    net.down(0)
    net.down(1, 0)
    net.step(1)
    net.deliver()
    late = net.mail.pop()  # the answer of 2
    net.tick(1)
    net.down(1)
    while not net.adopted:
        net.mail.clear()
        net.step(0)
        net.deliver_all()
    assert net.adopted[0][0] == 1
    before = net.now()[1]
    assert net.hand(*late) == []
    np.testing.assert_array_equal(net.now()[1], before)


def test_a_request_older_than_the_last_is_dropped() -> None:
    net = make_net(2, repeats=0)
    net.step(0)
    old = net.mail.pop()
    net.tick(0)
    net.step(0)
    net.deliver_all()
    models = net.now()
    assert net.hand(*old) == [] and net.states[1].late == 1
    np.testing.assert_array_equal(net.now(), models)
    net.check_sum(1e-6)
