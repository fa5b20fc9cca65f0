"""A torch optimiser that exchanges as it steps, for loops that know of steps alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from edgegossip.types import UsageError

if TYPE_CHECKING:
    from edgegossip.training.script import Run


_MOST_LEFT_OUT = 100  # passes in a row without a step: a GradScaler that begins at 65,536 is below 1 after 17


class GossipOptimizer(torch.optim.Optimizer):
    """Wraps an optimiser: every `every` steps the model is exchanged with the other boards'.

    Who comes from hivemind finds the same shape of loop: `step` does the rest. `over` says that the
    run has ended; the model then is the final one, and a further step is refused. A GradScaler's
    overflows are no steps; many in a row, whose gradients are no numbers, are refused: the loop
    would never end.

    Args:
        optimizer: steps on the model that `run` was made for. Schedulers and gradient scalers may
            be built on it or on this wrapper; parameter groups and state are the same.
        run: what `edgegossip.join(model, state=[optimizer])` returned. Give the `state` there: the
            checkpoint is taken in when this wrapper is made.
        every: steps between two exchanges, which make a round of the run.
        examples: how many examples this board trains on, see `Run.exchange`.

    Waits until the run's first round begins. Raises UsageError when `every` is below 1, or the
    optimiser steps on nothing of the run's model.

    Example:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with edgegossip.join(model, state=[optimizer]) as run:
            optimizer = GossipOptimizer(optimizer, run, every=20)
            while not optimizer.over:
                loss = loss_of(model, next(batches))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step(loss=loss)
    """

    # A GradScaler would hand scale and overflow to an optimiser that can unscale, as attributes:
    # those of this wrapper, where the fused one inside finds nothing. So it does that itself.
    _step_supports_amp_scaling = False

    def __init__(
        self, optimizer: torch.optim.Optimizer, run: Run, *, every: int = 10, examples: int | None = None
    ) -> None:
        if every < 1:
            raise UsageError(f"every is {every}: exchange every 1 step, or every so many more")
        run.require_own((p for group in optimizer.param_groups for p in group["params"]), "GossipOptimizer's optimiser")
        # Not the base class's: parameter groups and state are the wrapped optimiser's own.
        self._optimizer, self._run, self._every, self._examples = optimizer, run, every, examples
        self._steps, self._total = 0, torch.zeros(())
        self._passes = 0  # since the last step
        self.over = not run.start()

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Tensor | float | None = None) -> Any:
        """Take one step, and exchange when it is the last of a round. Return what the wrapped
        optimiser's step returns.

        The run's log, and codecs that go by it, need the training loss: give it as `loss`, or have
        `closure` return it. Raises UsageError without, and when the run is over."""
        if self.over:
            raise UsageError("the run is over: leave the loop when optimizer.over is true")
        found = self._optimizer.step() if closure is None else self._optimizer.step(closure)
        told = found if loss is None else loss
        if told is None:
            raise UsageError("step was told no loss: call optimizer.step(loss=loss), or give it a closure")
        # Summed where it is: reading a GPU's loss in each step would make the loop wait for it.
        self._total = self._total + torch.as_tensor(told).detach()
        self._steps, self._passes = self._steps + 1, 0
        if self._steps == self._every:
            mean = float(self._total) / self._every
            self._steps, self._total = 0, torch.zeros(())
            lr = float(self.param_groups[0]["lr"])
            self.over = not self._run.exchange(loss=mean, examples=self._examples, steps=self._every, lr=lr)
        return found

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        self._passes += 1
        if self._passes % _MOST_LEFT_OUT == 0 and not self._gradients_are_finite():
            raise UsageError(
                f"{self._passes - 1} steps in a row were left out, and gradients are not finite: look for NaN in data and "
                "loss, or try a smaller learning rate"
            )
        self._optimizer.zero_grad(set_to_none)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._optimizer.add_param_group(param_group)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def _gradients_are_finite(self) -> bool:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        values = (g.coalesce().values() if g.is_sparse else g for g in gradients)
        return all(bool(torch.isfinite(value).all()) for value in values)

    def __getattr__(self, name: str) -> Any:
        """Return what the wrapped optimiser has: param_groups, state, defaults, hooks."""
        if name == "_optimizer":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self._optimizer, name)
