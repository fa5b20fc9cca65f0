"""What `edgegossip report` writes besides tables and plots: the page, and run folders in formats
that other programs read.

columns.py      metrics, events and links as columns; CSV files of them
tensorboard.py  event files for TensorBoard
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgegossip.options import option

if TYPE_CHECKING:
    from edgegossip.report.web.view import RunView


@dataclass(frozen=True, slots=True)
class Exports:
    """Says where each goes, as options of `edgegossip report`; None: it is not written."""

    html: Path | None = option(
        None,
        "Where the page goes. Default: report.html in the run's folder; of several runs, in the present folder.",
        path="file",
        metavar="FILE",
    )
    csv: Path | None = option(None, "Write metrics, events and links as CSV files.", path="folder", metavar="DIR")
    tensorboard: Path | None = option(
        None,
        "Write an event file a board, for `tensorboard --logdir DIR` (needs tensorboard).",
        path="folder",
        metavar="DIR",
    )


def write_exports(views: Sequence[RunView], exports: Exports, *, page: bool) -> Iterator[str]:
    """Write what is asked for, and the page in its usual place if `page`, and yield a line for each
    thing written. Raises HostError."""
    from edgegossip.report.web.page import page_of

    html = exports.html
    if html is None and page:
        html = views[0].folder / "report.html" if len(views) == 1 else Path("report.html")
    if html is not None:
        yield f"page {page_of(views, html)}"
    if exports.csv is not None:
        from edgegossip.report.exports.columns import write_csv

        yield from (f"csv {path}" for path in write_csv(views, exports.csv))
    if exports.tensorboard is not None:
        from edgegossip.report.exports.tensorboard import write_tensorboard

        yield from (f"tensorboard {path}" for path in write_tensorboard(views, exports.tensorboard))
