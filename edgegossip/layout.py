"""ModelLayout: the one order, shape and offset of every tensor of a model inside one flat float32
vector.

Everything past the training step (codecs, gossip, wire) sees a model as float32[n]; the layout says
where its tensors lie. Trainable parameters come first, floating-point buffers (such as batch-norm
statistics) after them, so that `vec[:layout.trainable_size]` is what an optimiser touches. Boards
compare layouts by `hash`, which travels in every frame."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import UsageError, Vec

_FLOAT32 = np.dtype(np.float32)
MAX_VALUES = 2**31 - 1  # offsets stay within int32 in every kernel
SUMS = "standardise."  # begins names of sums over boards' inputs (`training/model.py`)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named tensor."""

    name: str
    shape: tuple[int, ...]
    trainable: bool = True

    @property
    def size(self) -> int:
        """Return the number of its values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Named tensors in one flat float32 vector. Build with `Layout.of`."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, tensors: Iterable[TensorSpec]) -> Layout:
        """Check and order: trainable tensors first, otherwise in the order given.

        Raises UsageError on an empty list, a repeated, empty or unprintable name (the hash
        separates fields by tabs and newlines), a negative dimension or more than MAX_VALUES values.
        """
        specs = tuple(tensors)
        if not specs:
            raise UsageError("a model needs at least one tensor; this one has none")
        seen: set[str] = set()
        for t in specs:
            if not t.name or not t.name.isprintable():
                raise UsageError(f"tensor name {t.name!r} is empty or not printable")
            if t.name in seen:
                raise UsageError(f"two tensors are named {t.name}")
            if not all(isinstance(d, int) and d >= 0 for d in t.shape):
                raise UsageError(f"tensor {t.name} has shape {t.shape}; dimensions are whole numbers from 0")
            seen.add(t.name)
        layout = cls(tuple(t for t in specs if t.trainable) + tuple(t for t in specs if not t.trainable))
        if layout.size > MAX_VALUES:
            raise UsageError(f"a model of {layout.size} values is larger than the {MAX_VALUES} that one vector holds")
        return layout

    @cached_property
    def size(self) -> int:
        """Return n, the number of values."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def trainable_size(self) -> int:
        """Return the number of values that an optimiser touches; they come first."""
        return sum(t.size for t in self.tensors if t.trainable)

    @cached_property
    def has_sums(self) -> bool:
        """Return whether sums over boards' inputs are among the values. A deviation is a small
        difference of such sums, so they must not be rounded on their way."""
        return any(t.name.startswith(SUMS) and not t.trainable for t in self.tensors)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return int64[tensors + 1]; tensor k is vec[offsets[k]:offsets[k + 1]]. Read-only."""
        edges = np.cumsum([0, *(t.size for t in self.tensors)], dtype=np.int64)
        edges.flags.writeable = False
        return edges

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """Return int64[tensors]: the values of one row, which are all that share an index in the
        first dimension; 0 for a tensor that has fewer than two dimensions, or no values.
        Read-only."""
        rows = [t.size // t.shape[0] if t.size and len(t.shape) > 1 else 0 for t in self.tensors]
        columns = np.array(rows, np.int64)
        columns.flags.writeable = False
        return columns

    @cached_property
    def hash(self) -> int:
        """Return the 64-bit identity: the first 8 bytes, as a big-endian number, of the SHA-256 of
        one UTF-8 line a tensor: name, tab, dimensions joined by "x", tab, "p" (trainable) or "b"
        (buffer), newline."""
        text = "".join(
            f"{t.name}\t{'x'.join(map(str, t.shape))}\t{'p' if t.trainable else 'b'}\n" for t in self.tensors
        )
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def facts(self) -> dict[str, str | int]:
        """Return what boards compare of it, see `agreement`."""
        return {"layout": f"{self.hash:016x}", "values": self.size}

    def plain(self) -> tuple[tuple[str, tuple[int, ...], bool], ...]:
        """Return (name, shape, trainable) of each tensor, for documents."""
        return tuple((t.name, t.shape, t.trainable) for t in self.tensors)

    def views(self, vec: Vec) -> dict[str, Vec]:
        """Return a shaped view of float32[size] for each tensor's name; nothing is copied: writing
        to a view writes to `vec`."""
        self.check(vec)
        o = self.offsets
        return {t.name: vec[o[k] : o[k + 1]].reshape(t.shape) for k, t in enumerate(self.tensors)}

    def flatten(self, arrays: Mapping[str, NDArray[np.float32]]) -> Vec:
        """Copy arrays by name into a new float32[size]; other real types are converted.

        Raises UsageError on a missing, unknown or misshapen tensor, or one that does not hold real
        numbers."""
        vec = np.empty(self.size, np.float32)
        views = self.views(vec)
        if missing := sorted(set(views) - set(arrays)):
            raise UsageError(f"tensors of the layout are missing: {', '.join(missing)}")
        if unknown := sorted(set(arrays) - set(views)):
            raise UsageError(f"tensors are not in the layout: {', '.join(unknown)}")
        for name, view in views.items():
            array = arrays[name]
            if array.shape != view.shape:
                raise UsageError(f"tensor {name} has shape {array.shape}, the layout says {view.shape}")
            if not np.can_cast(array.dtype, np.float32, "same_kind"):
                raise UsageError(f"tensor {name} holds {array.dtype}, which does not convert to float32")
            view[...] = array
        return vec

    def check(self, vec: Vec) -> None:
        """Raise UsageError unless vec is a C-contiguous, aligned float32[size]."""
        if (vec.dtype is not _FLOAT32 and vec.dtype != np.float32) or vec.shape != (self.size,):
            raise UsageError(f"expected a float32[{self.size}], got {vec.dtype}{list(vec.shape)}")
        flags = vec.flags
        if not (flags.c_contiguous and flags.aligned):
            raise UsageError(f"the float32[{self.size}] is not one contiguous, aligned piece of memory")
