"""The local optimiser: SGD to the bit, parameter groups, its state in a snapshot; schedules at
their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from edgegossip.recipe import TrainingSection
from edgegossip.training import optimizer as optimizers
from edgegossip.training.schedule import Plateau, learning_rate
from edgegossip.types import ConfigError, UsageError


def layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(7, 7) for _ in range(count)))


@pytest.mark.parametrize("params", [{}, {"dampening": 0.0}])  # ours, and torch's
@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, True), (0.9, False), (0.9, True)])
def test_sgd_is_this_formula_to_the_bit(
    momentum: float, nesterov: bool, weight_decay: float, count: int, params: dict[str, float]
) -> None:
    """g <- g + weight_decay x; m <- momentum m + g; x <- x - lr (g + momentum m), or x - lr m."""
    net = layers(count)
    ours = [p.detach().clone() for p in net.parameters()]
    memory = [torch.zeros_like(p) for p in ours]
    section = TrainingSection(
        lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, optimizer_params=params
    )
    made = optimizers.make(section, net)
    assert isinstance(made, torch.optim.SGD if params else optimizers.Sgd)
    for step in range(8):
        lr = 0.1 / (1 + step)
        optimizers.set_rate(made, lr, section.lr)
        for p, x, m in zip(net.parameters(), ours, memory, strict=True):
            gradient = torch.randn(x.shape)
            p.grad = gradient.clone()
            if weight_decay:
                gradient.add_(x, alpha=weight_decay)
            if momentum:
                m.mul_(momentum).add_(gradient)
                gradient = gradient.add_(m, alpha=momentum) if nesterov else m
            x.add_(gradient, alpha=-lr)
        made.step()
    assert all(torch.equal(p, x) for p, x in zip(net.parameters(), ours, strict=True))


def test_sgd_goes_on_where_torchs_was_and_leaves_unused_parameters_alone() -> None:
    net, other = layers(2), layers(2)
    torchs = optimizers.make(TrainingSection(optimizer_params={"dampening": 0.0}), net)
    ours = optimizers.make(TrainingSection(), other)
    steps(net, torchs, 1)
    other.load_state_dict(net.state_dict())
    optimizers.restore(ours, optimizers.snapshot(torchs, own=False), own=False)
    assert optimizers.snapshot(ours, own=False).keys() == optimizers.snapshot(torchs, own=False).keys()
    unused = other[1].weight.clone()
    for made, module in ((torchs, net), (ours, other)):
        made.zero_grad()
        for p in module[0].parameters():
            p.grad = torch.ones_like(p)
        made.step()
    assert torch.equal(other[1].weight, unused)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.scale = nn.Linear(4, 4), nn.LayerNorm((2, 4)), nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)


def test_weight_decay_may_leave_norms_and_biases_alone() -> None:
    net = Normed()
    (only,) = optimizers.make(TrainingSection(weight_decay=0.5), net).param_groups
    assert only["weight_decay"] == 0.5 and len(only["params"]) == 5
    decayed, free = optimizers.make(TrainingSection(weight_decay=0.5, decay="weights"), net).param_groups
    assert decayed["params"] == [net.body.weight] and decayed["weight_decay"] == 0.5
    assert {id(p) for p in free["params"]} == {
        id(p) for p in (net.body.bias, net.norm.weight, net.norm.bias, net.scale)
    }
    assert free["weight_decay"] == 0.0


def test_parameters_go_to_torch() -> None:
    params = {"betas": [0.5, 0.6], "eps": 1e-3}
    made = optimizers.make(TrainingSection(optimizer="adamw", optimizer_params=params, weight_decay=0.1), layers(1))
    assert isinstance(made, torch.optim.AdamW)
    (group,) = made.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.5, 0.6), 1e-3, 0.1)
    with pytest.raises(ConfigError, match="training.optimizer_params of adam: .*beta"):
        optimizers.make(TrainingSection(optimizer="adam", optimizer_params={"betas": [2.0, 0.9]}), layers(1))


def steps(net: nn.Module, made: optimizers.Optimizer, seed: int, count: int = 3) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        made.step()


class Listing(torch.optim.Optimizer):
    """Keeps what is no tensor: a list of past gradients, as L-BFGS does."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                past = self.state[p].setdefault("past", [])
                past.append(p.grad.clone())
                p.add_(sum(past), alpha=-group["lr"])


