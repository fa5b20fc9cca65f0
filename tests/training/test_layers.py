"""EvoNorms against their definitions, written out with loops, and their gradients by finite
differences."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.training.models.layers import EvoNormS0, RangeEvoNorm, groups_of, plain

SHAPES = [(2, 16, 8, 8), (2, 8, 4, 4), (1, 6, 3, 5), (2, 16, 1, 1), (1, 32, 16, 16), (1, 8, 7, 7)]


def layer(kind, channels):
    torch.manual_seed(1)
    norm = kind(channels).double()
    for p in norm.parameters():
        torch.nn.init.normal_(p, 1.0, 0.5)
    return norm


def parts(norm, y):
    """(v, gamma, beta, y) as float64 arrays; y per sample and group [batch, groups, channels a
    group, pixels]."""
    v, gamma, beta = (p.detach().numpy() for p in (norm.v, norm.gamma, norm.beta))
    n, c, h, w = y.shape
    return v, gamma, beta, y.numpy().reshape(n, norm.groups, c // norm.groups, h * w)


@pytest.mark.parametrize("shape", SHAPES)
def test_evonorm_s0_is_its_definition(shape):
    norm, y = layer(EvoNormS0, shape[1]), torch.randn(shape, dtype=torch.float64)
    v, gamma, beta, grouped = parts(norm, y)
    expected = np.empty_like(grouped)
    for b, g in np.ndindex(grouped.shape[:2]):
        deviation = math.sqrt(grouped[b, g].var() + 1e-5)
        for k in range(grouped.shape[2]):
            c, t = g * grouped.shape[2] + k, grouped[b, g, k]
            expected[b, g, k] = gamma[c] * t / (1 + np.exp(-v[c] * t)) / deviation + beta[c]
    np.testing.assert_allclose(norm(y).detach().numpy(), expected.reshape(shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("shape", "chunks"), list(zip(SHAPES, [16, 4, 3, 1, 16, 7], strict=True)))
def test_range_evonorm_is_its_definition(shape, chunks):
    norm, y = layer(RangeEvoNorm, shape[1]), torch.randn(shape, dtype=torch.float64)
    v, gamma, beta, grouped = parts(norm, y)
    size = grouped.shape[3] // chunks  # pixels
    n = max(2, size * grouped.shape[2])
    factor = 0.175 * (1 + math.sqrt(math.pi * math.log(4))) / math.sqrt(2 * math.log(n))
    expected = np.empty_like(grouped)
    for b, g in np.ndindex(grouped.shape[:2]):
        pieces = [grouped[b, g, :, k * size : (k + 1) * size] for k in range(chunks)]
        spread = np.mean([piece.max() - piece.min() for piece in pieces])
        for k in range(grouped.shape[2]):
            c, t = g * grouped.shape[2] + k, grouped[b, g, k]
            expected[b, g, k] = gamma[c] * t * np.clip(v[c] * t / 6 + 0.5, 0, 1) / (factor * spread + 1e-5) + beta[c]
    np.testing.assert_allclose(norm(y).detach().numpy(), expected.reshape(shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [EvoNormS0, RangeEvoNorm])
@pytest.mark.parametrize("shape", [(2, 8, 4, 4), (1, 16, 3, 3)])
def test_gradients(kind, shape):
    norm = layer(kind, shape[1])
    y = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def function(y, v, gamma, beta):
        return torch.func.functional_call(norm, {"v": v, "gamma": gamma, "beta": beta}, (y,))

    inputs = (y, *(p.detach().clone().requires_grad_() for p in (norm.v, norm.gamma, norm.beta)))
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("kind", [EvoNormS0, RangeEvoNorm])
def test_memory_format_does_not_change_values(kind):
    norm, y = layer(kind, 16), torch.randn(2, 16, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(norm(y.contiguous(memory_format=torch.channels_last)), norm(y))


def test_range_stands_in_for_the_deviation_of_normal_values():
    torch.manual_seed(0)
    y = torch.randn(8, 64, 16, 16) * 3.0
    ratio = RangeEvoNorm(64)(y).std() / EvoNormS0(64)(y).std()
    assert 0.8 < ratio < 1.25


def test_a_constant_map_stays_finite():
    for kind in (EvoNormS0, RangeEvoNorm):
        y = torch.full((1, 8, 4, 4), 2.0, requires_grad=True)
        z = kind(8)(y)
        z.sum().backward()
        assert torch.isfinite(z).all()
        assert torch.isfinite(y.grad).all()


@pytest.mark.parametrize(("channels", "groups"), [(16, 8), (8, 8), (6, 6), (10, 5), (7, 7), (11, 1), (1, 1), (12, 6)])
def test_eight_groups_or_fewer(channels, groups):
    assert groups_of(channels) == groups
    assert plain("groupnorm", channels).num_groups == groups


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 3, 6, 8, 16, 24, 40, 64, 100]),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([torch.contiguous_format, torch.channels_last]),
    st.sampled_from([1e-3, 1.0, 30.0]),
    st.integers(0, 10**6),
)
def test_the_kernels_of_evonorm_s0_give_its_values_and_gradients(channels, batch, height, width, order, scale, seed):
    norm = layer(EvoNormS0, channels).float()
    generator = torch.Generator().manual_seed(seed)
    y = (torch.randn(batch, channels, height, width, generator=generator) * scale + 0.3).contiguous(memory_format=order)
    g = torch.randn(y.shape, generator=generator)
    wanted = (norm.v, norm.gamma, norm.beta)
    exact_y = y.double().requires_grad_()
    norm.double()
    exact = norm(exact_y)
    of_exact = torch.autograd.grad(exact, (exact_y, norm.v, norm.gamma, norm.beta), g.double())
    norm.float()
    y.requires_grad_()
    made = norm(y)
    found = torch.autograd.grad(made, (y, *wanted), g)
    for one, other in zip((made, *found), (exact, *of_exact), strict=True):
        largest = float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=1e-5 * largest + 1e-7)


def test_evonorm_s0_has_derivatives_under_torch_func():
    norm, y = layer(EvoNormS0, 8).float(), torch.randn(3, 8, 4, 4)
    weights = {name: p.detach() for name, p in norm.named_parameters()}

    def loss(weights, one):
        return torch.func.functional_call(norm, weights, (one[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, y)
    norm(y).square().sum().backward()
    for name, p in norm.named_parameters():
        torch.testing.assert_close(each[name].sum(0), p.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("follow", [torch.jit.trace, lambda norm, y: torch.export.export(norm, (y,)).module()])
def test_programs_made_of_evonorm_s0_have_torch_operations_alone(follow):
    norm, y = layer(EvoNormS0, 8).float(), torch.randn(2, 8, 4, 4)
    program = follow(norm, y)
    torch.testing.assert_close(program(y), norm(y))
    assert "_EvoNormS0" not in str(program.graph)  # the function of the kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_evonorm_s0_of_halves_is_near(dtype):
    norm, y = layer(EvoNormS0, 8).float(), torch.randn(2, 8, 4, 4)
    near = copy.deepcopy(norm).to(dtype)(y.to(dtype))
    assert near.dtype == dtype
    torch.testing.assert_close(near.float(), norm(y), rtol=0.05, atol=0.05)
