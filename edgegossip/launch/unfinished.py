"""The run folder that the same command goes on with after kill -9: the newest one of that run which still has checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from edgegossip.types import NodeId


def unfinished(runs_dir: Path, run_id: bytes, members: Sequence[NodeId], name: NodeId) -> Path | None:
    """`name`: whose checkpoints. They are removed when a run ends well. Folders that cannot be read are passed over."""
    found = []
    for document in runs_dir.glob("*/run.json"):
        try:
            run = json.loads(document.read_bytes())
            same = run["run_id"] == run_id.hex() and list(run["members"]) == list(members)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if same and has_checkpoints(document.parent, name):
            found.append((document.stat().st_mtime_ns, document.parent))
    return max(found)[1] if found else None


def has_checkpoints(folder: Path, name: NodeId) -> bool:
    return any((folder / "checkpoint" / name).glob("*.ckpt"))
