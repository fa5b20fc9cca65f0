"""What is encoded: named vectors of a wanted number of values, with the tensors they consist of.

`synthetic` draws a generalised normal vector in the shapes of ResNet-50; `fitted` takes or repeats
real tensors. Both have whole tensors of the sizes that they have in the model, in its order, until
there are as many values as are wanted: what a codec pays and gains by the tensor (scales, code
tables) is then what it is in practice. `dump` trains one model with plain mini-batch SGD on this
machine and keeps its gradients at several steps: of the loss on one mini-batch, before momentum and
weight decay, of all trainable tensors. torch is imported for that alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgegossip import recipe as recipes
from edgegossip.codecs.typical import Shape, generalised_normal, scale_of
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import Recipe
from edgegossip.types import DataError, UsageError, Vec

if TYPE_CHECKING:
    from torch import nn

    from edgegossip.training.data import DataSet

_GROUPS = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and blocks of ResNet-50

STEPS = 30  # of the training run that gradients come from
# A network of 1.1 M values on the data set that comes with the package: some seconds, without the
# many exact zeros that convolutions over images of 8 x 8 pixels leave in a gradient.
_NETWORK = ("model.name=mlp", "training.lr=0.05", "run.threads=1")
_WIDE = "model.params.hidden=[1024, 1024]"  # of the default network only


@dataclass(frozen=True, slots=True)
class Input:
    """Holds one vector to encode."""

    name: str
    layout: Layout
    x: Vec  # float32[layout.size]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Holds named tensors, of one or several moments of a training run: pairs of a name and an
    array."""

    arrays: tuple[tuple[str, Vec], ...]

    @property
    def shapes(self) -> tuple[tuple[str, Shape], ...]:
        """Return the name and the shape of each."""
        return tuple((name, array.shape) for name, array in self.arrays)


def resnet50_shapes() -> tuple[tuple[str, Shape], ...]:
    """Return the 161 parameter tensors of ResNet-50 for ImageNet (He et al. 2016, table 1),
    25,557,032 values."""
    shapes: list[tuple[str, Shape]] = [("conv1", (64, 3, 7, 7)), *_norm("bn1", 64)]
    inputs = 64
    for group, (width, blocks) in enumerate(_GROUPS, 1):
        for block in range(blocks):
            name, outputs = f"layer{group}.{block}", 4 * width
            sizes = ((width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1))
            for k, shape in enumerate(sizes, 1):
                shapes += [(f"{name}.conv{k}", shape), *_norm(f"{name}.bn{k}", shape[0])]
            if not block:
                shapes += [
                    (f"{name}.downsample.conv", (outputs, inputs, 1, 1)),
                    *_norm(f"{name}.downsample.bn", outputs),
                ]
            inputs = outputs
    return (*shapes, ("fc.weight", (1000, inputs)), ("fc.bias", (1000,)))


def _norm(name: str, width: int) -> list[tuple[str, Shape]]:
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def synthetic(n: int, seed: int) -> Input:
    """Return a generalised normal vector, beta 0.6, in the shapes of ResNet-50.

    |x| = alpha G^(1/beta) with G a gamma variate of shape 1/beta, and a fair sign. alpha differs
    from tensor to tensor as in a gradient of He-initialised layers: weights 1/sqrt(fan-in),
    normalisation and biases larger by the positions that they sum over (taken as 8), all times a
    log-normal factor exp(0.5 z).
    """
    rng = np.random.default_rng(seed)
    shapes = resnet50_shapes()
    whole = dict(shapes)
    parts, specs = [], []
    for piece in _filled(shapes, n):
        specs.append(TensorSpec(piece.title, piece.shape))
        parts.append(generalised_normal(rng, math.prod(piece.shape), scale_of(rng, whole[piece.source])))
    return Input("synthetic", Layout.of(specs), np.concatenate(parts))


