"""A board's engine once its model is there: catching up, rounds, bad peers, alone, asynchronous,
the end. In virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs, frame
from edgegossip.codecs import auto
from edgegossip.engine.events import (
    Accepted,
    Arrived,
    CaughtUp,
    Failed,
    Finished,
    FrameReceived,
    Loaded,
    MemberNews,
    ModelAdopted,
    NeighbourDown,
    NeighbourUp,
    Poll,
    RoundEnded,
    Send,
    Started,
    StartTimer,
    Timer,
    Train,
)
from edgegossip.engine.joining import Patience, RemoteMembers
from edgegossip.engine.node import Stage
from edgegossip.gossip.base import Action, GossipAlgorithm, Message, RoundDone
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, UsageError
from tests.engine.boards import LAYOUT, ROUNDS, Board, deliver, model_frame, received

BD = (NeighbourUp("b"), NeighbourUp("d"))


# -- rounds


def test_a_round_is_an_update_an_exchange_and_a_poll() -> None:
    board = Board("a").begin()
    begun = len(board.effects)
    board.update(1.0)
    assert board.engine.stage is Stage.EXCHANGING and board.engine.listens and not board.ended
    board.give(received("b", 0, 1.0), received("d", 0, 1.0))
    kinds = [type(e) for e in board.effects[begun:] if not isinstance(e, StartTimer)]
    assert kinds[:2] == [Send, Send] and kinds.count(Accepted) == 2
    assert kinds[-3:] == [RoundEnded, Poll, Train]
    assert board.engine.stage is Stage.TRAINING and not board.engine.listens
    assert board.ended[0].done.round == 0 and not board.ended[0].last and board.ended[0].local.loss == 1.0
    assert board.question == Train(board.engine.model, 1)
    assert Timer.DEADLINE not in board.timers and Timer.ANNOUNCE not in board.timers


def test_a_codec_that_leaves_the_rate_is_told_what_its_links_are_good_for() -> None:
    codec = auto.for_scheme(codecs.get("auto"), repaired=False)
    boards = [Board(name, codec=codec).begin() for name in "abcd"]
    board = boards[0]
    assert not board.log or ("rate" not in dict(board.log))
    for round in range(3):
        deliver(*boards)
        for other in boards:
            other.now_s = 10.0 * round + 1.0
            other.update(0.1)
        assert board.engine.stage is Stage.EXCHANGING or board.ended
        start_s = 10.0 * round + 1.0
        board.give(Arrived("b", 1000, start_s, start_s + 0.5), Arrived("d", 1000, start_s, start_s + 0.5))
        deliver(*boards)
    rates = board.ended[-1].rates
    assert set(rates) == {"rate/b_bits", "rate/b_mbit", "rate/d_bits", "rate/d_mbit"}
    assert rates["rate/b_mbit"] > 0 and boards[1].ended[-1].rates == {}
    assert any(name == "rate" and "a sends b" in text for name, text in board.log)


def test_one_slow_link_changes_nothing_of_what_the_others_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that is known is that of the coarsest message, and goes with its bytes."""
    monkeypatch.setattr("tests.engine.boards.LAYOUT", Layout.of([TensorSpec("w", (20_000,))]))
    codec, found = auto.for_scheme(codecs.get("auto"), repaired=False), []
    for slower in (1.0, 50.0):
        board, other = (Board(name, codec=codec, topology="complete").begin() for name in "ab")
        for _ in range(12):
            deliver(board, other)
            board.wait(0.1)
            other.wait(0.1)
            start_s = board.now_s
            board.update(0.1)
            sent = {send.to: len(send.frame.body) for send in board.sent}
            took = {to: size / 20_000 * (slower if to == "d" else 1.0) for to, size in sent.items()}
            for to in sorted(took, key=took.__getitem__):
                board.give(Arrived(to, sent[to], start_s, start_s + took[to]))
            other.update(0.1)
            deliver(board, other)
            for one in (board, other):
                one.wait(31.0)
        found.append(board.ended[-1].rates)
    assert found[1]["rate/d_bits"] < 0.6 * found[0]["rate/d_bits"]
    assert found[0]["rate/b_bits"] == pytest.approx(found[1]["rate/b_bits"], rel=0.15)


