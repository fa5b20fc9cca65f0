"""What `edgegossip report` writes besides the tables and the plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgegossip.report.web.page import page_of
from edgegossip.report.web.view import RunView


@dataclass(frozen=True, slots=True)
class Exports:
    """Where each goes; None: it is not written."""

    html: Path | None = None
    trace: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    tensorboard: Path | None = None


def read_runs(folders: Sequence[Path], *, together: bool = False) -> list[RunView]:
    """All that is known of these runs, read once; `together`: of the one run that they are folders
    of. Raises DataError."""
    views = [RunView(*folders)] if together else [RunView(folder) for folder in folders]
    for view in views:
        view.read()
    return views


def write_exports(views: Sequence[RunView], exports: Exports, *, page: bool) -> Iterator[str]:
    """Writes what is asked for, and the page in its usual place if `page`; a line for each thing
    written. Raises HostError."""
    html = exports.html
    if html is None and page:
        html = views[0].folder / "report.html" if len(views) == 1 else Path("report.html")
    if html is not None:
        yield f"page {page_of(views, html)}"
    if exports.trace is not None:
        from edgegossip.report.exports.trace import write_trace

        yield f"trace {write_trace(views, exports.trace)}"
    if exports.csv is not None:
        from edgegossip.report.exports.columns import write_csv

        yield from (f"csv {path}" for path in write_csv(views, exports.csv))
    if exports.parquet is not None:
        from edgegossip.report.exports.columns import write_parquet

        yield from (f"parquet {path}" for path in write_parquet(views, exports.parquet))
    if exports.tensorboard is not None:
        from edgegossip.report.exports.tensorboard import write_tensorboard

        yield from (f"tensorboard {path}" for path in write_tensorboard(views, exports.tensorboard))
