"""The models that a run has left: in the files of boards that finished, in checkpoints of those
that did not, and averaged over the boards that finished, or over all where none has.

What travels is averaged. Of what stays on the boards the average has what is the same everywhere (a
frozen base) and counters, which are whole numbers; what is a board's own, such as a personal head,
is in that board's model only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import recipe as recipes
from edgegossip.checkpoint.files import OS_FILES
from edgegossip.checkpoint.format import Stored
from edgegossip.checkpoint.registry import RunContext
from edgegossip.choices import did_you_mean
from edgegossip.engine.server_records import Progress
from edgegossip.layout import Layout, TensorSpec
from edgegossip.modelfile import BEST, SUFFIXES, BestFile, ModelFile, best_files
from edgegossip.node.spec import NodeSpec, make_algorithm, make_view
from edgegossip.recipe import Recipe
from edgegossip.telemetry.run_folder import read_run
from edgegossip.training.base import KEPT
from edgegossip.types import ConfigError, DataError, EdgegossipError, NodeId, Round, Vec

AVERAGED, COORDINATOR = "averaged", "coordinator"
_COORDINATORS_FILE = "model"
_SLICE_VALUES = 1 << 20
_STATISTICS = ("running_mean", "running_var")
_STAYS = ".stays"  # of a server run: what of the model is a board's own


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Is one model of a run, as arrays by the names of its `state_dict`."""

    board: str  # a board's name, "averaged" or "coordinator"
    rounds: Mapping[NodeId, Round]  # how many rounds it has had, by the board that it is from
    arrays: Mapping[str, NDArray[Any]]
    travels: tuple[str, ...]  # names of what boards exchanged
    left_out: tuple[str, ...] = ()  # what each board has of its own, and the average has not
    length: float = 0.0  # Euclidean norm of an average
    away: Mapping[NodeId, float] = field(default_factory=dict)  # how far boards' own models are from it, in lengths
    without: tuple[NodeId, ...] = ()  # boards that have a model and did not finish: an average of the others
    source: Path | None = None  # the one file that it is from

    def adapter(self, out: Path) -> FoundModel:
        """Return what travelled alone, for the file `out`. Raises ConfigError where that is to be a
        program, which needs all values."""
        if out.suffix not in SUFFIXES:
            raise ConfigError(f"{out}: a program needs the whole model; write an adapter to {' or '.join(SUFFIXES)}")
        return replace(self, arrays={name: self.arrays[name] for name in self.travels}, left_out=())

    @property
    def about(self) -> dict[str, str]:
        """What the model's file says of it."""
        rounds = sorted(set(self.rounds.values()))
        text = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return {"board": self.board, "round": text, "travels": str(len(self.travels))}


