"""The local optimiser of a board: one of torch's, or a user's own, and its state as plain
arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from typing_extensions import override

from edgegossip.recipe import TrainingSection
from edgegossip.training.names import call_custom, import_function, is_custom_function
from edgegossip.training.serialization import find_unserializable, pack, unpack
from edgegossip.training.vector import plain_array
from edgegossip.types import ConfigError, UsageError

_KINDS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
MANY = 16  # tensors from which on torch's loops over all of them at once are the faster ones on a CPU
STATE, OPAQUE = "optimizer/", "optimizer"  # names in a snapshot
GROUPS = "param_groups"  # and in what is packed there of a user's own optimiser


class Optimizer(Protocol):
    """Does what is used of a `torch.optim.Optimizer`."""

    param_groups: list[dict[str, Any]]

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""

    def step(self) -> Any:
        """Take one step by the parameters' gradients."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state by the numbers of the parameters, and the parameter groups."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""


class Sgd(Optimizer):
    """Takes steps of SGD with momentum, to the bit torch.optim's without dampening (Sutskever et
    al. 2013):

        g <- g + weight_decay x;  m <- momentum m + g
        x <- x - lr (g + momentum m)   (Nesterov)   or   x - lr m

    Not torch.optim's own, because its first step imports torch's compiler: 80 MB and several
    seconds of a small board. States are interchangeable with it."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, nesterov: bool) -> None:
        self.param_groups = [{**group, "lr": lr} for group in groups]
        self.momentum, self.nesterov = momentum, nesterov
        self._memory: dict[Tensor, Tensor] = {}  # by parameter, from its first gradient on

    @override
    def zero_grad(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    @override
    @torch.no_grad()
    def step(self) -> None:
        # Gradients are used as scratch space.
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            if group["weight_decay"]:
                torch._foreach_add_(grads, params, alpha=group["weight_decay"])
            if self.momentum:
                for p in params:
                    if p not in self._memory:
                        self._memory[p] = torch.zeros_like(p)
                memory = [self._memory[p] for p in params]
                torch._foreach_mul_(memory, self.momentum)
                torch._foreach_add_(memory, grads)
                if self.nesterov:
                    torch._foreach_add_(grads, memory, alpha=self.momentum)
                else:
                    grads = memory
            torch._foreach_add_(params, grads, alpha=-group["lr"])

    @override
    def state_dict(self) -> dict[str, Any]:
        params = [p for group in self.param_groups for p in group["params"]]
        known = {k: self._memory[p] for k, p in enumerate(params) if p in self._memory}
        return {"state": {k: {"momentum_buffer": m} for k, m in known.items()}, "param_groups": self.param_groups}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        memory = {params[k]: of["momentum_buffer"] for k, of in state_dict["state"].items()}
        self._memory = {p: torch.empty_like(p).copy_(m) for p, m in memory.items()}


def make(section: TrainingSection, module: nn.Module) -> Optimizer:
    """Make the recipe's optimiser on the parameters of `module` that require a gradient.

    A user's own `module:function` is called with (parameter groups, lr, **optimizer_params); it
    finds weight_decay in the groups. Raises ConfigError for parameters that torch refuses,
    UsageError for a user's function that fails."""
    groups, params = _groups(section, module), dict(section.optimizer_params)
    if is_custom_function(section.optimizer):
        made = call_custom(
            section.optimizer, import_function("training.optimizer", section.optimizer), groups, section.lr, **params
        )
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise UsageError(f"{section.optimizer} must return a torch.optim.Optimizer, not {kind}")
        made.step = partial(call_custom, section.optimizer, made.step)  # type: ignore[method-assign]
        return cast("Optimizer", made)
    if section.optimizer == "sgd":
        momentum, nesterov = section.momentum, section.nesterov and section.momentum > 0
        if not params:
            return Sgd(groups, section.lr, momentum, nesterov)
        params |= {"momentum": momentum, "nesterov": nesterov}
    if not {"foreach", "fused"} & set(params):
        tensors = [p for group in groups for p in group["params"]]
        if tensors[0].device.type == "cpu":
            params["foreach"] = len(tensors) > MANY
    if "betas" in params:
        params["betas"] = tuple(params["betas"])
    try:
        made = _KINDS[section.optimizer](groups, lr=section.lr, **params)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"training.optimizer_params of {section.optimizer}: {error}") from None
    return cast("Optimizer", made)


