"""Writes a torch module as an ONNX file. Quantised weights are stored as the int8 that they are."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from edgegossip.files import replacing
from edgegossip.types import HostError, UsageError

OPSET = 17  # of 2021; any onnxruntime since 1.12 runs it
EXPORT_OPSET = 18  # the least that the exporter of today writes; since onnxruntime 1.14
MOST_BYTES = 2**31  # of a protobuf message
INPUT, OUTPUT = "input", "logits"


def write(module: nn.Module, example: Tensor, path: Path) -> int:
    """Trace `module` with `example`, [batch, ...] (any batch size later), write it to `path`, and
    return the file's bytes. Raises HostError and UsageError, as `save`."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return save(traced(module, example), path)


def traced(module: nn.Module, example: Tensor) -> onnx.ModelProto:
    """Export by torch's older exporter, which alone writes QDQ, with weights as the int8 that they
    are."""
    with TemporaryDirectory() as folder:
        made = Path(folder) / "model.onnx"
        torch.onnx.export(
            module.eval(),
            (example,),
            made,
            opset_version=OPSET,
            dynamo=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
        )
        model = onnx.load(made)
    _store_as_int8(model.graph)
    return model


def exported(module: nn.Module, example: Tensor) -> onnx.ModelProto:
    """Export by torch's exporter of today, which knows what the older one does not. Raises
    HostError where its package is not installed."""
    try:
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise HostError(f"export needs the package {error.name}: pip install onnx onnxruntime onnxscript") from None
    with contextlib.redirect_stdout(io.StringIO()):  # which it fills with its progress
        program = torch.onnx.export(
            module.eval(),
            (example,),
            dynamo=True,
            opset_version=EXPORT_OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
            optimize=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def save(model: onnx.ModelProto, path: Path) -> int:
    """Check a model, write it to `path`, and return the file's bytes. Raises HostError, and
    UsageError for a model of 2 GiB or more."""
    if (size := model.ByteSize()) >= MOST_BYTES:
        raise UsageError(f"an ONNX file holds less than 2 GiB, this model takes {size} bytes: write it as .pt2")
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None
    return len(data)


def _store_as_int8(graph: onnx.GraphProto) -> None:
    """Carry out every QuantizeLinear of constants (weights), which leaves their int8 values and a
    DequantizeLinear."""
    _name_constants(graph)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    stored: Counter[str] = Counter()
    for node in [n for n in graph.node if n.op_type == "QuantizeLinear" and all(name in constants for name in n.input)]:
        values, scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        q = _quantised(values, scale, zero, axis)
        for reader in _one_for_each_use(graph, node.output[0]):
            stored[node.input[0]] += 1
            count = stored[node.input[0]]
            name = node.input[0] if count == 1 else f"{node.input[0]}.{count}"
            reader.input[0], reader.input[2] = f"{name}.int8", f"{name}.zero"
            graph.initializer.append(numpy_helper.from_array(q, reader.input[0]))
            graph.initializer.append(numpy_helper.from_array(zero, reader.input[2]))
        graph.node.remove(node)
    _remove_unread(graph)


def _one_for_each_use(graph: onnx.GraphProto, weights: str) -> list[onnx.NodeProto]:
    """The DequantizeLinear nodes of `weights`, one for each use: a layer that is called twice has
    two. onnxruntime's passes that turn int8 weights into uint8 load a file only where each has
    values and a zero point of its own."""
    made = []
    for node in [n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] == weights]:
        name, place = node.output[0], list(graph.node).index(node)
        uses = [(user, k) for user in graph.node for k, read in enumerate(user.input) if read == name]
        made.append(node)
        for count, (user, k) in enumerate(uses[1:], 2):
            another = onnx.NodeProto()
            another.CopyFrom(node)
            another.name, another.output[0] = f"{node.name}_{count}", f"{name}_{count}"
            user.input[k] = another.output[0]
            graph.node.insert(place, another)
            made.append(graph.node[place])
    return made


def _quantised(
    values: NDArray[np.float32], scale: NDArray[np.float32], zero: NDArray[np.int8], axis: int
) -> NDArray[np.int8]:
    """As QuantizeLinear does it, with a scale for all or one a channel of `axis`."""
    shape = [-1 if k == axis and scale.ndim else 1 for k in range(values.ndim)]
    q = np.rint(values / scale.reshape(shape)) + zero.reshape(shape)
    limits = np.iinfo(zero.dtype)
    made: NDArray[np.int8] = np.clip(q, limits.min, limits.max).astype(zero.dtype)
    return made


def _remove_unread(graph: onnx.GraphProto) -> None:
    read = {name for node in graph.node for name in node.input}
    for tensor in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(tensor)


def _name_constants(graph: onnx.GraphProto) -> None:
    """Constants as initialisers, each under its own name: no nodes that only hold or pass one
    on."""
    known = {tensor.name for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Constant":
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            known.add(tensor.name)
        elif node.op_type == "Identity" and node.input[0] in known:
            _rename(graph, node.output[0], node.input[0])
        else:
            continue
        graph.node.remove(node)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for k, name in enumerate(node.input):
            if name == old:
                node.input[k] = new


def runner(path: Path, threads: int = 1) -> Callable[[Tensor], NDArray[np.float32]] | None:
    """Return a function from inputs to the file's outputs by onnxruntime; None where that is not
    installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # On x86 without VNNI its int8 products saturate (sums of two in 16 bits) unless this is set:
    # outputs 17 % off were seen.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options)
    return lambda inputs: session.run(None, {INPUT: np.ascontiguousarray(inputs.numpy())})[0]
