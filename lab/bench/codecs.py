"""`bench codecs`: bits, entropy, error and speed of codecs, beside memcpy and plain rivals in the
same run.

What is timed. Encoding goes through the public `Codec.encode`, which makes its own output; decoding
writes into a vector of ours that has been written to before, and memcpy copies the same float32[n]
into that same vector. All coders of a codec, its decoders and the rivals are timed in turn, and
memcpy between every coder's encoding and decoding; speeds are from medians. A ratio to memcpy is
the median over rounds of memcpy's time right beside that coder to the codec's time in the same
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

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgegossip import native
from edgegossip.codecs import Body, Codec, Ctx, bits_per_value, relative_error
from edgegossip.codecs.claims import entropy_bits
from edgegossip.codecs.sparse import counts as sparse_counts
from edgegossip.layout import Layout
from edgegossip.native import half, sparse
from edgegossip.types import UsageError
from lab.bench.cases import Case, description
from lab.bench.inputs import Input
from lab.bench.numpy_elias import NumpyElias, Piece
from lab.bench.timing import Times, cache_sweep, in_turn
from lab.bench.torch_codecs import default_levels, rival, tuned_rival
from lab.bench.torch_quantisers import decode_model, encode_model, views

Row = dict[str, Any]
_ROUND = 1_000_000  # of the messages: after any warm-up
_SPARSE = ("topk", "dgc")


@dataclass(frozen=True, slots=True)
class Settings:
    """Says how a case is timed, and beside what."""

    repeat: int = 5  # rounds at least
    at_least_s: float = 0.0  # time that they take at least
    threads: int = 1  # of torch; the product's kernels take EDGEGOSSIP_THREADS
    key: int = 1
    rivals: bool = True
    compiled: bool = False  # tuned rivals, by torch.compile
    caches: str = "cold"  # or "warm": what a timed call finds there


@dataclass(slots=True)
class _Product:
    """A codec with one entropy coder, with its first body and the state after it."""

    codec: Codec[Any]
    body: Body
    state: Any

    @classmethod
    def of(cls, codec: Codec[Any], data: Input, ctx: Ctx) -> _Product:
        body, state = codec.encode(data.x, codec.init(data.layout), ctx)
        return cls(codec, body, state)


def measure(case: Case, data: Input, settings: Settings) -> list[Row]:
    """Return one row for each entropy coder of a case on one input."""
    ctx = Ctx(settings.key, _ROUND, lr=0.1)
    coders = case.coders or (None,)
    products = {coder or "": _Product.of(case.build(coder), data, ctx) for coder in coders}
    work = _Work(data, settings)
    for coder, product in products.items():
        work.product(coder, product, Ctx(settings.key, _ROUND + 1, lr=0.1))
    name, params = description(next(iter(products.values())).codec)
    if settings.rivals:
        work.rivals(name, params, elias="elias" in products)
    with torch_threads(settings.threads):
        before = cache_sweep() if settings.caches == "cold" else None
        times = in_turn(work.functions, settings.repeat, work.slow, at_least_s=settings.at_least_s, before=before)
    found = _entropy(case, data, ctx)
    return [_row(case, coder, products[coder], data, name, params, times, found) for coder in products]


class _Work:
    """The functions to time, by name."""

    def __init__(self, data: Input, settings: Settings) -> None:
        self.data, self.settings = data, settings
        self.out = np.ones_like(data.x)  # written to, so that no page is missing
        self.functions: dict[str, Callable[[], object]] = {}
        self.slow: set[str] = set()

    def product(self, coder: str, product: _Product, ctx: Ctx) -> None:
        """Measure with a memcpy of its own, next to both that are compared with it."""
        data, out, codec, body, state = self.data, self.out, product.codec, product.body, product.state
        self.functions[f"encode {coder}"] = lambda: codec.encode(data.x, state, ctx)
        self.functions[f"memcpy {coder}"] = lambda: np.copyto(out, data.x)
        self.functions[f"decode {coder}"] = lambda: codec.decode(body, data.layout, out)
        self.functions[f"add {coder}"] = lambda: codec.decode(body, data.layout, out, 0.5)

    def rivals(self, name: str, params: dict[str, Any], *, elias: bool) -> None:
        x, out, layout = torch.from_numpy(self.data.x), torch.from_numpy(self.out), self.data.layout
        tuned = tuned_rival(name, params, compiled=self.settings.compiled)
        for title, codec in (("torch", rival(name, params)), ("tuned", tuned)):
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
    """Return the numpy version of qsgd or elastiquant with Elias codes, where it exists: L2 norms,
    buckets of at most 512."""
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
    """Have torch use so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _entropy(case: Case, data: Input, ctx: Ctx) -> Entropy | None:
    if not case.coders:
        return None
    raw = _Product.of(case.build("raw"), data, ctx)
    form = code_form(raw.codec, raw.body)
    return None if form is None else entropy(raw.body, data.layout, form)


