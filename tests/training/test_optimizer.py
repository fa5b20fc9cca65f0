"""FlatSgd against torch.optim.SGD; schedules at their edges."""

import pytest
import torch

from edgegossip.recipe import TrainingSection
from edgegossip.training.optimizer import FlatSgd
from edgegossip.training.schedule import learning_rate


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_equal_to_torch(momentum, nesterov, weight_decay):
    torch.manual_seed(0)
    x = torch.randn(1000)
    reference = x.clone().requires_grad_()
    theirs = torch.optim.SGD([reference], 0.1, momentum, weight_decay=weight_decay, nesterov=nesterov)
    ours = FlatSgd(1000, momentum, nesterov, weight_decay)
    for step in range(20):
        gradient = torch.randn(1000)
        lr = 0.1 / (1 + step)
        theirs.param_groups[0]["lr"] = lr
        reference.grad = gradient.clone()
        theirs.step()
        ours.step(x, gradient.clone(), lr)
    torch.testing.assert_close(x, reference.detach(), rtol=1e-6, atol=1e-6)


def test_nesterov_without_momentum_is_plain_sgd():
    x = torch.ones(3)
    FlatSgd(3, 0.0, True, 0.0).step(x, torch.full((3,), 2.0), 0.25)
    assert x.tolist() == [0.5, 0.5, 0.5]


def test_constant():
    assert {learning_rate(TrainingSection(lr=0.3), r, 10) for r in range(10)} == {0.3}


def test_step_drops_at_the_milestones():
    section = TrainingSection(lr=1.0, schedule="step", milestones=[0.5, 0.75], step_factor=0.1)
    rates = [learning_rate(section, r, 8) for r in range(8)]
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_falls_from_lr_through_half_to_nearly_zero():
    section = TrainingSection(lr=0.4, schedule="cosine")
    rates = [learning_rate(section, r, 100) for r in range(100)]
    assert rates[0] == 0.4
    assert rates[50] == pytest.approx(0.2)
    assert 0 < rates[99] < 0.001
    assert rates == sorted(rates, reverse=True)
    assert learning_rate(section, 150, 100) == pytest.approx(0.0)  # past the end it stays down
