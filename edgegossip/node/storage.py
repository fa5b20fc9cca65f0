"""What a board leaves on its disk: checkpoints, so that another process can go on for it, and its
trained model.

A model's file has what travelled and what stayed on the board, by the names of its `state_dict`.
What was trained for hours is not thrown away for want of room: first checkpoints give way that are
older than the model, then the board waits for somebody to free space, and says so.

Imported when training begins: a board that waits for its peers has no use for it yet.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import recipe as recipes
from edgegossip.checkpoint.files import OS_FILES, Files
from edgegossip.checkpoint.registry import RunContext, check_structure
from edgegossip.checkpoint.store import Found, Store
from edgegossip.checkpoint.writer import Writer
from edgegossip.gossip.base import GossipAlgorithm, NodeView
from edgegossip.layout import Layout
from edgegossip.memory import SPOOL_BYTES
from edgegossip.modelfile import best_files, write_model
from edgegossip.node.spec import NodeSpec
from edgegossip.recipe import Recipe
from edgegossip.telemetry.records import Sink
from edgegossip.threads import THREADS, Threads
from edgegossip.training.base import Workload
from edgegossip.types import DataError, EdgegossipError, HostError, Metrics, NodeId, Round, UsageError, Vec, better_of
from edgegossip.version import VERSION

FLUSH_S = 30.0  # how long a round waits for the last checkpoint of a large model
MOST_BEST = 10  # models of a gossip board's best evaluations
LOCKED_S = 5.0  # how long an earlier process of this board may take to end
PATIENCE_S = 3600.0  # for room for the model
AGAIN_S = 5.0  # between two tries, each of which is told
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Restored:
    """Holds what a board's last checkpoint has of it."""

    state: Any  # the algorithm's
    round: Round  # to play next


class Checkpointer:
    """Keeps the checkpoints of one board in one run. Everything but the writing happens on the
    caller's thread."""

    def __init__(
        self,
        spec: NodeSpec,
        view: NodeView,
        workload: Workload,
        folder: Path,
        sink: Sink,
        files: Files = OS_FILES,
        threads: Threads = THREADS,
    ) -> None:
        self._spec, self._view, self._workload, self._sink, self._threads = spec, view, workload, sink, threads
        section = spec.recipe.checkpoint
        self._every, self._last = section.every, 0
        identity = {
            "board": spec.name,
            "boards": spec.members,
            "model": f"{view.layout.hash:016x}",
            "recipe": recipes.run_id(spec.recipe),
            "run": spec.run_id,
        }
        self._store = Store(folder, identity, keep=section.keep, files=files)
        daily_bytes = section.daily_bytes
        self._writer = Writer(self._store, self._say, section.slack_s, daily_bytes=daily_bytes, threads=threads)

    def load(self, algorithm: GossipAlgorithm[Any]) -> Restored | None:
        """Return the state to go on from, with the workload's own put back; None when there is
        none. Raises ConfigError when it is of another run, DataError when it cannot be used."""
        found = self._newest()
        if found is None:
            return None
        for text in found.skipped:
            self._say("checkpoint-skipped", text)
        template = algorithm.init(self._workload.initial(self._spec.recipe.run.seed), self._view)
        try:
            state, training = found.value["state"], found.value["training"]
            check_structure(state, template, self._view.layout)
            round = algorithm.round(state)
            if not isinstance(training, dict) or not all(isinstance(name, str) for name in training):
                raise UsageError("what it holds of the training is no table")
            self._workload.restore(training)
        except (UsageError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"checkpoint {found.path} cannot be used: {error}") from None
        self._last = round
        self._writer.resume_from(round)
        return Restored(state, round)

    def ready(self) -> None:
        """Wait, before a round is called finished, until the one before it is on the disk, as far
        as `checkpoint.slack_s` asks for it."""
        self._writer.ready()

    def offer(self, state: Any, round: Round) -> None:
        """Keep `state`, in which `round` comes next, if it is its turn."""
        if self._every and round - self._last >= self._every:
            self._last = round
            if 4 * self._view.layout.size > SPOOL_BYTES:
                # The state before is as large as the model: it goes before there is another one.
                self._writer.flush(FLUSH_S)
            value = {"state": state, "training": dict(self._workload.snapshot())}
            self._writer.offer(round, value, boot=self._view.boot, tensors=self._view.layout.plain())

    def close(self, patience_s: float) -> None:
        """Write the last one that was offered, if that takes no longer."""
        self._writer.close(patience_s)

    def make_room(self) -> bool:
        """Make room on a full disk: only the newest checkpoint stays. Return whether others
        went."""
        return self._store.make_room()

    def make_room_for_model(self, round: Round, needed_bytes: int) -> bool:
        """Remove the newest checkpoint, too, for the model of `round`, if it is of an earlier round
        and leaves so much room. After `close`. Return whether it went."""
        durable = self._writer.durable
        sizes = [file.stat().st_size for file in Path(self._store.folder).glob("*.ckpt")]
        if not sizes or durable is None or durable >= round or sum(sizes) < needed_bytes:
            return False
        self._store.clear()
        return True

    def _newest(self) -> Found | None:
        """Return the newest checkpoint. An earlier process that is just ending is waited for."""
        until = self._threads.now() + LOCKED_S
        while True:
            try:
                return self._store.load(RunContext.of(self._view))
            except HostError:
                if self._threads.now() >= until:
                    raise
                self._threads.sleep(0.1)

    def _say(self, event: str, text: str) -> None:
        with suppress(EdgegossipError):  # nobody listens any more, and the board is about to find out
            self._sink.event(self._spec.name, event, text)


