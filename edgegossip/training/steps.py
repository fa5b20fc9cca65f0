"""The steps that a script's optimisers take: at which rate, with the run's correction, and whether
they reach the model that was given to `join`, and begin at what the exchange brought. A deep copy,
a model that a framework makes for itself, an average of the one that is trained, or one whose first
weights are loaded in each round, would take part in a run without a word, and nothing come of
it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from edgegossip.training.vector import ModelVector
from edgegossip.types import Round, UsageError, Vec

K = TypeVar("K")

MANY_OVERFLOWS = 25  # a GradScaler that begins at 65,536 is below 1 after 17
_SAMPLES = 256  # values of a tensor, evenly spread, that show whether it was written to
# In how many rounds of what kind training did not reach the model, or lost what was mixed.
_WHATS = {
    "unchanged": "nothing of the model changed",
    "elsewhere": "no step was on the model",
    "undone": "training began at older values",
}


@dataclass(frozen=True, slots=True)
class Remark:
    """Is something that a board has to say, as an event."""

    event: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Steps:
    """Hears of each step that an optimiser of torch takes, round by round.

    Of rounds that did not reach the model only what is known is said, and once. What may be meant
    to be so is counted alone: a learning rate of 0, and a step that a GradScaler left out.
    """

    def __init__(self, vector: ModelVector) -> None:
        self._vector, self._module = vector, vector.module
        self._main: Any = None  # the optimiser that goes by the correction, and whose rate counts
        self._correction: Vec | None = None
        self._rates: list[float] = []  # of its steps in this round
        self._steps: Counter[Any] = Counter()  # of each optimiser in this round, whose rate is not 0
        self._rounds, self._counts = 0, dict.fromkeys(_WHATS, 0)
        self._overflows, self._told = 0, False  # rounds in a row whose gradients are not finite
        # Of the parameters that travel: what optimisers stepped on, or would; and some values,
        # float32, at the start, at the end of the last round, and as this round was given them.
        trained = [tensor.size for tensor in vector.layout.tensors if tensor.trainable]
        ends, steps = np.cumsum(trained), [_stride(size) for size in trained]
        places = [np.arange(end - size, end, step) for size, end, step in zip(trained, ends, steps, strict=True)]
        self._at, self._sizes = np.concatenate(places), np.array(trained)
        self._starts = np.cumsum([0, *map(len, places[:-1])])
        self._first = self._last = self._given = np.zeros(0, np.float32)
        self._frozen: dict[str, Tensor] = {}  # some of the others at the start, until it is told that they changed
        self._since = ""  # at which older values this round began
        self._from_copy = False  # whether what an optimiser steps on began at what the exchange brought
        self._hook: RemovableHandle | None = None

    def watch(self, optimizers: Sequence[Any]) -> None:
        """Begin. Of these, which may be accelerate's wrappers, the first that steps on the model is
        the main one."""
        own = (getattr(one, "optimizer", one) for one in optimizers)
        self._main = next((one for one in own if self.has(_params(one))), None)
        self._first = self.sampled(self._vector.read())
        self._frozen = _samples(self._vector.frozen())

    def end(self) -> Remark | None:
        """Hear of no more; return in how many rounds it was so, for the verdict."""
        if self._hook is not None:
            self._hook.remove()
        counts = self._counts
        most = max(counts, key=lambda kind: counts[kind])
        if not counts[most]:
            return None
        text = f"{_WHATS[most]} in {counts[most]} of {self._rounds} rounds"
        return Remark("unchanged", text, {"rounds": self._rounds, **counts})

    def begin_round(self, before: Vec, correction: Vec | None) -> None:
        """Begin a round at the values `before`, float32[n]; `correction`, float32[n], is added to
        the gradients of each step of the main optimiser."""
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)
        self._correction = correction
        self._rates.clear()
        self._steps.clear()  # those of an evaluation, which may adapt a copy
        self._since, self._from_copy = "", False
        self._given = self.sampled(before)

    def taken(self) -> tuple[int, float | None]:
        """Return how many steps the main optimiser took since the last call, and their mean rate,
        whose sum over them is the sum of their gradients; None where there were none."""
        rates, self._rates = self._rates, []
        if not rates:
            return 0, None
        first = rates[0]  # exact where the rate did not change
        return len(rates), first + math.fsum(rate - first for rate in rates) / len(rates)

    def _before_step(self, made: Any, *_: Any) -> None:
        """The script's own clip is done by now, and what a GradScaler unscales itself."""
        if made not in self._steps:
            with suppress(UsageError):  # of a model that has other tensors for the moment
                self._look(made)
        self._steps[made] += any(group.get("lr") != 0.0 for group in made.param_groups)
        if made is not self._main:
            return
        if self._correction is not None:
            # A fused optimiser unscales, and leaves a step out, by itself.
            overflow = getattr(made, "found_inf", None)
            if overflow is not None and bool(overflow):
                return
            self._vector.add_to_gradients(self._correction, scale=getattr(made, "grad_scale", None))
        self._rates.append(rate_of(made))

    def _look(self, made: Any) -> None:
        """See what an optimiser's first step in a round is taken on."""
        if not self.has(_params(made)):
            self._from_copy |= self._is_copy(_params(made))
        elif len(self._given):
            self._older_values()
            self._given = self._given[:0]

    def _is_copy(self, params: Iterable[Tensor]) -> bool:
        """Whether most of the model's values are what the exchange brought in these, too."""
        theirs = {some.float().numpy().tobytes() for some in _samples(dict(enumerate(params))).values()}
        ours = np.split(self._given, self._starts[1:])
        same = np.array([some.tobytes() in theirs for some in ours])
        return bool(2 * self._sizes[same].sum() > self._sizes.sum())

    def _older_values(self) -> None:
        """Note since when values are what they were, where none is what the exchange brought.
        Values that the script made otherwise are neither."""
        values = _samples(self._vector.trained()).values()
        now, given = torch.cat([some.float() for some in values]).numpy(), self._given
        for older, since in ((self._first, "at the join"), (self._last, "before the exchange")):
            if len(older):
                other = self._differ(given, older)
                back, kept = other & ~self._differ(now, older), other & ~self._differ(now, given)
                if back.any() and not kept.any():
                    self._since = since
                    return

    def _differ(self, a: Vec, b: Vec) -> NDArray[np.bool_]:
        """Of each tensor, whether some values of it differ."""
        differ: NDArray[np.bool_] = np.logical_or.reduceat(a != b, self._starts)
        return differ

    def sampled(self, x: Vec) -> Vec:
        """Return some values of each trained tensor of x, float32[n]."""
        found: Vec = x[self._at]
        return found

    def changed_frozen(self, round: Round) -> Remark | None:
        """Return what is to be said of parameters that were frozen at the start and have other
        values now, once; None where there are none.

        What merging adapters and taking them out again rounds is no change."""
        if not self._frozen:
            return None
        now = _samples({n: p for n, p in self._module.named_parameters() if n in self._frozen})
        changed = [n for n, was in self._frozen.items() if n not in now or not _alike(was, now[n])]
        if not changed:
            return None
        self._frozen = {}
        what = _several(changed)
        text = f"{what}, frozen at the join, changed by the end of round {round}; it does not travel, so boards' "
        text += "models differ in it: leave it as it is, let it travel, or name it in keep where each board has its own"
        return Remark("drifted", text, {"tensors": what})

    def end_round(self, round: Round, change: Vec, last: Vec) -> Remark | None:
        """End a round in which the trained values changed so, `last` as they are `sampled`. Return
        what is to be said, in the first one that did not reach the model, or did not begin at what
        the exchange brought."""
        self._last = last
        self._correction, steps = None, self._steps
        moving, moved = [made for made in steps if steps[made]], bool(np.any(change))
        elsewhere = bool(moving) and not any(self.has(_params(made)) for made in moving)
        elsewhere &= not (moved and self._from_copy)
        self._rounds += 1
        for kind, so in (
            ("unchanged", not moved),
            ("elsewhere", elsewhere),
            ("undone", bool(self._since)),
        ):
            self._counts[kind] += so
        self._overflows = self._overflows + 1 if not moved and self._overflowed() else 0
        at_rest = bool(steps) and not moving  # at a learning rate of 0
        if self._since and not self._told:
            self._told = True
            text = f"in round {round} training began at what the model was {self._since}, and not at what the exchange "
            return Remark("unchanged", f"{text}brought, which is lost: does the script load weights in each round?")
        if self._told or at_rest or (moved and not elsewhere) or 0 < self._overflows < MANY_OVERFLOWS:
            return None
        self._told = True
        took = ", ".join(f"{type(made).__name__} took {steps[made]} step{'s'[: steps[made] - 1]}" for made in moving)
        text = f"in round {round} " + ("" if moved else "nothing of the model changed")
        if elsewhere:
            none = f"{took}, none of them on the {type(self._module).__name__} that join was given"
            text += f"{none if moved else f': {none}'}: is a copy of it trained, or another model?"
        elif self._overflows:
            text += f", nor in the {self._overflows - 1} before it: its gradients are not finite"
        elif moving:
            text += f", though {took} on it: its gradients are 0, or its steps too small for its numbers"
        else:
            text += ", and no optimiser of torch took a step: is what is trained the model that join was given?"
        return Remark("unchanged", text)

    def has(self, params: Iterable[Tensor]) -> bool:
        """Return whether some of these lie in the memory of the model's parameters, as those of a
        compiled model do, and views of one flat vector."""
        own = set(map(_place, self._module.parameters()))
        return any(_place(p) in own for p in params)

    def require(self, params: Iterable[Tensor], whose: str) -> None:
        """Raise UsageError, which names `whose` these parameters are, unless some of them are the
        model's."""
        if not self.has(params):
            raise UsageError(
                f"{whose} shares no parameter with the {type(self._module).__name__} that join was given, so what it trains "
                "would not travel: give join and the training the same model"
            )

    def _overflowed(self) -> bool:
        gradients = [p.grad for p in self._module.parameters() if p.grad is not None]
        values = (g.coalesce().values() if g.is_sparse else g for g in gradients)
        return not all(bool(torch.isfinite(value).all()) for value in values)


