"""One short run of each mode with real boards, for all tests that look at what a run leaves."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
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


def in_a_process(*arguments: str) -> tuple[int, str, str]:
    """Exit code and what was said."""
    with edgegossip(arguments[0], *arguments[3:], runs=Path(arguments[2])) as running:
        return running.finish()


def played(
    mode: str, factory: pytest.TempPathFactory, run: Callable[..., tuple[int, str, str]] = in_a_process
) -> Played:
    """Return the session's run of a mode, in gossip with plots: whichever worker of pytest wants it
    first plays it, and others wait. `run` gives what came of a command."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    runs, said = base / f"played-{mode}", base / f"played-{mode}.json"
    with (base / f"played-{mode}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            settings = (*SETTINGS, "training.local_steps=4", "network.tls=off")
            sets = [word for setting in settings for word in ("--set", setting)]
            plots = [] if mode == "gossip" else ["--no-plots"]
            said.write_text(json.dumps(run("run", "--runs", str(runs), f"quickstart-{mode}", *sets, *plots)))
    (folder,) = runs.iterdir()
    return Played(folder, *json.loads(said.read_text()))