def test_every_state_that_an_algorithm_lets_go_of_comes_out_and_another_process_goes_on_from_it() -> None:
    board = Board("a").begin()
    for round in range(3):
        board.update(1.0).give(received("b", round, sequence=round + 1), received("d", round, sequence=round + 1))
    assert len(board.checkpoints) == 3
    again = Board("a", restarted=True).give(*BD).load(state=board.checkpoints[-1])
    assert again.engine.round == 3 and again.value == board.value and isinstance(again.question, Train)
    started = next(e for e in again.effects if isinstance(e, Started))
    assert again.engine.algorithm.round(started.state) == 3


def test_a_board_needs_a_model_to_start_from() -> None:
    board = Board("a").give(*BD)
    with pytest.raises(UsageError, match="a model to start from"):
        board.give(Loaded(board.view, None))
    with pytest.raises(ConfigError):
        Board("a", algorithm="dpsgd", topology="directed-ring", params={"eta": -1.0})


def test_whoever_waits_says_for_how_long_since_the_exchange_began() -> None:
    board = Board("a", deadline_s=1e9).begin().wait(1000.0).update()
    board.wait(12.0).give(received("b", 0)).wait(4.0)
    b_and_d, d = "round 0: waiting for b, d", "round 0: waiting for d"
    assert board.said("waiting") == [f"{b_and_d} for 5 s", f"{b_and_d} for 10 s", f"{d} for 15 s"]
    board.give(received("d", 0)).wait(100.0)
    assert len(board.said("waiting")) == 3


def test_a_silent_neighbour_is_left_behind_after_the_deadline() -> None:
    board = Board("a", deadline_s=2.0).begin().update(1.0).give(received("b", 0)).wait(1.9)
    assert not board.ended
    board.wait(0.2)
    assert len(board.ended) == 1 and board.said("suspect") == ["went on without d: no message of round 0 within 2 s"]


def test_a_board_that_was_left_alone_polls_between_its_rounds_and_hears_that_a_neighbour_is_back() -> None:
    board = Board("a").begin().give(NeighbourDown("b", "gone"), NeighbourDown("d", "d left", left=True))
    assert board.said("peer-down") == ["lost b: gone"] and board.said("peer-left") == ["d left"]
    board.update()
    assert [e for e in board.effects if isinstance(e, Poll)] == [Poll(1.0)] * 2 and board.engine.round == 1
    board.give(NeighbourUp("b"))
    assert board.said("peer-up") == ["b is back"] and board.engine.down == {"d"}
    board.update()
    assert board.engine.stage is Stage.EXCHANGING


def test_what_comes_in_between_two_rounds_may_bring_a_board_to_another_round() -> None:
    """Messages of two rounds far ahead, of two of three neighbours."""
    patience = Patience(3.0, catch_up_s=0.0)
    board = Board("a", topology="complete", params={"max_ahead": 2}, patience=patience).begin().wait(0.0)
    board.update()
    for name in "bc":
        board.give(received(name, 20), received(name, 21, sequence=2))
    assert board.engine.round == 20 and board.question == Train(board.engine.model, 20)
    assert board.said("left-behind") == ["had been left behind in round 0: goes on in round 20"]


def test_a_neighbour_that_leads_a_board_on_and_on_does_not_fill_its_log() -> None:
    patience = Patience(3.0, catch_up_s=0.0)
    pair = {"members": ("a", "b"), "params": {"max_ahead": 2}}
    board = Board("a", **pair, patience=patience, rounds=10_000).begin().wait(0.0).update()
    for k in range(1, 201):
        board.give(received("b", 20 * k, sequence=2 * k), received("b", 20 * k + 1, sequence=2 * k + 1)).update()
        if k == 100:
            assert len(board.said("left-behind")) == 32
            board.wait(11.0)
    assert (board.engine.round, len(board.said("left-behind"))) == (4001, 34)
    board.wait(100_000.0)
    for k in range(201, 301):
        board.give(received("b", 20 * k, sequence=2 * k), received("b", 20 * k + 1, sequence=2 * k + 1)).update()
    assert len(board.said("left-behind")) == 34 + 32, "what was not said for long is not made up for"


