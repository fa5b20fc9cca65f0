"""Strangers get hellos until they answer, and nothing is kept of those that go away without an
answer."""

from __future__ import annotations

import pytest

from edgegossip import codecs
from edgegossip.engine.server import HELLO_S, ServerEngine
from edgegossip.engine.server_boards import BoardPresence
from edgegossip.engine.server_events import (
    Answer,
    Answered,
    Ask,
    BoardAnswer,
    Bye,
    Effect,
    Failure,
    Finished,
    Forget,
    Hello,
    Joining,
    Log,
    PresenceReport,
    Question,
    ServerPlan,
    Stop,
)
from tests.engine import toy

STRANGER = BoardPresence(7, 0.0)


def engine() -> ServerEngine:
    plan = ServerPlan(boards=("a", "b"), rounds=1, layout=toy.LAYOUT, run_id=b"r" * 16, codec=codecs.get("fp32"))
    made = ServerEngine(plan, toy.Toy(0).initial(1))
    made.start(0.0)
    return made


def hellos(effects: list[Effect]) -> list[Question]:
    return [q for e in effects if isinstance(e, Ask) for q in e.questions if isinstance(q.instruction, Hello)]


def look(made: ServerEngine, until_s: float, since_s: float = 0.0) -> list[tuple[float, Question]]:
    """Hellos while the stranger beats and does not answer, and when each goes out."""
    times = [since_s + k / 2 for k in range(int((until_s - since_s) * 2))]
    return [(t, question) for t in times for question in hellos(made.handle(PresenceReport((STRANGER,)), t))]


def test_a_hello_that_is_lost_is_made_again_after_twice_the_time_each_time() -> None:
    sent = look(engine(), 8 * HELLO_S)
    assert [at_s for at_s, _ in sent] == [0.0, HELLO_S, 3 * HELLO_S, 7 * HELLO_S]


def test_a_slow_answer_to_the_first_hello_counts_and_the_others_are_forgotten() -> None:
    made = engine()
    (_, first), (_, second) = look(made, HELLO_S + 1)
    effects = made.handle(Answered(first.number, Joining("a")), HELLO_S + 1)
    assert [e.event for e in effects if isinstance(e, Log)] == ["joined"]
    assert [e.number for e in effects if isinstance(e, Forget)] == [second.number]
    assert not look(made, 4 * HELLO_S, HELLO_S + 1)


@pytest.mark.parametrize("first", ["the process before", "the board"])
def test_of_two_processes_of_a_board_the_one_that_was_asked_later_is_there(first: str) -> None:
    """A board that has started again is not sent away because the answer of the process before is
    still on its way."""
    made = engine()
    ((_, before),) = look(made, 0.5)
    here = (STRANGER, BoardPresence(8, 0.0))
    (now,) = hellos(made.handle(PresenceReport(here), 0.5))
    byes, joined = [], 0
    for question in (before, now) if first == "the process before" else (now, before):
        for effect in made.handle(Answered(question.number, Joining("a")), 1.0):
            joined += isinstance(effect, Log) and effect.event == "joined"
            byes += [q.address for q in effect.questions] if isinstance(effect, Ask) else []
    assert byes == [STRANGER.address] and joined == (2 if first == "the process before" else 1)
    assert not hellos(made.handle(PresenceReport(here), 2.0))


@pytest.mark.parametrize(
    "answer",
    [
        Joining("a"),
        Joining("a", problem="it trains another model"),
        Failure("out of memory"),
        BoardAnswer(),
    ],
)
def test_whoever_has_answered_gets_no_other_hello(answer: Answer) -> None:
    made = engine()
    _, question = look(made, 1.0)[0]
    made.handle(Answered(question.number, answer), 1.0)
    assert not look(made, 4 * HELLO_S, 1.0)


def test_a_stranger_that_goes_away_leaves_no_open_hello() -> None:
    made = engine()
    ((_, question),) = look(made, 1.0)
    assert [e.number for e in made.handle(PresenceReport(()), 1.0) if isinstance(e, Forget)] == [question.number]
    assert look(made, 2.0, 1.0), "a number that comes again gets a hello again"


def test_a_board_that_joins_while_the_run_ends_hears_that_it_does() -> None:
    made = engine()
    questions = [q for _, q in look(made, 0.5)]
    other = hellos(made.handle(PresenceReport((STRANGER, BoardPresence(8, 0.0))), 0.5))
    made.handle(Answered(questions[0].number, Joining("a")), 0.6)
    (first,) = [q for e in made.handle(Stop(), 0.7) if isinstance(e, Ask) for q in e.questions]
    (second,) = [
        q for e in made.handle(Answered(other[0].number, Joining("b")), 0.8) if isinstance(e, Ask) for q in e.questions
    ]
    assert (first.name, second.name) == ("a", "b") and first.instruction == second.instruction
    assert isinstance(second.instruction, Bye) and second.instruction.failed
    assert not made.handle(Answered(first.number, Joining("a")), 0.9), "the second one has not answered yet"
    last = made.handle(Answered(second.number, Joining("b")), 1.0)
    assert any(isinstance(e, Finished) for e in last) and made.over
