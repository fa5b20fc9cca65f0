"""Predictions of a converted model with the weights that it has: one call of the kernels for all
layers.

Layer by layer, a prediction of a small model is hundreds of calls, and every map goes through
memory twice. A predictor has the model's steps as a list: a few samples at a time go through all of
it in the cache of one thread, with weights that were laid out once. The bits are those of the
model.

The list is recorded while the model computes: its layers note what they make of what
(`tensor.record`). Between them there may be tensors of float32, which are known by their memory:
reshaping keeps it, and whoever computes with them makes others. All other calls of torch are
watched meanwhile: those that could let the model choose its way by values, which a list of steps
cannot follow, are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgegossip.int8.tensor import RECORDER, QuantisedTensor, buffer_of, changes_in_place, nchw, nhwc
from edgegossip.native import _native
from edgegossip.types import UsageError

_RECORDED, _COMPARED = 2, 5  # samples

# Calls that show Python a tensor's values, or its memory.
_READING = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__contains__",
        "__dlpack__",
        "equal",
        "allclose",
        "is_nonzero",
        "storage",
        "untyped_storage",
    ]
)
# Calls that choose among a tensor's values, which may be samples.
_CHOOSING = frozenset(
    [
        "__getitem__",
        "narrow",
        "select",
        "split",
        "chunk",
        "unbind",
        "tensor_split",
        "index_select",
        "take",
        "as_strided",
    ]
)


def predictor(model: nn.Module, example: Tensor) -> Predictor:
    """Make a function from inputs like `example` (float[batch, ...], any batch) to what `model`
    makes of them, bit for bit.

    The model, in eval mode, goes through int8 layers alone (`convert`) and gives float32[batch,
    ...]. Its weights and its way through the layers are those of now; later changes of the model
    are not seen. Raises UsageError, with the reason, for other models.

    Example:
        predict = edgegossip.int8.predictor(model.eval(), images[:1])
        logits = predict(images)
    """
    if model.training:
        raise UsageError("a predictor is made of a model in eval mode: call model.eval() first")
    x = _checked(example, tuple(example.shape[1:])).detach()
    with torch.inference_mode(False), torch.no_grad():
        first, more = _samples(x, _RECORDED), _samples(x, _COMPARED)
        with _recording(first) as tape:
            y = model(first)
            result = _result_of(y, tape)
        if len(y) != len(first) or tape.end(result) * len(y) != y.numel():
            raise UsageError(
                f"a predictor needs a model that gives [batch, ...], not {list(y.shape)} of {len(first)} samples"
            )
        made = Predictor(tape.program, tuple(x.shape[1:]), tuple(y.shape[1:]), bool(tape.channels_last))
        for values, wanted in ((first, y), (more, model(more))):
            if not _are_same(made(values), wanted):
                raise UsageError("the model does not do the same with every batch, or not with int8 layers alone")
    return made


def _samples(x: Tensor, count: int) -> Tensor:
    """So many of x, again from the first one on where there are fewer; memory of their own."""
    return x[torch.arange(count) % len(x)].contiguous()


def _are_same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def _result_of(y: Any, tape: Tape) -> int:
    if not isinstance(y, Tensor) or y.dtype != torch.float32 or isinstance(y, QuantisedTensor) or y.dim() < 1:
        raise UsageError(
            "a predictor needs a model that gives one float32 tensor: its last layer is linear, or an average"
        )
    return tape.value(y, "end")


def _checked(x: Any, sample: tuple[int, ...]) -> Tensor:
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise UsageError(f"a predictor takes dense tensors, not {type(x).__name__}")
    if (
        x.device.type != "cpu"
        or not x.is_floating_point()
        or x.dim() < 2
        or tuple(x.shape[1:]) != sample
        or not x.numel()
    ):
        wanted = ", ".join(["batch", *map(str, sample)])
        given = f"{x.dtype}{list(x.shape)} on {x.device}"
        raise UsageError(f"this model takes floating-point tensors [{wanted}] on a CPU, not {given}")
    return x.to(torch.float32)


class Predictor:
    """Predicts as the model that `predictor` was given. May be called by several threads at a time;
    each call takes as many threads as torch has. It can be neither copied nor pickled: make another
    one of the model."""

    def __init__(
        self, program: _native.Int8Program, sample: tuple[int, ...], result: tuple[int, ...], channels_last: bool
    ) -> None:
        self._program = program
        self._sample = sample
        self._order: Callable[[Tensor], Tensor] = nhwc if channels_last else Tensor.contiguous
        self._result = result

    def __call__(self, x: Tensor) -> Tensor:
        """Return float32[batch, ...] of x floating point[batch, ...]. Raises UsageError for another
        shape than the example's."""
        values = self._order(_checked(x, self._sample).detach())
        batch, sizes = len(values), self._result
        if len(sizes) == 3:
            channels, height, width = sizes
            sizes = (height, width, channels)
        made = torch.empty((batch, *sizes))
        self._program.run(buffer_of(values.view(-1)), batch, buffer_of(made.view(-1)), threads=torch.get_num_threads())
        return nchw(made) if len(sizes) == 3 else made


