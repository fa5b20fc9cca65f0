"""Codecs: float32 vector <-> bytes. Pure; one file a family.

`get` builds a codec by name, `from_wire` rebuilds the one that decodes a frame's body.
docs/codecs.md says what each is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from edgegossip.codecs.base import MAX_PARAMS_BYTES, Body, Codec, Ctx
from edgegossip.codecs.checks import bits_per_value, relative_error
from edgegossip.codecs.registry import Family, Param, Registry
from edgegossip.layout import Layout, TensorSpec

if TYPE_CHECKING:
    from edgegossip.codecs.feedback import ErrorFeedback
    from edgegossip.codecs.per_tensor import PerTensor

S = TypeVar("S")

__all__ = [
    "MAX_PARAMS_BYTES",
    "REGISTRY",
    "Body",
    "Codec",
    "Ctx",
    "Family",
    "Param",
    "bits_per_value",
    "by_tensor",
    "error_feedback",
    "exact_from",
    "for_layout",
    "from_wire",
    "get",
    "leaves_rate",
    "names",
    "relative_error",
]

# File -> the names in its FAMILIES, each with its id on the wire; None where another codec decodes
# its bodies. Only the files that a run needs are imported: a board has little memory to spare. No
# id is given twice: 19 was `eden` with fewer rotations of small blocks.
FILES = MappingProxyType[str, Mapping[str, int | None]](
    {
        "floats": {"fp32": 1, "fp16": 2, "bf16": 4},
        "minmax": {"minmax8": 3},
        "uniform": {
            "qsgd": 5,
            "qsgd-inf": 6,
            "qsgd-v": None,
            "2-bit-qsgd": None,
            "4-bit-qsgd": None,
            "8-bit-qsgd": None,
            "elasticl": 8,
        },
        "elastiquant": {
            "elastiquant": 7,
            "4-bit-elastiquant": None,
            "8-bit-elastiquant": None,
            "e-elastiquant": None,
        },
        "co3": {"co3": 9},
        "sign": {"signsgd": 11, "terngrad": 10},
        "sparse": {"topk": 12, "randk": 13, "dgc": None},
        "lowrank": {"atomo": 14, "powersgd": 15},
        "stepped": {"dither": 17, "deadzone": 18},
        "eden": {"eden": 21},
        "sparseloco": {"sparseloco": 20},
        "auto": {"auto": None},
        "feedback": {"error-feedback": None, "ef-signsgd": None},
        "per_tensor": {"per-tensor": 16, "small-tensors": None},
    }
)
REGISTRY = Registry.from_files(__name__, FILES)


def names() -> tuple[str, ...]:
    """Return the name of every codec that `get` knows."""
    return REGISTRY.names()


def get(name: str, **params: Any) -> Codec[Any]:
    """Build a codec by name. Raises ConfigError, with the nearest valid choice, on an unknown name
    or parameter or a value out of range."""
    return REGISTRY.get(name, params)


def leaves_rate(codec: Codec[Any]) -> bool:
    """Return whether the codec of most tensors is `auto`, whose rate its sender's engine chooses
    (engine/rates.py)."""
    return bool(getattr(codec, "codecs", (codec,))[0].name == "auto")


def error_feedback(codec: Codec[S], decay: float = 1.0) -> ErrorFeedback[S]:
    """Return `codec` with error feedback. `decay`, from 0 to 1, is the share of the error that the
    next message makes up for.

    Raises ConfigError on a codec that has a memory of its own, or with which the error would grow
    without end.
    """
    from edgegossip.codecs.feedback import ErrorFeedback

    return ErrorFeedback(codec, decay)


def by_tensor(codecs: Sequence[Codec[Any]], choose: Callable[[TensorSpec], int]) -> PerTensor:
    """Return a codec that uses `codecs[choose(tensor)]` for every tensor.

    Raises ConfigError on none or more than eight codecs, or one that itself chooses by tensor;
    `init` raises UsageError on a choice that is no index of `codecs`.
    """
    from edgegossip.codecs.per_tensor import PerTensor

    return PerTensor(tuple(codecs), choose)


def for_layout(codec: Codec[Any], layout: Layout) -> Codec[Any]:
    """Return the codec for models with this layout: where a lossy one would meet tensors that no
    optimiser touches, these travel as float32.

    They are the statistics of batch norm, and no step of training corrects them: a board evaluates,
    and predicts, with what mixing made of them. Means and variances a third of their size off, or
    variances below zero, ruin a model whose weights are good. They are about 1 % of its values.
    fp16 ends at 65504, below the variance of many raw inputs, and bf16 has 101,325 Pa in steps of
    512.
    Raises ConfigError where a choice by tensor has eight codecs already.

    Example:
        codecs.for_layout(codecs.get("4-bit-elastiquant"), ModelVector(model).layout)
    """
    if layout.size == layout.trainable_size or codec.name == "fp32":
        return codec
    from edgegossip.codecs.feedback import ErrorFeedback
    from edgegossip.codecs.per_tensor import exact_statistics

    if isinstance(codec, ErrorFeedback):
        return replace(codec, codec=for_layout(codec.codec, layout))
    return exact_statistics(codec, get("fp32"))


def exact_from(codec: Codec[Any], layout: Layout) -> int:
    """Return from which value of float32[layout.size] on all arrive as they were sent, but for a
    float's rounding: the statistics, which come last, as `for_layout` has it; layout.size where
    they do not."""
    statistics = [t for t in layout.tensors if not t.trainable]
    exact = all(_of(codec, t).name in FILES["floats"] for t in statistics)
    return layout.trainable_size if exact else layout.size


def _of(codec: Codec[Any], tensor: TensorSpec) -> Codec[Any]:
    """Return what encodes this tensor, inside of all that wraps it."""
    choose, found = getattr(codec, "choose", None), getattr(codec, "codec", None)
    if choose is not None:
        found = codec.codecs[choose(tensor)]  # type: ignore[attr-defined]
    return codec if found is None else _of(found, tensor)


def from_wire(codec_id: int, params: bytes) -> Codec[Any]:
    """Return the codec that decodes the body of a frame with this codec id and these parameters.
    Raises DecodeError."""
    return REGISTRY.from_wire(codec_id, params)
