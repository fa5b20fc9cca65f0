"""A bundle for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgegossip.fleet import orders, provisioning
from edgegossip.fleet.store import Fleet


def bundle_of(folder: Path, name: str, board: str = "raspberry-pi-4", **profile: Any) -> Path:
    """The bundle file of a board of a new fleet."""
    fleet = Fleet.create(folder / f"fleet-{name}", "kitchen", 20).add_all((name,), "board", 20)
    orders.change(fleet, (name,), {"board": board, "coordinator": "10.0.0.9:8000", **profile})
    file = folder / f"{name}.kit"
    file.write_bytes(provisioning.make_bundle(fleet, name, 1.8e9))
    return file
