"""Few keys or counts are made one by one, many at once: both ways give the same."""

import numpy as np
import pytest

from edgegossip.codecs.keys import tensor_key, tensor_keys
from edgegossip.codecs.sparse import counts
from edgegossip.layout import Layout, TensorSpec


@pytest.mark.parametrize("key", [0, 1, 2**63 + 5, 2**64 - 1])
def test_keys_of_tensors(key: int) -> None:
    many = tensor_keys(key, 40)
    assert many == [tensor_key(key, k) for k in range(40)]
    assert tensor_keys(key, 3) == many[:3]
    assert tensor_keys(key, 0) == []


@pytest.mark.parametrize("ratio", [1e-9, 0.01, 0.07, 0.25, 1 / 3, 1.0])
def test_counts_of_tensors(ratio: float) -> None:
    sizes = [0, 1, 2, 3, 7, 12, 100, 101, 999, 4096, 10**6]
    many = counts(Layout.of([TensorSpec(f"t{k}", (n,)) for k, n in enumerate(sizes)]), ratio)
    for k, n in enumerate(sizes):
        one = counts(Layout.of([TensorSpec("t", (n,))]), ratio)
        assert one.dtype == many.dtype == np.int64
        assert one[0] == many[k]
