"""Draws vectors like gradients, to try codecs on: generalised normal, with a scale a tensor."""

from __future__ import annotations

import math

import numpy as np

from edgegossip.layout import Layout
from edgegossip.types import Vec

Shape = tuple[int, ...]
BETA = 0.6  # shape of the generalised normal law that gradients follow (Chen et al. 2022, CO3, section III)


def in_layout(layout: Layout, seed: int) -> Vec:
    """Return a vector of the same law in the tensors of a model, float32[layout.size]."""
    rng = np.random.default_rng(seed)
    return np.concatenate([generalised_normal(rng, spec.size, scale_of(rng, spec.shape)) for spec in layout.tensors])


def scale_of(rng: np.random.Generator, shape: Shape) -> float:
    """Return alpha of a tensor of this shape."""
    alpha = 1e-3 * math.exp(0.5 * rng.standard_normal())
    return alpha * (8.0 if len(shape) <= 1 else 1.0 / math.sqrt(math.prod(shape[1:])))


def generalised_normal(rng: np.random.Generator, size: int, alpha: float) -> Vec:
    """Return float32[size] of the generalised normal law with shape BETA and scale alpha."""
    values = rng.standard_gamma(1.0 / BETA, size, dtype=np.float32)
    np.power(values, np.float32(1.0 / BETA), out=values)
    values *= np.float32(alpha)
    signs = rng.random(size, dtype=np.float32) - np.float32(0.5)
    np.copysign(values, signs, out=values)
    return values
