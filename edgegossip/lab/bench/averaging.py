"""What a round costs the coordinator itself: decoding and averaging compressed updates, beside
Flower's own averaging of the same updates as fp32 models."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.engine.server_frames import Channel
from edgegossip.engine.server_training import Mean, WeightedUpdate
from edgegossip.flower.stock_app import average_plain, plain_updates
from edgegossip.frame import Aux, Kind
from edgegossip.lab.bench.cases import parse_codec
from edgegossip.lab.bench.timing import in_turn
from edgegossip.recipe import from_dict
from edgegossip.training import layout_of
from edgegossip.types import RunError

MODEL = {"data": {"name": "cifar10"}, "model": {"name": "resnet18"}}


def measure(updates: int, codec_text: str, repeat: int) -> dict[str, Any]:
    """One row of ResNet-18 (11 M values, the tensors of CIFAR-10's) on one thread of ours; Flower's
    is numpy's own."""
    layout = layout_of(from_dict(MODEL))
    name, params = parse_codec(codec_text)
    channel = Channel.of(layout, bytes(16), codecs.get(name, **params))
    rng = np.random.default_rng(1)
    x = rng.standard_normal(layout.size).astype(np.float32)
    delta = (0.01 * rng.standard_normal(layout.size)).astype(np.float32)
    state, shares = channel.codec.init(layout), []
    for k in range(updates):
        aux: dict[int, float] = {Aux.EXAMPLES: 100.0 + k, Aux.LOSS: 1.0}
        frame, state = channel.frame(Kind.UPDATE, delta, state, Ctx(k, 0, 1.0, 0.1), 1, aux)
        shares.append(WeightedUpdate(f"board-{k:02}", frame, 100.0 + k))
    mean = Mean(channel)
    if mean.combine(0, x, shares).model is None:
        raise RunError(f"{codec_text}: no update could be decoded")
    theirs = plain_updates(layout.views(x + delta), [100.0 + k for k in range(updates)])
    work = {"ours": lambda: mean.combine(0, x, shares), "flower": lambda: average_plain(theirs)}
    times = in_turn(work, repeat, slow_budget_s=30.0).medians()
    return {
        "updates": updates,
        "values": layout.size,
        "codec": codec_text,
        "seconds": times["ours"],
        "flower_fp32_seconds": times["flower"],
        "ratio": times["flower"] / times["ours"],
    }
