"""The local optimiser of a board: one of torch's, or a user's own, and its state as plain arrays."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from edgegossip.recipe import TrainingSection
from edgegossip.training.names import call_own, is_own, own_function
from edgegossip.types import ConfigError, LocalError

_KINDS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
MANY = 16  # tensors from which on torch's loops over all of them at once are the faster ones on a CPU
STATE, OPAQUE = "optimizer/", "optimizer"  # names in a snapshot


def make(section: TrainingSection, module: nn.Module) -> torch.optim.Optimizer:
    """The recipe's optimiser on the parameters of `module` that require a gradient.

    A user's own `module:function` is called with (parameter groups, lr, **optimizer_params); it finds
    weight_decay in the groups. Raises ConfigError for parameters that torch refuses, LocalError for a
    user's function that fails."""
    groups, params = _groups(section, module), dict(section.optimizer_params)
    if is_own(section.optimizer):
        made = call_own(
            section.optimizer, own_function("training.optimizer", section.optimizer), groups, section.lr, **params
        )
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise LocalError(f"{section.optimizer} must return a torch.optim.Optimizer, not {kind}")
        return made
    if section.optimizer == "sgd":
        params |= {"momentum": section.momentum, "nesterov": section.nesterov and section.momentum > 0}
    if not {"foreach", "fused"} & set(params):
        tensors = [p for group in groups for p in group["params"]]
        if tensors[0].device.type == "cpu":
            params["foreach"] = len(tensors) > MANY
    if "betas" in params:
        params["betas"] = tuple(params["betas"])
    try:
        return _KINDS[section.optimizer](groups, lr=section.lr, **params)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"training.optimizer_params of {section.optimizer}: {error}") from None


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


def set_rate(optimizer: torch.optim.Optimizer, lr: float, first: float) -> None:
    """Set the rate of a round. `first`: the recipe's; a user's group that began with another keeps
    its proportion to it."""
    for group in optimizer.param_groups:
        began = group.setdefault("began_lr", group["lr"])
        group["lr"] = lr if began == first or not first else began * lr / first


def snapshot(optimizer: torch.optim.Optimizer) -> dict[str, NDArray[Any]]:
    """The optimiser's state as arrays of their own: one a tensor where there is nothing but tensors,
    as in torch's own optimisers, else what torch.save makes of it."""
    state = optimizer.state_dict()["state"]
    values = {
        f"{STATE}{index}/{key}": value for index, of in state.items() for key, value in of.items() if value is not None
    }
    if all(isinstance(value, Tensor) for value in values.values()):
        return {name: as_array(value) for name, value in values.items()}
    with io.BytesIO() as buffer:
        torch.save(state, buffer)
        return {OPAQUE: np.frombuffer(buffer.getvalue(), np.uint8).copy()}


def restore(optimizer: torch.optim.Optimizer, kept: Mapping[str, Any], *, own: bool) -> None:
    """Put back what `snapshot` gave; other names are passed over. `own`: it is a user's, whose state
    may have any shapes. Raises LocalError when it cannot be this optimiser's."""
    document = optimizer.state_dict()
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    try:
        if OPAQUE in kept:
            data = kept[OPAQUE].tobytes()
            if not data.startswith(b"PK"):  # torch's older files are plain pickles
                raise ValueError("its state is no file of torch")
            state = torch.load(io.BytesIO(data), weights_only=True)  # tensors and plain values, no code
        for name in (name for name in kept if name.startswith(STATE)):
            number, _, key = name.removeprefix(STATE).partition("/")
            state.setdefault(int(number), {})[key] = torch.from_numpy(np.array(kept[name]))
        for index, of in state.items():
            for key, value in of.items():
                if not own and value.shape not in (shapes[index], torch.Size()):
                    raise ValueError(f"{key} of tensor {index} is {list(value.shape)}, not {list(shapes[index])}")
        optimizer.load_state_dict({"state": state, "param_groups": document["param_groups"]})
    except Exception as error:
        raise LocalError(f"the snapshot is not one of this workload: {type(error).__name__}: {error}") from None


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A copy as a numpy array; bfloat16, which numpy has not, as float32."""
    plain = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
    return plain.cpu().contiguous().numpy().copy()
