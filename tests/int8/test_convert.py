import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8 import ConversionNotice, layers
from edgegossip.recipe import ModelSection
from edgegossip.training import models
from edgegossip.types import ConfigError


def build(name, norm="range-evonorm", **params):
    torch.manual_seed(1)
    return models.build(ModelSection(name=name, norm=norm, params=params), (3, 16, 16), 10)


def quiet(model, dw=16):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConversionNotice)
        return int8.convert(model, dw)


def step(model, x, labels, seed=3):
    torch.manual_seed(seed)
    loss = F.cross_entropy(model(x), labels)
    loss.backward()
    return loss.detach()


BATCH = torch.Generator().manual_seed(0)
X, LABELS = torch.randn(4, 3, 16, 16, generator=BATCH), torch.tensor([0, 3, 9, 3])


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "resnet18", "vgg11"])
def test_models_of_the_package_convert_whole_and_learn_like_fp32(name):
    model = build(name, **({"channels": [8, 16]} if name == "cnn" else {}))
    plain = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert int8.convert(model) is model
    assert int8.conversion(model).fp32 == ()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(t.dtype == torch.float32 for t in model.state_dict().values())
    ours, theirs = step(model, X, LABELS), step(plain, X, LABELS)
    assert abs(ours - theirs) < 0.05 * theirs
    similar = [
        F.cosine_similarity(p.grad.flatten(), q.grad.flatten(), 0)
        for p, q in zip(model.parameters(), plain.parameters(), strict=True)
        if q.grad.norm() > 1e-6
    ]
    assert torch.stack(similar).mean() > 0.93  # through the whole depth; layer by layer in test_layers


def test_a_batchnorm_model_becomes_range_evonorm_where_that_is_asked_for():
    model = build("resnet20", "batchnorm")
    weight = model[1][0].weight
    with pytest.warns(ConversionNotice, match="batchnorm became Range EvoNorm.* the ReLU after 10 of them"):
        int8.convert(model, norms="range")
    assert isinstance(model[1][0], layers.RangeEvoNorm) and isinstance(model[1][1], nn.Identity)
    assert model[1][0].gamma is weight
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert torch.isfinite(step(model, X, LABELS))


def test_what_cannot_be_converted_stays_and_is_named():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.InstanceNorm2d(4),
        nn.SiLU(),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    )
    with pytest.warns(
        ConversionNotice, match="stay fp32: 0 .dilation.; 1 .padding = 'same'.*2 .InstanceNorm2d has no int8 form"
    ):
        int8.convert(model)
    assert [name for name, _ in int8.conversion(model).fp32] == ["0", "1", "2", "3", "4", "5"]
    assert int8.conversion(model).int8 == ("7",)
    step(model, X, LABELS % 2)


def test_dw_other_than_8_and_16_is_refused():
    with pytest.raises(ConfigError, match="dw = 4"):
        int8.convert(nn.Linear(2, 2), dw=4)


def test_other_norms_than_kept_or_range_are_refused():
    with pytest.raises(ConfigError, match="norms = 'drop'.*choices: keep, range"):
        int8.convert(nn.Linear(2, 2), norms="drop")


def test_converting_again_changes_dw_alone():
    model = quiet(build("resnet20"))
    before = int8.conversion(model).int8
    int8.convert(model, dw=8)
    assert int8.conversion(model).int8 == before
    assert {m.dw for m in model.modules() if isinstance(m, (layers.Conv2d, layers.Linear))} == {8}


class Own(nn.Module):
    """A user's block with everything between the layers written as functions."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.Conv2d(8, 8, 3, 1, 1),
            nn.Conv2d(8, 8, 5, 1, 2, groups=8),
        )
        self.end = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.first(x))
        y = self.second(x)
        y += x
        z = F.max_pool2d(self.third(y) + F.pad(y[:, :4], (0, 0, 0, 0, 0, 4)), 2)
        return self.end(torch.cat([z, z * 0.5], 2).mean((2, 3)))


def test_users_own_functions_between_layers_work():
    model = Own()
    plain = copy.deepcopy(model)
    quiet(model)
    step(model, X, LABELS % 5)
    step(plain, X, LABELS % 5)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert F.cosine_similarity(p.grad.flatten(), q.grad.flatten(), 0) > 0.97


def test_training_resumes_from_a_checkpoint_bit_for_bit():
    def train(model, optimizer, start, stop):
        for k in range(start, stop):
            optimizer.zero_grad()
            step(model, X, LABELS, seed=k)
            optimizer.step()

    def empty_quantised():
        model = quiet(build("cnn", channels=[8, 8]))
        return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)

    one, optimizer = empty_quantised()
    train(one, optimizer, 0, 3)
    kept = copy.deepcopy((one.state_dict(), optimizer.state_dict()))
    train(one, optimizer, 3, 6)
    other, optimizer = empty_quantised()
    other.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    train(other, optimizer, 3, 6)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    plain = build("cnn", channels=[8, 8])
    plain.load_state_dict(one.state_dict())  # fp32 master weights
