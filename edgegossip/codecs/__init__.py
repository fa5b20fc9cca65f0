"""Codecs: float32 vector <-> bytes. Pure; one file a family.

`get` builds a codec by name, `from_wire` rebuilds the one that decodes a frame's body. docs/codecs.md says what each is
for.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from edgegossip.codecs.base import MAX_PARAMS_BYTES, Body, Codec, Ctx
from edgegossip.codecs.measures import bits_per_value, relative_error
from edgegossip.codecs.registry import Family, Param, Registry

__all__ = [
    "MAX_PARAMS_BYTES",
    "REGISTRY",
    "Body",
    "Codec",
    "Ctx",
    "Family",
    "Param",
    "bits_per_value",
    "from_wire",
    "get",
    "names",
    "relative_error",
]

# File -> the names in its FAMILIES. Only the files that a run needs are imported: a board has little memory to spare.
FILES = MappingProxyType(
    {
        "floats": ("fp32", "fp16", "bf16"),
        "minmax": ("minmax8",),
        "uniform": ("qsgd", "qsgd-inf", "qsgd-v", "2-bit-qsgd", "4-bit-qsgd", "8-bit-qsgd"),
        "elastiquant": ("elastiquant", "4-bit-elastiquant", "8-bit-elastiquant", "e-elastiquant"),
        "elasticl": ("elasticl",),
        "co3": ("co3",),
        "terngrad": ("terngrad",),
        "sign": ("signsgd",),
        "sparse": ("topk", "randk"),
        "dgc": ("dgc",),
        "atomo": ("atomo",),
        "powersgd": ("powersgd",),
        "feedback": ("error-feedback", "ef-signsgd"),
        "per_tensor": ("per-tensor", "small-tensors"),
    }
)
# Ids are on the wire: this table only grows.
WIRE_IDS = MappingProxyType(
    {
        1: "fp32",
        2: "fp16",
        3: "minmax8",
        4: "bf16",
        5: "qsgd",
        6: "qsgd-inf",
        7: "elastiquant",
        8: "elasticl",
        9: "co3",
        10: "terngrad",
        11: "signsgd",
        12: "topk",
        13: "randk",
        14: "atomo",
        15: "powersgd",
        16: "per-tensor",
    }
)

REGISTRY = Registry.from_files(__name__, FILES, WIRE_IDS)


def names() -> tuple[str, ...]:
    """Every codec that `get` knows."""
    return REGISTRY.names()


def get(name: str, **params: Any) -> Codec[Any]:
    """Build a codec by name. Raises ConfigError, with the nearest valid choice, on an unknown name or parameter or a
    value out of range."""
    return REGISTRY.get(name, params)


def from_wire(codec_id: int, params: bytes) -> Codec[Any]:
    """The codec that decodes the body of a frame with this codec id and these parameters. Raises DecodeError."""
    return REGISTRY.from_wire(codec_id, params)
