"""Models by name, as a recipe names them.

A new one is a builder and one line here; importing this package imports no torch.

A builder is called as `build(input_shape, classes, norm, **params)` and returns a torch.nn.Module
that maps inputs [batch, *input_shape] to logits float32[batch, classes]. A user's own
`module:function` is called the same way.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgegossip.recipe import ModelSection
from edgegossip.training.names import call_custom, check_params, import_function, is_custom_function, unknown
from edgegossip.types import UsageError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """Names a builder, what a recipe may set (`params`) and what the name itself sets (`fixed`)."""

    help: str
    module: str
    function: str
    params: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)


_ENTRIES = {
    "mlp": ModelEntry("fully connected layers", "vision", "mlp", ("hidden",)),
    "cnn": ModelEntry("two convolutions and two linear layers", "vision", "cnn", ("channels", "hidden")),
    "resnet8": ModelEntry("CIFAR ResNet, 0.08 M values at 32 x 32 x 3", "vision", "cifar_resnet", (), {"blocks": 1}),
    "resnet14": ModelEntry("CIFAR ResNet, 0.18 M", "vision", "cifar_resnet", (), {"blocks": 2}),
    "resnet20": ModelEntry("CIFAR ResNet, 0.27 M (He et al. 2016)", "vision", "cifar_resnet", (), {"blocks": 3}),
    "resnet32": ModelEntry("CIFAR ResNet, 0.47 M", "vision", "cifar_resnet", (), {"blocks": 5}),
    "resnet44": ModelEntry("CIFAR ResNet, 0.66 M", "vision", "cifar_resnet", (), {"blocks": 7}),
    "resnet54": ModelEntry("CIFAR ResNet, 0.76 M", "vision", "cifar_resnet", (), {"blocks": 8}),
    "resnet56": ModelEntry("CIFAR ResNet, 0.86 M", "vision", "cifar_resnet", (), {"blocks": 9}),
    "resnet110": ModelEntry("CIFAR ResNet, 1.7 M", "vision", "cifar_resnet", (), {"blocks": 18}),
    "resnet18": ModelEntry("ImageNet ResNet, 11 M", "vision", "resnet", (), {"depth": 18}),
    "resnet34": ModelEntry("ImageNet ResNet, 21 M", "vision", "resnet", (), {"depth": 34}),
    "resnet50": ModelEntry("ImageNet ResNet, 24 M with 10 classes", "vision", "resnet", (), {"depth": 50}),
    "resnet50v2": ModelEntry("ResNet with activations first, 24 M", "vision", "resnet50v2"),
    "densenet121": ModelEntry("DenseNet, 7 M", "vision", "densenet121"),
    "vgg11": ModelEntry("VGG, 9.5 M with hidden = 512", "vision", "vgg11", ("hidden",)),
    "distilbert": ModelEntry(
        "transformer for text, 66 M as published",
        "distilbert",
        "distilbert",
        ("layers", "dim", "heads", "hidden", "vocabulary", "length", "dropout", "weights"),
    ),
}


def described() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return of each model its name, what it is, and which parameters a recipe may set."""
    return [(name, entry.help, entry.params) for name, entry in _ENTRIES.items()]


def draws(section: ModelSection) -> bool:
    """Tell whether a model of the package draws random numbers while it trains."""
    return "dropout" in _ENTRIES[section.name].params


def check(section: ModelSection) -> None:
    """Raise ConfigError for an unknown model or parameter. Imports no torch, except through a
    user's own module."""
    if is_custom_function(section.name):
        import_function("model.name", section.name)
        return
    if section.name not in _ENTRIES:
        raise unknown("model.name", section.name, [*_ENTRIES, "module:function"])
    check_params("model.params", section.name, section.params, _ENTRIES[section.name].params)


def build(section: ModelSection, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build the model that a recipe names, initialised from torch's current random state.

    Args:
        section: the recipe's `[model]`.
        input_shape: of one example.
        classes: how many values the model gives for an example.

    Raises ConfigError for an unknown name or parameter and UsageError when building it fails."""
    from torch import nn

    check(section)
    if is_custom_function(section.name):
        function = import_function("model.name", section.name)
        model = call_custom(section.name, function, input_shape, classes, section.norm, **section.params)
        if not isinstance(model, nn.Module):
            raise UsageError(f"{section.name} must return a torch.nn.Module, not {type(model).__name__}")
        return model
    entry = _ENTRIES[section.name]
    builder = getattr(importlib.import_module(f"edgegossip.training.models.{entry.module}"), entry.function)
    module: nn.Module = builder(input_shape, classes, section.norm, **entry.fixed, **section.params)
    return module
