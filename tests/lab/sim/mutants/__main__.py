"""python -m tests.lab.sim.mutants [--mutant NAME ...] [--seeds N] [--record]

Looks for the first schedule that kills each mutant and prints a table. `--record`, for all of them,
writes killed.json, from which the tests replay, and docs/results/mutants.md. Exits with 1 when one
survives that is not said to be equivalent."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.lab.sim.mutants.catalogue import MUTANTS
from tests.lab.sim.mutants.search import Found, search

KILLED = Path(__file__).parent / "killed.json"
RESULTS = Path(__file__).parents[4] / "docs" / "results" / "mutants.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.sim.mutants", description="mutants against the simulator"
    )
    parser.add_argument("--mutant", action="append", choices=sorted(MUTANTS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=300, help="schedules after which a mutant has survived")
    parser.add_argument("--record", action="store_true", help="write killed.json and docs/results/mutants.md")
    args = parser.parse_args()
    found = []
    for name in args.mutant or MUTANTS:
        if args.record and not args.mutant and MUTANTS[name].equivalent:
            continue
        found.append(search(MUTANTS[name], args.seeds))
        print(f"{name:32} {_outcome(found[-1])}", flush=True)
    if args.record:
        _record(found)
    survivors = [f.mutant for f in found if f.seed is None and not MUTANTS[f.mutant].equivalent]
    killed = [f.mutant for f in found if f.seed is not None]
    print(f"{len(killed)} of {len(found)} killed" + (f"; survivors: {', '.join(survivors)}" if survivors else ""))
    return 1 if survivors else 0


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
    known = {name: row for name, row in {**known, **new}.items() if name in MUTANTS and not MUTANTS[name].equivalent}
    KILLED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    RESULTS.write_text(_page(known))


def _page(known: dict[str, dict[str, object]]) -> str:
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    equal = [m for m in MUTANTS.values() if m.equivalent]
    rows = [
        f"| `{name}` | {m.what} | {row['algorithm']} | {row['rule']} | {row['seed']} | {row['schedules']} |"
        for name, m in MUTANTS.items()
        if (row := known.get(name)) is not None
    ]
    lines = [
        "# Mutants",
        "",
        "Small mistakes put into the real code on purpose, and what the simulator made of them. Each is named and described in",
        "`tests/lab/sim/mutants`; schedules are tried from seed 0 on, among algorithms and faults that fit the mistake, until a",
        "checker sees something. The tests replay every killing schedule, with the mistake and without it.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine}: `python -m tests.lab.sim.mutants --record`. {len(rows)} killed, {len(equal)} "
        "equivalent or out of the simulator's sight.",
        "",
        "| mutant | what is wrong | algorithm | killed by the rule | at seed | schedules |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "## Not killed by the simulator, and why",
        "",
        "| mutant | what is wrong | why no schedule shows it |",
        "| --- | --- | --- |",
        *(f"| `{m.name}` | {m.what} | {m.equivalent} |" for m in equal),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
