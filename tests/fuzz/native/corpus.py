"""Where the native fuzzer starts: the golden bodies, and bodies of runs of more than a block, each
behind the head that input.hpp reads."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgegossip.native import coding
from edgegossip.native.quantise import LevelKind, Quantiser

GOLDEN = Path(__file__).parents[2] / "conformance" / "golden"
DECODERS = {"fp32": 0, "fp16": 1, "bf16": 2, "minmax8": 3, "topk": 4, "randk": 5, "dither": 7, "deadzone": 8}
SECTIONS = 6
UNIFORM, LOG2, LEVELS, FP4, SIGN = range(5)
BUCKETS = {0: 8, 8: 0, 32: 1, 128: 2, 512: 3, 2048: 4, 8192: 5, 32768: 6, 65536: 7}


LONG = 66_000  # values more of the first tensor, where the head says so
MAX_BYTES = 8192


def options(name: str, params: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """The quantiser's four bytes; None where the fuzzer has no such quantiser (a list of levels of
    its own)."""
    bits, bucket = params.get("bits", 4), BUCKETS.get(params.get("bucket", 512), 3)
    if name in ("qsgd", "qsgd-inf"):
        return UNIFORM, bits - 2, bucket, 0
    if name == "elastiquant":
        return (
            (LOG2, bits - 3, bucket, 0)
            if bits in (3, 4, 5) and params.get("ratio", 0.5) == 0.5
            else (LEVELS, bits - 2, bucket, 2 ** (bits - 1) - 2)
        )
    if name == "elasticl":
        return UNIFORM, params.get("s0", 127).bit_length() - 1, 8, 0
    return {"terngrad": (UNIFORM, 0, 8, 0), "signsgd": (SIGN, 0, 8, 0), "co3": (FP4, 0, 8, 0)}.get(name)


def long_runs() -> Iterator[bytes]:
    """Sections of runs in whose blocks several items are read at once, of codes of 2 to 8 bits."""
    rng = np.random.default_rng(1)
    for bits in (2, 3, 4, 6, 8):
        q = Quantiser(LevelKind.UNIFORM, bits, 2 ** (bits - 1) - 1, 0)
        for signs in ((1,), (-1, 1)):
            levels = np.minimum(rng.geometric(0.8, LONG), q.levels) * rng.choice(signs, LONG)
            x = np.where(rng.random(LONG) < 0.07, levels, 0).astype(np.float32)
            of, scale = np.array([0, LONG]), np.array([q.levels], np.float32)
            room = np.empty(coding.bound_of(of, q, "huffman"), np.uint8)
            size = coding.encode_all(q, x, of, [1], "huffman", coding.new_state(), room, scales=scale)
            body = room[:size].tobytes()
            for how in (0b10000, 0b10111):
                yield struct.pack("<BB4BHHBB", SECTIONS, how, UNIFORM, bits - 2, 8, 0, 0, 0, 0, 0) + body


def golden() -> Iterator[bytes]:
    """Every golden body that the head can describe, stored as values and as a sum, on one thread
    and two."""
    for path in sorted(GOLDEN.glob("*.json")):
        for case in json.loads(path.read_text()):
            sizes = [math.prod(shape) for shape in case["shapes"]]
            sizes = [n for n in sizes if n] + [0] * 4
            chosen = (0, 0, 0, 0) if path.stem in DECODERS else options(path.stem, case.get("params", {}))
            if chosen is None or any(sizes[4:]) or sizes[0] > 2047 or sizes[1] > 2047 or max(sizes[2:4]) > 255:
                continue
            body = bytes.fromhex(case["body"])[2 if path.stem == "elasticl" else 0 :]
            for how in (0b00000, 0b00111):
                head = struct.pack("<BB4BHHBB", DECODERS.get(path.stem, SECTIONS), how, *chosen, *sizes[:4])
                yield head + body


def inputs() -> Iterator[bytes]:
    yield from golden()
    yield from long_runs()


def write(folder: Path) -> int:
    """One file an input; how many."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, data in enumerate(inputs(), 1):
        (folder / f"start-{count}").write_bytes(data)
    return count