class RunModels:
    """Finds the models of a run folder, or of the folders of several boards of one run.

    Raises DataError when a folder is none, ConfigError when they are of different runs.

    Example:
        model = RunModels([Path("runs/20260102-030405-quickstart-gossip")]).model("board-0")
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [read_run(folder) for folder in folders]
        first = self._folders[0]
        if first.recipe_toml is None:
            raise DataError(f"{first.path} has no recipe.toml, which says what was trained")
        self.recipe: Recipe = recipes.load(str(first.path / "recipe.toml"))
        ids = {(run.run or {}).get("run_id") for run in self._folders}
        if len(ids) > 1:
            raise ConfigError("the folders are of different runs; name those of one run, or one folder")

    @cached_property
    def boards(self) -> tuple[NodeId, ...]:
        """Names of the boards that have a model or a checkpoint here, sorted; of a server run
        all of its boards, whose model is the coordinator's."""
        names = {self._name(file) for file in self._files()}
        if self._server:
            names |= {str(name) for folder in self._folders for name in (folder.run or {}).get("members", ())}
        names |= {folder.name for folder in self._kept_folders() if self._rounds_in(folder)}
        return tuple(sorted(names - {COORDINATOR} - ({_COORDINATORS_FILE} if self._server else set())))

    @cached_property
    def averaged(self) -> tuple[NodeId, ...]:
        """The boards that an average is over: those that finished; where none has, all of them."""
        finished = {self._name(file) for file in self._files()}
        return tuple(name for name in self.boards if name in finished) or self.boards

    @property
    def choices(self) -> tuple[str, ...]:
        """What `model` may be asked for; the first is what it takes by default."""
        if self._server:
            return (COORDINATOR, *self.boards)
        return (AVERAGED, *self.boards)

    @cached_property
    def best_round(self) -> Round:
        """How many rounds the best model has had: of those that every board of an average has
        kept, the one whose evaluations were the best in the mean. Raises ConfigError where there is
        none."""
        files = [file for file in self._best if self._server or file.board in self.averaged]
        merits: dict[Round, dict[NodeId, float]] = {}
        for file in files:
            merits.setdefault(file.round, {})[file.board] = file.merit
        boards = {COORDINATOR} if self._server else set(self.averaged)
        means = {n: sum(by.values()) / len(by) for n, by in merits.items() if by.keys() == boards}
        if not means:
            kept = (
                "each board kept others: name a --round" if files else "it was to be kept with checkpoint.best = true"
            )
            raise ConfigError(f"{self._folders[0].path} has no best model of all boards: {kept}")
        return max(means, key=lambda n: (means[n], -n))

    def drop_all_but_best(self) -> None:
        """Remove the models of best/ that are not of the best round, once a run has ended."""
        for file in self._best:
            if file.round != self.best_round:
                file.path.unlink(missing_ok=True)

    def model(self, board: str | None = None, round: Round | None = None) -> FoundModel:
        """Return one model. `board`: a name, "averaged" (the default of gossip) or "coordinator"
        (that of server runs). `round`: how many rounds it has had; by default the newest. Raises
        ConfigError for a board or a round that is not here, DataError when nothing is."""
        choices = self.choices
        board = board or choices[0]
        if board not in choices:
            raise ConfigError(f"no board {board}: this run has {', '.join(choices)}{did_you_mean(board, choices)}")
        if self._server:
            return self._of_server(board, round)
        if not self.boards:
            raise DataError(f"{self._folders[0].path} has no model yet: no board has ended, or kept a checkpoint")
        if board != AVERAGED:
            source = self._source(board, round)
            arrays = dict(source.all())
            return FoundModel(board, {board: source.round}, arrays, source.travels, source=source.path)
        without = tuple(name for name in self.boards if name not in self.averaged)
        return replace(self.average(self.averaged, round), without=without)

    # -- averages ----------------------------------------------------------------------------------

    def average(self, boards: Sequence[NodeId], round: Round | None = None) -> FoundModel:
        """Return the average of these boards' models, tensor by tensor, so that no more than it and
        one tensor of each board is in memory where boards have files.

        Statistics of batch norm are averaged, and left out of lengths, for they are in the units of
        what is measured. Raises ConfigError for a round that is not here, DataError where two
        models are not of one kind."""
        sources = {name: self._source(name, round) for name in boards}
        first = next(iter(sources.values()))
        for name, source in sources.items():
            if source.travels != first.travels:
                raise DataError(f"the models of {next(iter(sources))} and {name} have different tensors")
        arrays: dict[str, NDArray[Any]] = {}
        squares, norm = dict.fromkeys(sources, 0.0), 0.0
        for name in first.travels:
            own = [source.read(name) for source in sources.values()]
            if any(array.shape != own[0].shape for array in own):
                raise DataError(f"the boards' models differ in the shape of {name}")
            arrays[name], square, away = _mean(own)
            if name.rpartition(".")[2] in _STATISTICS:
                continue
            norm += square
            for board, distance in zip(sources, away, strict=True):
                squares[board] += distance
        arrays |= self._shared(list(sources.values()))
        left_out = tuple(name for name in first.stays if name not in arrays)
        apart = {board: math.sqrt(s / norm) if norm else 0.0 for board, s in squares.items()}
        rounds = {board: source.round for board, source in sources.items()}
        return FoundModel(AVERAGED, rounds, arrays, first.travels, left_out, math.sqrt(norm), apart)

    def _shared(self, sources: Sequence[_Source]) -> dict[str, NDArray[Any]]:
        """What stays on the boards and is of all of them."""
        shared = {}
        for name in sources[0].stays if sources else ():
            first = sources[0].read(name)
            others = (source.read(name) for source in sources[1:] if name in source.stays)
            if first.dtype.kind in "iub" or all(np.array_equal(first, other) for other in others):
                shared[name] = first
        return shared

    # -- where models are --------------------------------------------------------------------------

    @property
    def _server(self) -> bool:
        return self.recipe.run.mode == "server"

    def _files(self) -> list[Path]:
        found = [p for run in self._folders for p in sorted((run.path / "checkpoint").glob("*.*"))]
        return [path for path in found if path.suffix in SUFFIXES and path.is_file() and path.name[0] != "."]

    def _name(self, file: Path) -> str:
        return file.stem.removesuffix(_STAYS) if self._server else file.stem

    @cached_property
    def _best(self) -> list[BestFile]:
        return [file for run in self._folders for file in best_files(run.path / BEST)]

    def _best_of(self, board: NodeId) -> dict[Round, Path]:
        return {file.round: file.path for file in self._best if file.board == board}

    def _kept_folders(self) -> list[Path]:
        return [p for run in self._folders for p in sorted((run.path / "checkpoint").glob("*")) if p.is_dir()]

    def _kept(self, name: str) -> dict[Round, Path]:
        """Checkpoints of a board or the coordinator, by the round that comes next."""
        folders = (folder for folder in self._kept_folders() if folder.name == name)
        return {round: path for folder in folders for round, path in self._rounds_in(folder).items()}

    def _rounds_in(self, folder: Path) -> dict[Round, Path]:
        """Checkpoints that are whole, by the round that comes next, the newest of each."""
        found = {}
        for path in sorted(folder.glob("*.ckpt")):
            try:
                file = OS_FILES.open(str(path))
                try:
                    found[int(Stored(file).meta["round"])] = path
                finally:
                    file.close()
            except (DataError, OSError, KeyError, TypeError, ValueError):
                continue  # torn, or removed while we looked
        return found

    def _source(self, board: NodeId, round: Round | None) -> _Source:
        """The model of one gossip board. Raises ConfigError when the round is not here."""
        files, kept = [path for path in self._files() if path.stem == board], self._kept(board)
        final = _FileSource(ModelFile(files[-1]), self.recipe.run.rounds) if files else None
        if final is not None and round in (None, final.round):
            return final
        if round is None and kept:
            round = max(kept)
        if round in (best := self._best_of(board)):
            return _FileSource(ModelFile(best[round]), round)
        if round not in kept:
            rounds = sorted({*kept, *best, *([final.round] if final else [])})
            raise ConfigError(f"round {round} of {board} is not kept; rounds that are: {', '.join(map(str, rounds))}")
        return self._restored(board, kept[round], round)

    def _restored(self, board: NodeId, path: Path, round: Round) -> _VectorSource:
        meta, value = self._opened(path, board)
        layout = _layout_of(meta)
        x = make_algorithm(self.recipe).model(value["state"])
        return _VectorSource(round, layout.views(x), _what_stays(value.get("training")), path)

    def _opened(self, path: Path, board: NodeId) -> tuple[Mapping[str, Any], Any]:
        """Description and value of a checkpoint. Raises DataError."""
        try:
            file = OS_FILES.open(str(path))
            try:
                stored = Stored(file)
                meta = stored.meta
                layout = _layout_of(meta)
                outside = RunContext(layout=layout)
                if not self._server:
                    members, run_id = tuple(meta["boards"]), bytes(meta["run"])
                    outside = RunContext.of(make_view(NodeSpec(self.recipe, board, members, run_id), layout))
                return meta, stored.value(outside)
            finally:
                file.close()
        except (OSError, KeyError, TypeError, ValueError, EdgegossipError) as error:
            raise DataError(f"checkpoint {path} cannot be used: {error}") from None

    def _of_server(self, board: str, round: Round | None) -> FoundModel:
        """The coordinator's values; with what is the board's own, or of all boards."""
        files = {path.stem: path for path in self._files()}
        coordinator = self._coordinator(files.get(_COORDINATORS_FILE), round)
        stays = {n.removesuffix(_STAYS): ModelFile(p) for n, p in files.items() if n.endswith(_STAYS)}
        own = {name: _FileSource(file, coordinator.round) for name, file in stays.items()}
        rounds, arrays = {board: coordinator.round}, dict(coordinator.all())
        if board != COORDINATOR:
            more = dict(own[board].all()) if board in own else self._kept_of(board)
            some_stays = own or self.recipe.model.keep or self.recipe.model.share
            if not (more or self._kept(board)) and (some_stays or any(map(self._kept_of, self.boards))):
                raise ConfigError(f"what stays on {board} is not here, and its model is not whole without")
            return FoundModel(board, rounds, {**arrays, **more}, coordinator.travels, source=coordinator.path)
        shared = self._shared(list(own.values()))
        left_out = {name for source in own.values() for name in source.stays} - shared.keys()
        return FoundModel(
            board,
            rounds,
            {**arrays, **shared},
            coordinator.travels,
            tuple(sorted(left_out)),
            source=coordinator.path,
        )

    def _kept_of(self, board: NodeId) -> dict[str, NDArray[Any]]:
        """What a board of a server run that was stopped had for itself at its last checkpoint."""
        kept = self._kept(board)
        return _what_stays(self._opened(kept[max(kept)], board)[1].get("training")) if kept else {}

    def _coordinator(self, final: Path | None, round: Round | None) -> _Source:
        rounds = self.recipe.run.rounds
        if final is not None:
            source = _FileSource(ModelFile(final), rounds)
            if round in (None, rounds := source.round):
                return source
        kept = self._kept(COORDINATOR)
        if round is None and kept:
            round = max(kept)
        if round is None:
            raise DataError(f"{self._folders[0].path} has no model yet: the coordinator has kept none")
        if round in (best := self._best_of(COORDINATOR)):
            return _FileSource(ModelFile(best[round]), round)
        if round not in kept:
            there = ", ".join(map(str, sorted({*kept, *best, *([rounds] if final else [])}))) or "none"
            raise ConfigError(f"round {round} of the coordinator is not kept; rounds that are: {there}")
        meta, value = self._opened(kept[round], COORDINATOR)
        if not isinstance(value, Progress):
            raise DataError(f"{kept[round]} holds no progress of a coordinator")
        return _VectorSource(round, _layout_of(meta).views(value.model), {}, kept[round])


