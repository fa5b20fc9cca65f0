from __future__ import annotations

from edgegossip.flower.pace import EXPECTED, SHARE, Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _wait_for(pace: Pace, clock: Clock, answer_s: float) -> tuple[int, float]:
    """(questions asked, seconds that the answer lay there) for an answer that comes after answer_s."""
    pace.start()
    start, questions = clock.now, 0
    while True:
        clock.now += pace.next_s()
        questions += 1
        if clock.now - start >= answer_s:
            pace.arrived()
            return questions, clock.now - start - answer_s


def test_waits_start_short_and_grow_with_the_time_waited() -> None:
    clock = Clock()
    pace = Pace(least_s=0.02, most_s=2.0, now=clock)
    assert pace.next_s() == 0.02
    clock.now = 10.0
    assert pace.next_s() == SHARE * 10.0
    clock.now = 1000.0
    assert pace.next_s() == 2.0


def test_steady_answers_cost_few_questions_and_little_delay() -> None:
    clock = Clock()
    pace = Pace(now=clock)
    first, _ = _wait_for(pace, clock, 1.0)
    for _ in range(20):
        questions, late_s = _wait_for(pace, clock, 1.0)
        assert questions < first
        assert late_s <= SHARE * 1.2 + 0.02


def test_an_answer_that_suddenly_comes_early_is_late_once_only() -> None:
    clock = Clock()
    pace = Pace(now=clock)
    for _ in range(10):
        _wait_for(pace, clock, 10.0)
    _, late_s = _wait_for(pace, clock, 0.1)
    assert late_s <= 2.0  # most_s bounds it
    _, late_s = _wait_for(pace, clock, 0.1)
    assert late_s <= max(EXPECTED * 2.1, 0.1)
