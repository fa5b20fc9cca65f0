"""The run folder that the same command goes on with after kill -9: the newest one of that run, if
it is not over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgegossip.mesh.membership.manifest import is_instance
from edgegossip.types import NodeId


def unfinished(
    runs_dir: Path, run_id: bytes, members: Sequence[NodeId], name: NodeId, instance: str = ""
) -> Path | None:
    """`name`: whose checkpoints, and nobody else's: a folder of `edgegossip run` is for
    `run --resume`. None when the newest folder is one of a run that ended: then checkpoints were
    removed, or the model is there. Folders that cannot be read are passed over, and those of
    another `instance` of the run (empty: of any)."""
    found = []
    for document in runs_dir.glob("*/run.json"):
        try:
            run = json.loads(document.read_bytes())
            same = run["run_id"] == run_id.hex() and list(run["members"]) == list(members)
            other = instance and run.get("instance", "") not in ("", instance)
            if same and not other and _is_of(document.parent, name):
                found.append((document.stat().st_mtime_ns, document.parent))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    newest = max(found)[1] if found else None
    return newest if newest is not None and has_checkpoints(newest, name) and not _model(newest, name) else None


def instance_of(folder: Path) -> str:
    """Which of several runs of the same recipe and members it is of; empty: not known."""
    try:
        found = json.loads((folder / "run.json").read_bytes())["instance"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if is_instance(found) else ""


def has_checkpoints(folder: Path, name: NodeId) -> bool:
    return any((folder / "checkpoint" / name).glob("*.ckpt"))


def kept_unix_s(folder: Path, name: NodeId) -> float | None:
    """When the newest checkpoint was written, by this machine's clock then. One that an ending
    process removes counts no more."""
    written = []
    for file in (folder / "checkpoint" / name).glob("*.ckpt"):
        with suppress(FileNotFoundError):
            written.append(file.stat().st_mtime)
    return max(written, default=None)


def _is_of(folder: Path, name: NodeId) -> bool:
    return [p.name for p in (folder / "checkpoint").iterdir() if p.is_dir()] == [name]


def _model(folder: Path, name: NodeId) -> bool:
    """Whether its model is there, which a gossip board saves when it has finished. Its last
    checkpoint stays."""
    from edgegossip.modelfile import SUFFIXES  # here: a board that waits has no use for it

    return any((folder / "checkpoint" / f"{name}{suffix}").is_file() for suffix in SUFFIXES)
