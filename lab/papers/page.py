"""lab/papers/README.md: every table and figure of the five papers, beside what was measured here.

    python -m lab.papers keep NAME FOLDER
    python -m lab.papers pictures
    python -m lab.papers check
    python -m lab.results papers

`keep` puts the runs of a study, seed by seed, into papers/NAME.json of lab/results/pages, and
`pictures` draws images/papers-*.png there. `check` makes the page anew from the JSON, means and
intervals included, and its exit code is 1 where the page says something else, or where a row has a
figure that was typed. Rows are in rows_*.py; they take what they say of ours from JSON only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.files import write_atomic
from lab.papers import rows_bagua, rows_co3, rows_elasticl, rows_elastiquant, rows_low_precision
from lab.papers.claims import ONE_RUN, RESULTS, Kept, Row, Run, apart

PAGE = Path(__file__).resolve().with_name("README.md")
ROWS: Mapping[str, Sequence[Row]] = {
    "co3": rows_co3.ROWS,
    "elasticl": rows_elasticl.ROWS,
    "elastiquant": rows_elastiquant.ROWS,
    "low-precision": rows_low_precision.ROWS,
    "bagua": rows_bagua.ROWS,
}
STATES = ("agrees", "does not agree", "cannot be told", "not done")


def table(paper: str, kept: Kept | None = None) -> str:
    """Return the rows of a paper in Markdown."""
    known = kept or Kept()
    head = ("table or figure", "the paper", "ours", "agrees?", "size", "command and data")
    lines = [head, ("---",) * len(head), *(row.cells(known) for row in ROWS[paper])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def counts(kept: Kept | None = None) -> str:
    """Return how many rows of each paper ended how, in Markdown."""
    known = kept or Kept()
    found = {paper: Counter(row.state(known) for row in ROWS[paper]) for paper in ROWS}
    for paper in ROWS:
        found[paper]["one seed"] = sum(row.of_one_seed(known) for row in ROWS[paper])
    found["all"] = sum(found.values(), Counter())
    lines = [("", "rows", "done", *STATES, "told by one seed"), ("---", *("---:",) * (len(STATES) + 3))]
    for paper, states in found.items():
        total = sum(states[state] for state in STATES)
        done = total - states["not done"]
        shown = [str(states[state]) for state in (*STATES, "one seed")]
        lines.append((paper, str(total), f"{done} ({done / total:.0%})", *shown))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def figures(kept: Kept | None = None) -> tuple[int, int]:
    """Return how many tables and figures have something to repeat, and in how many of them a row
    was done."""
    known = kept or Kept()
    found: dict[tuple[str, str], bool] = {}
    for paper in ROWS:
        for row in ROWS[paper]:
            if (name := re.match(r"(Table|Figure) \w+", row.figure)) and (state := row.state(known)) in STATES:
                found[paper, name[0]] = found.get((paper, name[0]), False) or state != "not done"
    return len(found), sum(found.values())


TABLES: Mapping[str, Callable[[], str]] = {
    "counts": counts,
    "figures": lambda: str(figures()[0]),
    "touched": lambda: str(figures()[1]),
    "one_run": lambda: f"{ONE_RUN:g} points",
    "apart": lambda: f"{apart(Kept(), 'study-co3'):.1f}",
} | {paper.replace("-", "_"): (lambda paper=paper: table(paper)) for paper in ROWS}


# -- commands


def keep(name: str, folder: Path) -> Path:
    """Write a study's runs, seed by seed, as papers/NAME.json; return its path."""
    results = [json.loads(line) for line in (folder / "study.jsonl").read_text(encoding="utf-8").splitlines()]
    sources = {json.dumps(result["source"], sort_keys=True): result["source"] for result in results}
    document = {"sources": list(sources.values()), "rows": [_run(result) for result in results]}
    parts = (",\n  ".join(json.dumps(one) for one in document[key]) for key in ("sources", "rows"))
    path = RESULTS / "papers" / f"{name}.json"
    write_atomic(path, '{{\n "sources": [\n  {}\n ],\n "rows": [\n  {}\n ]\n}}\n'.format(*parts).encode())
    return path


