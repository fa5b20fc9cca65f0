"""A model of our own for long runs: the package's perceptron, and a board that rests in every local
step, so that many boards share a machine with other work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from edgegossip.training.models.vision import mlp


class Rest(nn.Module):
    """Hands on what it gets; in training it first sleeps for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds)
        return x


def slow_mlp(
    input_shape: Any, classes: int, norm: str, pause_s: float = 0.5, hidden: Sequence[int] = (128,)
) -> nn.Module:
    """`mlp` that takes `pause_s` longer for each local step."""
    return nn.Sequential(Rest(pause_s), mlp(input_shape, classes, norm, hidden))
