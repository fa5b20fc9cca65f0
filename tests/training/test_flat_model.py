"""FlatModel: one memory for the module, torch and numpy; the layout's order; what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip.layout import Layout, TensorSpec
from edgegossip.training.flat_model import FlatModel, layout_of_module
from edgegossip.types import LocalError


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))


def test_trainable_first_then_float_buffers_and_no_integers():
    layout = layout_of_module(module())
    names = [t.name for t in layout.tensors]
    assert names == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
        "1.running_mean",
        "1.running_var",
    ]
    assert layout.trainable_size == 36 + 4 + 4 + 4 + 432 + 3
    assert layout.size == layout.trainable_size + 8


def test_values_are_taken_over():
    reference, net = module(), module()
    flat = FlatModel(net)
    views = flat.layout.views(flat.array)
    for name, tensor in reference.state_dict().items():
        if tensor.is_floating_point():
            np.testing.assert_array_equal(views[name], tensor.numpy())


def test_module_vector_and_array_are_the_same_memory():
    net = module()
    flat = FlatModel(net)
    start = flat.vec.data_ptr()
    for tensor in [*net.parameters(), net[1].running_mean, net[1].running_var]:
        assert start <= tensor.data_ptr() < start + 4 * flat.layout.size
    flat.array[...] = 0.5
    assert all((p == 0.5).all() for p in net.parameters())
    net[3].weight.data.fill_(7.0)
    assert (flat.layout.views(flat.array)["3.weight"] == 7.0).all()


def test_memory_stays_shared_through_training_and_loading():
    net = module()
    flat = FlatModel(net)
    pointers = [t.data_ptr() for t in [*net.parameters(), *net.buffers()]]
    gradients = [p.grad.data_ptr() for p in net.parameters()]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        flat.load(np.random.default_rng(0).random(flat.layout.size, dtype=np.float32))
        flat.zero_grad()
        net(torch.randn(5, 1, 8, 8)).square().mean().backward()
        optimiser.step()
    assert [t.data_ptr() for t in [*net.parameters(), *net.buffers()]] == pointers
    assert [p.grad.data_ptr() for p in net.parameters()] == gradients
    state = torch.cat([t.reshape(-1) for t in [*net.parameters(), net[1].running_mean, net[1].running_var]])
    assert torch.equal(state.detach(), flat.vec)
    assert torch.equal(torch.cat([p.grad.reshape(-1) for p in net.parameters()]), flat.grad)


def test_gradients_equal_those_of_an_ordinary_module():
    plain, net, x = module(), module(), torch.randn(5, 1, 8, 8)
    flat = FlatModel(net)
    for m in (plain, net):
        m(x).square().mean().backward()
    torch.testing.assert_close(flat.grad, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]), rtol=0, atol=0)
    flat.zero_grad()
    assert all((p.grad == 0).all() for p in net.parameters())


def test_shared_and_frozen_parameters():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    net[1].weight = net[0].weight
    net[2].bias.requires_grad_(False)
    flat = FlatModel(net)
    assert [(t.name, t.trainable) for t in flat.layout.tensors] == [
        ("0.weight", True),
        ("2.weight", True),
        ("2.bias", False),
    ]
    assert net[1].weight is net[0].weight
    flat.array[:16] = 3.0
    assert (net[1].weight == 3.0).all()


def test_refusals():
    with pytest.raises(LocalError, match=r"tensor weight is torch\.float64"):
        FlatModel(nn.Linear(2, 2).double())
    with pytest.raises(LocalError, match="no trainable parameter"):
        FlatModel(nn.ReLU())
    with pytest.raises(LocalError, match="does not belong"):
        FlatModel(nn.Linear(2, 2), Layout.of([TensorSpec("w", (2, 2))]))
    flat = FlatModel(nn.Linear(2, 2))
    for wrong in (np.zeros(5, np.float32), np.zeros(6), np.zeros(12, np.float32)[::2]):
        with pytest.raises(LocalError, match=r"the float32\[6\] is not|expected a .*float32\[6\]"):
            flat.load(wrong)


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, (3, 1), groups=2), nn.Conv2d(6, 2, 1), nn.Flatten())


def test_channels_last_is_a_matter_of_memory_only():
    plain, turned = FlatModel(convolutional()), FlatModel(convolutional(), channels_last=True)
    assert turned.layout.hash == plain.layout.hash
    assert not np.array_equal(turned.array, plain.array)
    np.testing.assert_array_equal(turned.values(), plain.array)
    for (name, a), b in zip(plain.module.named_parameters(), turned.module.parameters(), strict=True):
        assert torch.equal(a, b), name
    x = np.arange(plain.layout.size, dtype=np.float32)
    turned.load(x)
    np.testing.assert_array_equal(turned.values(), x)
    images = torch.randn(2, 3, 8, 8)
    for flat in (plain, turned):
        flat.load(np.sin(x))
        flat.module(images).square().sum().backward()
    np.testing.assert_allclose(turned.in_order(turned.grad.numpy()), plain.grad.numpy(), rtol=1e-4, atol=1e-5)
    back = np.empty_like(x)
    turned.out_of_order(x, back)
    np.testing.assert_array_equal(turned.in_order(back), x)


def test_a_weight_that_may_be_looked_at_is_not_turned():
    class Standardised(nn.Conv2d):
        """Weight standardisation, which asks for its weight as a matrix."""

        def forward(self, x):
            return nn.functional.conv2d(
                x, self.weight / self.weight.view(len(self.weight), -1).std(1).view(-1, 1, 1, 1)
            )

    flat = FlatModel(nn.Sequential(Standardised(3, 4, 3)), channels_last=True)
    flat.module(torch.randn(1, 3, 8, 8)).sum().backward()
    np.testing.assert_array_equal(flat.values(), flat.array)
