"""The conformance list's lines for the quantised codecs, their presets and the wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.layout import Layout
from edgegossip.types import Vec
from tests.codecs.bounds import (
    ROUNDING,
    TINY,
    Bound,
    either,
    half_a_step,
    nearest_binary16,
    own_norm,
    own_size,
    share_of_bucket_norm,
    tensors,
)
from tests.codecs.case import Case, Memory, case

L2, LINF = 2, np.inf


def stochastic(share: float, bucket: int = 512, norm: float = L2) -> dict[str, Any]:
    """What rounding to one of two neighbouring levels claims; `share`: the widest gap between
    two."""
    return {"bound": share_of_bucket_norm(share, bucket, norm), "unbiased": True, "random": True}


def clipped_to(deviations: float) -> Bound:
    """terngrad: the scale, or what the clip cuts off and the scale."""

    def bound(x: Vec, layout: Layout) -> NDArray[np.float64]:
        parts = []
        for t in tensors(x, layout):
            if t.size:
                scale = min(np.abs(t).max(), deviations * np.sqrt((t * t).mean()))
                parts.append(np.maximum(scale, np.abs(t)) * (1 + ROUNDING) + TINY)
        return np.concatenate(parts) if parts else np.zeros(0)

    return bound


def feedback(decay: float) -> Memory:
    """x + decay e == q + e'."""

    def before(x: Vec, state: Any) -> NDArray[np.floating]:
        return x if state.memory is None else x + float(np.float32(decay)) * state.memory.astype(np.float64)

    after: Callable[[Any], NDArray[np.floating]] = lambda state: state.memory  # noqa: E731
    return Memory(before, after)


CASES: tuple[Case, ...] = (
    case("qsgd", **stochastic(1 / 7)),
    case("qsgd", {"bits": 2, "bucket": 64, "stage": "raw"}, **stochastic(1, 64)),
    case("qsgd", {"bits": 5, "bucket": 8, "stage": "huffman"}, **stochastic(1 / 15, 8)),
    case("qsgd", {"bits": 8, "stage": "zstd"}, **stochastic(1 / 127)),
    case("qsgd", {"bits": 12, "bucket": 0, "stage": "elias"}, **stochastic(1 / 2047, 0)),
    case("qsgd-inf", **stochastic(1 / 7, 512, LINF)),
    case("qsgd-inf", {"bits": 16, "stage": "raw"}, **stochastic(1 / 32767, 512, LINF)),
    case("2-bit-qsgd", **stochastic(1)),
    case("4-bit-qsgd", **stochastic(1 / 7)),
    case("8-bit-qsgd", **stochastic(1 / 127)),
    case("qsgd-v", **stochastic(1 / 7, 512, LINF)),
    case("elastiquant", **stochastic(0.5)),
    case("elastiquant", {"bits": 8, "stage": "huffman"}, **stochastic(0.1)),
    case("elastiquant", {"bits": 3, "ratio": 0.3, "bucket": 32, "stage": "elias"}, **stochastic(0.7, 32)),
    case("elastiquant", {"levels": (0.0, 0.1, 0.3, 1.0), "norm": "linf"}, **stochastic(0.7, 512, LINF)),
    case("4-bit-elastiquant", **stochastic(0.5)),
    case("8-bit-elastiquant", **stochastic(0.1)),
    case("e-elastiquant", **stochastic(0.5)),
    case("elasticl", **stochastic(1 / 127, 0)),
    case("elasticl", {"s0": 300, "smoothing": 0.0, "stage": "raw"}, **stochastic(1 / 300, 0)),
    case("co3", bound=own_size, memory=feedback(0.9)),
    case("co3", {"gamma": 0.0, "stage": "auto"}, bound=own_size),
    case("terngrad", bound=clipped_to(2.5), random=True),
    case("terngrad", {"clip": 0.0, "stage": "elias"}, **stochastic(1, 0, LINF)),
    case("signsgd", norm_bound=own_norm),
    case("signsgd", {"stage": "auto"}, norm_bound=own_norm),
    case("ef-signsgd", norm_bound=own_norm, memory=feedback(1.0)),
    case("error-feedback", norm_bound=own_norm, memory=feedback(1.0)),
    case("error-feedback", {"codec": "topk", "decay": 0.5}, bound=own_size, memory=feedback(0.5)),
    case(
        "per-tensor",
        {"codec": "qsgd", "tensors": "t[02]", "other": "minmax8"},
        bound=either(share_of_bucket_norm(1 / 7, 512, L2), half_a_step),
        random=True,
    ),
    case("small-tensors", bound=either(share_of_bucket_norm(0.5, 512, L2), nearest_binary16), random=True),
    case(
        "small-tensors",
        {"codec": "e-elastiquant", "below": 50, "other": "fp32"},
        **stochastic(0.5),
    ),
)
