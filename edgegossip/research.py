"""What training will be like, from Python and in notebooks: `edgegossip.study` compares variants of
a recipe, `edgegossip.plan` works out a run on a fleet before anything runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgegossip import recipe as recipes
from edgegossip.result import data_frame
from edgegossip.types import ConfigError, DataError

if TYPE_CHECKING:
    import pandas

    from edgegossip.studies.cases import StudyPlan as Listed

_OF_CASES = ("name", "seeds", "sweep")  # what a case may have beside settings


class StudyResult:
    """A study's folder: what came out of every variant that was asked for last.

    Everything is read when it is asked for. Raises DataError when the folder has no study.

    Example:
        result = edgegossip.StudyResult("runs/quickstart-gossip-study")
        result.table()[["case", "accuracy", "bits_per_value"]]
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not isinstance(self.summary.get("rows"), list) or "study" not in self.summary:
            raise DataError(f"{self.folder / 'table.json'} is of no study")

    @property
    def summary(self) -> Mapping[str, Any]:
        """Return the document of table.json, which `edgegossip study --json` prints: `rows`, one a
        variant, and `failed`, one a run that diverged."""
        path = self.folder / "table.json"
        try:
            document = json.loads(path.read_bytes())
        except OSError:
            raise DataError(
                f"{self.folder} is not the folder of a study that has ended: it has no table.json"
            ) from None
        except ValueError:
            raise DataError(f"{path} is not JSON") from None
        return document if isinstance(document, dict) else {}

    def table(self) -> pandas.DataFrame:
        """Return a row for each variant: `case`, the settings, `seeds`, `failed`, and figures with
        their sample standard deviation over the seeds (`accuracy`, `accuracy_std`, ...; bytes, bits
        and seconds as docs/study.md has them). NaN is not known. Raises HostError without
        pandas."""
        from edgegossip.studies.summary import figures

        head, *rows = figures(self.summary["rows"])
        return data_frame([dict(zip(head, row, strict=True)) for row in rows], head)

    @property
    def plots(self) -> tuple[Path, ...]:
        """Return the pictures, as PNG files; none where matplotlib was not there."""
        return tuple(sorted(self.folder.glob("*.png")))

    def __repr__(self) -> str:
        return f"StudyResult({str(self.folder)!r})"

    def __str__(self) -> str:
        from edgegossip.studies.summary import as_text

        return as_text(self.summary["rows"])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show in a notebook what `print` does."""
        printer.text(str(self))


def study(
    recipe: str | Path,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    cases: str | Path | Sequence[Mapping[str, Any]] = (),
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    target: float = 0.0,
    skip_invalid: bool = False,
    quiet: bool = False,
    **keys: Any,
) -> StudyResult:
    """Train a recipe many times with some keys changed, as `edgegossip study` does, and return what
    came of it.

    All boards of a run are virtual nodes in one process, without sockets; bytes are those of the
    real frames. A study that was stopped goes on where it was with the same call.

    Args:
        recipe: a packaged recipe's name, or the path of one.
        sweep: recipe keys and the values to try; several keys give all combinations.
        settings: recipe keys that all runs have, as for `run`.
        cases: variants that are no product: mappings of recipe keys, each perhaps with `name` (for
            tables), `seeds` and a `sweep` of its own; or a sweep file, or the name of one of the
            package. `sweep` multiplies them.
        seeds: run every case with each of these; figures are means over them.
        out: folder of the results; one that has some is gone on with. By default
            runs/NAME-study.
        jobs: runs at a time, each in a process of its own. A script that asks for several has its
            code below `if __name__ == "__main__":`, as with multiprocessing.
        target: add what each variant needed up to the first test with this accuracy (0 to 1).
        skip_invalid: leave out combinations that cannot run, in place of an error.
        quiet: print nothing.
        keys: recipe keys as keywords, as for `run`.

    Runs that diverge are results: they are in `summary["failed"]`. Raises ConfigError, with key,
    range and nearest choice, before anything is run.

    Example:
        result = edgegossip.study(
            "quickstart-gossip", {"codec.name": ["fp32", "minmax8", "e-elastiquant"]}, seeds=[1, 2]
        )
        print(result)
    """
    from edgegossip.report.live import line_output
    from edgegossip.studies.campaign import StudyOptions, run

    asked = recipes.keys_of(settings, keys)
    base = recipes.with_settings(recipes.load(str(recipe)), asked)
    points = recipes.keys_of(sweep, {})
    for key, values in points.items():
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"study: sweep of {key} is {values!r}: give a list of values")
    if "run.seed" in points:
        raise ConfigError("study: seeds are not swept; give seeds=[1, 2, 3], and results are averaged over them")
    if any(isinstance(seed, bool) or not isinstance(seed, int) or seed < 0 for seed in seeds):
        raise ConfigError(f"study: seeds = {list(seeds)!r}: must be whole numbers from 0, such as [1, 2, 3]")
    if not 0.0 <= target <= 1.0 or jobs < 1:
        raise ConfigError(f"study: target = {target} must be from 0 to 1, and jobs = {jobs} at least 1")
    say = (lambda line: None) if quiet else line_output()
    options = StudyOptions(
        base,
        list(points.items()),
        _listed(cases).below(asked),
        tuple(dict.fromkeys(seeds)),
        None if out is None else Path(out),
        jobs,
        target,
        skip_invalid,
    )
    document, _ = run(options, say, say, show=False)
    return StudyResult(document["study"])


def _listed(cases: str | Path | Sequence[Mapping[str, Any]]) -> Listed:
    from edgegossip.studies.cases import StudyPlan as Listed
    from edgegossip.studies.cases import plan_of, read_file

    if isinstance(cases, (str, Path)):
        return read_file(str(cases))
    if not cases:
        return Listed()
    documents = []
    for case in cases:
        if not isinstance(case, Mapping):
            raise ConfigError(f"study: a case is a mapping of recipe keys, and one is {case!r}")
        own = {key: value for key, value in case.items() if key in _OF_CASES}
        documents.append({**own, **recipes.keys_of({k: v for k, v in case.items() if k not in own}, {})})
    return plan_of({"case": documents}, "cases")


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What a run of a recipe will be like on a fleet. Its text (`print(plan)`) is that of
    `edgegossip plan`.

    `summary` is the document of `edgegossip plan --json`: bytes, seconds by board, what limits the
    run, and `faster_codec` with its settings, or None. Seconds and memory are modelled; frames were
    really encoded.
    """

    summary: Mapping[str, Any]

    def codecs(self) -> pandas.DataFrame:
        """Return a row for each codec that could be used instead, the fastest first: `codec`,
        `downlink`, `bits_per_value`, `seconds` of a round. Raises HostError without pandas."""
        return data_frame(self.summary["codecs"], ["codec", "downlink", "bits_per_value", "seconds"])

    def __repr__(self) -> str:
        from edgegossip.scale.plan import plan_text

        return plan_text(self.summary)


def plan(
    recipe: str | Path,
    fleet: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    boards: int | None = None,
    **keys: Any,
) -> Plan:
    """Work out bytes and seconds of a round on a fleet, memory of a board, what limits the run and
    the codec that is faster, as `edgegossip plan` does. Nothing runs but a script, up to its join.
    Needs torch.

    Args:
        recipe: a packaged recipe's name, or the path of one, or of a training script.
        fleet: a fleet of the package, such as "pi4-wifi" or "paper-18", or a TOML file.
        settings: recipe keys and their values, as for `run`.
        boards: only the fleet's first so many.
        keys: recipe keys as keywords, as for `run`.

    Raises ConfigError for an unknown recipe, key or fleet, with the nearest, and RunError for a
    script that does not come to its join.

    Example:
        plan = edgegossip.plan("cifar10-gossip", "pi4-wifi", codec__name="fp16")
        plan.summary["round_s"], plan.summary["limit"]["what"]
    """
    from edgegossip.scale.devices import load_fleet
    from edgegossip.scale.plan import plan as make

    chosen = recipes.with_settings(recipes.load(str(recipe)), recipes.keys_of(settings, keys))
    return Plan(make(chosen, load_fleet(str(fleet)), boards))