# -- the model


class BestModels:
    """Keeps the models of the best evaluations of one board, or of a coordinator, a file each. Of a
    gossip run they are some: which round was the best of all boards is seen at its end."""

    def __init__(self, folder: Path, name: NodeId, recipe: Recipe, sink: Sink, most: int = MOST_BEST) -> None:
        """`folder`: best/ of the run folder; models that an earlier process left there count."""
        self._folder, self._name, self._recipe, self._sink, self._most = folder, name, recipe, sink, most
        self._merits = {file.round: file.merit for file in best_files(folder) if file.board == name}
        self._told = False

    def offer(
        self, found: Metrics, round: Round, arrays: Callable[[], Mapping[str, NDArray[Any]]], travels: int
    ) -> None:
        """Keep the model after so many rounds, if it is one of the best by what was `found` of
        it."""
        better, (name, _) = self._recipe.evaluation.better, found.headline or ("loss", 0.0)
        if better_of(name, better) is None:
            self._say_once(f"nobody knows whether a higher {name} is better: say evaluation.better = higher, or lower")
            return
        merit = found.merit(better)
        if merit is None:
            return  # no number: this evaluation was none of the best
        if len(self._merits) < self._most or merit > min(self._merits.values()):
            self.keep(merit, round, arrays, travels)

    def keep(self, merit: float, round: Round, arrays: Callable[[], Mapping[str, NDArray[Any]]], travels: int) -> None:
        """Keep the model after so many rounds, in place of the worst where there are enough. What
        cannot be kept is told, and costs nothing else."""
        about = {**about_model(self._name, round, travels), "merit": repr(merit)}
        try:
            save_model(self._path(round), arrays(), about)
        except HostError as error:
            self._say_once(str(error))
            return
        self._merits[round] = merit
        if len(self._merits) > self._most:
            worst = min(self._merits, key=lambda kept: (self._merits[kept], -kept))
            del self._merits[worst]
            self._path(worst).unlink(missing_ok=True)

    def _path(self, round: Round) -> Path:
        return self._folder / f"{self._name}.{round}.{self._recipe.checkpoint.format}"

    def _say_once(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._sink.event(self._name, "notice", f"checkpoint.best keeps no model: {why}")


class DiskFull(HostError):
    """Says that there is no room for a file."""


def save_model(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> None:
    """Write a model, see `modelfile.write_model`. Raises HostError, DiskFull when that is why."""
    try:
        write_model(path, arrays, about)
    except OSError as error:
        kind = DiskFull if error.errno in _FULL else HostError
        raise kind(f"cannot save the model to {path}: {error.strerror}") from None


def about_model(board: NodeId, round: Round, travels: int) -> Mapping[str, str]:
    """Return what a run says in a model's file: whose it is, after how many rounds, and how many of
    its tensors, counted from the first, travel."""
    return {"board": board, "round": str(round), "travels": str(travels), "written_by": f"edgegossip {VERSION}"}


def vector_of(arrays: Mapping[str, NDArray[Any]], layout: Layout) -> Vec:
    """Return the vector of what travels, from arrays by the names of the `state_dict`, such as a
    `ModelFile`. Raises KeyError for a tensor that is not there, UsageError for one of another
    shape."""
    return layout.flatten({t.name: _real(arrays[t.name], len(t.shape)) for t in layout.tensors})


def _real(array: NDArray[Any], dimensions: int) -> NDArray[Any]:
    """Return a complex tensor as it travels: its real and imaginary parts in a last dimension."""
    if array.dtype.kind != "c" or array.ndim + 1 != dimensions:
        return array
    return np.stack([array.real, array.imag], -1)


def save_final(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    about: Mapping[str, str],
    checkpointer: Checkpointer | None,
    sink: Sink,
) -> None:
    """Write a board's model; `about` as of `about_model`. The newest checkpoint stays as long as
    the model is not safe and it may be needed: it goes when it is of an earlier round and larger
    than the model. Raises HostError, on a full disk after PATIENCE_S."""
    round = int(about["round"])
    # The file at most: the values, and heads of each tensor in it and in the archive.
    most_bytes = sum(array.nbytes for array in arrays.values()) + 1024 * (len(arrays) + 4)
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return save_model(path, arrays, about)
        except DiskFull as error:
            if checkpointer is not None and (
                checkpointer.make_room() or checkpointer.make_room_for_model(round, most_bytes)
            ):
                continue
            if time.monotonic() >= until_s:
                raise
            text = f"{error}: free some space there; this board holds its model and tries again every {AGAIN_S:.0f} s"
            sink.event(about["board"], "waiting", text)
            time.sleep(AGAIN_S)
