"""`atomo`: a random sample of a matrix's singular vectors, unbiased (Wang, Sievert, Liu, Charles,
Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic sparsification", NeurIPS
2018; "Spectral-ATOMO").

A tensor of two or more dimensions, unfolded to A = [first dimension, all others], is a sum of atoms
u_i w_i^T with orthonormal u_i and |w_i| = s_i, the singular values. Atom i is kept with probability

    p_i = min(1, r s_i / sum s), those at 1 set aside and the rest of r shared out again until all are at most 1

(Algorithm 1, equation 5), by one number of the counter-based generator, and sent as u_i and w_i /
p_i, where the paper has u_i, s_i / p_i and w_i / s_i. E[x'] = A; sum p_i = r, or all atoms travel
and x' = A when there are no more than r; no other choice of probabilities with that sum has a
smaller variance: E||x' - A||^2 = sum s_i^2 (1/p_i - 1).

No LAPACK, whose results differ between machines: u_i are eigenvectors of the smaller Gram matrix,
by Householder reduction and implicit QL in float64, w_i = A^T u_i, s_i = |w_i|. As the u_i are
orthonormal the atoms sum to A whatever the accuracy of the eigenvectors. Singular values below m
2^-48 of the largest (m the smaller side) are rounding and count as zero. p_i is rounded up to a
multiple of 2^-32, so that sampling and division have the same p_i exactly. What is left is
float32's rounding of u_i and w_i; a w_i / p_i beyond float32 becomes its largest number.

Matrices of more than 512 rows and columns are cut into bands of at most 512 rows of nearly equal
height, each with its own r: an SVD of 4096 x 4096 would take minutes. Tensors of one dimension, and
matrices for which r (rows + cols) >= rows cols, travel exactly. Should a sample turn out larger
than the band itself, or than 2 r + 8 atoms, its sum travels value by value.

It computes: O(m^2 (m + max(rows, cols))) a matrix, about half a second for 512 x 4608, so it suits
slow links.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgegossip.codecs.base import Body, Ctx
from edgegossip.codecs.checks import flat, require_input, require_out
from edgegossip.codecs.keys import tensor_key, uniform_words
from edgegossip.codecs.matrices import MAX_RANK, Unfolded, rank_from_wire, unfolded
from edgegossip.codecs.registry import Family, Param, check_fields
from edgegossip.layout import Layout
from edgegossip.native import half, matrix
from edgegossip.types import DecodeError, Vec

MAX_SIDE = 512  # of a band
_AS_VALUES = 0xFFFF  # instead of a number of atoms
_COUNT = struct.Struct("<H")
_ROUNDING = 2.0**-48  # times the side: what counts as zero beside the largest singular value


@dataclass(frozen=True, slots=True)
class Band:
    """Some rows of a matrix, or a whole one, or (rows = 0) a tensor that travels as it is."""

    tensor: int
    start: int  # of its values in the vector
    size: int
    rows: int
    cols: int
    first_atom: int  # its first atom's number within the tensor

    @property
    def part(self) -> slice:
        return slice(self.start, self.start + self.size)

    def most_atoms(self, rank: int) -> int:
        """The most that travel as factors: fewer numbers than the band has, and few enough to add
        up quickly."""
        return min(2 * rank + 8, (self.size - 1) // (self.rows + self.cols))


def bands(layout: Layout, rank: int) -> Iterator[Band]:
    """Every non-empty tensor in layout order, in one band or several."""
    for t in unfolded(layout, rank):
        yield from _bands_of(t)


def _bands_of(t: Unfolded) -> Iterator[Band]:
    count = -(-t.rows // MAX_SIDE) if min(t.rows, t.cols) > MAX_SIDE else 1
    first_atom = 0
    for b in range(count):
        top, bottom = t.rows * b // count, t.rows * (b + 1) // count
        rows = bottom - top
        size = rows * t.cols if t.rows else t.size
        yield Band(t.index, t.start + top * t.cols, size, rows, t.cols, first_atom)
        first_atom += min(rows, t.cols)


def probabilities(norms: Sequence[float], rank: int) -> list[float]:
    """p_i of atoms with these norms: min(1, c s_i) with the c for which they sum to `rank`, 0 for
    norm 0; all 1 when no more than `rank` norms are above 0."""
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
class Atomo:
    """Sampled spectral atoms of every matrix. Its state is the layout."""

    rank: int = 3

    name: ClassVar[str] = "atomo"
    wire_id: ClassVar[int] = 14

    def __post_init__(self) -> None:
        check_fields(self, self.name, (_RANK,))

    def wire_params(self) -> bytes:
        return bytes((self.rank,))

    def init(self, layout: Layout) -> Layout:
        return layout

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
        drawn = uniform_words(key, band.first_atom, norms.size)
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


def _from_params(params: bytes) -> Atomo:
    if len(params) != 1:
        raise DecodeError(f"atomo needs 1 byte of parameters, the rank, got {len(params)}")
    return Atomo(rank_from_wire(params[0], "atomo"))


_RANK = Param("rank", 3, "expected number of singular vectors sent of every matrix", low=1, high=MAX_RANK)

FAMILIES = (
    Family(
        "atomo",
        Atomo,
        "a random sample of every matrix's singular vectors, unbiased",
        (_RANK,),
        wire_id=Atomo.wire_id,
        from_params=_from_params,
    ),
)
