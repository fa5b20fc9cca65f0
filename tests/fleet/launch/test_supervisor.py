"""Watching boards: one that computes for long is left alone, one that gives no sign of life does
not hold the run. What boards do takes virtual time; where pipes and processes matter they are
real."""

from __future__ import annotations

import heapq
import io
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path

import pytest

from edgegossip.fleet.launch.supervisor import (
    SILENT_S,
    BoardExited,
    BoardProcess,
    BoardRecord,
    Heartbeat,
    Message,
    Supervisor,
    _read,
    stop_all,
)
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import StartError

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0  # of real processes, which need none of it
KILLED = -9

# What a board does: it says something, or a number of seconds pass; at the end its exit code.
Act = Message | float | int
Board = Callable[[str], Iterator[Act]]


class Kept(RecordSink):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[EventRecord] = []

    def write(self, record) -> None:
        if isinstance(record, EventRecord):
            self.events.append(record)

    def close(self) -> None:
        pass


class Process:
    """A board's process in virtual time."""

    def __init__(self, world: World, name: str, acts: Iterator[Act]) -> None:
        self.world, self.name, self.acts = world, name, acts
        self.code: int | None = None
        self.stdin = io.BytesIO()

    def kill(self) -> None:
        if self.code is None:
            self.acts = iter([KILLED])
            self.world.later(0.0, self)

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None, "only those that have ended are waited for"
        return self.code

    def told(self) -> list[object]:
        return [json.loads(line) for line in self.stdin.getvalue().splitlines()]


class World:
    """The boards of a run, and what comes of them; in virtual time."""

    def __init__(self, **settings) -> None:
        self.now_s, self._due, self._order = 0.0, list[tuple[float, int, Process, Iterator[Act]]](), count()
        self.sink, self.files = Kept(), set[str]()
        self.made = Supervisor([], self, self.sink, began_s=0.0, clock=lambda: self.now_s, **settings)

    def start(self, name: str, board: Board) -> BoardProcess:
        process = Process(self, name, board(name))
        self.later(0.0, process)
        now_s, log = self.now_s, Path(f"{name}.log")
        return BoardProcess(name, process, log, None, heard_s=now_s, round_s=now_s, clock=lambda: self.now_s)

    def later(self, seconds: float, process: Process) -> None:
        heapq.heappush(self._due, (self.now_s + seconds, next(self._order), process, process.acts))

    def get(self, timeout: float) -> Message:
        """As that of a queue."""
        until_s = self.now_s + timeout
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, process, acts = heapq.heappop(self._due)
            if process.code is not None or acts is not process.acts:  # it was killed
                continue
            act = next(acts, 0)
            if isinstance(act, int):
                process.code = act
                return BoardExited(process.name, act)
            self.later(act if isinstance(act, float) else 0.0, process)
            if not isinstance(act, float):
                return act
        self.now_s = until_s
        raise queue.Empty


def supervise(patience_s: float = 60.0, again: Board | None = None, kept: bool = False, **boards) -> World:
    """`again` is what a board does that is started again; `kept`: whether boards have
    checkpoints. What is no board is a setting."""
    world = World(**{name: boards.pop(name) for name in [*boards] if not callable(boards[name])})
    made = world.made
    made.boards += [world.start(name, board) for name, board in boards.items()]
    made.has_checkpoint = lambda name: kept
    made.start_again = lambda name: world.start(name, again or boards[name])
    made.until_ended(patience_s)
    return world


def said(name: str, word: str, text: str = "done", **fields) -> BoardRecord:
    return BoardRecord(name, EventRecord(name, 0.0, word, text, fields))


def a_round(name: str) -> BoardRecord:
    return BoardRecord(name, MetricsRecord(name, 0, 0.0, {}))


def beats(name: str, seconds: float, what: Callable[[str], Message] = Heartbeat) -> Iterator[Act]:
    """Says twenty times a second that it is alive."""
    for _ in range(round(20 * seconds)):
        yield what(name)
        yield 0.05


def busy(name: str) -> Iterator[Act]:
    yield from beats(name, 4.5)
    yield said(name, "finished")


def done(name: str) -> Iterator[Act]:
    yield said(name, "finished")


def stopped(name: str) -> Iterator[Act]:
    yield from repeat(3600.0)


