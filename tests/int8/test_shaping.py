"""Slices, zero padding and ReLU of int8 tensors are those of their float32 values, gradients too."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from edgegossip.bench.codecs import torch_threads
from edgegossip.int8 import functional
from edgegossip.int8.tensor import QuantisedTensor

SIZES = (5, 8, 7, 6)  # of maps [batch, channels, height, width]


def a_slice(size):
    bound = st.none() | st.integers(-size - 1, size + 1)
    return st.builds(slice, bound, bound, st.none() | st.integers(1, 4))


def both(change, x, threads=1):
    """What `change` makes of int8 maps and of their float32 values, and their gradients of the same random gradient."""
    found = []
    with torch_threads(threads):
        for leaf in (functional.quantise(x).detach(), functional.quantise(x).values()):
            leaf = leaf.requires_grad_()
            out = change(leaf)
            g = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
            found.append((out, *torch.autograd.grad(out, leaf, g)))
    return found


def assert_same(change, x, threads=1):
    (made, dx), (wanted, wanted_dx) = both(change, x, threads)
    assert isinstance(made, QuantisedTensor)
    assert torch.equal(made.values(), wanted) and torch.equal(dx, wanted_dx)


@settings(max_examples=100, deadline=None)
@given(st.tuples(*map(a_slice, SIZES)), st.integers(1, 4))
def test_any_slice(index, used):
    assert_same(lambda x: x[index[:used]], torch.randn(SIZES))


@settings(max_examples=50, deadline=None)
@given(st.tuples(*map(a_slice, SIZES[1:])), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_a_padded_slice(index, pads):
    """The gradient that comes to the slice is a part of a larger one."""
    index = (slice(None), *(i if range(d)[i] else slice(None) for i, d in zip(index, SIZES[1:], strict=True)))
    assert_same(lambda x: F.pad(x[index], pads), torch.randn(SIZES))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, :, ::2, ::2],
        lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 8)),
        lambda x: F.pad(torch.relu(x[:, 1:]), (1, 1)),
        torch.relu,
    ],
    ids=["slice", "padded slice", "padded relu", "relu"],
)
@pytest.mark.parametrize("size", [(3, 8, 7, 6), (16, 16, 32, 32), (4, 16, 32, 1), (2, 16, 1, 9)])
def test_with_threads(change, size):
    assert_same(change, torch.randn(size), threads=3)


def test_a_gradient_of_relu_in_another_order_of_memory():
    q = functional.quantise(torch.randn(4, 8, 6, 6)).detach().requires_grad_()
    g = torch.randn(4, 8, 6, 6)
    (dx,) = torch.autograd.grad(q.relu(), q, g)
    (same,) = torch.autograd.grad(q.relu(), q, g.to(memory_format=torch.channels_last))
    assert torch.equal(dx, same) and torch.equal(dx, g * (q.values() > 0))


def test_steps_backwards_are_torchs_error():
    with pytest.raises(ValueError, match="step"):
        functional.quantise(torch.randn(1, 2, 3, 4))[:, :, ::-1]