def _groups(section: TrainingSection, module: nn.Module) -> list[dict[str, Any]]:
    """One group for all, or with decay = weights one more for what is not decayed."""
    free = _undecayed(module) if section.decay == "weights" else set()
    trained = [p for p in module.parameters() if p.requires_grad]
    parts = ((section.weight_decay, [p for p in trained if p not in free]), (0.0, [p for p in trained if p in free]))
    return [{"params": params, "weight_decay": decay} for decay, params in parts if params]


def _undecayed(module: nn.Module) -> set[Tensor]:
    """Biases, single numbers and vectors, and whatever a normalisation layer has."""
    found: set[Tensor] = set()
    for layer in module.modules():
        norm = isinstance(layer, _NormBase) or "norm" in type(layer).__name__.lower()
        for name, p in layer.named_parameters(recurse=False):
            if norm or p.ndim <= 1 or name.rpartition(".")[2].endswith("bias"):
                found.add(p)
    return found


def set_rate(optimizer: Optimizer, lr: float, first: float) -> None:
    """Set the rate of a round. `first`: the recipe's; a user's group that began with another keeps
    its proportion to it."""
    for group in optimizer.param_groups:
        began = group.setdefault("began_lr", group["lr"])
        group["lr"] = lr if began == first or not first else began * lr / first


def snapshot(optimizer: Optimizer, *, own: bool) -> dict[str, NDArray[Any]]:
    """Return the optimiser's state as arrays of their own: one a tensor, as torch's optimisers have
    nothing else. `own`: it is a user's, of which `pack` makes one array with its parameter groups.
    Raises UsageError for what could not be restored."""
    document = optimizer.state_dict()
    state = document["state"]
    values = {
        f"{STATE}{index}/{key}": value for index, of in state.items() for key, value in of.items() if value is not None
    }
    if not own:
        return {name: plain_array(value).copy() for name, value in values.items()}
    if found := find_unserializable({name: value for name, value in values.items() if not isinstance(value, Tensor)}):
        raise UsageError(f"the state of training.optimizer, a {type(optimizer).__name__}, cannot be kept: it{found}")
    # What cannot be read back of a group is as the user's function makes it: a function, most
    # often.
    groups = [{key: v for key, v in group.items() if not find_unserializable(v)} for group in document["param_groups"]]
    return {OPAQUE: pack({"state": state, GROUPS: groups})}


def restore(optimizer: Optimizer, kept: Mapping[str, Any], *, own: bool) -> None:
    """Put back what `snapshot` gave; other names are passed over. `own`: it is a user's, whose
    state may have any shapes. Raises UsageError when it cannot be this optimiser's."""
    groups = optimizer.state_dict()["param_groups"]
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    try:
        if OPAQUE in kept:
            document = unpack(kept[OPAQUE])
            both = zip(groups, document[GROUPS], strict=True)
            groups = [{**group, **was, "params": group["params"]} for group, was in both]
            state = document["state"]
        for name in (name for name in kept if name.startswith(STATE)):
            number, _, key = name.removeprefix(STATE).partition("/")
            state.setdefault(int(number), {})[key] = torch.from_numpy(np.array(kept[name]))
        for index, of in state.items():
            for key, value in of.items():
                if not own and value.shape not in (shapes[index], torch.Size()):
                    raise ValueError(f"{key} of tensor {index} is {list(value.shape)}, not {list(shapes[index])}")
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except Exception as error:
        raise UsageError(f"the snapshot is not one of this workload: {type(error).__name__}: {error}") from None
