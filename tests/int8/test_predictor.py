"""A predictor gives the bits of its model, layer by layer, or says why it cannot be made."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8 import norms
from edgegossip.native import _native
from edgegossip.recipe import ModelSection
from edgegossip.training import models
from edgegossip.types import UsageError


def converted(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", int8.ConversionNotice)
        return int8.convert(model).eval()


def bits(values):
    return values.contiguous().view(torch.int32)


def assert_same(predict, model, x):
    with torch.no_grad():
        wanted = model(x)
    found = predict(x)
    assert found.shape == wanted.shape and found.stride() == wanted.stride()
    assert torch.equal(bits(found), bits(wanted))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (1, 8, 8)),
        ("cnn", (1, 12, 12)),
        ("resnet8", (3, 16, 16)),
        ("resnet20", (3, 16, 16)),
        ("resnet18", (3, 8, 8)),
        ("vgg11", (3, 16, 16)),
    ],
)
def test_models_of_the_package(name, shape, threads):
    torch.manual_seed(1)
    model = converted(models.build(ModelSection(name=name, norm="range-evonorm"), shape, 10))
    predict = int8.predictor(model, torch.randn(2, *shape))
    for count, batch in ((1, 1), (2, 5), (3, 67)):
        threads(count)
        assert_same(predict, model, torch.randn(batch, *shape))
        assert_same(predict, model, torch.randn(batch, *shape).to(memory_format=torch.channels_last))


class Residual(nn.Module):
    """What a random network is made of: every step that there is."""

    def __init__(self, inputs, outputs, kernel, stride, groups, pool):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=groups > 1)
        self.norm = norms.RangeEvoNorm(outputs)
        self.pool = {"max": nn.MaxPool2d(2, ceil_mode=True), "average": nn.AvgPool2d(3, 2, 1), "none": nn.Identity()}[
            pool
        ]
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x):
        short = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return self.pool(torch.relu(self.norm(self.conv(x)) + short))


@settings(max_examples=15)
@given(st.data())
def test_random_networks(data):
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels, size = draw(st.sampled_from([1, 3, 8])), (draw(st.integers(1, 11)), draw(st.integers(1, 11)))
    layers, inputs = [], channels
    count = draw(st.integers(1, 3))
    for k in range(count):
        outputs = inputs * draw(st.sampled_from([1, 2]))
        groups = draw(st.sampled_from([1, inputs]))
        layers.append(
            Residual(
                inputs,
                outputs,
                draw(st.sampled_from([1, 3, 5])),
                draw(st.sampled_from([1, 2])),
                groups,
                draw(st.sampled_from(["max", "none", "average"][: 3 if k == count - 1 else 2])),  # averages are float32
            )
        )
        inputs = outputs
    head = draw(st.sampled_from(["average", "flatten"]))
    body = nn.Sequential(nn.Conv2d(channels, channels, 1), *layers)
    if head == "average":
        tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 12), nn.ReLU(inplace=True), nn.Linear(12, 3)]
    else:
        tail = [nn.Conv2d(inputs, 4, 1), nn.Flatten(), nn.LazyLinear(3)]
    model = nn.Sequential(body, *tail)
    model(torch.randn(2, channels, *size))
    model = converted(model)
    x = draw(st.sampled_from([1e-38, 1.0, 1e30])) * torch.randn(draw(st.integers(1, 9)), channels, *size)
    assert_same(int8.predictor(model, torch.randn(2, channels, *size)), model, x)


def test_a_sample_that_is_not_finite_stays_alone():
    model = converted(nn.Sequential(nn.Conv2d(3, 8, 3), norms.RangeEvoNorm(8), nn.Flatten(), nn.Linear(128, 2)))
    predict, x = int8.predictor(model, torch.randn(1, 3, 6, 6)), torch.randn(4, 3, 6, 6)
    whole = predict(x)
    x[2, 0, 0, 0] = torch.nan
    found = predict(x)
    assert found[2].isnan().all()
    assert torch.equal(found[[0, 1, 3]], whole[[0, 1, 3]])


def test_later_weights_are_not_seen():
    model = converted(
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=True), norms.RangeEvoNorm(8), nn.Flatten(), nn.Linear(128, 2))
    )
    x, before = torch.randn(3, 3, 6, 6), copy.deepcopy(model)
    predict = int8.predictor(model, x)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5)
    assert_same(predict, before, x)
    assert not torch.equal(predict(x), model(x))


def test_several_threads_at_a_time():
    model = converted(models.build(ModelSection(name="cnn"), (1, 12, 12), 10))
    predict, inputs = (
        int8.predictor(model, torch.randn(1, 1, 12, 12)),
        [torch.randn(k, 1, 12, 12) for k in range(1, 40)],
    )
    wanted = [predict(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for found, one in zip(pool.map(predict, inputs * 3), wanted * 3, strict=True):
            assert torch.equal(found, one)


def clamped(y):
    return y.clamp_(-50, 50)


def early(y):
    return y if y.softmax(1).max() > 0.5 else y.flatten(1)


@torch.enable_grad()
def with_gradients(model, x):
    return model.last(model.first(x).flatten(1)).detach()


class Own(nn.Module):
    """A convolution, what `between` does, and a linear layer."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Conv2d(2, 4, 1), nn.Linear(36, 3), between

    def forward(self, x):
        self.seen = x
        return self.between(self, self.first(x))


