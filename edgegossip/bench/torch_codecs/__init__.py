"""The rivals: every codec as a good researcher writes it in plain torch, vectorised, down to bytes.

They work tensor by tensor, as the product does, take torch's global random state, check nothing and know no entropy coder
(torch has none): beside a Huffman or zstd row stands quantise-and-pack alone, which flatters the rival. `rival` finds the one
for a codec and gives it that codec's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgegossip.bench.torch_codecs.base import TorchCodec
from edgegossip.bench.torch_codecs.feedback import ErrorFeedback
from edgegossip.bench.torch_codecs.floats import Float, MinMax8
from edgegossip.bench.torch_codecs.low_rank import Atomo, PowerSgd
from edgegossip.bench.torch_codecs.quantised import Co3, Levels, Sign, Ternary, Uniform
from edgegossip.bench.torch_codecs.sparse import Dgc, RandK, TopK
from edgegossip.codecs.levels import geometric_levels

Params = Mapping[str, Any]

__all__ = ["TorchCodec", "rival"]


def _elastiquant(p: Params) -> TorchCodec:
    bits = p["bits"]
    ratio = p.get("ratio") or (0.5 if bits <= 4 else 0.9)
    levels = p.get("levels") or tuple(geometric_levels(2 ** (bits - 1) - 2, ratio).tolist())
    return Levels(levels, bits, p["bucket"], p.get("norm", "l2"))


_RIVALS: dict[str, Callable[[Params], TorchCodec]] = {
    "fp32": lambda p: Float("float32"),
    "fp16": lambda p: Float("float16"),
    "bf16": lambda p: Float("bfloat16"),
    "minmax8": lambda p: MinMax8(),
    "qsgd": lambda p: Uniform(2 ** (p["bits"] - 1) - 1, p["bits"], p["bucket"], "l2"),
    "qsgd-inf": lambda p: Uniform(2 ** (p["bits"] - 1) - 1, p["bits"], p["bucket"], "linf"),
    "elastiquant": _elastiquant,
    "elasticl": lambda p: Uniform(p["s0"], 1 + p["s0"].bit_length(), 0, "l2"),
    "co3": lambda p: Co3(),
    "terngrad": lambda p: Ternary(p["clip"]),
    "signsgd": lambda p: Sign(),
    "topk": lambda p: TopK(p["ratio"], _dtype(p)),
    "randk": lambda p: RandK(p["ratio"], _dtype(p)),
    "dgc": lambda p: Dgc(p["ratio"], p["momentum"], _dtype(p)),
    "atomo": lambda p: Atomo(p.get("rank", 3)),
    "powersgd": lambda p: PowerSgd(p.get("rank", 2)),
}


def rival(name: str, params: Params) -> TorchCodec | None:
    """The rival of a codec by `cases.description`: the family's name and all parameters, `feedback` for a memory around it.
    None when it has none."""
    make = _RIVALS.get(name)
    if make is None:
        return None
    return ErrorFeedback(make(params), params["feedback"]) if params.get("feedback") else make(params)


def _dtype(p: Params) -> str:
    return {"fp16": "float16", "bf16": "bfloat16"}.get(p.get("values", "fp32"), "float32")
