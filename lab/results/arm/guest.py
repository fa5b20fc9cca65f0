"""The program whose instructions lab/results/arm_cost.py counts: it runs on an emulated Arm core.

    python guest.py BATCH VALUES MEASURE...

Every MEASURE is done once to warm up and once between two marks (lab/results/arm/blocks.c).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from edgegossip import int8, native
from edgegossip.accept.int8_step import training_of
from edgegossip.native import _native, coding, half, sparse
from edgegossip.native.quantise import LevelKind, Quantiser

START = 7_000_000
GETSID = ctypes.CDLL(None).getsid
LAYERS = {"16x32": (16, 32), "32x16": (32, 16), "64x8": (64, 8)}  # channels, height and width

Work = Callable[[], object]


def step(variant: str, model: str, batch: int) -> Work:
    """Return a training step of a whole model."""
    name, _, dw = variant.partition("-dw")
    return training_of(name, model, batch, int(dw or 16)).step


def convolution(variant: str, layer: str, batch: int) -> Work:
    """Return forward and backward of one 3 x 3 convolution."""
    channels, size = LAYERS[layer]
    torch.manual_seed(0)
    network: nn.Module = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False))
    if variant != "fp32":
        network = int8.convert(network, int(variant.partition("-dw")[2]))
    x = torch.randn(batch, channels, size, size).to(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn(batch, channels, size, size).to(memory_format=torch.channels_last)

    def both() -> None:
        y: Tensor = network(x)
        torch.autograd.backward(y, gradient)

    return both


def codec(name: str, coder: str, way: str, n: int) -> Work:
    """Return the kernel of one codec, one way."""
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    offsets, out = np.array([0, n]), np.empty(n, np.float32)
    room = np.empty(8 * n + 4096, np.uint8)
    if name == "minmax8":
        body = room[: n + 8]
        ways: tuple[Work, Work] = (
            lambda: native.minmax8_encode(x, offsets, body),
            lambda: native.minmax8_decode(body, offsets, out),
        )
    elif name == "fp16":
        body = room[: 2 * n]
        ways = lambda: half.encode("fp16", x, offsets, body), lambda: half.decode("fp16", body, out)
    elif name == "eden":
        body = room[: _native.eden_bytes(offsets, n, 2)]
        ways = (
            lambda: _native.eden_encode(x, offsets, [1], 2, body),
            lambda: _native.eden_decode(body, offsets, [1], 2, out),
        )
    elif name == "topk":
        counts = np.array([n // 100])
        body = room[: sparse.capacity(offsets, counts, "fp32")]
        size = sparse.topk_encode(x, offsets, counts, "fp32", body)
        ways = (
            lambda: sparse.topk_encode(x, offsets, counts, "fp32", body),
            lambda: sparse.topk_decode(body[:size], offsets, out),
        )
    else:
        bits = int(name[-1])
        quantiser = Quantiser(LevelKind.UNIFORM, bits, 2 ** (bits - 1) - 1, 512)
        state = coding.new_state()
        body = np.empty(coding.bound_of(offsets, quantiser, coder), np.uint8)
        size = coding.encode_all(quantiser, x, offsets, [1], coder, state, body)
        ways = (
            lambda: coding.encode_all(quantiser, x, offsets, [1], coder, state, body),
            lambda: coding.decode_all(quantiser, body[:size], 0, offsets, 0, state, out),
        )
    ways[0]()
    return ways[way == "decode"]


def work_of(measure: str, batch: int, n: int) -> Work:
    """Return what a name says: step/VARIANT/MODEL, conv/VARIANT/LAYER or codec/NAME/CODER/WAY."""
    kind, *rest = measure.split("/")
    if kind == "codec":
        name, coder, way = rest
        return codec(name, coder, way, n)
    makers: dict[str, Callable[..., Work]] = {"step": step, "conv": convolution}
    return makers[kind](*rest, batch)


def main() -> None:
    torch.set_num_threads(1)
    batch, n = int(sys.argv[1]), int(sys.argv[2])
    print(torch.__version__, native.isa(), flush=True)
    for number, measure in enumerate(sys.argv[3:], 1):
        work = work_of(measure, batch, n)
        work()
        GETSID(START)
        work()
        GETSID(START - number)
        print(number, measure, flush=True)


if __name__ == "__main__":
    main()