class _Source(ABC):
    """One board's model."""

    round: Round
    travels: tuple[str, ...]
    stays: tuple[str, ...]
    path: Path

    @abstractmethod
    def read(self, name: str) -> NDArray[Any]:
        """Return one of its tensors."""

    def all(self) -> Mapping[str, NDArray[Any]]:
        return {name: self.read(name) for name in (*self.travels, *self.stays)}


class _FileSource(_Source):
    def __init__(self, file: ModelFile, rounds: Round) -> None:
        """`rounds`: of the run, for files that do not say."""
        text = file.about.get("round", "")
        self.round = int(text) if text.isdecimal() else rounds
        self.travels = file.travels
        self.stays = tuple(file)[len(self.travels) :]
        self._file, self.path = file, file.path

    def read(self, name: str) -> NDArray[Any]:
        return self._file[name]


class _VectorSource(_Source):
    def __init__(self, round: Round, arrays: Mapping[str, Vec], stays: Mapping[str, NDArray[Any]], path: Path) -> None:
        self.round, self.arrays, self._stays, self.path = round, arrays, stays, path
        self.travels, self.stays = tuple(arrays), tuple(stays)

    def read(self, name: str) -> NDArray[Any]:
        return self.arrays[name] if name in self.arrays else self._stays[name]


