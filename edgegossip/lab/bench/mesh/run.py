"""The command behind `edgegossip bench mesh`: rows as they come, the document, the check, files."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgegossip.lab.bench.mesh import cases, show, targets
from edgegossip.lab.bench.mesh.cases import Settings
from edgegossip.lab.bench.show import machine_line
from edgegossip.telemetry.environment import environment
from edgegossip.types import EXIT_OK, EXIT_RUN

Print = Callable[[str], None]


def run(
    settings: Settings, arguments: Sequence[str], out: Print, *, check: bool, save: Path | None
) -> tuple[dict[str, Any], int]:
    """Measure. Lines go to `out` when they are there. The document and the exit code. Raises
    HostError when a process of the measurement fails."""
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "machine": environment(arguments),
        "load_average": round(os.getloadavg()[0], 2),
        "command": shlex.join(["edgegossip", *arguments]),
        "settings": asdict(settings),
    }
    out(machine_line(document["machine"]))
    out(show.heading())
    document["rows"] = cases.measure(settings, lambda row: out(show.line(row)))
    for note in show.NOTES:
        out(note)
    code = _check(document, out) if check else EXIT_OK
    if save is not None:
        (save / "mesh.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (save / "mesh.md").write_text(show.markdown(document), encoding="utf-8")
    return document, code


def _check(document: dict[str, Any], out: Print) -> int:
    verdicts = targets.check(document["rows"])
    document["checks"] = [verdict.as_dict() for verdict in verdicts]
    for verdict in document["checks"]:
        out(show.verdict_line(verdict))
    held = [verdict.holds for verdict in verdicts]
    return EXIT_OK if False not in held and True in held else EXIT_RUN
