"""Metrics as TensorBoard event files, a folder a run and board: `tensorboard --logdir DIR`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip.report.web.view import RunView, Table, names_of
from edgegossip.types import HostError

_ODD = re.compile(r"[^\w. +=@~()-]")  # in a name that becomes a folder; % is odd, too
_GREATEST = float(np.finfo(np.float32).max)  # what no float32 holds is not told


def write_tensorboard(views: Sequence[RunView], folder: Path) -> list[Path]:
    """Write an event file for each board, in `<folder>/<run>/<board>`, and return the folders. Runs
    of one name are told apart by the folders that they are in. A name's letters that could lead
    elsewhere are written as %2F and so on. Raises HostError, also without TensorBoard."""
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise HostError("TensorBoard's event files need tensorboard: pip install tensorboard") from None
    written = []
    for run, view in zip(names_of(views), views, strict=True):
        place = folder.joinpath(*map(_part, run.split("/")))
        clocks = view.tables.clocks
        for node, table in view.tables.nodes.items():
            target = place / _part(node)
            times_s = [clocks.began_unix_s + clocks.of(node, t_s) for t_s in table.columns["t_s"]]
            try:
                target.mkdir(parents=True, exist_ok=True)
                writer = EventFileWriter(str(target), filename_suffix=".edgegossip")
                for event in _events(table, times_s):
                    writer.add_event(event)
                writer.close()
            except OSError as error:
                raise HostError(f"cannot write {target}: {error.strerror}") from None
            written.append(target)
    return written


def _part(name: str) -> str:
    """One part of a path, whatever the name is; no two names become the same."""
    if not name.strip("."):
        return name.replace(".", "%2E") or "%"
    return _ODD.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass")), name)


def _events(table: Table, times_s: Sequence[float]) -> Iterator[Any]:
    """One event a round, with its time of day."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    columns = {name: column for name, column in table.columns.items() if name != "t_s"}
    for row, step in enumerate(table.step):
        values = [
            Summary.Value(tag=name, simple_value=column[row])
            for name, column in columns.items()
            if abs(column[row]) <= _GREATEST
        ]
        yield Event(wall_time=times_s[row], step=step, summary=Summary(value=values))
