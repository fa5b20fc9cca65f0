"""Tasks: the loss that training makes small, and the scores that an evaluation tells.

    task             targets                       the model gives             scores
    classification   a class for each example      [n, classes]                accuracy
    multilabel       which of k labels apply       [n, k]                      f1, accuracy
    regression       numbers                       [n, values] or as targets   mae, rmse, r2
    segmentation     a class at every place        [n, classes, *places]       iou, accuracy
    language-model   none: the next token          [n, length, tokens]         perplexity, accuracy
    autoencoder      none: the input itself        as the input                mse

The first score is the one that the task goes by. Outputs are logits, never probabilities. A user's
own `module:function` takes (outputs, targets) and returns (loss, scores).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from edgegossip.recipe import TrainingSection
from edgegossip.training.check import task_of
from edgegossip.training.data import Description
from edgegossip.training.data.base import IGNORED
from edgegossip.training.names import call_custom, import_function, is_custom_function, unknown
from edgegossip.types import ConfigError, UsageError, scores_problem

Sums: TypeAlias = Mapping[str, NDArray[np.float64]]  # of an evaluation, added up over its batches

LOSSES = ("mse", "mae", "huber")  # of regression


class Task(Protocol):
    """Gives a loss and its scores. Outputs are float32, on the device that the targets are on."""

    @property
    def of_inputs(self) -> bool:
        """Whether the targets are the inputs as the model takes them, whatever the data have."""
        return False

    def terms(self, targets: Tensor) -> Tensor:
        """Count the terms that the loss of these targets is the mean of, so that means of parts add
        up to that of a batch; those of each example count the same."""
        return torch.tensor(float(len(targets)))

    # The others take what `fit` gives.

    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and targets in the shapes that go together. Raises UsageError, with the
        shape that was expected, when the model gave another."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean that training makes small, a scalar with a gradient."""

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return what an evaluation needs of one batch, such that it can be added up over
        batches."""

    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        """Return the mean loss, without smoothing or class weights, and the scores by name, the
        headline first. A score that has no value on these data is not there."""


def make(section: TrainingSection, about: Description) -> Task:
    """Make the recipe's task for these data. Raises ConfigError for settings that do not fit."""
    name, params = task_of(section, about), section.task_params
    weights, smoothing = torch.tensor(_class_weights(section, about, name)), section.label_smoothing
    if smoothing and name not in ("classification", "segmentation", "language-model"):
        raise ConfigError(f"training.label_smoothing = {smoothing:g}: {name} has no classes to smooth; leave it out")
    if is_custom_function(name):
        return _CustomTask(name, import_function("training.task", name), dict(params))
    if name == "multilabel":
        return _Multilabel(about.outputs, weights, _number("threshold", params, 0.5, 0.001, 0.999))
    if name == "regression":
        loss = params.get("loss", "mse")
        if loss not in LOSSES:
            raise unknown("training.task_params.loss", str(loss), LOSSES)
        if "delta" in params and loss != "huber":
            raise ConfigError('training.task_params.delta is of loss = "huber" only; leave it out')
        return _Regression(loss, _number("delta", params, 1.0, 1e-6, 1e6))
    if name == "autoencoder":
        if about.dtype == "int64":
            raise ConfigError('training.task = "autoencoder" needs numbers, and the inputs are tokens')
        return _Autoencoder("mse", 1.0)
    if name == "language-model":
        return _LanguageModel(about.outputs, smoothing, weights, shifted=about.target == "tokens")
    return {"classification": _Classification, "segmentation": _Segmentation}[name](about.outputs, smoothing, weights)


def _class_weights(section: TrainingSection, about: Description, name: str) -> list[float]:
    weights = section.class_weights
    if weights and name not in ("classification", "segmentation", "multilabel"):
        raise ConfigError(f"training.class_weights is set, and {name} takes none; leave it out")
    if weights and len(weights) != about.outputs:
        raise ConfigError(
            f"training.class_weights has {len(weights)} numbers and the data have {about.outputs} "
            "classes: give one for each, in their order"
        )
    if weights and not sum(weights):
        raise ConfigError("training.class_weights are all 0, so that nothing is learnt; give one above 0")
    return weights


def _number(key: str, params: Mapping[str, Any], default: float, low: float, high: float) -> float:
    value = params.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"training.task_params.{key} = {value!r}: must be a number from {low:g} to {high:g}")
    return float(value)


