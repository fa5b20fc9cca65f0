"""Every int8 layer against fp32 autograd at initialisation: values close, gradients within cosine
0.99."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgegossip import int8
from edgegossip.int8 import QuantisedTensor, norms
from edgegossip.int8.functional import quantise
from edgegossip.types import UsageError

COSINE = 0.99


def cosine(a, b):
    a, b = a.detach().flatten().double(), b.detach().flatten().double()
    if a.norm() == 0 and b.norm() == 0:
        return 1.0
    return float((a / a.norm().clamp_min(1e-300)) @ (b / b.norm().clamp_min(1e-300)))


def compare(layer, x, dw, least=COSINE):
    """The layer in fp32 and in int8 on the same input, with the same random gradient of its
    output."""
    converted = int8.convert(copy.deepcopy(layer), dw)
    results = []
    for module in (layer, converted):
        given_x = x.clone().requires_grad_()
        out = module(given_x)
        out = out if isinstance(out, QuantisedTensor) else out * 1.0
        torch.manual_seed(7)
        g = torch.randn(out.shape)
        (out * g).sum().backward()
        results.append((out, given_x.grad, {n: p.grad for n, p in module.named_parameters()}))
    (y, dx, grads), (y8, dx8, grads8) = results
    y = y.detach()
    spread = float(y.max() - y.min()) or float(y.abs().max()) or 1.0
    assert float((int8.tensor.dequantise(y8) - y).detach().abs().max()) < 0.04 * spread + 1e-6 * min(spread, 1.0)
    assert cosine(dx8, dx) >= least, "dx"
    for name, grad in grads.items():
        assert cosine(grads8[name], grad) >= least, name


@st.composite
def convolutions(draw):
    kernel = draw(st.sampled_from([1, 3, 5, 7]))
    groups, each = draw(st.sampled_from([(1, 1), (1, 3), (1, 16), (2, 4), (4, 8), (8, 1)]))
    outs = groups * draw(st.integers(1, 12))
    stride, pad = draw(st.sampled_from([1, 2])), draw(st.integers(0, kernel // 2))
    low = max(1, kernel - 2 * pad)
    size = (draw(st.integers(low, low + 9)), draw(st.integers(low, low + 9)))
    layer = nn.Conv2d(groups * each, outs, kernel, stride, pad, groups=groups, bias=draw(st.booleans()))
    return layer, (draw(st.integers(1, 6)), groups * each, *size)


@settings(max_examples=10)
@given(convolutions(), st.sampled_from([16, 8]), st.integers(0, 10**6))
def test_convolutions(drawn, dw, seed):
    layer, shape = drawn
    torch.manual_seed(seed)
    layer.reset_parameters()
    compare(layer, torch.randn(shape), dw)


@settings(max_examples=8)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([16, 8]),
    st.integers(0, 10**6),
)
def test_linear(inputs, outputs, batch, bias, dw, seed):
    torch.manual_seed(seed)
    compare(nn.Linear(inputs, outputs, bias), torch.randn(batch, inputs), dw)


@settings(max_examples=8)
@given(
    st.sampled_from([1, 3, 8, 16, 20, 64]),
    st.integers(1, 5),
    st.integers(2, 12),
    st.integers(2, 12),
    st.integers(0, 10**6),
)
def test_range_evonorm(channels, batch, height, width, seed):
    torch.manual_seed(seed)
    layer = norms.RangeEvoNorm(channels)
    x = torch.randn(batch, channels, height, width)
    x = torch.where(
        (x.abs() - 3).abs() < 0.05, x * 0.9, x
    )  # the hard sigmoid's kinks: the slope's gradient jumps there
    # A value that ties with the extreme of its chunk in int8 shares that extreme's gradient: with
    # few values this shows.
    compare(layer, x, 16, least=COSINE if height * width * channels >= 64 else 0.95)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((2, 3), ceil_mode=True),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AdaptiveAvgPool2d(1),
        nn.ReLU(),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(7, 9), (3, 3), (6, 4)])
def test_pooling_and_relu(layer, size):
    torch.manual_seed(3)
    # Values that int8 holds exactly, so that the same one is the largest in both. 255 different
    # ones where there is room.
    x = torch.randint(-128, 128, (3, 5, *size)).float()
    x[:, 0, 0, 0], x[:, 0, 0, 1] = -128, 127
    converted = int8.convert(copy.deepcopy(layer))
    ours, theirs = x.clone().requires_grad_(), (x + torch.randn(x.shape) * 1e-4).requires_grad_()
    y8, y = converted(ours), layer(theirs)
    assert y8.shape == y.shape
    torch.testing.assert_close(int8.tensor.dequantise(y8), y, rtol=0, atol=2e-3)
    g = torch.randn(y.shape)
    (y8 * g).sum().backward()
    (y * g).sum().backward()
    assert cosine(ours.grad, theirs.grad) > 0.9  # ties may go elsewhere


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d([2, 2]),
        nn.MaxPool2d((2,)),
        nn.MaxPool2d([2], stride=(1,), padding=[1]),
        nn.MaxPool2d((3, 2), stride=[]),
        nn.AvgPool2d(2, stride=[2, 1]),
        nn.AvgPool2d((2,), stride=(), padding=(1,)),
        nn.AdaptiveAvgPool2d([1, 1]),
    ],
    ids=str,
)
def test_sizes_of_pools_are_given_as_torch_takes_them(pool):
    x = torch.arange(-128.0, 128.0)[torch.randperm(256)][None, None].reshape(1, 4, 8, 8)  # which int8 holds exactly
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = int8.convert(copy.deepcopy(pool))
    torch.testing.assert_close(int8.tensor.dequantise(converted(x)), pool(x), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv3d(1, 2, 3), (1, 1, 5, 5, 5)), (nn.Linear(4, 3), (2, 2, 2, 2, 4)), (nn.Linear(4, 3), (4,))],
)
def test_relu_of_other_dimensions_is_torchs(layer, shape):
    torch.manual_seed(0)
    model = nn.Sequential(layer, int8.convert(nn.ReLU(inplace=True)))
    x = torch.randn(shape)
    y = layer(x)
    made = model(x)
    assert not isinstance(made, QuantisedTensor) and torch.equal(made, y.clamp_min(0))
    got, wanted = (torch.autograd.grad(out.sum(), layer.weight)[0] for out in (made, y.clamp_min(0)))
    assert torch.equal(got, wanted)


def test_hard_inputs_go_through_every_layer():
    layers = [
        nn.Conv2d(1, 1, 1),
        nn.Conv2d(1, 3, 3, padding=1),
        norms.RangeEvoNorm(1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
    ]
    for layer in layers:
        converted = int8.convert(copy.deepcopy(layer))
        for value in (0.0, 1.0, -5.0, 1e-40, 1e20):
            for size in ((1, 1), (5, 3)):
                x = torch.full((1, 1, *size), value, requires_grad=True)
                out = converted(x)
                out.sum().backward()
                assert torch.isfinite(int8.tensor.dequantise(out)).all() and torch.isfinite(x.grad).all()
        x = torch.full((1, 1, 2, 2), float("nan"))
        assert torch.isnan(int8.tensor.dequantise(converted(x))).all(), "what is not finite must reach the loss"


def test_saved_for_backward_is_int8():
    torch.manual_seed(0)
    body = [
        nn.Conv2d(3, 16, 3, padding=1),
        norms.RangeEvoNorm(16),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = int8.convert(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8), nn.ReLU()))
    saved = []

    def pack(t):
        saved.append(t)
        return t

    parameters = {p.data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(torch.randn(4, 3, 16, 16)).sum().backward()
    for t in saved:
        if t.data_ptr() not in parameters and t.numel() > 4:  # scales and zero points: one a sample
            assert t.dtype in (torch.int8, torch.uint8), (t.dtype, t.shape)


def test_int8_tensors_are_not_written_to():
    """A write would go to a copy in float32 and be lost."""
    y = quantise(torch.randn(2, 3, 4, 4))
    for write in (lambda: y.__setitem__((0, 0), 0.0), lambda: torch.mul(y, 2.0, out=y), lambda: y.mul_(2.0)):
        with pytest.raises(UsageError, match="in place"):
            write()


def test_reshaping_for_a_linear_layer_stays_in_int8():
    a = quantise(torch.randn(2, 3, 4, 5))
    flat = a.flatten(1).values()
    for same in (a.view(2, -1), a.reshape(-1, 60), a.view((2, 60)), a.contiguous().reshape([2, -1])):
        assert isinstance(same, QuantisedTensor) and torch.equal(same.values(), flat)
    for other in (a.reshape(-1), a.reshape(4, -1), a.reshape(2, 3, 20)):
        assert not isinstance(other, QuantisedTensor)
    assert isinstance(nn.functional.dropout(a, 0.5, False), QuantisedTensor)
    assert not isinstance(nn.functional.dropout(a, 0.5, True), QuantisedTensor)
