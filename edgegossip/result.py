"""What a run left behind, for Python and notebooks: `edgegossip.Result`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgegossip.telemetry.run_folder import RunData, read_run
from edgegossip.telemetry.summary import beside, summarise
from edgegossip.types import HostError

if TYPE_CHECKING:
    import pandas
    from torch import Tensor, nn

    from edgegossip.report.models import FoundModel, RunModels


class Result:
    """A run folder, of a run that has ended, was stopped, or goes on. Its text (`print(result)`) is
    the table that `edgegossip run` ends with.

    Everything is read when it is asked for. Args: `folder`, and `others` for the further folders of
    boards that ran by hand, each with its own. Raises DataError when one is no run folder.

    Example:
        result = edgegossip.Result("runs/20260102-030405-quickstart-gossip")
        result.score  # 0.95
        result.metrics().plot(x="step", y="train/loss")
        model = result.model()  # a torch module, averaged over the boards
    """

    def __init__(self, folder: str | Path, *others: str | Path) -> None:
        self.folder = Path(folder)
        self.folders = (self.folder, *map(Path, others))
        for path in self.folders:
            read_run(path)

    def __repr__(self) -> str:
        return f"Result({', '.join(repr(str(path)) for path in self.folders)})"

    def __str__(self) -> str:
        from edgegossip.report.table import run_table

        return run_table(self.summary)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show in a notebook what `print` does."""
        printer.text(str(self))

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of the run, as in summary.json (docs/run-folder.md)."""
        if len(self.folders) > 1:
            from edgegossip.report.web.view import read_runs

            return read_runs(self.folders, together=True)[0].summary()
        return summarise(read_run(self.folder))

    @property
    def score(self) -> float | None:
        """The score that the run goes by (`summary["score"]` is its name, "loss" where there is no
        other), the mean over the boards; None where nothing was evaluated."""
        summary = self.summary
        mean: float | None = summary["scores"][summary["score"]]["mean"] if summary["score"] else None
        return mean

    def beside(self) -> pandas.DataFrame:
        """Return a row for each board of a run with `alone`: `board`, and the score that the run
        goes by of what it learnt `alone`, of the model that came of training `together`, and of the
        `average` of the boards' models; NaN where one was not tested. Raises as `metrics` does."""
        columns = ["board", "alone", "together", "average"]
        rows = [[math.nan if cell is None else cell for cell in row] for row in beside(self.summary)]
        return data_frame([dict(zip(columns, row, strict=True)) for row in rows], columns)

    @property
    def boards(self) -> tuple[str, ...]:
        """Names of the boards whose model is here, or a checkpoint of it; sorted. Of a run through
        a coordinator all of its boards."""
        return self._models.boards

    def metrics(self) -> pandas.DataFrame:
        """Return a row for each board and round: `node`, `step` (the round, from 0), `t_s`, and a
        column for each metric of docs/run-folder.md; NaN where one was not measured. Raises
        HostError where pandas is not installed."""
        rows = [
            {"node": r.node, "step": r.step, "t_s": r.t_s, **r.values} for run in self._data() for r in run.metrics()
        ]
        return data_frame(rows, ["node", "step", "t_s"])

    def events(self) -> pandas.DataFrame:
        """Return a row for each event: `node`, `t_s`, `event` (a word), `text` (a sentence), and
        further fields of some. Raises as `metrics` does."""
        rows = [
            {"node": e.node, "t_s": e.t_s, "event": e.name, "text": e.text, **e.fields}
            for run in self._data()
            for e in run.events()
        ]
        return data_frame(rows, ["node", "t_s", "event", "text"])

    def state_dict(self, board: str | None = None, round: int | None = None) -> dict[str, Tensor]:
        """Return a model's values by name, for `model.load_state_dict`.

        Args:
            board: a name; "averaged", the default of gossip runs, over the boards that finished
                (all where none has); or "coordinator", that of server runs. A board's own model has
                what stays on it as well, such as a personal head.
            round: as it was after so many rounds, where a checkpoint of that is kept; by default
                the newest.

        Raises ConfigError for a board or round that is not here, DataError where no model is."""
        import torch

        return {name: torch.from_numpy(array.copy()) for name, array in self._found(board, round).arrays.items()}

    def model(self, board: str | None = None, round: int | None = None) -> nn.Module:
        """Return the recipe's model with the values of `state_dict`, in evaluation mode. Raises
        UsageError also where only the user's script can build it, or where an average lacks what
        each board has of its own."""
        from edgegossip.export import module_of

        return module_of(self._found(board, round), self._models.recipe)

    @property
    def best_round(self) -> int:
        """The round whose evaluations were the best, of a run with checkpoint.best: for `round` of
        `state_dict` and `model`. Raises ConfigError where no model of it was kept."""
        return self._models.best_round

    def distances(self) -> Mapping[str, float]:
        """Return how far each board's own model is from the average of `state_dict`, relative to
        its norm; 0 where they agree."""
        return self._found("averaged", None).away

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page of the run, one file without network requests (docs/report.md), and return
        where it is: by default report.html in the run's folder."""
        from edgegossip.report.web.page import page_of
        from edgegossip.report.web.view import read_runs

        views = read_runs(self.folders, together=len(self.folders) > 1)
        return page_of(views, self.folder / "report.html" if path is None else Path(path))

    @cached_property
    def _models(self) -> RunModels:
        from edgegossip.report.models import RunModels

        return RunModels(self.folders)

    def _found(self, board: str | None, round: int | None) -> FoundModel:
        return self._models.model(board, round)

    def _data(self) -> list[RunData]:
        return [read_run(path) for path in self.folders]


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """Return rows as a pandas table, with these columns where there are none. Raises HostError
    without pandas."""
    try:
        import pandas
    except ImportError:
        raise HostError("tables need pandas: pip install pandas") from None
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=columns)
