"""The boards of a local run as child processes: each one's records come over its standard output,
its log goes to a file. They are watched until each has ended; one that is lost is named at once, or
started again."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from edgegossip.fleet.launch.fork_server import ForkedProcess, ForkServer
from edgegossip.telemetry.records import EventRecord, LogText, MetricsRecord, Record, parse_record
from edgegossip.telemetry.sinks import HEARTBEAT, RecordSink
from edgegossip.telemetry.verdict import causes
from edgegossip.types import EXIT_INTERRUPTED, EXIT_PEER, EXIT_RUN, NodeId, StartError

STOP_S = 3.0  # a board that is asked to stop gets this long before it is killed
SILENT_S = 10.0  # a board without a sign of life for so long is named, and again after as much
ALONE_TIMES = 3.0  # a round with an evaluation may take longer than a first one
STUCK_S = 60.0  # and is ended after this, once no board is left that it could still be useful to
SETTLE_S = 3.0  # after the last board that failed at the start, for others that are about to
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_NOT_ITS_OWN = (EXIT_RUN, EXIT_PEER, EXIT_INTERRUPTED)  # how a board ends for which others are the reason


@dataclass(frozen=True, slots=True)
class BoardRecord:
    """Carries a record that a board printed."""

    node: NodeId
    record: Record


@dataclass(frozen=True, slots=True)
class BoardExited:
    """Says that a board's process is gone and everything it printed has been read."""

    node: NodeId
    code: int  # exit status; -N when signal N killed it


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Says that a board's process is running."""

    node: NodeId


Message: TypeAlias = BoardRecord | BoardExited | Heartbeat


