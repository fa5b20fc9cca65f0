"""`convert(model)`: the layers of a model become int8 layers.

Parameters stay the same objects, so an optimizer made before still trains them. Batch norm and
group norm stay what they are, on int8 values. Replaced are, with a notice, EvoNorm-S0 by Range
EvoNorm and nn.LayerNorm by range layer norm, with the same parameters. With `norms = "range"`
batch norm is replaced, too, by Range EvoNorm, which is faster: its scale and shift become gamma and
beta, and a ReLU that follows it in an nn.Sequential goes, because the norm contains its activation.
That is another layer, whose v is new (gamma and beta, too, where it had no weight and bias): an
optimizer made before does not know it and leaves it as it is. What is frozen stays frozen, and
hooks go over to the layer in their module's place. Layers that cannot be converted stay as they are
and are named. A module at several places of the model is one module afterwards, too, and is named
at each.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from torch import nn

from edgegossip.int8 import attention, layers, memory, norms
from edgegossip.types import ConfigError

NORMS = ("keep", "range")
_LARGEST_SUM = 65536  # values of a group that a sum of int8 products can span in an int32
_LARGEST_HEAD = 16384  # features of a head, of which differences of scores fit into an int32
_HARMLESS = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Unflatten)
_CALL_HOOKS = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook"),
)
_LOAD_HOOKS = "_load_state_dict_pre_hooks"  # which know their module
_STATE_HOOKS = ("_state_dict_pre_hooks", "_state_dict_hooks", _LOAD_HOOKS, "_load_state_dict_post_hooks")
_M = TypeVar("_M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Says what became of a model's layers, by their names."""

    dw: int
    int8: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]  # (name, what it was): now Range EvoNorm or layer norm
    dropped: tuple[str, ...]  # ReLUs that the norm before them contains
    fp32: tuple[tuple[str, str], ...]  # (name, why it stays)

    def notices(self) -> Iterator[str]:
        """Yield one sentence on each thing that a user may not expect."""
        layer_norms = [name for name, was in self.replaced if was == _REPLACED[nn.LayerNorm]]
        if layer_norms:
            yield f"int8: layernorm became range layer norm in {_shortened(layer_norms)}"
        others = [(name, was) for name, was in self.replaced if was != _REPLACED[nn.LayerNorm]]
        if others:
            kinds = ", ".join(sorted({kind for _, kind in others}))
            names = _shortened([name for name, _ in others])
            gone = f"; the ReLU after {len(self.dropped)} of them is part of it" if self.dropped else ""
            yield f"int8: {kinds} became Range EvoNorm in {names}{gone}"
        if self.fp32:
            yield "int8: these layers stay fp32: " + "; ".join(f"{name} ({why})" for name, why in self.fp32)


class ConversionNotice(UserWarning):
    """Warns that `convert` replaced a norm, or left a layer in fp32."""


