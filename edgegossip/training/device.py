"""Where a model computes, and in what precision: a CPU or one GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgegossip.recipe import TrainingSection
from edgegossip.training.optimizer import Optimizer
from edgegossip.training.vector import dense_gradient
from edgegossip.types import ConfigError, HostError, UsageError

_CURE = 'set training.device = "auto" to use what is there, or see docs/training.md on GPUs'
_BEFORE_RECORDING = 3  # passes in which libraries choose kernels and memory, as torch advises
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def select_device(section: TrainingSection) -> torch.device:
    """Return the device that training.device names, where it is there: `auto` is a GPU that torch
    sees, else the CPU; int8 is the CPU's. Raises HostError, with what torch sees, when it is
    not."""
    wanted = section.device
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if wanted == "auto":
        wanted = "cpu" if section.precision == "int8" else "cuda" if cuda else "mps" if mps else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda":
        count = torch.cuda.device_count() if cuda else 0
        if (device.index or 0) >= count:
            sees = f"sees {count} CUDA GPU{'' if count == 1 else 's'}" if count else f"sees no CUDA GPU ({_why()})"
            raise HostError(f'training.device = "{wanted}": torch {torch.__version__} {sees}; {_CURE}')
    if device.type == "mps" and not mps:
        raise HostError(f'training.device = "mps": torch {torch.__version__} sees no Apple GPU; {_CURE}')
    return device


def _why() -> str:
    built = torch.version.cuda
    return f"it is built for CUDA {built}" if built else "it is built without CUDA"


def set_up(section: TrainingSection) -> torch.device:
    """Return the device, with torch set to be deterministic where the recipe asks for it. For the
    whole process, so call it before the first tensor is on a GPU."""
    if section.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch says that it needs one
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    return select_device(section)


def probe(section: TrainingSection) -> str:
    """Compute a little on the device that the recipe asks for, and say in words which one it is.

    Raises HostError when it is not there, or its kernels do not run: a torch that was built for
    other GPUs sees one and fails at the first product."""
    device = select_device(section)
    try:
        x = torch.ones(2, 3, 8, 8, device=device, requires_grad=True)
        with Precision.of(section, device).forward():
            made = torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3, device=device)).flatten(1)
            made = made @ torch.ones(144, 2, device=device)
        torch.autograd.backward(made.float().sum())
        right = x.grad is not None and bool((x.grad[:, :, 3, 3] == 72.0).all())
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise HostError(f"torch {torch.__version__} cannot compute on {device} ({first}): {_CURE}") from None
    if not right:
        raise HostError(f"torch {torch.__version__} computes wrongly on {device}: {_CURE}")
    name = f"{device}, {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)
    return f"torch {torch.__version__} trains on {name}"


@contextmanager
def explain_errors(who: str, device: torch.device) -> Iterator[None]:
    """Say in a sentence what a user can do about a device that is full, or an operation that has no
    deterministic kernel. Raises HostError and ConfigError in place of torch's own."""
    try:
        yield
    except (RuntimeError, UsageError) as error:
        # what a user's own model raises comes as the cause of a UsageError
        cause = error.__cause__ if isinstance(error, UsageError) else error
        if isinstance(cause, torch.OutOfMemoryError):
            raise HostError(
                f"{who}: {device} has no memory left for this batch: set a smaller training.batch_size, "
                'training.memory = "low", or training.precision = "bf16"'
            ) from None
        first = str(cause).strip().partition("\n")[0]
        if isinstance(cause, RuntimeError) and "deterministic" in first:
            raise ConfigError(f"{who}: {first} (set training.deterministic = false)") from None
        raise


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch for layers that draw, such as dropout; its random state is as it was
    afterwards."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which also queues a seed for devices that are not there, each with
        # a stack trace: 2 ms
        torch.default_generator.manual_seed(seed)
        if device.type == "cpu":
            yield
            return
        module = torch.cuda if device.type == "cuda" else torch.mps
        where = () if device.type == "mps" else (device,)
        kept = module.get_rng_state(*where)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            module.manual_seed(seed)
        try:
            yield
        finally:
            module.set_rng_state(kept, *where)


