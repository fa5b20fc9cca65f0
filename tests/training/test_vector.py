"""ModelVector: what travels, the layout's order, types, and what stays on the board."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip.training.vector import ModelVector, shared_tensors
from edgegossip.types import UsageError

DEVICES = [
    "cpu",
    *(["cuda"] if torch.cuda.is_available() else []),
    *(["mps"] if torch.backends.mps.is_available() else []),
]


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))


def names(vector: ModelVector) -> list[str]:
    return [t.name for t in vector.layout.tensors]


def test_parameters_come_first_then_float_buffers_and_no_integers() -> None:
    vector = ModelVector(module())
    parameters = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert names(vector) == [*parameters, "1.running_mean", "1.running_var"]
    assert vector.layout.trainable_size == 36 + 4 + 4 + 4 + 432 + 3
    assert vector.layout.size == vector.layout.trainable_size + 8
    assert set(vector.local_state()) == {"1.num_batches_tracked"} == set(vector.personal_state())


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_read_is_what_is_there_and_what_was_written(device: str) -> None:
    net = module().to(device)
    vector = ModelVector(net)
    x = vector.read()
    for name, view in vector.layout.views(x).items():
        np.testing.assert_array_equal(view, net.state_dict()[name].cpu().numpy())
    other = np.random.default_rng(0).random(vector.layout.size, dtype=np.float32)
    pointers = [t.data_ptr() for t in net.parameters()]
    vector.write(other)
    np.testing.assert_array_equal(vector.read(), other)
    assert [t.data_ptr() for t in net.parameters()] == pointers  # an optimiser's parameters stay its own
    vector.write(x)
    np.testing.assert_array_equal(vector.read(), x)


def test_the_vector_is_its_callers_alone() -> None:
    vector = ModelVector(module())
    x = vector.read()
    kept = x.copy()
    vector.write(np.zeros_like(x))
    np.testing.assert_array_equal(x, kept)
    vector.write(x)
    x += 1
    np.testing.assert_array_equal(vector.read(), kept)


def test_a_read_only_vector_is_written_without_a_warning_and_stays() -> None:
    vector = ModelVector(module())
    x = vector.read() * 0 + 0.5
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector.write(x)
    assert (vector.read() == 0.5).all() and (x == 0.5).all()


def test_channels_last_is_a_matter_of_memory_only() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, (3, 1), groups=2), nn.Conv2d(6, 2, 1))
    expected = ModelVector(plain).read()
    turned = plain.to(memory_format=torch.channels_last)
    assert not turned[0].weight.is_contiguous()
    vector = ModelVector(turned)
    np.testing.assert_array_equal(vector.read(), expected)
    vector.write(expected[::-1].copy())
    np.testing.assert_array_equal(vector.read(), expected[::-1])
    assert not turned[0].weight.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_travel_as_float32(dtype: torch.dtype) -> None:
    net = nn.Linear(5, 3).to(dtype)
    vector = ModelVector(net)
    x = vector.read()
    assert x.dtype == np.float32
    np.testing.assert_array_equal(vector.layout.views(x)["weight"], net.weight.detach().float().numpy())
    halves = np.arange(-9, 9, dtype=np.float32) / 2  # exact in each of these types
    vector.write(halves)
    assert net.weight.dtype == dtype and (vector.read() == halves).all()


def test_a_complex_parameter_travels_as_its_two_parts() -> None:
    net = nn.Module()
    net.w = nn.Parameter(torch.tensor([[1 + 2j, 3 - 4j]]))
    vector = ModelVector(net)
    assert vector.layout.tensors[0].shape == (1, 2, 2)
    assert vector.read().tolist() == [1, 2, 3, -4]
    vector.write(np.array([5, 6, 7, 8], np.float32))
    assert net.w.tolist() == [[5 + 6j, 7 + 8j]]


def test_a_tensor_of_two_names_travels_once_and_is_no_rest() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    vector = ModelVector(net)
    assert names(vector) == ["0.weight"] and vector.local_state() == {}
    vector.write(np.full(16, 3.0, np.float32))
    assert net[1].weight is net[0].weight and (net[1].weight == 3.0).all()


def test_frozen_parameters_stay_and_are_told_by_their_hash() -> None:
    net = module()
    assert ModelVector(net).base_hash() == ""
    net[0].requires_grad_(False)
    vector = ModelVector(net)
    assert names(vector)[:2] == ["1.weight", "1.bias"] and "0.weight" not in names(vector)
    assert {"0.weight", "0.bias"} <= set(vector.local_state()) and set(vector.personal_state()) == {
        "1.num_batches_tracked"
    }
    before = net[0].weight.clone()
    digest = vector.base_hash()
    vector.write(vector.read() + 1)
    assert torch.equal(net[0].weight, before) and vector.base_hash() == digest
    net[0].weight.data[0, 0, 0, 0] += 1e-6
    assert vector.base_hash() != digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_hash_knows_types_and_every_bit(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    digests = {ModelVector(net).base_hash(), ModelVector(net.to(dtype)).base_hash()}
    assert len(digests) == 2 and all(len(d) == 64 for d in digests)


def test_buffers_that_do_not_travel() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    net.register_buffer("scratch", torch.zeros(3), persistent=False)
    net.register_buffer("flags", torch.tensor([True]))
    net.register_buffer("empty", torch.zeros(0))
    net.register_buffer("mean", torch.zeros(2))
    vector = ModelVector(net)
    assert names(vector) == ["weight", "bias", "mean"]
    assert set(vector.local_state()) == {"mask", "flags", "empty"}


def test_share_and_keep() -> None:
    net = module()
    assert names(ModelVector(net, share=["3.*"])) == ["3.weight", "3.bias"]
    assert names(ModelVector(net, keep=["3.*", "1.running_*"])) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert names(ModelVector(net, share=["*.weight"], keep=["0.*"])) == ["1.weight", "3.weight"]
    kept = ModelVector(net, keep=["3.*"])
    assert {"3.weight", "3.bias", "1.num_batches_tracked"} == set(kept.personal_state())


@pytest.mark.parametrize(
    ("share", "keep", "words"),
    [
        (["3.wieght"], [], "share: no tensor of the model matches 3.wieght; did you mean 3.weight"),
        ([], ["head.*"], "keep: no tensor of the model matches head"),
        (["3.*"], ["3.*"], "nothing would travel"),
        (["1.running_*"], [], "nothing would travel"),
    ],
)
def test_patterns_that_fit_nothing_are_named(share: list[str], keep: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ModelVector(module(), share, keep)


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing would travel"):
        ModelVector(nn.ReLU())
    with pytest.raises(UsageError, match="nothing would travel"):
        ModelVector(module().requires_grad_(False))


def test_a_negative_running_variance_becomes_zero() -> None:
    net = module()
    vector = ModelVector(net)
    x = vector.read()
    vector.layout.views(x)["1.running_var"][:] = [-0.5, 0.0, 0.25, 1.0]
    vector.write(x)
    assert net[1].running_var.tolist() == [0.0, 0.0, 0.25, 1.0]


def test_a_tensor_that_was_replaced_is_found_and_another_shape_is_refused() -> None:
    net = module()
    vector = ModelVector(net)
    net[3].bias = nn.Parameter(torch.full((3,), 7.0))
    assert (vector.layout.views(vector.read())["3.bias"] == 7.0).all()
    net[3].bias = nn.Parameter(torch.zeros(4))
    with pytest.raises(UsageError, match=r"tensor 3\.bias was float32\[3\] at the join and is float32\[4\] now"):
        vector.read()
    net[3].bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(UsageError, match=r"3\.bias was float32\[3\] at the join and is float64\[3\] now"):
        vector.write(np.zeros(vector.layout.size, np.float32))
    net[3].bias = None
    with pytest.raises(UsageError, match=r"tensor 3\.bias was there at the join and is not"):
        vector.read()


def test_a_vector_of_another_size_or_type_is_refused() -> None:
    vector = ModelVector(nn.Linear(2, 2))
    for wrong in (np.zeros(5, np.float32), np.zeros(6), np.zeros(12, np.float32)[::2]):
        with pytest.raises(UsageError, match=r"the float32\[6\] is not|expected a .*float32\[6\]"):
            vector.write(wrong)  # type: ignore[arg-type]


def test_on_the_meta_device_there_is_a_layout_and_no_memory() -> None:
    here = ModelVector(module()).layout.hash
    with torch.device("meta"):
        there = shared_tensors(module())
        assert ModelVector(module()).layout.hash == here
    assert all(t.is_meta for _, t, _ in there)


def test_an_optimiser_goes_on_over_writes() -> None:
    """The values change under it; its own state and the parameters' identity stay."""
    net = nn.Linear(3, 1)
    vector, sgd = ModelVector(net), torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    for _ in range(2):
        sgd.zero_grad()
        net(torch.ones(1, 3)).sum().backward()
        vector.write(np.zeros(4, np.float32))
        sgd.step()
    assert vector.read() == pytest.approx(np.full(4, -0.1 * 1.5))


@pytest.mark.parametrize("name", ["enc.weight", "dec.weight"])
def test_every_name_of_a_tied_tensor_counts(name: str) -> None:
    model = nn.ModuleDict({"enc": nn.Linear(4, 4), "dec": nn.Linear(4, 4)})
    model["dec"].weight = model["enc"].weight
    kept = [t.name for t in ModelVector(model, keep=[name]).layout.tensors]
    assert kept == ["enc.bias", "dec.bias"]
    assert [t.name for t in ModelVector(model, share=[name]).layout.tensors] == ["enc.weight"]


def test_a_state_dict_that_lacks_what_travels_is_named() -> None:
    class Head(nn.Linear):
        def state_dict(self, *args: object, **options: object) -> object:
            return {"bias": self.bias}

    with pytest.raises(UsageError, match=r"state_dict\(\) lacks weight, which travels"):
        ModelVector(Head(2, 2))
