"""A board of `bench server`: our one-process client around the least training there is.

`python -m lab.bench.server_board NAME ADDRESS VALUES TENSORS CODEC` takes part until the
run is over.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.agreement import Agreement
from edgegossip.layout import Layout, TensorSpec
from edgegossip.training.base import Workload
from edgegossip.types import EdgegossipError, LocalUpdate, Metrics, NodeId, Round, Vec
from lab.bench.cases import parse_codec

STEP = 0.001
BLOCK = 65_536  # values after which a change repeats itself


def layout_of(values: int, tensors: int) -> Layout:
    """Return a layout of `values` floats in `tensors` tensors of nearly one size."""
    sizes = [len(part) for part in np.array_split(np.empty(values, np.int8), tensors)]
    return Layout.of([TensorSpec(f"layer{k}", (size,)) for k, size in enumerate(sizes)])


class TrivialWorkload(Workload):
    """Changes every value a little, with torch in memory as on any board that trains, and keeps
    nothing as large as the model, as its rival's app does not (stock_app.py)."""

    def __init__(self, layout: Layout) -> None:
        import torch

        self._layout = layout
        torch.set_num_threads(1)  # as a board of any recipe does, unless run.threads says otherwise
        self._step = STEP * np.random.default_rng(2).standard_normal(BLOCK, np.float32)

    @property
    @override
    def layout(self) -> Layout:
        return self._layout

    @override
    def initial(self, seed: int) -> Vec:
        return np.random.default_rng(seed).standard_normal(self._layout.size, np.float32)

    @override
    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        delta: Vec = np.empty(self._layout.size, np.float32)
        for start in range(0, delta.size, BLOCK):
            part = delta[start : start + BLOCK]
            part[:] = self._step[: part.size]
        return LocalUpdate(delta, STEP, 1.0, 1, 1)

    @override
    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics:
        return Metrics(1.0, examples or 1, {"accuracy": 0.5})

    @override
    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return {}

    @override
    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        del snapshot

    @override
    def agreement(self) -> Agreement:
        return Agreement({})

    @override
    def over(self, x: Vec | None) -> None: ...

    @override
    def abandon(self) -> None: ...

    @override
    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        return {} if x is None else self._layout.views(x)


class _SilentSink:
    """A sink for figures that nobody asks for."""

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any], ago_s: float = 0.0) -> None: ...

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None: ...

    def close(self) -> None: ...


def main(name: str, address: str, values: str, tensors: str, codec: str) -> None:
    """Take part as board `name` of the coordinator at `address`, until the run is over."""
    from edgegossip import codecs
    from edgegossip.flower import NodeClient

    codec_name, params = parse_codec(codec)
    layout = layout_of(int(values), int(tensors))
    try:
        NodeClient(
            name, address, lambda: TrivialWorkload(layout), codecs.get(codec_name, **params), _SilentSink()
        ).run()
    except EdgegossipError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