class Counting(Listing):
    """Keeps a count of steps in its groups, as optimisers without a schedule do, beside a
    function."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["taken"] = np.int64(group.get("taken", 0) + 1)
            group["rule"] = lambda taken: 0.1 / taken
            group["lr"] = group["rule"](int(group["taken"]))
        super().step()


class Odd(Listing):
    def state_dict(self) -> dict[str, object]:  # type: ignore[override]
        return {**super().state_dict(), "state": {0: {"past": object()}}}


def counting(groups: object, lr: float) -> Counting:
    return Counting(groups, lr)


def listing(groups: object, lr: float) -> Listing:
    return Listing(groups, lr)


def broken(groups: object, lr: float) -> str:
    return "no optimiser"


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "rmsprop", f"{__name__}:listing", f"{__name__}:counting"])
def test_a_snapshot_goes_on_bit_for_bit(kind: str) -> None:
    section = TrainingSection(optimizer=kind, optimizer_params={"amsgrad": True} if kind == "adam" else {})
    net, other = layers(2), layers(2)
    made, fresh = optimizers.make(section, net), optimizers.make(section, other)
    steps(net, made, 1)
    kept = optimizers.snapshot(made, own=":" in kind)
    assert kept and all(isinstance(array, np.ndarray) and array.dtype.kind in "fiu" for array in kept.values())
    frozen = {name: array.copy() for name, array in kept.items()}
    other.load_state_dict(net.state_dict())
    steps(net, made, 2)
    assert all((kept[name] == frozen[name]).all() for name in kept)  # it does not change any more
    optimizers.restore(fresh, kept, own=":" in kind)
    steps(other, fresh, 2)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_kept() -> None:
    with pytest.raises(UsageError, match=r"training\.optimizer, a Odd, cannot be kept: it.*past'\] is a object"):
        optimizers.snapshot(Odd(layers(1).parameters(), 0.1), own=True)


def test_bfloat16_state_survives() -> None:
    net = layers(1).to(torch.bfloat16)
    made = optimizers.make(TrainingSection(), net)
    steps(net, made, 1)
    kept = optimizers.snapshot(made, own=False)
    assert kept["optimizer/0/momentum_buffer"].dtype == np.float32
    fresh = optimizers.make(TrainingSection(), net)
    optimizers.restore(fresh, kept, own=False)
    again = fresh.state_dict()["state"][0]["momentum_buffer"]
    assert again.dtype == torch.bfloat16 and torch.equal(again, made.state_dict()["state"][0]["momentum_buffer"])


def test_a_function_that_gives_no_optimiser_is_named() -> None:
    with pytest.raises(UsageError, match=r"broken must return a torch\.optim\.Optimizer, not str"):
        optimizers.make(TrainingSection(optimizer=f"{__name__}:broken"), layers(1))


def test_groups_of_ones_own_keep_their_proportion() -> None:
    net = layers(2)
    made = torch.optim.SGD([{"params": net[0].parameters(), "lr": 0.01}, {"params": net[1].parameters()}], lr=0.1)
    for lr in (0.05, 0.1, 0.2):
        optimizers.set_rate(made, lr, 0.1)
        assert [g["lr"] for g in made.param_groups] == [pytest.approx(lr / 10), lr]


def test_constant() -> None:
    assert {learning_rate(TrainingSection(lr=0.3), r, 10) for r in range(10)} == {0.3}


def test_step_drops_at_the_milestones() -> None:
    section = TrainingSection(lr=1.0, schedule="step", milestones=[0.5, 0.75], step_factor=0.1)
    rates = [learning_rate(section, r, 8) for r in range(8)]
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_step_drops_each_so_many_rounds_however_long_the_run_is() -> None:
    section = TrainingSection(lr=1.0, schedule="step", step_rounds=3, step_factor=0.5)
    for rounds in (8, 1000):
        assert [learning_rate(section, r, rounds) for r in range(8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_cosine_falls_from_lr_through_half_to_nearly_zero() -> None:
    section = TrainingSection(lr=0.4, schedule="cosine")
    rates = [learning_rate(section, r, 100) for r in range(100)]
    assert rates[0] == 0.4
    assert rates[50] == pytest.approx(0.2)
    assert 0 < rates[99] < 0.001
    assert rates == sorted(rates, reverse=True)
    assert learning_rate(section, 150, 100) == pytest.approx(0.0)  # past the end it stays down


def test_one_cycle_is_torchs() -> None:
    section = TrainingSection(lr=0.4, schedule="one-cycle")
    rates = [learning_rate(section, r, 1000) for r in range(1001)]
    p = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([p], lr=0.4)
    theirs = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.4, total_steps=1001, cycle_momentum=False)
    for rate in rates:
        assert rate == pytest.approx(sgd.param_groups[0]["lr"], abs=1e-3)  # torch's turns a step earlier
        sgd.step()
        theirs.step()
    assert rates[0] == pytest.approx(0.4 / 25) and max(rates) == pytest.approx(0.4) and rates.index(max(rates)) == 300
    assert rates[-1] == pytest.approx(0.4 / 250_000)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step", "one-cycle"])
def test_the_rate_warms_up_and_then_the_schedule_begins(schedule: str) -> None:
    section = TrainingSection(lr=1.0, schedule=schedule, warmup=4)
    rates = [learning_rate(section, r, 24) for r in range(24)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    plain = TrainingSection(lr=1.0, schedule=schedule)
    assert rates[4:] == [learning_rate(plain, r, 20) for r in range(20)]
    assert learning_rate(TrainingSection(lr=1.0, warmup=50), 5, 10) == pytest.approx(6 / 51)  # longer than the run


def test_a_plateau_drops_the_rate_when_the_mean_of_a_window_is_no_better() -> None:
    made = Plateau.of(TrainingSection(schedule="plateau", plateau_rounds=2, step_factor=0.5), 100)
    assert made is not None and Plateau.of(TrainingSection(), 100) is None
    scales = []
    for loss in (4.0, 2.0, 1.0, 3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0):  # means 3, 2, 2, 1, 1
        made.take(loss)
        scales.append(made.scale)
    assert scales == [1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]
    made.take(7.0)
    hardly = Plateau(1, 0.5)
    for loss, scale in ((1.0, 1.0), (0.99995, 0.5), (0.9998, 0.5)):  # a ten thousandth is the least that counts
        hardly.take(loss)
        assert hardly.scale == scale
    other = Plateau(2, 0.5)
    other.restore(made.snapshot())
    assert other == made and other.losses == [7.0]
    for wrong in (None, np.zeros(1), np.zeros(4), np.zeros(3, np.float32)):
        with pytest.raises(UsageError, match="not one of this workload"):
            other.restore(wrong)
    assert math.isinf(Plateau.of(TrainingSection(schedule="plateau"), 100).best)  # type: ignore[union-attr]
