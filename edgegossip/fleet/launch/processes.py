"""The processes of a run on this machine, by board, found by what they say of themselves.

A board's command line has the run's id, which no other run has, and its name. So there is no file
of process numbers that could be out of date; whoever has a number by chance, or is the board of
another run, is nobody here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil

from edgegossip.choices import did_you_mean
from edgegossip.telemetry.run_folder import SUPERLINK_LOG, RunData, is_written, read_run
from edgegossip.telemetry.summary import COORDINATOR, head_of, summarise
from edgegossip.types import ConfigError, DataError, HostError, NodeId


def running_run(word: str | None, runs: Path) -> Path:
    """Return the folder of the run that a user means: a path, a name in `runs`, or None for the
    newest that goes on there. Raises DataError when there is none."""
    if word is not None:
        return next((path for path in (Path(word), runs / word) if path.is_dir()), Path(word))
    found = sorted((path.parent for path in runs.glob("*/metrics.jsonl") if is_written(path.parent)), reverse=True)
    if not found:
        raise DataError(f"no run goes on in {runs}; name its folder, or the folder of your runs with --runs")
    return found[0]


def kill(folder: Path, name: NodeId) -> int:
    """End the process of a board of this run, or of its coordinator, at once (SIGKILL), and return
    its number. Raises ConfigError when it has none here, HostError when it is another user's."""
    data = read_run(folder)
    here = _processes(data)
    if name not in here:
        raise ConfigError(f"{_why_not(data, name)} (running: {', '.join(here) or 'none'})")
    process = here[name]
    try:
        process.kill()  # not whoever has its number by now
    except psutil.NoSuchProcess:
        raise ConfigError(f"{name} of {folder.name} ended just now") from None
    except psutil.AccessDenied:
        raise HostError(
            f"{name} of {folder.name}, process {process.pid}, is {process.username()}'s: only that user may end it"
        ) from None
    return process.pid


def _why_not(data: RunData, name: NodeId) -> str:
    document = data.run or {}
    members = [*map(str, document.get("members", ())), *([COORDINATOR] if head_of(data)["mode"] == "server" else [])]
    if name not in members:
        return f"{name} is not in {data.name}{did_you_mean(name, members)}"
    states = {row["node"]: row["state"] for row in summarise(data)["boards"]}
    state = {"finished": "has finished", "lost": "was lost"}.get(
        states.get(name, ""), "has no process that `run` started"
    )
    return f"{name} of {data.name} {state}"


def _processes(data: RunData) -> Mapping[NodeId, psutil.Process]:
    """The run's processes that can be named: boards that `run` started, and a coordinator."""
    run_id, found = str((data.run or {}).get("run_id")), {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):  # it may end while we look
            words = " ".join(process.cmdline()).split()  # a title is one string
            said = dict(pairwise(words))
            # What a board forks has its command line, but leads no session.
            if "--managed" in words and said.get("--run-id") == run_id and os.getsid(process.pid) == process.pid:
                found[said["--name"]] = process
            elif (data.path / SUPERLINK_LOG).is_file() and _writes(process, data.path / "metrics.jsonl"):
                found[COORDINATOR] = process
    return {name: found[name] for name in sorted(found)}


def _writes(process: psutil.Process, file: Path) -> bool:
    return any(Path(opened.path) == file and "a" in opened.mode for opened in process.open_files())
