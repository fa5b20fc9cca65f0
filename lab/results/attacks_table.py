#!/usr/bin/env python3
"""Record what `lab.soak.attack` printed: each case's newest line is a row of pages/attacks.json.

python -m lab.results.attacks_table LOG...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.soak.attack import EVIL, ROWS

PAGE = Path(__file__).parent / "pages" / "attacks.json"
HEAD = ("mode", "row", "boards", "rounds/s before", "kept", "lost, s", "more, MiB", "events that name it")
MODES = list(ROWS)
LONG_S = 600.0  # from which on an attack stands in the second table


def cells(case: dict[str, Any]) -> list[str]:
    """Return a row of the page."""
    named = sorted({event.split()[0] for event in case["said"] if event.endswith(f" {EVIL}")})
    kept, lost_s = f"{100 * case['kept']:.0f} %", f"{case['lost_s']:.1f}"
    figures = (f"{case['control']:.2f}", kept, lost_s, str(case["grew_mib"]))
    return [case["mode"], case["row"], str(case["boards"]), *figures, ", ".join(named) or "-"]


def place_of(case: dict[str, Any]) -> tuple[int, int, int]:
    """Return where a case stands: by mode, by row, by boards."""
    mode, row = case["mode"], case["row"]
    return MODES.index(mode), ROWS[mode].index(row), case["boards"]


def tables(lines: Iterable[str]) -> dict[str, Any]:
    """Return the page's results: short attacks, long ones, of each the newest line."""
    newest: tuple[dict[tuple[int, int, int], dict[str, Any]], ...] = ({}, {})
    for line in lines:
        case = json.loads(line)
        newest[case["seconds"] >= LONG_S][place_of(case)] = case
    source = {key: case[key] for key in ("machine", "isa", "commit", "dirty")}
    right = [cell not in (HEAD[0], HEAD[1], HEAD[-1]) for cell in HEAD]
    found = [[cells(case) for _, case in sorted(of.items())] for of in newest]
    return {"source": source, "tables": [{"head": HEAD, "right": right, "rows": rows} for rows in found]}


def main(logs: list[str]) -> None:
    """Write the two tables of figures; what the rows do stands after them, as it was."""
    made = tables(line for log in logs for line in Path(log).read_text().splitlines())
    made["tables"] += json.loads(PAGE.read_text())["tables"][2:]
    PAGE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
