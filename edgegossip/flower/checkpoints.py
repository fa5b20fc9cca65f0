"""Checkpoints of a server run: the coordinator's progress, and a board's training.

The coordinator waits until a round is durable before it asks for the next one, so whatever is asked
again after kill -9 was asked last: a board that lives on has its answer at hand, and the curve is
the same. A disk that is full or broken holds nobody (`checkpoint/writer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from edgegossip.checkpoint.registry import RunContext
from edgegossip.checkpoint.store import Store
from edgegossip.checkpoint.writer import Writer
from edgegossip.engine.server_records import Progress
from edgegossip.layout import Layout
from edgegossip.recipe import CheckpointSection
from edgegossip.telemetry.records import Sink
from edgegossip.types import DataError, EdgegossipError, NodeId, Round, UsageError

CLOSE_S = 10.0  # how long the last checkpoint may take
FLUSH_S = 30.0  # and one between two rounds, before the run goes on without


class HasState(Protocol):
    """Has a state to be kept, as `client.BoardWorker` has."""

    @property
    def round(self) -> Round:
        """The round that it has played last."""

    def snapshot(self) -> dict[str, Any]:
        """Return what another process needs to go on for this one."""

    def restore(self, found: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave."""


class _Checkpointer:
    """Holds a store, its writer, and whom they speak for."""

    def __init__(
        self,
        name: NodeId,
        folder: Path,
        layout: Layout,
        run_id: bytes,
        members: tuple[NodeId, ...],
        section: CheckpointSection,
        sink: Sink,
    ) -> None:
        identity = {"board": name, "boards": members, "model": f"{layout.hash:016x}", "run": run_id}
        self._name, self._sink, self._every, self._layout = name, sink, section.every, layout
        self._store = Store(folder, identity, keep=section.keep)
        self._writer = Writer(self._store, self._say, section.slack_s, daily_bytes=section.daily_bytes)

    def close(self, *, over: bool) -> None:
        """Write what was offered last. `over`: nobody will go on from here, so nothing is left."""
        self._writer.close(CLOSE_S)
        if over:
            self._store.clear()

    def _load(self, run: RunContext) -> Any:
        found = self._store.load(run)
        for text in found.skipped if found is not None else ():
            self._say("checkpoint-skipped", text)
        return found

    def _say(self, event: str, text: str) -> None:
        with suppress(EdgegossipError):  # nobody listens any more
            self._sink.event(self._name, event, text)


class CoordinatorCheckpointer(_Checkpointer):
    """Keeps the progress of one run for its coordinator."""

    def load(self) -> Progress | None:
        """Return where to go on; None at the very start.

        Raises ConfigError, DataError, HostError."""
        found = self._load(RunContext(layout=self._layout))
        if found is None:
            return None
        if not isinstance(found.value, Progress):
            raise DataError(f"checkpoint {found.path} is none of a coordinator")
        found.value.check(self._layout)
        return found.value

    def save(self, progress: Progress) -> None:
        """Keep the progress after a round."""
        if self._every and progress.round % self._every == 0:
            self._writer.offer(progress.round, progress, tensors=self._layout.plain())

    def make_room(self) -> bool:
        """Keep only the newest checkpoint, for the final model on a full disk; return whether
        others went."""
        self.flush()
        return self._store.make_room()

    def flush(self) -> None:
        """Wait until what was saved is durable, or cannot be."""
        self._writer.flush(FLUSH_S)


class BoardCheckpointer(_Checkpointer):
    """Keeps the state of one board of a run."""

    def restore(self, board: HasState) -> None:
        """Restore what an earlier process of this board kept, if there is any.

        Raises ConfigError, DataError, HostError."""
        found = self._load(RunContext(layout=self._layout))
        if found is None:
            return
        try:
            board.restore(found.value)
        except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"checkpoint {found.path} cannot be used: {error}") from None
        self._say("restored", f"{self._name} goes on from its checkpoint of round {board.round}")

    def save(self, board: HasState) -> None:
        """Keep the board's state after a round."""
        if self._every and board.round % self._every == 0:
            self._writer.offer(board.round, board.snapshot(), tensors=self._layout.plain())
