"""Slices, zero padding and ReLU of int8 tensors are those of their float32 values, gradients
too."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8 import functional
from edgegossip.int8.tensor import QuantisedTensor
from edgegossip.types import UsageError
from lab.bench.codecs import torch_threads

SIZES = (5, 8, 7, 6)  # of maps [batch, channels, height, width]


def a_slice(size):
    bound = st.none() | st.integers(-size - 1, size + 1)
    return st.builds(slice, bound, bound, st.none() | st.integers(1, 4))


def both(change, x, threads=1):
    """What `change` makes of int8 maps and of their float32 values, and their gradients of the same
    random gradient."""
    found = []
    with torch_threads(threads):
        for leaf in (functional.quantise(x).detach(), functional.quantise(x).values()):
            leaf = leaf.requires_grad_()
            out = change(leaf)
            g = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
            found.append((out, *torch.autograd.grad(out, leaf, g)))
    return found


def assert_same(change, x, threads=1):
    """An int8 result, but where it has no values."""
    (made, dx), (wanted, wanted_dx) = both(change, x, threads)
    assert isinstance(made, QuantisedTensor) == bool(wanted.numel())
    assert torch.equal(functional.dequantise(made), wanted) and torch.equal(dx, wanted_dx)


@settings(max_examples=40)
@given(st.tuples(*map(a_slice, SIZES)), st.integers(1, 4))
def test_any_slice(index, used):
    assert_same(lambda x: x[index[:used]], torch.randn(SIZES))


@settings(max_examples=40)
@given(st.tuples(*map(a_slice, SIZES[1:])), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_a_padded_slice(index, pads):
    """The gradient that comes to the slice is a part of a larger one."""
    index = (slice(None), *(i if range(d)[i] else slice(None) for i, d in zip(index, SIZES[1:], strict=True)))
    assert_same(lambda x: F.pad(x[index], pads), torch.randn(SIZES))
    assert_same(lambda x: F.pad(x[index], (0, 0, 0, 0, *pads[4:])), torch.randn(SIZES))


@pytest.mark.parametrize(
    "change", [lambda x: x[:, :1].sum(), lambda x: x[..., 0:1, :].sum(), lambda x: x[:, :1].mean()]
)
def test_a_gradient_that_is_one_number(change):
    found = []
    for leaf in (functional.quantise(torch.ones(SIZES)).detach(), torch.ones(SIZES)):
        leaf.requires_grad_()
        found.append(torch.autograd.grad(change(leaf), leaf)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, :, :: 2**31],
        lambda x: F.pad(x, (0, -1)),
        lambda x: F.pad(x[:, :0], (0, 0, 0, 0, 2, 2)),
        lambda x: torch.relu(x[:0]),
        lambda x: x[:0] + x[:0],
        lambda x: torch.reshape(x, shape=(len(x), -1)),
        lambda x: x.reshape(shape=(len(x), -1)),
        lambda x: torch.dropout(x, p=0.5, train=False),
        lambda x: torch.add(x, x, alpha=2),
    ],
)
def test_what_torch_takes(change):
    x = functional.quantise(torch.randn(SIZES))
    torch.testing.assert_close(functional.dequantise(change(x)), change(x.values()))


def test_layers_need_values():
    for layer in (nn.Conv2d(3, 4, 1), nn.Linear(5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2)):
        x = torch.randn(0, 3, 5, 5) if not isinstance(layer, nn.Linear) else torch.randn(0, 5)
        with pytest.raises(UsageError, match=r"with values in them, not \[0, "):
            int8.convert(layer)(x)


def test_a_gradient_of_relu_in_another_order_of_memory():
    q = functional.quantise(torch.randn(4, 8, 6, 6)).detach().requires_grad_()
    g = torch.randn(4, 8, 6, 6)
    (dx,) = torch.autograd.grad(q.relu(), q, g)
    (same,) = torch.autograd.grad(q.relu(), q, g.to(memory_format=torch.channels_last))
    assert torch.equal(dx, same) and torch.equal(dx, g * (q.values() > 0))
