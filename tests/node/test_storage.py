"""A saved model comes back bit for bit; a bad file is refused in one sentence; nothing half-written
stays. On a full disk older checkpoints give way, then the board waits and says so."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgegossip import modelfile
from edgegossip import recipe as recipes
from edgegossip.checkpoint.store import Store
from edgegossip.layout import Layout, TensorSpec
from edgegossip.modelfile import ModelFile, best_files
from edgegossip.node import storage
from edgegossip.node.spec import NodeSpec, make_view
from edgegossip.node.storage import BestModels, Checkpointer, DiskFull, about_model, save_final, save_model, vector_of
from edgegossip.recipe import Recipe
from edgegossip.types import DataError, HostError, Metrics, UsageError
from tests.node.fakes import ListSink, Quadratic

LAYOUT = Layout.of([TensorSpec("w", (100,))])
MODEL = np.arange(100, dtype=np.float32)
ABOUT = about_model("a", 9, 1)
SEVERAL = Layout.of([TensorSpec("w", (2, 3)), TensorSpec("scalar", ()), TensorSpec("bn.mean", (2,), trainable=False)])


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], bool]]:
    """A disk that is full while the last of these says so."""
    until: list[Callable[[], bool]] = [lambda: True]
    real = modelfile.replacing

    def replacing(path: Path) -> object:
        if until[-1]():
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path)

    monkeypatch.setattr(modelfile, "replacing", replacing)
    monkeypatch.setattr(storage, "AGAIN_S", 0.01)
    return until


def checkpointer_at(folder: Path, round: int, rows: int) -> Checkpointer:
    """Whose newest checkpoint is of this round, with so many values."""
    store = Store(folder, {})
    for k in (round - 1, round):
        store.save({"x": np.zeros(rows, np.float32)}, round=k)
    store.close()
    spec, workload = NodeSpec(Recipe(), "a", ("a", "b"), bytes(16)), Quadratic(np.zeros(6, np.float32))
    checkpointer = Checkpointer(spec, make_view(spec, workload.layout), workload, folder, ListSink())
    checkpointer._writer.resume_from(round)
    return checkpointer


def best(folder: Path, sink: ListSink | None = None, better: str = "auto", name: str = "a") -> BestModels:
    recipe = recipes.from_dict({"evaluation": {"better": better}})
    return BestModels(folder, name, recipe, sink or ListSink(), most=2)


def kept(folder: Path) -> dict[int, float]:
    return {file.round: float(ModelFile(file.path)["w"][0]) for file in best_files(folder)}


def test_the_best_models_stay_and_another_process_knows_them(tmp_path: Path) -> None:
    models = best(tmp_path)
    for round, loss in enumerate((0.5, 0.4, 0.6, 0.45)):
        models.offer(Metrics(loss, 10), round, lambda loss=loss: {"w": MODEL * 0 + loss}, 1)  # type: ignore[misc]
    assert kept(tmp_path) == {1: pytest.approx(0.4), 3: pytest.approx(0.45)}
    best(tmp_path).offer(Metrics(0.42, 10), 9, lambda: {"w": MODEL * 0 + 0.42}, 1)
    assert kept(tmp_path) == {1: pytest.approx(0.4), 9: pytest.approx(0.42)}
    best(tmp_path, name="b").offer(Metrics(0.9, 10), 5, lambda: {"w": MODEL * 0 + 0.9}, 1)  # b has its own
    (tmp_path / "torn.npz").write_bytes(b"PK")
    assert kept(tmp_path).keys() == {1, 5, 9}


def test_an_evaluation_without_the_score_that_counts_is_none_of_the_best(tmp_path: Path) -> None:
    """Its loss, greater than any accuracy by its sign or not, says nothing of that."""
    sink = ListSink()
    models = best(tmp_path, sink)
    unknown, lossless = {"loss": -9.0, "accuracy": float("nan"), "bleu": 0.3}, {"accuracy": float("nan")}
    for round, figures in enumerate((unknown, {"accuracy": 0.6}, unknown, lossless, {"accuracy": 0.7})):
        models.offer(Metrics.known(figures, 10)[0], round, lambda: {"w": MODEL}, 1)
    assert kept(tmp_path).keys() == {1, 4} and not sink.events


def test_a_model_that_cannot_be_ranked_or_kept_is_told_once(tmp_path: Path, full: list[Callable[[], bool]]) -> None:
    sink = ListSink()
    models = best(tmp_path / "best", sink)
    for round in range(2):
        models.offer(Metrics(0.5, 10, {"bleu": 0.3}), round, lambda: {"w": MODEL}, 1)
    ((_, _, text),) = sink.events
    assert "whether a higher bleu is better" in text
    sink = ListSink()
    models = best(tmp_path / "best", sink, "higher")
    for round in range(2):
        models.offer(Metrics(0.5, 10, {"bleu": 0.3}), round, lambda: {"w": MODEL}, 1)
    ((_, _, text),) = sink.events
    assert "keeps no model" in text and "No space left" in text and not best_files(tmp_path / "best")


@pytest.mark.parametrize(
    ("kept_round", "values", "goes"), [(1, 10_000, True), (9, 10_000, False), (1, 100, False)], ids=str
)
def test_a_checkpoint_gives_way_when_it_is_older_than_the_model_and_larger(
    tmp_path: Path, full: list[Callable[[], bool]], kept_round: int, values: int, goes: bool
) -> None:
    checkpointer, sink = checkpointer_at(tmp_path / "a", kept_round, values), ListSink()
    tries = iter(range(6))
    full.append(lambda: len(list((tmp_path / "a").iterdir())) > (0 if goes else 1) or (not goes and next(tries) < 5))
    save_final(tmp_path / "a.npz", LAYOUT.views(MODEL), ABOUT, checkpointer, sink)
    assert np.array_equal(vector_of(ModelFile(tmp_path / "a.npz"), LAYOUT), MODEL)
    assert len(list((tmp_path / "a").iterdir())) == (0 if goes else 1)
    assert sink.names() == ([] if goes else ["waiting"] * 5)


def test_a_disk_that_stays_full_is_waited_for_so_long_only(
    tmp_path: Path, full: list[Callable[[], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PATIENCE_S", 0.05)
    sink = ListSink()
    with pytest.raises(DiskFull, match="No space left"):
        save_final(tmp_path / "a.npz", LAYOUT.views(MODEL), ABOUT, None, sink)
    assert "free some space there" in sink.events[0][2]


def test_a_disk_that_is_broken_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot save the model"):
        save_final(tmp_path / "file" / "a.npz", LAYOUT.views(MODEL), ABOUT, None, ListSink())


def test_round_trip(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(SEVERAL.size).astype(np.float32)
    save_model(tmp_path / "deep" / "m.npz", SEVERAL.views(x), {})
    assert vector_of(ModelFile(tmp_path / "deep" / "m.npz"), SEVERAL).tobytes() == x.tobytes()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["m.npz"]


def test_other_model_truncated_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    save_model(path, SEVERAL.views(np.zeros(SEVERAL.size, np.float32)), {})
    with pytest.raises(UsageError, match="w"):
        vector_of(ModelFile(path), Layout.of([TensorSpec("w", (9,))]))
    with pytest.raises(KeyError, match="v"):
        vector_of(ModelFile(path), Layout.of([TensorSpec("v", (9,))]))
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot read a model"):
        ModelFile(path)
    with pytest.raises(DataError, match="cannot read a model"):
        ModelFile(tmp_path / "none.npz")


def test_failure_leaves_the_old_model_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    save_model(path, SEVERAL.views(np.ones(SEVERAL.size, np.float32)), {})
    with pytest.raises(UsageError):
        save_model(path, {"w": np.array(["text"])}, {})
    assert vector_of(ModelFile(path), SEVERAL).sum() == SEVERAL.size
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]
