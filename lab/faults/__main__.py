"""`python -m lab.faults`: plants mistakes in the product, and tells which the tests do not see."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from edgegossip.cli.main import main
from edgegossip.cli.options import command
from edgegossip.options import option
from edgegossip.types import EXIT_OK, ConfigError
from lab.faults import plant

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Options of `python -m lab.faults`."""

    rooms: tuple[str, ...] = option(
        (), "A folder or file of edgegossip/; repeat. Default: all.", flag="--room", metavar="NAME"
    )
    seed: int = option(1, "Of what is drawn.", low=0)
    count: int = option(40, "How many.", low=1)
    only_list: bool = option(False, "Tell what would be planted, and plant nothing.", flag="--list")


@command(Faults)
def faults(options: Faults) -> int:
    """Plant mistakes in edgegossip/ one by one, and run the nearest tests.

    A mistake is drawn: a statement that is missing, a condition that is always or never true, a
    term, keyword, key or bound that is left out, a border that is off by one. Each line of the
    output is one, as JSON; `by` is the test that found it. Files are changed and put right again,
    so the tree must be clean; 40 take half an hour of a core.
    """
    if not options.only_list and subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        raise ConfigError("files are changed while this runs: commit or stash what you have")
    rooms = options.rooms or tuple(path.name for path in sorted((ROOT / "edgegossip").iterdir()))
    drawn, seen = plant.drawn(ROOT, rooms, options.seed, options.count), 0
    sys.dont_write_bytecode = True
    for k, (path, fault) in enumerate(drawn, 1):
        found = plant.found(ROOT, path, fault)
        if not options.only_list:
            tests = sum(map(len, plant.groups(ROOT, path)))
            click.echo(f"{k} of {len(drawn)}: {found}; {tests} files of tests", err=True)
            found = plant.plant(ROOT, path, fault)
            seen += bool(found.by)
        click.echo(json.dumps(found.document()))
    if not options.only_list:
        click.echo(f"{seen} of {len(drawn)} found", err=True)
    return EXIT_OK


if __name__ == "__main__":
    import torch  # noqa: F401 here: every fork has it

    main(command=faults, name="python -m lab.faults")