def never(name: str) -> Iterator[Act]:
    yield from beats(name, 1e9)


def crashing(name: str) -> Iterator[Act]:
    yield 3


def after(seconds: float, code: int = KILLED) -> Board:
    """Ends a while later."""

    def board(name: str) -> Iterator[Act]:
        yield seconds
        yield code

    return board


def says(why: str) -> Board:
    def board(name: str) -> Iterator[Act]:
        yield said(name, "error", why)
        yield 2

    return board


def first(*acts: Callable[[str], Message], then: Board) -> Board:
    def board(name: str) -> Iterator[Act]:
        yield from (act(name) for act in acts)
        yield from then(name)

    return board


def test_a_busy_board_outlives_any_patience_as_long_as_it_beats() -> None:
    world = supervise(3.0, busy=busy, other=busy)
    assert world.made.lost == {} and sorted(e.node for e in world.sink.events) == ["busy", "other"]


def test_a_stopped_board_is_ended_once_others_have_finished() -> None:
    world = supervise(3.0, busy=busy, stopped=stopped)
    assert list(world.made.lost) == ["stopped"] and "gave no sign of life" in world.made.lost["stopped"]
    assert [e.name for e in world.sink.events if e.node == "stopped"] == ["lost"]
    assert 4.4 < world.now_s < 5.0


def test_a_board_that_lives_and_does_no_round_is_ended_once_others_have_finished() -> None:
    world = supervise(hanging_s=0.5, hanging=never, done=done)
    assert list(world.made.lost) == ["hanging"] and "it did no round for" in world.made.lost["hanging"]
    assert 0.5 < world.now_s < 1.0


def test_boards_that_train_alone_and_all_hang_are_ended() -> None:
    """After three times as long as they took for the rounds that they did."""

    def board(name: str) -> Iterator[Act]:
        yield 2.0
        yield a_round(name)
        yield from never(name)

    made = supervise(hanging_s=0.5, alone=True, a=board, b=board).made
    assert sorted(made.lost) == ["a", "b"]
    assert all("it did no round for" in why and "others" not in why for why in made.lost.values())
    for board in made.boards:  # it beats until it is killed
        assert 6.0 < board.heard_s - board.round_s < 6.5


def test_boards_that_hang_with_the_average_of_all_models_are_ended_and_not_lost() -> None:
    world = World(hanging_s=0.5)
    made, trained = world.made, lambda name: said(name, "trained")
    made.boards += [
        world.start("hangs", first(trained, then=never)),
        world.start("ends", first(trained, then=after(0.1, 0))),
    ]
    made.until_ended(or_trained=True)
    made.handed_out_s = world.now_s
    made.until_ended()
    assert made.lost == {} and made.board("hangs").code == KILLED
    (notice,) = [event for event in world.sink.events if event.name == "notice"]
    assert notice.node == "hangs" and "did not come to its end with the average of all models in" in notice.text


def test_what_a_board_says_after_it_has_finished_gives_others_no_more_time() -> None:
    world = World()

    def board(name: str) -> Iterator[Act]:
        for message in (said(name, "trained"), Heartbeat(name), said(name, "finished")):
            yield 1.0
            yield message

    world.made.boards.append(world.start("done", board))
    finished_s = []
    while world.made.running():
        if world.made.next(1.0) is not None:
            finished_s.append(world.made.finished_s)
    assert finished_s == [1.0] * 4


def test_a_slow_board_that_does_rounds_is_waited_for() -> None:
    def slow(name: str) -> Iterator[Act]:
        yield from beats(name, 4.5, a_round)
        yield said(name, "finished")

    assert supervise(hanging_s=0.5, slow=slow, done=done).made.lost == {}


@pytest.mark.parametrize("alone", [False, True])
def test_a_script_that_goes_on_after_its_rounds_is_waited_for(alone: bool) -> None:
    ending = first(a_round, lambda name: said(name, "ending"), then=busy)
    made = supervise(hanging_s=0.5, alone=alone, busy=ending, done=done).made
    assert made.lost == {} and made.board("busy").code == 0


def test_a_board_that_is_killed_after_it_finished_is_not_lost() -> None:
    made = supervise(killed=first(lambda name: said(name, "finished"), then=after(0.1)), done=done).made
    assert made.lost == {} and made.board("killed").code == KILLED


