"""Plain Huffman code lengths: the oracle for what a set of weights costs."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike, NDArray


def huffman_lengths(weights: ArrayLike) -> NDArray[np.int64]:
    """Bits of each symbol's word in an optimal prefix code; 0 for weight 0, 1 when there is a
    single symbol."""
    weight = np.asarray(weights, np.float64)
    lengths = np.zeros(weight.size, np.int64)
    heap = [(float(w), j, (j,)) for j, w in enumerate(weight) if w > 0]
    if len(heap) == 1:
        lengths[heap[0][2][0]] = 1
    heapq.heapify(heap)
    for serial in range(weight.size, 2 * weight.size):
        if len(heap) < 2:
            break
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        members = first[2] + second[2]
        lengths[list(members)] += 1
        heapq.heappush(heap, (first[0] + second[0], serial, members))
    return lengths


def pair_bits_per_code(weights: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean bits a code when words are made for `weights` of pairs, multiplied."""
    pairs = np.outer(weights, weights).ravel()
    return float(huffman_lengths(pairs) @ np.outer(probabilities, probabilities).ravel()) / 2
