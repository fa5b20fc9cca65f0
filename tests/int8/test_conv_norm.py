"""A convolution and the Range EvoNorm behind it as one step of the backward pass: the same bits as
two."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgegossip import int8
from edgegossip.int8 import norms
from edgegossip.types import UsageError
from lab.bench.codecs import torch_threads

SHAPES = st.tuples(st.integers(1, 9), st.sampled_from([1, 3, 8]), st.integers(1, 9), st.integers(1, 9))


def gradients(model, x, g, watched=False):
    """Of the parameters and of x; with `watched` the gradient between convolution and norm is asked
    for, so that they part."""
    x, seen = x.clone().requires_grad_(), []
    torch.manual_seed(5)
    y = model[0](x)
    if watched:
        y.register_hook(seen.append)
    z = model[1](y)
    (z * g).sum().backward()
    assert len(seen) == watched
    return z.detach().values(), [x.grad, *(p.grad for p in model.parameters())], type(z.grad_fn).__name__


# A batch's shape, the kernel, whether there is a bias, dw and threads.
any_pair = given(
    SHAPES,
    st.sampled_from([(3, 1, 1), (1, 2, 0), (3, 2, 1)]),
    st.booleans(),
    st.sampled_from([8, 16]),
    st.integers(1, 3),
)


@settings(max_examples=10)
@any_pair
def test_one_step_gives_the_bits_of_two(shape, kernel, bias, dw, threads):
    torch.manual_seed(0)
    model = int8.convert(nn.Sequential(nn.Conv2d(shape[1], 16, *kernel, bias=bias), norms.RangeEvoNorm(16)), dw)
    x = torch.randn(shape)
    g = torch.randn(model[0](x).shape)
    with torch_threads(threads):
        z, found, step = gradients(model, x, g)
    with torch_threads(1):
        z2, expected, other = gradients(copy.deepcopy(model), x, g, watched=True)
    assert (step, other) == ("_ConvRangeEvoNormBackward", "_RangeEvoNormBackward")
    assert torch.equal(z, z2)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


class Twice(nn.Module):
    """Uses the output of a convolution behind its norm, too."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), norms.RangeEvoNorm(8)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + 0.5 * y


def test_the_output_of_the_convolution_may_be_used_again():
    torch.manual_seed(2)
    plain = Twice()
    ours = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        int8.convert(ours)
    x, grads = torch.randn(4, 3, 6, 6), []
    for module in (plain, ours):
        given_x = x.clone().requires_grad_()
        torch.manual_seed(3)
        out = module(given_x)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        grads.append([given_x.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*grads, strict=True):
        assert torch.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.99


def test_frozen_parts_get_no_gradient():
    model = int8.convert(nn.Sequential(nn.Conv2d(3, 8, 1), norms.RangeEvoNorm(8)))
    model[0].weight.requires_grad_(False)
    x = torch.randn(2, 3, 4, 4)
    (model(x) * 1.0).sum().backward()
    assert model[0].weight.grad is None and model[0].bias.grad is not None and model[1].v.grad is not None
    model.zero_grad()
    for p in model[1].parameters():
        p.requires_grad_(False)
    given_x = x.clone().requires_grad_()
    (model(given_x) * 1.0).sum().backward()
    assert given_x.grad is not None and model[1].v.grad is None
    with torch.no_grad():
        assert model(x).grad_fn is None


def test_the_result_of_a_frozen_convolution_gets_a_gradient_where_one_is_asked_for():
    conv, norm = int8.convert(nn.Sequential(nn.Conv2d(3, 8, 3), norms.RangeEvoNorm(8)))
    conv.requires_grad_(False)
    x, found = torch.randn(2, 3, 6, 6), []
    for y in (conv(x).requires_grad_(), conv(x).detach().requires_grad_()):
        (norm(y) * 1.0).sum().backward()
        found.append(y.grad)
    assert found[0] is not None and torch.equal(*found)


def test_a_gradient_that_does_not_come_by_is_refused_to_backward():
    model = int8.convert(nn.Sequential(nn.Conv2d(3, 8, 3), norms.RangeEvoNorm(8)))
    y = model[0](torch.randn(2, 3, 6, 6))
    z = model[1](y)
    with pytest.raises(UsageError, match="retain_grad"):
        z.backward(torch.ones(z.shape), inputs=[y])


@pytest.mark.parametrize("changed", ["weight", "gamma"])
def test_a_parameter_changed_before_the_backward_pass_is_an_error(changed):
    model = int8.convert(nn.Sequential(nn.Conv2d(3, 8, 1), norms.RangeEvoNorm(8)))
    loss = (model(torch.randn(2, 3, 4, 4)) * 1.0).sum()
    with torch.no_grad():
        dict(model[0].named_parameters() if changed == "weight" else model[1].named_parameters())[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
