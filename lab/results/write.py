#!/usr/bin/env python3
"""Write the pages of lab/results/pages, each from the JSON and the template beside it.

    python -m lab.results [--check] [NAME...]

NAME.md.in is a string.Template that holds the prose; figures of tables stand in NAME.json:
${source} is the machine, the instruction set and the commit of the results, ${page} a benchmark's
document as `bench -o` shows it, ${table} the table of a study or of the script that made the
results, ${settings} the script's own settings, ${study_NAME} the table of the study NAME.json,
${table_1}, ${table_2}, ... those of "tables", ${count_1}, ... how many rows they have,
${output_1}, ... what commands printed, of "output", and ${paper_NAME_PART} a table that
lab/papers/NAME.py makes of papers/NAME.json, or its source, and ${rows_PAPER} the rows of
lab/papers/README.md. What was not recorded is said to be so.
With --check nothing is written; the exit code is 1 when a page is not what this command writes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import string
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgegossip.studies import summary
from lab.bench import mesh, run_codecs, server
from lab.bench.tables import source_text

RESULTS = Path(__file__).resolve().with_name("pages")
WIDTH = 100
SCRIPTS = {  # whose `table` shows the results
    "codec-runs": "lab.results.codec_runs",
    "gossip-runs": "lab.results.gossip_runs",
    "low-precision": "lab.results.low_precision_runs",
    "low-precision-long": "lab.results.low_precision_runs",
    "low-precision-resnet20": "lab.results.low_precision_runs",
    "examples": "lab.results.example_runs",
    "flower-examples": "lab.results.flower_examples",
    "flower-strategies": "lab.results.flower_in_process",
    "nlp": "lab.results.text_runs",
    "int8-kept-norms": "lab.results.int8_norms",
    "rate-error": "lab.results.rate_error",
    "study-speed": "lab.results.study_speed",
    "scale-paper": "lab.papers.table3",
    "arm-cost": "lab.results.arm_cost",
}
OUTSIDE = {"papers": RESULTS.parents[1] / "papers" / "README.md"}  # pages that lie elsewhere
_BENCHMARKS = {"mesh": mesh, "server": server, "codecs": run_codecs}


def place(name: str) -> Path:
    """Return where a page lies."""
    return OUTSIDE.get(name, RESULTS / f"{name}.md")


def page(name: str, folder: Path | None = None) -> str:
    """Return a page as its JSON and its template make it.

    Raises KeyError where the template asks for what there is not."""
    written = folder / f"{name}.md" if folder else place(name)
    template = string.Template(written.with_suffix(".md.in").read_text(encoding="utf-8"))
    file = written.with_suffix(".json")
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return "\n".join(wrapped(template.substitute(Figures(name, document, written.parent)))) + "\n"


class Figures(Mapping[str, str]):
    """Makes what a template asks for."""

    def __init__(self, name: str, document: Any, folder: Path) -> None:
        self._name, self._document, self._folder = name, document, folder

    def __getitem__(self, key: str) -> str:
        if paper := re.fullmatch(r"paper_([a-z0-9]+)_(\w+)", key):
            name, part = paper.groups()
            document = json.loads((self._folder / "papers" / f"{name}.json").read_text(encoding="utf-8"))
            if part == "source":
                return source(document)
            return str(importlib.import_module(f"lab.papers.{name}").TABLES[part](document))
        if key.startswith("rows_"):
            return str(importlib.import_module("lab.papers.page").TABLES[key.removeprefix("rows_")]())
        if key == "source":
            return source(self._document)
        if key == "page":
            return _BENCHMARKS[self._name.partition("-")[0]].markdown(self._document).rstrip()
        if key.startswith("table_"):
            return table(self._document["tables"][int(key.removeprefix("table_")) - 1])
        if key == "table" and self._name in SCRIPTS:
            return str(importlib.import_module(SCRIPTS[self._name]).table(self._document)).rstrip()
        if key.startswith("output_"):
            return str(self._document["output"][int(key.removeprefix("output_")) - 1])
        if key == "settings":
            return str(importlib.import_module(SCRIPTS[self._name]).settings_table())
        if key.startswith("count_"):
            return str(len(self._document["tables"][int(key.removeprefix("count_")) - 1]["rows"]))
        if key == "table":
            return summary.as_markdown(self._document["rows"]).rstrip()
        if key.startswith("study_"):  # of the study NAME.json in the same folder
            other = self._folder / f"{key.removeprefix('study_').replace('_', '-')}.json"
            return summary.as_markdown(json.loads(other.read_text(encoding="utf-8"))["rows"]).partition("\n\n")[0]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def source(document: Any) -> str:
    """Return where results are from: "source" of a document or of each of a list, or "sources"."""
    parts = document if isinstance(document, list) else [document]
    found = [one for part in parts for one in part.get("sources") or [part["source"]]]
    made: dict[tuple[str, str], list[str]] = {}
    for part in found:
        known = made.setdefault((part["machine"] or "not recorded", part["isa"] or "not recorded"), [])
        if (text := source_text(part)) not in known:
            known.append(text)
    return "\n".join(
        f"Machine: {machine}; instruction set: {isa}; {', '.join(texts)}." for (machine, isa), texts in made.items()
    )


def table(figures: Mapping[str, Any]) -> str:
    """Return a table in Markdown: its head, which columns are numbers, and its rows."""
    rule = ["---:" if right else "---" for right in figures["right"]]
    return "\n".join(f"| {' | '.join(row)} |" for row in (figures["head"], rule, *figures["rows"]))


def wrapped(text: str) -> Iterator[str]:
    """Yield lines, prose with at most WIDTH columns; code and tables stay as they are."""
    code = False
    for line in text.rstrip("\n").split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= WIDTH or re.match(r"\||!\[|    |#|```", line):
            yield line
            continue
        indent = "  " if line.startswith("- ") else ""
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, tell which pages differ")
    options = parser.parse_args()
    differ = 0
    every = sorted([*OUTSIDE, *(path.name.removesuffix(".md.in") for path in RESULTS.glob("*.md.in"))])
    for name in options.names or every:
        path, text = place(name), page(name)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differ += 1
        print(path.relative_to(RESULTS.parents[2]))
        if not options.check:
            path.write_text(text, encoding="utf-8")
    return int(options.check and differ > 0)


if __name__ == "__main__":
    sys.exit(main())