class Directions:
    """An algorithm that says how long directions are: b's as given, one after the other."""

    def __init__(self, inner: GossipAlgorithm[Any], of_b: Iterable[float]) -> None:
        self._inner, self._of_b = inner, iter(of_b)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def receive(self, state: Any, message: Message) -> tuple[Any, list[Action]]:
        state, actions = self._inner.receive(state, message)
        return state, [replace(a, directions=self._lengths()) if isinstance(a, RoundDone) else a for a in actions]

    def _lengths(self) -> dict[str, float]:
        return {"a": 1.0, "b": next(self._of_b), "d": 1.0}


@pytest.mark.parametrize(
    ("of_b", "named"),
    [
        ([3.0] * 9 + [1.0] * 31, 0),
        ([3.0] * 10 + [1.0] * 30, 1),
        ([3.0, 3.0, 1.0] * 14, 0),  # each in line counts as two
        ([3.0, 3.0, 3.0, 1.0] * 10, 1),
        ([3.0] * 40, 1),  # and once
        ([2.4] * 40, 0),
    ],
)
def test_whose_direction_is_out_of_line_in_most_rounds_is_named_once(of_b: list[float], named: int) -> None:
    board = Board("a", rounds=60).begin()
    board.engine.algorithm = Directions(board.engine.algorithm, of_b)  # type: ignore[assignment]
    for round in range(len(of_b)):
        board.update()
        for name in "bd":
            board.give(received(name, round, sequence=round + 1))
    assert len(board.ended) == len(of_b)
    said = board.said("outlier")
    assert len(said) == named and all("the direction of b is 3 times as long" in text for text in said)


# -- bad peers


@pytest.mark.parametrize("data", [b"", b"\x00" * 200, b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_costs_its_sender_the_connection_and_nobody_else(data: bytes) -> None:
    board = Board("a").begin().update(1.0).give(FrameReceived("b", data))
    assert [c.peer for c in board.closed()] == ["b"] and board.engine.down == {"b"}
    assert board.said("refused")[0].startswith("refused a message from b: ")
    board.give(received("b", 0, 50.0))  # what it sent before is dropped
    assert len(board.closed()) == 1 and not board.ended
    board.give(received("d", 0, 1.0))
    assert len(board.ended) == 1 and board.value == pytest.approx(4 / 3)  # b's weight is its own again


def test_values_too_large_leave_a_neighbour_out_for_a_while_and_close_nothing() -> None:
    """A liar may have led it there: for two rounds more at first, then for four, and so on; good
    rounds make the next time shorter."""
    board, left_out = Board("a").begin(), []
    for round in range(45):
        board.update()
        too_large = round in (0, 4, 30)
        board.give(FrameReceived("b", model_frame(round, 1e9 * too_large, sequence=round + 1)))
        if board.engine.down:
            left_out.append(round)
        board.give(received("d", round, sequence=round + 1))
        assert len(board.ended) == round + 1  # nobody waits for it
    assert left_out == [*range(3), *range(4, 9), *range(30, 35)] and not board.closed() and abs(board.value) < 1e-6
    assert len(board.said("refused")) == 3 and not board.said("peer-down")


def test_who_is_left_out_and_lost_meanwhile_is_back_only_once_it_is() -> None:
    board = Board("a").begin().update()
    board.give(FrameReceived("b", model_frame(0, 1e9)), NeighbourDown("b", "gone"), NeighbourUp("b"))
    assert board.engine.down == {"b"}
    board.give(NeighbourDown("b", "gone"))
    for round in range(4):
        board.give(received("d", round, sequence=round + 1)).update()
    assert board.engine.down == {"b"} and board.engine.round == 4
    board.give(NeighbourUp("b"))
    assert not board.engine.down


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run_id": b"x" * 16}, "another run"),
        ({"layout_hash": 7}, "another model"),
        ({"round": ROUNDS}, f"its round {ROUNDS} is not one of the run's {ROUNDS}"),
        ({"body": np.full(LAYOUT.size, math.nan, np.float32).tobytes()}, "holds NaN"),
    ],
)
def test_a_frame_that_is_not_ours_is_refused_with_a_reason(changes: dict, reason: str) -> None:
    board = Board("a").begin().update()
    board.give(FrameReceived("b", model_frame(changes.pop("round", 0), **changes)))
    assert len(board.closed()) == 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(board.closed()[0].reason)


