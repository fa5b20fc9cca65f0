"""A data function of our own whose boards do not all have the same classes: what a user's folders
are like when nobody has counted them."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np


def _board() -> str:
    """The board that this process is; "" for the one that starts them."""
    if "--name" not in sys.argv:
        return ""
    return sys.argv[sys.argv.index("--name") + 1]


def data(folder: str) -> tuple[Any, ...]:
    """Ten classes, each around a point of its own; the boards that FEW_CLASSES names lack the last
    two."""
    few = _board() in os.environ.get("FEW_CLASSES", "").split(",")
    classes = 8 if few else 10
    rng = np.random.default_rng(1)
    centres, noise = rng.normal(size=(10, 6)), rng.normal(size=(400, 6))
    labels = np.arange(400) % classes
    inputs = (3 * centres[labels] + noise).astype(np.float32)
    return inputs, labels, inputs[:50], labels[:50]
