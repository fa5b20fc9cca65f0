"""Predictions of a converted model with the weights that it has: one call of the kernels for all layers.

Layer by layer, a prediction of a small model is hundreds of calls, and every map goes through memory twice. A predictor has the
model's steps as a list: a few samples at a time go through all of it in the cache of one thread, with weights that were laid
out once. The bits are those of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from edgegossip.int8 import recording
from edgegossip.int8.functional import flat, nchw, nhwc
from edgegossip.native import _native
from edgegossip.types import LocalError

_RECORDED, _COMPARED = 2, 5  # samples


def predictor(model: nn.Module, example: Tensor) -> Predictor:
    """A function from inputs like `example` (float[batch, ...], any batch) to what `model` makes of them, bit for bit.

    The model, in eval mode, goes through int8 layers alone (`convert`) and gives float32[batch, ...]. Its weights and its way
    through the layers are those of now; later changes of the model are not seen. Raises LocalError, with the reason, for other
    models."""
    if model.training:
        raise LocalError("a predictor is made of a model in eval mode: call model.eval() first")
    x = _checked(example, tuple(example.shape[1:])).detach()
    with torch.inference_mode(False), torch.no_grad():
        first, more = _samples(x, _RECORDED), _samples(x, _COMPARED)
        with recording.recording(first) as tape:
            y = model(first)
            result = _result_of(y, tape)
        if len(y) != len(first) or tape.end(result) * len(y) != y.numel():
            raise LocalError(
                f"a predictor needs a model that gives [batch, ...], not {list(y.shape)} of {len(first)} samples"
            )
        made = Predictor(tape.program, tuple(x.shape[1:]), tuple(y.shape[1:]), bool(tape.channels_last))
        for values, wanted in ((first, y), (more, model(more))):
            if not _are_same(made(values), wanted):
                raise LocalError("the model does not do the same with every batch, or not with int8 layers alone")
    return made


def _samples(x: Tensor, count: int) -> Tensor:
    """So many of x, again from the first one on where there are fewer; memory of their own."""
    return x[torch.arange(count) % len(x)].contiguous()


def _are_same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def _result_of(y: Any, tape: recording.Tape) -> int:
    if not isinstance(y, Tensor) or y.dtype != torch.float32 or isinstance(y, recording.QuantisedTensor) or y.dim() < 1:
        raise LocalError(
            "a predictor needs a model that gives one float32 tensor: its last layer is linear, or an average"
        )
    return tape.value(y, "end")


def _checked(x: Any, sample: tuple[int, ...]) -> Tensor:
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise LocalError(f"a predictor takes dense tensors, not {type(x).__name__}")
    if (
        x.device.type != "cpu"
        or not x.is_floating_point()
        or x.dim() < 2
        or tuple(x.shape[1:]) != sample
        or not x.numel()
    ):
        wanted = ", ".join(["batch", *map(str, sample)])
        given = f"{x.dtype}{list(x.shape)} on {x.device}"
        raise LocalError(f"this model takes floating-point tensors [{wanted}] on a CPU, not {given}")
    return x.to(torch.float32)


class Predictor:
    """See `predictor`. May be called by several threads at a time; each call takes as many threads as torch has. It can be
    neither copied nor pickled: make another one of the model."""

    def __init__(
        self, program: _native.Int8Program, sample: tuple[int, ...], result: tuple[int, ...], channels_last: bool
    ) -> None:
        self._program = program
        self._sample = sample
        self._order: Callable[[Tensor], Tensor] = nhwc if channels_last else Tensor.contiguous
        self._result = result

    def __call__(self, x: Tensor) -> Tensor:
        """x floating point[batch, ...] -> float32[batch, ...]. Raises LocalError for another shape than the example's."""
        values = self._order(_checked(x, self._sample).detach())
        batch, sizes = len(values), self._result
        if len(sizes) == 3:
            channels, height, width = sizes
            sizes = (height, width, channels)
        made = torch.empty((batch, *sizes))
        self._program.run(flat(values.view(-1)), batch, flat(made.view(-1)), threads=torch.get_num_threads())
        return nchw(made) if len(sizes) == 3 else made
