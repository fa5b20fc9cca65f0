"""`convert(model)`: the layers of a model become int8 layers.

Parameters stay the same objects, so an optimizer made before still trains them; only a batchnorm becomes another layer. Norms
whose statistics need more than 8 bits are replaced by Range EvoNorm, with a notice: batchnorm (its scale and shift become gamma
and beta; a ReLU that follows it in an nn.Sequential goes, because the norm contains its activation) and EvoNorm-S0 (same
parameters). Layers that cannot be converted stay as they are and are named.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from edgegossip.int8 import layers, memory, norms
from edgegossip.types import ConfigError

_LARGEST_SUM = 65536  # values of a group that a sum of int8 products can span in an int32
_HARMLESS = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Unflatten)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a model's layers, by their names."""

    dw: int
    int8: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]  # (name, what it was): now Range EvoNorm
    dropped: tuple[str, ...]  # ReLUs that the norm before them contains
    fp32: tuple[tuple[str, str], ...]  # (name, why it stays)

    def notices(self) -> Iterator[str]:
        """One sentence on each thing that a user may not expect."""
        if self.replaced:
            kinds = ", ".join(sorted({kind for _, kind in self.replaced}))
            names = _shortened([name for name, _ in self.replaced])
            gone = f"; the ReLU after {len(self.dropped)} of them is part of it" if self.dropped else ""
            yield f"int8: {kinds} became Range EvoNorm in {names}{gone}"
        if self.fp32:
            yield "int8: these layers stay fp32: " + "; ".join(f"{name} ({why})" for name, why in self.fp32)


class ConversionNotice(UserWarning):
    """`convert` replaced a norm, or left a layer in fp32."""


def convert(model: nn.Module, dw: int = 16) -> nn.Module:
    """Change the layers of `model` in place, and return it (another module only if `model` itself is a batchnorm layer).

    `dw` is the bits of the gradients that weight gradients are made of: 16, or 8, which is faster on some machines and coarser;
    a model that is converted already gets the new one.
    Warns with `ConversionNotice`; `conversion(model)` says the same in full. Raises ConfigError for another `dw`."""
    if dw not in (8, 16):
        raise ConfigError(f"dw = {dw!r}: weight gradients are made of 8 or 16 bits (choices: 16, 8)")
    found = _Findings([], [], [], [])
    model = _converted(model, "", dw, found)
    report = Conversion(dw, tuple(found.int8), tuple(found.replaced), tuple(found.dropped), tuple(found.fp32))
    for notice in report.notices():
        warnings.warn(notice, ConversionNotice, stacklevel=2)
    model.__dict__["_int8_conversion"] = report
    memory.lend_to(model)
    return model


def conversion(model: nn.Module) -> Conversion | None:
    """What `convert` did to this model, or None."""
    return model.__dict__.get("_int8_conversion")


@dataclass(slots=True)
class _Findings:
    int8: list[str]
    replaced: list[tuple[str, str]]
    dropped: list[str]
    fp32: list[tuple[str, str]]


