"""A model of our own for long runs: the package's perceptron, and a board that rests in every local
step, so that many boards share a machine with other work, or waits until a test lets it go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgegossip.training.models.vision import mlp


class Rest(nn.Module):
    """Hands on what it gets; in training it first sleeps for `seconds`, and until the file
    `allowed` has a byte for this step and each before it."""

    def __init__(self, seconds: float, allowed: str) -> None:
        super().__init__()
        self.seconds, self.allowed, self.steps = seconds, allowed, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.seconds)
            self.steps += 1
            while self.allowed and Path(self.allowed).stat().st_size < self.steps:
                time.sleep(0.02)
        return x


def slow_mlp(
    input_shape: Any, classes: int, norm: str, pause_s: float = 0.5, hidden: Sequence[int] = (128,), allowed: str = ""
) -> nn.Module:
    """`mlp` that takes `pause_s` longer for each local step, and as much longer as a test wants."""
    return nn.Sequential(Rest(pause_s, allowed), mlp(input_shape, classes, norm, hidden))
