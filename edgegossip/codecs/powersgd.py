"""`powersgd`: a matrix's rank-r approximation by one step of power iteration, with error feedback
and warm start (Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for
distributed optimization", NeurIPS 2019, Algorithms 1 and 2).

Per message and tensor of two or more dimensions, unfolded to M = [first dimension, all others],
with the memory e:

    M = x + decay e         error feedback (Algorithm 2, whose decay is 1)
    P = orthogonalise(M Q)  Q from the message before; at the start from the counter-based generator
    Q = M^T P               travels with P, and is kept for the next message
    x' = P Q^T, e = M - x'

so ||M - x'|| <= ||M||, and equal messages in a row converge to the best rank-r approximation.
Tensors of one dimension, and matrices for which r (rows + cols) >= rows cols, travel as they are,
as the paper sends its biases.

Deviations. The paper sums P over all workers, orthogonalises the sum, and sums Q: one approximation
of the mean gradient, with one Q for all. That needs two all-reduces that see every worker. Here a
sender's own P and Q travel, as through a coordinator that only adds up decoded updates, or between
neighbours: the receiver's sum of K messages has rank up to K r (closer to the sum of the updates),
every sender has a Q of its own, and a receiver gets both factors from every sender instead of one
sum. The first Q is uniform in [-1, 1), not normal, and the same for every sender. Orthogonalisation
is modified Gram-Schmidt, twice, in float64 instead of once with an epsilon; a column that depends
on those before it is sent as zeros, and keeps its Q. With values = fp16, P and Q are rounded to
binary16, Q after division by a power of two a column that travels along; Q = M^T P takes P as it
travels, and the rounding stays in e. Results beyond float32 become its largest number.

All sums are float64 in a fixed order, without LAPACK: the same bytes on every machine. The codec
has error feedback inside, so it is not to be wrapped into another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.checks import flat, require_body_bytes, require_input, require_out
from edgegossip.codecs.keys import tensor_key, uniform_words
from edgegossip.codecs.matrices import MAX_RANK, Unfolded, rank_from_wire, unfolded
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.layout import Layout
from edgegossip.native import half, matrix
from edgegossip.types import DecodeError, Vec

_FORMS: tuple[matrix.Form, ...] = ("fp32", "fp16")
_START_KEY = 0  # of the first Q


@dataclass(frozen=True, slots=True)
class PowerSgdState:
    """What a sender remembers."""

    layout: Layout
    error: Vec  # float32[layout.size]: e
    right: Vec  # float32[sum over matrices of rank * cols]: Q, column after column


@dataclass(frozen=True, slots=True)
class PowerSgd:
    """Rank-r factors of every matrix. Body, tensor after tensor: the factors (see `native.matrix`),
    or the values of a tensor that is no matrix, in the form `values`. Its size depends on the
    layout only."""

    rank: int = 2
    values: matrix.Form = "fp32"
    decay: float = 1.0

    name: ClassVar[str] = "powersgd"
    wire_id: ClassVar[int] = 15

    def __post_init__(self) -> None:
        check_fields(self, self.name, _PARAMS)

    def wire_params(self) -> bytes:
        """Rank, and 0 for fp32 or 1 for fp16."""
        return bytes((self.rank, _FORMS.index(self.values)))

    def init(self, layout: Layout) -> PowerSgdState:
        parts = [
            uniform_words(tensor_key(_START_KEY, t.index), 0, self.rank * t.cols)
            for t in unfolded(layout, self.rank)
            if t.rows
        ]
        right = np.empty(sum(p.size for p in parts), np.float32)
        if parts:
            np.multiply(np.concatenate(parts) >> np.uint32(8), 2.0**-23, out=right, casting="same_kind")
            right -= 1
        return PowerSgdState(layout, np.zeros(layout.size, np.float32), right)

    def encode(self, x: Vec, state: PowerSgdState, ctx: Ctx) -> tuple[Body, PowerSgdState]:
        require_input(x, state.layout)
        body = np.empty(self._body_bytes(state.layout), np.uint8)
        error, right = np.empty_like(x), np.empty_like(state.right)
        done = 0
        for t, section in self._sections(state.layout):
            if not t.rows:
                self._as_it_is(x[t.part], state.error[t.part], body[section], error[t.part])
                continue
            start = slice(done, done + self.rank * t.cols)
            matrix.power_step(
                x[t.part],
                state.error[t.part],
                self.decay,
                t.rows,
                t.cols,
                self.rank,
                self.values,
                state.right[start],
                body[section],
                right[start],
                error[t.part],
            )
            done = start.stop
        return body.data.toreadonly(), PowerSgdState(state.layout, error, right)

    def _as_it_is(self, x: Vec, error: Vec, section: np.ndarray, left: Vec) -> None:
        """x + decay e in the form of the values; `left` becomes what the form loses."""
        matrix.corrected(x, error, self.decay, left)
        half.encode(self.values, left, np.array([0, left.size]), section)
        half.decode(self.values, section, left, -1.0)

    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        self.check(body, layout)
        data = flat(body)
        values = np.empty(layout.size, np.float32) if out is None else out
        for t, section in self._sections(layout):
            if t.rows:
                matrix.factors_product(data[section], t.rows, t.cols, self.rank, self.values, values[t.part], weight)
            else:
                half.decode(self.values, data[section], values[t.part], weight)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded."""
        data = require_body_bytes(body, self._body_bytes(layout), self.name)
        for t, section in self._sections(layout):
            self._require_sound(data[section], t, layout)

    def _require_sound(self, section: memoryview, t: Unfolded, layout: Layout) -> None:
        if t.rows:
            sound = matrix.factors_sound(section, t.rows, t.cols, self.rank, self.values)
        else:
            sound = half.finite(self.values, section)
        if not sound:
            raise DecodeError(
                f"the powersgd body holds NaN, infinite or impossible values in tensor {layout.tensors[t.index].name}"
            )

    def _sections(self, layout: Layout) -> Iterator[tuple[Unfolded, slice]]:
        """Every non-empty tensor and its part of the body."""
        at = 0
        for t in unfolded(layout, self.rank):
            size = half.BYTES[self.values] * t.size
            if t.rows:
                size = matrix.factors_bytes(t.rows, t.cols, self.rank, self.values)
            yield t, slice(at, at + size)
            at += size

    def _body_bytes(self, layout: Layout) -> int:
        return max((section.stop for _, section in self._sections(layout)), default=0)


def _from_params(params: bytes) -> PowerSgd:
    if len(params) != 2 or params[1] >= len(_FORMS):
        raise DecodeError(
            f"powersgd needs 2 bytes of parameters, rank and form of values (0 or 1), got {params.hex(' ')}"
        )
    return PowerSgd(rank_from_wire(params[0], "powersgd"), _FORMS[params[1]])


_PARAMS = (
    Param("rank", 2, "rank of what is sent of every matrix", low=1, high=MAX_RANK),
    Param("values", "fp32", "form in which values travel", choices=_FORMS),
    Param("decay", 1.0, "share of the error that is kept for the next message", low=0.0, high=1.0),
)

FAMILIES = (
    Family(
        "powersgd",
        PowerSgd,
        "every matrix as two thin ones, by a power iteration a message, with error feedback",
        _PARAMS,
        wire_id=PowerSgd.wire_id,
        from_params=_from_params,
    ),
)
