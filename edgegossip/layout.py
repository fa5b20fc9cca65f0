"""ModelLayout: the one order, shape and offset of every tensor of a model inside one flat float32 vector.

Everything past the training step (codecs, gossip, wire) sees a model as float32[n]; the layout says where its tensors
lie. Trainable parameters come first, floating-point buffers (such as batch-norm statistics) after them, so that
`vec[:layout.trainable_size]` is what an optimiser touches. Boards compare layouts by `hash`, which travels in every
frame.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgegossip.types import LocalError, Vec

MAX_VALUES = 2**31 - 1  # offsets stay within int32 in every kernel


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named tensor."""

    name: str
    shape: tuple[int, ...]
    trainable: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Named tensors in one flat float32 vector. Build with `Layout.of`."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, tensors: Iterable[TensorSpec]) -> Layout:
        """Check and order: trainable tensors first, otherwise in the order given. Raises LocalError on an empty list, a
        repeated or empty name, a negative dimension or more than MAX_VALUES values."""
        specs = tuple(tensors)
        layout = cls(tuple(t for t in specs if t.trainable) + tuple(t for t in specs if not t.trainable))
        names = [t.name for t in layout.tensors]
        if not names:
            raise LocalError("a model needs at least one tensor; this one has none")
        if len(set(names)) != len(names) or "" in names:
            raise LocalError("tensor names must be unique and not empty")
        if any(d < 0 for t in layout.tensors for d in t.shape):
            raise LocalError("tensor dimensions must not be negative")
        if layout.size > MAX_VALUES:
            raise LocalError(
                f"a model of {layout.size} values is larger than the {MAX_VALUES} that one vector may hold"
            )
        return layout

    @cached_property
    def size(self) -> int:
        """n, the number of values."""
        return sum(t.size for t in self.tensors)

    @cached_property
    def trainable_size(self) -> int:
        return sum(t.size for t in self.tensors if t.trainable)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """int64[tensors + 1]; tensor k is vec[offsets[k]:offsets[k + 1]]. Read-only."""
        edges = np.cumsum([0, *(t.size for t in self.tensors)], dtype=np.int64)
        edges.flags.writeable = False
        return edges

    @cached_property
    def hash(self) -> int:
        """64-bit identity: the first 8 bytes, big-endian, of the SHA-256 of a line "name, shape, kind" a tensor."""
        text = "".join(
            f"{t.name}\t{'x'.join(map(str, t.shape))}\t{'p' if t.trainable else 'b'}\n" for t in self.tensors
        )
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def views(self, vec: Vec) -> dict[str, Vec]:
        """Name -> view of its values, shaped; no copy."""
        self.check(vec)
        o = self.offsets
        return {t.name: vec[o[k] : o[k + 1]].reshape(t.shape) for k, t in enumerate(self.tensors)}

    def flatten(self, arrays: dict[str, NDArray[np.float32]]) -> Vec:
        """Name -> array, into a new vector. Raises LocalError on a missing, unknown or misshapen tensor."""
        vec = np.empty(self.size, np.float32)
        views = self.views(vec)
        if unknown := set(arrays) ^ set(views):
            raise LocalError(f"tensors do not match the layout: {', '.join(sorted(unknown))}")
        for name, view in views.items():
            if arrays[name].shape != view.shape:
                raise LocalError(f"tensor {name} has shape {arrays[name].shape}, the layout says {view.shape}")
            view[...] = arrays[name]
        return vec

    def check(self, vec: Vec) -> None:
        """Raises LocalError unless vec is a C-contiguous float32[size]."""
        if vec.dtype != np.float32 or vec.shape != (self.size,) or not vec.flags.c_contiguous:
            raise LocalError(f"expected a contiguous float32[{self.size}], got {vec.dtype}{list(vec.shape)}")
