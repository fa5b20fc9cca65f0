"""`edgegossip export`: the QDQ twin, the file, and what onnxruntime makes of it."""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

from edgegossip import int8, training
from edgegossip import recipe as recipes
from edgegossip.cli.main import cli
from edgegossip.int8 import onnx_file, qdq
from edgegossip.node.storage import about_model, save_model
from edgegossip.recipe import ModelSection
from edgegossip.training import models
from edgegossip.training.data import Board
from edgegossip.types import UsageError
from tests.training.fakes import recipe

CNN = {"name": "cnn", "params": {"channels": [8, 16], "hidden": 32}}
SHAPE = (3, 16, 16)


def converted(name: str, **params) -> torch.nn.Module:
    torch.manual_seed(0)
    model = models.build(ModelSection(name=name, norm="range-evonorm", params=params), SHAPE, 10)
    return int8.convert(model).eval()


def error(x: np.ndarray, of: np.ndarray) -> float:
    return float(np.linalg.norm(x - of) / np.linalg.norm(of))


@pytest.mark.parametrize(("name", "params"), [("cnn", CNN["params"]), ("resnet8", {}), ("mlp", {"hidden": [32]})])
def test_the_twin_and_the_file_give_what_the_int8_model_gives(name, params, tmp_path: Path):
    model, x = converted(name, **params), torch.randn(40, *SHAPE)
    twin = qdq.qdq_model(model, [x[:20], x[20:]])
    with torch.no_grad():
        ours, theirs = model(x).numpy(), twin(x).numpy()
    assert error(theirs, ours) < 0.08
    size = onnx_file.write(twin, x[:3], tmp_path / "m.onnx")
    weights = sum(p.numel() for p in model.parameters())
    assert size == (tmp_path / "m.onnx").stat().st_size < 1.3 * weights + 60_000
    run = onnx_file.runner(tmp_path / "m.onnx")
    assert run is not None
    assert error(run(x), theirs) < 0.03
    np.testing.assert_allclose(run(x[:1]), run(x)[:1], rtol=1e-4, atol=1e-5)


def test_weights_in_the_file_are_the_int8_values_of_the_kernels(tmp_path: Path):
    model = converted("mlp", hidden=[8])
    onnx_file.write(qdq.qdq_model(model, [torch.randn(4, *SHAPE)]), torch.randn(2, *SHAPE), tmp_path / "m.onnx")
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    [first] = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][:1]
    weight = first.weight.detach().numpy()
    expected = np.rint(weight / (np.abs(weight).max(1, keepdims=True) / np.float32(127)))
    found = [values for values in kept.values() if values.dtype == np.int8 and values.shape == weight.shape]
    assert len(found) == 1
    np.testing.assert_array_equal(found[0], expected)


def test_ranges_span_all_samples():
    seen = qdq.TensorRange()
    seen.see(torch.tensor([[0.0, 2.0], [-1.0, 4.0]]))
    seen.see(torch.tensor([[-2.0, 0.0]]))
    assert (seen.low, seen.high) == pytest.approx((-2.0, 4.0), abs=0.02)
    scale, zero = seen.scale_and_zero()
    assert scale == pytest.approx(6 / 255, rel=0.02) and zero == round(-128 + 2.0 / scale)


def test_a_model_without_int8_layers_and_one_without_examples_are_refused():
    with pytest.raises(UsageError, match="no int8 layers"):
        qdq.qdq_model(torch.nn.Linear(2, 2), [torch.ones(1, 2)])
    with pytest.raises(UsageError, match="no examples"):
        qdq.qdq_model(int8.convert(torch.nn.Linear(2, 2)), [])


def run_folder(folder: Path, precision: str, rounds: int) -> Path:
    """A run folder with two boards' models, trained here."""
    chosen = recipe(model=CNN, training={"precision": precision, "batch_size": 16, "lr": 0.01, "local_steps": 20})
    board = training.build_workload(chosen, 0)
    x = board.initial(1)
    for round in range(rounds):
        x = x + board.local_update(x, round).delta
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipes.to_toml(chosen))
    for name in ("board-0", "board-1"):
        save_model(
            folder / "checkpoint" / f"{name}.npz", board.state(x), about_model(name, rounds, len(board.layout.tensors))
        )
    return folder


def export(*arguments: object) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(cli, ["model", "save", *map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("precision", ["int8", pytest.param("fp32", marks=pytest.mark.slow)])
def test_the_model_of_a_run_is_as_accurate_in_onnxruntime(precision: str, tmp_path: Path):
    run = run_folder(tmp_path / "run", precision, 12)
    said = export(run, "--board", "board-0", "-o", tmp_path / "m.onnx")
    assert said["model"].endswith("board-0.npz") and said["precision"] == precision and said["tested"] == 355
    assert said["accuracy"] > 0.9
    assert abs(said["onnx_accuracy"] - said["accuracy"]) <= (0.01 if precision == "int8" else 0.0)
    assert precision == "int8" or said["difference"] < 1e-4
    assert (said["size_bytes"] < 0.8 * said["fp32_bytes"]) == (precision == "int8")
    assert said["calibrated"] == (256 if precision == "int8" else 0)


@pytest.mark.parametrize(("board", "tested"), [("averaged", 10), ("board-07", 17)])
def test_a_model_is_tested_on_its_boards_own_data(board: str, tested: int, tmp_path: Path):
    own = {"name": "csv", "partition": "local", "dir": f"{tmp_path}/{{board}}", "params": {"target": "c"}}
    chosen = recipe(run={"nodes": 11}, data=own, model={"name": "mlp"})
    run = tmp_path / "run"
    (run / "checkpoint").mkdir(parents=True)
    (run / "recipe.toml").write_text(recipes.to_toml(chosen))
    for whose in (Board("board-00", 0), Board("board-07", 7)):
        (tmp_path / whose.name).mkdir()
        rows = "".join(f"{i},1.5,{i % 2}\n" for i in range(10 + whose.index))
        for part in ("train", "test"):
            (tmp_path / whose.name / f"{part}.csv").write_text(f"a,b,c\n{rows}")
        values = training.build_model(chosen, whose).state_dict()
        arrays = {name: value.numpy() for name, value in values.items()}
        save_model(run / "checkpoint" / f"{whose.name}.npz", arrays, about_model(whose.name, 3, len(values)))
    said = export(run, "--board", board, "-o", tmp_path / "m.pt2")
    assert (said["tested_by"], said["tested"]) == (board.replace("averaged", "board-00"), tested)
