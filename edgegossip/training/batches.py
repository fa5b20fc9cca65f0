"""Which examples each step sees, and how they become a batch.

Epoch e of a board is one seeded permutation of its share, cut into whole batches; step t (counted over all rounds)
takes batch t mod b of epoch t div b, where b is the number of whole batches. The examples left over sit out that
epoch. So the batches of a round are a pure function of (seed, node, round), and resuming needs no sampler state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgegossip.training.augment import crop_and_flip
from edgegossip.training.data.base import Description
from edgegossip.training.rng import Purpose, permutation, words


class Sampler:
    """Order of one board's `size` examples, in batches of at most `batch_size`."""

    def __init__(self, size: int, batch_size: int, seed: int, node: int) -> None:
        self.size, self.seed, self.node = size, seed, node
        self.batch_size = min(batch_size, size)
        self.batches_per_epoch = size // self.batch_size
        self._epoch, self._order = -1, np.empty(0, np.int64)  # a cache of the last permutation, not state

    def batch(self, step: int) -> NDArray[np.int64]:
        """int64[batch_size], indices into the share, for a step counted from the start of training."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(self.seed, Purpose.BATCHES, self.size, self.node, epoch)
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Random crop and flip of one board's images, a pure function of (seed, node, step)."""

    seed: int
    node: int

    def __call__(self, images: NDArray[Any], step: int) -> NDArray[Any]:
        return crop_and_flip(images, words(self.seed, Purpose.AUGMENT, len(images), self.node, step))


@dataclass(frozen=True, slots=True)
class Normaliser:
    """(x - mean) / std per channel, in stored units; identity where the data set gives no mean.
    Tokens stay the whole numbers that they are."""

    mean: Tensor  # float32[channels, 1, 1, ...] or empty
    inverse_std: Tensor
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, about: Description) -> Normaliser:
        shape = (len(about.mean), *(1,) * (len(about.shape) - 1))
        std = torch.tensor(about.std, dtype=torch.float32)
        mean = torch.tensor(about.mean, dtype=torch.float32)
        dtype = torch.int64 if about.dtype == "int64" else torch.float32
        return cls(mean.reshape(shape), (1.0 / std).reshape(shape), dtype)

    def __call__(self, inputs: NDArray[Any]) -> Tensor:
        """Return stored inputs [batch, *shape] as a tensor of the same shape, in memory of its
        own."""
        batch = torch.tensor(inputs, dtype=self.dtype)
        return batch.sub_(self.mean).mul_(self.inverse_std) if len(self.mean) else batch
