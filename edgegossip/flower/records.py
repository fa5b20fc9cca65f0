"""A Flower ArrayRecord as one flat vector and back, for apps that know nothing of layouts.

Arrays of float16, float32 and float64 whose values are finite as float32 make up the vector, in
the record's order, and get their own type back at the other end. Any other array (counters such as
batch norm's `num_batches_tracked`, masks of bool or with -inf) travels beside it as it is, and so
does a float64 array of few values that float32 does not hold (a decay of 0.1, a sum of samples).
The model that a run begins with decides which array is which: weights that are not finite later on
have diverged. The server reads what came back byte by byte before Flower does.

An array of the vector may lie beside it in a message, and then counts as it lies there. So travel
those that an error would make nonsense of (`RecordLayout.exact`).

What the other end holds already travels as its hash, in an array that stands for it (`by_hash`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from edgegossip.flower.messages import FRAME
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import DecodeError, UsageError, Vec

META = (
    "edgegossip"  # ConfigRecord that tells the client mod what it needs to know, and of its answer what of it is where
)
MAX_TENSORS = 100_000
FLOATS = ("float16", "float32", "float64")
FEW = 1024  # values of a float64 array that float32 does not hold: more of them are coded nevertheless
NUMPY = "numpy.ndarray"  # Flower's stype of an array as numpy writes it
HASH = "edgegossip.hash.v1"  # stype of what stands for an array; its data is Flower's SHA-256 of that
# What layers saw is no direction of a descent: an error in it is an error in every answer.
STATISTICS = ("*running_mean", "*running_var", "*moving_mean", "*moving_variance")


@dataclass(frozen=True, slots=True)
class Spec:
    """Describes one array of a record."""

    shape: tuple[int, ...]
    dtype: str
    coded: bool  # it is part of the vector

    @classmethod
    def of(cls, array: Array, exact: bool) -> Spec:
        """Return that of an array of the model that a run begins with. `exact`: few values that
        float32 does not hold are not coded."""
        coded = array.dtype in FLOATS and array.stype == NUMPY
        if coded:
            value = array.numpy()
            with np.errstate(over="ignore"):
                narrow = value.astype(np.float32)
            lossless = not exact or value.size > FEW or bool((narrow == value).all())
            coded = lossless and bool(np.isfinite(narrow).all())
        return cls(tuple(array.shape), array.dtype, coded)

    def accepts(self, array: Array) -> bool:
        """Return whether such an array may stand here: floats may change their width, a counter may
        not."""
        dtype = array.dtype in FLOATS if self.dtype in FLOATS else array.dtype == self.dtype
        return tuple(array.shape) == self.shape and dtype


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Describes the arrays of a record, in order."""

    specs: Mapping[str, Spec]
    layout: Layout  # of those that are inside

    @classmethod
    def make(cls, specs: Mapping[str, Spec]) -> RecordLayout:
        """Return that of arrays by their names."""
        return cls(specs, Layout.of(TensorSpec(name, spec.shape) for name, spec in specs.items() if spec.coded))

    @classmethod
    def of(cls, record: ArrayRecord, exact: bool = True) -> RecordLayout:
        """Return that of a record. `exact`: few values that float32 does not hold are not coded,
        unless nothing else is. Raises UsageError when nothing in the record can be coded, or an
        array has the name that frames use."""
        if FRAME in record:
            raise UsageError(f"an array must not be named {FRAME!r}: that name is taken by the compressed frame")
        specs = {k: Spec.of(a, exact) for k, a in record.items()}
        if not any(spec.coded for spec in specs.values()):
            if exact:
                return cls.of(record, exact=False)
            raise UsageError(
                "nothing in the model can be compressed: it has no finite array of float16, float32 or float64 (a strategy such "
                "as FedXgbBagging, whose model is a string of bytes, goes without edgegossip)"
            )
        return cls.make(specs)

    def fits(self, record: ArrayRecord) -> bool:
        """Return whether the record has arrays of these names, shapes and types."""
        return set(record) == set(self.specs) and all(self.specs[k].accepts(a) for k, a in record.items())

    def parted(self, record: ArrayRecord) -> tuple[dict[str, NDArray[np.float32]], dict[str, Array]]:
        """Return the values of arrays that may be in the vector, by name, and all other arrays."""
        inside, beside = {}, {}
        for name, array in record.items():
            spec = self.specs.get(name)
            if spec is not None and spec.coded and array.stype == NUMPY and spec.accepts(array):
                inside[name] = _cast(array.numpy(), np.dtype(np.float32))
            else:
                beside[name] = _in_dtype(array, spec.dtype) if spec is not None and spec.accepts(array) else array
        return inside, beside

    def flatten(self, record: ArrayRecord) -> tuple[Vec, dict[str, Array]]:
        """Return the vector, and the arrays that are not in it, of a record that `fits`."""
        inside, beside = self.parted(record)
        return self.layout.flatten(inside), beside

    def exact(self, before: Vec, after: Vec, patterns: Collection[str]) -> list[str]:
        """Return which arrays of the vector are not coded where a model of `before` became one of
        `after`, float32[n]: those that a pattern names, and those that are nowhere negative, in
        which a variance or a scale could change its sign. All zeros may be anything."""
        old, new = self.layout.views(before), self.layout.views(after)
        named = {k for k in new if any(fnmatchcase(k, pattern) for pattern in patterns)}
        return [k for k, values in new.items() if k in named or _keeps_sign(old[k], values)]

    def overlaid(self, x: Vec, beside: Mapping[str, Array]) -> Vec:
        """Return float32[n] with the values of its arrays that lie beside it."""
        inside, _ = self.parted(ArrayRecord(dict(beside)))
        if not inside:
            return x
        x = x.copy()
        views = self.layout.views(x)
        for name, value in inside.items():
            views[name][...] = value
        return x

    def rounded(self, x: Vec) -> Vec:
        """Return a vector as the arrays' own types hold its values."""
        half = np.dtype(np.float16)
        if all(np.dtype(spec.dtype) != half for spec in self.specs.values() if spec.coded):
            return x
        views = self.layout.views(x)
        return self.layout.flatten(
            {k: _cast(_cast(view, np.dtype(self.specs[k].dtype)), x.dtype) for k, view in views.items()}
        )

    def restore(self, x: Vec, beside: Mapping[str, Array], without: Collection[str] = ()) -> ArrayRecord:
        """Make the record again, but for the arrays `without`.

        Raises DecodeError when an array that is not in the vector is not beside it either."""
        wanted = [k for k in self.specs if k not in without]
        if lost := [k for k in wanted if not self.specs[k].coded and k not in beside]:
            raise DecodeError(f"the array {lost[0]!r} should be beside the frame and is not")
        views = self.layout.views(x)

        def made(name: str) -> Array:
            return Array(np.asarray(_cast(views[name], np.dtype(self.specs[name].dtype))))

        more = {k: a for k, a in beside.items() if k not in self.specs}
        return ArrayRecord({k: beside[k] if k in beside else made(k) for k in wanted} | more)

    def check_beside(self, beside: Mapping[str, Array], sent: Mapping[str, Array], held: Collection[str]) -> None:
        """Raise DecodeError unless these arrays are what a board that was `sent` those may answer
        beside its frame: readable, those of the model of the same shapes, and finite but for values
        that it was sent. `held`: hashes of all that it was sent."""
        for name, array in beside.items():
            spec, like = self.specs.get(name), sent.get(name)
            stype = array.stype if spec is None else NUMPY if like is None else like.stype
            shape = tuple(array.shape) if spec is None or spec.coded else spec.shape
            if array.stype != stype or tuple(array.shape) != shape:
                raise DecodeError(
                    f"the array {name!r} beside the frame is {array.dtype} of shape {tuple(array.shape)} as {array.stype}, "
                    f"not of shape {shape} as {stype}"
                )
            if stype == NUMPY and array.object_id not in held:
                values = _read(name, array.data, shape)
                if spec is not None and not _as_finite(values, None if like is None else like.numpy()):
                    raise DecodeError(f"the array {name!r} beside the frame holds NaN or infinite values")

    def to_json(self) -> str:
        """Return it as text, for `from_json`."""
        rows = [[name, spec.shape, spec.dtype, spec.coded] for name, spec in self.specs.items()]
        return json.dumps(rows, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RecordLayout:
        """Read what `to_json` gives. Raises DecodeError on anything else."""
        try:
            rows = json.loads(text)
            if not isinstance(rows, list) or len(rows) > MAX_TENSORS:
                raise ValueError("not a list of tensors")
            specs: dict[str, Spec] = {}
            for name, shape, dtype, coded in rows:
                typed = isinstance(name, str) and isinstance(dtype, str) and isinstance(coded, bool)
                if not typed or not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
                    raise ValueError(f"not a tensor: {name!r}")
                specs[name] = Spec(tuple(shape), dtype, coded)
            return cls.make(specs)
        except (ValueError, TypeError, UsageError, RecursionError) as error:
            raise DecodeError(f"the message's description of the model cannot be read: {error}") from None


def require_finite_beside(beside: Mapping[str, Array], sent: Mapping[str, Array]) -> None:
    """Raise UsageError when an array of the model that was sent holds values that are not finite
    and were not sent so."""
    for name in beside.keys() & sent.keys():
        array, before = beside[name], sent[name]
        changed = array.stype == before.stype == NUMPY and array.data != before.data and array.shape == before.shape
        if changed and not _as_finite(array.numpy(), before.numpy()):
            raise UsageError(
                f"array {name} holds NaN or infinite values that it was not sent with; training has diverged "
                "(a lower learning rate is the usual remedy)"
            )


def _keeps_sign(before: NDArray[np.float32], after: NDArray[np.float32]) -> bool:
    """Return whether values are nowhere negative, before and after, and not all zero."""
    return after.size > 0 and bool(after.max() > 0 and after.min() >= 0 and before.min() >= 0)


def _as_finite(values: NDArray[Any], before: NDArray[Any] | None) -> bool:
    """Return whether values are finite wherever they are not what they were before."""
    if not np.issubdtype(values.dtype, np.inexact):
        return True
    finite = np.isfinite(values)
    if before is not None and (before.dtype, before.shape) == (values.dtype, values.shape):
        finite |= (values == before) | (np.isnan(values) & np.isnan(before))
    return bool(finite.all())


def _read(name: str, data: bytes, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read an array in numpy's own format, unless its header promises another shape: nothing is
    allocated before."""
    file = BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        found, fortran, kind = header(file)
        if found != shape or kind.hasobject:
            raise ValueError(f"it holds {kind} of shape {found}")
        values = np.frombuffer(data, kind, offset=file.tell())
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
    return ArrayRecord({k: _in_dtype(a, dtypes.get(k, a.dtype)) for k, a in record.items()})


def _in_dtype(array: Array, dtype: str) -> Array:
    """Return an array of numbers in this dtype; any other, or of a dtype that numpy does not know,
    as it is."""
    if array.dtype == dtype or array.stype != NUMPY:
        return array
    value = array.numpy()
    try:
        return Array(_cast(value, np.dtype(dtype))) if value.dtype.kind in "biufc" else array
    except TypeError:
        return array


def _cast(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the nearest values of that dtype."""
    if value.dtype == dtype:
        return value
    if dtype.kind == "b":
        return np.asarray(np.rint(value)).astype(dtype)
    if dtype.kind in "iu":
        info, rounded = np.iinfo(dtype), np.rint(np.real(value))
        with np.errstate(invalid="ignore"):  # what lies beyond is replaced: the largest int64 is 2^63 as a float
            within = rounded.astype(dtype)
        ends = [rounded >= float(info.max), rounded <= float(info.min)]
        return np.select(ends, [dtype.type(info.max), dtype.type(info.min)], within)
    if dtype.kind == value.dtype.kind == "f" and dtype.itemsize < value.dtype.itemsize:
        most = float(np.finfo(dtype).max)
        value = np.where(np.isinf(value), value, np.clip(value, -most, most))
    return np.asarray(value).astype(dtype)


def split_frame(record: Mapping[str, Array]) -> tuple[bytes, dict[str, Array]]:
    """Return a packed record's frame and the arrays beside it. Raises DecodeError when it has no
    frame."""
    if FRAME not in record:
        raise DecodeError("the array record holds no compressed frame")
    return record[FRAME].data, {k: a for k, a in record.items() if k != FRAME}


def by_hash(arrays: Mapping[str, Array], held: Collection[str]) -> dict[str, Array]:
    """Return the arrays, with hashes in place of those that the other end holds."""

    def shortened(a: Array) -> Array:
        return Array(a.dtype, tuple(a.shape), HASH, bytes.fromhex(a.object_id)) if a.object_id in held else a

    return {k: shortened(a) for k, a in arrays.items()}


def from_hash(arrays: Mapping[str, Array], held: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays themselves.

    Raises DecodeError for the hash of one that is not held here."""
    found = {k: held.get(a.data.hex()) if a.stype == HASH else a for k, a in arrays.items()}
    if lost := sorted(k for k, a in found.items() if a is None):
        raise DecodeError(f"of the array {lost[0]!r} only a hash came, and this end does not hold it")
    return {k: a for k, a in found.items() if a is not None}
