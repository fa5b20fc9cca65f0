"""Data augmentation of the CIFAR experiments: random crop after 4 pixels of zero padding, and
random horizontal flip (He et al. 2016, "Deep residual learning", section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

PADDING = 4  # pixels on each side


def crop_and_flip(images: NDArray[Any], random: NDArray[np.uint64]) -> NDArray[Any]:
    """[n, channels, height, width] -> a new array of that shape and dtype. `random` uint64[n] holds
    one word an image: bit 0 flips, bits 8-31 and 32-55 choose the row and the column of the crop.

    Padding is zero in stored units (black), that is, before normalisation."""
    n, _, height, width = images.shape
    offsets = 2 * PADDING + 1
    rows = (random >> np.uint64(8) & np.uint64(0xFFFFFF)).astype(np.int64) % offsets
    columns = (random >> np.uint64(32) & np.uint64(0xFFFFFF)).astype(np.int64) % offsets
    padded = np.pad(images, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    crops = sliding_window_view(padded, (height, width), axis=(2, 3))[np.arange(n), :, rows, columns]
    flipped = (random & np.uint64(1)).astype(bool)
    crops[flipped] = crops[flipped, :, :, ::-1]
    return crops
