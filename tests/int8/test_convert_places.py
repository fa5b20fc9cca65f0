"""`convert` and what surrounds a layer: the places where it stands, its hooks, its mode, what is
frozen, earlier calls."""

import copy
import gc
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from edgegossip import int8
from edgegossip.int8 import ConversionNotice, layers

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def quiet(model, dw=16):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConversionNotice)
        return int8.convert(model, dw, norms="range")


def kinds(model):
    return [type(model[k]).__name__ for k in range(len(model))]  # iterating would leave out what comes twice


class Two(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(self.first(x))


def test_a_shared_relu_goes_after_every_batchnorm():
    act = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), act, nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), act)
    with pytest.warns(ConversionNotice, match="in 1, 4; the ReLU after 2 of them"):
        int8.convert(model, norms="range")
    assert kinds(model) == ["Conv2d", "RangeEvoNorm", "Identity"] * 2
    assert model[2] is model[5] and int8.conversion(model).dropped == ("2", "5")


@pytest.mark.parametrize("alone_first", [False, True])
def test_a_shared_relu_stays_where_no_batchnorm_is_before_it(alone_first):
    act = nn.ReLU()
    normed, plain = [nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), act], [nn.Conv2d(8, 8, 1), act]
    model = quiet(nn.Sequential(*plain, *normed) if alone_first else nn.Sequential(*normed, *plain))
    ours = ["Conv2d", "RangeEvoNorm", "Identity"]
    assert kinds(model) == (["Conv2d", "ReLU", *ours] if alone_first else [*ours, "Conv2d", "ReLU"])
    relu = model[1 if alone_first else 4]
    assert relu is act and type(relu) is layers.ReLU


def test_a_batchnorm_of_two_parents_is_one_norm_that_learns_from_both():
    bn = nn.BatchNorm2d(8)
    model = Two(nn.Sequential(nn.Conv2d(3, 8, 1), bn), nn.Sequential(nn.Conv2d(8, 8, 1), bn))
    quiet(model)
    assert model.first[1] is model.second[1] and type(model.first[1]) is layers.RangeEvoNorm
    assert len(list(model.parameters())) == 7  # one v
    assert int8.conversion(model).replaced == (("first.1", "batchnorm"), ("second.1", "batchnorm"))
    model(X).sum().backward()
    assert model.first[1].v.grad.abs().sum() > 0


def test_a_model_that_knows_its_parent_converts():
    model = Two(nn.Conv2d(3, 4, 1), nn.Module())
    model.second.back = model
    assert int8.conversion(quiet(model)).int8 == ("first",)


@pytest.mark.parametrize("trains", [(False, False), (True, False), (False, True), (True, True)])
def test_what_is_frozen_stays_frozen(trains):
    bn = nn.BatchNorm2d(8)
    bn.weight.requires_grad_(trains[0])
    bn.bias.requires_grad_(trains[1])
    norm = quiet(nn.Sequential(bn))[0]
    assert (norm.gamma.requires_grad, norm.beta.requires_grad, norm.v.requires_grad) == (*trains, any(trains))


def test_a_frozen_backbone_learns_nothing():
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).requires_grad_(False)
    model = quiet(nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)))
    model(X).sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"3.weight", "3.bias"}


@pytest.mark.parametrize("mode", [False, True])
def test_mode_stays(mode):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()).train(not mode)
    model[1].train(mode)
    model[2].train(mode)
    assert [m.training for m in quiet(model)] == [not mode, mode, mode]


def test_hooks_go_over_and_their_handles_remove_them():
    model, seen = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()), []
    handles = [
        model[1].register_forward_pre_hook(lambda m, x: seen.append(("before", m))),
        model[1].register_forward_hook(lambda m, x, y, **named: seen.append(("after", m)), with_kwargs=False),
        model[1].register_full_backward_hook(lambda m, *_: seen.append(("backward", m))),
        model[2].register_forward_hook(lambda m, x, y: seen.append(("after", m))),
    ]
    quiet(model)
    model(X).sum().backward()
    norm, nothing = model[1], model[2]
    assert type(norm) is layers.RangeEvoNorm and type(nothing) is nn.Identity
    assert seen == [("before", norm), ("after", norm), ("after", nothing), ("backward", norm)]
    seen.clear()
    for handle in handles:
        handle.remove()
    model(X).sum().backward()
    assert seen == []


def test_hooks_of_the_state_go_over():
    model, seen = nn.Sequential(nn.BatchNorm2d(8)), []
    model[0].register_state_dict_pre_hook(lambda m, *_: seen.append(("saving", m)))
    model[0].register_load_state_dict_pre_hook(lambda m, *_: seen.append(("loading", m)))
    model[0].register_load_state_dict_post_hook(lambda m, *_: seen.append(("loaded", m)))
    quiet(model)
    gc.collect()  # the batchnorm
    model.load_state_dict(model.state_dict())
    assert seen == [("saving", model[0]), ("loading", model[0]), ("loaded", model[0])]


def test_a_batchnorm_whose_weight_is_computed_stays_and_is_named():
    model = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())
    prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.warns(ConversionNotice, match="stay fp32: 0 .its weight or bias is no parameter of its own"):
        int8.convert(model, norms="range")
    assert kinds(model) == ["BatchNorm2d", "ReLU"] and int8.conversion(model).dropped == ()


def test_an_optimizer_made_before_trains_all_but_v():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    quiet(model)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    y = model(X)
    (y * torch.randn(y.shape)).sum().backward()
    optimizer.step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"0.weight", "0.bias", "1.gamma", "1.beta"}


def test_a_model_with_a_converted_part_tells_of_the_rest():
    part = quiet(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    model = Two(part, nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)))
    with pytest.warns(ConversionNotice, match="became Range EvoNorm in second.1$"):
        int8.convert(model, norms="range")
    found = int8.conversion(model)
    assert found.replaced == (("second.1", "batchnorm"),) and found.dropped == ()
    assert found.int8 == ("first.0", "first.1", "second.0", "second.1")
