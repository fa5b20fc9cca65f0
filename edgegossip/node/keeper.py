"""What a gossip board keeps so that another process can go on for it: where, how often, and of what
run.

Imported when training begins: a board that waits for its peers has no use for it yet.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.checkpoint.fits import require_fit
from edgegossip.checkpoint.store import Found, Store
from edgegossip.checkpoint.table import Outside
from edgegossip.checkpoint.writer import Writer
from edgegossip.gossip.base import GossipAlgorithm, NodeView
from edgegossip.node.spec import NodeSpec
from edgegossip.spool import SPOOL_BYTES
from edgegossip.telemetry.records import Sink
from edgegossip.training.base import Workload
from edgegossip.types import DataError, EdgegossipError, HostError, Round, UsageError

CLOSE_S = 10.0  # how long the last checkpoint may take
SETTLE_S = 30.0  # how long a round waits for the last checkpoint of a large model
LOCKED_S = 5.0  # how long an earlier process of this board may take to end


@dataclass(frozen=True, slots=True)
class Restored:
    """A board as its last checkpoint has it."""

    state: Any  # the algorithm's
    round: Round  # to play next


class Keeper:
    """The checkpoints of one board in one run. Everything but the writing happens on the caller's
    thread."""

    def __init__(self, spec: NodeSpec, view: NodeView, workload: Workload, folder: Path, sink: Sink) -> None:
        self._spec, self._view, self._workload, self._sink = spec, view, workload, sink
        section = spec.recipe.checkpoint
        self._every, self._last = section.every, 0
        identity = {
            "board": spec.name,
            "boards": spec.members,
            "model": f"{view.layout.hash:016x}",
            "recipe": recipes.run_id(spec.recipe),
            "run": spec.run_id,
        }
        self._store = Store(folder, identity, keep=section.keep)
        self._writer = Writer(self._store, self._say, section.slack_s)

    def load(self, algorithm: GossipAlgorithm[Any]) -> Restored | None:
        """The state to go on from, with the workload's own put back; None when there is none.
        Raises ConfigError when it is of another run, DataError when it cannot be used."""
        found = self._newest()
        if found is None:
            return None
        for text in found.skipped:
            self._say("checkpoint-skipped", text)
        template = algorithm.init(self._workload.initial(self._spec.recipe.run.seed), self._view)
        try:
            state, training = found.value["state"], found.value["training"]
            require_fit(state, template, self._view.layout)
            round = algorithm.round(state)
            self._workload.restore(_arrays(training))
        except (UsageError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"checkpoint {found.path} cannot be used: {error}") from None
        self._last = round
        self._writer.goes_on_from(round)
        return Restored(state, round)

    def ready(self) -> None:
        """Before a round is called finished: the one before it is on the disk, as far as
        `checkpoint.slack_s` asks for it."""
        self._writer.ready()

    def offer(self, state: Any, round: Round) -> None:
        """After a round: `state`, in which `round` comes next, is kept if it is its turn."""
        if self._every and round - self._last >= self._every:
            self._last = round
            if 4 * self._view.layout.size > SPOOL_BYTES:
                # The state before is as large as the model: it goes before there is another one.
                self._writer.settle(SETTLE_S)
            value = {"state": state, "training": dict(self._workload.snapshot())}
            self._writer.offer(round, value, boot=self._view.boot, tensors=self._view.layout.plain())

    def close(self, patience_s: float = CLOSE_S) -> None:
        """The last one that was offered is written, if that takes no longer."""
        self._writer.close(patience_s)

    def make_room(self) -> bool:
        """Make room for something more important on a full disk: only the newest checkpoint stays.
        Whether others went."""
        return self._store.make_room()

    def give_way(self, round: Round, needed_bytes: int) -> bool:
        """Make room for the model of `round` on a full disk: the newest checkpoint goes, too, if it
        is of an earlier round and leaves so much room. After `close`. Whether it went."""
        durable = self._writer.durable
        sizes = [file.stat().st_size for file in Path(self._store.folder).glob("*.ckpt")]
        if not sizes or durable is None or durable >= round or sum(sizes) < needed_bytes:
            return False
        self._store.clear()
        return True

    def _newest(self) -> Found | None:
        """An earlier process that is just ending is waited for."""
        until = time.monotonic() + LOCKED_S
        while True:
            try:
                return self._store.load(Outside.of(self._view))
            except HostError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.1)

    def _say(self, event: str, text: str) -> None:
        try:
            self._sink.event(self._spec.name, event, text)
        except EdgegossipError:  # nobody listens any more, and the board is about to find out
            pass


def _arrays(training: Any) -> Mapping[str, Any]:
    if not isinstance(training, dict) or not all(isinstance(name, str) for name in training):
        raise UsageError("what it holds of the training is no table")
    return training
