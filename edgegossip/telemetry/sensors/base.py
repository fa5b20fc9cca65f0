"""The sensor seam, and reading the small files of sysfs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol


class Sensor(Protocol):
    """Reads one source. Never raises for what the machine does: a value that cannot be read is left
    out."""

    @property
    def name(self) -> str:
        """Of the kind of sensor, such as "thermal-zones"."""

    def read(self) -> Mapping[str, float]:
        """Metrics by their names in records.METRICS, in their units."""


def text_of(path: Path) -> str | None:
    """The file without white space around it; None when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \t\r\n")
    except OSError:  # gone, not ours to read, or the device does not answer
        return None


def number_of(path: Path) -> float | None:
    """A decimal number, of which sysfs has one a file; None for anything else."""
    text = text_of(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def numbers_of(paths: Iterable[Path]) -> list[float]:
    """Those that can be read."""
    return [value for path in paths if (value := number_of(path)) is not None]


def found(root: Path, *patterns: str) -> list[Path]:
    """Files and folders under `root` that match any of the patterns, in the order of the patterns,
    each once."""
    every = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return list(dict.fromkeys(every))