@dataclass(slots=True)
class BoardProcess:
    """Handles a running board."""

    name: NodeId
    process: ForkedProcess
    log: Path
    reader: threading.Thread
    last_error: str = ""
    disagrees: dict[NodeId, str] = field(default_factory=dict)  # peer that it cannot train with -> what differs
    joined: bool = False
    trained: bool = False  # a round is done
    finished: bool = False
    ending: bool = False  # its rounds are done, and its script goes on
    hung: bool = False  # and was ended for it
    code: int | None = None
    starts: int = 1  # of this board, this one included
    heard_s: float = field(default_factory=time.monotonic)
    round_s: float = field(default_factory=time.monotonic)  # when it last said that a round was done
    clock: Callable[[], float] = time.monotonic

    def send_line(self, line: str) -> None:
        """Write one line to the board's standard input. A board that is gone is not told."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def update(self, message: Message) -> None:
        """Remember what later says how the board ended."""
        self.heard_s = self.clock()
        match message:
            case BoardExited(_, code):
                self.code = code
            case BoardRecord(_, MetricsRecord()):
                self.round_s, self.trained = self.heard_s, True
            case BoardRecord(_, EventRecord(name="error", text=text)):
                self.last_error = text
            case BoardRecord(_, EventRecord(name="disagrees", text=text, fields={"peer": str(peer)})):
                self.disagrees[peer] = text
            case BoardRecord(_, EventRecord(name="joined" | "probed")):
                self.joined = True
            case BoardRecord(_, EventRecord(name="ending")):
                self.ending = True
            case BoardRecord(_, EventRecord(name="trained" | "finished")):
                self.finished = True

    def send_lost(self, peer: NodeId, why: str, *, disagrees: bool = False) -> None:
        """Tell the board that a peer is gone for good; `disagrees`: as the two cannot train
        together, which the board itself may not have heard before its peer ended."""
        self.send_line(json.dumps({"lost": peer, "why": why} | ({"disagrees": True} if disagrees else {})))

    @property
    def at_fault(self) -> bool:
        """Whether a fault of its own ended it before it had done a round: it would do so again."""
        assert self.code is not None
        crashed = -self.code in _CRASHES or (self.code >= 0 and self.code not in _NOT_ITS_OWN)
        return crashed and not self.trained

    def exit_reason(self) -> str:
        """Say in one clause how the board ended, for people."""
        if self.last_error:
            return self.last_error
        if self.code is not None and self.code < 0:
            return f"its process was killed by {signal.Signals(-self.code).name}"
        return f"its process ended with exit code {self.code}; its log is {self.log}"


def spawn(
    fork_server: ForkServer,
    name: NodeId,
    arguments: Sequence[str],
    log: Path,
    messages: queue.Queue[Message],
    namespace: str = "",
) -> BoardProcess:
    """Start `edgegossip ARGUMENTS` in a session of its own, so that Ctrl-C at the terminal reaches
    the parent only. The board ends when its standard input does, which is when this process dies,
    however it dies. `namespace`: of its network, if it is not ours. Raises HostError."""
    process = fork_server.spawn(arguments, log, namespace)
    reader = threading.Thread(target=_read, args=(name, process, log, messages), daemon=True, name=f"read-{name}")
    reader.start()
    return BoardProcess(name, process, log, reader)


def stop_all(boards: Sequence[BoardProcess]) -> None:
    """Ask the boards to end, wait, and kill those that have not. Returns when none of the processes
    is left."""
    for board in boards:
        if board.process.poll() is None:
            board.process.terminate()
            board.process.send_signal(signal.SIGCONT)  # a stopped process cannot end
    until = time.monotonic() + STOP_S
    for board in boards:
        try:
            board.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            board.process.kill()
            board.process.wait()
        assert board.process.stdin is not None
        with suppress(OSError):  # a line that it never read stays in the pipe, and closing sends it once more
            board.process.stdin.close()


def _read(name: NodeId, process: ForkedProcess, log: Path, messages: queue.Queue[Message]) -> None:
    assert process.stdout is not None
    with log.open("ab", buffering=0) as rest:
        for line in process.stdout:
            if line == HEARTBEAT:
                messages.put(Heartbeat(name))
                continue
            record = parse_record(line, node=name)
            if isinstance(record, LogText):
                with suppress(OSError):  # such as a full disk: the board must not wait for its reader
                    rest.write(line)
            else:
                messages.put(BoardRecord(name, record))
    messages.put(BoardExited(name, process.wait()))


@dataclass(slots=True)
class Supervisor:
    """Watches the boards of one run, and keeps what became of them."""

    boards: list[BoardProcess]  # each one's present process
    messages: queue.Queue[Message]
    sink: RecordSink
    lost: dict[NodeId, str] = field(default_factory=dict)  # board -> why
    start_again: Callable[[NodeId], BoardProcess] | None = None  # None: a board that dies is lost
    has_checkpoint: Callable[[NodeId], bool] = lambda name: False
    restarts: int = 0  # how often one board may be started again
    began_s: float = field(default_factory=time.monotonic)
    hanging_s: float = STUCK_S  # what the training of a board gets at least once others have finished
    finished_s: float | None = None  # when the last of the boards did that have finished
    alone: bool = False  # each board trains by itself, and waits for nobody
    handed_out_s: float | None = None  # when boards that have trained were given the average to test
    trained: bool = False  # some board has done a round
    erred_first: set[NodeId] = field(default_factory=set)  # who said what is wrong before any had done a round
    failed: dict[NodeId, str] = field(default_factory=dict)  # those of `lost` that the run does not start without
    settle_s: float = SETTLE_S
    clock: Callable[[], float] = time.monotonic

    def next(self, timeout_s: float) -> Message | None:
        """Take in one message: relay it to the sink, and name a board that is lost."""
        try:
            message = self.messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        board = self.board(message.node)
        had_finished = board.finished
        board.update(message)
        self.trained |= board.trained
        if board.last_error and not self.trained:
            self.erred_first.add(board.name)
        if board.finished and not had_finished:
            self.finished_s = self.clock()
        if isinstance(message, BoardRecord):
            self.sink.write(message.record)
        elif isinstance(message, BoardExited):
            self._ended(board)
        return message

    def board(self, name: NodeId) -> BoardProcess:
        """Return the board's present process."""
        return next(c for c in self.boards if c.name == name)

    def running(self) -> list[BoardProcess]:
        """Return the boards that have not ended."""
        return [c for c in self.boards if c.code is None]

    def until_ended(self, patience_s: float = STUCK_S, *, or_trained: bool = False) -> None:
        """Wait until every board has ended, or with `or_trained` has said that it has trained. A
        board that gives no sign of life is named. Once one has finished, or when none gives any, a
        board that stays silent for `patience_s` is killed:
        a stopped process would hold the run for ever. So is one whose process lives and whose
        training hangs. Raises as `require_start`."""
        named_s: dict[NodeId, float] = {}
        while any(not (or_trained and board.finished) for board in self.running()):
            self.next(0.1)
            self.require_start()
            self._name_silent(named_s)
            self._end_stuck(patience_s)
            self._end_hanging()
        self.drain(0.0)

    def require_start(self) -> None:
        """Raise StartError, with all causes, when a board failed before any had done a round.
        Others get a moment to fail, too, or to come further: what is wrong with one is often wrong
        with all."""
        known, until_s = 0, 0.0
        while self.failed and not all(board.trained for board in self.running()):
            if known == len(self.failed) and self.clock() > until_s:
                break
            if len(self.failed) > known:
                known, until_s = len(self.failed), self.clock() + self.settle_s
            self.next(0.1)
        if self.failed:
            why = {c.name: self.failed[c.name] for c in self.boards if c.name in self.failed}
            count = f"{len(why)} of {len(self.boards)} boards ended before their first round"
            raise StartError(f"{count}: {causes(why)}")

    def drain(self, patience_s: float = 0.5) -> None:
        """Take in what boards that are ending still have to say."""
        while self.next(patience_s) is not None:
            pass

    def _name_silent(self, named_s: dict[NodeId, float]) -> None:
        now_s = self.clock()
        for board in self.running():
            if now_s - max(board.heard_s, named_s.get(board.name, 0.0)) > SILENT_S:
                named_s[board.name] = now_s
                text = f"{board.name} has given no sign of life for {now_s - board.heard_s:.0f} s"
                self.sink.event(board.name, "silent", text)

    def _end_stuck(self, patience_s: float) -> None:
        now_s = self.clock()
        running = self.running()
        stuck = [c for c in running if now_s - c.heard_s > patience_s]
        if len(stuck) < len(running) and not any(c.finished for c in self.boards):
            return
        for board in stuck:
            if board.name not in self.lost and not board.finished:
                self._declare_lost(board, f"it gave no sign of life for {patience_s:.0f} s, and was ended")
            board.process.kill()

    def _end_hanging(self) -> None:
        """End a board that waits for nobody, and comes no further for as long as the run had taken
        until then: one that has done no round since another finished, or by itself since its last,
        or that has not ended since it was given the average of all models. What a script does after
        its rounds, such as an export, takes as long as it takes."""
        for board in self.running():
            times, since_s = 1.0, self.handed_out_s
            if not board.finished:
                since_s = None if self.finished_s is None else max(board.round_s, self.finished_s)
                if self.alone and board.trained:
                    times, since_s = ALONE_TIMES, board.round_s
            if since_s is None or board.ending or board.hung or board.name in self.lost:
                continue
            idle_s = self.clock() - since_s
            if idle_s <= max(self.hanging_s, times * (since_s - self.began_s)):
                continue
            if board.finished:
                text = f"{board.name} has trained, and did not come to its end with the average of all models"
                self.sink.event(board.name, "notice", f"{text} in {idle_s:.0f} s: it was ended")
            else:
                others = "" if self.finished_s is None else "others have finished, and "
                self._declare_lost(board, f"{others}it did no round for {idle_s:.0f} s: it was ended")
            board.hung = True
            board.process.kill()

    def _ended(self, board: BoardProcess) -> None:
        first = board.name in self.erred_first  # its process may take a moment to end, in which others train
        if board.finished:  # its model is saved: how its process went does not matter any more
            for other in self.running():  # one that starts again would wait for it
                if other.starts > 1 and not other.joined:
                    other.send_lost(board.name, f"{board.name} has finished")
        elif board.name in self.lost:
            return
        elif board.at_fault and (self.failed or first or not self.trained) and not self.has_checkpoint(board.name):
            self._fail(board)
        elif not self._restart(board):
            self._declare_lost(board, board.exit_reason())

    def _fail(self, board: BoardProcess) -> None:
        """Take note that the run cannot start. What the board said of it is in the records, and
        will be said with that of all others: they do not wait for it, and come to their own."""
        self.failed[board.name] = board.exit_reason()
        self._declare_lost(board, board.exit_reason(), told=bool(board.last_error))

    def _restart(self, board: BoardProcess) -> bool:
        """Start a board again whose process died. Not one that said what is wrong, or that ended by
        itself before it had done a round: it would again. Not when nobody is left who could bring
        it up to date, unless it has a checkpoint to go on from."""
        at_work = [c for c in self.running() if not c.finished]
        if (
            self.start_again is None
            or board.starts > self.restarts
            or board.last_error
            or board.at_fault
            or board.finished
            or not (at_work or self.has_checkpoint(board.name))
        ):
            return False
        text = f"{board.name} is started again, restart {board.starts} of {self.restarts}: {board.exit_reason()}"
        self.sink.event(board.name, "restarted", text, restart=board.starts)
        stop_all([board])  # takes down its pipes
        again = self.start_again(board.name)
        again.starts = board.starts + 1
        for other in self.boards:
            if other.name in self.lost:
                again.send_lost(other.name, self.lost[other.name])
            elif other.code is not None and other is not board:
                again.send_lost(other.name, f"{other.name} has finished")
        self.boards[self.boards.index(board)] = again
        return True

    def _declare_lost(self, board: BoardProcess, why: str, told: bool = False) -> None:
        self.lost[board.name] = why
        if not told:
            self.sink.event(board.name, "lost", f"lost {board.name}: {why}")
        for other in self.running():
            if other is not board:
                differs = board.disagrees.get(other.name)
                other.send_lost(board.name, differs or why, disagrees=differs is not None)
