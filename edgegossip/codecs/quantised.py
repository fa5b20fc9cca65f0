"""Bodies of the quantised codecs: one section a tensor, made and read by native.section.

A section is a stage byte, scales, and codes of a few bits a value: as they are (`raw`), Huffman coded in pairs and runs
(`huffman`), Elias coded (`elias`), or as a zstd frame of the raw codes (`zstd`); `auto` takes the smallest for each tensor.
docs/wire-format.md has every byte.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from edgegossip.codecs.registry import Param

Stage: TypeAlias = Literal["raw", "huffman", "elias", "zstd", "auto"]
STAGE = Param(
    "stage",
    "auto",
    "entropy coding; auto: the smallest for each tensor",
    choices=("raw", "huffman", "elias", "zstd", "auto"),
)
BUCKET = Param(
    "bucket", 512, "values that share a norm: a power of two from 8 to 65536, or 0 for a tensor", low=0, high=65536
)


def bucket_error(bucket: int) -> str:
    """What is wrong with this bucket size; empty when nothing is."""
    if bucket == 0 or (8 <= bucket <= 65536 and bucket & (bucket - 1) == 0):
        return ""
    nearest = min((1 << k for k in range(3, 17)), key=lambda size: abs(size - bucket))
    return f"bucket = {bucket} is not a power of two from 8 to 65536, or 0; the nearest is {nearest}"


def encode_body(
    x: Vec,
    layout: Layout,
    quantiser: Quantiser,
    key: int,
    stage: Stage,
    *,
    norm: str = "l2",
    scale_of: Callable[[Vec], float] | None = None,
    head: bytes = b"",
) -> Body:
    """`head` and a section for every tensor of float32[layout.size] that has values.

    Scales are the bucket norms, or what `scale_of` says of a tensor. Raises LocalError that names the tensor when x is not
    finite.
    """
    layout.check(x)
    if scale_of is not None:
        require_finite(x, layout)
    out = np.empty(len(head) + sum(section.bound(t.size, quantiser) for t in layout.tensors), np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    at, table = len(head), section.new_table()
    for k, tensor in enumerate(layout.tensors):
        if not tensor.size:
            continue
        values = x[layout.offsets[k] : layout.offsets[k + 1]]
        scales = None if scale_of is None else np.array([scale_of(values)], np.float32)
        own = tensor_key(key, k)
        native_stage = "raw" if stage == "zstd" else stage
        size = section.encode(values, quantiser, own, native_stage, out[at:], scales=scales, norm=norm, table=table)
        if size < 0:
            raise nonfinite(layout, k)
        if stage in ("zstd", "auto"):
            size = zstd_section.shorten(values, quantiser, own, out[at:], size, asked=stage == "zstd")
        at += size
    return memoryview(out[:at]).toreadonly()


def decode_body(
    body: Body,
    layout: Layout,
    quantiser: Quantiser,
    name: str,
    out: Vec | None,
    weight: float | None,
    start: int = 0,
) -> Vec:
    """Inverse of `encode_body`, whose head ends at `start`; as `Codec.decode` says."""
    require_out(layout, out, weight)
    data = memoryview(body).cast("B")
    if weight is not None:  # nothing may be added before all is known to be good
        _walk(data, layout, quantiser, name, start, None, None)
    values = np.empty(layout.size, np.float32) if out is None else out
    _walk(data, layout, quantiser, name, start, values, weight)
    return values


def _walk(
    data: memoryview,
    layout: Layout,
    quantiser: Quantiser,
    name: str,
    at: int,
    values: Vec | None,
    weight: float | None,
) -> None:
    """Decode all sections from `at` on into `values`, or only check them."""
    table = section.new_table()
    for k, tensor in enumerate(layout.tensors):
        if not tensor.size:
            continue
        of = f"the {name} body, tensor {tensor.name}"
        out = None if values is None else values[layout.offsets[k] : layout.offsets[k + 1]]
        if at < len(data) and data[at] == zstd_section.STAGE:
            at = zstd_section.decode(data, at, quantiser, tensor.size, out, weight, of)
        else:
            at = section.decode(data, at, quantiser, tensor.size, out, weight, table, of)
    if at != len(data):
        raise DecodeError(f"the {name} body is followed by {len(data) - at} bytes that do not belong to it")
