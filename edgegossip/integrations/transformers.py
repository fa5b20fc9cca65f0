"""Transformers' Trainer in a run: a callback that exchanges every so many optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from edgegossip.types import HostError, UsageError

if TYPE_CHECKING:
    from edgegossip.training.script import Run

    TrainerCallback = object  # mypy does not read their packages
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise HostError(
            "edgegossip.integrations.transformers needs transformers: pip install transformers accelerate"
        ) from error

_NOT_SCORES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")


class GossipCallback(TrainerCallback):
    """Exchanges the Trainer's model with the other boards every `every` optimiser steps.

    The Trainer goes on until the run is over, so its `max_steps` has to reach that far; its
    optimiser and scheduler are kept in the board's checkpoints. What the Trainer saves and
    evaluates after such a step is the mixed model.

    Args:
        run: what `edgegossip.join(model)` returned for the Trainer's model.
        every: optimiser steps between two exchanges, which make a round of the run.
        evaluate: called when the run evaluates, most often `trainer.evaluate`. Numbers that it
            returns as `eval_NAME` become the scores NAME, in small letters; its timings are left
            out.

    Raises UsageError when `every` is below 1, and in training when the Trainer would end first or
    trains another model than the one that `join` was given, such as one of `model_init`.

    Example:
        run = edgegossip.join(model)
        arguments = TrainingArguments("out", max_steps=run.total_rounds * 50)
        trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=test)
        trainer.add_callback(GossipCallback(run, every=50, evaluate=trainer.evaluate))
        trainer.train()
    """

    def __init__(self, run: Run, *, every: int = 10, evaluate: Callable[[], Mapping[str, float]] | None = None) -> None:
        if every < 1:
            raise UsageError(f"every is {every}: exchange every 1 step, or every so many more")
        self._run, self._every = run, every
        self._examples: int | None = None
        self._steps, self._logged, self._total = 0, 0, 0.0  # since the last exchange; of the log
        self._due = self._over = False
        self._final: dict[str, Tensor] = {}
        if evaluate is not None:
            run.evaluate(lambda: _scores(evaluate()))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the run's first round, with optimiser and scheduler in the checkpoint."""
        model = kwargs["model"]
        self._run.require_own(model.parameters(), f"{type(model).__name__}, which the Trainer trains (model_init?),")
        self._examples = _length(kwargs["train_dataloader"])
        self._logged = state.global_step
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])  # not accelerate's wrapper of it
        self._run.add_state(*(s for s in (optimizer, kwargs["lr_scheduler"]) if s is not None))
        self._over = not self._run.start()
        if self._over:
            # The Trainer takes one step before it looks; the model is to stay what it is.
            control.should_training_stop = True
            self._final = {name: tensor.clone() for name, tensor in kwargs["model"].state_dict().items()}
            return
        needed = (self._run.total_rounds - self._run.round) * self._every
        if state.max_steps - state.global_step < needed:
            raise UsageError(
                f"the Trainer would end after {state.max_steps} steps, before the run: "
                f"set max_steps={self._run.total_rounds * self._every}, which is run.total_rounds * every"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Have the Trainer log its loss after the last step of a round."""
        if self._over:
            kwargs["model"].load_state_dict(self._final)
            return
        if self._due:
            raise UsageError(
                f"the Trainer did not log step {state.global_step - 1}, so its loss is not known: "
                "leave control.should_log as it is"
            )
        self._steps += 1
        if self._steps == self._every:
            # Its log has the one mean loss that a Trainer tells; `on_log` comes with this step.
            self._due = control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Exchange, where this log ends a round."""
        if logs is None or "loss" not in logs or self._over:
            return  # an evaluation's, or that of the end
        self._total += logs["loss"] * (state.global_step - self._logged)
        self._logged = state.global_step
        if self._due:
            mean, self._due, self._steps, self._total = self._total / self._every, False, 0, 0.0
            going_on = self._run.exchange(loss=mean, examples=self._examples, steps=self._every)
            self._over = control.should_training_stop = not going_on

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise UsageError where the Trainer ends before the run does."""
        if not self._over:
            raise UsageError(
                f"the Trainer ended at step {state.global_step}, in round {self._run.round} of "
                f"{self._run.total_rounds}: let nothing else stop it while the run goes on"
            )


def _length(loader: Any) -> int | None:
    """Count the examples of a loader's data set; None when it is a stream."""
    try:
        return len(loader.dataset)
    except TypeError:
        return None


def _scores(metrics: Mapping[str, Any]) -> dict[str, float]:
    named = {name.removeprefix("eval_").lower(): value for name, value in metrics.items()}  # such as eval_rougeL
    return {n: v for n, v in named.items() if n not in _NOT_SCORES and isinstance(v, (int, float))}
