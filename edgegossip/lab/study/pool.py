"""Cases one after the other, or on several processes that each run one at a time.

A worker is a fresh interpreter that gets cases through a pipe. It ends when the pipe does: also
when its parent was killed, because it reports its progress about once a second."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from edgegossip.lab.study.cases import Case
from edgegossip.lab.study.run_case import Opened, Result, run_case
from edgegossip.types import EdgegossipError, Round, UsageError

REPORT_S = 1.0  # between two reports of a worker's progress

OnProgress = Callable[[Case, Round], None]


def run_all(cases: Sequence[Case], jobs: int, on_progress: OnProgress) -> Iterator[tuple[Case, Result]]:
    """Results as they come. With one job everything happens in this process."""
    if jobs == 1 or len(cases) < 2:
        opened = Opened()
        for case in cases:
            yield case, _run(case, opened, functools.partial(on_progress, case))
    else:
        yield from _on_workers(cases, min(jobs, len(cases)), on_progress)


def _on_workers(cases: Sequence[Case], jobs: int, on_progress: OnProgress) -> Iterator[tuple[Case, Result]]:
    waiting = list(reversed(cases))
    workers = [_Worker() for _ in range(jobs)]
    busy: dict[Connection, _Worker] = {}
    try:
        for worker in workers:
            busy[worker.give(waiting.pop())] = worker
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker = busy[ready]
                what, value = worker.report()
                if what == "progress":
                    on_progress(worker.case, value)
                    continue
                done = worker.case
                if waiting:
                    worker.give(waiting.pop())
                else:
                    del busy[ready]
                yield done, value
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """The parent's end of one process."""

    case: Case

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, case: Case) -> Connection:
        self.case = case
        self._pipe.send(case)
        return self._pipe

    def report(self) -> tuple[str, Any]:
        """("progress", round) or ("result", result). Raises what the case raised."""
        try:
            what, value = self._pipe.recv()
        except EOFError:
            self._process.join(5)
            code = self._process.exitcode
            raise UsageError(f"the process that ran {self.case.name} ended with exit code {code}") from None
        if what == "error":
            raise value if isinstance(value, EdgegossipError) else RuntimeError(value)
        return what, value

    def end(self) -> None:
        self._pipe.close()
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()


def _work(pipe: Any) -> None:
    """A worker's life. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    opened = Opened()
    try:
        while True:
            case = pipe.recv()
            try:
                result = _run(case, opened, lambda round: pipe.send(("progress", round)))
            except EdgegossipError as error:
                pipe.send(("error", error))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception:
                pipe.send(("error", traceback.format_exc()))
            else:
                pipe.send(("result", result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _run(case: Case, opened: Opened, report: Callable[[Round], None]) -> Result:
    """The case, and its models gone with it: they hang in circles of references, which Python would
    leave for long."""
    try:
        return run_case(case, opened, _every_second(report))
    finally:
        gc.collect()


def _every_second(report: Callable[[Round], None]) -> Callable[[Round], None]:
    last_s = time.monotonic()

    def throttled(round: Round) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= REPORT_S:
            last_s = time.monotonic()
            report(round)

    return throttled
