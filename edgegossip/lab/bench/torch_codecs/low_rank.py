"""atomo by torch.linalg.svd, powersgd by matmul and torch.linalg.qr; float32 factors. Vectors go as
they are."""

from __future__ import annotations

import torch
from torch import Tensor

from edgegossip.lab.bench.torch_codecs.base import Parts


def unfolded(v: Tensor) -> Tensor:
    """[first dimension, all others]."""
    return v.reshape(v.shape[0], -1)


def _is_matrix(shape: torch.Size, rank: int) -> bool:
    return len(shape) > 1 and rank * (shape[0] + shape.numel() // shape[0]) < shape.numel()


class Atomo:
    """Spectral ATOMO: atoms are kept with p_i = min(1, r s_i / sum s), renormalised until all are
    at most 1, and sent as (s_i / p_i, vectors)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def encode(self, v: Tensor, k: int) -> Parts:
        if not _is_matrix(v.shape, self.rank):
            return (v.clone(),)
        u, s, vh = torch.linalg.svd(unfolded(v), full_matrices=False)
        p = probabilities(s, self.rank)
        chosen = torch.rand_like(p) < p
        return u[:, chosen], s[chosen] / p[chosen], vh[chosen]

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        u, s, vh = parts
        return ((u * s) @ vh).view(shape)


def probabilities(s: Tensor, rank: int) -> Tensor:
    """min(1, c s_i) with c such that they sum to `rank`, or to the number of atoms when there are
    fewer."""
    p = torch.zeros_like(s)
    open_ = s > 0
    budget = float(rank)
    while bool(open_.any()) and budget > 0:
        scaled = s * (budget / float(s[open_].sum()))
        full = open_ & (scaled >= 1.0)
        if not bool(full.any()):
            return torch.where(open_, scaled, p)
        p[full] = 1.0
        budget -= int(full.sum())
        open_ &= ~full
    return p


class PowerSgd:
    """PowerSGD (Vogels et al. 2019, Algorithm 1): P = M Q, P orthogonalised, Q = M' P, with warm
    start and error feedback, of which `decay` is kept."""

    def __init__(self, rank: int, decay: float = 1.0) -> None:
        self.rank, self.decay = rank, decay
        self._state: dict[int, tuple[Tensor, Tensor]] = {}

    def encode(self, v: Tensor, k: int) -> Parts:
        if not _is_matrix(v.shape, self.rank):
            return (v.clone(),)
        matrix = unfolded(v)
        if k not in self._state:
            self._state[k] = (torch.zeros_like(matrix), torch.randn(matrix.shape[1], self.rank))
        error, q = self._state[k]
        m = matrix.add(error, alpha=self.decay)
        p = torch.linalg.qr(m @ q).Q
        q = m.T @ p
        self._state[k] = (m.sub_(p @ q.T), q)
        return p, q

    def decode(self, parts: Parts, shape: torch.Size) -> Tensor:
        return parts[0] if len(parts) == 1 else (parts[0] @ parts[1].T).view(shape)
