"""SGD with (Nesterov) momentum and weight decay on one flat vector.

The update is torch.optim.SGD's with dampening 0, in the form of Sutskever et al. (2013):
    g <- g + weight_decay x;  m <- momentum m + g;  x <- x - lr (g + momentum m)   (Nesterov)   or   x - lr m
"""

from __future__ import annotations

import torch
from torch import Tensor


class FlatSgd:
    """The optimiser of one board. `momentum` float32[trainable_size] is all of its state; it starts at zero."""

    def __init__(self, size: int, momentum: float, nesterov: bool, weight_decay: float) -> None:
        self.factor, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.momentum = torch.zeros(size if momentum else 0, dtype=torch.float32)

    @torch.no_grad()
    def step(self, x: Tensor, grad: Tensor, lr: float) -> None:
        """One step of x, float32[size], in place. `grad` is used as scratch space."""
        if self.weight_decay:
            grad.add_(x, alpha=self.weight_decay)
        if self.factor:
            self.momentum.mul_(self.factor).add_(grad)
            grad = grad.add_(self.momentum, alpha=self.factor) if self.nesterov else self.momentum
        x.add_(grad, alpha=-lr)
