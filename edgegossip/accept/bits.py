"""Every codec and int8 kernel on fixed inputs: the hash of what comes out is the same on every
machine, and bits.json has it. `python -m edgegossip.accept.bits` prints that file anew, by the
portable kernels of the machine that it runs on; a change of it is a change of what boards agree on.

Inputs are made of integers by single roundings, so that they are alike everywhere, too: a library's
normal distribution may differ in the last bit from one libm to the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import codecs, native
from edgegossip.codecs.base import Ctx
from edgegossip.layout import Layout, TensorSpec
from edgegossip.native import int8
from edgegossip.native.int8 import Maps
from edgegossip.types import EdgegossipError, Vec

LAYOUT = Layout.of([TensorSpec("matrix", (96, 64)), TensorSpec("filters", (24, 8, 3, 3)), TensorSpec("bias", (33,))])
ANY = "any"  # the instruction set of a kernel that is the same code on all
_PIXELS, _CHANNELS, _OUTPUTS, _SIDE = 256, 16, 24, 16
_TOKENS, _FEATURES, _HEADS = 16, 64, 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """Is one kernel with its inputs: `call` takes an instruction set, and fills `out`."""

    name: str
    call: Callable[[str | None], object]
    out: Sequence[NDArray[Any]]
    values: int  # that go in, of a batch
    by_isa: bool = True  # False: the same code on all


def expected() -> dict[str, str]:
    """Return the hash of every codec and kernel, by its name."""
    text = (files("edgegossip.accept") / "bits.json").read_text("utf-8")
    hashes: dict[str, str] = json.loads(text)
    return hashes


def numbers(count: int, seed: int, width: float = 1.0) -> Vec:
    """Return float32 values in (-width, width), more of them small than large. `width` is a power
    of two."""
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(1 - 2**20, 2**20, count)
    x = drawn.astype(np.float32) / np.float32(2**20)
    return np.asarray(x * x * x * np.float32(width))


def codec_hash(name: str, isa: str | None = None) -> str:
    """Encode, decode, encode again with what the codec remembers; hash the bytes and the values."""
    with _on(isa):
        codec, x = codecs.get(name), numbers(LAYOUT.size, 1, 2**-5)
        state, found = codec.init(LAYOUT), hashlib.sha256()
        for round in range(2):
            body, state = codec.encode(x, state, Ctx(key=7, round=round, loss=1.0, lr=0.1))
            found.update(body)
            found.update(np.ascontiguousarray(codec.decode(body, LAYOUT), "<f4").tobytes())
    return found.hexdigest()[:16]


def kernel_hash(kernel: Kernel, isa: str | None = None) -> str:
    """Run a kernel, and hash what it filled."""
    found = hashlib.sha256()
    kernel.call(isa)
    for array in kernel.out:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def faults(isas: Sequence[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """Run everything on every instruction set of this machine: (name, instruction set, what is
    wrong, or "" for the right bits)."""
    right, sets = expected(), native.available_isas() if isas is None else isas
    ours = [(f"codec {name}", partial(codec_hash, name), sets) for name in codecs.names()]
    ours += [(f"int8 {k.name}", partial(kernel_hash, k), sets if k.by_isa else [ANY]) for k in kernels(3)]
    for name, hash_on, where in ours:
        for isa in where:
            try:
                found = hash_on(None if isa == ANY else isa)
            except (EdgegossipError, ValueError, TypeError, ArithmeticError) as error:
                yield name, isa, str(error)
                continue
            known = right.get(name)
            yield name, isa, "" if found == known else f"the bits are {found} and not {known}"


@contextmanager
def _on(isa: str | None) -> Iterator[None]:
    """Codecs take the instruction set of the environment."""
    if isa is None:
        yield
        return
    before = os.environ.get("EDGEGOSSIP_ISA")
    os.environ["EDGEGOSSIP_ISA"] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ["EDGEGOSSIP_ISA"]
        else:
            os.environ["EDGEGOSSIP_ISA"] = before


def kernels(batch: int) -> list[Kernel]:
    """Return every int8 kernel with inputs of `batch` samples. They run on one thread."""
    maps = _quantised(batch, _PIXELS * _CHANNELS, 2)
    return [
        *_of_maps(batch, maps),
        *_of_convolutions(batch, maps),
        *_of_pooling(batch, maps),
        *_of_sequences(batch),
    ]


def _quantised(batch: int, size: int, seed: int) -> Maps:
    out = Maps.empty(batch, size)
    int8.quantise(numbers(batch * size, seed), batch, out, "portable", 1)
    return out


def _of_maps(batch: int, maps: Maps) -> Iterator[Kernel]:
    size = _PIXELS * _CHANNELS
    total, x, g = batch * size, numbers(batch * size, 3), numbers(batch * size, 4)
    other, out, dx = _quantised(batch, size, 5), Maps.empty(batch, size), np.empty(batch * size, np.float32)

    yield Kernel("quantise", lambda isa: int8.quantise(x, batch, out, isa, 1), out, total)
    yield Kernel("add", lambda isa: int8.add(maps, other, out, isa, 1), out, total)
    yield Kernel("relu", lambda _: int8.relu(maps.q, maps.zero, out.q, 1), [out.q], total, by_isa=False)
    yield Kernel("relu_backward", lambda _: int8.relu_backward(maps.q, maps.zero, g, dx, 1), [dx], total, by_isa=False)
    yield Kernel("gelu", lambda isa: int8.gelu(maps, out, isa, 1), out, total)
    yield Kernel("gelu_backward", lambda _: int8.gelu_backward(maps, g, dx, 1), [dx], total, by_isa=False)


def _of_convolutions(batch: int, x: Maps) -> Iterator[Kernel]:
    shape = int8.ConvShape(batch, _SIDE, _SIDE, _CHANNELS, _OUTPUTS, 3, 3, 1, 1, 1, 1, 1)
    norm = int8.NormShape(batch, _PIXELS, _OUTPUTS, 8, 16)
    inputs, outputs = batch * _PIXELS * _CHANNELS, batch * _PIXELS * _OUTPUTS
    weight, bias = numbers(9 * _CHANNELS * _OUTPUTS, 6), numbers(_OUTPUTS, 7)
    by = int8.NormParameters(*(numbers(_OUTPUTS, seed) for seed in (8, 9, 10)))
    y, z = _quantised(batch, _PIXELS * _OUTPUTS, 11), Maps.empty(batch, _PIXELS * _OUTPUTS)
    made = Maps.empty(batch, _PIXELS * _OUTPUTS)
    g, dy = numbers(outputs, 12), np.empty(outputs, np.float32)
    dx, dw, db = (np.empty(n, np.float32) for n in (inputs, weight.size, _OUTPUTS))
    of_norm = int8.NormParameters(*(np.empty(_OUTPUTS, np.float32) for _ in range(3)))

    both, gradients = int8.ConvPass(shape, x, weight, 13, True), (dx, dw, db)

    def backward(wide: bool) -> Callable[[str | None], object]:
        return lambda isa: int8.conv_backward(shape, x, weight, g, 13, wide, dx, dw, db, isa, 1)

    yield Kernel("conv", lambda isa: int8.conv(shape, x, weight, bias, made, isa, 1), made, inputs)
    yield Kernel("conv_backward", backward(True), gradients, inputs)
    yield Kernel("conv_backward_8", backward(False), gradients, inputs)
    yield Kernel("evonorm", lambda isa: int8.evonorm(norm, y, by, z, isa, 1), z, outputs)
    yield Kernel(
        "evonorm_backward",
        lambda isa: int8.evonorm_backward(norm, y, by, g, dy, of_norm, isa, 1),
        (dy, *of_norm),
        outputs,
    )
    yield Kernel(
        "conv_evonorm",
        lambda isa: int8.conv_evonorm(shape, x, weight, bias, made, norm, by, z, isa, 1),
        (*made, *z),
        inputs,
    )
    yield Kernel(
        "conv_evonorm_backward",
        lambda isa: int8.conv_evonorm_backward(both, norm, y, by, g, dx, dw, db, of_norm, isa, 1),
        (*gradients, *of_norm),
        inputs,
    )


def _of_pooling(batch: int, x: Maps) -> Iterator[Kernel]:
    half = _SIDE // 2
    shape = int8.PoolShape(batch, _SIDE, _SIDE, _CHANNELS, 3, 3, 2, 2, 1, 1, half, half)
    inputs, outputs = batch * _PIXELS * _CHANNELS, batch * half * half * _CHANNELS
    q, tap = np.empty(outputs, np.int8), np.empty(2 * outputs, np.uint8)
    taps = np.empty(2 * outputs, np.uint8)
    int8.max_pool(shape, x.q, q, taps, "portable", 1)
    g, means, dx = numbers(outputs, 14), np.empty(outputs, np.float32), np.empty(inputs, np.float32)

    yield Kernel("max_pool", lambda isa: int8.max_pool(shape, x.q, q, tap, isa, 1), (q, tap), inputs)
    yield Kernel(
        "max_pool_backward", lambda _: int8.max_pool_backward(shape, taps, g, dx, 1), [dx], inputs, by_isa=False
    )
    yield Kernel("average_pool", lambda _: int8.average_pool(shape, x, True, means, 1), [means], inputs, by_isa=False)
    yield Kernel(
        "average_pool_backward", lambda _: int8.average_pool_backward(shape, g, True, dx, 1), [dx], inputs, by_isa=False
    )


def _of_sequences(batch: int) -> Iterator[Kernel]:
    size, width = _TOKENS * _FEATURES, _FEATURES // _HEADS
    total = batch * size
    q, k, v = (_quantised(batch, size, seed) for seed in (15, 16, 17))
    call = int8.AttentionPass(
        int8.AttentionShape(batch, _TOKENS, _TOKENS, _HEADS, width), q, k, v, None, (1, 1, 1), 0.0, 18
    )
    norm = int8.LayerNormShape(batch, _TOKENS, _FEATURES, 8)
    words = int8.EmbeddingShape(batch, _TOKENS, 100, _FEATURES)
    ids = np.random.Generator(np.random.PCG64(19)).integers(0, 100, batch * _TOKENS)
    table, gamma, beta, g = (
        numbers(100 * _FEATURES, 20),
        numbers(_FEATURES, 21),
        numbers(_FEATURES, 22),
        numbers(total, 23),
    )
    out, values = Maps.empty(batch, size), np.empty(total, np.float32)
    dq, dk, dv = (np.empty(total, np.float32) for _ in range(3))
    of_table, dgamma, dbeta = np.empty(table.size, np.float32), np.empty_like(gamma), np.empty_like(beta)

    yield Kernel("attention", lambda isa: int8.attention(call, values, isa, 1), [values], total)
    yield Kernel(
        "attention_backward",
        lambda isa: int8.attention_backward(call, g, dq, dk, dv, isa, 1),
        (dq, dk, dv),
        total,
    )
    yield Kernel(
        "layernorm",
        lambda isa: int8.layernorm(norm, q, gamma, beta, 0.125, 2**-16, out, isa, 1),
        out,
        total,
    )
    yield Kernel(
        "layernorm_backward",
        lambda isa: int8.layernorm_backward(norm, q, gamma, 0.125, 2**-16, g, values, dgamma, dbeta, isa, 1),
        (values, dgamma, dbeta),
        total,
    )
    yield Kernel("embedding", lambda isa: int8.embedding(words, ids, table, out, isa, 1), out, total)
    yield Kernel(
        "embedding_backward",
        lambda isa: int8.embedding_backward(words, ids, g, 24, True, None, of_table, isa, 1),
        [of_table],
        total,
    )


def made_anew() -> dict[str, str]:
    """Return what bits.json holds, by the portable kernels."""
    found = {f"codec {name}": codec_hash(name, "portable") for name in codecs.names()}
    return found | {f"int8 {kernel.name}": kernel_hash(kernel, "portable") for kernel in kernels(3)}


if __name__ == "__main__":
    print(json.dumps(made_anew(), indent=1))
