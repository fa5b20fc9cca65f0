"""Attention, layer norm and GELU in int8: against fp32 autograd, inside torch's transformer layers
and inside models."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from edgegossip import int8
from edgegossip.int8 import QuantisedTensor, layers, norms
from edgegossip.int8.attention import DotProductAttention
from edgegossip.int8.tensor import dequantise
from edgegossip.types import UsageError
from tests.int8.test_layers import compare, cosine


def converted(model, dw=16):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", int8.ConversionNotice)
        return int8.convert(copy.deepcopy(model), dw)


def gradients(module, inputs, g, **more):
    """(result, gradients of the inputs, gradients of the parameters by name)."""
    given_x = [x.clone().requires_grad_() for x in inputs]
    y = module(*given_x, **more)
    y = dequantise(y[0] if isinstance(y, tuple) else y)
    (y * g).sum().backward()
    return y.detach(), [x.grad for x in given_x], {n: p.grad for n, p in module.named_parameters()}


def assert_alike(plain, ours, inputs, least=0.99, **more):
    torch.manual_seed(11)
    g = torch.randn(_shape_of(plain, inputs, more))
    y, dx, grads = gradients(plain, inputs, g, **more)
    y8, dx8, grads8 = gradients(ours, inputs, g, **more)
    assert (y8 - y).abs().max() < 0.05 * (y.max() - y.min())
    for n, (a, b) in enumerate(zip(dx8, dx, strict=True)):
        assert cosine(a, b) >= least, f"input {n}"
    largest = max(float(p.norm()) for p in grads.values()) if grads else 0.0
    for name, grad in grads.items():
        if float(grad.norm()) > 1e-4 * largest:  # a bias of keys moves no probability
            assert cosine(grads8[name], grad) >= least, name


def _shape_of(module, inputs, more):
    with torch.no_grad():
        y = module(*inputs, **more)
    return (y[0] if isinstance(y, tuple) else y).shape


@settings(max_examples=10)
@given(
    st.integers(1, 4),
    st.integers(2, 30),
    st.integers(2, 30),
    st.sampled_from([(1, 8), (2, 16), (4, 5)]),
    st.sampled_from([None, "keys", "pairs"]),
    st.integers(0, 10**6),
)
def test_products_of_attention(batch, queries, keys, size, masked, seed):
    torch.manual_seed(seed)
    heads, width = size
    plain = DotProductAttention(heads)
    inputs = [torch.randn(batch, n, heads * width) for n in (queries, keys, keys)]
    seen = None
    if masked == "keys":
        seen = torch.rand(batch, keys) < 0.7
        seen[:, 0] = True
    if masked == "pairs":
        seen = torch.rand(1, 1, queries, keys) < 0.7
        seen[..., 0] = True
    ours = converted(plain)
    assert type(ours) is layers.DotProductAttention
    assert_alike(plain, ours, inputs, 0.985, attn_mask=seen)


def test_a_query_that_sees_no_key_gives_zeros_in_both_precisions():
    for module in (DotProductAttention(2), layers.DotProductAttention(2)):
        x = [torch.randn(2, 3, 8, requires_grad=True) for _ in range(3)]
        seen = torch.tensor([[True, True, False], [False, False, False]])
        y = module(*x, seen)
        y.sum().backward()
        assert not y[1].any() and y[0].any() and not torch.isnan(y).any()
        assert all(torch.isfinite(t.grad).all() for t in x)


def test_layer_norm_estimates_the_deviation_of_normal_values():
    torch.manual_seed(0)
    for features in (32, 128, 384, 768):
        x = 3 * torch.randn(2000, features) + 1
        ours, theirs = norms.RangeLayerNorm(features), nn.LayerNorm(features)
        a, b = ours(x), theirs(x)
        assert abs(float(((a * b).mean() / (b * b).mean()).detach()) - 1) < 0.02, features
        assert cosine(a, b) > 0.99


def test_gelu():
    torch.manual_seed(0)
    for shape in ((4, 50), (3, 9, 20), (2, 3, 5, 5)):
        compare(nn.GELU(), 2 * torch.randn(shape), 16)
    y = F.gelu(int8.functional.quantise(torch.randn(2, 8)))
    assert isinstance(y, QuantisedTensor)
    assert type(converted(nn.GELU("tanh"))) is nn.GELU


@pytest.mark.parametrize("dw", [16, 8])
def test_a_linear_layer_of_sequences_has_one_scale_a_sample(dw):
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 40), torch.randn(3, 17, 24)
    compare(layer, x, dw)
    ours = converted(layer)
    alone = [ours(sample[None]) for sample in x]
    assert torch.equal(ours(x), torch.cat(alone))
    wide = x.clone()
    wide[0, 3, 5] = 100.0  # which coarsens its own sample alone
    assert torch.equal(ours(wide)[1:], ours(x)[1:]) and not torch.allclose(ours(wide)[0, 0], ours(x)[0, 0], atol=1e-3)


def encoder(**options):
    options = {"dropout": 0.0, "batch_first": True, "activation": "gelu"} | options
    return nn.TransformerEncoderLayer(32, 4, 64, **options)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_torchs_multihead_attention(batch_first, bias):
    torch.manual_seed(1)
    plain = nn.MultiheadAttention(32, 4, bias=bias, batch_first=batch_first)
    if bias:
        nn.init.normal_(plain.in_proj_bias, std=0.1)
        nn.init.normal_(plain.out_proj.bias, std=0.1)
    ours = converted(plain)
    assert type(ours) is layers.MultiheadAttention and ours.in_proj_weight is not plain.in_proj_weight
    assert list(ours.state_dict()) == list(plain.state_dict())
    x, y = torch.randn(5, 9, 32), torch.randn(5, 9, 32)
    batch, length = (5, 9) if batch_first else (9, 5)
    hidden = torch.zeros(batch, length, dtype=torch.bool)
    hidden[0, 2:] = True
    causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    by_head = causal.repeat(4 * batch, 1, 1)
    for more in (
        {},
        {"key_padding_mask": hidden},
        {"attn_mask": causal},
        {"attn_mask": by_head, "key_padding_mask": hidden},
        {"attn_mask": nn.Transformer.generate_square_subsequent_mask(length), "is_causal": True},
    ):
        assert_alike(plain, ours, [x, y, y.flip(0)], 0.98, **more)
        a, weights = plain(x, x, x, **more)
        b, weights8 = ours(x, x, x, **more)
        assert (a - b).abs().max() < 0.05 * (a.max() - a.min())
        assert weights8.shape == weights.shape and (weights8 - weights).abs().max() < 0.03
    assert ours(x, x, x, need_weights=False)[1] is None
    each = ours(x, x, x, average_attn_weights=False)[1]
    assert each.shape == (batch, 4, length, length)
    single, of_single = ours(x[0], x[0], x[0])
    assert single.shape == (9, 32) and of_single.shape == (9, 9)


def test_masks_that_add_something_are_refused():
    ours = converted(nn.MultiheadAttention(8, 2, batch_first=True))
    x = torch.randn(2, 3, 8)
    with pytest.raises(UsageError, match="attn_mask of 0 and minus infinity"):
        ours(x, x, x, attn_mask=torch.full((3, 3), -1.0))
    with pytest.raises(UsageError, match="is_causal"):
        ours(x, x, x, is_causal=True)
    with pytest.raises(UsageError, match=r"bool\[batch, keys\]"):
        layers.DotProductAttention(2)(x, x, x, torch.ones(2, 3))
    with pytest.raises(UsageError, match=r"fits \[2, 2, 3, 3\]"):
        layers.DotProductAttention(2)(x, x, x, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(UsageError, match="3 heads divide"):
        layers.DotProductAttention(3)(x, x, x)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kdim": 4}, "kdim or vdim"),
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
    ],
)
def test_attention_without_an_int8_form_stays_fp32_and_is_named(options, why):
    model = nn.Sequential()
    model.add_module("attend", nn.MultiheadAttention(8, 2, **options))
    with pytest.warns(int8.ConversionNotice, match=rf"attend \({why}"):
        int8.convert(model)
    assert type(model.attend) is nn.MultiheadAttention


def test_layer_norm_over_several_dimensions_stays_fp32_and_is_named():
    with pytest.warns(int8.ConversionNotice, match="normalized_shape"):
        model = int8.convert(nn.Sequential(nn.LayerNorm((3, 4)), nn.Linear(4, 2)))
    assert type(model[0]) is nn.LayerNorm
    with pytest.warns(int8.ConversionNotice, match="layernorm became range layer norm in 0"):
        model = int8.convert(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)))
    assert int8.conversion(model).replaced == (("0", "layernorm"),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        int8.convert(model, 8)  # said once


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "relu"}, {"batch_first": False}], ids=str)
def test_torchs_encoder_layer(options):
    torch.manual_seed(2)
    plain = encoder(**options)
    ours = converted(plain)
    names = {type(m) for m in ours.modules()}
    assert {layers.MultiheadAttention, layers.Linear, layers.RangeLayerNorm} <= names
    x = torch.randn(6, 10, 32)
    like_ours = copy.deepcopy(plain)  # with the norm that int8 has
    for norm in (like_ours.norm1, like_ours.norm2):
        norm.__class__ = norms.RangeLayerNorm
    assert_alike(like_ours, ours, [x], 0.97)


@pytest.mark.parametrize("nested", [True, False])
def test_torchs_fast_path_is_not_taken(nested):
    """In eval mode without gradients torch would compute an encoder with its float32 weights."""
    torch.manual_seed(3)
    plain = nn.TransformerEncoder(encoder(), 2, nn.LayerNorm(32), enable_nested_tensor=nested)
    ours = converted(plain).eval()
    x = torch.randn(4, 7, 32)
    hidden = torch.zeros(4, 7, dtype=torch.bool)
    hidden[1, 4:] = True
    with torch.no_grad():
        made = ours(x, src_key_padding_mask=hidden)
    assert torch.equal(dequantise(made), dequantise(ours(x, src_key_padding_mask=hidden)))
    exact = plain.eval()(x, src_key_padding_mask=hidden)
    assert not torch.equal(dequantise(made), exact)
    assert (dequantise(made) - exact)[~hidden].abs().mean() < 0.15 * exact.abs().mean()


def test_a_decoder_layer_converts_as_well():
    torch.manual_seed(4)
    model = converted(nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True))
    made = model(torch.randn(2, 5, 16), torch.randn(2, 8, 16))
    assert made.shape == (2, 5, 16)
    attention = (model.self_attn, model.multihead_attn)
    assert all(type(m) is layers.MultiheadAttention for m in attention)


def test_qdq_and_predictors_say_that_they_take_no_attention():
    x = torch.randn(2, 5, 32)
    with pytest.raises(UsageError, match="attention"):
        int8.qdq.qdq_model(converted(encoder()), [x])
    for layer, what in (
        (encoder(), "attention"),
        (norms.RangeLayerNorm(32), "layer norm"),
        (nn.GELU(), "GELU"),
    ):
        alone = converted(nn.Sequential(layer, nn.Linear(32, 3))).eval()
        with pytest.raises(UsageError, match=f"no step for {what}"):
            int8.predictor(alone, x)


@settings(max_examples=8)
@given(
    st.sampled_from([16, 30, 64, 100]),
    st.sampled_from([(5,), (3, 7), (2, 3, 4)]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_layer_norm_learns_like_its_reference(features, before, affine, seed):
    torch.manual_seed(seed)
    plain = norms.RangeLayerNorm(features, elementwise_affine=affine)
    if affine:
        nn.init.normal_(plain.weight, 1, 0.3)
        nn.init.normal_(plain.bias, 0, 0.3)
    compare(plain, torch.randn(*before, features) + 0.5, 16, least=0.98)


def test_dropout_of_attention_keeps_the_mean_and_repeats_by_torchs_seed():
    torch.manual_seed(0)
    module = layers.DotProductAttention(2, 0.25)
    x = [torch.randn(2, 12, 16) for _ in range(3)]
    torch.manual_seed(3)
    first = module(*x)
    torch.manual_seed(3)
    assert torch.equal(module(*x), first)
    assert not torch.equal(module(*x), first)
    mean = torch.stack([module(*x) for _ in range(500)]).mean(0)
    whole = module.eval()(*x)
    assert (mean - whole).abs().max() < 0.1 * whole.abs().max()
    assert torch.equal(module(*x), whole)


def test_checkpoints_of_activations_repeat_what_was_drawn():
    """The second forward pass of torch's checkpoints draws the same dropout and keys."""
    torch.manual_seed(5)
    model = converted(encoder(dropout=0.3)).train()
    x = torch.randn(2, 6, 32)
    found = []
    for way in (lambda y: model(y), lambda y: checkpoint(model, y, use_reentrant=True)):
        torch.manual_seed(8)
        given_x = x.clone().requires_grad_()
        y = dequantise(way(given_x))
        tail = torch.rand(())  # what the caller draws afterwards
        y.square().sum().backward()
        found.append((y.detach(), tail))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