def fitted(name: str, tensors: Tensors, n: int) -> Input:
    """Return the first of these tensors, or all of them several times, so that there are n
    values."""
    by_name = dict(tensors.arrays)
    if not sum(a.size for a in by_name.values()):
        raise UsageError("there is no value to encode in these tensors")
    parts, specs = [], []
    for piece in _filled(tensors.shapes, n):
        source = by_name[piece.source].reshape(-1)
        specs.append(TensorSpec(piece.title, piece.shape))
        parts.append(source[piece.start : piece.start + math.prod(piece.shape)])
    return Input(name, Layout.of(specs), np.concatenate(parts).astype(np.float32, copy=False))


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is taken of a tensor: its values from `start` on, in this shape."""

    title: str
    source: str
    start: int
    shape: Shape


def _filled(shapes: Sequence[tuple[str, Shape]], n: int) -> Iterator[_Piece]:
    """The tensors in order, whole, until there are n values, and from the first again when they do
    not suffice.

    The last one is cut after a row of its first dimension; what is left then is one flat piece of
    its next values. "#..." in a title tells copies and pieces apart.
    """
    left, copy = n, 0
    while left > 0:
        for name, shape in shapes:
            size, title = math.prod(shape), f"{name}#{copy}" if copy else name
            if size <= left:
                yield _Piece(title, name, 0, shape)
                left -= size
                continue
            row = math.prod(shape[1:])
            if rows := left // row:
                yield _Piece(title, name, 0, (rows, *shape[1:]))
            if rest := left % row:
                yield _Piece(f"{title}#rest", name, rows * row, (rest,))
            return
        copy += 1


def recipe_for(settings: Sequence[str] = ()) -> Recipe:
    """Return the recipe whose [data], [model], [training] and seed are used; `settings` as in
    `run --set`."""
    other = any(setting.partition("=")[0].strip() == "model.name" for setting in settings)
    return recipes.load("quickstart-gossip", (*_NETWORK, *(() if other else (_WIDE,)), *settings))


def dump(recipe: Recipe, steps: int = STEPS) -> Tensors:
    """Return the gradients of the first, the middle and the last of `steps` steps, tensor by
    tensor, named "step17/...".

    Raises ConfigError and DataError as `run` does, UsageError when the loss is not finite."""
    import torch

    from edgegossip.training import check
    from edgegossip.training.data import open_data

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
    import torch
    from torch.nn import functional as F

    from edgegossip.training import models
    from edgegossip.training import optimizer as optimizers
    from edgegossip.training.loader import Normalize, Sampler
    from edgegossip.training.schedule import learning_rate

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
        torch.autograd.backward(loss)
        if step in {0, steps // 2, steps - 1}:
            kept += _tensors(module, step)
        optimizers.set_rate(optimizer, learning_rate(settings, step, steps), settings.lr)
        optimizer.step()
    return Tensors(tuple(kept))


def _tensors(module: nn.Module, step: int) -> list[tuple[str, np.ndarray]]:
    named = ((name, p.grad) for name, p in module.named_parameters() if p.requires_grad and p.numel())
    return [(f"step{step}/{name}", grad.numpy().copy()) for name, grad in named if grad is not None]


def save(path: Path, tensors: Tensors) -> None:
    """Keep tensors in a .npz file, one array each, in order."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{f"{k:05d} {name}": a for k, (name, a) in enumerate(tensors.arrays)})


def read(path: Path) -> Tensors:
    """Return the tensors of a .npz file, such as `save` writes, or the array of a .npy file. Raises
    DataError."""
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {path.stem: loaded} if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot read vectors from {path}: {str(error).splitlines()[0]}") from None
    except Exception as error:  # zipfile's and zlib's own errors for a damaged archive
        raise DataError(f"{path} is not a whole .npz or .npy file ({type(error).__name__})") from None
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise DataError(f"{path}: {name} does not hold finite floating-point numbers")
    if not sum(a.size for a in arrays.values()):
        raise DataError(f"{path} holds no values")
    named = {(name.partition(" ")[2] or name).replace("#", "_"): a for name, a in sorted(arrays.items())}
    return Tensors(tuple((name, a.astype(np.float32)) for name, a in named.items() if a.size))
