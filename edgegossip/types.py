"""Words that every part of the package shares: vectors, node names, local updates and the two error
families.

Nothing here imports more than numpy, so the pure core and the command line can use it for free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vec: TypeAlias = NDArray[np.float32]  # float32[n], one whole model (or a difference of models), C-contiguous
NodeId: TypeAlias = str  # a board's name, such as "board-0" or "pi-kitchen"
Round: TypeAlias = int  # 0-based; round t is the work that leads from model t to model t + 1

# Exit codes of the command line; docs/exit-codes.md has a line on each. 130 is Ctrl-C, as in every
# shell.
EXIT_OK, EXIT_BUG, EXIT_USAGE, EXIT_DATA, EXIT_HOST, EXIT_PEER, EXIT_RUN = 0, 1, 2, 3, 4, 5, 6
EXIT_DEGRADED = 7  # finished, but boards were lost on the way
EXIT_INTERRUPTED = 130


class EdgegossipError(Exception):
    """Base of everything this package raises on purpose. The message is one sentence a user can act
    on."""

    exit_code = EXIT_BUG


class LocalError(EdgegossipError):
    """Our own caller's mistake: a wrong argument, recipe, file or machine set-up."""

    exit_code = EXIT_USAGE


class ConfigError(LocalError):
    """A recipe or command-line value that cannot be used. Names key, value, what is allowed and the
    nearest valid choice."""


class DataError(LocalError):
    """A data set or another input file that is missing, truncated or corrupt."""

    exit_code = EXIT_DATA


class HostError(LocalError):
    """This machine lacks something: a free port, a package of an optional extra, disk space."""

    exit_code = EXIT_HOST


class RunError(LocalError):
    """A run could not finish as asked: too few boards left, or the coordinator was lost."""

    exit_code = EXIT_RUN


class PeerError(EdgegossipError):
    """Something that came from the wire, or failed to come, is at fault. Harms that peer only."""

    exit_code = EXIT_PEER


class DecodeError(PeerError):
    """Bytes that are not a valid frame or codec body."""


@dataclass(frozen=True, slots=True)
class LocalUpdate:
    """What one board's local training did in one round, before anything is exchanged.

    `delta` is what the local optimiser adds to the model it was given: -lr * gradient for one step
    of plain SGD, and the sum of all steps (momentum, weight decay and changes of batch statistics
    included) otherwise. -delta / lr is a gradient only for one step of plain SGD, and then within
    float32 rounding of the model divided by lr."""

    delta: Vec  # float32[n]
    lr: float  # learning rate in force in this round
    loss: float  # mean training loss over the examples seen
    examples: int  # examples seen
    steps: int  # optimiser steps taken
    stages_s: Mapping[str, float] = field(
        default_factory=dict
    )  # wall seconds by profiling.records.STAGES, where measured
    consumable: bool = False  # delta may be written over: whoever made it has no further use for it

    def moved(self, x: Vec) -> Vec:
        """Return x + delta, float32[n]: in the memory of delta where that may be written over."""
        return np.add(x, self.delta, out=self.delta if self.consumable else None)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Result of one evaluation."""

    loss: float  # mean loss per example
    accuracy: float  # share of examples classified right, 0..1
    examples: int
