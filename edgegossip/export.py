"""A trained model as a file that other programs run or read, and what became of its accuracy.

`to_onnx` takes any torch model; `write` a run's. .safetensors and .npz hold the arrays of the
`state_dict`. .onnx and .pt2 (`torch.export`) hold the program too: the recipe's model is built, and
file and model are compared on the run's own test set.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgegossip.files import replacing
from edgegossip.modelfile import check_suffix, write_model
from edgegossip.recipe import Recipe
from edgegossip.report.models import FoundModel
from edgegossip.types import DataError, HostError, NodeId, UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from edgegossip.training.data import Board, Examples

__all__ = ["PROGRAMS", "Exported", "ProgramFile", "exporter", "module_of", "to_onnx", "write"]

PROGRAMS = (".onnx", ".pt2")
_BATCH = 250  # examples


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A program that was written."""

    path: Path
    size_bytes: int

    def runner(self) -> Callable[[Tensor], NDArray[np.float32]] | None:
        """Return a function from inputs [batch, ...] to outputs, by onnxruntime or by torch; None
        where onnxruntime is not installed."""
        if self.path.suffix == ".onnx":
            run: Callable[[Tensor], NDArray[np.float32]] | None = onnx_writer().runner(self.path)
            return run
        import torch

        program = torch.export.load(self.path).module()
        return lambda inputs: program(inputs).detach().numpy()


def to_onnx(model: nn.Module, examples: Iterable[Tensor], path: str | Path) -> int:
    """Write any model to `path` as an ONNX file; return the file's size in bytes.

    `examples` are batches of its inputs, each [batch, ...], of whole or floating-point numbers. The
    file takes any batch size as `input` and gives `logits`: what the model gives, or the tensor
    `logits` or `out` of that. A model that `edgegossip.int8.convert`
    converted becomes a QDQ model (docs/int8.md), whose scales all the examples set; of others only
    the first batch is looked at. The model stays as it is.

    Raises HostError where a package is not installed or `path` cannot be written, UsageError where
    no examples came, the model cannot be traced, or a pass calls other layers than those with the
    examples.

    Example:
        to_onnx(model, [inputs], "model.onnx")
    """
    write = exporter(".onnx")
    batches = iter(examples)
    first = next(batches, None)
    if first is None:
        raise UsageError("no examples came, of which the scales could be made")
    quantised = is_int8(model)
    if quantised:
        from edgegossip.int8 import qdq

        model = qdq.qdq_model(model, chain([first], batches))
    return write(model, first, Path(path), quantised=quantised).size_bytes


def is_int8(model: nn.Module) -> bool:
    """Whether the model has layers that `edgegossip.int8.convert` put there."""
    return any(type(m).__module__.startswith("edgegossip.int8.") for m in model.modules())


def exporter(suffix: str) -> Callable[..., ProgramFile]:
    """Return what writes (module, example [batch, ...], path, quantised=...) as a program. Raises
    HostError where it needs a package that is not installed."""
    return _onnx(onnx_writer()) if suffix == ".onnx" else _pt2


def onnx_writer() -> ModuleType:
    """Return `onnx_file`, which needs packages that are not in the base install. Raises
    HostError."""
    try:
        from edgegossip.int8 import onnx_file
    except ImportError as error:
        raise HostError(f"export needs the package {error.name}: pip install onnx onnxruntime onnxscript") from None
    return onnx_file


def _onnx(writer: ModuleType) -> Callable[..., ProgramFile]:
    def write(module: nn.Module, example: Tensor, path: Path, *, quantised: bool = False) -> ProgramFile:
        with traced("ONNX"):
            module = _of_one_tensor(module.eval(), example)
            model = writer.traced(module, example) if quantised else writer.exported(module, _two(example))
        return ProgramFile(path, writer.save(model, path))

    return write


def _pt2(module: nn.Module, example: Tensor, path: Path, *, quantised: bool = False) -> ProgramFile:
    """A program of torch.export, which `torch.export.load` reads anywhere torch is."""
    import torch

    if is_int8(module):
        raise UsageError("the layers of an int8 model are none of torch's: write it as .onnx, or as .safetensors")
    with traced("torch.export"):
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        module = _of_one_tensor(module.eval(), example)
        program = torch.export.export(module, (_two(example),), dynamic_shapes=shapes)
    try:
        with replacing(path) as file:
            torch.export.save(program, file)
            file.seek(0, 2)
            return ProgramFile(path, file.tell())
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def _of_one_tensor(module: nn.Module, example: Tensor) -> nn.Module:
    """The module, or where it gives an object with `logits` or `out`, one that gives that tensor
    alone. Raises UsageError where it gives no tensor."""
    from torch import Tensor, nn

    from edgegossip.training.workload import tensor_in

    given = module(example)
    if isinstance(given, Tensor):
        return module
    if tensor_in(given) is None:
        raise UsageError(
            f"the model gives a {type(given).__name__}: a file holds one tensor, or its logits, or its out"
        )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, inputs: Tensor) -> Tensor | None:
            return tensor_in(self.model(inputs))

    return Model().eval()


