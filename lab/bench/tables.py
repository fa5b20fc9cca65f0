"""What all benchmarks show alike: the machine, the words for a target that holds or fails, and the
Markdown page as lab/results/pages keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.types import EXIT_OK, EXIT_RUN


def machine_line(machine: dict[str, Any]) -> str:
    """Return what the figures depend on: processor, threads, system, Python, kernels, commit,
    date."""
    return (
        f"{machine['cpu'] or machine['machine']}, {machine['usable_threads']} threads, {machine['system']}, "
        f"{machine['python']}, isa {machine['isa']}, {source_text(machine)}, {machine['started']}"
    )


def source_text(machine: Mapping[str, Any]) -> str:
    """Return the commit and whether files differ from it, as `machine.environment` found them."""
    if not machine.get("commit"):
        return "commit not recorded"
    state = {True: "dirty", False: "clean", None: "not recorded whether clean"}[machine["dirty"]]
    return f"commit {machine['commit']} ({state})"


def packages_line(machine: dict[str, Any], *names: str) -> str:
    """Return the versions of the package and of these others, as far as they are installed."""
    return ", ".join(f"{k} {v}" for k, v in machine["packages"].items() if v and k in ("edgegossip", *names))


def verdict_word(holds: bool | None) -> str:
    """Return how one line of --check begins; None: no row that it speaks of was measured."""
    return {True: "holds", False: "FAILS", None: "not measured"}[holds].ljust(12)


def exit_code(held: Sequence[bool | None]) -> int:
    """Return the exit code of --check: success when some target holds and none fails."""
    return EXIT_OK if False not in held and True in held else EXIT_RUN


def write_document(folder: Path, name: str, document: dict[str, Any], markdown: str = "") -> None:
    """Write NAME.json, and NAME.md where there is a page, into a folder that exists."""
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if markdown:
        (folder / f"{name}.md").write_text(markdown, encoding="utf-8")


def page(
    title: str,
    machine: str,
    command: str,
    notes: Iterable[str],
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    text_columns: Iterable[str] = (),
    behind: Iterable[str] = (),
    verdicts: Sequence[str] = (),
) -> str:
    """Return the page: machine, command, what the columns mean, the table, the targets.

    `text_columns` name those of the head that are not numbers; `behind` are items under the table.
    """
    texts = set(text_columns)
    lines = [f"# {title}", "", f"Machine: {machine}.", "", "```", f"$ {command}", "```", "", *_items(notes), ""]
    lines += [_bar(head), _bar(["---" if name in texts else "---:" for name in head]), *map(_bar, rows)]
    if items := _items(behind):
        lines += ["", *items]
    if verdicts:
        lines += ["", "## Targets", "", "```", *verdicts, "```"]
    return "\n".join(lines) + "\n"


def _items(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
