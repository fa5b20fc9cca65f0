"""What int8 layers compute while a predictor is made (`predictor`): a list of steps that the kernels can do by themselves.

Layers note what they make of what. Between them there may be tensors of float32, which are known by their memory: reshaping keeps
it, and whoever computes with them makes others. All other calls of torch are watched meanwhile: those that could let the model
choose its way by values, which a list of steps cannot follow, are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edgegossip.int8.tensor import QuantisedTensor
from edgegossip.native import _native
from edgegossip.types import LocalError

_TAPE: ContextVar[Tape | None] = ContextVar("tape", default=None)

# Calls that show Python a tensor's values, or its memory.
_READING = frozenset(
    "item tolist numpy __array__ __bool__ __int__ __float__ __complex__ __index__ __contains__ __dlpack__ equal allclose"
    " is_nonzero storage untyped_storage".split()
)
# Calls that choose among a tensor's values, which may be samples.
_CHOOSING = frozenset("__getitem__ narrow select split chunk unbind tensor_split index_select take as_strided".split())


def note(made: Tensor, step: str, inputs: tuple[Tensor, ...], *details: Any) -> None:
    """`made` is what `step` of `_native.Int8Program` makes of the inputs and the details; tensors among these are parameters."""
    tape = _TAPE.get()
    if tape is not None:
        tape.note(made, step, inputs, details)


def note_reading(what: str) -> None:
    """Somebody looks at the values of int8 tensors, which a list of steps does not have."""
    tape = _TAPE.get()
    if tape is not None:
        raise LocalError(
            f"the model reads float32 values of int8 tensors ({what}); a predictor needs int8 layers alone"
        )


@contextmanager
def recording(x: Tensor) -> Iterator[Tape]:
    """The steps from the input x float32[batch, ...], contiguous, in this thread."""
    tape = Tape(x)
    token = _TAPE.set(tape)
    try:
        with _Watch(tape):
            yield tape
    finally:
        _TAPE.reset(token)


class Tape:
    """Steps, and which tensor is the result of which."""

    def __init__(self, x: Tensor) -> None:
        self.program = _native.Int8Program(x[0].numel())
        self.channels_last: bool | None = None  # whether steps take the input so; None: no step takes it
        self._input = x
        self._maps: dict[int, tuple[int, Tensor]] = {}  # by id; tensors are kept, so that none has the place of another
        self._floats: dict[int, tuple[int, Tensor, int]] = {x.data_ptr(): (0, x, _version(x))}  # by memory
        self._others: dict[int, tuple[str, Tensor]] = {}  # what torch made of them, by memory

    def note(self, made: Tensor, step: str, inputs: tuple[Tensor, ...], details: tuple[Any, ...]) -> None:
        """See `note`. Raises LocalError for inputs that no step made."""
        from edgegossip.int8.functional import flat  # which notes its steps here

        values = [self.value(x, step) for x in inputs]
        parameters = [flat(d) if isinstance(d, Tensor) else d for d in details]
        try:
            number = getattr(self.program, step)(*values, *parameters)
        except ValueError as error:
            raise LocalError(f"the model's {step} is not a step of a predictor: {error}") from error
        if isinstance(made, QuantisedTensor):
            self._maps[id(made)] = (number, made)
        else:
            self._floats[made.data_ptr()] = (number, made, _version(made))

    def value(self, x: Tensor, step: str) -> int:
        """The number of a tensor, which `step` takes. Raises LocalError."""
        if isinstance(x, QuantisedTensor):
            number, _ = self._maps.get(id(x), (None, None))
        else:
            number = self._number_of_floats(x)
        if number is None:
            by, _ = self._others.get(x.data_ptr() if not isinstance(x, QuantisedTensor) else -1, ("", None))
            how = f"by torch's {by}" if by else "with something else than int8 layers, or with gradients on"
            raise LocalError(f"the model computes {tuple(x.shape)} before its {step} {how}")
        return number

    def end(self, result: int) -> int:
        """The program gives this value; how many numbers that is a sample. Raises LocalError."""
        try:
            return self.program.end(result)
        except ValueError as error:
            raise LocalError(f"the model's result is not one of its layers: {error}") from error

    def watch(self, name: str, call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of torch, made unless it reads, chooses among or changes what flows. Raises LocalError."""
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if name in _READING and tensors:
            raise LocalError(
                f"the model looks at values ({name}), or computes with gradients on; a predictor's way is always the same"
            )
        known = any(not isinstance(t, QuantisedTensor) and t.data_ptr() in self._floats for t in tensors)
        if known and (name in _CHOOSING or changes_in_place(name) or kwargs.get("out") is not None):
            raise LocalError(f"the model chooses among, or changes, what its layers made ({name})")
        made = call()
        if known and type(made) is Tensor and made.data_ptr() not in self._floats:
            self._others[made.data_ptr()] = (name, made)
        return made

    def _number_of_floats(self, x: Tensor) -> int | None:
        number, known, version = self._floats.get(x.data_ptr(), (None, x, 0))
        if number is None or x.dtype != torch.float32 or x.numel() != known.numel() or _version(known) != version:
            return None
        if number == 0:
            return 0 if self._takes_input(x) else None
        in_order = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        return number if in_order.is_contiguous() else None

    def _takes_input(self, x: Tensor) -> bool:
        """Whether a step that takes the input as x agrees with those before it on the order of its values."""
        maps = x.dim() == 4
        as_given = x.shape == self._input.shape and x.stride() == self._input.stride()
        if self.channels_last not in (None, maps) or not (as_given if maps else x.is_contiguous()):
            return False
        self.channels_last = maps
        return True


class _Watch(TorchFunctionMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            name = "numpy"  # as that does, it gives memory that may be changed unseen
        return self._tape.watch(name, lambda: func(*args, **kwargs), args, kwargs)


def changes_in_place(name: str) -> bool:
    """In place: mul_, which `y *= 2` is called too, or __setitem__."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _version(t: Tensor) -> int:
    """Moves when t is changed; inference tensors do not tell."""
    return -1 if t.is_inference() else t._version
