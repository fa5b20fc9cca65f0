"""Watching boards: one that computes for long is left alone, one that gives no sign of life does
not hold the run."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from edgegossip.fleet.launch.supervisor import (
    BoardExited,
    BoardProcess,
    BoardRecord,
    Heartbeat,
    Message,
    Supervisor,
    _read,
    stop_all,
)
from edgegossip.telemetry.records import EventRecord, MetricsRecord, to_line
from edgegossip.telemetry.sinks import RecordSink
from edgegossip.types import StartError

ROOT = Path(__file__).parents[3]
# Says nothing but that it is alive for some seconds, then that it has finished, then ends.
BUSY = """
import os, time
from tests.fleet.launch.pipe import PipeSink
pipe = PipeSink(1)
for _ in range(90):
    pipe.beat()
    time.sleep(0.05)
pipe.event("busy", "finished", "done")
"""
DONE = BUSY.replace("90", "1").replace("busy", "done")
# The same until the file that it is given has so many bytes.
UNTIL = """
import os, time
from tests.fleet.launch.pipe import PipeSink
pipe = PipeSink(1)
while not os.path.exists({file!r}) or os.path.getsize({file!r}) < {size}:
    pipe.beat()
    time.sleep(0.05)
pipe.event("busy", "finished", "done")
"""
SIGN = "open({file!r}, 'a').write('.')\n"  # adds a byte to that file
KILLED = "import os; os.kill(os.getpid(), 9)"
# Is killed a second after that file is there: what its writer said has been heard by then.
LATE = f"""
import os, time
while not os.path.exists({{file!r}}):
    time.sleep(0.05)
