"""What plain torch code does around int8 layers: layers that write in place, checkpoints, gradients
of what lies between."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from edgegossip import int8
from edgegossip.int8 import functional, norms
from edgegossip.types import UsageError


def converted(*layers):
    return int8.convert(nn.Sequential(*layers))


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU6(True),
        nn.SiLU(True),
        nn.Hardswish(True),
        nn.LeakyReLU(0.1, True),
        nn.Hardtanh(inplace=True),
        nn.Dropout(0.5, True),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize(
    "before",
    [
        lambda: (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)),
        lambda: (nn.Conv2d(3, 8, 3),),
        lambda: (nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)),
        lambda: (nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1)),
        lambda: (nn.Flatten(), nn.Linear(3 * 49, 8)),
    ],
    ids=["norm", "conv", "max", "average", "linear"],
)
@pytest.mark.filterwarnings("ignore::edgegossip.int8.ConversionNotice")
def test_a_layer_may_write_in_place(layer, before):
    """Bit for bit what the same layer gives with memory of its own."""
    model, x = converted(*before(), layer), torch.randn(4, 3, 7, 7)
    found = []
    for inplace in (True, False):
        layer.inplace = inplace
        torch.manual_seed(1)
        model.zero_grad()
        y = functional.dequantise(model(x))
        (y * torch.randn(y.shape)).sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
    assert len(found[0]) > 2
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_both_times(reentrant):
    model, x = converted(nn.Linear(64, 64), nn.Dropout(0.5)), torch.ones(1, 64, requires_grad=True)
    y = checkpoint(model, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(y[0] != 0, model[0].bias.grad != 0)
    assert 0 < int((y != 0).sum()) < 64


def test_evaluating_draws_nothing():
    model = converted(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.no_grad():
        model(torch.ones(2, 3, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)


def branches():
    """A convolution's result and what is made of it in two ways, the norm first."""
    torch.manual_seed(2)
    conv, norm = int8.convert(nn.Conv2d(3, 8, 3, padding=1)), int8.convert(norms.RangeEvoNorm(8))
    other, x = int8.convert(nn.Conv2d(8, 8, 1)), torch.randn(2, 3, 8, 8)

    def both(y):
        return (norm(y) + other(y)).sum()

    return conv(x), both


def test_a_gradient_between_layers_is_whole_when_it_is_asked_for_before():
    y, both = branches()
    y.retain_grad()
    asked = torch.autograd.grad(both(y), y)[0]
    y, both = branches()
    part = torch.autograd.grad(functional.dequantise(y).sum() + both(y.detach().requires_grad_()), y)[0]
    y, both = branches()
    seen = []
    y.register_hook(seen.append)
    both(y).backward()
    assert torch.equal(asked, seen[0])
    assert torch.equal(part, torch.ones_like(part))


@pytest.mark.parametrize(
    "ask",
    [
        lambda y, loss: y.retain_grad(),
        lambda y, loss: y.register_hook(print),
        lambda y, loss: torch.autograd.grad(loss, y),
        lambda y, loss: torch.autograd.grad(loss, inputs=[y]),
    ],
    ids=["retain_grad", "register_hook", "grad", "grad of a list"],
)
def test_a_gradient_that_a_norm_took_over_is_refused_not_halved(ask):
    y, both = branches()
    loss = both(y)
    with pytest.raises(UsageError, match="before the norm"):
        ask(y, loss)


@pytest.mark.parametrize("kind", ["half", "double", "bfloat16"])
def test_parameters_of_another_type_are_refused(kind):
    for model, x in (
        (converted(nn.Conv2d(3, 4, 3)), torch.ones(1, 3, 5, 5)),
        (converted(nn.Linear(3, 4)), torch.ones(1, 3)),
    ):
        with pytest.raises(UsageError, match="float32"):
            getattr(model, kind)()(x)


def test_parameters_that_are_not_in_memory_are_refused():
    with pytest.raises(UsageError, match="on meta"):
        converted(nn.Linear(3, 2)).to("meta")(torch.ones(2, 3))


def test_wrong_shapes_are_named():
    conv, linear = int8.convert(nn.Conv2d(4, 4, 3, groups=2)), int8.convert(nn.Linear(3, 2))
    with pytest.raises(UsageError, match="takes 4 channels, not 3"):
        conv(torch.ones(1, 3, 5, 5))
    with pytest.raises(UsageError, match="2 x 5 is smaller than the kernel of 3 x 3"):
        conv(torch.ones(1, 4, 2, 5))
    with pytest.raises(UsageError, match="takes 3 features, not 4"):
        linear(torch.ones(2, 4))
