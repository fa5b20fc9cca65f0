"""A trained int8 model as an ONNX file, in plain PyTorch style."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgegossip.types import HostError, LocalError

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor, nn


def to_onnx(model: nn.Module, examples: Iterable[Tensor], path: str | Path) -> int:
    """Write a model that `edgegossip.int8.convert` converted to `path`, as a QDQ model (docs/int8.md). The file's size in bytes.

    `examples`: batches of its inputs, each [batch, ...], which set the scales; the file takes any batch size as `input` and gives
    `logits`. The model stays as it is. Raises HostError where the package `onnx` is not installed or `path` cannot be written,
    LocalError where the model has no int8 layers, no examples came, or a pass calls other layers than those with the examples."""
    writer = onnx_writer()
    from edgegossip.int8 import qdq

    batches = iter(examples)
    first = next(batches, None)
    if first is None:
        raise LocalError("no examples came, of which the scales could be made")
    size: int = writer.write(qdq.qdq_twin(model, chain([first], batches)), first, Path(path))
    return size


def onnx_writer() -> ModuleType:
    """`onnx_file`, which needs packages that are not in the base install. Raises HostError."""
    try:
        from edgegossip.export import onnx_file
    except ImportError as error:
        raise HostError(f"export needs the package {error.name}: pip install 'edgegossip[export]'") from None
    return onnx_file