def _two(example: Tensor) -> Tensor:
    """At least two inputs: of one alone a tracer would conclude that there is always one."""
    return example if len(example) > 1 else example.expand(2, *example.shape[1:]).contiguous()


@contextmanager
def traced(what: str) -> Iterator[None]:
    """Let the block trace a model: without gradients, warnings, and torch's fused attention, which
    no exporter knows. Whatever an exporter raises becomes a UsageError."""
    import torch

    fused, log = torch.backends.mha.get_fastpath_enabled(), logging.getLogger("torch.onnx")
    level = log.level
    torch.backends.mha.set_fastpath_enabled(False)
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except (UsageError, HostError):
        raise
    except Exception as error:  # of torch's, its tracer's and the model's own, whatever they are
        raise UsageError(f"{what} cannot hold this model: {_first_line(error)}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        log.setLevel(level)


def _first_line(error: Any) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}"


@dataclass(frozen=True, slots=True)
class Exported:
    """What `edgegossip model` and `edgegossip export` say."""

    model: str  # the file or folder that it was read from
    board: str  # whose: a board's name, "averaged" or "coordinator"
    round: str  # how many it has had
    file: str
    size_bytes: int
    fp32_bytes: int  # the values that travel, at four bytes each
    away: Mapping[NodeId, float] = field(default_factory=dict)  # of boards' own models from an average, relative
    without: tuple[NodeId, ...] = ()  # boards that did not finish, of which an average has nothing
    left_out: tuple[str, ...] = ()  # names of tensors that an average has not
    precision: str = "fp32"  # or int8: QDQ, in a .onnx
    calibrated: int = 0  # examples that set the scales
    tested: int = 0  # examples; 0: nothing was compared
    tested_by: NodeId = ""  # whose these are; empty: they are the same for all boards
    accuracy: float | None = None  # of the torch model, 0..1; None where the task has none
    file_accuracy: float | None = None  # of the file, by onnxruntime or torch; None where that is not installed
    difference: float | None = None  # the largest between an output of the two, over the test set


def write(model: FoundModel, recipe: Recipe, out: Path, *, examples: int = 256) -> Exported:
    """Write the model to `out`, in the format of its ending: .npz, .safetensors, .onnx or .pt2.

    In a .onnx an int8 model becomes QDQ with scales set by `examples` of the training set. Raises
    ConfigError for another ending, HostError where a package is missing or the file cannot be
    written, UsageError where the model cannot be built or exported."""
    check_suffix(out, PROGRAMS)
    values = sum(model.arrays[name].size for name in model.travels)
    done = Exported(
        model=str(model.source or ""),
        board=model.board,
        round=model.about["round"],
        file=str(out),
        size_bytes=0,
        fp32_bytes=4 * values,
        away=model.away,
        without=model.without,
        left_out=model.left_out,
    )
    if out.suffix not in PROGRAMS:
        try:
            return replace(done, size_bytes=write_model(out, model.arrays, model.about))
        except OSError as error:
            raise HostError(f"cannot write {out}: {error.strerror}") from None
    write_program = exporter(out.suffix)  # what is missing for it is said before data are read
    set_up = _SetUp(recipe, model)
    module, calibrated = set_up.module, 0
    int8 = recipe.training.precision == "int8"
    if int8 and out.suffix == ".onnx":
        from edgegossip.int8 import qdq

        batches = list(set_up.training_inputs(examples))
        calibrated, module = sum(map(len, batches)), qdq.qdq_model(module, batches)
    written = write_program(module, next(set_up.test_batches())[0], out, quantised=bool(calibrated))
    accuracy, file_accuracy, difference = set_up.compared(written)
    return replace(
        done,
        size_bytes=written.size_bytes,
        precision="int8" if int8 else "fp32",
        calibrated=calibrated,
        tested=set_up.tested,
        tested_by=set_up.board.name if recipe.data.partition == "local" else "",
        accuracy=accuracy,
        file_accuracy=file_accuracy,
        difference=difference,
    )


