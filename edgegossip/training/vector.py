"""The values of a torch module that travel, as one flat float32 vector.

Codecs and algorithms see a model as float32[n] in the order of its `Layout`. `ModelVector` reads
that vector from a module and writes it back, one copy each way, so the module stays its owner's:
any device, any floating-point type, any optimiser on its parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgegossip.agreement import Fact
from edgegossip.choices import did_you_mean
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import UsageError, Vec

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)


class ModelVector:
    """Reads and writes what of a module travels, as one vector.

    What travels: parameters that require a gradient, then floating-point buffers (the statistics of
    batch norm). What stays on the board: frozen parameters; buffers of integers or booleans; empty
    tensors; buffers that are not part of the `state_dict`, or that hold an infinity or a NaN (masks
    of attention); what `get_extra_state` gives. float16, bfloat16 and float64 travel as float32; a
    complex parameter travels as its real and imaginary parts, with a last dimension of 2.

    `share` and `keep` are patterns over names, as in a shell: `backbone.*`, `*.bias`. With `share`
    only what matches one of its patterns travels; what matches one of `keep` stays.

    Example:
        vector = ModelVector(model, keep=["head.*"])
        x = vector.read()  # float32[vector.layout.size]
        vector.write(x)
    """

    def __init__(self, module: nn.Module, share: Sequence[str] = (), keep: Sequence[str] = ()) -> None:
        """Raises UsageError when a pattern matches nothing, no parameter would travel, or a
        parameter has a type that cannot."""
        self.module = module
        tensors = shared_tensors(module, share, keep)
        self._share, self._keep = share, keep
        self._trained = {name for name, p in module.named_parameters() if p.requires_grad}
        self.layout = Layout.of(TensorSpec(n, _shape(t), trainable) for n, t, trainable in tensors)
        self._names = [t.name for t in self.layout.tensors]
        self._types = {name: (t.dtype, t.shape) for name, t, _ in tensors}
        split = [name.rpartition(".") for name in self._names]
        self._places = [(path, key) for path, _, key in split]  # of a layer, and of its tensor there
        self._sizes = [t.size for t in self.layout.tensors]
        self._shapes = [t.shape for t in self.layout.tensors]
        self._variances = [k for k, n in enumerate(self._names) if n.rpartition(".")[2] == "running_var"]

    def read(self) -> Vec:
        """Return the values, float32[n], in memory of their own.

        Raises UsageError when a tensor is not there any more, or has another shape or type."""
        x = np.empty(self.layout.size, np.float32)
        for part, tensor in zip(self._parts(torch.from_numpy(x)), self._tensors(), strict=True):
            part.copy_(tensor)
        return x

    @torch.no_grad()
    def write(self, x: Vec) -> Vec:
        """Set the module's values to x, float32[n], which is not changed; return the values that it
        has then: x itself, unless its types round them.

        A running variance below zero, which mixing of coded models can make, becomes zero: batch
        norm has no meaning there. Raises UsageError as `read` does."""
        self.layout.check(x)
        tensors = self._tensors()
        # a copy of a read-only vector, so that torch does not warn; nothing writes to it here
        source = torch.from_numpy(x if x.flags.writeable else x.copy())
        for part, tensor in zip(self._parts(source), tensors, strict=True):
            tensor.copy_(part)
        for k in self._variances:
            tensors[k].clamp_(min=0.0)
        exact = not self._variances and all(t.dtype == torch.float32 for t in tensors)
        return x if exact else self.read()

    def add_to_gradients(
        self, correction: Vec | None, proximal: float = 0.0, x: Vec | None = None, scale: Tensor | None = None
    ) -> None:
        """Add `correction`, float32[n], and `proximal` times the way from x to the values, to the
        gradients of the parameters that travel. One that this step has no gradient of has 0, and
        takes the correction alone. `scale`: these gradients are so many times as large
        (`GradScaler`), and so is what is added."""
        self._tensors()  # as they were at the join, or it raises
        added, starts = self._given(correction), self._given(x if proximal else None)
        with torch.no_grad():
            for (path, key), start, extra in zip(self._places, starts, added, strict=True):
                p = self.module.get_submodule(path)._parameters.get(key)
                if p is None or (p.grad is None and (extra is None or not p.requires_grad)):
                    continue
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                grad = dense_gradient(p)
                grad = torch.view_as_real(grad) if p.is_complex() else grad
                factor = 1.0 if scale is None else scale.to(grad)
                if extra is not None:
                    grad += factor * extra.to(grad)
                if start is not None:
                    grad += factor * proximal * ((torch.view_as_real(p) if p.is_complex() else p) - start.to(grad))

    def _given(self, vec: Vec | None) -> Sequence[Tensor | None]:
        if vec is None:
            return [None] * len(self._places)
        # A copy of a read-only vector, so that torch does not warn; nothing writes to it.
        return self._parts(torch.from_numpy(vec if vec.flags.writeable else vec.copy()))

    def local_state(self) -> dict[str, Tensor]:
        """Return what of the module's `state_dict` does not travel: frozen parameters, personal
        heads, counters. The tensors are the module's own."""
        there = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        travel = {id(there.get(name)) for name in self._names}  # one may have a second name
        state = self.module.state_dict(keep_vars=True)
        return {n: t.detach() for n, t in state.items() if isinstance(t, Tensor) and id(t) not in travel}

    def newly_unfrozen(self) -> str:
        """Return the name of a parameter that requires a gradient, did not at first, and would have
        travelled; "" where there is none."""
        for name, p in self.module.named_parameters():
            new = p.requires_grad and name not in self._trained
            if new and _is_shared(_all_names(self.module)[id(p)], self._share, self._keep):
                return name
        return ""

    def trained(self) -> dict[str, Tensor]:
        """Return the parameters that travel, as the module has them now. Raises as `read` does."""
        count = sum(tensor.trainable for tensor in self.layout.tensors)
        return dict(zip(self._names, self._tensors()[:count], strict=False))

    def frozen(self) -> dict[str, Tensor]:
        """Return the parameters that require no gradient now, but for those that `keep` names:
        boards hold them alike."""
        names = _all_names(self.module)
        found = ((n, p) for n, p in self.module.named_parameters() if not p.requires_grad)
        return {n: p for n, p in found if _is_shared(names[id(p)], (), self._keep)}

    def extra_state(self) -> dict[str, Any]:
        """Return what of the module's `state_dict` is no tensor: what its `get_extra_state`
        gave."""
        state = self.module.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if not isinstance(value, Tensor)}

    def personal_state(self) -> dict[str, Tensor]:
        """Return of `local_state` what training changes: all but frozen parameters. It differs from
        board to board, and a board that starts again needs it."""
        frozen = {p.data_ptr() for p in self.module.parameters() if not p.requires_grad}
        return {name: t for name, t in self.local_state().items() if t.data_ptr() not in frozen}

    def facts(self) -> dict[str, Fact]:
        """Return what boards compare of their models, but for the values that they start from; see
        `agreement`."""
        facts: dict[str, Fact] = {**self.layout.facts()}
        if base := self.base_hash():
            facts["base"] = base
        return facts

    def base_hash(self) -> str:
        """Return the SHA-256 of the frozen parameters, which every board must hold alike; "" when
        there is none."""
        frozen = [(n, p) for n, p in self.module.named_parameters() if not p.requires_grad]
        if not frozen:
            return ""
        total = hashlib.sha256()
        for name, p in frozen:
            total.update(f"{name}\t{p.dtype}\t{tuple(p.shape)}\n".encode())
            total.update(p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    def _tensors(self) -> list[Tensor]:
        """The tensors that travel, as the module has them now, in the layout's order. Looked up
        anew each time: a script may have replaced one, or moved the module to another device."""
        layers: dict[str, nn.Module | None] = {}
        found = []
        for name, (path, key) in zip(self._names, self._places, strict=True):
            if path not in layers:
                layers[path] = self._layer(path)
            layer = layers[path]
            tensor: Tensor | None = None if layer is None else layer._parameters.get(key)
            if tensor is None and layer is not None:
                tensor = layer._buffers.get(key)
            if tensor is None:
                raise UsageError(f"tensor {name} was there at the join and is not in the model any more")
            dtype, shape = self._types[name]
            if tensor.shape != shape or tensor.dtype != dtype:
                now = f"{_dtype(tensor)}{list(tensor.shape)}"
                was = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
                raise UsageError(
                    f"tensor {name} was {was} at the join and is {now} now; a model keeps shapes and types"
                )
            tensor = tensor.detach()
            found.append(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
        return found

    def _layer(self, path: str) -> nn.Module | None:
        try:
            return self.module.get_submodule(path)
        except AttributeError:
            return None

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Views of a flat vector, one a tensor."""
        return [p.view(shape) for p, shape in zip(torch.split(vector, self._sizes), self._shapes, strict=True)]


def shared_tensors(
    module: nn.Module, share: Sequence[str] = (), keep: Sequence[str] = ()
) -> list[tuple[str, Tensor, bool]]:
    """Return (name, tensor, is it trained) of what travels; a tensor used twice is there once.
    Raises as `ModelVector` does."""
    saved = set(module.state_dict(keep_vars=True))
    named: list[tuple[str, Tensor, bool]] = [(n, p, True) for n, p in module.named_parameters() if p.requires_grad]
    named += [(n, b, False) for n, b in module.named_buffers() if b.dtype in _FLOATS and n in saved]
    names = _all_names(module)
    everything = [n for of_one in names.values() for n in of_one]
    for option, patterns in (("share", share), ("keep", keep)):
        for pattern in patterns:
            if not any(fnmatchcase(n, pattern) for n in everything):
                hint = did_you_mean(pattern, everything)
                raise UsageError(f"{option}: no tensor of the model matches {pattern}{hint}")
    found: list[tuple[str, Tensor, bool]] = []
    for name, tensor, trained in named:
        if not _is_shared(names[id(tensor)], share, keep) or not tensor.numel():
            continue
        if name not in saved:
            raise UsageError(
                f"the model's state_dict() lacks {name}, which travels: let it have all, or name {name} in keep"
            )
        if not trained and tensor.device.type != "meta" and not bool(torch.isfinite(tensor).all()):
            continue
        if tensor.dtype not in (*_FLOATS, *_COMPLEX):
            raise UsageError(
                f"parameter {name} is {_dtype(tensor)}, which cannot travel: freeze it, or name it in keep"
            )
        found.append((name, tensor, trained))
    if not any(trained for _, _, trained in found):
        raise UsageError("nothing would travel: the model has no parameter that requires a gradient and is shared")
    return found


def _all_names(module: nn.Module) -> Mapping[int, list[str]]:
    """Return the names of each parameter and buffer by its id: one that is used twice has two."""
    names: dict[int, list[str]] = {}
    for of_module in (module.named_parameters, module.named_buffers):
        for name, tensor in of_module(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    return names


def _is_shared(names: Sequence[str], share: Sequence[str], keep: Sequence[str]) -> bool:
    """Whether a tensor of these names travels, each of which counts."""
    shared = not share or any(fnmatchcase(n, p) for n in names for p in share)
    return shared and not any(fnmatchcase(n, p) for n in names for p in keep)


def named_arrays(module: nn.Module, layout: Layout) -> Callable[[Vec], dict[str, NDArray[Any]]]:
    """Return what makes of x, float32[n], the arrays that travel by the names of the module's
    `state_dict`: first the layout's tensors, in its order, as views of x, float32 or complex64
    where the module's is complex; then the second names of these. It holds nothing of the
    module."""
    kept = _tensors(module)
    complexes = {t.name for t in layout.tensors if kept[t.name].is_complex()}
    firsts = {id(kept[t.name]): t.name for t in layout.tensors}
    second = {n: firsts[id(t)] for n, t in kept.items() if firsts.get(id(t), n) != n}

    def arrays(x: Vec) -> dict[str, NDArray[Any]]:
        views = layout.views(x)
        found = {n: view.view(np.complex64)[..., 0] if n in complexes else view for n, view in views.items()}
        return found | {name: found[first] for name, first in second.items()}

    return arrays


def whole_state(module: nn.Module, layout: Layout, x: Vec | None) -> dict[str, NDArray[Any]]:
    """Return the module's `state_dict` with the values x, float32[n], as arrays by name: first what
    travels (`named_arrays`), then what stays, as the module has it. x None: only what stays.

    What stays keeps its type, but that bfloat16 and smaller floating-point types become float32,
    which holds them exactly. What is no tensor (`get_extra_state`) is left out."""
    kept = _tensors(module)
    travel = {id(kept[t.name]) for t in layout.tensors}  # one may have a second name
    found = {} if x is None else named_arrays(module, layout)(x)
    return found | {name: plain_array(tensor) for name, tensor in kept.items() if id(tensor) not in travel}


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}


def plain_array(tensor: Tensor) -> NDArray[Any]:
    """Return the values of a tensor as numpy has them: a floating-point type that numpy lacks
    becomes float32, which holds it exactly. No copy where none is needed."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.complex32:
        return tensor.to(torch.complex64).numpy()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        return tensor.float().numpy()
    return tensor.resolve_conj().resolve_neg().numpy()


def dense_gradient(p: Tensor) -> Tensor:
    """Return the gradient of p, which is dense from now on: nothing dense can be added to a sparse
    one (of `nn.Embedding(sparse=True)`), and it has no norm."""
    assert p.grad is not None
    if p.grad.layout != torch.strided:
        p.grad = p.grad.to_dense()
    return p.grad


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
