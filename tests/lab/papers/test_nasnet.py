"""NASNetMobile: its size and maps are those of Keras, with the norms that the package has."""

import pytest
import torch

from edgegossip.training.models.layers import without_values
from edgegossip.types import ConfigError
from lab.papers.nasnet import nasnet_mobile


@pytest.mark.parametrize(("pixels", "classes", "count"), [(224, 1000, 5_289_978), (32, 10, 5_289_978 - 990 * 1057)])
def test_trained_values_are_those_of_keras(pixels, classes, count):
    with without_values():
        model = nasnet_mobile((3, pixels, pixels), classes, "batchnorm")
    assert sum(p.numel() for p in model.parameters()) == count


def test_no_relu_follows_an_evonorm():
    with without_values():
        model = nasnet_mobile((3, 32, 32), 10, "range-evonorm")
    assert not any(isinstance(m, torch.nn.ReLU) for m in model.modules())


def test_it_trains_with_an_evonorm():
    torch.manual_seed(0)
    model = nasnet_mobile((1, 16, 16), 10, "evonorm-s0")
    loss = model(torch.randn(2, 1, 16, 16)).square().mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("pixels", "expected"),  # Keras: (n - 1) // 2 after the stem, then half of it, rounded up, a reduction
    [
        pytest.param((224, 224), ((56, 56), (28, 28), (28, 28), (14, 14), (7, 7)), marks=pytest.mark.slow),
        ((32, 7), ((8, 2), (4, 1), (4, 1), (2, 1), (1, 1))),
    ],
)
def test_maps_are_those_of_keras(pixels, expected):
    model = nasnet_mobile((3, *pixels), 10, "batchnorm")
    shapes = []
    for cell in model.cells:
        cell.register_forward_hook(lambda *of: shapes.append(tuple(of[2].shape[1:])))
    model.eval()(torch.zeros(1, 3, *pixels))
    stages = [[44], [88], [264] * 4, [352, *[528] * 4], [704, *[1056] * 4]]
    assert shapes == [(width, *size) for widths, size in zip(stages, expected, strict=True) for width in widths]


@pytest.mark.slow
def test_it_learns_a_batch():
    torch.manual_seed(0)
    model = nasnet_mobile((3, 32, 32), 4, "batchnorm")
    x, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    optimiser, losses = torch.optim.SGD(model.parameters(), 0.01), []
    for _ in range(3):
        optimiser.zero_grad()
        losses.append(torch.nn.functional.cross_entropy(model(x), labels))
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]


def test_it_needs_a_few_pixels():
    with pytest.raises(ConfigError, match="at least 3x3 pixels, not 2x8"):
        nasnet_mobile((3, 2, 8), 10, "batchnorm")
