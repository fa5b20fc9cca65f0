"""A batch depth first: forward and backward through the whole model for a few examples at a time
(`training.memory = "low"`).

The gradient is that of the mean loss over the batch, summed over the parts, so nothing but the
order of float32 additions differs from doing all at once; what is kept for the backward pass is
that of one part. It needs a model whose examples do not see each other: no batchnorm, whose
statistics are those of whatever goes through it together.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgegossip.types import ConfigError

EXAMPLES = 8  # at a time: fewer would spend most of a step on the quantising of weights anew


def parts(examples: int, at_a_time: int) -> Iterator[slice]:
    """Consecutive slices of range(examples), each of `at_a_time` and the last one perhaps of
    fewer."""
    return (slice(start, min(start + at_a_time, examples)) for start in range(0, examples, at_a_time))


def check_independent(module: nn.Module) -> None:
    """Raises ConfigError, naming the first layer of the kind, when a layer takes statistics over
    the batch."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            raise ConfigError(
                f'training.memory = "low" trains on {EXAMPLES} examples at a time, and {name or type(layer).__name__} takes '
                'statistics of the whole batch: choose model.norm = "evonorm-s0", "range-evonorm" or "groupnorm"'
            )