def _run(result: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = result.get("accuracy") or {}
    return {
        "case": result["name"],
        "seed": result["seed"],
        "state": result["state"],
        "reason": result["reason"],
        "rounds": result["rounds"],
        "accuracy": accuracy.get("averaged"),
        "nodes": accuracy.get("mean"),
        "train_loss": result["train_loss"],
        "bits": result["bits_per_value"],
        "curve": [[point["round"] + 1, point["accuracy"]] for point in result["curve"]],
        "consensus": [[round + 1, distance] for round, distance in result["consensus_distance"]],
        **({"levels": result["levels"]} if result.get("levels") else {}),  # ElastiCL's, by round
    }


def typed(text: str) -> list[str]:
    """Return figures of a template that no JSON stands behind: decimals, and numbers with a unit.
    Names such as ResNet-20 and `dw` 16 are none."""
    return re.findall(r"\d+\.\d+|\d+ ?(?:%|points|times|MB)", re.sub(r"\{[^}]*\}|`[^`]*`|\]\([^)]*\)", "", text))


_COUNTS = {"one": 1, "two": 2, "three": 3}


def wrong_sizes(run: Run, kept: Kept) -> Iterable[str]:
    """Yield the seeds and rounds that a row's size names and its JSON has not."""
    document = kept(run.data)
    rows = document if isinstance(document, list) else document.get("rows", [])
    rows = [row for row in rows if not run.parts or row.get("part") in run.parts]
    seeds = {seed for row in rows for seed in row.get("seeds") or ([row["seed"]] if "seed" in row else [])}
    rounds = {row["rounds"] for row in rows if "rounds" in row}
    size = run.size.partition(";")[0]  # the paper's follows
    for word in re.findall(r"(\w+) seeds?\b", size):
        if seeds and _COUNTS.get(word) != len(seeds):
            yield f"{word} seeds, {len(seeds)} in {run.data}.json"
    for number in re.findall(r"([\d,]+) rounds\b", size):
        if rounds and int(number.replace(",", "")) not in rounds:
            yield f"{number} rounds, {rounds} in {run.data}.json"


def faults(kept: Kept | None = None) -> Iterable[str]:
    """Yield what is wrong with the page."""
    known = kept or Kept()
    for paper in ROWS:
        for row in ROWS[paper]:
            where = f"{paper}, {row.figure}"
            if row.find is not None:
                if row.run is None or not (row.run.data and row.run.command and row.run.size):
                    yield f"{where}: data, command and size are to be named"
                    continue
                for wrong in wrong_sizes(row.run, known):
                    yield f"{where}: its size says {wrong}"
                if found := typed(row.find(known).template):
                    yield f"{where}: typed into what is ours: {', '.join(found)}"
            if found := typed(row.why):
                yield f"{where}: typed into the reason: {', '.join(found)}"
    if found := typed(PAGE.with_suffix(".md.in").read_text(encoding="utf-8")):
        yield f"{PAGE.name}.in: typed: {', '.join(found)}"
    if PAGE.read_text(encoding="utf-8") != importlib.import_module("lab.results.write").page("papers"):
        yield "lab/papers/README.md is not what its JSON says: python -m lab.results papers"


def pictures() -> None:
    """Draw every picture that is made of lab/results/pages/papers."""
    for name in ("co3", "elastiquant", "divergence"):
        importlib.import_module(f"lab.papers.{name}").pictures()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("keep", "pictures", "check"))
    parser.add_argument("of", nargs="*", metavar="NAME FOLDER")
    options = parser.parse_args()
    if options.command == "keep":
        print(keep(options.of[0], Path(options.of[1])))
    elif options.command == "pictures":
        pictures()
    else:
        found = list(faults())
        print("\n".join(found) or "every figure of ours is in its JSON")
        return int(bool(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
