"""The rivals: every codec in torch, vectorised, down to bytes.

They work tensor by tensor, as the product does, take torch's global random state, check nothing and
know no entropy coder (torch has none): beside a Huffman or zstd row stands quantise-and-pack alone,
which flatters the rival. `rival` finds the one for a codec and gives it that codec's parameters:
the plain version, as a user or a paper's code writes it. `tuned_rival` finds a version with
temporaries reused and integers kept narrow, where there is one. With parameters that a rival cannot
follow (`_LACKS`) there is none: it would do something else, and be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgegossip.codecs.levels import geometric_levels
from edgegossip.lab.bench.torch_codecs.base import TorchCodec
from edgegossip.lab.bench.torch_codecs.feedback import ErrorFeedback
from edgegossip.lab.bench.torch_codecs.floats import Float, MinMax8
from edgegossip.lab.bench.torch_codecs.low_rank import Atomo, PowerSgd
from edgegossip.lab.bench.torch_codecs.plain import PlainLevels, PlainTernary, PlainUniform
from edgegossip.lab.bench.torch_codecs.quantised import Co3, Levels, Sign, Ternary, Uniform
from edgegossip.lab.bench.torch_codecs.sparse import Dgc, RandK, TopK

Params = Mapping[str, Any]

__all__ = ["TorchCodec", "default_levels", "rival", "tuned_rival"]


def _uniform(make: type[Uniform | PlainUniform], norm: str) -> Callable[[Params], TorchCodec]:
    return lambda p: make(2 ** (p["bits"] - 1) - 1, p["bits"], p["bucket"], norm)


def _whole_tensors(make: type[Uniform | PlainUniform]) -> Callable[[Params], TorchCodec]:
    return lambda p: make(p["s0"], 1 + p["s0"].bit_length(), 0, "l2")


def default_levels(bits: int, ratio: float) -> tuple[float, ...]:
    """elastiquant's, with ratio 0 for the default one."""
    inner = 2 ** (bits - 1) - 2
    return tuple(geometric_levels(inner, ratio or (0.5 if bits <= 4 else 0.9)).tolist()) if inner else (0.0, 1.0)


def _elastiquant(make: type[Levels | PlainLevels]) -> Callable[[Params], TorchCodec]:
    def rival_of(p: Params) -> TorchCodec:
        levels = p.get("levels") or default_levels(p["bits"], p.get("ratio", 0.0))
        return make(levels, p["bits"], p["bucket"], p.get("norm", "l2"))

    return rival_of


_TUNED: dict[str, Callable[[Params], TorchCodec]] = {
    "qsgd": _uniform(Uniform, "l2"),
    "qsgd-inf": _uniform(Uniform, "linf"),
    "elastiquant": _elastiquant(Levels),
    "elasticl": _whole_tensors(Uniform),
    "terngrad": lambda p: Ternary(p["clip"]),
}
_RIVALS: dict[str, Callable[[Params], TorchCodec]] = {
    "fp32": lambda p: Float("float32"),
    "fp16": lambda p: Float("float16"),
    "bf16": lambda p: Float("bfloat16"),
    "minmax8": lambda p: MinMax8(),
    "qsgd": _uniform(PlainUniform, "l2"),
    "qsgd-inf": _uniform(PlainUniform, "linf"),
    "elastiquant": _elastiquant(PlainLevels),
    "elasticl": _whole_tensors(PlainUniform),
    "co3": lambda p: Co3(),
    "terngrad": lambda p: PlainTernary(p["clip"]),
    "signsgd": lambda p: Sign(),
    "topk": lambda p: TopK(p["ratio"], _dtype(p)),
    "randk": lambda p: RandK(p["ratio"], _dtype(p), unbiased=p.get("unbiased", True)),
    "dgc": lambda p: Dgc(p["ratio"], p["momentum"], _dtype(p)),
    "atomo": lambda p: Atomo(p.get("rank", 3)),
    "powersgd": lambda p: PowerSgd(p.get("rank", 2), p.get("decay", 1.0)),
}
# The only value with which the rival does what the codec does. Clipping is by the norm of the whole
# model, the share of a warm-up changes from message to message, and powersgd's fp16 factors have a
# scale for each column.
_LACKS: dict[str, dict[str, Any]] = {
    "dgc": {"clip": 0.0, "warmup_rounds": 0},
    "powersgd": {"values": "fp32"},
}


def rival(name: str, params: Params) -> TorchCodec | None:
    """The plain rival of a codec by `cases.description`: the family's name and all parameters,
    `feedback` for a memory around it. None when it has none, or none with these parameters."""
    if any(params.get(key, value) != value for key, value in _LACKS.get(name, {}).items()):
        return None
    return _made(_RIVALS.get(name), params)


def tuned_rival(name: str, params: Params) -> TorchCodec | None:
    """The tuned rival of the same codec; None where the plain one has nothing to tune."""
    return _made(_TUNED.get(name), params)


def _made(make: Callable[[Params], TorchCodec] | None, params: Params) -> TorchCodec | None:
    if make is None:
        return None
    return ErrorFeedback(make(params), params["feedback"]) if params.get("feedback") else make(params)


def _dtype(p: Params) -> str:
    return {"fp16": "float16", "bf16": "bfloat16"}.get(p.get("values", "fp32"), "float32")
