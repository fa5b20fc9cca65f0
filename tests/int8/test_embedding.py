"""Embedding tables in int8: against the same mathematics in numpy, against fp32 autograd, and
inside models."""

import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8 import QuantisedTensor, layers
from edgegossip.native import available_isas
from edgegossip.native import int8 as native
from edgegossip.types import UsageError
from tests.native import reference_int8 as reference

KEY = 77


@settings(max_examples=10)
@given(
    st.builds(native.EmbeddingShape, st.integers(1, 5), st.integers(1, 40), st.integers(1, 50), st.integers(1, 70)),
    st.booleans(),
    st.sampled_from(available_isas()),
    st.integers(0, 2**32),
)
def test_the_kernels_are_the_reference(shape, wide, isa, seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(shape.rows, shape.width)).astype(np.float32)
    ids = rng.integers(0, shape.rows, (shape.batch, shape.length))
    out = native.Maps.empty(shape.batch, shape.length * shape.width)
    native.embedding(shape, ids.ravel(), table.ravel(), out, isa, 2)
    q, scale, zero = reference.quantise(table[ids])
    for found, expected in zip(out, (q.ravel(), scale, zero), strict=True):
        np.testing.assert_array_equal(found, expected)

    g = rng.normal(size=(shape.batch, shape.length, shape.width)).astype(np.float32)
    codes, scales = reference.round16(g) if wide else reference.round8(g, KEY)
    expected = np.zeros_like(table)
    for n in range(shape.batch):
        for row in np.unique(ids[n]):
            if row != 1:
                expected[row] += scales[n] * codes[n][ids[n] == row].sum(0).astype(np.float32)
    for threads in (1, 3):
        dw = np.full(table.size, np.nan, np.float32)
        native.embedding_backward(shape, ids.ravel(), g.ravel(), KEY, wide, 1, dw, isa, threads)
        np.testing.assert_array_equal(dw, expected.ravel())


class Words(nn.Module):
    """Sequences of words to classes, as users write it."""

    def __init__(self, middle):
        super().__init__()
        self.table, self.middle = nn.Embedding(30, 16, padding_idx=0), middle
        self.first, self.act, self.last = nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)

    def forward(self, ids):
        x = self.middle(self.act(self.first(self.table(ids))))
        return self.last(x.mean(1))


class _Lstm(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


@pytest.mark.parametrize(
    "middle",
    [nn.Identity(), _Lstm(16, 16, batch_first=True), nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)],
    ids=["mean", "lstm", "transformer"],
)
def test_a_model_of_words_learns_like_fp32(middle):
    torch.manual_seed(0)
    plain = Words(middle)
    model = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", int8.ConversionNotice)
        int8.convert(model)
    assert isinstance(model.table, layers.Embedding)
    ids = torch.randint(0, 30, (32, 12))
    labels = ids[:, 0] % 4
    losses = []
    for module in (plain, model):
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        for _ in range(12):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(ids), labels)
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[1] < 1.35 and abs(losses[0] - losses[1]) < 0.25 * losses[0] + 0.02, losses


def test_sequences_stay_in_int8_through_linear_relu_and_flatten():
    table, x = layers.Embedding(9, 4), torch.tensor([[1, 2, 8], [0, 0, 3]])
    y = table(x)
    assert isinstance(y, QuantisedTensor) and y.q.dtype == torch.int8 and y.scale.shape == (2,)
    flat = torch.flatten(y, 1)
    assert isinstance(flat, QuantisedTensor)
    torch.testing.assert_close(flat.values(), y.values().reshape(2, 12), rtol=0, atol=0)
    linear = layers.Linear(4, 3)
    scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    rounded = torch.round(linear.weight.detach() / scale) * scale
    torch.testing.assert_close(linear(y), F.linear(y.values(), rounded, linear.bias))
    assert isinstance(int8.functional.relu(torch.randn(2, 3, 4)), QuantisedTensor)


def test_options_without_an_int8_form_stay_fp32_and_are_named():
    for options in ({"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}):
        with pytest.warns(int8.ConversionNotice, match=next(iter(options))):
            model = int8.convert(nn.Sequential(nn.Embedding(3, 4, **options), nn.Linear(4, 2)))
        assert type(model[0]) is nn.Embedding


def test_hard_tables_and_wrong_ids():
    table = layers.Embedding(3, 5)
    for value in (0.0, 1e-40, -7.0, 1e30):
        nn.init.constant_(table.weight, value)
        table.weight.grad = None
        y = table(torch.tensor([[2, 2], [0, 1]]))
        (y * 1.0).sum().backward()
        assert torch.isfinite(y.values()).all()
        torch.testing.assert_close(table.weight.grad.sum(1), torch.tensor([5.0, 5.0, 10.0]))
    assert table(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 5)
    assert table(torch.ones(2, 3, 4, dtype=torch.int64)).shape == (2, 3, 4, 5)
    for bad in (3, -1):
        with pytest.raises(UsageError, match="rows 0 to 2"):
            table(torch.tensor([0, bad]))
    with torch.no_grad():
        table.weight[1, 2] = float("nan")
    np.testing.assert_array_equal(torch.isnan(table(torch.tensor([0, 1, 2])).scale).numpy(), [False, True, False])
    with pytest.raises(UsageError, match=r"batch, channels"):
        int8.functional.conv2d(torch.ones(1, 2, 2), torch.ones(1, 1, 1, 1), None, (1, 1), (0, 0), 1)
