"""model.share, model.keep and frozen parameters: what stays on a board is its own, in a process of
its own as among virtual boards, after a restart as before, and no codec touches it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip import training
from edgegossip.types import ConfigError, UsageError
from tests.training.fakes import recipe

KEPT = {"name": f"{__name__}:headed", "keep": ["head.*"]}


class Headed(nn.Module):
    """A frozen base, a body that travels, batch norm with a counter, a head, and a counter that
    each batch replaces by another tensor."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.base, self.body = nn.Linear(64, 24), nn.Linear(24, 16)
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, outputs)
        self.base.requires_grad_(False)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + len(x) * self.training
        x = torch.relu(self.norm(self.body(torch.relu(self.base(x.flatten(1))))))
        return self.head(x)


def headed(shape: tuple[int, ...], outputs: int, norm: str) -> nn.Module:
    return Headed(outputs)


def rounds(board: Any, x: Any, first: int, last: int) -> Any:
    for t in range(first, last):
        x = x + board.local_update(x, t).delta
    return x


def test_what_travels() -> None:
    layout = training.layout_of(recipe(model=KEPT))
    names = ["body.weight", "body.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    assert [t.name for t in layout.tensors] == names
    shared = training.layout_of(recipe(model={**KEPT, "keep": [], "share": ["body.*", "head.bias"]}))
    assert [t.name for t in shared.tensors] == ["body.weight", "body.bias", "head.bias"]
    with pytest.raises(ConfigError, match="headed: keep: no tensor of the model matches haed"):
        training.layout_of(recipe(model={**KEPT, "keep": ["haed.*"]}))


def test_a_head_learns_on_its_board_and_its_base_does_not() -> None:
    board: Any = training.build_workload(recipe(model=KEPT), 0)
    module = board._shared.vector.module
    base, head = module.base.weight.clone(), module.head.weight.clone()
    rounds(board, board.initial(1), 0, 2)
    assert torch.equal(module.base.weight, base) and not torch.equal(module.head.weight, head)


def test_what_stays_is_in_the_snapshot() -> None:
    chosen = recipe(model=KEPT)
    straight: Any = training.build_workload(chosen, 0)
    x = rounds(straight, straight.initial(1), 0, 3)
    kept = straight.snapshot()
    names = {"kept/head.weight", "kept/head.bias", "kept/norm.num_batches_tracked", "kept/seen"}
    assert names == {name for name in kept if name.startswith("kept/")} and kept["kept/norm.num_batches_tracked"] == 3
    assert kept["kept/seen"] == 3 * chosen.training.local_steps * chosen.training.batch_size
    copy = {name: array.copy() for name, array in kept.items()}
    expected = rounds(straight, x, 3, 5)
    assert all((kept[name] == copy[name]).all() for name in kept)
    resumed: Any = training.build_workload(chosen, 0)
    fresh = resumed.evaluate(x)
    resumed.restore(kept)
    assert resumed.evaluate(x).loss < fresh.loss  # the head is there again
    np.testing.assert_array_equal(rounds(resumed, x, 3, 5), expected)
    resumed.restore(kept)  # once more, while it holds the module
    np.testing.assert_array_equal(rounds(resumed, x, 3, 5), expected)
    for wrong in (
        {**kept, "kept/head.bias": np.zeros(3, np.float32)},
        {**kept, "kept/head.bias": kept["kept/head.bias"] * 1.0j},
    ):
        with pytest.raises(UsageError, match="not one of this workload: head.bias"):
            resumed.restore(wrong)
    with pytest.raises(UsageError, match="not one of this workload: head.weight"):
        resumed.restore({name: a for name, a in kept.items() if name != "kept/head.weight"})


def test_virtual_boards_of_one_process_are_those_of_many() -> None:
    """Each has a head, a counter and an optimiser of its own, although they share the module."""
    chosen = recipe(model=KEPT, training={"optimizer": "adam", "lr": 0.01}, run={"nodes": 3})
    apart: list[Any] = [training.build_workload(chosen, k) for k in range(3)]
    together: list[Any] = list(training.build_workloads(chosen))
    x = apart[0].initial(1)
    models = [[x] * 3, [x] * 3]
    for t in range(3):
        for boards, own in zip((apart, together), models, strict=True):
            for k, board in enumerate(boards):
                own[k] = own[k] + board.local_update(own[k], t).delta
                board.evaluate(own[k], 5)
    for k in range(3):
        np.testing.assert_array_equal(models[0][k], models[1][k])
        assert apart[k].evaluate(models[0][k]) == together[k].evaluate(models[1][k])
        one, other = apart[k].snapshot(), together[k].snapshot()
        assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    for k in range(3):  # what an artefact holds
        one, other = apart[k].state(models[0][k]), together[k].state(models[1][k])
        assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    heads = [together[k].snapshot()["kept/head.weight"] for k in range(3)]
    assert not (heads[0] == heads[1]).all() and not (heads[1] == heads[2]).all()


def test_what_export_builds_is_the_runs_own_base() -> None:
    chosen = recipe(model={**KEPT, "keep": []}, run={"seed": 5}, training={"device": "cpu"})
    board: Any = training.build_workload(chosen, 0)
    module: Any = training.build_model(chosen)
    assert torch.equal(module.base.weight, board._shared.vector.module.base.weight)