def _wrong(outputs: Tensor, *expected: tuple[Any, ...]) -> UsageError:
    words = " or ".join(str(shape) for shape in expected)
    return UsageError(f"gave outputs of shape {tuple(outputs.shape)}; expected {words}")


@dataclass(frozen=True, slots=True, eq=False)
class _Classification(Task):
    """Classifies examples: cross-entropy. `weights` float32[classes], or empty."""

    classes: int
    smoothing: float
    weights: Tensor

    @override
    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        expected = (len(targets), self.classes)
        if outputs.shape != expected:
            raise _wrong(outputs, expected)
        return outputs, targets

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._cross_entropy(outputs, targets, "mean")

    def _cross_entropy(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        weights = self.weights.to(outputs.device) if len(self.weights) else None
        smoothing = self.smoothing
        return F.cross_entropy(outputs, targets, weights, reduction=reduction, label_smoothing=smoothing)

    @override
    def terms(self, targets: Tensor) -> Tensor:
        counted = targets[targets != IGNORED]
        if len(self.weights):
            return self.weights.to(targets.device)[counted].sum()
        return torch.tensor(float(counted.numel()), device=targets.device)

    @override
    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {
            "loss": F.cross_entropy(outputs, targets, reduction="sum"),
            "right": (outputs.argmax(1) == targets).sum(),
            "count": (targets != IGNORED).sum(),
        }

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        count = max(1.0, float(sums["count"]))
        return float(sums["loss"]) / count, {"accuracy": float(sums["right"]) / count}


@dataclass(frozen=True, slots=True, eq=False)
class _Segmentation(_Classification):
    """Classifies every place of a mask or a sequence; places with IGNORED do not count."""

    @override
    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        first, last = (len(targets), self.classes, *targets.shape[1:]), (*targets.shape, self.classes)
        if outputs.shape == first:
            return outputs, targets
        if outputs.shape == last:
            return outputs.movedim(-1, 1), targets
        raise _wrong(outputs, first, last)

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """torch's own mean is not a number where no place of a batch counts."""
        return self._cross_entropy(outputs, targets, "sum") / _Classification.terms(self, targets).clamp(min=1e-12)

    @override
    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        counted = targets != IGNORED
        pairs = self.classes * targets[counted] + outputs.argmax(1)[counted]
        confusion = torch.bincount(pairs, minlength=self.classes**2)
        return {**_Classification.sums(self, outputs, targets), "confusion": confusion}

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        loss, scores = _Classification.scores(self, sums)
        confusion = sums["confusion"].reshape(self.classes, self.classes)
        both = np.diag(confusion)
        either = confusion.sum(0) + confusion.sum(1) - both
        found = both[either > 0] / either[either > 0]  # of classes that are there or were said to be
        return loss, ({"iou": float(found.mean())} if found.size else {}) | scores


@dataclass(frozen=True, slots=True, eq=False)
class _LanguageModel(_Segmentation):
    """Predicts the next token at every place of a sequence. `shifted`: targets are the inputs, so
    that the output at a place is for the token after it."""

    shifted: bool

    @property
    @override
    def of_inputs(self) -> bool:
        return self.shifted

    @override
    def terms(self, targets: Tensor) -> Tensor:
        return _Classification.terms(self, targets[:, 1:] if self.shifted else targets)

    @override
    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        expected = (*targets.shape, self.classes)
        if outputs.shape != expected:
            raise _wrong(outputs, expected)
        if self.shifted:
            outputs, targets = outputs[:, :-1], targets[:, 1:]
        return outputs.reshape(-1, self.classes), targets.reshape(-1)

    @override
    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return _Classification.sums(self, outputs, targets)

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        loss, scores = _Classification.scores(self, sums)
        return loss, {"perplexity": math.exp(min(loss, 700.0)), **scores}  # a float64 ends at e^709


@dataclass(frozen=True, slots=True, eq=False)
class _Multilabel(Task):
    """Finds which of several labels apply: binary cross-entropy of each. `weights` float32[labels],
    or empty: what a label that applies counts for beside one that does not."""

    labels: int
    weights: Tensor
    threshold: float  # of the probability

    @override
    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        expected = (len(targets), self.labels)
        if outputs.shape != expected:
            raise _wrong(outputs, expected)
        return outputs, targets.to(outputs.dtype)

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = self.weights.to(outputs.device) if len(self.weights) else None
        return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights)

    @override
    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        said, right = outputs > math.log(self.threshold / (1 - self.threshold)), targets > 0.5
        return {
            "loss": F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum"),
            "both": (said & right).sum(),
            "either": said.sum() + right.sum(),
            "right": (said == right).sum(),
            "count": torch.tensor(targets.numel()),
        }

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        count, either = float(sums["count"]), float(sums["either"])
        f1 = 2 * float(sums["both"]) / either if either else 0.0
        return float(sums["loss"]) / count, {"f1": f1, "accuracy": float(sums["right"]) / count}


