"""The steps that a script's optimisers take: at which rate, with the run's correction, and whether
they reach the model that was given to `join`. A deep copy, a model that a framework makes for
itself, or an average of the one that is trained would take part in a run without a word, and
nothing come of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from edgegossip.training.vector import ModelVector
from edgegossip.types import Round, UsageError, Vec

MANY_OVERFLOWS = 25  # a GradScaler that begins at 65,536 is below 1 after 17


@dataclass(frozen=True, slots=True)
class Remark:
    """Is something that a board has to say, as an event."""

    event: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Steps:
    """Hears of each step that an optimiser of torch takes, round by round.

    Of rounds that did not reach the model only what is known is said, and once. What may be meant
    to be so is counted alone: a learning rate of 0, and a step that a GradScaler left out.
    """

    def __init__(self, vector: ModelVector) -> None:
        self._vector, self._module = vector, vector.module
        self._main: Any = None  # the optimiser that goes by the correction, and whose rate counts
        self._correction: Vec | None = None
        self._rates: list[float] = []  # of its steps in this round
        self._steps: Counter[Any] = Counter()  # of each optimiser in this round, whose rate is not 0
        self._rounds = self._unchanged = self._elsewhere = 0
        self._overflows, self._told = 0, False  # rounds in a row whose gradients are not finite
        self._hook: RemovableHandle | None = None

    def watch(self, optimizers: Sequence[Any]) -> None:
        """Begin. Of these, which may be accelerate's wrappers, the first that steps on the model is
        the main one."""
        own = (getattr(one, "optimizer", one) for one in optimizers)
        self._main = next((one for one in own if self.has(_params(one))), None)
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def end(self) -> Remark | None:
        """Hear of no more; return in how many rounds it was so, for the verdict."""
        if self._hook is not None:
            self._hook.remove()
        if not (self._unchanged or self._elsewhere):
            return None
        counts = {"rounds": self._rounds, "unchanged": self._unchanged, "elsewhere": self._elsewhere}
        most = max(self._unchanged, self._elsewhere)
        what = "nothing of the model changed" if most == self._unchanged else "no step was on the model"
        return Remark("unchanged", f"{what} in {most} of {self._rounds} rounds", counts)

    def begin_round(self, correction: Vec | None) -> None:
        """Begin a round; `correction`, float32[n], is added to the gradients of each step of the
        main optimiser."""
        self._correction = correction
        self._rates.clear()
        self._steps.clear()  # those of an evaluation, which may adapt a copy

    def taken(self) -> tuple[int, float | None]:
        """Return how many steps the main optimiser took since the last call, and their mean rate,
        whose sum over them is the sum of their gradients; None where there were none."""
        rates, self._rates = self._rates, []
        if not rates:
            return 0, None
        first = rates[0]  # exact where the rate did not change
        return len(rates), first + math.fsum(rate - first for rate in rates) / len(rates)

    def _before_step(self, made: Any, *_: Any) -> None:
        """The script's own clip is done by now, and what a GradScaler unscales itself."""
        self._steps[made] += any(group.get("lr") != 0.0 for group in made.param_groups)
        if made is not self._main:
            return
        if self._correction is not None:
            # A fused optimiser unscales, and leaves a step out, by itself.
            overflow = getattr(made, "found_inf", None)
            if overflow is not None and bool(overflow):
                return
            self._vector.add_to_gradients(self._correction, scale=getattr(made, "grad_scale", None))
        self._rates.append(rate_of(made))

    def end_round(self, round: Round, change: Vec) -> Remark | None:
        """End a round in which the trained values changed so. Return what is to be said, in the
        first one that did not reach the model."""
        self._correction, steps = None, self._steps
        moving, moved = [made for made in steps if steps[made]], bool(np.any(change))
        elsewhere = bool(moving) and not any(self.has(_params(made)) for made in moving)
        self._rounds += 1
        self._unchanged += not moved
        self._elsewhere += elsewhere
        self._overflows = self._overflows + 1 if not moved and self._overflowed() else 0
        at_rest = bool(steps) and not moving  # at a learning rate of 0
        if self._told or at_rest or (moved and not elsewhere) or 0 < self._overflows < MANY_OVERFLOWS:
            return None
        self._told = True
        took = ", ".join(f"{type(made).__name__} took {steps[made]} step{'s'[: steps[made] - 1]}" for made in moving)
        text = f"in round {round} " + ("" if moved else "nothing of the model changed")
        if elsewhere:
            none = f"{took}, none of them on the {type(self._module).__name__} that join was given"
            text += f"{none if moved else f': {none}'}: is a copy of it trained, or another model?"
        elif self._overflows:
            text += f", nor in the {self._overflows - 1} before it: its gradients are not finite"
        elif moving:
            text += f", though {took} on it: its gradients are 0, or its steps too small for its numbers"
        else:
            text += ", and no optimiser of torch took a step: is what is trained the model that join was given?"
        return Remark("unchanged", text)

    def has(self, params: Iterable[Tensor]) -> bool:
        """Return whether some of these lie in the memory of the model's parameters, as those of a
        compiled model do, and views of one flat vector."""
        own = set(map(_place, self._module.parameters()))
        return any(_place(p) in own for p in params)

    def require(self, params: Iterable[Tensor], whose: str) -> None:
        """Raise UsageError, which names `whose` these parameters are, unless some of them are the
        model's."""
        if not self.has(params):
            raise UsageError(
                f"{whose} shares no parameter with the {type(self._module).__name__} that join was given, so what it trains "
                "would not travel: give join and the training the same model"
            )

    def _overflowed(self) -> bool:
        gradients = [p.grad for p in self._module.parameters() if p.grad is not None]
        values = (g.coalesce().values() if g.is_sparse else g for g in gradients)
        return not all(bool(torch.isfinite(value).all()) for value in values)


def _place(tensor: Tensor) -> int:
    """Where its memory is; of one that has none of its own, as subclasses that quantise, which it
    is."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def rate_of(optimizer: Any) -> float:
    """Return the learning rate of an optimiser; 1 where it has none, as Adafactor may."""
    lr = optimizer.param_groups[0].get("lr")
    return 1.0 if lr is None else float(lr)


def _params(optimizer: Any) -> Iterable[Tensor]:
    return (p for group in optimizer.param_groups for p in group.get("params", ()))
