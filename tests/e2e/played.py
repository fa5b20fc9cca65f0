"""One short run of each mode with real processes, for all tests that look at what a run leaves."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.command import edgegossip

NODES, ROUNDS, CODEC = 3, 6, "minmax8"
SETTINGS = (f"run.nodes={NODES}", f"run.rounds={ROUNDS}", f"codec.name={CODEC}", "checkpoint.best=true")


@dataclass(frozen=True)
class Played:
    """A run that has ended: what it left and said. Its folder is others' too, and not to be
    changed."""

    folder: Path
    code: int
    out: str
    err: str
    nobody_left: bool


def played(mode: str, factory: pytest.TempPathFactory) -> Played:
    """Return the session's run of a mode, in gossip with plots: whichever worker of pytest wants it
    first plays it, and others wait."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    runs, said = base / f"played-{mode}", base / f"played-{mode}.json"
    with (base / f"played-{mode}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            sets = [word for setting in (*SETTINGS, "training.local_steps=4") for word in ("--set", setting)]
            plots = [] if mode == "gossip" else ["--no-plots"]
            with edgegossip("run", f"quickstart-{mode}", *sets, *plots, runs=runs) as running:
                code, out, err = running.finish()
                said.write_text(json.dumps([str(running.folder()), code, out, err, running.nobody_left()]))
    folder, *rest = json.loads(said.read_text())
    return Played(Path(folder), *rest)
