"""Whether a run goes on somewhere out of sight: what a board that was started again knows of members that are no neighbours."""

from __future__ import annotations

from collections.abc import Mapping

from edgegossip.mesh.base import Verdict
from edgegossip.types import NodeId


class Far:
    """Pure. `known`: those that had come before us, and whether they are here; without those that left."""

    def __init__(self, known: Mapping[NodeId, bool] | None = None) -> None:
        self._there = dict(known or {})  # here, or dead: whoever died may come back
        self._since_before = {peer for peer, here in self._there.items() if here}

    @property
    def nobody(self) -> bool:
        """Whether none of them is here, or may come back."""
        return not self._there

    @property
    def training(self) -> frozenset[NodeId]:
        """Those that were here before us, and are. One that came after us may be waiting as we do: two boards that take each
        other for the run would wait for ever."""
        return frozenset(peer for peer in self._since_before if self._there.get(peer))

    def note(self, verdict: Verdict) -> None:
        if verdict.left:
            self._there.pop(verdict.peer, None)
        else:
            self._there[verdict.peer] = verdict.here
        if verdict.restarted:
            self._since_before.discard(verdict.peer)