def _row(
    case: Case,
    coder: str,
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

    encode, decode, memcpy = f"encode {coder}", f"decode {coder}", f"memcpy {coder}"
    fast, slow = times.quartiles(memcpy)
    elias = coder == "elias"
    return {
        "codec": case.label,
        "stage": coder or None,
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
        "decode_add_mb_s": mb_s(f"add {coder}"),
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


# Order-0 entropy of the symbols that a quantised codec sends, counted in a body that is not entropy
# coded (`raw`). This reads the wire format on its own (docs/wire-format.md: "Quantised bodies"), so
# that the figure does not rest on the code that it judges. With the same key and state all entropy
# coders are given the same symbols.

_RAW = 0
_CHUNK = 1 << 20  # codes


@dataclass(frozen=True, slots=True)
class CodeForm:
    """Says how a raw body holds its codes: bytes before the first section, bits a code, values a
    scale of 2 bytes (0: a tensor has one of 4)."""

    head_bytes: int
    bits: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Entropy:
    """Bits a value: with a distribution of its own for each tensor (mean over all values), and one
    for all."""

    by_tensor: float
    overall: float


def code_form(codec: Codec[Any], body: Body) -> CodeForm | None:
    """Return the form of this codec's raw bodies; None for a codec without quantised symbols."""
    params, wire_id = codec.wire_params(), codec.wire_id
    if wire_id in (5, 6):  # qsgd, qsgd-inf
        return CodeForm(0, *struct.unpack("<BI", params))
    if wire_id == 7:  # elastiquant
        bits, _, bucket = struct.unpack_from("<BBI", params)
        return CodeForm(0, bits, bucket)
    if wire_id == 8:  # elasticl: its number of levels leads the body
        return CodeForm(2, 1 + struct.unpack_from("<H", body)[0].bit_length(), 0)
    bits_a_code = {9: 4, 10: 2, 11: 1}  # co3, terngrad, signsgd
    return CodeForm(0, bits_a_code[wire_id], 0) if wire_id in bits_a_code else None


def entropy(body: Body, layout: Layout, form: CodeForm) -> Entropy:
    """Return the entropy of the codes in a raw body. Raises UsageError when it is not raw or has
    another size."""
    data = np.frombuffer(body, np.uint8)
    at, bits, everything = form.head_bytes, 0.0, np.zeros(1 << form.bits, np.int64)
    for tensor in layout.tensors:
        if not tensor.size:
            continue
        scale_bytes = 2 * -(-tensor.size // form.bucket) if form.bucket else 4
        start = at + 1 + scale_bytes
        at = start + (tensor.size * form.bits + 7) // 8
        if at > data.size or data[start - 1 - scale_bytes] != _RAW:
            raise UsageError(f"the section of tensor {tensor.name} is not a raw one")
        counts = _counts(data[start:at], tensor.size, form.bits)
        bits += entropy_bits(counts) * tensor.size
        everything += counts
    if at != data.size:
        raise UsageError(f"a raw body of {data.size} bytes has {data.size - at} bytes after its last section")
    return Entropy(bits / layout.size, entropy_bits(everything))


def _counts(packed: NDArray[np.uint8], n: int, bits: int) -> NDArray[np.int64]:
    """How often each of the 2^bits codes occurs among n, packed from the lowest bit on."""
    counts = np.zeros(1 << bits, np.int64)
    weights = 1 << np.arange(bits, dtype=np.int64)
    step = _CHUNK * bits // 8
    for first in range(0, packed.size, step):
        here = min(_CHUNK, n - first * 8 // bits)
        if bits == 8:
            codes = packed[first : first + step]
        elif bits == 4:
            pair = packed[first : first + step]
            codes = np.stack((pair & 15, pair >> 4), axis=1).reshape(-1)[:here]
        else:
            stream = np.unpackbits(packed[first : first + step], bitorder="little")[: here * bits]
            codes = stream.reshape(here, bits) @ weights
        counts += np.bincount(codes, minlength=1 << bits)
    return counts
