"""Bodies of sparseloco, from those of deadzone. Shares no code with the product."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from tests.conformance.reference_common import Shapes, split
from tests.conformance.reference_sparse import count
from tests.conformance.reference_stepped import deadzoned, deadzoned_values


def sparseloco(x: np.ndarray, shapes: Shapes, ratio: float = 1 / 64, chunk: int = 4096) -> bytes:
    magnitudes, integers = b"", []
    for t in split(x, shapes):
        sent = {
            i
            for at in range(0, t.size, chunk)
            for i in sorted(range(at, min(at + chunk, t.size)), key=lambda i, t=t: (-abs(float(t[i])), i))[
                : count(min(chunk, t.size - at), ratio)
            ]
            if t[i]
        }
        sizes = {i: abs(float(t[i])) for i in sorted(sent)}
        mean = sum(sizes.values()) / max(1, len(sizes))
        groups = [[s for s in sizes.values() if (s > mean) == large] for large in (False, True)]
        magnitudes += struct.pack("<2f", *(np.float32(sum(g) / max(1, len(g))) for g in groups))
        integers += [math.copysign(1 + (sizes[i] > mean), t[i]) if i in sent else 0.0 for i in range(t.size)]
    return magnitudes + deadzoned(np.array(integers, np.float32), shapes, step=1.0)


def sparseloco_values(body: bytes, shapes: Shapes, **params: Any) -> list[float]:
    magnitudes = np.frombuffer(body, "<f4", 2 * len(shapes)).reshape(-1, 2)
    integers = split(np.array(deadzoned_values(body[8 * len(shapes) :], shapes)), shapes)
    pairs = zip(magnitudes, integers, strict=True)
    return [math.copysign(m[int(abs(q)) - 1], q) if q else 0.0 for m, part in pairs for q in part]
