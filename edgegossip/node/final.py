"""Saving the final model on a disk that may be full: what was trained for hours is not thrown away for want of room.

First checkpoints give way that are older than the model, then the board waits for somebody to free space, and says so.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from edgegossip.layout import Layout
from edgegossip.node.checkpoint import DiskFull, save_model
from edgegossip.profiling.records import Sink
from edgegossip.types import NodeId, Round, Vec

if TYPE_CHECKING:
    from edgegossip.node.keeper import Keeper

PATIENCE_S = 3600.0
AGAIN_S = 5.0  # between two tries, each of which is told


def save_final(
    path: Path, layout: Layout, model: Vec, round: Round, keeper: Keeper | None, node: NodeId, sink: Sink
) -> None:
    """`round`: how far the model is. The newest checkpoint stays as long as the model is not safe and it may be needed: it goes
    when it is of an earlier round and larger than the model. Raises HostError, on a full disk after PATIENCE_S."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return save_model(path, layout, model)
        except DiskFull as error:
            if keeper is not None and (keeper.make_room() or keeper.give_way(round, _at_most_bytes(layout))):
                continue
            if time.monotonic() >= until_s:
                raise
            text = f"{error}: free some space there; this board holds its model and tries again every {AGAIN_S:.0f} s"
            sink.event(node, "waiting", text)
            time.sleep(AGAIN_S)


def _at_most_bytes(layout: Layout) -> int:
    """Of the file: 4 bytes a value, and heads of each tensor in it and in the archive."""
    return 4 * layout.size + 1024 * (len(layout.tensors) + 4)
