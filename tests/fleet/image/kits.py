"""A kit for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgegossip.fleet import making
from edgegossip.fleet.store import Fleet


def kit_of(folder: Path, name: str, board: str = "raspberry-pi-4", **profile: Any) -> Path:
    """The kit file of a board of a new fleet."""
    fleet = Fleet.create(folder / f"fleet-{name}", "kitchen", 20).add_all((name,), "board", 20)
    making.set_profiles(fleet, (name,), {"board": board, "coordinator": "10.0.0.9:8000", **profile})
    file = folder / f"{name}.kit"
    file.write_bytes(making.make(fleet, name, 1.8e9))
    return file
