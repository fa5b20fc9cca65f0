"""The conformance list: every codec that the laws of test_laws.py are held to, with the error bound that its file states.

A new codec is one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec

Bound = Callable[[Vec, Layout], NDArray[np.float64]]  # x, layout -> largest |x' - x| allowed, per value


@dataclass(frozen=True)
class Case:
    """A codec with parameters."""

    name: str
    bound: Bound
    params: Mapping[str, Any] = field(default_factory=dict)

    def codec(self) -> codecs.Codec[Any]:
        return codecs.get(self.name, **self.params)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.params.items())])


def exact(x: Vec, layout: Layout) -> NDArray[np.float64]:
    return np.zeros(x.size)


def nearest_binary16(x: Vec, layout: Layout) -> NDArray[np.float64]:
    size = np.abs(x.astype(np.float64))
    return np.maximum(np.maximum(size * 2.0**-11, 2.0**-25), size - 65504.0)


def nearest_bfloat16(x: Vec, layout: Layout) -> NDArray[np.float64]:
    return np.maximum(np.abs(x.astype(np.float64)) * 2.0**-8, 2.0**-134)


def half_a_step(x: Vec, layout: Layout) -> NDArray[np.float64]:
    bound = np.abs(x.astype(np.float64)) * 2.0**-23 + 2.0**-149
    for k in range(len(layout.tensors)):
        part = slice(layout.offsets[k], layout.offsets[k + 1])
        if x[part].size:
            bound[part] += 0.52 * (float(x[part].max()) - float(x[part].min())) / 255
    return bound


CASES = (
    Case("fp32", exact),
    Case("fp16", nearest_binary16),
    Case("bf16", nearest_bfloat16),
    Case("minmax8", half_a_step),
)

_scales = st.sampled_from([1e-44, 1e-38, 1e-6, 1.0, 300.0, 1e6, 1e30, 3.4e38])
_offsets = st.sampled_from([0.0, 0.0, 1.0, -1e3, 1e6, 1e37])


@st.composite
def models(draw: st.DrawFn) -> tuple[Layout, Vec]:
    """A layout of one to four tensors, some of them empty or scalar, and finite values of very different sizes in them."""
    shapes = draw(st.lists(st.lists(st.integers(0, 7), max_size=2).map(tuple), min_size=1, max_size=4))
    layout = Layout.of(TensorSpec(f"t{k}", shape) for k, shape in enumerate(shapes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    parts = [
        rng.uniform(-1, 1, t.size) * draw(_scales) * (rng.random(t.size) < draw(st.sampled_from([1.0, 0.5, 0.0])))
        + draw(_offsets)
        for t in layout.tensors
    ]
    limit = np.finfo(np.float32).max
    return layout, np.clip(np.concatenate(parts), -limit, limit).astype(np.float32)
