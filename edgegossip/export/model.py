"""A torch module as a program that runs without its Python code: an ONNX file, or a program of
`torch.export`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgegossip.profiling.files import replacing
from edgegossip.types import HostError, LocalError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

PROGRAMS = (".onnx", ".pt2")


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
    file takes any batch size as `input` and gives `logits`. A model that `edgegossip.int8.convert`
    converted becomes a QDQ model (docs/int8.md), whose scales all the examples set; of others only
    the first batch is looked at. The model stays as it is.

    Raises HostError where a package is not installed or `path` cannot be written, LocalError where
    no examples came, the model cannot be traced, or a pass calls other layers than those with the
    examples.

    Example:
        to_onnx(model, [inputs], "model.onnx")
    """
    write = exporter(".onnx")
    batches = iter(examples)
    first = next(batches, None)
    if first is None:
        raise LocalError("no examples came, of which the scales could be made")
    quantised = is_int8(model)
    if quantised:
        from edgegossip.int8 import qdq

        model = qdq.qdq_twin(model, chain([first], batches))
    return write(model, first, Path(path), quantised=quantised).size_bytes


def is_int8(model: nn.Module) -> bool:
    """Whether the model has layers that `edgegossip.int8.convert` put there."""
    return any(type(m).__module__.startswith("edgegossip.int8.") for m in model.modules())


def exporter(suffix: str) -> Callable[..., ProgramFile]:
    """Return what writes (module, example [batch, ...], path, quantised=...) as a program. Raises
    HostError where it needs a package that is not installed."""
    return _onnx(onnx_writer()) if suffix == ".onnx" else _pt2


def onnx_writer() -> ModuleType:
    """`onnx_file`, which needs packages that are not in the base install. Raises HostError."""
    try:
        from edgegossip.export import onnx_file
    except ImportError as error:
        raise HostError(f"export needs the package {error.name}: pip install 'edgegossip[export]'") from None
    return onnx_file


def _onnx(writer: ModuleType) -> Callable[..., ProgramFile]:
    def write(module: nn.Module, example: Tensor, path: Path, *, quantised: bool = False) -> ProgramFile:
        with traced("ONNX"):
            model = writer.traced(module, example) if quantised else writer.exported(module, _two(example))
        return ProgramFile(path, writer.save(model, path))

    return write


def _pt2(module: nn.Module, example: Tensor, path: Path, *, quantised: bool = False) -> ProgramFile:
    """A program of torch.export, which `torch.export.load` reads anywhere torch is."""
    import torch

    if is_int8(module):
        raise LocalError("the layers of an int8 model are none of torch's: write it as .onnx, or as .safetensors")
    with traced("torch.export"):
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.export.export(module.eval(), (_two(example),), dynamic_shapes=shapes)
    try:
        with replacing(path) as file:
            torch.export.save(program, file)
            file.seek(0, 2)
            return ProgramFile(path, file.tell())
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def _two(example: Tensor) -> Tensor:
    """At least two inputs: of one alone a tracer would conclude that there is always one."""
    return example if len(example) > 1 else example.expand(2, *example.shape[1:]).contiguous()


@contextmanager
def traced(what: str) -> Iterator[None]:
    """In the block a model is traced: without gradients, warnings, and torch's fused attention,
    which no exporter knows. Whatever an exporter raises becomes a LocalError."""
    import torch

    fused, log = torch.backends.mha.get_fastpath_enabled(), logging.getLogger("torch.onnx")
    level = log.level
    torch.backends.mha.set_fastpath_enabled(False)
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except (LocalError, HostError):
        raise
    except Exception as error:  # of torch's, its tracer's and the model's own, whatever they are
        raise LocalError(f"{what} cannot hold this model: {_first_line(error)}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        log.setLevel(level)


def _first_line(error: Any) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}"
