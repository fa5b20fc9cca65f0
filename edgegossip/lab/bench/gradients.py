"""Real gradients: one model trained with plain mini-batch SGD on one machine, its gradient kept at
several steps.

The gradient is that of the loss on one mini-batch, before momentum and weight decay, of all
trainable tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from edgegossip import recipe as recipes
from edgegossip.lab.bench.inputs import Tensors
from edgegossip.recipe import Recipe
from edgegossip.training import check, models
from edgegossip.training import optimizer as optimizers
from edgegossip.training.data import DataSet, open_data
from edgegossip.training.loader import Normalize, Sampler
from edgegossip.training.schedule import learning_rate
from edgegossip.types import UsageError

STEPS = 30
# A network of 1.1 M values on the data set that comes with the package: some seconds, without the
# many exact zeros that convolutions over images of 8 x 8 pixels leave in a gradient.
_SETTINGS = ("model.name=mlp", "training.lr=0.05", "run.threads=1")
_WIDE = "model.params.hidden=[1024, 1024]"  # of the default network only


def recipe_for(settings: Sequence[str] = ()) -> Recipe:
    """The recipe whose [data], [model], [training] and seed are used; `settings` as in
    `run --set`."""
    other = any(setting.partition("=")[0].strip() == "model.name" for setting in settings)
    return recipes.load("quickstart-gossip", (*_SETTINGS, *(() if other else (_WIDE,)), *settings))


def dump(recipe: Recipe, steps: int = STEPS) -> Tensors:
    """The gradients of the first, the middle and the last of `steps` steps, tensor by tensor, named
    "step17/...".

    Raises ConfigError and DataError as `run` does, UsageError when the loss is not finite."""
    check(recipe)
    if recipe.data.augment:
        raise UsageError("gradients are dumped without augmentation; set data.augment = false")
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.run.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.run.seed)
            return _train(recipe, open_data(recipe.data), steps)
    finally:
        torch.set_num_threads(threads)


def _train(recipe: Recipe, data: DataSet, steps: int) -> Tensors:
    settings = recipe.training
    module = models.build(recipe.model, data.about.shape, data.about.outputs)
    optimizer = optimizers.make(settings, module)
    sampler = Sampler(len(data.indexed()), settings.batch_size, recipe.run.seed, 0)
    normalise = Normalize.of(data.about)
    kept: list[tuple[str, np.ndarray]] = []
    module.train()
    for step in range(steps):
        chosen = sampler.batch(step)
        optimizer.zero_grad()
        inputs, labels = data.indexed().take(chosen)
        logits = module(normalise(inputs))
        loss = F.cross_entropy(logits, torch.from_numpy(labels))
        if not torch.isfinite(loss):
            raise UsageError(
                f"the training loss became {float(loss.detach())} in step {step}; try a smaller training.lr"
            )
        loss.backward()
        if step in {0, steps // 2, steps - 1}:
            kept += _tensors(module, step)
        optimizers.set_rate(optimizer, learning_rate(settings, step, steps), settings.lr)
        optimizer.step()
    return Tensors(tuple(kept))


def _tensors(module: nn.Module, step: int) -> list[tuple[str, np.ndarray]]:
    named = ((name, p.grad) for name, p in module.named_parameters() if p.requires_grad and p.numel())
    return [(f"step{step}/{name}", grad.numpy().copy()) for name, grad in named if grad is not None]
