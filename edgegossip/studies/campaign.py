"""Runs a whole study, as `edgegossip study` and `edgegossip.study` ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip.recipe import Recipe
from edgegossip.report.style import Figures
from edgegossip.report.units import seconds_text
from edgegossip.studies import summary
from edgegossip.studies.cases import StudyCase, StudyPlan, make_cases, product
from edgegossip.studies.run_case import DataSetCache, check, run_case
from edgegossip.sweep.campaign import Campaign, Say, run_cases
from edgegossip.sweep.results import Result
from edgegossip.sweep.table import write_tables
from edgegossip.types import ConfigError, Round
from edgegossip.untrusted import printable

SAY_S = 30.0  # between two lines on the cases in progress


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Holds what is asked of a study."""

    recipe: Recipe
    sweeps: Sequence[tuple[str, Sequence[Any]]] = ()  # recipe key, and its values
    listed: StudyPlan = StudyPlan()  # cases that `sweeps` multiply
    seeds: tuple[int, ...] = ()
    out: Path | None = None
    jobs: int = 1
    target: float = 0.0
    skip_invalid: bool = False
    figures: Figures = Figures()


def run(options: StudyOptions, say: Say, warn: Say, *, show: bool = True) -> tuple[dict[str, Any], int]:
    """Run a study: what is missing, then the table and the plots of all that was asked for.

    `say` gets progress and, with `show`, the table, line by line; `warn` what went wrong. Returns
    the document of table.json and the exit code: EXIT_DEGRADED when runs diverged. Raises
    EdgegossipError.
    """
    points = product(options.sweeps)
    cases = _valid(make_cases(options.recipe, options.listed, points, options.seeds), options.skip_invalid, warn)
    folder = options.out or Path("runs") / f"{options.recipe.run.name}-study"
    return Study(folder, cases, options.figures, say, warn, options.jobs, options.target).run(show=show)


def _valid(cases: Sequence[StudyCase], skip: bool, warn: Say) -> list[StudyCase]:
    """Return those that can start. Raises the first one's ConfigError unless `skip`; then only
    when none is left."""
    verdicts: dict[str, ConfigError | None] = {}  # by group: the seed does not matter
    for case in cases:
        if case.group in verdicts:
            continue
        try:
            check(case.recipe)
            verdicts[case.group] = None
        except ConfigError as error:
            if not skip:
                raise ConfigError(f"{error} (case {case.name}; --skip-invalid leaves such cases out)") from None
            verdicts[case.group] = error
            warn(f"left out {case.name}: {error}")
    good = [case for case in cases if verdicts[case.group] is None]
    if not good:
        raise ConfigError("no case of the sweep can run; the reasons are above")
    return good


class Study(Campaign[StudyCase]):
    """Runs cases over virtual nodes. A run that diverges is a result, and not run again."""

    FILE, WHAT, FOLDER = "study.jsonl", "study", "study folder"

    def __init__(
        self, folder: Path, cases: Sequence[StudyCase], figures: Figures, say: Say, warn: Say, jobs: int, target: float
    ) -> None:
        """`jobs`: so many runs at a time, each in a process of its own. `target`: see
        `summary.rows`."""
        super().__init__(folder, cases, figures, say, warn)
        self._jobs = jobs
        self._target = target
        self._left = 0
        self._seconds: list[float] = []  # of finished runs
        self._said_s: dict[str, float] = {}  # by case: when its rounds were last told

    @override
    def is_done(self, result: Result | None) -> bool:
        return result is not None

    @override
    def execute(self, missing: Sequence[StudyCase]) -> Generator[tuple[StudyCase, Result]]:
        self._left, total = len(missing), len(self.cases)
        self.say(f"study of {total} runs in {self.folder}: {total - self._left} done, {self._left} to go")
        return run_cases(missing, self._jobs, _CaseRunner(), self._going)

    def _going(self, case: StudyCase, round: Round) -> None:
        now = time.monotonic()
        if now - self._said_s.setdefault(case.key, now - SAY_S / 2) >= SAY_S:
            self._said_s[case.key] = now
            self.say(f"  {_who(case)}: round {round}/{case.recipe.run.rounds}")

    @override
    def finished(self, case: StudyCase, result: Result) -> None:
        self._left -= 1
        self._seconds.append(result["seconds"])
        outcome = summary.outcome(result) if result["state"] == "done" else f"failed: {printable(result['reason'])}"
        left_s = self._left * sum(self._seconds) / len(self._seconds) / self._jobs
        left = f", about {seconds_text(left_s)} to go" if self._left else ""
        number, took = len(self.cases) - self._left, seconds_text(result["seconds"])
        self.say(f"[{number}/{len(self.cases)}] {_who(case)}: {outcome} in {took}{left}")

    @override
    def kept(self) -> str:
        done = sum(case.key in self.results for case in self.cases)
        return f"{done} of {len(self.cases)} runs are kept in {self.folder}"

    @override
    def tabulate(self) -> dict[str, Any]:
        rows = summary.rows(self.cases, self.results, self._target)
        failed = [
            {"case": case.name, "seed": case.seed, "reason": self.results[case.key]["reason"]}
            for case in self.cases
            if self.results[case.key]["state"] == "failed"
        ]
        document = {"study": str(self.folder), "runs": len(self.cases), "rows": rows, "failed": failed}
        document["sources"] = self.sources()
        texts = {"txt": summary.as_text(rows) + "\n", "md": summary.as_markdown(rows), "csv": summary.as_csv(rows)}
        write_tables(self.folder, document, texts)
        return document

    @override
    def text(self, document: Mapping[str, Any]) -> str:
        return summary.as_text(document["rows"])

    @override
    def failures(self, document: Mapping[str, Any]) -> list[str]:
        return [f"{one['case']}, seed {one['seed']} failed: {printable(one['reason'])}" for one in document["failed"]]

    @override
    def draw(self, document: Mapping[str, Any]) -> list[Path]:
        return summary.write_plots(self.folder, self.cases, self.results, self.figures)


class _CaseRunner:
    """Runs cases one after the other in one process; most of them share a data set."""

    def __init__(self) -> None:
        self._data = DataSetCache()

    def __call__(self, case: StudyCase, progress: Callable[[Round], None]) -> Result:
        return run_case(case, self._data, progress)


def _who(case: StudyCase) -> str:
    return f"{printable(case.name, 120)}, seed {case.seed}"
