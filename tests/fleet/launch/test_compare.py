"""How far apart the boards of a run are, as the verdict is told at its end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.gossip import LocalRun, compare_models
from edgegossip.modelfile import write_model
from edgegossip.node.storage import about_model
from edgegossip.recipe import Recipe
from edgegossip.telemetry.run_folder import RunFolder, read_run
from tests.training.fakes import recipe

BOARDS = ("board-0", "board-1")


def run_of(tmp_path: Path, chosen: Recipe, *models: dict[str, np.ndarray]) -> LocalRun:
    folder = RunFolder.create(tmp_path, "run", recipes.to_toml(chosen), {})
    for name, arrays in zip(BOARDS, models, strict=True):
        write_model(folder.checkpoint_dir / f"{name}.npz", arrays, about_model(name, 9, len(arrays)))
    return LocalRun(chosen, BOARDS, bytes(16), folder, folder)


def events(run: LocalRun, kind: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in read_run(run.folder.path).events() if event.name == kind]


def test_complex_tensors_count_and_statistics_do_not(tmp_path: Path) -> None:
    one, other = (
        {"phase": np.array([4.0 + sign * 1j], np.complex64), "norm.running_var": np.array([10.0 * sign], np.float32)}
        for sign in (1, -1)
    )
    run = run_of(tmp_path, recipe(run={"nodes": 2, "script": "train.py"}), one, other)
    compare_models(run, BOARDS)
    assert events(run, "compared") == [{"distance": pytest.approx(1.0), "length": pytest.approx(4.0)}] * 2


def test_models_of_different_kinds_are_not_compared(tmp_path: Path) -> None:
    one, other = ({name: np.ones(2, np.float32)} for name in ("a", "b"))
    run = run_of(tmp_path, recipe(run={"nodes": 2}), one, other)
    compare_models(run, BOARDS)
    assert not events(run, "compared")