def _layout_of(meta: Mapping[str, Any]) -> Layout:
    """The layout that a checkpoint names."""
    return Layout.of(TensorSpec(name, tuple(shape), trainable) for name, shape, trainable in meta["tensors"])


def _what_stays(kept: Any) -> dict[str, NDArray[Any]]:
    """What of the model a board's training had kept for itself: arrays named KEPT + NAME of a
    recipe's training, or what a script's `join` kept, in torch's format."""
    if not isinstance(kept, dict):
        return {}
    found = {name.removeprefix(KEPT): a for name, a in kept.items() if name.startswith(KEPT)}
    if "script" in kept:
        from edgegossip.training.serialization import unpack
        from edgegossip.training.vector import plain_array

        rest = unpack(kept["script"]).get("rest", {})
        found |= {name: plain_array(tensor) for name, tensor in rest.items()}
    return found


def _mean(own: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], float, list[float]]:
    """Return the mean of arrays, summed in float64 slice by slice, its squared norm, and each one's
    squared distance to it."""
    flat = [array.reshape(-1) for array in own]
    mean = np.empty_like(flat[0])
    wide_type = np.complex128 if mean.dtype.kind == "c" else np.float64
    norm, away = 0.0, [0.0] * len(own)
    for start in range(0, mean.size, _SLICE_VALUES):
        part = slice(start, start + _SLICE_VALUES)
        wide = np.mean([array[part] for array in flat], 0, dtype=wide_type)
        mean[part] = wide
        norm += float(np.vdot(wide, wide).real)
        for k, array in enumerate(flat):
            apart = array[part] - wide
            away[k] += float(np.vdot(apart, apart).real)
    return mean.reshape(own[0].shape), norm, away