def test_a_board_that_has_finished_and_hangs_is_ended_and_not_lost() -> None:
    world = supervise(2.0, hangs=first(lambda name: said(name, "finished"), then=stopped))
    assert world.made.lost == {} and world.made.board("hangs").code == KILLED and 2.0 < world.now_s < 2.5


def test_all_stopped_are_named_now_and_then_and_end_the_run() -> None:
    world = supervise(2.5 * SILENT_S, a=stopped, b=stopped)
    assert sorted(world.made.lost) == ["a", "b"]
    assert [e.text for e in world.sink.events if e.name == "silent" and e.node == "a"] == [
        f"a has given no sign of life for {seconds:.0f} s" for seconds in (SILENT_S, 2 * SILENT_S)
    ]


def test_boards_that_fail_before_their_first_round_end_the_run_with_each_cause_once() -> None:
    """Whoever is started again would fail again, and whoever is left would train without them."""
    boards = {name: says(f"no file data/{name}") for name in ("board-0", "board-1")}
    with pytest.raises(StartError, match="^3 of 4 boards ended before their first round: ") as ended:
        supervise(restarts=9, settle_s=8.0, **boards, crashing=after(5.0, -11), waits=never)
    told = str(ended.value)
    assert (
        "board-0 and board-1, such as at board-0: no file data/board-0; crashing: its process was killed by SIGSEGV"
        in told
    )


@pytest.mark.parametrize("errs_first", [True, False])
def test_a_board_that_says_what_is_wrong_first_fails_the_run_though_others_train_while_it_ends(
    errs_first: bool,
) -> None:
    world = World()
    world.made.boards += [
        world.start("fails", lambda name: iter([0.1, said(name, "error", "no file"), 0.5, 2])),
        world.start("trains", lambda name: iter([0.2 if errs_first else 0.05, a_round(name), 3600.0])),
    ]
    for _ in range(10):
        world.made.next(0.1)
    assert world.made.failed == ({"fails": "no file"} if errs_first else {})
    assert world.made.lost == {"fails": "no file"}


def test_a_board_that_says_nothing_and_fails_at_the_start_is_in_the_records() -> None:
    world = World()
    world.made.boards.append(world.start("crashing", crashing))
    with pytest.raises(StartError, match="1 of 1 boards"):
        world.made.until_ended()
    assert [(e.node, e.name) for e in world.sink.events] == [("crashing", "lost")]


@pytest.mark.parametrize("code", [5, 6, 130])
def test_a_board_that_others_refused_or_ended_does_not_end_the_run(code: int) -> None:
    assert list(supervise(gone=after(0.0, code), done=done).made.lost) == ["gone"]


def test_a_run_that_has_begun_goes_on_without_a_board_that_fails_later() -> None:
    """Nor does one that goes on from checkpoints end with a board that cannot any more."""
    assert list(supervise(late=after(1.0, 3), done=first(a_round, then=done)).made.lost) == ["late"]
    assert list(supervise(kept=True, crashing=crashing, busy=busy).made.lost) == ["crashing"]


def test_a_board_is_started_again_so_often_and_not_when_it_said_what_is_wrong() -> None:
    world = supervise(restarts=2, busy=busy, killed=after(0.1), wrong=first(a_round, then=says("no such file")))
    lost = world.made.lost
    assert sorted(lost) == ["killed", "wrong"] and lost["wrong"] == "no such file"
    assert [e.name for e in world.sink.events if e.node == "killed"] == ["restarted", "restarted", "lost"]


def test_a_board_that_comes_no_further_when_it_is_started_again_is_left() -> None:
    """It was killed; its next process ends by itself without a round, and a third would, too."""
    world = supervise(restarts=9, again=crashing, busy=first(a_round, then=busy), late=after(1.0))
    assert list(world.made.lost) == ["late"]
    assert [e.name for e in world.sink.events if e.node == "late"] == ["restarted", "lost"]


def test_nobody_is_started_again_when_the_others_have_finished() -> None:
    assert list(supervise(restarts=1, done=done, late=after(1.0)).made.lost) == ["late"]


