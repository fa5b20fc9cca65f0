"""Arrays and tensors as the bytes that boards send: `edgegossip.encode` and `edgegossip.decode`.

The bytes are those of a run: the same codecs, kernels and frames (docs/wire-format.md). torch is
imported by whoever has tensors, never here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip import codecs, frame
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.codecs.keys import derive_key
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, DecodeError, UsageError, Vec

_ALONE = "x"  # the name of a tensor that is not in a mapping or a list


@dataclass(frozen=True, slots=True)
class _Form:
    """How one of the tensors was given, and is given back."""

    shape: tuple[int, ...]
    dtype: Any  # numpy's or torch's
    device: Any  # None: a numpy array

    def give(self, values: Vec) -> Any:
        """Return float32 values in this form, in memory of their own; what is beyond the form's
        largest number, by what the codec lost, as that."""
        torch = None if self.device is None else sys.modules["torch"]
        limits = np.finfo(self.dtype) if torch is None else torch.finfo(self.dtype)
        most = np.float32(min(float(limits.max), float(np.finfo(np.float32).max)))
        held = np.clip(values.reshape(self.shape), -most, most, out=np.empty(self.shape, np.float32))
        if torch is None:
            return held.astype(self.dtype, copy=False)
        return torch.from_numpy(held).to(device=self.device, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class _Structure:
    """What one call was given: one tensor, several by name, or several in a row."""

    kind: Any  # None: one; dict; list; tuple
    forms: Mapping[str, _Form]

    @property
    def layout(self) -> Layout:
        return Layout.of(TensorSpec(name, form.shape) for name, form in self.forms.items())

    def give(self, vec: Vec) -> Any:
        views = self.layout.views(vec)
        tensors = {name: form.give(views[name]) for name, form in self.forms.items()}
        if self.kind is None:
            return tensors[_ALONE]
        return tensors if self.kind is dict else self.kind(tensors.values())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded:
    """One message: what a codec made of arrays or tensors.

    `bytes(encoded)` is the whole frame that a board would send, for a socket or a file of your own;
    `edgegossip.decode(data, like=x)` reads it there.

    Example:
        >>> import numpy as np, edgegossip
        >>> x = np.random.default_rng(1).normal(size=(64, 128)).astype(np.float32)
        >>> encoded = edgegossip.encode(x, "e-elastiquant")
        >>> encoded
        <Encoded e-elastiquant: 8192 values in 3.26 kB, 3.1 bits a value>
        >>> encoded.relative_error(x) < 0.3
        True
    """

    name: str  # of the codec, as it was asked for
    codec: Codec[Any]  # with its parameters
    body: bytes  # what the codec made; the frame's head comes on top
    round: int  # how many messages of this stream came before
    key: int  # of its random numbers
    _structure: _Structure
    _state: Any  # what the codec remembers for the next message

    @property
    def values(self) -> int:
        """Return how many numbers were encoded."""
        return self._structure.layout.size

    @property
    def nbytes(self) -> int:
        """Return the size of `bytes(encoded)`: head, checksums, scales and tables included."""
        return sum(map(len, self._frame()))

    @property
    def bits_per_value(self) -> float:
        """Return the size of `body` in bits a value; float32 has 32. 0 without values."""
        return codecs.bits_per_value(self.body, self._structure.layout)

    def decode(self) -> Any:
        """Return what a receiver gets, in the shape, type and place of what was encoded."""
        return self._structure.give(self.codec.decode(self.body, self._structure.layout))

    def relative_error(self, x: Any) -> float:
        """Return ||decoded - x|| / ||x||, Euclidean norms over all values; `x` is what was encoded.

        What error feedback keeps for the next message counts as an error here. Raises UsageError
        when x has other names or shapes."""
        structure = _structure_of(x)
        if structure.layout != self._structure.layout:
            raise UsageError("relative_error: x has other names or shapes than what was encoded")
        decoded = self.codec.decode(self.body, structure.layout)
        return codecs.relative_error(_vector(x, structure), decoded)

    def __bytes__(self) -> bytes:
        return b"".join(self._frame())

    def __repr__(self) -> str:
        size = f"{self.nbytes} B" if self.nbytes < 1000 else f"{self.nbytes / 1000:.3g} kB"
        return f"<Encoded {self.name}: {self.values} values in {size}, {self.bits_per_value:.3g} bits a value>"

    def _frame(self) -> tuple[bytes, bytes | memoryview]:
        return frame.build(
            frame.Frame(
                kind=frame.Kind.GRADIENT,
                codec_id=self.codec.wire_id,
                codec_params=self.codec.wire_params(),
                layout_hash=self._structure.layout.hash,
                run_id=bytes(frame.RUN_ID_BYTES),
                round=self.round,
                sequence=self.round + 1,
                key=self.key,
                body=self.body,
            )
        )


def encode(
    x: Any,
    codec: str | Codec[Any] = "e-elastiquant",
    /,
    *,
    after: Encoded | None = None,
    seed: int = 1,
    loss: float | None = None,
    lr: float = 0.0,
    **params: Any,
) -> Encoded:
    """Encode arrays or tensors as a board would before it sends them.

    Args:
        x: a numpy array or a torch tensor of floating-point values, of any shape and on any device;
            or several, in a mapping by name (a `state_dict` without its counters, gradients by
            parameter) or in a list or tuple (as Flower has weights). Values travel as float32.
        codec: a name (`edgegossip.codecs.names()`), or a codec, such as one of
            `edgegossip.codecs.get`.
        after: the message before this one. A codec with a memory (error feedback, `co3`, `dgc`,
            `powersgd`, `elasticl`) goes on from there, and makes up for what was lost then.
        seed: of stochastic codecs. Same x, codec, seed and place in the stream: same bytes, on
            every CPU.
        loss: training loss, for codecs whose levels follow it (`elasticl`).
        lr: learning rate, for the same.
        params: the codec's parameters (`edgegossip codec list` shows them), such as ratio=0.01.

    Raises ConfigError for an unknown codec or parameter, with the nearest; UsageError, which names
    the tensor, for NaN, infinities, whole numbers and what is no array; ConfigError where `after`
    is of another codec or of other tensors.

    Example:
        >>> import numpy as np, edgegossip
        >>> gradient = np.random.default_rng(1).normal(size=1000).astype(np.float32)
        >>> first = edgegossip.encode(gradient, "error-feedback", codec="topk")
        >>> second = edgegossip.encode(gradient, "error-feedback", codec="topk", after=first)
        >>> edgegossip.decode(second).shape
        (1000,)
    """
    if isinstance(codec, str):
        name, made = codec, codecs.get(codec, **params)
    elif params:
        raise ConfigError(f"encode: {codec.name} has its parameters already: leave {', '.join(params)} out")
    else:
        name, made = codec.name, codec
    structure = _structure_of(x)
    layout = structure.layout
    if after is not None and after.codec != made:
        raise ConfigError(f"encode: after is a message of {after.codec}, and this one is to be of {made}")
    if after is not None and after._structure.layout != layout:
        raise ConfigError("encode: after is a message of other names or shapes than x has")
    state, round = (made.init(layout), 0) if after is None else (after._state, after.round + 1)
    key = derive_key(seed, round)
    body, state = made.encode(_vector(x, structure), state, Ctx(key=key, round=round, loss=loss, lr=lr))
    return Encoded(name, made, bytes(body), round, key, structure, state)


def decode(encoded: Encoded | bytes | bytearray | memoryview, like: Any = None) -> Any:
    """Decode a message of `encode`.

    Args:
        encoded: an `Encoded`, or the `bytes` of one that came from elsewhere: these are checked
            first, and nothing is allocated by what they claim.
        like: for bytes, arrays or tensors with the names and shapes that were encoded; their values
            do not matter. For an `Encoded` only where the result is to have another type or place.

    Returns what was encoded, as the codec left it: a numpy array or torch tensor of that shape,
    type and device, or a mapping, list or tuple of them.

    Raises DecodeError for bytes that are no such message or are of other tensors, UsageError where
    `like` is missing.

    Example:
        >>> import numpy as np, edgegossip
        >>> x = np.linspace(-1, 1, 8, dtype=np.float32)
        >>> data = bytes(edgegossip.encode(x, "bf16"))
        >>> edgegossip.decode(data, like=np.empty(8, np.float32)).round(2).tolist()[:2]
        [-1.0, -0.7099999785423279]
    """
    if isinstance(encoded, Encoded):
        if like is None:
            return encoded.decode()
        structure = _structure_of(like)
        if structure.layout != encoded._structure.layout:
            raise UsageError("decode: like has other names or shapes than what was encoded")
        return structure.give(encoded.codec.decode(encoded.body, structure.layout))
    if not isinstance(encoded, (bytes, bytearray, memoryview)):
        raise UsageError(f"decode takes what encode returned, or its bytes, and this is a {type(encoded).__name__}")
    if like is None:
        raise UsageError("decode: bytes do not say names and shapes: give arrays or tensors with them as like=...")
    structure = _structure_of(like)
    layout = structure.layout
    message = frame.parse(encoded, frame.Limits.of(layout))
    if message.layout_hash != layout.hash:
        raise DecodeError("decode: these bytes are of tensors with other names or shapes than `like`")
    return structure.give(codecs.from_wire(message.codec_id, message.codec_params).decode(message.body, layout))


def _structure_of(x: Any) -> _Structure:
    """Raises UsageError for what cannot be encoded."""
    kind: Any = next((kind for kind in (dict, list, tuple) if isinstance(x, kind)), None)
    if isinstance(x, Mapping):
        named, kind = dict(x), dict
    else:
        named = {_ALONE: x} if kind is None else {str(k): part for k, part in enumerate(x)}
    if not named:
        raise UsageError("there is nothing to encode: no array, no tensor")
    for name in named:
        if not isinstance(name, str):
            raise UsageError(f"names of tensors are text, and one is {name!r}")
    return _Structure(kind, {name: _form_of(name, part) for name, part in named.items()})


def _form_of(name: str, x: Any) -> _Form:
    if _is_tensor(x):
        floating, device = x.is_floating_point(), x.device
        if x.layout is not sys.modules["torch"].strided:
            raise UsageError(f"tensor {name} is sparse: encode its to_dense(), or its values()")
        if x.is_meta:
            raise UsageError(f"tensor {name} is on the meta device, so it has no values")
    elif isinstance(x, np.ndarray):
        floating, device = np.issubdtype(x.dtype, np.floating), None
        if isinstance(x, np.ma.MaskedArray):
            raise UsageError(f"tensor {name} is a masked array: encode its filled(0), or its compressed()")
    else:
        hint = "; give dict(model.named_parameters())" if callable(getattr(x, "named_parameters", None)) else ""
        raise UsageError(f"{name} is of type {type(x).__name__}: encode takes numpy arrays and torch tensors{hint}")
    if not floating:
        raise UsageError(f"tensor {name} holds {x.dtype}: only floating-point values are encoded, so leave it out")
    return _Form(tuple(x.shape), x.dtype, device)


def _vector(x: Any, structure: _Structure) -> Vec:
    """All values in the layout's order, float32[n]; no copy of one contiguous float32 array."""
    parts = [x] if structure.kind is None else list(x.values()) if structure.kind is dict else list(x)
    flat = [_flat(part) for part in parts]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def _flat(x: Any) -> NDArray[np.float32]:
    if _is_tensor(x):
        x = x.detach().to("cpu", sys.modules["torch"].float32).numpy()
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is refused by name
        return np.require(np.asarray(x), np.float32, ["C", "A"]).reshape(-1)  # asarray: np.matrix stays 2-D


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    return torch is not None and isinstance(x, torch.Tensor)
