"""Codecs: float32 vector <-> bytes. Pure; one file a family.

`get` builds a codec by name, `from_wire` rebuilds the one that decodes a frame's body. docs/codecs.md says what each is
for.
"""

from __future__ import annotations

from typing import Any

from edgegossip.codecs import (
    atomo,
    co3,
    dgc,
    elasticl,
    elastiquant,
    feedback,
    floats,
    minmax,
    per_tensor,
    powersgd,
    sign,
    sparse,
    terngrad,
    uniform,
)
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

REGISTRY = Registry.of(
    (
        *floats.FAMILIES,
        *minmax.FAMILIES,
        *uniform.FAMILIES,
        *elastiquant.FAMILIES,
        *elasticl.FAMILIES,
        *co3.FAMILIES,
        *terngrad.FAMILIES,
        *sign.FAMILIES,
        *sparse.FAMILIES,
        *dgc.FAMILIES,
        *atomo.FAMILIES,
        *powersgd.FAMILIES,
        *feedback.FAMILIES,
        *per_tensor.FAMILIES,
    )
)


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