REFUSED = {
    "sigmoid": (lambda m, y: m.last(torch.sigmoid(y).flatten(1)), "reads float32 values.*sigmoid"),
    "values": (lambda m, y: m.last(y.values().reshape(len(y), -1)), "reads float32 values"),
    "softmax": (lambda m, y: m.last(y.flatten(1)).softmax(1), "before its end by torch's softmax"),
    "scaled in place": (lambda m, y: m.last(y.flatten(1)).mul_(2.0), r"changes, what its layers made \(mul_"),
    "written to": (lambda m, y: torch.mul(out := m.last(y.flatten(1)), 2.0, out=out), "changes, what its layers made"),
    "written behind torch's back": (lambda m, y: clamped(m.last(y.flatten(1)).data), "looks at values"),
    "an early exit": (lambda m, y: early(m.last(y.flatten(1))), "looks at values"),
    "part of the batch": (lambda m, y: m.last(y[1:].flatten(1)), "before its"),
    "a part of the result": (lambda m, y: m.last(y.flatten(1))[:2], "chooses among"),
    "another batch": (lambda m, y: m.last(y.flatten(1)).view(-1, 1), r"gives \[batch, ...\], not \[6, 1\] of 2"),
    "gradients": (lambda m, y: with_gradients(m, m.seen), "or computes with gradients on"),
    "int8": (lambda m, y: y, "gives one float32 tensor"),
    "two": (lambda m, y: (m.last(y.flatten(1)), y), "gives one float32 tensor"),
    "a constant": (lambda m, y: torch.zeros(len(y), 3), "before its end"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_other_models_are_refused(which):
    between, message = REFUSED[which]
    with pytest.raises(UsageError, match=message):
        int8.predictor(converted(Own(between)), torch.randn(4, 2, 3, 3))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 2,
        lambda x: x.mul_(2),
        lambda x: x.transpose(2, 3),
        lambda x: x.flip(0),
        lambda x: x.flatten(1).view(len(x), 3, 2, 3).transpose(1, 2),
    ],
)
def test_an_input_that_is_changed_first_is_refused(change):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.last = nn.Conv2d(2, 4, 1), nn.Linear(36, 3)

        def forward(self, x):
            return self.last(self.conv(change(x)).flatten(1))

    with pytest.raises(UsageError, match="before its quantise|changes, what its layers made"):
        int8.predictor(converted(First()), torch.randn(4, 2, 3, 3))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Identity()), torch.randn(2, 5)),
        (nn.Sequential(nn.Flatten()), torch.randn(2, 5, 3)),
        (nn.Sequential(nn.Linear(5, 1)), torch.randn(5)),
        (nn.Sequential(nn.Linear(5, 1)), torch.randn(2, 5).to_sparse()),
        (nn.Sequential(nn.Linear(5, 1)), np.zeros((2, 5), np.float32)),
    ],
)
def test_what_is_no_prediction_of_a_batch(model, x):
    with pytest.raises(UsageError):
        int8.predictor(converted(model), x)


