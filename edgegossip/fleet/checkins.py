"""What boards last said at `fleet serve`: checkins/NAME.json in the fleet's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgegossip.types import NodeId

FOLDER = "checkins"


def of(folder: Path, name: NodeId) -> dict[str, Any] | None:
    """Of one board; None when it never checked in, or the file is damaged: the next check-in
    replaces it."""
    try:
        found = json.loads((folder / FOLDER / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