def test_a_peer_that_was_refused_stays_down_though_news_of_it_come_later() -> None:
    board = Board("a").begin().update().give(FrameReceived("b", b"no frame"), NeighbourUp("b"))
    assert board.engine.down == {"b"} and not board.said("peer-up")


def test_news_of_the_last_round_may_name_the_one_after_it_and_no_other() -> None:
    for kind, refused in ((frame.Kind.HELLO, False), (frame.Kind.STATE, False), (frame.Kind.MODEL, True)):
        board = Board("a", rounds=8).begin().update()
        board.give(FrameReceived("b", model_frame(8, kind=kind)))
        said = [c.reason for c in board.closed()]
        assert any("is not one of the run's" in reason for reason in said) == refused, kind
        board.give(FrameReceived("d", model_frame(9, kind=kind)))
        assert "its round 9 is not one of the run's 8" in [c.reason for c in board.closed()]


# -- catching up


def advanced(rounds: int, **params: int) -> Board:
    """b, who was alone for so many rounds: its model is one less than them, and a is down."""
    b = Board("b", params=params).begin().give(NeighbourDown("a", "gone"), NeighbourDown("c", "gone"))
    for _ in range(rounds):
        b.update(1.0)
    b.sent.clear()
    return b


def test_a_newcomer_takes_over_a_neighbours_model_before_it_trains() -> None:
    b = advanced(30)
    a = Board("a").give(NeighbourUp("b"), NeighbourDown("d", "gone", closed=True)).load()
    assert isinstance(a.question, Train)  # nothing of b has come yet
    a = Board("a").give(NeighbourUp("b"), received("b", 30, 7.0), NeighbourDown("d", "gone", closed=True)).load()
    assert a.engine.stage is Stage.CATCHING_UP and a.question is None and len(a.engine.pending) == 1
    b.give(NeighbourUp("a"))
    b.sent.clear()
    deliver(a, b)
    adopted = [e for e in a.effects if isinstance(e, ModelAdopted)]
    assert [(e.node, e.round) for e in adopted] == [("b", 30)]
    assert a.said("adopted") == ["had been left behind: took over the model of b and goes on in round 30"]
    assert a.question == Train(a.engine.model, 30) and a.value == 30.0
    a.update()  # what was held back is of this round
    assert a.ended[-1].done.round == 30 and a.value == pytest.approx((2 * 30.0 + 7.0) / 3)


def test_a_newcomer_that_gets_no_model_trains_on_its_own_after_a_while() -> None:
    a = Board("a").give(NeighbourUp("b"), received("b", 30), NeighbourDown("d", "gone", closed=True)).load().wait(4.9)
    assert a.engine.stage is Stage.CATCHING_UP and not [e for e in a.effects if isinstance(e, CaughtUp)]
    a.wait(0.2)
    assert isinstance(a.question, Train) and a.question.round == 0 and not a.engine.pending
    assert [type(e) for e in a.effects].count(CaughtUp) == 1


def test_what_a_newcomer_holds_back_is_taken_in_when_its_first_round_ends() -> None:
    a = Board("a", params={"max_ahead": 2}).begin()
    for name in "bd":
        a.give(received(name, 30), received(name, 31, sequence=2))
    assert len(a.update().engine.pending) == 4 and a.engine.round == 0
    a.give(received("b", 0), received("d", 0))
    assert not a.engine.pending and Timer.CATCH_UP not in a.timers
    assert a.engine.round == 30 and [e.done.round for e in a.ended] == [0]