class Everyday(nn.Module):
    """LeNet as it is often written."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop2, self.drop = nn.Conv2d(1, 6, 5), nn.Dropout2d(), nn.Dropout()
        self.one, self.two, self.pool = nn.Linear(96, 20), nn.Linear(20, 4), nn.MaxPool2d(2)
        self.relu = nn.ReLU()

    @torch.inference_mode()
    def forward(self, x):
        x = self.pool(torch.relu(input=self.drop2(self.conv(x)))).contiguous()
        x = self.relu(self.one(self.drop(x).view(x.size(0), -1)))
        return self.two(F.dropout(x, 0.5, self.training))


def test_everyday_code():
    model = converted(Everyday())
    assert_same(int8.predictor(model, torch.randn(3, 1, 12, 12)), model, torch.randn(7, 1, 12, 12))


def test_large_maps_in_front_of_a_large_layer():
    """The last layer's weights are worth 64 samples at a time, the first layer's maps (4 MB a
    sample) are not."""
    pools = (nn.MaxPool2d(16), nn.MaxPool2d(16))
    model = converted(nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), *pools, nn.Flatten(), nn.Linear(64, 600)))
    assert_same(int8.predictor(model, torch.randn(1, 1, 256, 256)), model, torch.randn(3, 1, 256, 256))


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, 5, 6),
        torch.randn(2, 3, 5),
        torch.zeros(0, 3, 6, 6),
        torch.ones(2, 3, 6, 6, dtype=torch.int64),
    ],
)
def test_inputs_of_another_kind(x):
    model = converted(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)))
    predict = int8.predictor(model, torch.randn(2, 3, 6, 6))
    assert_same(predict, model, torch.randn(3, 3, 6, 6).double().float())
    with pytest.raises(UsageError, match=r"takes floating-point tensors \[batch, 3, 6, 6\]"):
        predict(x)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(UsageError, match="eval"):
        int8.predictor(converted(nn.Sequential(nn.Linear(4, 2))).train(), torch.randn(1, 4))


def test_under_inference_mode_and_with_gradients_on():
    model = converted(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)))
    with torch.inference_mode():
        x = torch.randn(2, 3, 6, 6)
        predict = int8.predictor(model, x)
        assert torch.equal(predict(x), model(x))
    assert not predict(torch.randn(2, 3, 6, 6, requires_grad=True)).requires_grad


def program():
    return _native.Int8Program(6)


def test_a_program_ends_once_and_checks_its_buffers():
    p = program()
    average = p.average_pool(p.quantise(0), [1, 2, 1, 3, 2, 1, 1, 1, 0, 0, 1, 1], True)
    assert p.end(average) == 3
    for wrong, message in ((lambda: p.end(average), "ends once"), (lambda: p.quantise(0), "has ended")):
        with pytest.raises(ValueError, match=message):
            wrong()
    x, out = torch.arange(12.0), torch.empty(6)
    p.run(x.numpy(), 2, out.numpy())
    assert torch.allclose(out, torch.tensor([1.5, 2.5, 3.5, 7.5, 8.5, 9.5]), atol=0.05)
    for batch, data, into in ((0, x, out), (1, x, out), (2, x, out[:3]), (2**40, x, out)):
        with pytest.raises(ValueError, match="batch must be|must have|too large"):
            p.run(data.numpy(), batch, into.numpy())
