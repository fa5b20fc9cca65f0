"""A model's whole state by name: what travels, from the vector, and what stays, whatever its
type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip.training.vector import ModelVector, whole_state
from edgegossip.types import UsageError


class Everything(nn.Module):
    """A tensor of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.tied = nn.Linear(3, 2)
        self.tied.weight = self.body.weight
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 2)
        self.base = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)
        self.wave = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
        self.fp16 = nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.brain = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.fp64 = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.nothing = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("table", torch.tensor([1, 2, 3]))
        self.register_buffer("low", torch.full((2,), -torch.inf))
        self.register_buffer("frozen_brain", torch.tensor([0.1, 3e38], dtype=torch.bfloat16), persistent=True)
        self.register_buffer("scratch", torch.zeros(5), persistent=False)


TRAVELS = [
    "wave",
    "fp16",
    "brain",
    "fp64",
    "body.weight",
    "body.bias",
    "tied.bias",
    "norm.weight",
    "norm.bias",
    "frozen_brain",
    "norm.running_mean",
    "norm.running_var",
]
STAYS = [
    "base",
    "nothing",
    "mask",
    "table",
    "low",
    "tied.weight",
    "norm.num_batches_tracked",
    "head.weight",
    "head.bias",
]


def test_the_fate_of_every_kind_of_tensor() -> None:
    """docs/models.md has the table."""
    model = Everything()
    vector = ModelVector(model, keep=["head.*"])
    assert {t.name for t in vector.layout.tensors} == set(TRAVELS)
    state = whole_state(model, vector.layout, vector.read())
    assert set(state) == {*TRAVELS, *STAYS} and set(list(state)[: len(TRAVELS)]) == set(TRAVELS)
    assert "scratch" not in state
    assert {name: str(state[name].dtype) for name in ("wave", "fp16", "brain", "fp64", "mask", "table", "low")} == {
        "wave": "complex64",
        "fp16": "float32",
        "brain": "float32",
        "fp64": "float32",
        "mask": "bool",
        "table": "int64",
        "low": "float32",
    }
    assert state["nothing"].shape == (0, 4) and state["norm.num_batches_tracked"].shape == ()


def test_the_state_of_a_vector_loads_into_a_fresh_model_strictly() -> None:
    torch.manual_seed(1)
    model = Everything()
    vector = ModelVector(model, keep=["head.*"])
    x = np.arange(vector.layout.size, dtype=np.float32)
    state = whole_state(model, vector.layout, x)
    torch.manual_seed(2)
    fresh = Everything()
    fresh.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    np.testing.assert_array_equal(ModelVector(fresh, keep=["head.*"]).read(), x)
    assert torch.equal(fresh.head.weight, model.head.weight)
    assert torch.equal(fresh.tied.weight, fresh.body.weight)
    np.testing.assert_array_equal(state["tied.weight"], state["body.weight"])


def test_what_travels_is_no_copy_and_what_stays_alone_can_be_asked_for() -> None:
    model = Everything()
    vector = ModelVector(model, keep=["head.*"])
    x = vector.read()
    state = whole_state(model, vector.layout, x)
    assert np.shares_memory(state["body.weight"], x) and np.shares_memory(state["wave"], x)
    assert set(whole_state(model, vector.layout, None)) == set(STAYS) - {"tied.weight"}


def test_a_parameter_of_whole_numbers_cannot_be_trained() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.steps = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)

    assert [t.name for t in ModelVector(Odd()).layout.tensors] == ["weight"]
    odd = Odd()
    odd.weight.requires_grad_(False)
    with pytest.raises(UsageError, match="nothing would travel"):
        ModelVector(odd)