def _place(tensor: Tensor) -> int:
    """Where its memory is; of one that has none of its own, as subclasses that quantise, which it
    is."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _several(names: Sequence[str]) -> str:
    """The first name, and how many more there are."""
    return "".join(names[:1]) + (f" and {len(names) - 1} more" if names[1:] else "")


def _stride(size: int) -> int:
    """Every which value of so many shows them all."""
    return -(-size // _SAMPLES) or 1


def _samples(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Some values of each, on the CPU, in its own type and memory."""
    flat = {name: tensor.detach().reshape(-1) for name, tensor in tensors.items()}
    return {name: values[:: _stride(values.numel())].clone().cpu() for name, values in flat.items()}


def _alike(was: Tensor, now: Tensor) -> bool:
    """Whether values are the same but for what arithmetic with them rounds."""
    if was.shape != now.shape:
        return False
    if was.dtype == now.dtype and torch.equal(was, now):
        return True
    if not (was.is_floating_point() and now.is_floating_point()):
        return False
    rounded = max(torch.finfo(t.dtype).eps for t in (was, now)) ** 0.5
    was, now = was.double(), now.double()
    return bool(torch.allclose(now, was, rtol=0.0, atol=rounded * float(was.abs().max()), equal_nan=True))


def rate_of(optimizer: Any) -> float:
    """Return the learning rate of an optimiser; 1 where it has none, as Adafactor may."""
    lr = optimizer.param_groups[0].get("lr")
    return 1.0 if lr is None else float(lr)


def _params(optimizer: Any) -> Iterable[Tensor]:
    return (p for group in optimizer.param_groups for p in group.get("params", ()))