def module_of(model: FoundModel, recipe: Recipe) -> nn.Module:
    """Return the recipe's module with the model's values, in evaluation mode. Raises UsageError
    where a script built the model, or an average lacks what each board has of its own."""
    import torch

    from edgegossip import training

    if recipe.run.script:
        raise UsageError(
            f"{recipe.run.script} built this run's model, which only it can do again: load the values with "
            "model.load_state_dict(Result(folder).state_dict())"
        )
    module = training.build_model(recipe, _board_of(model, recipe))
    if model.left_out:
        raise UsageError(f"the {model.board} model has no {model.left_out[0]}, which is each board's own: name a board")
    state = {name: torch.from_numpy(np.ascontiguousarray(a).reshape(a.shape)) for name, a in model.arrays.items()}
    try:
        lacks = module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise UsageError(f"the values do not fit the recipe's model: {error}") from None
    # What never travels may be missing from files of earlier versions: it is as the recipe builds
    # it.
    missing = [n for n in lacks.missing_keys if n in dict(module.named_parameters()) and n in model.travels]
    if missing or lacks.unexpected_keys:
        name = (missing or lacks.unexpected_keys)[0]
        raise UsageError(f"the values do not fit the recipe's model: tensor {name} is in one of them only")
    return module.eval()


def _board_of(model: FoundModel, recipe: Recipe) -> Board:
    """Return the board of whose data the model is, the first one of what is all boards'."""
    from edgegossip.training.data import boards_of

    boards = boards_of(recipe.run.nodes)
    return next((board for board in boards if board.name == model.board), boards[0])


class _SetUp:
    """The run's model with its trained values, and the run's data as the model takes them: where
    boards have their own, those of the model's board, of an average the first one's."""

    def __init__(self, recipe: Recipe, model: FoundModel) -> None:
        from edgegossip.training.check import task_of
        from edgegossip.training.data import open_data
        from edgegossip.training.loader import Normalize

        self.module: nn.Module = module_of(model, recipe)
        self.board = _board_of(model, recipe)
        self._data = open_data(recipe.data, self.board)
        self._normalise = Normalize.of(self._data.about)
        self._task = task_of(recipe.training, self._data.about)

    def training_inputs(self, count: int) -> Iterator[Tensor]:
        """Return the inputs of `count` examples, spread evenly over the training set, or of all."""
        of = self._data.indexed()
        chosen = np.unique(np.linspace(0, len(of) - 1, min(count, len(of))).astype(np.int64))
        return (inputs for inputs, _ in self._batches(of, chosen))

    def test_batches(self) -> Iterator[tuple[Tensor, NDArray[Any] | None]]:
        return self._batches(self._test, np.arange(self.tested, dtype=np.int64))

    def _batches(self, of: Examples, chosen: NDArray[np.int64]) -> Iterator[tuple[Tensor, NDArray[Any] | None]]:
        from edgegossip.training.workload import as_taken

        for start in range(0, len(chosen), _BATCH):
            part = chosen[start : start + _BATCH]
            inputs, targets = of.take(part)
            yield as_taken(inputs, self._normalise), targets

    def compared(self, written: ProgramFile) -> tuple[float | None, float | None, float | None]:
        """Return the accuracy of the model and of the file over the test set, and the largest
        difference of an output. The last two are None where nothing here runs the file, the first
        two where the task has no class for each example."""
        import torch

        from edgegossip.training.workload import tensor_in

        run, right, right_there, apart = written.runner(), 0, 0, 0.0
        classes = self._task == "classification"
        with torch.inference_mode():
            for inputs, labels in self.test_batches():
                outputs = tensor_in(self.module(inputs))
                assert outputs is not None  # or there would be no file
                ours = outputs.numpy()
                right += int((ours.argmax(1) == labels).sum()) if classes else 0
                if run is not None:
                    theirs = run(inputs)
                    right_there += int((theirs.argmax(1) == labels).sum()) if classes else 0
                    apart = max(apart, float(np.abs(theirs - ours).max()))
        accuracy = right / self.tested if classes else None
        if run is None:
            return accuracy, None, None
        return accuracy, right_there / self.tested if classes else None, apart

    @property
    def tested(self) -> int:
        return len(self._test)

    @property
    def _test(self) -> Examples:
        if self._data.test is None:
            raise DataError("the run's data have no test set to compare the file with torch's model on")
        return self._data.test
