"""`per-tensor`: another codec for some of the tensors. `small-tensors`: the ones with few values,
which cost little and suffer most (biases, norms' scales), go in fp16.

The tensors fall into runs of neighbours with the same choice. Each run is encoded by its own codec
as a vector of its own, so no value is copied; its key is derived from the message's key and the
run's number. Body: one byte a tensor, 0 for the main codec and k for the k-th exception; then for
each run a uint32 with the size of its body, and that body. The codecs themselves stand in the
frame's parameters, so that any of this package's codecs may be inside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from edgegossip.codecs.base import MAX_PARAMS_BYTES, Body, Codec, Ctx
from edgegossip.codecs.checks import add_own, flat, require_out, require_sound
from edgegossip.codecs.keys import tensor_key
from edgegossip.codecs.registry import Family, FromWire, Param
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, DecodeError, UsageError, Vec

_LENGTH = struct.Struct("<I")
_ENTRY = struct.Struct("<HH")  # wire id, bytes of parameters
_MAX_CODECS = 8

Choose = Callable[[TensorSpec], int]  # index into the codecs


@dataclass(frozen=True, slots=True)
class Rule:
    """Which tensors are exceptions: those whose name matches the pattern (as in a shell) or with
    fewer than `below` values."""

    pattern: str = ""
    below: int = 0

    def __call__(self, tensor: TensorSpec) -> int:
        """Return 1 for an exception, 0 for all other tensors."""
        return int(tensor.size < self.below or fnmatchcase(tensor.name, self.pattern))


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring tensors with the same codec."""

    codec: int
    first: int  # of the values
    layout: Layout

    def of(self, values: Vec) -> Vec:
        """Its part of float32[n]."""
        return values[self.first : self.first + self.layout.size]


