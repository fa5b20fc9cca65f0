"""`atomo` and `powersgd`: low-rank approximations of every matrix of a model, in few numbers.

A tensor of two or more dimensions is unfolded to the matrix [first dimension, all others]. Tensors
of one dimension travel as they are, as do matrices too small for a rank to pay off.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.codecs.base import Body, Codec, Ctx, StatelessCodec
from edgegossip.codecs.checks import flat, require_body_bytes, require_input, require_out
from edgegossip.codecs.keys import tensor_key
from edgegossip.codecs.registry import Family, Param, check_fields, from_packed
from edgegossip.layout import Layout
from edgegossip.native import half, matrix
from edgegossip.native.quantise import uniform32
from edgegossip.types import ConfigError, DecodeError, Vec

MAX_RANK = 64
MAX_SIDE = 512  # of a band
_AS_VALUES = 0xFFFF  # instead of a number of atoms
_COUNT = struct.Struct("<H")
_ROUNDING = 2.0**-48  # times the side: what counts as zero beside the largest singular value


@dataclass(frozen=True, slots=True)
class Band:
    """A non-empty tensor of a layout as the matrix [first dimension, all others], or some rows of
    it; or (rows = 0) as it is."""

    tensor: int  # its index in the layout
    start: int  # of its values in the vector
    size: int
    rows: int
    cols: int
    first_atom: int = 0  # its first atom's number within the tensor

    @property
    def part(self) -> slice:
        """Return where its values lie in the vector."""
        return slice(self.start, self.start + self.size)

    def most_atoms(self, rank: int) -> int:
        """Return the most that travel as factors: fewer numbers than the band has, and few enough
        to add up quickly."""
        return min(2 * rank + 8, (self.size - 1) // (self.rows + self.cols))


def unfolded(layout: Layout, rank: int) -> Iterator[Band]:
    """Yield every non-empty tensor. A matrix is one of two or more dimensions with rank * (rows +
    cols) < rows * cols."""
    for k, tensor in enumerate(layout.tensors):
        if tensor.size == 0:
            continue
        rows, cols = (tensor.shape[0], math.prod(tensor.shape[1:])) if len(tensor.shape) > 1 else (0, 0)
        if rank * (rows + cols) >= rows * cols:
            rows = cols = 0
        yield Band(k, int(layout.offsets[k]), tensor.size, rows, cols)


def bands(layout: Layout, rank: int) -> Iterator[Band]:
    """Yield every non-empty tensor in layout order, in one band or several."""
    for t in unfolded(layout, rank):
        count = -(-t.rows // MAX_SIDE) if min(t.rows, t.cols) > MAX_SIDE else 1
        first_atom = 0
        for b in range(count):
            top, bottom = t.rows * b // count, t.rows * (b + 1) // count
            rows = bottom - top
            size = rows * t.cols if t.rows else t.size
            yield Band(t.tensor, t.start + top * t.cols, size, rows, t.cols, first_atom)
            first_atom += min(rows, t.cols)


def probabilities(norms: Sequence[float], rank: int) -> list[float]:
    """Return p_i of atoms with these norms: min(1, c s_i) with the c for which they sum to `rank`,
    0 for norm 0; all 1 when no more than `rank` norms are above 0."""
    chances = [0.0] * len(norms)
    rest = [i for i, s in enumerate(norms) if s > 0]
    budget = float(rank)
    while rest:
        total = math.fsum(norms[i] for i in rest)
        sure = [i for i in rest if len(rest) <= budget or norms[i] * budget > total]
        for i in sure or rest:
            chances[i] = 1.0 if sure else norms[i] * budget / total
        if not sure:
            break
        budget -= len(sure)
        taken = set(sure)
        rest = [i for i in rest if i not in taken]
    return chances


@dataclass(frozen=True, slots=True)
class Atomo(StatelessCodec):
    """Sampled spectral atoms of every matrix. Its state is the layout.

    `atomo`: a random sample of a matrix's singular vectors, unbiased (Wang, Sievert, Liu,
    Charles, Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic
    sparsification", NeurIPS 2018; "Spectral-ATOMO").

    A tensor of two or more dimensions, unfolded to A = [first dimension, all others], is a sum
    of atoms u_i w_i^T with orthonormal u_i and |w_i| = s_i, the singular values. Atom i is kept
    with probability

        p_i = min(1, r s_i / sum s), those at 1 set aside and the rest of r shared out again until
        all are at most 1

    (Algorithm 1, equation 5), by one number of the counter-based generator, and sent as u_i and
    w_i / p_i, where the paper has u_i, s_i / p_i and w_i / s_i. E[x'] = A; sum p_i = r, or all
    atoms travel and x' = A when there are no more than r; no other choice of probabilities with
    that sum has a smaller variance: E||x' - A||^2 = sum s_i^2 (1/p_i - 1).

    No LAPACK, whose results differ between machines: u_i are eigenvectors of the smaller Gram
    matrix, by Householder reduction and implicit QL in float64, w_i = A^T u_i, s_i = |w_i|. As
    the u_i are orthonormal the atoms sum to A whatever the accuracy of the eigenvectors.
    Singular values below m 2^-48 of the largest (m the smaller side) are rounding and count as
    zero. p_i is rounded up to a multiple of 2^-32, so that sampling and division have the same
    p_i exactly. What is left is float32's rounding of u_i and w_i; a w_i / p_i beyond float32
    becomes its largest number.

    Matrices of more than 512 rows and columns are cut into bands of at most 512 rows of nearly
    equal height, each with its own r: an SVD of 4096 x 4096 would take minutes. Tensors of one
    dimension, and matrices for which r (rows + cols) >= rows cols, travel exactly. Should a
    sample turn out larger than the band itself, or than 2 r + 8 atoms, its sum travels value by
    value.

    It computes: O(m^2 (m + max(rows, cols))) a matrix, about half a second for 512 x 4608, so
    it suits slow links.
    """

    rank: int = 3

    name: ClassVar[str] = "atomo"
    wire_id: ClassVar[int] = 14

    def __post_init__(self) -> None:
        check_fields(self, self.name, (_ATOMO_RANK,))

    @override
    def wire_params(self) -> bytes:
        return bytes((self.rank,))

    @override
    def encode(self, x: Vec, state: Layout, ctx: Ctx) -> tuple[Body, Layout]:
        require_input(x, state)
        sections = []
        for band in bands(state, self.rank):
            if not band.rows:
                sections.append(x[band.part].tobytes())
                continue
            sections.extend(self._band(x[band.part], band, tensor_key(ctx.key, band.tensor)))
        return b"".join(sections), state

    def _band(self, x: Vec, band: Band, key: int) -> tuple[bytes, bytes]:
        """Number of atoms, and their factors or the values of their sum."""
        basis, norms = matrix.spectral_basis(x, band.rows, band.cols)
        floor = float(norms.max()) * norms.size * _ROUNDING
        chances = probabilities([s if s > floor else 0.0 for s in norms.tolist()], self.rank)
        words = np.ceil(np.array(chances) * 2.0**32)
        drawn = uniform32(key, band.first_atom, norms.size)
        chosen = np.flatnonzero(drawn < words)
        count = int(chosen.size)
        factors = np.empty((count, band.rows + band.cols), np.float32)
        left = factors.reshape(-1)[: count * band.rows].reshape(count, band.rows)
        right = factors.reshape(-1)[count * band.rows :].reshape(count, band.cols)
        short, long = (left, right) if band.rows <= band.cols else (right, left)
        for k, i in enumerate(chosen):
            short[k] = basis[i]
            matrix.spectral_atom(x, band.rows, band.cols, basis[i], float(words[i]) * 2.0**-32, long[k])
        if count <= band.most_atoms(self.rank):
            return _COUNT.pack(count), factors.tobytes()
        values = np.empty(band.size, np.float32)
        matrix.factors_product(_bytes_of(factors), band.rows, band.cols, count, "fp32", values)
        return _COUNT.pack(_AS_VALUES), values.tobytes()

    @override
    def decode(self, body: Body, layout: Layout, out: Vec | None = None, weight: float | None = None) -> Vec:
        require_out(layout, out, weight, body)
        self.check(body, layout)
        values = np.empty(layout.size, np.float32) if out is None else out
        data = flat(body)
        for band, count, section in self._sections(data, layout):
            part = values[band.part]
            if count == _AS_VALUES:
                half.decode("fp32", data[section], part, weight)
            else:
                matrix.factors_product(data[section], band.rows, band.cols, count, "fp32", part, weight)
        return values

    def check(self, body: Body, layout: Layout) -> None:
        """Raises DecodeError unless it can be decoded."""
        data, end = flat(body), 0
        for band, _, section in self._sections(data, layout):
            end = section.stop
            if not half.finite("fp32", data[section]):
                raise DecodeError(
                    f"the atomo body holds NaN or infinite values in tensor {layout.tensors[band.tensor].name}"
                )
        if end != len(data):
            raise DecodeError(f"the atomo body ends after {end} bytes, got {len(data)}")

    def _sections(self, data: memoryview, layout: Layout) -> Iterator[tuple[Band, int, slice]]:
        """Every band, its number of atoms or _AS_VALUES, and where its numbers lie. Raises
        DecodeError on a number that cannot be or a body that is too short."""
        at = 0
        for band in bands(layout, self.rank):
            name, count = layout.tensors[band.tensor].name, _AS_VALUES
            if band.rows:
                if at + _COUNT.size > len(data):
                    raise DecodeError(f"the atomo body ends before tensor {name}")
                (count,) = _COUNT.unpack_from(data, at)
                at += _COUNT.size
            if count != _AS_VALUES and count > band.most_atoms(self.rank):
                raise DecodeError(
                    f"the atomo body has {count} atoms in tensor {name}, at most {band.most_atoms(self.rank)} can be"
                )
            size = 4 * (band.size if count == _AS_VALUES else count * (band.rows + band.cols))
            if at + size > len(data):
                raise DecodeError(f"the atomo body ends within tensor {name}")
            yield band, count, slice(at, at + size)
            at += size


def _bytes_of(factors: NDArray[np.float32]) -> NDArray[np.uint8]:
    return factors.reshape(-1).view(np.uint8)


_ATOMO_RANK = Param("rank", 3, "expected number of singular vectors sent of every matrix", low=1, high=MAX_RANK)


_FORMS: tuple[matrix.Form, ...] = ("fp32", "fp16")
_START_KEY = 0  # of the first Q


@dataclass(frozen=True, slots=True)
class PowerSgdState:
    """What a sender remembers."""

    layout: Layout
    error: Vec  # float32[layout.size]: e
    right: Vec  # float32[sum over matrices of rank * cols]: Q, column after column


@dataclass(frozen=True, slots=True)
class PowerSgd(Codec[PowerSgdState]):
    """Rank-r factors of every matrix. Body, tensor after tensor: the factors (see
    `native.matrix`), or the values of a tensor that is no matrix, in the form `values`. Its
    size depends on the layout only.

    `powersgd`: a matrix's rank-r approximation by one step of power iteration, with error
    feedback and warm start (Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient
    compression for distributed optimization", NeurIPS 2019, Algorithms 1 and 2).

    Per message and tensor of two or more dimensions, unfolded to M = [first dimension, all
    others], with the memory e:

        M = x + decay e         error feedback (Algorithm 2, whose decay is 1)
        P = orthogonalise(M Q)  Q from the message before; the first one from the generator
        Q = M^T P               travels with P, and is kept for the next message
        x' = P Q^T, e = M - x'

    so ||M - x'|| <= ||M||, and equal messages in a row converge to the best rank-r
    approximation. Tensors of one dimension, and matrices for which r (rows + cols) >= rows
    cols, travel as they are, as the paper sends its biases.

    Deviations: the paper sums P over all workers, orthogonalises the sum, and sums Q: one
    approximation of the mean gradient, with one Q for all. That needs two all-reduces that see
    every worker. Here a sender's own P and Q travel, as through a coordinator that only adds up
    decoded updates, or between neighbours: the receiver's sum of K messages has rank up to K r
    (closer to the sum of the updates), every sender has a Q of its own, and a receiver gets
    both factors from every sender instead of one sum. The first Q is uniform in [-1, 1), not
    normal, and the same for every sender. Orthogonalisation is modified Gram-Schmidt, twice, in
    float64 instead of once with an epsilon; a column that depends on those before it is sent as
    zeros, and keeps its Q. With values = fp16, P and Q are rounded to binary16, Q after
    division by a power of two a column that travels along; Q = M^T P takes P as it travels, and
    the rounding stays in e. Results beyond float32 become its largest number.

    All sums are float64 in a fixed order, without LAPACK: the same bytes on every machine. The
    codec has error feedback inside, so it is not to be wrapped into another.
    """

    rank: int = 2
    values: matrix.Form = "fp32"
    decay: float = 1.0

    name: ClassVar[str] = "powersgd"
    has_memory: ClassVar[bool] = True
    wire_id: ClassVar[int] = 15

    def __post_init__(self) -> None:
        check_fields(self, self.name, _POWERSGD_PARAMS)

    def wire_params(self) -> bytes:
        """Return the rank, and 0 for fp32 or 1 for fp16."""
        return bytes((self.rank, _FORMS.index(self.values)))

    @override
    def init(self, layout: Layout) -> PowerSgdState:
        parts = [
            uniform32(tensor_key(_START_KEY, t.tensor), 0, self.rank * t.cols)
            for t in unfolded(layout, self.rank)
            if t.rows
        ]
        right = np.empty(sum(p.size for p in parts), np.float32)
        if parts:
            np.multiply(np.concatenate(parts) >> np.uint32(8), 2.0**-23, out=right, casting="same_kind")
            right -= 1
        return PowerSgdState(layout, np.zeros(layout.size, np.float32), right)

    @override
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

    @override
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

    def _require_sound(self, section: memoryview, t: Band, layout: Layout) -> None:
        if t.rows:
            sound = matrix.factors_sound(section, t.rows, t.cols, self.rank, self.values)
        else:
            sound = half.finite(self.values, section)
        if not sound:
            raise DecodeError(
                f"the powersgd body holds NaN, infinite or impossible values in tensor {layout.tensors[t.tensor].name}"
            )

    def _sections(self, layout: Layout) -> Iterator[tuple[Band, slice]]:
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


def _of_numbers(rank: int, form: int) -> PowerSgd:
    if form >= len(_FORMS):
        raise ConfigError(f"codec powersgd: there is no form {form} of values")
    return PowerSgd(rank, _FORMS[form])


_POWERSGD_PARAMS = (
    Param("rank", 2, "rank of what is sent of every matrix", low=1, high=MAX_RANK),
    Param("values", "fp32", "form in which values travel", choices=_FORMS),
    Param("decay", 1.0, "share of the error that is kept for the next message", low=0.0, high=1.0),
)

FAMILIES = (
    Family(
        "atomo",
        Atomo,
        "a random sample of every matrix's singular vectors, unbiased",
        (_ATOMO_RANK,),
        wire_id=Atomo.wire_id,
        from_params=from_packed("atomo", struct.Struct("B"), Atomo),
    ),
    Family(
        "powersgd",
        PowerSgd,
        "every matrix as two thin ones, by a power iteration a message, with error feedback",
        _POWERSGD_PARAMS,
        wire_id=PowerSgd.wire_id,
        from_params=from_packed("powersgd", struct.Struct("BB"), _of_numbers),
    ),
)