time.sleep(1)
{KILLED}
"""
STOPPED = "import time; time.sleep(300)"
CRASHING = "raise SystemExit(3)"
# Does a round, so the run has begun.
ROUND = """
from tests.fleet.launch.pipe import PipeSink
PipeSink(1).round({name!r})
"""


class Kept(RecordSink):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[EventRecord] = []

    def write(self, record) -> None:
        if isinstance(record, EventRecord):
            self.events.append(record)

    def close(self) -> None:
        pass


def start(name: str, script: str, messages: queue.Queue[Message], folder: Path) -> BoardProcess:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, cwd=ROOT)
    log = folder / f"{name}.log"
    reader = threading.Thread(target=_read, args=(name, process, log, messages), daemon=True)
    reader.start()
    return BoardProcess(name, process, log, reader)


def supervise(
    folder: Path,
    patience_s: float,
    restarts: int = 0,
    again: str = "",
    kept: bool = False,
    hanging_s: float = 60.0,
    settle_s: float = 1.0,
    sink: Kept | None = None,
    alone: bool = False,
    **scripts: str,
) -> tuple[Supervisor, Kept]:
    """`again` is what a board runs that is started again; `kept`: whether boards have
    checkpoints."""
    messages: queue.Queue[Message] = queue.Queue()
    sink = sink or Kept()
    boards = [start(name, script, messages, folder) for name, script in scripts.items()]
    made = Supervisor(boards, messages, sink, restarts=restarts, hanging_s=hanging_s, settle_s=settle_s, alone=alone)
    made.has_checkpoint = lambda name: kept
    made.start_again = lambda name: start(name, again or scripts[name], messages, folder)
    try:
        made.until_ended(patience_s)
    finally:
        stop_all(boards)
    return made, sink


def test_a_busy_board_outlives_any_patience_as_long_as_it_beats(tmp_path: Path) -> None:
    made, sink = supervise(tmp_path, 3.0, busy=BUSY, other=BUSY.replace("busy", "other"))
    assert made.lost == {} and sorted(e.node for e in sink.events) == ["busy", "other"]


def test_a_stopped_board_is_ended_once_others_have_finished(tmp_path: Path) -> None:
    made, sink = supervise(tmp_path, 3.0, busy=BUSY, stopped=STOPPED)
    assert list(made.lost) == ["stopped"] and "gave no sign of life" in made.lost["stopped"]
    assert [e.name for e in sink.events if e.node == "stopped"] == ["lost"]


def test_a_board_that_lives_and_does_no_round_is_ended_once_others_have_finished(tmp_path: Path) -> None:
    hanging = UNTIL.format(file=str(tmp_path / "never"), size=1)
    made, _ = supervise(tmp_path, 60.0, hanging_s=0.5, hanging=hanging, done=DONE)
    assert list(made.lost) == ["hanging"] and "it did no round for" in made.lost["hanging"]


def test_boards_that_train_alone_and_all_hang_are_ended(tmp_path: Path) -> None:
    """After three times as long as they took for the rounds that they did."""
    never = UNTIL.format(file=str(tmp_path / "never"), size=1)
    a, b = (ROUND.format(name=name) + never for name in "ab")
    made, _ = supervise(tmp_path, 60.0, hanging_s=0.5, alone=True, a=a, b=b)
    assert sorted(made.lost) == ["a", "b"]
    assert all("it did no round for" in why and "others" not in why for why in made.lost.values())
    for board in made.boards:  # it beats some 20 times a second until it is killed
        assert board.heard_s - board.round_s > 3 * (board.round_s - made.began_s) - 1.0


def test_boards_that_hang_with_the_average_of_all_models_are_ended_and_not_lost(tmp_path: Path) -> None:
    messages: queue.Queue[Message] = queue.Queue()
    trained = "from tests.fleet.launch.pipe import PipeSink\nPipeSink(1).event({0!r}, 'trained', 'done')\n"
    never, sink = UNTIL.format(file=str(tmp_path / "never"), size=1), Kept()
    hangs, ends = (trained.format(name) + more for name, more in (("hangs", never), ("ends", "")))
    boards = [start(name, script, messages, tmp_path) for name, script in (("hangs", hangs), ("ends", ends))]
    made = Supervisor(boards, messages, sink, hanging_s=0.5)
    try:
        made.until_ended(or_trained=True)
        made.handed_out_s = time.monotonic()
        made.until_ended()
    finally:
        stop_all(boards)
    assert made.lost == {} and made.board("hangs").code == -9 and made.board("ends").code == 0
    (said,) = [event for event in sink.events if event.name == "notice"]
    assert said.node == "hangs" and "did not come to its end with the average of all models in" in said.text


def test_what_a_board_says_after_it_has_finished_gives_others_no_more_time(tmp_path: Path) -> None:
    messages: queue.Queue[Message] = queue.Queue()
    board = start("done", "", messages, tmp_path)
    board.process.wait()
    made, finished_s = Supervisor([board], messages, Kept()), []
    for message in (
        BoardRecord("done", EventRecord("done", 0.0, "trained", "its rounds are done")),
        Heartbeat("done"),
        BoardRecord("done", EventRecord("done", 0.0, "finished", "done")),
    ):
        messages.put(message)
        while made.next(1.0) is not message:
            pass
        finished_s.append(made.finished_s)
    assert finished_s[0] is not None and len(set(finished_s)) == 1


def test_a_slow_board_that_does_rounds_is_waited_for(tmp_path: Path) -> None:
    slow = BUSY.replace("pipe.beat()", "pipe.round('busy')")
    made, _ = supervise(tmp_path, 60.0, hanging_s=0.5, busy=slow, done=DONE)
    assert made.lost == {}


@pytest.mark.parametrize("alone", [False, True])
def test_a_script_that_goes_on_after_its_rounds_is_waited_for(tmp_path: Path, alone: bool) -> None:
    busy = ROUND.format(name="busy") + "PipeSink(1).event('busy', 'ending', 'its script goes on')\n" + BUSY
    made, _ = supervise(tmp_path, 60.0, hanging_s=0.5, alone=alone, busy=busy, done=DONE)
    assert made.lost == {} and made.board("busy").code == 0


def test_a_board_that_is_killed_after_it_finished_is_not_lost(tmp_path: Path) -> None:
    killed = DONE.replace("done", "killed") + "os.kill(os.getpid(), 9)\n"
    made, _ = supervise(tmp_path, 60.0, killed=killed, done=DONE)
    assert made.lost == {} and made.board("killed").code == -9


def test_a_board_that_has_finished_and_hangs_is_ended_and_not_lost(tmp_path: Path) -> None:
    # It loads nothing of ours: patience counts from its start.
    finished = to_line(EventRecord("hangs", 0.0, "finished", "done"))
    made, _ = supervise(tmp_path, 2.0, hangs=f"import os; os.write(1, {finished!r})\n{STOPPED}")
    assert made.lost == {} and made.board("hangs").code == -9


def test_a_full_disk_holds_no_board_and_hides_no_end(tmp_path: Path) -> None:
    """What a board prints has no room in its log; more than a pipe takes."""
    (tmp_path / "talks.log").symlink_to("/dev/full")
    talks = "print('a word\\n' * 50_000)\nfrom tests.fleet.launch.pipe import PipeSink\n"
    made, _ = supervise(tmp_path, 60.0, talks=talks + "PipeSink(1).event('talks', 'finished', 'done')")
    assert made.lost == {} and made.board("talks").code == 0


def test_all_stopped_are_named_now_and_then_and_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgegossip.fleet.launch.supervisor.SILENT_S", 0.3)
    made, sink = supervise(tmp_path, 1.0, a=STOPPED, b=STOPPED)
    assert sorted(made.lost) == ["a", "b"]
    named = [e.t_s for e in sink.events if e.name == "silent" and e.node == "a"]
    assert named and all(later - before >= 0.25 for before, later in pairwise(named))


def test_a_crash_is_named_with_its_exit_code_and_log(tmp_path: Path) -> None:
    made, _ = supervise(tmp_path, 5.0, crashing=ROUND.format(name="crashing") + CRASHING)
    assert made.lost == {"crashing": f"its process ended with exit code 3; its log is {tmp_path / 'crashing.log'}"}


def says(name: str, why: str) -> str:
    said = f"from tests.fleet.launch.pipe import PipeSink; PipeSink(1).event({name!r}, 'error', {why!r})\n"
    return said + "raise SystemExit(2)"


def test_boards_that_fail_before_their_first_round_end_the_run_with_each_cause_once(tmp_path: Path) -> None:
    """Whoever is started again would fail again, and whoever is left would train without them."""
    boards = {name: says(name, f"no file data/{name}") for name in ("board-0", "board-1")}
    waits = UNTIL.format(file=str(tmp_path / "never"), size=1)
    with pytest.raises(StartError, match="^3 of 4 boards ended before their first round: ") as ended:
        supervise(tmp_path, 60.0, restarts=9, settle_s=8.0, **boards, crashing=KILLED.replace("9", "11"), waits=waits)
    told = str(ended.value)
    assert (
        "board-0 and board-1, such as at board-0: no file data/board-0; crashing: its process was killed by SIGSEGV"
        in told
    )


@pytest.mark.parametrize("first", [True, False])
def test_a_board_that_says_what_is_wrong_first_fails_the_run_though_others_train_while_it_ends(
    first: bool, tmp_path: Path
) -> None:
    messages: queue.Queue[Message] = queue.Queue()
    boards = [start(name, STOPPED, messages, tmp_path) for name in ("fails", "trains")]
    made = Supervisor(boards, messages, Kept())
    error = BoardRecord("fails", EventRecord("fails", 0.0, "error", "no file"))
    said = [error, BoardRecord("trains", MetricsRecord("trains", 0, 0.0, {}))]
    try:
        for message in (*(said if first else reversed(said)), BoardExited("fails", 2)):
            messages.put(message)
            made.next(1.0)
    finally:
        stop_all(boards)
    assert made.failed == ({"fails": "no file"} if first else {}) and made.lost == {"fails": "no file"}


def test_a_board_that_says_nothing_and_fails_at_the_start_is_in_the_records(tmp_path: Path) -> None:
    sink = Kept()
    with pytest.raises(StartError, match="1 of 1 boards"):
        supervise(tmp_path, 5.0, sink=sink, crashing=CRASHING)
    assert [(e.node, e.name) for e in sink.events] == [("crashing", "lost")]


@pytest.mark.parametrize("code", [5, 6, 130])
def test_a_board_that_others_refused_or_ended_does_not_end_the_run(tmp_path: Path, code: int) -> None:
    made, _ = supervise(tmp_path, 60.0, gone=f"raise SystemExit({code})", done=finishes("done", str(tmp_path / "done")))
    assert list(made.lost) == ["gone"]


def test_a_run_that_has_begun_goes_on_without_a_board_that_fails_later(tmp_path: Path) -> None:
    """Nor does one that goes on from checkpoints end with a board that cannot any more."""
    file = str(tmp_path / "begun")
    late = LATE.format(file=file).replace(KILLED, CRASHING)
    done = ROUND.format(name="done") + finishes("done", file)
    assert list(supervise(tmp_path, 60.0, late=late, done=done)[0].lost) == ["late"]
    waits = UNTIL.format(file=file, size=1)
    assert list(supervise(tmp_path, 60.0, kept=True, crashing=CRASHING, busy=waits)[0].lost) == ["crashing"]


def test_a_board_is_started_again_so_often_and_not_when_it_said_what_is_wrong(tmp_path: Path) -> None:
    wrong = ROUND.format(name="wrong") + says("wrong", "no such file")
    file = str(tmp_path / "sign")
    killed, busy = SIGN.format(file=file) + KILLED, UNTIL.format(file=file, size=3)
    made, sink = supervise(tmp_path, 5.0, restarts=2, busy=busy, killed=killed, wrong=wrong)
    assert sorted(made.lost) == ["killed", "wrong"] and made.lost["wrong"] == "no such file"
    assert [e.name for e in sink.events if e.node == "killed"] == [
        "restarted",
        "restarted",
        "lost",
    ]


def test_a_board_that_comes_no_further_when_it_is_started_again_is_left(tmp_path: Path) -> None:
    """It was killed; its next process ends by itself without a round, and a third would, too."""
    file = str(tmp_path / "sign")
    again, busy = SIGN.format(file=file) + CRASHING, ROUND.format(name="busy") + UNTIL.format(file=file, size=2)
    late = LATE.format(file=file)
    signed = SIGN.format(file=file) + late
    made, sink = supervise(tmp_path, 5.0, restarts=9, again=again, busy=busy, late=signed)
    assert list(made.lost) == ["late"]
    assert [e.name for e in sink.events if e.node == "late"] == ["restarted", "lost"]


def finishes(name: str, file: str) -> str:
    said = f"from tests.fleet.launch.pipe import PipeSink; PipeSink(1).event({name!r}, 'finished', 'done')\n"
    return said + SIGN.format(file=file)


def test_nobody_is_started_again_when_the_others_have_finished(tmp_path: Path) -> None:
    file = str(tmp_path / "sign")
    made, _ = supervise(tmp_path, 5.0, restarts=1, done=finishes("done", file), late=LATE.format(file=file))
    assert list(made.lost) == ["late"]


def test_one_with_a_checkpoint_is_started_again_all_the_same(tmp_path: Path) -> None:
    file = str(tmp_path / "sign")
    scripts = {"done": finishes("done", file), "late": LATE.format(file=file)}
    made, _ = supervise(tmp_path, 5.0, restarts=1, again=finishes("late", file), kept=True, **scripts)
    assert made.lost == {}


def test_a_board_that_starts_again_is_told_who_is_gone(tmp_path: Path) -> None:
    """It would wait for them; here it repeats what it is told."""
    finished, listens = str(tmp_path / "finished"), str(tmp_path / "listens")
    echo = "import sys; from tests.fleet.launch.pipe import PipeSink; pipe = PipeSink(1)\n" + SIGN.format(file=listens)
    echo += "for line in sys.stdin:\n    pipe.event('late', 'notice', line)\n    if 'busy' in line: break\n"
    echo += "pipe.event('late', 'finished', 'done')"
    gone, late = finishes("gone", finished), LATE.format(file=finished)
    made, sink = supervise(
        tmp_path, 8.0, restarts=1, again=echo, late=late, gone=gone, busy=UNTIL.format(file=listens, size=1)
    )
    assert made.lost == {}
    told = [json.loads(e.text) for e in sink.events if e.node == "late" and e.name == "notice"]
    assert told == [{"lost": name, "why": f"{name} has finished"} for name in ("gone", "busy")]


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
    made, sink = supervise(tmp_path, 8.0, odd=odd, **boards)
    assert made.lost == {"odd": "odd fits none of its neighbours"}
    told = {e.node: json.loads(e.text) for e in sink.events if e.name == "notice"}
    assert told["other"] == {"lost": "odd", "why": "odd and other differ", "disagrees": True}
    assert told["third"] == {"lost": "odd", "why": "odd fits none of its neighbours"}


def test_a_board_that_died_before_it_read_a_line_can_be_stopped(tmp_path: Path) -> None:
    board = start("gone", "", queue.Queue(), tmp_path)
    board.process.wait()
    board.send_line("a line that nobody reads")
    stop_all([board])
    assert board.process.stdin is not None and board.process.stdin.closed
