"""A whole study: what is missing is run, then the table and the plots of all that was asked for are
made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.files import write_atomic, write_json
from edgegossip.lab.study import cases as planning
from edgegossip.lab.study import store, table
from edgegossip.lab.study.cases import Case, Plan
from edgegossip.lab.study.variants import Result, variants
from edgegossip.report.units import printable, seconds_text
from edgegossip.types import EXIT_DEGRADED, EXIT_OK, ConfigError, HostError, Round

SAY_S = 30.0  # between two lines on the cases in progress

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Holds what the command line asks of a study."""

    recipe: str
    settings: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    sweep_file: str = ""
    seeds: str = ""
    out: Path | None = None
    jobs: int = 1
    skip_invalid: bool = False
    plots: bool = True


def run(options: StudyOptions, say: Say, warn: Say) -> tuple[dict[str, Any], int]:
    """Everything. `say` gets progress and the table, line by line; `warn` what went wrong. The
    document for --json and the exit code: EXIT_DEGRADED when runs diverged."""
    begun_s = time.monotonic()
    base, cases = plan(options)
    cases = _valid(cases, options.skip_invalid, warn)
    folder = options.out or Path("runs") / f"{base.run.name}-study"
    with store.Store(folder) as kept:
        results = store.read(folder)
        missing = [case for case in cases if case.key not in results]
        say(f"study of {len(cases)} runs in {folder}: {len(cases) - len(missing)} done, {len(missing)} to go")
        try:
            _run_missing(missing, options.jobs, kept, results, _Progress(len(cases), len(missing), options.jobs, say))
        except KeyboardInterrupt:
            done = sum(case.key in results for case in cases)
            warn(f"stopped: {done} of {len(cases)} runs are kept in {folder}; the same command goes on from there")
            raise
        document = _write(folder, cases, results) | {"wall_s": time.monotonic() - begun_s}
        _show(document, folder, cases, results, options.plots, say, warn)
    return document, EXIT_DEGRADED if document["failed"] else EXIT_OK


def plan(options: StudyOptions) -> tuple[recipes.Recipe, list[Case]]:
    """The base recipe and the cases. Raises ConfigError."""
    base = recipes.load(options.recipe, options.settings)
    listed = planning.read_file(options.sweep_file) if options.sweep_file else Plan()
    points = planning.product(planning.parse_sweep(text) for text in options.sweeps)
    seeds = planning.parse_seeds(options.seeds) if options.seeds else ()
    return base, planning.make_cases(base, listed, points, seeds)


def _valid(cases: Sequence[Case], skip: bool, warn: Say) -> list[Case]:
    """Those that can start. Raises the first one's ConfigError unless `skip`; then only when none
    is left."""
    from edgegossip.lab.study.run_case import check

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


def _run_missing(
    missing: Sequence[Case], jobs: int, kept: store.Store, results: dict[str, Any], progress: _Progress
) -> None:
    from edgegossip.lab.study.pool import run_all

    for case, result in run_all(missing, jobs, progress.going):
        kept.add(result)
        results[case.key] = result
        progress.finished(case, result)


class _Progress:
    """One line a finished case, and now and then one on those at work."""

    def __init__(self, total: int, missing: int, jobs: int, say: Say) -> None:
        self._total, self._left, self._jobs, self._say = total, missing, jobs, say
        self._number = total - missing
        self._seconds: list[float] = []
        self._said_s: dict[str, float] = {}

    def going(self, case: Case, round: Round) -> None:
        now = time.monotonic()
        if now - self._said_s.setdefault(case.key, now - SAY_S / 2) >= SAY_S:
            self._said_s[case.key] = now
            self._say(f"  {_who(case)}: round {round}/{case.recipe.run.rounds}")

    def finished(self, case: Case, result: dict[str, Any]) -> None:
        self._number, self._left = self._number + 1, self._left - 1
        self._seconds.append(result["seconds"])
        outcome = table.outcome(result) if result["state"] == "done" else f"failed: {printable(result['reason'])}"
        left_s = self._left * sum(self._seconds) / len(self._seconds) / self._jobs
        left = f", about {seconds_text(left_s)} to go" if self._left else ""
        took = seconds_text(result["seconds"])
        self._say(f"[{self._number}/{self._total}] {_who(case)}: {outcome} in {took}{left}")


def _who(case: Case) -> str:
    return f"{printable(case.name, 120)}, seed {case.seed}"


def _write(folder: Path, cases: Sequence[Case], results: dict[str, Any]) -> dict[str, Any]:
    """table.txt, table.md, table.csv and table.json; the document that the last holds."""
    made = table.rows(cases, results)
    failed = [
        {"case": case.name, "seed": case.seed, "reason": results[case.key]["reason"]}
        for case in cases
        if results[case.key]["state"] == "failed"
    ]
    document = {"study": str(folder), "runs": len(cases), "rows": made, "failed": failed}
    write_atomic(folder / "table.txt", (table.as_text(made) + "\n").encode())
    write_atomic(folder / "table.md", table.as_markdown(made).encode())
    write_atomic(folder / "table.csv", table.as_csv(made).encode())
    write_json(folder / "table.json", document)
    return document


def _show(
    document: dict[str, Any],
    folder: Path,
    cases: Sequence[Case],
    results: dict[str, Any],
    plots: bool,
    say: Say,
    warn: Say,
) -> None:
    say("")
    say(table.as_text(document["rows"]))
    for failure in document["failed"]:
        warn(f"{failure['case']}, seed {failure['seed']} failed: {printable(failure['reason'])}")
    if plots:
        try:
            for path in write_plots(folder, cases, results):
                say(f"plot {path}")
        except HostError as error:
            warn(f"no plots: {error}")
    say(f"study folder {folder}")


def write_plots(folder: Path, cases: Sequence[Case], results: Mapping[str, Result]) -> list[Path]:
    """accuracy-bits.png, accuracy-bytes.png, loss-bits.png and consensus.png in `folder`; those
    without data are left out. Raises HostError without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise HostError("plots need matplotlib: pip install 'edgegossip[report]'") from None
    from edgegossip.lab.study.draw import draw_bits, draw_bytes, draw_consensus, draw_loss

    found, study, written = variants(cases, results), folder.resolve().name, []
    if any(v.bits_per_value > 0 for v in found):
        written.append(draw_bits(found, study, folder / "accuracy-bits.png"))
    if any(v.by_bytes for v in found):
        written.append(draw_bytes(found, study, folder / "accuracy-bytes.png"))
    if any(v.loss_by_bits for v in found):
        written.append(draw_loss(found, study, folder / "loss-bits.png"))
    if any(y > 0 for v in found for _, y in v.by_round):
        written.append(draw_consensus(found, study, folder / "consensus.png"))
    return written
