"""Bodies of the quantised codecs: one section a tensor, made and read by native.section.

A section is a stage byte, scales, and codes of a few bits a value: as they are (`raw`), Huffman coded in pairs and runs
(`huffman`), Elias coded (`elias`), or as a zstd frame of the raw codes (`zstd`); `auto` takes the smallest for each tensor.
docs/wire-format.md has every byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from edgegossip.codecs import zstd
from edgegossip.codecs.base import Body
from edgegossip.codecs.checks import nonfinite, require_finite, require_out
from edgegossip.codecs.keys import tensor_key
from edgegossip.codecs.registry import Param
from edgegossip.layout import Layout
from edgegossip.native import section
from edgegossip.native.section import Quantiser
from edgegossip.types import DecodeError, Vec

Stage: TypeAlias = Literal["raw", "huffman", "elias", "zstd", "auto"]
STAGE = Param(
    "stage",
    "auto",
    "entropy coding; auto: the smallest for each tensor",
    choices=("raw", "huffman", "elias", "zstd", "auto"),
)
BUCKET = Param("bucket", 512, "values that share a norm: a power of two from 8 to 65536, or 0 for a tensor", low=0, high=65536)


def bucket_error(bucket: int) -> str:
    """What is wrong with this bucket size; empty when nothing is."""
    if bucket == 0 or (8 <= bucket <= 65536 and bucket & (bucket - 1) == 0):
        return ""
    nearest = min((1 << k for k in range(3, 17)), key=lambda size: abs(size - bucket))
    return f"bucket = {bucket} is not a power of two from 8 to 65536, or 0; the nearest is {nearest}"
