"""Lightning's Trainer in a run: a callback that exchanges every so many optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from edgegossip.types import HostError, UsageError

if TYPE_CHECKING:
    from edgegossip.training.script import Run

    Callback = object  # mypy does not read their packages
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise HostError("edgegossip.integrations.lightning needs lightning: pip install lightning") from error


class GossipCallback(Callback):
    """Exchanges the module's values with the other boards every `every` optimiser steps.

    The Trainer goes on until the run is over, so `max_steps` or `max_epochs` has to reach that far;
    its optimisers and schedulers are kept in the board's checkpoints. Lightning's own checkpoints
    and loggers have no use on a board: `Trainer(logger=False, enable_checkpointing=False)`.

    Args:
        run: what `edgegossip.join(module)` returned. For figures of the run's evaluations give
            `run.evaluate` a function before the fit; a Trainer cannot validate within a step.
        every: optimiser steps (Lightning's global steps) between two exchanges, which make a round.
        examples: how many examples this board trains on, see `Run.exchange`.

    Raises UsageError when `every` is below 1, and in training when the Trainer would end first or
    fits another module than the one that `join` was given.

    Example:
        run = edgegossip.join(module)
        run.evaluate(lambda: {"accuracy": accuracy(module, test_loader)})
        callback = GossipCallback(run, every=50)
        Trainer(max_steps=run.total_rounds * 50, callbacks=[callback]).fit(module, loader)
    """

    def __init__(self, run: Run, *, every: int = 10, examples: int | None = None) -> None:
        if every < 1:
            raise UsageError(f"every is {every}: exchange every 1 step, or every so many more")
        self._run, self._every, self._examples = run, every, examples
        self._exchanged_at, self._batches, self._total = 0, 0, torch.zeros(())
        self._over = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Wait for the run's first round, with the Trainer's optimisers in the checkpoint."""
        self._run.require_own(pl_module.parameters(), f"{type(pl_module).__name__}, which the Trainer fits,")
        schedulers = (config.scheduler for config in trainer.lr_scheduler_configs)
        self._run.add_state(*trainer.optimizers, *schedulers)
        self._exchanged_at = trainer.global_step
        self._over = not self._run.start()
        if self._over:
            trainer.should_stop = True
            return
        needed = (self._run.total_rounds - self._run.round) * self._every
        # Below 0 where Lightning cannot know: a stream, with max_epochs alone.
        if 0 <= trainer.estimated_stepping_batches < needed:
            raise UsageError(
                f"the Trainer would end after {trainer.estimated_stepping_batches} steps, before the run: "
                f"set max_steps={self._run.total_rounds * self._every}, which is run.total_rounds * every"
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Exchange, where this batch ends the last step of a round."""
        if self._over:
            raise UsageError("the run is over and the Trainer goes on: leave min_steps and min_epochs out")
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None:
            raise UsageError("training_step returned no loss: the run's log needs it, return it")
        # Lightning has divided it by the batches of a step. Summed on its device, read when due.
        self._total = self._total + torch.as_tensor(loss).detach() * trainer.accumulate_grad_batches
        self._batches += 1
        steps = trainer.global_step - self._exchanged_at
        if steps >= self._every:
            mean = float(self._total) / self._batches
            self._exchanged_at, self._batches, self._total = trainer.global_step, 0, torch.zeros(())
            self._over = not self._run.exchange(loss=mean, examples=self._examples, steps=steps)
            trainer.should_stop = trainer.should_stop or self._over

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Raise UsageError where the Trainer ends before the run does."""
        if not self._over:
            raise UsageError(
                f"the Trainer ended at step {trainer.global_step}, in round {self._run.round} of "
                f"{self._run.total_rounds}: let nothing else stop it while the run goes on"
            )
