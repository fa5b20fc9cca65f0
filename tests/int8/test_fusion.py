"""A convolution and the norm behind it, computed in one step: the bits of the two layers, and
nothing that anybody could see."""

import copy
import pickle

import pytest
import torch
from hypothesis import settings
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from edgegossip import int8
from edgegossip.int8 import norms
from edgegossip.int8.layers import Sequential, conv_norm
from edgegossip.int8.tensor import dequantise
from edgegossip.native import int8 as native
from lab.bench.codecs import torch_threads
from tests.int8.test_conv_norm import any_pair


def pair(inputs=3, outputs=16, kernel=(3, 1, 1), bias=False, dw=16):
    return int8.convert(nn.Sequential(nn.Conv2d(inputs, outputs, *kernel, bias=bias), norms.RangeEvoNorm(outputs)), dw)


def one_by_one(model, x):
    """As nn.Sequential does it."""
    return nn.Sequential.forward(model, x)


def trained(forward, model, x):
    """The result, and the gradients of x and of all parameters, for a gradient of changing size."""
    model, x = copy.deepcopy(model), x.clone().requires_grad_()
    torch.manual_seed(5)
    z = forward(model, x)
    (z * torch.linspace(-1, 2, z.numel()).view(z.shape)).sum().backward()
    return [z.detach().values(), x.grad, *(p.grad for p in model.parameters())], z.grad_fn


@settings(max_examples=15)
@any_pair
def test_one_step_has_the_bits_of_two_layers(shape, kernel, bias, dw, threads):
    torch.manual_seed(0)
    model, x = pair(shape[1], 16, kernel, bias, dw), torch.randn(shape)
    assert type(model) is Sequential
    with torch_threads(threads):
        found, step = trained(Sequential.__call__, model, x)
    expected, other = trained(one_by_one, model, x)
    assert [type(f).__name__ for f in (step, other)] == ["_ConvRangeEvoNormBackward"] * 2
    joints = [f.next_functions[0][0] for f in (step, other)]
    assert type(joints[0]) is type(joints[1])  # both go on with what gave x
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_neighbours_are_one_call_of_the_kernels(monkeypatch):
    calls, joined = [], native.conv_evonorm
    monkeypatch.setattr(native, "conv_evonorm", lambda *args, **more: calls.append(args[0]) or joined(*args, **more))
    model, x = pair(), torch.randn(2, 3, 6, 6)
    model(x)
    assert len(calls) == 1
    conv_norm(model[0], model[1], x)
    assert len(calls) == 2
    one_by_one(model, x)
    with torch.no_grad():
        model(x)
    assert len(calls) == 2


def test_a_model_of_many_layers_has_the_same_bits():
    torch.manual_seed(1)
    layers = [layer for c in (3, 8, 8) for layer in (nn.Conv2d(c, 8, 3, padding=1), norms.RangeEvoNorm(8))]
    model = int8.convert(
        nn.Sequential(*layers, nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), norms.RangeEvoNorm(8), nn.Conv2d(8, 8, 1))
    )
    assert type(model) is Sequential
    x = torch.randn(4, 3, 8, 8)
    for a, b in zip(trained(Sequential.__call__, model, x)[0], trained(one_by_one, model, x)[0], strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(model(x).values(), one_by_one(model, x).values())


def watched_by(kind, model, seen):
    """Somebody looks at a layer; how to look away."""
    conv, norm = model[0], model[1]
    if kind == "everywhere":
        return register_module_forward_hook(lambda m, _, y: seen.append(m) if m is conv else None).remove
    if kind == "another forward":
        given_forward = conv.forward
        conv.forward = lambda x: (seen.append(x), given_forward(x))[1]
        return lambda: conv.__dict__.pop("forward")
    layer = norm if kind.endswith("norm") else conv
    register = {
        "before": layer.register_forward_pre_hook,
        "after": layer.register_forward_hook,
        "backward": layer.register_full_backward_hook,
        "backward before": layer.register_full_backward_pre_hook,
    }
    return register[kind.removesuffix(" norm")](lambda *_: seen.append(kind)).remove


@pytest.mark.parametrize(
    "kind",
    [
        "before",
        "after",
        "backward",
        "backward before",
        "before norm",
        "after norm",
        "backward norm",
        "everywhere",
        "another forward",
    ],
)
def test_who_looks_at_a_layer_sees_it(kind):
    torch.manual_seed(2)
    model, x, seen = pair(), torch.randn(2, 3, 5, 5).requires_grad_(), []
    plain = model(x).detach().values()
    look_away = watched_by(kind, model, seen)
    z = model(x)
    z.sum().backward()
    assert len(seen) == 1 and torch.equal(dequantise(z), plain)
    look_away()
    model(x).sum().backward()
    assert len(seen) == 1


def test_any_two_modules_may_be_given():
    x = torch.randn(2, 3, 4, 4)
    conv, norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
    assert torch.equal(conv_norm(conv, norm, x), norm(conv(x)))
    ours = pair(3, 8)
    assert torch.equal(conv_norm(ours[0], nn.Identity(), x).values(), ours[0](x).values())


def test_parameters_and_copies_are_as_before():
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), norms.RangeEvoNorm(8), nn.Sequential(nn.ReLU()), nn.Flatten())
    names = list(plain.state_dict())
    ours = int8.convert(plain)
    assert ours is plain and list(ours.state_dict()) == names and isinstance(ours, nn.Sequential)
    assert type(ours[2]) is nn.Sequential  # nothing to join
    x = torch.randn(2, 3, 6, 6)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), ours[:2]):
        assert torch.equal(other(x).values()[:, :2], ours[: len(other)](x).values()[:, :2])
    report = int8.conversion(ours).int8
    int8.convert(ours)
    assert int8.conversion(ours).int8 == report == ("0", "1", "2.0")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_make_the_same_step_again(reentrant):
    torch.manual_seed(4)
    model, x = pair(), torch.randn(3, 3, 6, 6)
    plain = trained(Sequential.__call__, model, x)[0]
    again = trained(lambda m, x: checkpoint(m, x, use_reentrant=reentrant), model, x)[0]
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)


def test_a_norm_of_another_width_is_an_error():
    model = int8.convert(nn.Sequential(nn.Conv2d(3, 8, 1), norms.RangeEvoNorm(16)))
    with pytest.raises(ValueError, match="must have 8 elements, it has 16"):
        model(torch.randn(2, 3, 4, 4))
