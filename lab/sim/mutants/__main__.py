"""python -m lab.sim.mutants [--list] [--mutant NAME ...] [--seeds N] [--record]

Looks for the first schedule that kills each mutant and prints a table. `--record`, for all of them,
writes killed.json, from which the tests replay, and lab/results/pages/mutants.json, of which
lab/results/ makes the page. Exits with 1 when one survives that should be found."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from edgegossip.choices import did_you_mean
from edgegossip.telemetry.machine import result_source
from lab.sim.mutants.catalogue import MUTANTS
from lab.sim.mutants.search import Found, search

KILLED = Path(__file__).parent / "killed.json"
RESULTS = Path(__file__).parents[2] / "results" / "pages" / "mutants.json"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.sim.mutants", description="mutants against the simulator")
    parser.add_argument(
        "--list", action="store_true", help="tell each one's name, the rule that finds it and what it is"
    )
    parser.add_argument("--mutant", action="append", type=_name, metavar="NAME", help="may be repeated; default: all")
    parser.add_argument("--seeds", type=int, default=300, help="schedules after which a mutant has survived")
    parser.add_argument("--record", action="store_true", help="write killed.json and lab/results/pages/mutants.json")
    args = parser.parse_args(words)
    if args.list:
        known = json.loads(KILLED.read_text())
        rules = {name: known[name]["rule"] if name in known else "a test" for name in args.mutant or MUTANTS}
        print("\n".join(f"{name:40} {rule:11} {MUTANTS[name].what}" for name, rule in rules.items()))
        return 0
    found = []
    for name in args.mutant or MUTANTS:
        if args.record and not args.mutant and not MUTANTS[name].found:
            continue
        found.append(search(MUTANTS[name], args.seeds))
        print(f"{name:32} {_outcome(found[-1])}", flush=True)
    if args.record:
        _record(found)
    survivors = [f.mutant for f in found if f.seed is None and MUTANTS[f.mutant].found]
    killed = [f.mutant for f in found if f.seed is not None]
    print(f"{len(killed)} of {len(found)} killed" + (f"; survivors: {', '.join(survivors)}" if survivors else ""))
    return 1 if survivors else 0


def _name(word: str) -> str:
    if word not in MUTANTS:
        raise argparse.ArgumentTypeError(f"there is no mutant {word!r}{did_you_mean(word, MUTANTS)} (--list has all)")
    return word


def _outcome(f: Found) -> str:
    if f.seed is None:
        return f"survives {f.schedules} schedules"
    return f"{f.rule} of {f.algorithm} at seed {f.seed}, {f.schedules} schedules: {f.text}"


def _record(found: list[Found]) -> None:
    known = json.loads(KILLED.read_text()) if KILLED.exists() else {}
    new = {
        f.mutant: {"seed": f.seed, "rule": f.rule, "algorithm": f.algorithm, "schedules": f.schedules}
        for f in found
        if f.seed is not None
    }
    known = {name: row for name, row in {**known, **new}.items() if name in MUTANTS and MUTANTS[name].found}
    KILLED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    RESULTS.write_text(json.dumps(_document(known), indent=1) + "\n")


def _document(known: dict[str, dict[str, object]]) -> dict[str, object]:
    """Both tables, as lab/results/pages keeps them."""
    killed = [
        [f"`{name}`", m.what, *(str(row[key]) for key in ("algorithm", "rule", "seed", "schedules"))]
        for name, m in MUTANTS.items()
        if (row := known.get(name)) is not None
    ]
    others = [
        [f"`{m.name}`", m.what, ", ".join(f"`{test}`" for test in m.seen_by), m.unseen]
        for m in MUTANTS.values()
        if not m.found
    ]
    heads = (
        ["mutant", "what is wrong", "algorithm", "killed by the rule", "at seed", "schedules"],
        ["mutant", "what is wrong", "test that sees it", "why no schedule does"],
    )
    return {
        "source": result_source(),
        "tables": [
            {"head": head, "right": [False] * len(head), "rows": rows}
            for head, rows in zip(heads, (killed, others), strict=True)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
