"""Integer training in plain PyTorch style: `convert(model)` makes its layers compute in int8,
forward and backward.

What flows between converted layers is a `QuantisedTensor`; weights stay float32, so any optimizer,
`state_dict` and checkpoint work as before. The numerics, and what deviates from the papers, are in
docs/int8.md; the kernels in `edgegossip.native.int8`.
"""

from edgegossip.int8 import qdq
from edgegossip.int8.convert import Conversion, ConversionNotice, conversion, convert
from edgegossip.int8.memory import give_back
from edgegossip.int8.predictor import Predictor, predictor
from edgegossip.int8.tensor import QuantisedTensor

__all__ = [
    "Conversion",
    "ConversionNotice",
    "Predictor",
    "QuantisedTensor",
    "conversion",
    "convert",
    "give_back",
    "predictor",
    "qdq",
]
