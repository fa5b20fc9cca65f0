"""Defines what every part of the package shares: vectors, node names, local updates and the two
error families:

    EdgegossipError        exit code 1
      UsageError           2: our caller's; ConfigError 2, DataError 3, HostError 4, RunError 6
      PeerError            5: the other side's; DecodeError for bytes

Nothing here imports more than numpy, so the pure core and the command line can use it for free.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vec: TypeAlias = NDArray[np.float32]  # float32[n], one whole model (or a difference of models), C-contiguous
NodeId: TypeAlias = str  # a board's name, such as "board-0" or "pi-kitchen"
Round: TypeAlias = int  # 0-based; round t is the work that leads from model t to model t + 1

# Exit codes of the command line; docs/exit-codes.md has a line on each.
EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_DATA = 3
EXIT_HOST = 4
EXIT_PEER = 5
EXIT_RUN = 6
EXIT_DEGRADED = 7  # finished, but boards were lost on the way
EXIT_RUIN = 8  # finished, but what came of it is not what was asked for
EXIT_INTERRUPTED = 130  # Ctrl-C, as in every shell

if TYPE_CHECKING:
    replace = dataclasses.replace
else:

    def replace(record, **changes):
        """Return a copy of a dataclass with these fields changed. One that holds its fields and
        nothing else, and checks nothing, is copied as it is: some change with every message."""
        fields = getattr(record, "__dict__", {})
        changed = fields | changes
        if (
            len(changed) != len(record.__dataclass_fields__)
            or len(fields) < len(changed)
            or hasattr(record, "__post_init__")
        ):
            return dataclasses.replace(record, **changes)
        copy = object.__new__(type(record))
        object.__setattr__(copy, "__dict__", changed)
        return copy


COMPUTE_THREAD_PREFIX = "compute"  # begins the names of threads that a command which ends does not wait for


class EdgegossipError(Exception):
    """Base of everything this package raises on purpose. The message is one sentence a user can act
    on."""

    exit_code = EXIT_BUG
    public_message = ""  # what other machines are told in its place, where the message may hold a user's data


class UsageError(EdgegossipError):
    """Blames our own caller: a wrong argument, recipe, file or machine set-up."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """Refuses a recipe or command-line value that cannot be used. Names key, value, what is allowed
    and the nearest valid choice."""


class DataError(UsageError):
    """Refuses a data set or another input file that is missing, truncated or corrupt."""

    exit_code = EXIT_DATA


class HostError(UsageError):
    """Names what this machine lacks: a free port, a package of an optional extra, disk space."""

    exit_code = EXIT_HOST


class MissingPackageError(HostError, AttributeError):
    """Names the package that a name of `edgegossip` needs. An AttributeError as well, so that
    `help` and `hasattr` pass over the name."""


class RunError(UsageError):
    """Ends a run that could not finish as asked: too few boards left, or the coordinator was
    lost."""

    exit_code = EXIT_RUN


class StartError(RunError):
    """Boards failed before the run had come anywhere: there is nothing to show of it."""


class PeerError(EdgegossipError):
    """Blames something that came from the wire, or failed to come. Harms that peer only."""

    exit_code = EXIT_PEER


class DecodeError(PeerError):
    """Refuses bytes that are not a valid frame or codec body."""


@dataclass(frozen=True)
class LocalUpdate:
    """Holds what one board's local training did in one round, before anything is exchanged.

    `delta` is what the local optimiser adds to the model it was given: -lr * gradient for one step
    of plain SGD, and the sum of all steps (momentum, weight decay and changes of batch statistics
    included) otherwise. -delta / lr is a gradient only for one step of plain SGD, and then within
    float32 rounding of the model divided by lr.

    Example:
        LocalUpdate(delta=-0.1 * gradient, lr=0.1, loss=0.7, examples=32, steps=1)
    """

    delta: Vec  # float32[n]
    lr: float  # learning rate in force in this round
    loss: float  # mean training loss over the examples seen
    examples: int  # examples seen in this round; 0: not known
    steps: int  # optimiser steps taken; 0 where gradients overflowed in all of them
    # Wall seconds by telemetry.records.STAGES, where measured.
    stages_s: Mapping[str, float] = field(default_factory=dict)
    holds: int = 0  # examples of this board's own data; 0: not known
    metrics: Mapping[str, float] = field(default_factory=dict)  # more figures of the round, for the log
    # Bytes that a message to each neighbour may take, where a control of rates says so.
    allowed: Mapping[NodeId, int] = field(default_factory=dict)
    consumable: bool = False  # delta may be written over: whoever made it has no further use for it
    corrected: bool = False  # every step followed the correction that was asked for
    last: bool = False  # of the run: nothing will be computed while it is exchanged
    rested_s: float = 0.0  # wall seconds, of those that it took, in which the board spared itself

    @property
    def weight(self) -> int:
        """What the update counts for in an average that weighs boards by their examples (McMahan et
        al. 2017): those that the board holds, or if that is not known, those that it saw."""
        return self.holds or self.examples

    def moved(self, x: Vec) -> Vec:
        """Return x + delta, float32[n]: in the memory of delta where that may be written over."""
        return np.add(x, self.delta, out=self.delta if self.consumable else None)


# Which way a score is better, of those that edgegossip's own tasks tell.
_BETTER = {
    **dict.fromkeys(("accuracy", "f1", "iou", "r2"), "higher"),
    **dict.fromkeys(("loss", "mae", "rmse", "perplexity"), "lower"),
}


def better_of(name: str, declared: str = "auto") -> str | None:
    """Return whether a "higher" or a "lower" value of a score is better; None where nobody knows.
    `declared`: a recipe's evaluation.better. A loss is always better where it is lower."""
    return _BETTER.get(name) if declared == "auto" or name == "loss" else declared


