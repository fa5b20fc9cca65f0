"""Where the time of an int8 step goes, by kernel, and how much of the machine's integer rate its
products reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from edgegossip.lab.bench.int8.variants import Training
from edgegossip.native import int8 as native

_FUNCTIONS = (
    "quantise",
    "conv",
    "conv_backward",
    "evonorm",
    "evonorm_backward",
    "conv_evonorm",
    "conv_evonorm_backward",
    "add",
    "relu",
    "relu_backward",
    "slice_maps",
    "slice_backward",
    "pad",
    "max_pool",
    "max_pool_backward",
    "average_pool",
    "average_pool_backward",
)


def breakdown(training: Training, repeat: int) -> tuple[dict[str, float], float]:
    """Milliseconds of a step by kernel ("other": python, torch, loss and optimiser), and products a
    second, in 1e9, of the convolutions and linear layers (a norm that is computed with the
    convolution before it counts with it)."""
    taken = dict.fromkeys((*_FUNCTIONS, "other"), 0.0)
    training.step()  # after whatever ran before
    with _timed(taken) as products:
        start = perf_counter()
        for _ in range(repeat):
            training.step()
        total = perf_counter() - start
    taken["other"] = total - sum(taken.values())
    in_products = sum(seconds for name, seconds in taken.items() if name.startswith("conv"))
    rate = products[0] / in_products / 1e9 if in_products else 0.0
    return {name: 1e3 * seconds / repeat for name, seconds in taken.items() if seconds}, rate


@contextmanager
def _timed(taken: dict[str, float]) -> Iterator[list[float]]:
    """While inside, the kernels' wrappers add their seconds to `taken` and their products to the
    list's only element."""
    originals = {name: getattr(native, name) for name in _FUNCTIONS}
    products = [0.0]

    def wrapped(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any, **kwargs: Any) -> None:
            start = perf_counter()
            function(*args, **kwargs)
            taken[name] += perf_counter() - start
            if name in ("conv", "conv_evonorm"):
                products[0] += _products(args[0])
            elif name == "conv_backward":
                asked = (args[6] is not None) + (args[7] is not None)
                products[0] += asked * _products(args[0])
            elif name == "conv_evonorm_backward":
                asked = (args[5] is not None) + (args[6] is not None)
                products[0] += asked * _products(args[0].shape)

        return timed

    try:
        for name, function in originals.items():
            setattr(native, name, wrapped(name, function))
        yield products
    finally:
        for name, function in originals.items():
            setattr(native, name, function)


def _products(s: native.ConvShape) -> float:
    return float(s.batch * s.out_height * s.out_width * s.outputs * (s.inputs // s.groups) * s.kernel_h * s.kernel_w)


def largest_rate(threads: int) -> float:
    """Products a second, in 1e9, of one large convolution forward, whose maps and weights stay in
    the cache: what the integer units of this machine give in practice."""
    shape = native.ConvShape(8 * threads, 16, 16, 128, 64, 3, 3, 1, 1, 1, 1, 1)
    size = shape.height * shape.width * shape.inputs
    x, weight = native.Maps.empty(shape.batch, size), np.ones(64 * 128 * 9, np.float32)
    native.quantise(np.linspace(-1, 1, shape.batch * size, dtype=np.float32), shape.batch, x)
    out = native.Maps.empty(shape.batch, 16 * 16 * 64)
    best = float("inf")
    for _ in range(5):
        start = perf_counter()
        native.conv(shape, x, weight, None, out, threads=threads)
        best = min(best, perf_counter() - start)
    return _products(shape) / best / 1e9
