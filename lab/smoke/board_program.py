"""What a board must be able to do, as a program of its own: it runs on this machine, and emulated
in a board's files.

Prints a JSON object: SHA-256 of a frame of every codec (the same on all machines), and what one
local update of int8 came to."""

import hashlib
import json
import platform

import numpy as np

from edgegossip import codecs, frame, native, training
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import load

_PLAIN = [name for name in codecs.names() if name not in ("error-feedback", "per-tensor", "small-tensors")]


def frames() -> dict[str, str]:
    """By codec: hash of the frame of the same 20,000 values, spread over six orders of
    magnitude."""
    layout = Layout.of(
        [TensorSpec("convolution", (64, 32, 3, 3)), TensorSpec("bias", (64,)), TensorSpec("linear", (15, 100))]
    )
    count = np.arange(layout.size, dtype=np.int64)
    sign = np.where(count * 2654435761 % 7 < 3, -1, 1)
    x = (sign * (count * 40503 % 65537 + 1) / 2.0 ** (count % 20)).astype(np.float32)
    found = {}
    for name in _PLAIN:
        codec = codecs.get(name)
        body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(key=7, round=3, loss=1.0, lr=0.1))
        header, rest = frame.build(
            frame.Frame(
                frame.Kind.GRADIENT, codec.wire_id, codec.wire_params(), layout.hash, bytes(16), 3, 1, 7, bytes(body)
            )
        )
        found[name] = hashlib.sha256(header + bytes(rest)).hexdigest()
    return found


def update() -> dict[str, float]:
    """One local update of the quick start's model in int8, one step."""
    recipe = load("quickstart-gossip", ("training.precision=int8", "run.threads=1"))
    _, x = training.initial_model(recipe)
    local = training.build_workload(recipe, 0).local_update(x, 0)
    assert np.isfinite(local.delta).all() and np.abs(local.delta).max() > 0
    return {"loss": local.loss, "examples": local.examples, "largest": float(np.abs(local.delta).max())}


if __name__ == "__main__":
    import torch

    about = {"machine": platform.machine(), "isa": native.isa(), "torch": torch.__version__}
    print(json.dumps({**about, "frames": frames(), "update": update()}))