class RecordedGradient:
    """Replays a batch's forward and backward pass on a CUDA GPU: their kernels are queued once, and
    started together from then on (a CUDA graph).

    A small model's kernels are shorter than the time that Python takes to queue them one by one.
    The arithmetic is the same. What a graph cannot have: copies from or to the CPU, decisions by
    values on the GPU, other shapes.

    Example:
        gradient = RecordedGradient(model, loss_of, precision.backward, batch, targets)
        loss = gradient(batch, targets)  # p.grad of all parameters is set
    """

    def __init__(
        self,
        module: nn.Module,
        loss_of: Callable[[Tensor, Tensor | None], Tensor],
        backward: Callable[[Tensor], None],
        inputs: Tensor,
        targets: Tensor | None,
    ) -> None:
        """Records what `backward(loss_of(inputs, targets))` queues; batches that come later have
        the shapes of these. Parameters and buffers are as before afterwards, and so are random
        numbers, but gradients are lost. Raises ConfigError where it cannot be recorded."""
        self._inputs, self._targets = inputs.clone(), None if targets is None else targets.clone()
        device = inputs.device
        params = [p for p in module.parameters() if p.requires_grad]
        buffers = [(b, b.clone()) for b in module.buffers()]
        random = torch.cuda.get_rng_state(device)
        cuda: Any = torch.cuda  # not all of it is typed

        def gradient() -> Tensor:
            for p in params:
                p.grad = None
            loss = loss_of(self._inputs, self._targets)
            backward(loss)
            return loss.detach()

        with torch.cuda.device(device):
            aside = cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_BEFORE_RECORDING):
                    gradient()
            torch.cuda.current_stream().wait_stream(aside)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            torch.cuda.set_rng_state(random, device)
            self._graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(self._graph):
                    self._loss = gradient()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                first = str(error).strip().partition("\n")[0]
                raise ConfigError(
                    f"this model's steps cannot be recorded ({first}): set training.cuda_graph = false"
                ) from None
        self._gradients = [(p, p.grad) for p in params]

    def __call__(self, inputs: Tensor, targets: Tensor | None) -> Tensor:
        """Set the gradient of every parameter to that of a batch, and return its loss, a scalar on
        the device."""
        self._inputs.copy_(inputs)
        if self._targets is not None and targets is not None:
            self._targets.copy_(targets)
        self._graph.replay()
        for p, gradient in self._gradients:
            p.grad = gradient
        return self._loss.clone()


@dataclass(slots=True)
class Precision:
    """Computes forward and backward in float32, or mixed with a half type (`torch.autocast`).

    float16 ends at 65,504, so gradients are scaled up by a factor that follows what they allow; a
    step whose gradients overflow is left out."""

    device: torch.device
    half: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = field(default=None)

    @classmethod
    def of(cls, section: TrainingSection, device: torch.device) -> Precision:
        """Return the recipe's precision on a device."""
        half = _HALF.get(section.precision)
        scaler = torch.amp.GradScaler(device.type) if half is torch.float16 else None
        return cls(device, half, scaler)

    def forward(self) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass is computed."""
        if self.half is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.half)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a scalar loss, scaled where the half type needs it."""
        torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))

    def step(self, optimizer: Optimizer, clip: float, add: Callable[[], None] | None = None) -> bool:
        """Take one step: the loss's gradients are unscaled, then cut down to the length `clip` (0:
        left as they are), then `add` adds to them, then the optimiser steps.

        A correction is what boards' cut gradients are in the mean less what this one's are: cut
        once more, the two would not cancel. Return False where there was something to add and the
        step was left out, as its gradients overflowed."""
        if (clip or add is not None) and self.scaler is not None:
            self.scaler.unscale_(cast("torch.optim.Optimizer", optimizer))
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not isinstance(optimizer, torch.optim.SparseAdam):  # which takes no others
            for p in params:  # sparse ones have no length, and most optimisers refuse them
                dense_gradient(p)
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        if add is not None:
            add()
        if self.scaler is None:
            optimizer.step()
            return True
        before = self.scaler.get_scale() if add is not None else 0.0
        self.scaler.step(cast("torch.optim.Optimizer", optimizer))
        self.scaler.update()
        return add is None or self.scaler.get_scale() >= before  # which an overflow makes smaller

    def snapshot(self) -> dict[str, NDArray[np.float64]]:
        """Return the state of the gradient scale, where there is one."""
        if self.scaler is None:
            return {}
        state = self.scaler.state_dict()
        return {"scaler": np.array([state["scale"], state["_growth_tracker"]], np.float64)}

    def restore(self, kept: Any) -> None:
        """Go on from what `snapshot` gave. Raises UsageError for anything else."""
        if self.scaler is None:
            return
        if not isinstance(kept, np.ndarray) or kept.shape != (2,) or not kept[0] > 0:
            raise UsageError("the snapshot is not one of this workload: its gradient scale is missing")
        state = self.scaler.state_dict()
        self.scaler.load_state_dict({**state, "scale": float(kept[0]), "_growth_tracker": int(kept[1])})
