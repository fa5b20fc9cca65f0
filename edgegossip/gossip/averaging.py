"""The averaging rate eta: how far a node goes towards what its neighbours say."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edgegossip.codecs.base import Codec, Ctx
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import Vec

SMALLEST = 0.005
NEARLY_EXACT = 0.95  # share of the energy kept above which a codec counts as uncompressed
WAITS = 1.5  # most that a value may have been mixed with by the time that it is said anew

_PROBE = Layout.of([TensorSpec("probe", (64, 64))])


def default_eta(codec: Codec[Any]) -> float:
    """1 without compression, smaller as compression grows: the square of the share of a normal
    vector's energy that one message keeps (Aketi et al. 2021, section 8.1: 0.007 for 99 % top-k
    sparsification, where the authors use 0.01), and at most WAITS times the share of the values
    that a message holds, where it leaves some out.

    The bound is not the authors'. Of values of one size only the share s is said in a round, so
    each is said every 1 / s rounds, and until then is mixed as it was: d <- (1 - eta l / s) d over
    that time, l an eigenvalue of I - W, which shrinks only for eta l / s < 2. On rings l goes up to
    4/3. The square alone gives 0.52 for 75 % sparsification, with which CHOCO-SGD on a ring
    diverges."""
    try:
        hash(codec)
    except TypeError:
        return _measured(codec)
    return _remembered(codec)  # type: ignore[arg-type]


def _measured(codec: Any) -> float:
    kept = _kept(codec, _draw(1).standard_normal(_PROBE.size, np.float32))
    if kept >= NEARLY_EXACT:
        return 1.0
    return max(SMALLEST, min(max(kept, 0.0) ** 2, WAITS * _share(codec)))


_remembered = lru_cache(maxsize=64)(_measured)  # by codec: measuring takes as long as a hundred small messages


def _kept(codec: Codec[Any], x: Vec) -> float:
    error = x - _through(codec, x)
    return 1.0 - float(np.dot(error, error)) / float(np.dot(x, x))


def _share(codec: Codec[Any]) -> float:
    """Return which share of the values of a vector a message tells, where all have about one size."""
    sizes = 1.0 + 1e-3 * _draw(3).random(_PROBE.size)
    flat = (_draw(2).choice((-1.0, 1.0), _PROBE.size) * sizes).astype(np.float32)
    return float(np.count_nonzero(_through(codec, flat)) / _PROBE.size)  # a checkpoint keeps no numpy scalar


def _through(codec: Codec[Any], x: Vec) -> Vec:
    body, _ = codec.encode(x, codec.init(_PROBE), Ctx(key=1, round=0, loss=1.0, lr=1.0))
    return codec.decode(body, _PROBE)


def _draw(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key))