@dataclass(frozen=True, slots=True, eq=False)
class PerTensorState:
    """The plan for this model, and the state of each run's codec."""

    layout: Layout
    choices: bytes
    runs: tuple[_Run, ...]
    states: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PerTensor(Codec[PerTensorState]):
    """`codecs[0]` for all tensors but those for which `choose` names another one."""

    codecs: tuple[Codec[Any], ...]
    choose: Choose
    title: str = ""
    wire_id: ClassVar[int] = 16

    def __post_init__(self) -> None:
        if not 1 <= len(self.codecs) <= _MAX_CODECS:
            raise ConfigError(f"codec {self.name}: from 1 to {_MAX_CODECS} codecs are possible, got {len(self.codecs)}")
        if any(c.wire_id == PerTensor.wire_id for c in self.codecs):
            raise ConfigError(
                f"codec {self.name}: a codec inside cannot itself choose by tensor; list all codecs in one"
            )
        if len(self.wire_params()) > MAX_PARAMS_BYTES:
            raise ConfigError(
                f"codec {self.name}: the codecs' parameters take more than {MAX_PARAMS_BYTES} bytes in a frame"
            )

    @property
    @override
    def name(self) -> str:
        return self.title or "per-tensor"

    @override
    def wire_params(self) -> bytes:
        parts = []
        for codec in self.codecs:
            params = codec.wire_params()
            parts.append(_ENTRY.pack(codec.wire_id, len(params)) + params)
        return b"".join(parts)

    @override
    def init(self, layout: Layout) -> PerTensorState:
        choices = bytes(self._choice(t) for t in layout.tensors)
        runs = tuple(_runs(layout, choices))
        return PerTensorState(layout, choices, runs, tuple(self.codecs[r.codec].init(r.layout) for r in runs))

    def _choice(self, tensor: TensorSpec) -> int:
        """Index of the tensor's codec. Raises UsageError on what is none."""
        k = self.choose(tensor)
        if isinstance(k, Integral) and 0 <= k < len(self.codecs):
            return int(k)
        raise UsageError(
            f"codec {self.name}: the choice for tensor {tensor.name} is {k!r}, which is not the index of one of "
            f"{len(self.codecs)} codecs"
        )

    @override
    def encode(self, x: Vec, state: PerTensorState, ctx: Ctx) -> tuple[Body, PerTensorState]:
        state.layout.check(x)
        bodies: list[Body] = [b""] * len(state.runs)
        states = list(state.states)
        left = None if ctx.bytes is None else ctx.bytes - len(state.choices) - _LENGTH.size * len(state.runs)
        # The main codec gets of the bytes what the others leave, each of its runs by its values.
        values = sum(run.layout.size for run in state.runs if not run.codec)
        for k in sorted(range(len(state.runs)), key=lambda k: not state.runs[k].codec):
            run, own = state.runs[k], replace(ctx, key=tensor_key(ctx.key, k), bytes=None)
            if left is not None and not run.codec:
                own = replace(own, bytes=max(1, left * run.layout.size // max(1, values)))
            bodies[k], states[k] = self.codecs[run.codec].encode(run.of(x), state.states[k], own)
            if left is not None and run.codec:
                left -= memoryview(bodies[k]).nbytes
        parts: list[Body] = [state.choices]
        for body in bodies:
            parts += [_LENGTH.pack(memoryview(body).nbytes), body]
        return b"".join(parts), PerTensorState(state.layout, state.choices, state.runs, tuple(states))

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        pieces = self._pieces(flat(body), layout)
        values = np.empty(layout.size, np.float32) if out is None else out
        if weight is not None:
            # Nothing may be added before all is known to be good. What is decoded first leaves the
            # sum alone where it is bad itself; it is the largest run, because a codec without a
            # check needs a vector of the run's size.
            pieces.sort(key=lambda piece: -piece[0].layout.size)
            self._require_sound(pieces[1:])
        for run, piece in pieces:
            self.codecs[run.codec].decode(piece, run.layout, run.of(values), weight)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded."""
        self._require_sound(self._pieces(flat(body), layout))

    def add_own(self, body: Body, layout: Layout, out: Vec, weight: float) -> None:
        """Add weight * value to `out`, as `decode` does, of a body that `encode` just made."""
        for run, piece in self._pieces(flat(body), layout):
            add_own(self.codecs[run.codec], piece, run.layout, run.of(out), weight)

    def main_part(self, body: Body, layout: Layout) -> tuple[int, int]:
        """Return how many bytes of a body are the main codec's, and of how many values. Raises
        DecodeError."""
        found = [(run.layout.size, len(piece)) for run, piece in self._pieces(flat(body), layout) if not run.codec]
        return sum(size for _, size in found), sum(values for values, _ in found)

    def _require_sound(self, pieces: list[tuple[_Run, memoryview]]) -> None:
        for run, piece in pieces:
            require_sound(self.codecs[run.codec], piece, run.layout)

    def _pieces(self, body: memoryview, layout: Layout) -> list[tuple[_Run, memoryview]]:
        """Each run with its part of the body. Raises DecodeError unless they fill the body."""
        at = len(layout.tensors)
        if len(body) < at:
            raise DecodeError(f"the per-tensor body ends within the choices of {at} tensors")
        choices = bytes(body[:at])
        if choices and max(choices) >= len(self.codecs):
            raise DecodeError(f"the per-tensor body chooses codec {max(choices)}, there are {len(self.codecs)}")
        pieces = []
        for run in _runs(layout, choices):
            if len(body) - at < _LENGTH.size:
                raise DecodeError("the per-tensor body ends within a length")
            size = _LENGTH.unpack_from(body, at)[0]
            at += _LENGTH.size
            if len(body) - at < size:
                raise DecodeError(f"the per-tensor body holds {len(body) - at} bytes where {size} are announced")
            pieces.append((run, body[at : at + size]))
            at += size
        if at != len(body):
            raise DecodeError(f"the per-tensor body is followed by {len(body) - at} bytes that do not belong to it")
        return pieces


def _runs(layout: Layout, choices: bytes) -> Iterator[_Run]:
    """Tensors without values join any run: a run of nothing else costs a length and an empty
    body."""
    start = 0
    for codec, group in groupby(choices):
        end = start + len(list(group))
        yield _Run(codec, int(layout.offsets[start]), Layout(layout.tensors[start:end]))
        start = end


def exact_statistics(codec: Codec[Any], exact: Codec[Any]) -> PerTensor:
    """Return `codec` with `exact` for tensors that no optimiser touches; `codecs.for_layout` says
    why. Tensors keep what a `codec` that itself chooses by tensor gives them, but for these. Raises
    ConfigError where that has no place for one more."""
    if isinstance(codec, PerTensor):
        return PerTensor((*codec.codecs, exact), _Statistics(codec.choose, len(codec.codecs)), codec.name)
    return PerTensor((codec, exact), _Statistics(_first, 1), codec.name)


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Chooses codec `exact` for what is not trained, and as `trained` does for the rest."""

    trained: Choose
    exact: int

    def __call__(self, tensor: TensorSpec) -> int:
        return self.trained(tensor) if tensor.trainable else self.exact


def _first(tensor: TensorSpec) -> int:
    return 0


def _by_pattern(codec: Codec[Any], tensors: str, other: Codec[Any]) -> PerTensor:
    return PerTensor((codec, other), Rule(pattern=tensors))


def _by_size(codec: Codec[Any], below: int, other: Codec[Any]) -> PerTensor:
    return PerTensor((codec, other), Rule(below=below), "small-tensors")


def _from_params(params: bytes, from_wire: FromWire) -> PerTensor:
    codecs: list[Codec[Any]] = []
    at = 0
    while at < len(params):
        if len(params) - at < _ENTRY.size:
            raise DecodeError("the per-tensor parameters end within an entry")
        wire_id, size = _ENTRY.unpack_from(params, at)
        at += _ENTRY.size
        if size > len(params) - at:
            raise DecodeError("the per-tensor parameters end within a codec's parameters")
        if wire_id == PerTensor.wire_id:
            raise DecodeError("a codec inside per-tensor cannot itself choose by tensor")
        if len(codecs) == _MAX_CODECS:
            raise DecodeError(f"the per-tensor parameters name more than {_MAX_CODECS} codecs")
        codecs.append(from_wire(wire_id, params[at : at + size]))
        at += size
    if not codecs:
        raise DecodeError("the per-tensor parameters name no codec")
    return PerTensor(tuple(codecs), Rule())


_MAIN = Param("codec", "4-bit-elastiquant", "the codec of all other tensors", codec=True)
_OTHER = Param("other", "fp16", "the codec of these tensors", codec=True)

FAMILIES = (
    Family(
        "per-tensor",
        _by_pattern,
        "another codec for tensors whose name matches a pattern",
        (_MAIN, Param("tensors", "*.bias", "shell pattern of the tensors' names"), _OTHER),
        PerTensor.wire_id,
        from_params_around=_from_params,
    ),
    Family(
        "small-tensors",
        _by_size,
        "another codec (fp16) for tensors with few values",
        (_MAIN, Param("below", 1000, "fewer values than this make a tensor small", low=1, high=2**31), _OTHER),
    ),
)
