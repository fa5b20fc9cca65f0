"""The final model on a full disk: older checkpoints give way, then the board waits and says so."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgegossip import modelfile
from edgegossip.checkpoint.store import Store
from edgegossip.layout import Layout, TensorSpec
from edgegossip.node import final_model
from edgegossip.node.final_model import DiskFull, about_model, load_model
from edgegossip.node.keeper import Keeper
from edgegossip.node.spec import NodeSpec, make_view
from edgegossip.recipe import Recipe
from edgegossip.types import HostError
from tests.node.fakes import ListSink, Quadratic

LAYOUT = Layout.of([TensorSpec("w", (100,))])
MODEL = np.arange(100, dtype=np.float32)
ABOUT = about_model("a", 9, 1)


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
    monkeypatch.setattr(final_model, "AGAIN_S", 0.01)
    return until


def keeper_at(folder: Path, round: int, rows: int) -> Keeper:
    """Whose newest checkpoint is of this round, with so many values."""
    store = Store(folder, {})
    for k in (round - 1, round):
        store.save({"x": np.zeros(rows, np.float32)}, round=k)
    store.close()
    spec, workload = NodeSpec(Recipe(), "a", ("a", "b"), bytes(16)), Quadratic(np.zeros(6, np.float32))
    keeper = Keeper(spec, make_view(spec, workload.layout), workload, folder, ListSink())
    keeper._writer.goes_on_from(round)
    return keeper


@pytest.mark.parametrize(
    ("kept_round", "values", "goes"), [(1, 10_000, True), (9, 10_000, False), (1, 100, False)], ids=str
)
def test_a_checkpoint_gives_way_when_it_is_older_than_the_model_and_larger(
    tmp_path: Path, full: list[Callable[[], bool]], kept_round: int, values: int, goes: bool
) -> None:
    keeper, sink = keeper_at(tmp_path / "a", kept_round, values), ListSink()
    tries = iter(range(6))
    full.append(lambda: len(list((tmp_path / "a").iterdir())) > (0 if goes else 1) or (not goes and next(tries) < 5))
    final_model.save_final(tmp_path / "a.npz", LAYOUT.views(MODEL), ABOUT, keeper, sink)
    assert np.array_equal(load_model(tmp_path / "a.npz", LAYOUT), MODEL)
    assert len(list((tmp_path / "a").iterdir())) == (0 if goes else 1)
    assert sink.names() == ([] if goes else ["waiting"] * 5)


def test_a_disk_that_stays_full_is_waited_for_so_long_only(
    tmp_path: Path, full: list[Callable[[], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_model, "PATIENCE_S", 0.05)
    sink = ListSink()
    with pytest.raises(DiskFull, match="No space left"):
        final_model.save_final(tmp_path / "a.npz", LAYOUT.views(MODEL), ABOUT, None, sink)
    assert "free some space there" in sink.events[0][2]


def test_a_disk_that_is_broken_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot save the model"):
        final_model.save_final(tmp_path / "file" / "a.npz", LAYOUT.views(MODEL), ABOUT, None, ListSink())
