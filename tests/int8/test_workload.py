"""`training.precision = "int8"` in a recipe."""

import warnings

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.int8 import ConversionNotice, layers
from edgegossip.types import ConfigError
from tests.training.fakes import recipe

CNN = {"name": "cnn", "params": {"channels": [8, 8], "hidden": 16}}
INT8 = {"precision": "int8", "batch_size": 16, "lr": 0.05}


def test_a_board_trains_in_int8_and_learns():
    chosen = recipe(model=CNN, training={**INT8, "local_steps": 40})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing to tell: every layer converts and no norm changes
        board = training.build_workload(chosen, 0)
    assert any(isinstance(m, layers.Conv2d) for m in board._shared.vector.module.modules())
    x = board.initial(1)
    before = board.evaluate(x).accuracy
    for round in range(2):
        x = x + board.local_update(x, round).delta
    assert board.evaluate(x).accuracy > max(0.6, before)


@pytest.mark.parametrize("dw", [16, 8])
def test_the_same_seed_gives_the_same_bits(dw):
    chosen = recipe(model=CNN, training={**INT8, "dw": dw})
    boards = [training.build_workload(chosen, 1) for _ in range(2)]
    x = boards[0].initial(1)
    first, second = (board.local_update(x, 3).delta for board in boards)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first).max() > 0
    assert (boards[0].local_update(x, 4).delta != first).any()


def test_layout_and_start_are_those_of_fp32():
    plain, int8 = (recipe(model=CNN, training={"precision": p}) for p in ("fp32", "int8"))
    assert training.layout_of(plain).hash == training.layout_of(int8).hash
    x, y = (training.build_workload(chosen, 0).initial(3) for chosen in (plain, int8))
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("norm", ["batchnorm", "groupnorm"])
def test_batch_norm_and_group_norm_are_kept(norm):
    chosen = recipe(model={"name": "resnet20", "norm": norm}, training=INT8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        board = training.build_workload(chosen, 0)
    plain = recipe(model={"name": "resnet20", "norm": norm})
    assert training.layout_of(plain).hash == board.layout.hash


def test_evonorm_s0_becomes_range_evonorm_with_a_notice():
    chosen = recipe(model={"name": "resnet20", "norm": "evonorm-s0"}, training=INT8)
    with pytest.warns(ConversionNotice, match='"evonorm-s0" became "range-evonorm"'):
        board = training.build_workload(chosen, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert training.layout_of(chosen).hash == board.layout.hash
    ours = recipe(model={"name": "resnet20", "norm": "range-evonorm"})
    assert training.layout_of(ours).hash == board.layout.hash


def test_other_words_and_widths_are_refused():
    with pytest.raises(ConfigError, match="training.precision = .int4.*did you mean int8"):
        recipes.from_dict({"training": {"precision": "int4"}})
    with pytest.raises(ConfigError, match="training.dw = 12.*16, 8"):
        recipes.from_dict({"training": {"dw": 12}})