def test_messages_of_rounds_that_an_honest_neighbour_may_be_in_are_not_held_back() -> None:
    a = Board("a").begin().update().give(received("b", 5))
    assert not a.engine.pending
    a.give(received("d", 6))
    assert len(a.engine.pending) == 1  # four boards, period 1: nobody gets further ahead than 5


def test_what_a_newcomer_holds_back_of_a_neighbour_is_bounded() -> None:
    a = Board("a", patience=Patience(3.0, pending_bytes=90_000)).begin()
    for round in range(50, 100):
        a.give(received("b", round))
    assert len(a.engine.pending) == 29 and len(a.dropped()) == 21 and not a.closed()
    a.give(received("d", 60))
    assert len(a.engine.pending) == 30  # of a room of its own


# -- alone


def come_again(remote: RemoteMembers | None) -> Board:
    """a, with an empty disk, when both of its neighbours have been dead for long."""
    a = Board("a", restarted=True, remote=remote).give(NeighbourDown("b", "dead"), NeighbourDown("d", "dead"))
    return a.wait(130.0).load()


def test_a_board_with_nothing_and_nobody_in_reach_ends() -> None:
    a = come_again(None)
    assert isinstance(a.question, Failed)
    assert a.question.reason == "a was started again when no neighbour was left to take the model from"


def test_a_board_with_nothing_waits_a_while_for_a_neighbour_that_is_started_again() -> None:
    a = Board("a", restarted=True).give(NeighbourUp("b"), NeighbourDown("d", "dead")).load().update()
    a.give(NeighbourDown("b", "it was restarted"))
    assert a.engine.stage is Stage.ALONE
    assert a.said("waiting")[-1].endswith("this board ends in 120 s if none comes back")
    a.wait(100.0).give(NeighbourUp("b"))
    assert isinstance(a.question, Train)
    a.update().give(NeighbourDown("b", "it was restarted"))
    assert a.engine.stage is Stage.ALONE  # the time runs anew
    a.wait(110.0)
    assert a.engine.stage is Stage.ALONE
    a.wait(15.0)
    assert isinstance(a.question, Failed)


def test_a_board_with_nothing_ends_at_once_when_the_last_neighbour_leaves_on_purpose() -> None:
    a = Board("a", restarted=True).give(NeighbourUp("b"), NeighbourDown("d", "d left", left=True)).load().update()
    a.give(NeighbourDown("b", "b left", left=True))
    assert isinstance(a.question, Failed)


def test_a_board_with_nothing_waits_for_a_neighbour_while_the_run_goes_on() -> None:
    a = come_again(RemoteMembers({"c": True})).wait(11.0)
    text = "waiting for b, d, to take the model from one of them: the run goes on (c)"
    assert a.engine.stage is Stage.ALONE and a.said("waiting")[-3:] == [text] * 3
    a.give(NeighbourUp("b"))
    assert Timer.ANNOUNCE not in a.timers and isinstance(a.question, Train)
    a.update().give(received("b", 40), NeighbourDown("b", "dead again"))
    assert isinstance(a.question, Train)  # it has heard of the run


def test_what_is_refused_is_nobodys_model() -> None:
    a = come_again(RemoteMembers({"c": True})).give(NeighbourUp("b")).update()
    a.give(received("b", 0, run_id=b"x" * 16))
    assert a.closed() and a.engine.stage is Stage.ALONE


def test_a_board_with_nothing_ends_when_the_run_does() -> None:
    a = come_again(RemoteMembers({"c": True}))
    a.give(MemberNews("c", False, left=True))
    assert a.engine.stage is Stage.ALONE
    a.wait(5.1)
    assert isinstance(a.question, Failed)


def test_a_board_that_was_alone_is_a_newcomer_again() -> None:
    a = come_again(RemoteMembers({"c": True})).wait(6.0)  # longer than a newcomer catches up
    a.give(NeighbourUp("b"))
    assert isinstance(a.question, Train) and Timer.CATCH_UP in a.timers
    a.give(received("b", 40))
    assert len(a.engine.pending) == 1


