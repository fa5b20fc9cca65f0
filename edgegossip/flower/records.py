"""A Flower ArrayRecord as one flat vector and back, for apps that know nothing of layouts.

Arrays of float16, float32 and float64 make up the vector, as float32 and in the record's order, and
get their own type back at the other end. Arrays of any other dtype (counters such as batch norm's
`num_batches_tracked`) travel beside it as they are, and the server reads what came back byte by
byte before Flower does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from edgegossip.flower.messages import FRAME
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, UsageError, Vec

META = "edgegossip"  # ConfigRecord of a message that tells the client mod what it needs to know
MAX_TENSORS = 100_000
FLOATS = ("float16", "float32", "float64")  # travel in the frame
NUMPY = "numpy.ndarray"  # Flower's stype of an array as numpy writes it


@dataclass(frozen=True, slots=True)
class Spec:
    """Describes one array of a record."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether it is part of the vector."""
        return self.dtype in FLOATS

    @classmethod
    def of(cls, array: Array) -> Spec:
        """Return that of an array."""
        return cls(tuple(array.shape), array.dtype)

    def accepts(self, array: Array) -> bool:
        """Return whether such an array may stand here: floats may change their width, a counter may
        not."""
        dtype = array.dtype in FLOATS if self.is_float else array.dtype == self.dtype
        return tuple(array.shape) == self.shape and dtype


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Describes the arrays of a record, in order."""

    specs: Mapping[str, Spec]
    layout: Layout  # of those that are inside

    @classmethod
    def make(cls, specs: Mapping[str, Spec]) -> RecordLayout:
        """Return that of arrays by their names."""
        return cls(specs, Layout.of(TensorSpec(name, spec.shape) for name, spec in specs.items() if spec.is_float))

    @classmethod
    def of(cls, record: ArrayRecord) -> RecordLayout:
        """Return that of a record. Raises UsageError when nothing in the record is a float, or an
        array has the name that frames use."""
        if FRAME in record:
            raise UsageError(f"an array must not be named {FRAME!r}: that name is taken by the compressed frame")
        specs = {k: Spec.of(a) for k, a in record.items()}
        if not any(spec.is_float for spec in specs.values()):
            raise UsageError(
                "nothing in the model can be compressed: it has no array of float16, float32 or float64 (a strategy such as "
                "FedXgbBagging, whose model is a string of bytes, goes without edgegossip)"
            )
        return cls.make(specs)

    def flatten(self, record: ArrayRecord) -> tuple[Vec, dict[str, Array]]:
        """Return the vector, and the arrays that are not in it.

        Raises UsageError when the record has other arrays."""
        if set(record) != set(self.specs) or not all(self.specs[k].accepts(a) for k, a in record.items()):
            raise UsageError("the arrays are not those that the server sent: names, shapes or dtypes differ")
        inside = {k: _cast(record[k].numpy(), np.dtype(np.float32)) for k, spec in self.specs.items() if spec.is_float}
        return self.layout.flatten(inside), {k: record[k] for k, spec in self.specs.items() if not spec.is_float}

    def restore(self, x: Vec, rest: Mapping[str, Array]) -> ArrayRecord:
        """Make the record again.

        Raises DecodeError when `rest` is not what belongs beside the vector."""
        self._check_names(rest)
        views = self.layout.views(x)
        return ArrayRecord(
            {
                k: Array(np.asarray(_cast(views[k], np.dtype(spec.dtype)))) if spec.is_float else rest[k]
                for k, spec in self.specs.items()
            }
        )

    def check_beside(self, rest: Mapping[str, Array]) -> None:
        """Raise DecodeError unless these arrays are what a board may answer beside its frame: of
        the names, shapes and types that it was sent, readable and finite."""
        self._check_names(rest)
        for name, array in rest.items():
            spec = self.specs[name]
            if array.stype != NUMPY or not spec.accepts(array):
                raise DecodeError(
                    f"the array {name!r} beside the frame is {array.dtype} of shape {tuple(array.shape)} as {array.stype}, "
                    f"not {spec.dtype} of shape {spec.shape}"
                )
            value = _read(name, array.data, spec)
            if np.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all():
                raise DecodeError(f"the array {name!r} beside the frame holds NaN or infinite values")

    def _check_names(self, rest: Mapping[str, Array]) -> None:
        outside = {k for k, spec in self.specs.items() if not spec.is_float}
        if set(rest) != outside:
            raise DecodeError(f"arrays beside the frame: expected {sorted(outside)}, got {sorted(rest)}")

    def to_json(self) -> str:
        """Return it as text, for `from_json`."""
        rows = [[name, spec.shape, spec.dtype] for name, spec in self.specs.items()]
        return json.dumps(rows, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RecordLayout:
        """Read what `to_json` gives. Raises DecodeError on anything else."""
        try:
            rows = json.loads(text)
            if not isinstance(rows, list) or len(rows) > MAX_TENSORS:
                raise ValueError("not a list of tensors")
            specs: dict[str, Spec] = {}
            for name, shape, dtype in rows:
                texts = isinstance(name, str) and isinstance(dtype, str)
                if not texts or not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
                    raise ValueError(f"not a tensor: {name!r}")
                specs[name] = Spec(tuple(shape), dtype)
            return cls.make(specs)
        except (ValueError, TypeError, UsageError, RecursionError) as error:
            raise DecodeError(f"the message's description of the model cannot be read: {error}") from None


def _read(name: str, data: bytes, spec: Spec) -> NDArray[Any]:
    """Read an array in numpy's own format, unless its header promises anything else than `spec`:
    nothing is allocated before."""
    file = BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(file)
        if shape != spec.shape or dtype != np.dtype(spec.dtype) or dtype.hasobject:
            raise ValueError(f"it holds {dtype} of shape {shape}")
        values = np.frombuffer(data, dtype, offset=file.tell())
        if values.size != math.prod(shape):
            raise ValueError(f"it holds {values.size} values")
        return values.reshape(shape, order="F" if fortran else "C")
    except (ValueError, KeyError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError) as error:
        raise DecodeError(f"the array {name!r} beside the frame cannot be read: {error}") from None


def to_record(x: Vec, layout: Layout) -> ArrayRecord:
    """Return float32[n] as one plain Array a tensor."""
    return ArrayRecord({name: Array(view) for name, view in layout.views(x).items()})


def conform(record: ArrayRecord, dtypes: Mapping[str, str]) -> ArrayRecord:
    """Return the same arrays in these dtypes.

    Flower's strategies average counters into floats, and FedAdam makes float64 of all."""
    if all(array.dtype == dtypes.get(name) for name, array in record.items()):
        return record
    return ArrayRecord({k: Array(_cast(a.numpy(), np.dtype(dtypes.get(k, a.dtype)))) for k, a in record.items()})


def _cast(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the nearest values of that dtype."""
    if value.dtype == dtype:
        return value
    if np.issubdtype(dtype, np.integer):
        return np.asarray(np.rint(value)).astype(dtype)
    if dtype.itemsize < value.dtype.itemsize and np.issubdtype(value.dtype, np.floating):
        most = float(np.finfo(dtype).max)
        value = np.where(np.isinf(value), value, np.clip(value, -most, most))
    return np.asarray(value).astype(dtype)


def split_frame(record: ArrayRecord) -> tuple[bytes, dict[str, Array]]:
    """Return a packed record's frame and the arrays beside it. Raises DecodeError when it has no
    frame."""
    if FRAME not in record:
        raise DecodeError("the array record holds no compressed frame")
    return record[FRAME].data, {k: a for k, a in record.items() if k != FRAME}


def all_finite(values: Mapping[str, object]) -> bool:
    """Return whether every number in a metric record is finite."""
    return all(bool(np.all(np.isfinite(np.asarray(v, dtype=np.float64)))) for v in values.values())
