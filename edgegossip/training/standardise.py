"""`data.normalise = "together"`: the first layer of a model brings its inputs to mean 0 and
deviation 1, by statistics of the examples of all boards.

The statistics are values of the model, so nothing but a run's ordinary messages is needed. They are
three sums over boards, all linear in what a board puts in: how much it counts, that times the mean
of its inputs, and that times their mean square. Whatever averages models, in whatever rounds, then
averages these alike, and their quotients are mean and mean square of all boards' examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgegossip.layout import SUMS
from edgegossip.training.data.schema import Sums

# What a board counts for is a multiple of this. Only quotients matter, and float32 is as exact for
# small numbers as for large ones. So sums are made much smaller than parameters: a board that comes
# late must not look as if its update were out of all proportion (`engine/plausible.py`).
UNIT = 2.0**-64
NARROWEST = 1e-3  # deviation, in root mean squares: float32 has no more of a difference of squares


class Standardise(nn.Module):
    """Inputs [batch, channels, ...] to (x - mean) / std of each channel; as they are while no board
    has put anything in.

    Buffers: `weights` float32[boards], what of each board is in the sums; `sums` and `squares`
    float32[channels]. A deviation below `NARROWEST` root mean squares counts as that much, and 0
    as 1."""

    weights: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self, shape: Sequence[int], boards: int) -> None:
        """`shape` is that of one input, its channels first."""
        super().__init__()
        self.register_buffer("weights", torch.zeros(boards))
        self.register_buffer("sums", torch.zeros(shape[0]))
        self.register_buffer("squares", torch.zeros(shape[0]))
        self._shape = (shape[0], *(1 for _ in shape[1:]))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and deviation, float32[channels]."""
        total = self.weights.sum()
        total = torch.where(total > 0, total, torch.ones_like(total))
        mean, square = self.sums / total, self.squares / total
        std = torch.maximum(square - mean * mean, square * NARROWEST**2).sqrt()
        return mean, torch.where(std > 0, std, torch.ones_like(std))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.moments()
        return (x - mean.view(self._shape)) / std.view(self._shape)

    def lacks(self, board: int) -> bool:
        """Tell whether nothing of this board is in the sums.

        The model says so itself, and no memory of the board. So a board puts its statistics in once
        more where a coordinator has dropped its update, or where it has taken over a model that was
        made without it; and not twice when it starts again, be it with a model that others gave
        it."""
        return float(self.weights[board]) == 0.0

    @torch.no_grad()
    def put_in(self, board: int, own: Sums, weight: float) -> None:
        """Add a board's statistics to the sums, so that they count for `weight`."""
        weight *= UNIT
        self.weights[board] += weight
        self.sums += torch.from_numpy(own.sum / own.count * weight).to(self.sums)
        self.squares += torch.from_numpy(own.squares / own.count * weight).to(self.squares)


class Standardised(nn.Module):
    """A model behind a `Standardise`. Names of its tensors begin with `model.`, and those of the
    sums with `layout.SUMS`."""

    def __init__(self, model: nn.Module, shape: Sequence[int], boards: int) -> None:
        super().__init__()
        self.standardise = Standardise(shape, boards)
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(self.standardise(x))


def patterns(share: Sequence[str], keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return model.share and model.keep, which are over the names of the model alone, for a
    `Standardised` one: its sums always travel."""
    inside = [f"model.{pattern}" for pattern in share]
    return [f"{SUMS}*", *inside] if inside else [], [f"model.{pattern}" for pattern in keep]