MAX_SCORES = 16  # of one evaluation
_SCORE = re.compile(r"[a-z0-9_-]{1,32}")
_NOT_SCORES = ("loss", "examples")  # eval/loss and eval/examples are records of their own


@dataclass(frozen=True, slots=True)
class Metrics:
    """Holds the result of one evaluation.

    `scores` are figures by name, the one that the task goes by first: {"accuracy": 0.93}, {"mae":
    0.2, "r2": 0.8}, or nothing where the loss says it all.

    Example:
        Metrics(0.21, 10_000, {"accuracy": 0.93}).accuracy  # 0.93
    """

    loss: float  # mean loss per example; nan where it is not known
    examples: int
    scores: Mapping[str, float] = field(default_factory=dict)
    headless: bool = False  # the score that the task goes by was no number

    @property
    def accuracy(self) -> float | None:
        """Share of examples classified right, 0..1; None where the task has no such score."""
        return self.scores.get("accuracy")

    @property
    def headline(self) -> tuple[str, float] | None:
        """Name and value of the first score; None where there is only the loss, or the score that
        the task goes by was no number."""
        return None if self.headless else next(iter(self.scores.items()), None)

    def merit(self, better: str = "auto") -> float | None:
        """Return what is greater for a better evaluation, by the first score or, without one, the
        loss; None where nobody knows, or there is no number. `better` is as for `better_of`."""
        name, value = self.headline or ("loss", self.loss)
        sign = {"higher": 1.0, "lower": -1.0}.get(better_of(name, better) or "")
        return None if sign is None or self.headless or math.isnan(value) else sign * value

    @classmethod
    def over(cls, parts: Sequence[Metrics]) -> Metrics:
        """Return the evaluation over several test sets: means by their examples, of each figure
        that most of them have over those that have it."""

        def mean(name: str) -> float:
            known = [(f[name], part.examples) for part, f in zip(parts, figures, strict=True) if name in f]
            return math.fsum(value * n for value, n in known) / sum(n for _, n in known) if known else math.nan

        figures = [{**part.scores, **({} if math.isnan(part.loss) else {"loss": part.loss})} for part in parts]
        named = [name for part in sorted(parts, key=lambda part: -len(part.scores)) for name in part.scores]
        scores = {name: mean(name) for name in named if 2 * named.count(name) > len(parts)}
        told = any(part.examples > 1 for part in parts)  # one stands for an unknown number
        return cls(mean("loss"), sum(part.examples for part in parts) if told else 1, scores)

    @classmethod
    def known(cls, figures: Mapping[str, float], examples: int) -> tuple[Metrics, list[str]]:
        """Return the evaluation of these scores, "loss" among them where it is told, without those
        that are no finite number, and the names of these: the AUC of one class is not known."""
        scores = {name: value for name, value in figures.items() if math.isfinite(value)}
        unknown = [name for name in figures if name not in scores]
        headless = next((name for name in figures if name != "loss"), None) in unknown
        return cls(scores.pop("loss", math.nan), examples, scores, headless), unknown

    def records(self) -> dict[str, float]:
        """Return the evaluation as metrics of a record: eval/loss, eval/<name> for each score, and
        eval/examples. One example alone is what a script says that does not say."""
        figures = {**self.scores} if math.isnan(self.loss) else {"loss": self.loss, **self.scores}
        if self.examples > 1:
            figures["examples"] = self.examples
        return {f"eval/{name}": value for name, value in figures.items()}


def scores_problem(scores: Mapping[str, Any]) -> str:
    """Say what is wrong with scores by name, from the wire or a user's own function; "" if nothing.

    At most MAX_SCORES finite numbers, with names of 1 to 32 characters a-z, 0-9, _ and -, none of
    which is "loss" or "examples". An accuracy is from 0 to 1."""
    if len(scores) > MAX_SCORES:
        return f"there are {len(scores)} scores, and at most {MAX_SCORES} are allowed"
    for name, value in scores.items():
        if not isinstance(name, str) or not _SCORE.fullmatch(name) or name in _NOT_SCORES:
            allowed = "1 to 32 characters a-z, 0-9, _ and -, and not loss or examples"
            return f"a score is named {str(name)[:40]!r}; a name has {allowed}"
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return f"the score {name} is {str(value)[:40]}, which is no finite number"
    accuracy = scores.get("accuracy", 0.0)
    return "" if 0.0 <= accuracy <= 1.0 else f"the accuracy is {accuracy:g}; it is from 0 to 1"
