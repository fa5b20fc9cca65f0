"""The model of a run as an ONNX file, checked against the torch model on the run's own test set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgegossip import recipe as recipes
from edgegossip.export.model import onnx_writer
from edgegossip.types import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from edgegossip.recipe import Recipe
    from edgegossip.training.data import Examples

_BATCH = 250  # examples


@dataclass(frozen=True, slots=True)
class Exported:
    """What `edgegossip export` says. Accuracies are 0..1 over `tested` examples; `onnx_accuracy` is None without onnxruntime."""

    model: str  # file that was read
    file: str
    size_bytes: int
    fp32_bytes: int  # the same values at four bytes each
    precision: str  # fp32, or int8: QDQ
    calibrated: int  # examples that set the scales
    tested: int
    accuracy: float
    onnx_accuracy: float | None


def locate(model: Path, board: str | None) -> tuple[Path, Path]:
    """(model file, recipe) of a .npz file in a run folder's checkpoint/, or of a run folder. Raises ConfigError, DataError."""
    folder = model.parent if model.suffix == ".npz" else model / "checkpoint"
    recipe = folder.parent / "recipe.toml"
    if not recipe.is_file():
        raise DataError(f"{model} is no run folder, nor a model in one: {recipe} is not there")
    if model.suffix == ".npz":
        return model, recipe
    found = {path.stem: path for path in sorted(folder.glob("*.npz"))}
    if not found:
        raise DataError(f"{model} has no model yet: the run has not ended, or no board of it did")
    if board is not None and board not in found:
        raise ConfigError(f"--board {board}: this run has models of {', '.join(found)}")
    return found[board or next(iter(found))], recipe


def export(model: Path, out: Path, *, board: str | None = None, examples: int = 256) -> Exported:
    """Write the model to `out`. An int8 model becomes QDQ with scales set by `examples` of the training set.

    Raises DataError, ConfigError, HostError."""
    source, recipe_file = locate(model, board)
    recipe = recipes.load(str(recipe_file))
    onnx_file = onnx_writer()
    from edgegossip.int8 import qdq

    set_up = _SetUp(recipe, source)
    module, calibrated = set_up.module, 0
    if recipe.training.precision == "int8":
        batches = list(set_up.training_inputs(examples))
        calibrated, module = sum(map(len, batches)), qdq.qdq_twin(module, batches)
    size_bytes = onnx_file.write(module, next(set_up.test_batches())[0], out)
    run = onnx_file.runner(out)
    return Exported(
        model=str(source),
        file=str(out),
        size_bytes=size_bytes,
        fp32_bytes=4 * set_up.values,
        precision=recipe.training.precision,
        calibrated=calibrated,
        tested=set_up.tested,
        accuracy=set_up.accuracy(lambda inputs: set_up.module(inputs).numpy()),
        onnx_accuracy=None if run is None else set_up.accuracy(run),
    )


class _SetUp:
    """The run's model with its trained values, and the run's data as the model takes them."""

    def __init__(self, recipe: Recipe, source: Path) -> None:
        from edgegossip.node.final_model import load_model
        from edgegossip.training.batches import Normaliser
        from edgegossip.training.data import open_data
        from edgegossip.training.workload import layout_of, module_with

        layout = layout_of(recipe)
        self.values, self._data = layout.size, open_data(recipe.data)
        self.module: nn.Module = module_with(recipe, self._data.about, load_model(source, layout))
        self._normalise = Normaliser.of(self._data.about)

    def training_inputs(self, count: int) -> Iterator[Tensor]:
        """Of `count` examples, spread evenly over the training set, or of all."""
        of = self._data.indexed()
        chosen = np.unique(np.linspace(0, len(of) - 1, min(count, len(of))).astype(np.int64))
        return (inputs for inputs, _ in self._batches(of, chosen))

    def test_batches(self) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        return self._batches(self._test, np.arange(self.tested, dtype=np.int64))

    def _batches(self, of: Examples, chosen: NDArray[np.int64]) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        from edgegossip.training.workload import as_taken

        for start in range(0, len(chosen), _BATCH):
            part = chosen[start : start + _BATCH]
            inputs, targets = of.take(part)
            assert targets is not None
            yield as_taken(inputs, self._normalise), targets

    def accuracy(self, logits_of: Callable[[Tensor], NDArray[np.float32]]) -> float:
        """Share of the test set that `logits_of(inputs)`, float32[batch, classes], gets right."""
        import torch

        with torch.inference_mode():
            right = sum(int((logits_of(inputs).argmax(1) == labels).sum()) for inputs, labels in self.test_batches())
        return right / self.tested

    @property
    def tested(self) -> int:
        return len(self._test)

    @property
    def _test(self) -> Examples:
        if self._data.test is None:
            raise DataError("the run's data have no test set to compare the file with torch's model on")
        return self._data.test
