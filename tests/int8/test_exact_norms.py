"""Batch norm and group norm of int8 maps are torch's, of the int8 values, rounded to int8 once."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8 import QuantisedTensor, layers
from edgegossip.int8.functional import quantise
from edgegossip.types import UsageError

NORMS = {
    "batch norm": lambda: nn.BatchNorm2d(6),
    "without momentum": lambda: nn.BatchNorm2d(6, momentum=None),
    "without statistics": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "without scale": lambda: nn.BatchNorm2d(6, affine=False),
    "group norm": lambda: nn.GroupNorm(3, 6),
    "group norm without scale": lambda: nn.GroupNorm(2, 6, affine=False, eps=1e-3),
    "one group": lambda: nn.GroupNorm(1, 6),
}


def made(name, seed=0):
    """A norm with parameters and statistics as after some training, and maps."""
    torch.manual_seed(seed)
    norm = NORMS[name]()
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.randn(6))
        if getattr(norm, "running_var", None) is not None:
            norm.running_mean.copy_(torch.randn(6))
            norm.running_var.copy_(torch.rand(6) + 0.5)
    return norm, torch.randn(4, 6, 5, 7) * torch.rand(6)[:, None, None] * 3 + torch.randn(6)[:, None, None]


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NORMS)
def test_result_statistics_and_gradients_are_torchs_of_the_int8_values(name, mode):
    plain, x = made(name)
    ours = int8.convert(copy.deepcopy(plain))
    plain.train(mode), ours.train(mode)
    y = quantise(x)
    values = y.values().requires_grad_()
    taken = y.values().requires_grad_()
    wanted, got = plain(values), ours(quantise(taken))
    assert isinstance(got, QuantisedTensor)
    off = (got.values() - wanted).abs().amax((1, 2, 3))
    assert (off <= 0.51 * got.scale + 1e-6).all()
    g = torch.randn_like(wanted)
    wanted.backward(g)
    got.backward(g)
    torch.testing.assert_close(taken.grad, values.grad, rtol=1e-3, atol=1e-4)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call", ["batch norm", "group norm"])
def test_functions_that_a_model_calls_itself_stay_in_int8(call):
    _, x = made(call)
    y, plain = quantise(x), quantise(x).values()
    if call == "group norm":
        got, wanted = F.group_norm(y, 3), F.group_norm(plain, 3)
    else:
        got, wanted = F.batch_norm(y, None, None, training=True), F.batch_norm(plain, None, None, training=True)
    assert isinstance(got, QuantisedTensor)
    assert (got.values() - wanted).abs().max() <= 0.51 * got.scale.max()


def network():
    torch.manual_seed(2)
    body = [nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1, bias=False)]
    return nn.Sequential(*body, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def trained(model):
    torch.manual_seed(4)
    for _ in range(3):
        model(torch.randn(8, 3, 10, 10)).square().mean().backward()
    return model


def test_a_model_keeps_its_norms_and_their_names_without_a_notice():
    plain = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = int8.convert(copy.deepcopy(plain))
    assert int8.conversion(model).replaced == int8.conversion(model).fp32 == ()
    assert list(model.state_dict()) == list(plain.state_dict())
    trained(model)
    plain.load_state_dict(model.state_dict())  # back in fp32, with its statistics
    x = torch.randn(4, 3, 10, 10)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), plain.eval()(x), rtol=0.1, atol=0.02)


def test_autograd_keeps_a_byte_a_value():
    sizes = []

    def kept(t):
        sizes.append(t.numel() * t.element_size())
        return t

    norm, x = int8.convert(nn.BatchNorm2d(6)), quantise(torch.randn(4, 6, 32, 32))
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda t: t):
        norm(x.values().requires_grad_())
    assert sum(sizes) < 1.2 * x.numel()


def test_in_evaluation_a_batch_norm_is_part_of_its_convolution_and_a_predictor_takes_it():
    model, x = trained(int8.convert(network())).eval(), torch.randn(5, 3, 10, 10)
    with torch.no_grad():
        as_one = model(x)
        hook = model[1].register_forward_hook(lambda *_: None)  # somebody looks: layer by layer
        alone = model(x)
        hook.remove()
    assert not torch.equal(as_one, alone)
    torch.testing.assert_close(as_one, alone, rtol=0.05, atol=0.02)
    assert torch.equal(int8.predictor(model, x)(x), as_one)


@pytest.mark.parametrize(
    ("norm", "said"), [("batch norm", "no step for a batch norm that"), ("group norm", "no step for group norm")]
)
def test_a_predictor_says_what_it_does_not_take(norm, said):
    rest = nn.Conv2d(6, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    model = int8.convert(nn.Sequential(NORMS[norm](), *rest))
    with pytest.raises(UsageError, match=said):
        int8.predictor(model.eval(), torch.randn(2, 6, 6, 6))


def test_frozen_statistics_stay_as_they_are():
    model = int8.convert(network())
    model[1].eval()
    before = model[1].running_mean.clone()
    trained(model)
    assert torch.equal(model[1].running_mean, before) and model[1].weight.grad is not None
    assert not torch.equal(model[4].running_mean, torch.zeros(8))


def test_a_kept_batch_norm_has_a_qdq_form():
    from edgegossip.int8.qdq import qdq_model

    model, x = trained(int8.convert(network())).eval(), torch.randn(6, 3, 10, 10)
    with torch.no_grad():
        torch.testing.assert_close(qdq_model(model, [x])(x), model(x), rtol=0.2, atol=0.05)


def test_a_layer_takes_float_maps_and_group_norm_other_shapes():
    norm, flat = int8.convert(nn.GroupNorm(2, 6)), torch.randn(3, 6)
    assert isinstance(norm(torch.randn(2, 6, 4, 4)), QuantisedTensor)
    assert torch.equal(norm(flat), F.group_norm(flat, 2, norm.weight, norm.bias))
    assert isinstance(int8.convert(nn.BatchNorm2d(6)), layers.BatchNorm2d)