def test_a_board_that_has_a_checkpoint_trains_alone() -> None:
    first = Board("a").begin().update().give(received("b", 0), received("d", 0))
    a = Board("a", restarted=True).give(NeighbourDown("b", "dead"), NeighbourDown("d", "dead")).wait(130.0)
    a.load(state=first.checkpoints[-1])
    assert isinstance(a.question, Train)


# -- asynchronous


def pairwise(name: str, **fields: object) -> Board:
    return Board(name, algorithm="ad-psgd", topology="complete", **fields)  # type: ignore[arg-type]


def test_an_asynchronous_board_takes_frames_in_while_it_computes() -> None:
    a, b = pairwise("a").begin(0.0), pairwise("b").begin(4.0)
    for board in (a, b):
        board.give(NeighbourDown("c", "gone"), NeighbourDown("d", "gone"))
    deliver(a, b)
    assert a.engine.listens and isinstance(a.question, Train)
    given = a.question.model.copy()
    b.update()
    deliver(a, b)  # a's answer ends b's exchange
    assert len(b.ended) == 1 and a.value == b.value == 2.0 and not given.any()
    a.update(1.0)  # of the model that it was given; the step goes to the one that it has by now
    deliver(a, b)
    assert a.value + b.value == pytest.approx(5.0)


def on_its_own_since(rounds: int) -> Board:
    """b, which has done so many rounds with c, and whom only a is left of all."""
    b, c = (pairwise(name, params={"max_ahead": 2}).begin() for name in "bc")
    for board in (b, c):
        board.give(NeighbourDown("a", "gone"), NeighbourDown("d", "gone"))
    while b.engine.round < rounds:
        b.update(1.0)
        deliver(b, c)
    return b.give(NeighbourDown("c", "gone"), NeighbourUp("a"))


def test_an_update_of_a_model_that_was_given_up_is_computed_anew() -> None:
    b = on_its_own_since(8)
    a = pairwise("a", params={"max_ahead": 2}).begin().give(NeighbourDown("c", "gone"), NeighbourDown("d", "gone"))
    assert isinstance(a.question, Train) and a.question.round == 0
    b.update()
    deliver(a, b)
    assert a.said("adopted") and a.engine.stage is Stage.TRAINING and not a.engine.pending
    a.update(-100.0)
    assert isinstance(a.question, Train) and a.question.round == a.engine.round == 8 and a.value > 0.0
    assert not a.ended


def test_a_restarted_board_without_a_checkpoint_waits_for_the_model_that_a_peer_leads_it_to() -> None:
    b = on_its_own_since(8)
    a = pairwise("a", params={"max_ahead": 2}, restarted=True).begin()
    a.give(NeighbourDown("c", "gone"), NeighbourDown("d", "gone"))
    assert a.engine.stage is Stage.CATCHING_UP and a.engine.listens
    b.update()
    deliver(a, b)
    assert a.said("adopted") and not a.ended
    assert isinstance(a.question, Train) and a.question.round == a.engine.round == 8


def test_a_restarted_board_whose_peers_are_no_further_trains_when_they_say_so() -> None:
    a, b = pairwise("a", restarted=True).begin(0.0), pairwise("b").begin(4.0)
    for board in (a, b):
        board.give(NeighbourDown("c", "gone"), NeighbourDown("d", "gone"))
    assert a.engine.stage is Stage.CATCHING_UP
    b.update()
    deliver(a, b)
    assert isinstance(a.question, Train) and a.question.round == 0 and not a.said("adopted")


def test_an_update_that_ends_while_a_peer_leads_to_its_model_is_not_used() -> None:
    b = on_its_own_since(8)
    a = pairwise("a", params={"max_ahead": 2}).begin().give(NeighbourDown("c", "gone"), NeighbourDown("d", "gone"))
    b.update()
    request = b.sent.popleft()
    a.give(FrameReceived("b", b"".join(frame.build(request.frame))))  # its answer asks for b's model
    a.update(-100.0)
    assert a.engine.stage is Stage.CATCHING_UP and not a.ended
    deliver(a, b)
    assert a.said("adopted") and isinstance(a.question, Train) and a.question.round == 8 and a.value > 0.0