def convert(model: nn.Module, dw: int = 16, norms: str = "keep") -> nn.Module:
    """Change the layers of `model` in place, and return it (another module only if `model` itself
    is a batchnorm layer that is replaced).

    `norms = "range"` replaces batch norm by Range EvoNorm, see above. `dw` is the bits of the
    gradients that weight gradients are made of: 16, or 8, which is faster on some machines and
    coarser; a model that is converted already gets the new one. Make the optimizer afterwards,
    where batchnorm layers are replaced. Warns with `ConversionNotice`; `conversion(model)` says the
    same in full. Raises ConfigError for another `dw` or `norms`.

    Example:
        model = edgegossip.int8.convert(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    if dw not in (8, 16):
        raise ConfigError(f"dw = {dw!r}: weight gradients are made of 8 or 16 bits (choices: 16, 8)")
    if norms not in NORMS:
        raise ConfigError(f"norms = {norms!r}: batch norm is kept or replaced (choices: {', '.join(NORMS)})")
    plan = _Plan(norms == "range")
    model = _planned(model, "", None, (), plan)
    _carry_out(plan)
    layers.fuse_conv_norms(model)
    attention.call_layers(model)
    converted = [m for m in model.modules() if layers.is_int8(m)]
    for layer in converted:
        if hasattr(layer, "dw"):
            layer.dw = dw  # type: ignore[assignment]
    report = Conversion(dw, tuple(plan.int8), tuple(plan.replaced), tuple(plan.dropped), tuple(plan.fp32))
    for notice in report.notices():
        warnings.warn(notice, ConversionNotice, stacklevel=2)
    model.__dict__["_int8_conversion"] = report
    memory.retain_pool(model, *converted)
    return model


def conversion(model: nn.Module) -> Conversion | None:
    """Return what the last `convert` did to this model, or None."""
    return model.__dict__.get("_int8_conversion")


@dataclass(slots=True)
class _Plan:
    """What becomes of a model. Nothing is changed while it is made: a module may stand at several
    places, with another neighbour at each, and all of them must see what it was."""

    replaces_batchnorm: bool
    int8: list[str] = field(default_factory=list)
    replaced: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    fp32: list[tuple[str, str]] = field(default_factory=list)
    classes: dict[nn.Module, type[nn.Module]] = field(default_factory=dict)  # modules that get another class
    instead: dict[nn.Module, nn.Module] = field(default_factory=dict)  # of a replaced module: one, at all these places
    moves: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list)  # parent, key, who is to stand there

    def makes_evonorm_of(self, module: nn.Module | None) -> bool:
        """Whether this is a batch norm that is replaced."""
        return self.replaces_batchnorm and type(module) is nn.BatchNorm2d and _batchnorm_problem(module) is None


def _shortened(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _planned(
    module: nn.Module, name: str, before: nn.Module | None, above: tuple[nn.Module, ...], plan: _Plan
) -> nn.Module:
    """Who is to stand at one of the module's places. `before` it: its neighbour in an
    nn.Sequential; `above`: what it is in."""
    shown, (target, problem) = name or type(module).__name__, _target(module)
    if layers.is_int8(module):
        plan.int8.append(shown)
    elif problem is not None:
        plan.fp32.append((shown, problem))
    elif type(module) is nn.ReLU and plan.makes_evonorm_of(before):
        plan.dropped.append(shown)
        return _instead(module, lambda _: nn.Identity(), plan)
    elif target is None:
        _plan_children(module, name, above, plan)
    else:
        plan.int8.append(shown)
        was = _REPLACED.get(type(module))
        if was is not None and (plan.replaces_batchnorm or type(module) is not nn.BatchNorm2d):
            plan.replaced.append((shown, was))
        if plan.makes_evonorm_of(module) and isinstance(module, nn.BatchNorm2d):
            return _instead(module, _evonorm_of, plan)
        plan.classes[module] = target
    return module


def _plan_children(module: nn.Module, name: str, above: tuple[nn.Module, ...], plan: _Plan) -> None:
    children = [(key, child) for key, child in module._modules.items() if child is not None]
    if not children and type(module) not in _HARMLESS:
        plan.fp32.append((name or type(module).__name__, f"{type(module).__name__} has no int8 form"))
    before: nn.Module | None = None
    for key, child in children:
        if child is not module and not any(child is one for one in above):  # a way back up
            instead = _planned(child, f"{name}.{key}" if name else key, before, (*above, module), plan)
            if instead is not child:
                plan.moves.append((module, key, instead))
        before = child if isinstance(module, nn.Sequential) else None


def _instead(module: _M, make: Callable[[_M], nn.Module], plan: _Plan) -> nn.Module:
    if module not in plan.instead:
        plan.instead[module] = make(module)
    return plan.instead[module]


def _carry_out(plan: _Plan) -> None:
    for module, target in plan.classes.items():
        module.__class__ = target
    for old, new in plan.instead.items():
        _hand_over(old, new)
    for parent, key, new in plan.moves:
        setattr(parent, key, new)


def _hand_over(old: nn.Module, new: nn.Module) -> None:
    """The same hooks (so that their handles still remove them), and the same mode."""
    new.training = old.training
    of_state = () if type(old) is nn.ReLU else _STATE_HOOKS  # a ReLU may stay at another place, and has no state
    for kind in (*_CALL_HOOKS, *of_state):
        new.__dict__[kind] = old.__dict__[kind]
    if of_state:
        for hook in new.__dict__[_LOAD_HOOKS].values():
            if getattr(hook, "with_module", False):
                hook.module = weakref.ref(new)


def _target(module: nn.Module) -> tuple[type[nn.Module] | None, str | None]:
    """The int8 class of a module and why it cannot be that; (None, None) for what is no such
    layer."""
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


def _layernorm_problem(m: nn.LayerNorm) -> str | None:
    if len(m.normalized_shape) > 1:
        return f"normalized_shape = {tuple(m.normalized_shape)}; over the last dimension alone it has an int8 form"
    return f"{m.normalized_shape[0]} features" if m.normalized_shape[0] > _LARGEST_SUM else None


def _attention_problem(m: nn.MultiheadAttention) -> str | None:
    if not m._qkv_same_embed_dim:
        return "kdim or vdim other than embed_dim"
    if m.bias_k is not None or m.bias_v is not None or m.add_zero_attn:
        return "add_zero_attn" if m.add_zero_attn else "add_bias_kv"
    return f"heads of {m.head_dim} features" if m.head_dim > _LARGEST_HEAD else None


def _gelu_problem(m: nn.GELU) -> str | None:
    return None if m.approximate == "none" else f"approximate = {m.approximate!r}"


def _max_pool_problem(m: nn.MaxPool2d) -> str | None:
    if m.return_indices or layers._pair(m.dilation) != (1, 1):
        return "return_indices" if m.return_indices else "dilation"
    kernel = layers._pair(m.kernel_size)
    return "a window of more than 256 places" if kernel[0] * kernel[1] > 256 else None


def _avg_pool_problem(m: nn.AvgPool2d) -> str | None:
    return None if m.divisor_override is None else "divisor_override"


def _adaptive_problem(m: nn.AdaptiveAvgPool2d) -> str | None:
    return None if m.output_size in (1, (1, 1), [1, 1]) else "an output of more than one pixel"


def _batchnorm_problem(m: nn.BatchNorm2d) -> str | None:
    own = m._parameters.get("weight") is not None and m._parameters.get("bias") is not None
    return None if own or not m.affine else "its weight or bias is no parameter of its own"


def _none(m: nn.Module) -> None:
    return None


_TARGETS: tuple[tuple[type[nn.Module], type[nn.Module], Callable[..., str | None]], ...] = (
    (nn.Conv2d, layers.Conv2d, _conv_problem),
    (nn.Linear, layers.Linear, _linear_problem),
    (nn.Embedding, layers.Embedding, _embedding_problem),
    (norms.RangeEvoNorm, layers.RangeEvoNorm, _none),
    (norms.EvoNormS0, layers.RangeEvoNorm, _none),
    (nn.BatchNorm2d, layers.BatchNorm2d, _batchnorm_problem),
    (nn.GroupNorm, layers.GroupNorm, _none),
    (norms.RangeLayerNorm, layers.RangeLayerNorm, _layernorm_problem),
    (nn.LayerNorm, layers.RangeLayerNorm, _layernorm_problem),
    (attention.DotProductAttention, layers.DotProductAttention, _none),
    (nn.MultiheadAttention, layers.MultiheadAttention, _attention_problem),
    (nn.GELU, layers.GELU, _gelu_problem),
    (nn.ReLU, layers.ReLU, _none),
    (nn.MaxPool2d, layers.MaxPool2d, _max_pool_problem),
    (nn.AvgPool2d, layers.AvgPool2d, _avg_pool_problem),
    (nn.AdaptiveAvgPool2d, layers.GlobalAvgPool2d, _adaptive_problem),
)
_REPLACED = {nn.BatchNorm2d: "batchnorm", norms.EvoNormS0: "evonorm-s0", nn.LayerNorm: "layernorm"}


def _evonorm_of(norm: nn.BatchNorm2d) -> layers.RangeEvoNorm:
    """A Range EvoNorm whose gamma and beta are the batchnorm's own weight and bias, the same
    objects. v trains where one of these does."""
    made = layers.RangeEvoNorm(norm.num_features)
    if norm.affine:
        made.gamma, made.beta = norm.weight, norm.bias
        made.v.data = made.v.data.to(norm.weight)
        made.v.requires_grad_(norm.weight.requires_grad or norm.bias.requires_grad)
    return made