@contextmanager
def _recording(x: Tensor) -> Iterator[Tape]:
    """The steps from the input x float32[batch, ...], contiguous, in this thread."""
    tape = Tape(x)
    token = RECORDER.set(tape)
    try:
        with _WatchTorch(tape):
            yield tape
    finally:
        RECORDER.reset(token)


class Tape:
    """Records steps, and which tensor is the result of which."""

    def __init__(self, x: Tensor) -> None:
        self.program = _native.Int8Program(x[0].numel())
        self.channels_last: bool | None = None  # whether steps take the input so; None: no step takes it
        self._input = x
        self._maps: dict[int, tuple[int, Tensor]] = {}  # by id; tensors are kept, so that none has the place of another
        self._floats: dict[int, tuple[int, Tensor, int]] = {x.data_ptr(): (0, x, _version(x))}  # by memory
        self._others: dict[int, tuple[str, Tensor]] = {}  # what torch made of them, by memory

    def record(self, made: Tensor, step: str, inputs: tuple[Tensor, ...], details: tuple[Any, ...]) -> None:
        """Note a step, see `tensor.Recorder`. Raises UsageError for inputs that no step made."""
        values = [self.value(x, step) for x in inputs]
        parameters = [buffer_of(d) if isinstance(d, Tensor) else d for d in details]
        try:
            number = getattr(self.program, step)(*values, *parameters)
        except ValueError as error:
            raise UsageError(f"the model's {step} is not a step of a predictor: {error}") from error
        if isinstance(made, QuantisedTensor):
            self._maps[id(made)] = (number, made)
        else:
            self._floats[made.data_ptr()] = (number, made, _version(made))

    def value(self, x: Tensor, step: str) -> int:
        """Return the number of a tensor that `step` takes. Raises UsageError for an unknown one."""
        if isinstance(x, QuantisedTensor):
            number, _ = self._maps.get(id(x), (None, None))
        else:
            number = self._number_of_floats(x)
        if number is None:
            by, _ = self._others.get(x.data_ptr() if not isinstance(x, QuantisedTensor) else -1, ("", None))
            how = f"by torch's {by}" if by else "with something else than int8 layers, or with gradients on"
            raise UsageError(f"the model computes {tuple(x.shape)} before its {step} {how}")
        return number

    def end(self, result: int) -> int:
        """Make this value the program's result, and return how many numbers that is a sample.
        Raises UsageError where a step gave no such value."""
        try:
            return self.program.end(result)
        except ValueError as error:
            raise UsageError(f"the model's result is not one of its layers: {error}") from error

    def watch(self, name: str, call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of torch, unless it reads, chooses among or changes what flows: then raise
        UsageError."""
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if name in _READING and tensors:
            raise UsageError(
                f"the model looks at values ({name}), or computes with gradients on; a predictor's way is always the same"
            )
        known = any(not isinstance(t, QuantisedTensor) and t.data_ptr() in self._floats for t in tensors)
        if known and (name in _CHOOSING or changes_in_place(name) or kwargs.get("out") is not None):
            raise UsageError(f"the model chooses among, or changes, what its layers made ({name})")
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
        """Whether a step that takes the input as x agrees with those before it on the order of its
        values."""
        maps = x.dim() == 4
        as_given = x.shape == self._input.shape and x.stride() == self._input.stride()
        if self.channels_last not in (None, maps) or not (as_given if maps else x.is_contiguous()):
            return False
        self.channels_last = maps
        return True


class _WatchTorch(TorchFunctionMode):
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


def _version(t: Tensor) -> int:
    """Moves when t is changed; inference tensors do not tell."""
    return -1 if t.is_inference() else t._version