def test_one_with_a_checkpoint_is_started_again_all_the_same() -> None:
    assert supervise(restarts=1, again=done, kept=True, done=done, late=after(1.0)).made.lost == {}


def test_a_board_that_starts_again_is_told_who_is_gone() -> None:
    """It would wait for them."""

    def again(name: str) -> Iterator[Act]:
        yield 9.0
        yield said(name, "finished")

    made = supervise(restarts=1, again=again, late=after(1.0), gone=done, busy=busy).made
    assert made.lost == {}
    told = made.board("late").process.told()
    assert told == [{"lost": name, "why": f"{name} has finished"} for name in ("gone", "busy")]


# -- with processes


def start(name: str, script: str, messages: queue.Queue[Message], folder: Path) -> BoardProcess:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, cwd=ROOT)
    log = folder / f"{name}.log"
    reader = threading.Thread(target=_read, args=(name, process, log, messages), daemon=True)
    reader.start()
    return BoardProcess(name, process, log, reader)


def supervise_processes(folder: Path, **scripts: str) -> tuple[Supervisor, Kept]:
    messages: queue.Queue[Message] = queue.Queue()
    sink = Kept()
    boards = [start(name, script, messages, folder) for name, script in scripts.items()]
    made = Supervisor(boards, messages, sink)
    try:
        made.until_ended(PATIENCE_S)
    finally:
        stop_all(boards)
    return made, sink


def test_a_full_disk_holds_no_board_and_hides_no_end(tmp_path: Path) -> None:
    """What a board prints has no room in its log; more than a pipe takes."""
    (tmp_path / "talks.log").symlink_to("/dev/full")
    talks = "print('a word\\n' * 50_000)\nfrom tests.fleet.launch.pipe import PipeSink\n"
    made, _ = supervise_processes(tmp_path, talks=talks + "PipeSink(1).event('talks', 'finished', 'done')")
    assert made.lost == {} and made.board("talks").code == 0


def test_a_crash_is_named_with_its_exit_code_and_log(tmp_path: Path) -> None:
    round_ = "from tests.fleet.launch.pipe import PipeSink\nPipeSink(1).round('crashing')\n"
    made, _ = supervise_processes(tmp_path, crashing=round_ + "raise SystemExit(3)")
    assert made.lost == {"crashing": f"its process ended with exit code 3; its log is {tmp_path / 'crashing.log'}"}


def test_a_board_whose_peer_ended_over_a_difference_is_told_what_it_is(tmp_path: Path) -> None:
    """Its own mesh may not have heard it by then, and it would train on alone."""
    odd = """
from tests.fleet.launch.pipe import PipeSink
pipe = PipeSink(1)
pipe.event("odd", "disagrees", "odd and other differ", peer="other")
pipe.event("odd", "error", "odd fits none of its neighbours")
raise SystemExit(6)
"""
    echo = "import sys; from tests.fleet.launch.pipe import PipeSink; pipe = PipeSink(1)\n"
    echo += "pipe.event(NAME, 'notice', sys.stdin.readline())\npipe.event(NAME, 'finished', 'done')"
    boards = {name: echo.replace("NAME", repr(name)) for name in ("other", "third")}
    made, sink = supervise_processes(tmp_path, odd=odd, **boards)
    assert made.lost == {"odd": "odd fits none of its neighbours"}
    told = {e.node: json.loads(e.text) for e in sink.events if e.name == "notice"}
    assert told["other"] == {"lost": "odd", "why": "odd and other differ", "disagrees": True}
    assert told["third"] == {"lost": "odd", "why": "odd fits none of its neighbours"}


def test_a_process_that_is_killed_is_told_of(tmp_path: Path) -> None:
    messages: queue.Queue[Message] = queue.Queue()
    board = start("stopped", "import time; time.sleep(300)", messages, tmp_path)
    board.process.kill()
    assert messages.get(timeout=PATIENCE_S) == BoardExited("stopped", KILLED)
    stop_all([board])


def test_a_board_that_died_before_it_read_a_line_can_be_stopped(tmp_path: Path) -> None:
    board = start("gone", "", queue.Queue(), tmp_path)
    board.process.wait()
    board.send_line("a line that nobody reads")
    stop_all([board])
    assert board.process.stdin is not None and board.process.stdin.closed
