"""A Flower ArrayRecord as one flat vector and back, for apps that know nothing of layouts.

float32 arrays make up the vector, in the record's order; arrays of any other dtype (counters such as batch norm's
`num_batches_tracked`) travel beside it as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from edgegossip.flower.payload import FRAME
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, LocalError, Vec

MAX_TENSORS = 100_000


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The arrays of a record, in order: a shape for each that is in the vector, None for the others."""

    shapes: Mapping[str, tuple[int, ...] | None]
    layout: Layout  # of those with a shape

    @classmethod
    def make(cls, shapes: Mapping[str, tuple[int, ...] | None]) -> RecordLayout:
        return cls(shapes, Layout.of(TensorSpec(name, shape) for name, shape in shapes.items() if shape is not None))

    @classmethod
    def of(cls, record: ArrayRecord, layout: Layout | None = None) -> RecordLayout:
        """`layout` given: the one to use, of these very tensors (it also knows which of them are trained).

        Raises LocalError when nothing in the record is float32, or an array has the name that frames use.
        """
        if FRAME in record:
            raise LocalError(f"an array must not be named {FRAME!r}: that name is taken by the compressed frame")
        shapes = {k: tuple(a.shape) if a.dtype == "float32" else None for k, a in record.items()}
        return cls.make(shapes) if layout is None else cls(shapes, layout)

    def flatten(self, record: ArrayRecord) -> tuple[Vec, dict[str, Array]]:
        """The vector, and the arrays that are not in it. Raises LocalError when the record has other arrays."""
        if {k: tuple(a.shape) if a.dtype == "float32" else None for k, a in record.items()} != dict(self.shapes):
            raise LocalError("the arrays are not those that the server sent: names, shapes or dtypes differ")
        inside = {k: a.numpy() for k, a in record.items() if self.shapes[k] is not None}
        return self.layout.flatten(inside), {k: a for k, a in record.items() if self.shapes[k] is None}

    def restore(self, x: Vec, rest: Mapping[str, Array]) -> ArrayRecord:
        """The record again. Raises DecodeError when `rest` is not what belongs beside the vector."""
        outside = {k for k, shape in self.shapes.items() if shape is None}
        if set(rest) != outside:
            raise DecodeError(f"arrays beside the frame: expected {sorted(outside)}, got {sorted(rest)}")
        views = self.layout.views(x)
        return ArrayRecord({k: Array(views[k]) if k in views else rest[k] for k in self.shapes})

    def to_json(self) -> str:
        return json.dumps([[name, shape] for name, shape in self.shapes.items()], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RecordLayout:
        """Raises DecodeError on anything that `to_json` does not write."""
        try:
            rows = json.loads(text)
            if not isinstance(rows, list) or len(rows) > MAX_TENSORS:
                raise ValueError("not a list of tensors")
            shapes: dict[str, tuple[int, ...] | None] = {}
            for name, shape in rows:
                if not isinstance(name, str) or not (shape is None or all(type(d) is int and d >= 0 for d in shape)):
                    raise ValueError(f"not a tensor: {name!r}")
                shapes[name] = None if shape is None else tuple(shape)
            return cls.make(shapes)
        except (ValueError, TypeError, LocalError) as error:
            raise DecodeError(f"the message's description of the model cannot be read: {error}") from None


def to_record(x: Vec, layout: Layout) -> ArrayRecord:
    """float32[n] as one plain Array a tensor."""
    return ArrayRecord({name: Array(view) for name, view in layout.views(x).items()})


def conform(record: ArrayRecord, dtypes: Mapping[str, str]) -> ArrayRecord:
    """The same arrays in these dtypes. Flower's strategies average counters into floats, and FedAdam makes float64 of all."""
    if all(array.dtype == dtypes.get(name) for name, array in record.items()):
        return record
    return ArrayRecord({k: Array(_cast(a.numpy(), np.dtype(dtypes.get(k, a.dtype)))) for k, a in record.items()})


def _cast(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """To the nearest value of that dtype."""
    rounded = np.rint(value) if np.issubdtype(dtype, np.integer) else value
    return np.asarray(rounded).astype(dtype)


def split_frame(record: ArrayRecord) -> tuple[bytes, dict[str, Array]]:
    """A packed record's frame and the arrays beside it. Raises DecodeError when it has no frame."""
    if FRAME not in record:
        raise DecodeError("the array record holds no compressed frame")
    return record[FRAME].data, {k: a for k, a in record.items() if k != FRAME}


def is_packed(record: ArrayRecord) -> bool:
    return FRAME in record


def all_finite(values: Mapping[str, object]) -> bool:
    """Whether every number in a metric record is finite."""
    return all(bool(np.all(np.isfinite(np.asarray(v, dtype=np.float64)))) for v in values.values())