def _shortened(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _converted(module: nn.Module, name: str, dw: int, found: _Findings) -> nn.Module:
    shown = name or type(module).__name__
    if _is_int8(module):
        if isinstance(module, (layers.Conv2d, layers.Linear, layers.Embedding)):
            module.dw = dw
        found.int8.append(shown)
        return module
    if type(module) is nn.BatchNorm2d:
        found.replaced.append((shown, "batchnorm"))
        found.int8.append(shown)
        return _evonorm_of(module)
    if type(module) is norms.EvoNormS0:
        found.replaced.append((shown, "evonorm-s0"))
    target, problem = _target(module)
    if target is not None and problem is None:
        module.__class__ = target
        if hasattr(target, "dw"):
            module.dw = dw  # type: ignore[assignment]
        found.int8.append(shown)
    elif problem is not None:
        found.fp32.append((shown, problem))
    else:
        _convert_children(module, name, dw, found)
    return module


def _convert_children(module: nn.Module, name: str, dw: int, found: _Findings) -> None:
    children = list(module.named_children())
    if not children and type(module) not in _HARMLESS:
        found.fp32.append((name or type(module).__name__, f"{type(module).__name__} has no int8 form"))
    before: nn.Module | None = None
    for key, child in children:
        full = f"{name}.{key}" if name else key
        if isinstance(module, nn.Sequential) and isinstance(child, nn.ReLU) and type(before) is nn.BatchNorm2d:
            found.dropped.append(full)
            setattr(module, key, nn.Identity())
        else:
            setattr(module, key, _converted(child, full, dw, found))
        before = child


def _is_int8(module: nn.Module) -> bool:
    return type(module).__module__ == layers.__name__


def _target(module: nn.Module) -> tuple[type[nn.Module] | None, str | None]:
    """The int8 class of a module and why it cannot be that; (None, None) for what is no such layer."""
    for kind, target, problem_of in _TARGETS:
        if type(module) is kind:
            return target, problem_of(module)
    return None, None


def _conv_problem(m: nn.Conv2d) -> str | None:
    if isinstance(m.padding, str):
        return f"padding = {m.padding!r}; give it as numbers"
    if m.padding_mode != "zeros":
        return f"padding_mode = {m.padding_mode!r}"
    if set(m.dilation) != {1}:
        return "dilation"
    kernel = m.kernel_size[0] * m.kernel_size[1]
    widest = max(m.in_channels, m.out_channels) // m.groups * kernel
    return f"sums over {widest} values" if widest > _LARGEST_SUM else None


def _linear_problem(m: nn.Linear) -> str | None:
    widest = max(m.in_features, m.out_features)
    return f"sums over {widest} values" if widest > _LARGEST_SUM else None


def _embedding_problem(m: nn.Embedding) -> str | None:
    for asked in ("sparse", "scale_grad_by_freq"):
        if getattr(m, asked):
            return asked
    return None if m.max_norm is None else "max_norm"


def _max_pool_problem(m: nn.MaxPool2d) -> str | None:
    if m.return_indices or layers._pair(m.dilation) != (1, 1):
        return "return_indices" if m.return_indices else "dilation"
    kernel = layers._pair(m.kernel_size)
    return "a window of more than 256 places" if kernel[0] * kernel[1] > 256 else None


def _avg_pool_problem(m: nn.AvgPool2d) -> str | None:
    return None if m.divisor_override is None else "divisor_override"


def _adaptive_problem(m: nn.AdaptiveAvgPool2d) -> str | None:
    return None if m.output_size in (1, (1, 1)) else "an output of more than one pixel"


def _none(m: nn.Module) -> None:
    return None


_TARGETS: tuple[tuple[type[nn.Module], type[nn.Module], Callable[..., str | None]], ...] = (
    (nn.Conv2d, layers.Conv2d, _conv_problem),
    (nn.Linear, layers.Linear, _linear_problem),
    (nn.Embedding, layers.Embedding, _embedding_problem),
    (norms.RangeEvoNorm, layers.RangeEvoNorm, _none),
    (norms.EvoNormS0, layers.RangeEvoNorm, _none),
    (nn.ReLU, layers.ReLU, _none),
    (nn.MaxPool2d, layers.MaxPool2d, _max_pool_problem),
    (nn.AvgPool2d, layers.AvgPool2d, _avg_pool_problem),
    (nn.AdaptiveAvgPool2d, layers.GlobalAvgPool2d, _adaptive_problem),
)


def _evonorm_of(norm: nn.BatchNorm2d) -> layers.RangeEvoNorm:
    """A Range EvoNorm whose gamma and beta are the batchnorm's own weight and bias, the same objects."""
    made = layers.RangeEvoNorm(norm.num_features)
    if norm.affine:
        made.gamma, made.beta = norm.weight, norm.bias
        made.v.data = made.v.data.to(norm.weight.device)
    return made
