"""A campaign: many cases, of which those without a result are run; then tables and plots are made.

`Campaign` is the course of it, and what a study or a scalability run fills in. `run_cases` runs
cases one after the other, or on a pool of processes, each a fresh interpreter that ends with its
parent, however that ends.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from edgegossip.report.style import Figures
from edgegossip.sweep.results import Result, ResultStore, read_results
from edgegossip.telemetry.machine import result_source
from edgegossip.types import EXIT_DEGRADED, EXIT_OK, HostError, Round

REPORT_S = 1.0  # between two reports of a worker's progress

Say: TypeAlias = Callable[[str], None]


class Case(Protocol):
    """Is one thing to run."""

    @property
    def key(self) -> str:
        """Return what a result is found by: equal for cases with equal results."""

    @property
    def name(self) -> str:
        """Return what people call it."""


C = TypeVar("C", bound=Case)


class Campaign(ABC, Generic[C]):
    """Runs what is missing in a folder, keeps each result at once, and shows all of them.

    Made anew with the same folder and cases it goes on where it was stopped, however hard.
    """

    FILE: ClassVar[str]  # of the results, see `results`
    WHAT: ClassVar[str]  # what people call such work
    FOLDER: ClassVar[str]  # what they call its folder

    def __init__(self, folder: Path, cases: Sequence[C], figures: Figures, say: Say, warn: Say) -> None:
        """`say` gets progress and the table, line by line; `warn` what went wrong."""
        self.folder, self.cases, self.figures, self.say, self.warn = folder, cases, figures, say, warn
        self.results: dict[str, Result] = {}  # by the case's key, also of cases that are not asked for

    def run(self, *, show: bool = True) -> tuple[dict[str, Any], int]:
        """Run, tabulate, plot; return the document for --json and the exit code. `show`: say the
        table and where everything is.

        The code is EXIT_DEGRADED when cases failed. Raises EdgegossipError for what no case can be
        blamed for, and KeyboardInterrupt, with a word on how to go on.
        """
        begun_s, source = time.monotonic(), result_source()
        with ResultStore(self.folder / self.FILE, self.WHAT) as store:
            self.results = read_results(self.folder / self.FILE)
            missing = [case for case in self.cases if not self.is_done(self.results.get(case.key))]
            try:
                with closing(self.execute(missing)) as results:
                    for case, made in results:
                        result = {**made, "source": source}  # later cases may be run from another commit
                        store.add(result)
                        self.results[case.key] = result
                        self.finished(case, result)
            except KeyboardInterrupt:
                self.warn(f"stopped: {self.kept()}; the same command goes on from there")
                raise
            document = self.tabulate()
            document["wall_s"] = time.monotonic() - begun_s
            self._conclude(document, self.say if show else lambda line: None)
        return document, EXIT_DEGRADED if document["failed"] else EXIT_OK

    def sources(self) -> list[Any]:
        """Return what made the results of these cases (`result_source`), each once."""
        found = [result.get("source") for case in self.cases if (result := self.results.get(case.key))]
        return [source for k, source in enumerate(found) if source not in found[:k]]

    @abstractmethod
    def is_done(self, result: Result | None) -> bool:
        """Tell whether a case with this result is not run again."""

    @abstractmethod
    def execute(self, missing: Sequence[C]) -> Generator[tuple[C, Result]]:
        """Run these cases, and yield results as they come; said first is how many there are."""

    @abstractmethod
    def finished(self, case: C, result: Result) -> None:
        """Tell people what came out of a case."""

    @abstractmethod
    def kept(self) -> str:
        """Return a clause on what is in the folder, for someone who has just stopped the work."""

    @abstractmethod
    def tabulate(self) -> dict[str, Any]:
        """Write the tables of all results; return the document that table.json holds."""

    @abstractmethod
    def draw(self, document: Mapping[str, Any]) -> list[Path]:
        """Write the plots. Raises HostError without matplotlib."""

    @abstractmethod
    def text(self, document: Mapping[str, Any]) -> str:
        """Return the table as people read it."""

    @abstractmethod
    def failures(self, document: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each case that failed."""

    def _conclude(self, document: Mapping[str, Any], say: Say) -> None:
        say("")
        say(self.text(document))
        for failure in self.failures(document):
            self.warn(failure)
        if self.figures.plots:
            try:
                for path in self.draw(document):
                    say(f"plot {path}")
            except HostError as error:
                self.warn(f"no plots: {error}")
        say(f"{self.FOLDER} {self.folder}")


Runner: TypeAlias = Callable[[C, Callable[[Round], None]], Result]
OnProgress: TypeAlias = Callable[[C, Round], None]


def run_cases(
    cases: Sequence[C], jobs: int, runner: Runner[C], on_progress: OnProgress[C]
) -> Generator[tuple[C, Result]]:
    """Run cases, and yield results as they come; with one job everything happens in this process.

    Args:
        cases: what to run, in this order.
        jobs: so many at a time.
        runner: runs one case, and tells how many rounds are done. With several jobs it is pickled
            for each worker, and may keep things there from one case to the next.
        on_progress: hears it, about once a second.
    """
    if jobs == 1 or len(cases) < 2:
        for case in cases:
            yield case, _run(case, runner, functools.partial(on_progress, case))
    else:
        yield from _on_workers(cases, min(jobs, len(cases)), runner, on_progress)


def _on_workers(
    cases: Sequence[C], jobs: int, runner: Runner[C], on_progress: OnProgress[C]
) -> Generator[tuple[C, Result]]:
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()  # (place of the case, round)
    ends, held = context.Pipe(duplex=False)  # closed here, or by our death, it ends the workers
    pool = ProcessPoolExecutor(jobs, context, _begin, (runner, told, ends))
    try:
        running = {pool.submit(_work, place, case): case for place, case in enumerate(cases)}
        left = set(running)
        while left:
            done, left = wait(left, REPORT_S, FIRST_COMPLETED)
            while not told.empty():
                place, round = told.get()
                on_progress(cases[place], round)
            for future in done:
                yield running[future], future.result()
    except BrokenProcessPool:
        raise HostError(
            "a process that ran cases ended by itself, often for want of memory; the same command goes on, with fewer --jobs"
        ) from None
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)


_worker: tuple[Runner[Any], Any]  # of this process, if it is one: its runner, and where it tells rounds


def _begin(runner: Runner[Any], told: Any, ends: Any) -> None:
    """Make this process a worker. Ctrl-C is the parent's business."""
    global _worker
    _worker = runner, told
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(ends,), daemon=True).start()


def _end_with(ends: Any) -> None:
    with suppress(EOFError, OSError):
        ends.recv()
    os._exit(1)


def _work(place: int, case: Any) -> Result:
    runner, told = _worker
    return _run(case, runner, lambda round: told.put((place, round)))


def _run(case: C, runner: Runner[C], report: Callable[[Round], None]) -> Result:
    last_s = time.monotonic()

    def every_second(round: Round) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= REPORT_S:
            last_s = time.monotonic()
            report(round)

    try:
        return runner(case, every_second)
    finally:
        gc.collect()  # models hang in circles of references, which Python would leave for long