def test_no_peer_leads_a_board_beyond_the_last_round() -> None:
    """What it would send from there on everybody else would refuse, and it with that."""
    for round, taken in ((ROUNDS - 1, True), (ROUNDS, False)):
        a = pairwise("a").begin().give(NeighbourDown("c", "gone"), NeighbourDown("d", "gone")).update()
        request = a.sent.popleft().frame
        aux = {frame.Aux.SESSION: request.aux[frame.Aux.SESSION], frame.Aux.ANSWER: 1}
        a.update()  # this round waits for the answer
        a.give(received("b", round, kind=frame.Kind.STATE, sequence=request.sequence, aux=aux))
        assert bool(a.said("adopted")) == taken and bool(a.closed()) != taken
        assert all(send.frame.round < ROUNDS for send in a.sent)


# -- the end


def test_after_the_last_round_a_board_has_finished_and_still_answers() -> None:
    boards = [Board(name, rounds=2).begin() for name in "abcd"]
    deliver(*boards)
    for _ in range(2):
        for board in boards:
            board.update(1.0)
        deliver(*boards)
    for board in boards:
        assert isinstance(board.question, Finished) and board.engine.stage is Stage.FINISHED
        assert [e.last for e in board.ended] == [False, True] and not board.timers.keys() - {Timer.CATCH_UP}
    a, b = boards[0], boards[1]
    a.give(FrameReceived("b", model_frame(2, kind=frame.Kind.HELLO)))  # as one that opens a stream with us, late
    assert not a.closed() and a.engine.stage is Stage.FINISHED
    assert not b.closed()


def test_a_board_that_takes_over_the_final_model_has_no_round_to_play() -> None:
    b = advanced(12)
    b.engine.rounds = 12
    a = Board("a", rounds=12).give(NeighbourUp("b"), received("b", 11), NeighbourDown("d", "gone", closed=True)).load()
    assert a.engine.stage is Stage.CATCHING_UP
    b.give(NeighbourUp("a"))
    b.sent.clear()
    deliver(a, b)
    assert a.engine.round == 12 and isinstance(a.question, Finished) and not a.ended and a.value == 12.0


# -- exchanges under way while the next round is computed


def overlapping(name: str, **fields: object) -> Board:
    outer = {"optimizer": "heavy-ball", "lr": 1.0, "momentum": 0.0, "overlap": True}
    return Board(name, outer=outer, members=("a", "b"), topology="complete", **fields)  # type: ignore[arg-type]


def test_a_board_computes_its_next_round_while_the_last_one_is_exchanged() -> None:
    a, b = overlapping("a").begin(), overlapping("b").begin()
    deliver(a, b)
    a.update(4.0)
    assert [e.done.round for e in a.ended] == [0] and isinstance(a.question, Train) and a.question.round == 1
    assert a.value == 4.0 and Timer.DEADLINE not in a.timers
    deliver(a, b)  # taken in while b computes, too
    b.update(0.0)
    deliver(a, b)
    assert a.engine.stage is Stage.TRAINING and a.value == 4.0  # as it was shown to training
    a.update(2.0)
    assert a.value == 4.0  # half of 4 + 2, half of the mean of 4 and 0
    a.update(0.0)  # b has not sent round 1 yet
    assert a.engine.stage is Stage.EXCHANGING and Timer.DEADLINE in a.timers
    assert [e.done.round for e in a.ended] == [0, 1]
    b.update(0.0)
    deliver(a, b)
    assert [e.done.round for e in a.ended] == [0, 1, 2] and a.engine.stage is Stage.TRAINING


def test_the_last_exchange_is_waited_for_and_then_the_run_is_over() -> None:
    a, b = overlapping("a", rounds=1).begin(), overlapping("b", rounds=1).begin()
    deliver(a, b)
    a.update(4.0)
    assert a.engine.stage is Stage.EXCHANGING and not a.ended and Timer.DEADLINE in a.timers
    b.update(0.0)
    deliver(a, b)
    assert (a.engine.stage, b.engine.stage) == (Stage.FINISHED, Stage.FINISHED) and (a.value, b.value) == (3.0, 1.0)
