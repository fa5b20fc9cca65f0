"""`bench codecs`: bits, entropy, error and speed of codecs, beside memcpy and plain rivals in the
same run.

What is timed. Encoding goes through the public `Codec.encode`, which makes its own output; decoding
writes into a vector of ours that has been written to before, and memcpy copies the same float32[n]
into that same vector. All stages of a codec, its decoders and the rivals are timed in turn, and
memcpy between every stage's encoding and decoding; speeds are from medians. A ratio to memcpy is
the median over rounds of memcpy's time right beside that stage to the codec's time in the same
round, so that memory which is slower for a while is so for both; ratios to rivals, which sit out
when they take long, are of two medians. memcpy's quartiles say how much it varied. Each (but the
rivals, which take long) finds caches in which nothing of it is: so does a codec in a step, where
layers, the optimiser and the network come between. With caches = "warm" each runs right after a run
of its own that does not count: memcpy of 8 MB is then a copy from cache to cache, up to three times
as fast, and which part of them stays there changes from run to run. MB are 10^6 bytes of float32,
before encoding and after decoding. Codecs with a memory are timed from their second message on.
Bits, entropy and error are those of the first message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from edgegossip import native
from edgegossip.codecs import Body, Codec, Ctx, bits_per_value, relative_error
from edgegossip.codecs.sparse import counts as sparse_counts
from edgegossip.lab.bench.cases import Case, description
from edgegossip.lab.bench.inputs import Input
from edgegossip.lab.bench.numpy_elias import NumpyElias, Piece
from edgegossip.lab.bench.symbols import Entropy, code_form, entropy
from edgegossip.lab.bench.timing import Times, cache_sweep, in_turn
from edgegossip.lab.bench.torch_codecs import default_levels, rival, tuned_rival
from edgegossip.lab.bench.torch_codecs.base import decode_model, encode_model, views
from edgegossip.native import half, sparse

Row = dict[str, Any]
_ROUND = 1_000_000  # of the messages: after any warm-up
_SPARSE = ("topk", "dgc")


@dataclass(frozen=True, slots=True)
class Settings:
    repeat: int = 5  # rounds at least
    at_least_s: float = 0.0  # time that they take at least
    threads: int = 1  # of torch; the product's kernels take EDGEGOSSIP_THREADS
    key: int = 1
    rivals: bool = True
    caches: str = "cold"  # or "warm": what a timed call finds there


@dataclass(slots=True)
class _Product:
    """A codec in one stage, with its first body and the state after it."""

    codec: Codec[Any]
    body: Body
    state: Any

    @classmethod
    def of(cls, codec: Codec[Any], data: Input, ctx: Ctx) -> _Product:
        body, state = codec.encode(data.x, codec.init(data.layout), ctx)
        return cls(codec, body, state)


def measure(case: Case, data: Input, settings: Settings) -> list[Row]:
    """One row for each stage of a case on one input."""
    ctx = Ctx(settings.key, _ROUND, lr=0.1)
    stages = case.stages or (None,)
    products = {stage or "": _Product.of(case.build(stage), data, ctx) for stage in stages}
    work = _Work(data, settings)
    for stage, product in products.items():
        work.product(stage, product, Ctx(settings.key, _ROUND + 1, lr=0.1))
    name, params = description(next(iter(products.values())).codec)
    if settings.rivals:
        work.rivals(name, params, elias="elias" in products)
    with torch_threads(settings.threads):
        before = cache_sweep() if settings.caches == "cold" else None
        times = in_turn(work.functions, settings.repeat, work.slow, at_least_s=settings.at_least_s, before=before)
    found = _entropy(case, data, ctx)
    return [_row(case, stage, products[stage], data, name, params, times, found) for stage in products]


class _Work:
    """The functions to time, by name."""

    def __init__(self, data: Input, settings: Settings) -> None:
        self.data, self.settings = data, settings
        self.out = np.ones_like(data.x)  # written to, so that no page is missing
        self.functions: dict[str, Callable[[], object]] = {}
        self.slow: set[str] = set()

    def product(self, stage: str, product: _Product, ctx: Ctx) -> None:
        """With a memcpy of its own, next to both that are compared with it."""
        data, out, codec, body, state = self.data, self.out, product.codec, product.body, product.state
        self.functions[f"encode {stage}"] = lambda: codec.encode(data.x, state, ctx)
        self.functions[f"memcpy {stage}"] = lambda: np.copyto(out, data.x)
        self.functions[f"decode {stage}"] = lambda: codec.decode(body, data.layout, out)
        self.functions[f"add {stage}"] = lambda: codec.decode(body, data.layout, out, 0.5)

    def rivals(self, name: str, params: dict[str, Any], *, elias: bool) -> None:
        x, out, layout = torch.from_numpy(self.data.x), torch.from_numpy(self.out), self.data.layout
        for title, codec in (("torch", rival(name, params)), ("tuned", tuned_rival(name, params))):
            if codec is not None:
                parts = encode_model(codec, x, layout)
                self._rival(f"{title} encode", partial(encode_model, codec, x, layout))
                self._rival(f"{title} decode", partial(decode_model, codec, parts, out, layout))
        if name in _SPARSE:
            self._selection(params["ratio"])
        if elias and (numpy := numpy_elias(name, params)) is not None:
            pieces: list[Piece] = numpy.encode(self.data.x)
            self._rival("numpy encode", lambda: numpy.encode(self.data.x))
            self._rival("numpy decode", lambda: numpy.decode(pieces, self.out))

    def _selection(self, ratio: float) -> None:
        """The largest values of every tensor: ours with their positions coded, torch's as
        torch.topk leaves them."""
        x, layout = self.data.x, self.data.layout
        counts = sparse_counts(layout, ratio)
        body = np.ones(sparse.capacity(layout.offsets, counts, "fp32"), np.uint8)
        self.functions["select"] = lambda: sparse.topk_encode(x, layout.offsets, counts, "fp32", body)
        tensors = [(v.view(-1), int(k)) for v, k in zip(views(torch.from_numpy(x), layout), counts, strict=True)]
        self._rival("torch select", lambda: [torch.topk(v.abs(), k, sorted=False) for v, k in tensors])

    def _rival(self, name: str, function: Callable[[], object]) -> None:
        self.functions[name] = function
        self.slow.add(name)


def numpy_elias(name: str, params: dict[str, Any]) -> NumpyElias | None:
    """The numpy version of qsgd or elastiquant with Elias codes, where it exists: L2 norms, buckets
    of at most 512."""
    bits, bucket = params.get("bits", 16), params.get("bucket", 0)
    if not 0 < bucket <= 512 or bits > 8 or params.get("norm", "l2") != "l2":
        return None
    if name == "qsgd":
        return NumpyElias(2 ** (bits - 1) - 1, bucket)
    if name == "elastiquant" and not params.get("levels"):
        return NumpyElias(0, bucket, default_levels(bits, params.get("ratio", 0.0)))
    return None


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch with so many threads, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _entropy(case: Case, data: Input, ctx: Ctx) -> Entropy | None:
    if not case.stages:
        return None
    raw = _Product.of(case.build("raw"), data, ctx)
    form = code_form(raw.codec, raw.body)
    return None if form is None else entropy(raw.body, data.layout, form)


def _row(
    case: Case,
    stage: str,
    product: _Product,
    data: Input,
    name: str,
    params: dict[str, Any],
    times: Times,
    found: Entropy | None,
) -> Row:
    n, layout = data.layout.size, data.layout
    y = product.codec.decode(product.body, layout)

    def mb_s(what: str) -> float | None:
        return 4e-6 * n / times.median(what) if what in times else None

    def ratio(what: str, other: str) -> float | None:
        return times.unpaired(other, what) if other in times else None

    encode, decode, memcpy = f"encode {stage}", f"decode {stage}", f"memcpy {stage}"
    fast, slow = times.quartiles(memcpy)
    elias = stage == "elias"
    return {
        "codec": case.label,
        "stage": stage or None,
        "input": data.name,
        "n": n,
        "bits_per_value": bits_per_value(product.body, layout),
        "entropy_bits": found.by_tensor if found else None,
        "relative_error": relative_error(data.x, y),
        "encode_mb_s": mb_s(encode),
        "decode_mb_s": mb_s(decode),
        "encode_vs_memcpy": times.paired(memcpy, encode),
        "decode_vs_memcpy": times.paired(memcpy, decode),
        "encode_vs_torch": ratio(encode, "torch encode"),
        "isa": native.isa(),
        "decode_vs_torch": ratio(decode, "torch decode"),
        "decode_add_mb_s": mb_s(f"add {stage}"),
        "memcpy_mb_s": mb_s(memcpy),
        "torch_encode_mb_s": mb_s("torch encode"),
        "encode_vs_torch_tuned": ratio(encode, "tuned encode"),
        "decode_vs_torch_tuned": ratio(decode, "tuned decode"),
        "torch_tuned_encode_mb_s": mb_s("tuned encode"),
        "encode_vs_numpy": ratio(encode, "numpy encode") if elias else None,
        "decode_vs_numpy": ratio(decode, "numpy decode") if elias else None,
        "select_vs_torch": ratio("select", "torch select"),
        "index_bits": _index_bits(product, data, params) if name in _SPARSE else None,
        "entropy_global_bits": found.overall if found else None,
        "tensors": len(layout.tensors),
        "family": name,
        "bits": params.get("bits"),
        "memcpy_q1_mb_s": 4e-6 * n / slow,
        "memcpy_q3_mb_s": 4e-6 * n / fast,
        "rounds": times.rounds,
    }


def _index_bits(product: _Product, data: Input, params: dict[str, Any]) -> float:
    """Bits that the body spends on a sent value besides the value itself, heads included."""
    sent = int(sparse_counts(data.layout, params["ratio"]).sum())
    return 8 * memoryview(product.body).nbytes / sent - 8 * half.BYTES[params["values"]]