@dataclass(frozen=True, slots=True, eq=False)
class _Regression(Task):
    """Predicts numbers. `kind` is one of LOSSES; `delta`: where huber's becomes linear."""

    kind: str
    delta: float

    @override
    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Values in a row are taken in the order that the targets' have in memory."""
        flat = (len(targets), targets[0].numel())
        if outputs.shape != targets.shape and outputs.shape != flat:
            raise _wrong(outputs, *dict.fromkeys((tuple(targets.shape), flat)))
        return outputs.reshape(targets.shape), targets.to(outputs.dtype)

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs, targets, "mean")

    def _loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        if self.kind == "huber":
            return F.huber_loss(outputs, targets, reduction=reduction, delta=self.delta)
        return {"mse": F.mse_loss, "mae": F.l1_loss}[self.kind](outputs, targets, reduction=reduction)

    @override
    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """In float64, on the CPU: sums of squares cancel, and not every GPU has it."""
        y = targets.detach().cpu().double().reshape(len(targets), -1)
        gap = outputs.detach().cpu().double().reshape(len(targets), -1) - y
        return {
            "loss": self._loss(outputs, targets, "sum"),
            "absolute": gap.abs().sum(),
            "squares": gap.square().sum(),
            "values": y.sum(0),
            "powers": y.square().sum(0),
            "examples": torch.tensor(len(targets)),
            "count": torch.tensor(targets.numel()),
        }

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        count, squares = float(sums["count"]), float(sums["squares"])
        loss, scores = float(sums["loss"]) / count, {"mae": float(sums["absolute"]) / count}
        scores["rmse"] = math.sqrt(squares / count)
        spread = float((sums["powers"] - np.square(sums["values"]) / sums["examples"]).sum())
        if spread > 1e-12 * float(sums["powers"].sum()):  # else the targets are all the same
            scores["r2"] = 1.0 - squares / spread
        return loss, scores


@dataclass(frozen=True, slots=True, eq=False)
class _Autoencoder(_Regression):
    """Rebuilds the input, as the model takes it."""

    @property
    @override
    def of_inputs(self) -> bool:
        return True

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        loss = float(sums["loss"]) / float(sums["count"])
        return loss, {"mse": loss}


@dataclass(frozen=True, slots=True, eq=False)
class _CustomTask(Task):
    """Calls a user's function: (outputs, targets, **task_params) -> (loss, scores by name). Targets
    are the inputs where the data have none. Scores of an evaluation are means over its batches, by
    their numbers of examples."""

    name: str
    function: Callable[..., Any]
    params: Mapping[str, Any]

    @override
    def fit(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, targets

    def _call(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Mapping[str, Any]]:
        given = call_custom(self.name, self.function, outputs, targets, **self.params)
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], Mapping):
            raise UsageError(f"{self.name} must return (loss, scores): a scalar tensor and a dict")
        loss, scores = given
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise UsageError(f"{self.name} must return a scalar tensor as its loss")
        return loss.reshape(()), scores

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._call(outputs, targets)[0]

    @override
    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        loss, given = self._call(outputs, targets)
        scores = {k: v.item() if isinstance(v, Tensor) and v.numel() == 1 else v for k, v in given.items()}
        known = {k: v for k, v in scores.items() if not isinstance(v, float) or math.isfinite(v)}
        if problem := scores_problem(known):
            raise UsageError(f"{self.name}: {problem}")
        n = len(targets)
        found = {f"score/{name}": torch.tensor(n * float(value)) for name, value in scores.items()}
        return {"loss": n * loss, "count": torch.tensor(n), **found}

    @override
    def scores(self, sums: Sums) -> tuple[float, dict[str, float]]:
        count = float(sums["count"])
        named = ((key.partition("/")[2], value) for key, value in sums.items() if key.startswith("score/"))
        return float(sums["loss"]) / count, {name: float(value) / count for name, value in named}
