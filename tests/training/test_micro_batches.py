"""training.memory = "low": a batch in parts is the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import training
from edgegossip.training.workload import micro_batches
from edgegossip.types import ConfigError
from tests.training.fakes import recipe

CNN = {"name": "cnn", "params": {"channels": [8, 8], "hidden": 16}}


@given(st.integers(1, 200), st.integers(1, 64))
def test_parts_are_the_whole_in_order(examples: int, at_a_time: int):
    taken = [k for part in micro_batches(examples, at_a_time) for k in range(examples)[part]]
    assert taken == list(range(examples))
    assert all(part.stop - part.start <= at_a_time for part in micro_batches(examples, at_a_time))


@pytest.mark.parametrize("batch", [3, 8, 30])
def test_an_update_is_that_of_the_whole_batch(batch: int):
    settings = {"batch_size": batch, "local_steps": 2, "lr": 0.05}
    whole, low = (
        training.build_workload(recipe(model=CNN, training={**settings, "memory": memory}), 0)
        for memory in ("normal", "low")
    )
    x = whole.initial(3)
    one, other = whole.local_update(x, 4), low.local_update(x, 4)
    np.testing.assert_allclose(other.delta, one.delta, atol=2e-6)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert whole.evaluate(x).accuracy == low.evaluate(x).accuracy


def test_in_int8_the_loss_is_the_same_and_the_gradient_but_for_its_rounding():
    settings = {"batch_size": 32, "precision": "int8", "momentum": 0.0, "weight_decay": 0.0}
    whole, low = (
        training.build_workload(recipe(model=CNN, training={**settings, "memory": memory}), 0)
        for memory in ("normal", "low")
    )
    x = whole.initial(3)
    one, other = whole.local_update(x, 4), low.local_update(x, 4)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    cosine = float(one.delta @ other.delta) / float(np.linalg.norm(one.delta) * np.linalg.norm(other.delta))
    assert cosine > 0.99
    assert np.linalg.norm(other.delta) == pytest.approx(np.linalg.norm(one.delta), rel=0.02)


def test_what_is_kept_does_not_grow_with_the_batch():
    kept: list[int] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        kept[-1] += t.nbytes
        return t

    for memory, batch in (("low", 8), ("low", 64), ("normal", 64)):
        board = training.build_workload(recipe(model=CNN, training={"batch_size": batch, "memory": memory}), 0)
        gradient, most = board._gradient, []

        def one_part(*given, gradient=gradient, most=most):
            kept.append(0)
            value = gradient(*given)
            most.append(kept[-1])
            return value

        board._gradient = one_part
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            board.local_update(board.initial(1), 0)
        kept.append(max(most))
        if memory == "low" and batch == 8:
            small = max(most)
        elif memory == "low":
            assert max(most) <= 1.05 * small
        else:
            assert max(most) > 4 * small


def test_a_layer_that_sees_the_whole_batch_is_refused():
    chosen = recipe(model={"name": "resnet20", "norm": "batchnorm"}, training={"memory": "low"})
    with pytest.raises(ConfigError, match=r"memory = .low.*8 examples at a time.*batch.*evonorm-s0"):
        training.layout_of(chosen)
