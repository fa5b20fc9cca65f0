#!/usr/bin/env python3
"""Write the table of docs/boards.md: a row a report in devices/reports.

python scripts/boards.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from edgegossip.accept.page import figures as figures_of
from edgegossip.untrusted import printable

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "boards.md"
HEAD = (
    "| report | machine | what it is | kernels | fp32, GFLOP/s | int8, GOP/s | memory, GB/s | writes, MB/s "
    "| fsync, ms | rate kept under load | to put right, to know of |",
    "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)
KINDS = ("board", "virtual machine", "emulated")
TABLE = re.compile(re.escape("\n".join(HEAD)) + r"\n(\|.*\n)*")


def table(reports: dict[str, dict[str, Any]]) -> str:
    """Lines of Markdown, each with its end; boards come first."""
    order = sorted(reports, key=lambda name: (KINDS.index(reports[name]["kind"]), name))
    return "".join(f"{line}\n" for line in (*HEAD, *(row(name, reports[name]) for name in order)))


def row(name: str, report: dict[str, Any]) -> str:
    """One report. What it left out is a dash."""
    sections, figures = report["sections"], figures_of(report)

    def figure(key: str, scale: float, digits: int) -> str:
        return f"{figures[key] / scale:.{digits}f}" if key in figures else "-"

    first, last = (figures.get(f"load.{end}_products_per_s") for end in ("first", "last"))
    cells = (
        f"`devices/reports/{name}`",
        report["board"],
        report["kind"],
        sections.get("isa", {}).get("used", "-"),
        figure("rates.fp32_flops", 1e9, 1),
        figure("rates.int8_ops", 1e9, 1),
        figure("rates.memory_bytes_per_s", 1e9, 1),
        figure("storage.write_bytes_per_s", 1e6, 0),
        figure("storage.fsync_s", 1e-3, 1),
        f"{last / first:.0%}" if first and last else "-",
        f"{report['bad']}, {report['warnings']}",
    )
    return f"| {' | '.join(printable(cell, 100).replace('|', '/') for cell in cells)} |"


def written(page: str) -> str:
    """The page with its table made anew."""
    return TABLE.sub(lambda _: table(stored()), page, count=1)


def stored() -> dict[str, dict[str, Any]]:
    """The reports in devices/reports, by their files' names."""
    return {
        file.name: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((ROOT / "devices" / "reports").glob("*.json"))
    }


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
