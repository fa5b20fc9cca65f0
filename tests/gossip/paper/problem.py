"""What the nodes learn in these tests: each its own least squares, with noise that is a function of
(round, node)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray  # float64 unless said otherwise


@dataclass(frozen=True)
class Problem:
    """Node i holds f_i(x) = ||A_i x - b_i||^2 / 2. Models stay within 1 or so, where 50 rounds of
    float32 arithmetic stay within 1e-6; the noise keeps the nodes from settling, so that what a
    codec is given never vanishes."""

    a: Array  # [nodes, n, n]
    b: Array  # [nodes, n]
    seed: int
    lr: float
    decay_at: int | None = None  # from this round on the learning rate is a tenth

    @classmethod
    def of(cls, nodes: int, n: int, seed: int, lr: float = 0.05, decay_at: int | None = None) -> Problem:
        rng = np.random.default_rng([1000, seed])
        return cls(rng.normal(size=(nodes, n, n)) / np.sqrt(n), 0.5 * rng.normal(size=(nodes, n)), seed, lr, decay_at)

    def gradient(self, round: int, node: int, x: Array) -> Array:
        """float64[n]; x may be float32."""
        noise = np.random.default_rng([self.seed, round, node]).normal(size=x.size)
        return self.a[node].T @ (self.a[node] @ x.astype(np.float64) - self.b[node]) + 0.5 * noise

    def rate(self, round: int) -> float:
        late = self.decay_at is not None and round >= self.decay_at
        return self.lr / 10 if late else self.lr
