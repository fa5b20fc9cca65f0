"""Data from which nothing can be learnt, at whatever learning rate: said before anybody trains."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.recipe import DataSection
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.training.data import open_data
from edgegossip.training.data.doubts import doubts, sizes
from edgegossip.types import DataError, UsageError
from tests.training.fakes import recipe

RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.standard_normal((200, 3)).astype(np.float32)
FAINT = RANDOM.integers(11, 14, (200, 1, 8, 8)).astype(np.uint8)  # 12 bits in a picture of 16
HUGE = NORMAL * np.array([1, 5, 1], np.float32) + np.array([0, 1013, 0], np.float32)
CLASSES, VALUES = np.arange(200) % 2, RANDOM.standard_normal(200).astype(np.float32)


@pytest.fixture
def section(tmp_path):
    def saved(inputs, targets, **keys) -> DataSection:
        np.savez(tmp_path / "data.npz", train_inputs=inputs, train_targets=targets)
        return DataSection(**{"name": "npz", "dir": str(tmp_path), "partition": "local", **keys})

    return saved


@pytest.mark.parametrize(
    ("inputs", "targets", "keys", "said"),
    [
        (np.full((200, 3), 255, np.float32), CLASSES, {}, "every value is 255.0 in the 64 that were looked at"),
        (np.tile(NORMAL[:1], (20, 1)), CLASSES[:20], {}, "every input is the same, and nothing can be told apart"),
        (np.full((200, 1, 8, 8), 255, np.uint8), CLASSES, {}, "every value is 255"),
        (np.ones((200, 5), np.int64), CLASSES, {}, "every value is 1"),
        (FAINT, CLASSES, {}, "inputs hardly differ: they are 11 to 13, .* data.params.range"),
        (HUGE, CLASSES, {}, r"channel 2 of 3 has values of about 1\.01e\+03 .* set data\.normalise = board"),
        (NORMAL, 3e5 + 1e4 * VALUES, {}, r"targets are of about 3\.01e\+05, .* subtract a constant and divide"),
        (NORMAL, np.ones(200, np.float32), {}, "every target is the same"),
    ],
)
def test_what_leaves_nothing_to_learn_is_said(section, inputs, targets, keys, said) -> None:
    data = open_data(section(inputs, targets, **keys))
    (found,) = doubts(data.train, data.about)
    assert re.search(said, found)


@pytest.mark.parametrize(
    ("inputs", "targets", "keys"),
    [
        (NORMAL, CLASSES, {}),
        (NORMAL, 20 * VALUES, {}),
        (HUGE, CLASSES, {"normalise": "board"}),
        (HUGE, CLASSES, {"normalise": "together"}),
        (HUGE, CLASSES, {"mean": [0.0, 1013.0, 0.0], "std": [1.0, 5.0, 1.0]}),
        (FAINT, CLASSES, {"normalise": "board"}),
        (np.eye(200, dtype=np.float32), CLASSES, {}),  # a word in a bag of 200
        (NORMAL[:1], CLASSES[:1], {"classes": 2}),
    ],
)
def test_of_other_data_nothing_is_said(section, inputs, targets, keys) -> None:
    data = open_data(section(inputs, targets, **keys))
    assert doubts(data.train, data.about) == []


def test_the_column_is_named_that_is_far_too_large(tmp_path) -> None:
    (tmp_path / "train.csv").write_text("hPa,C,rain\n" + "".join(f"{1000 + k},{k % 30},{k % 2}\n" for k in range(90)))
    keys = {"partition": "local", "params": {"target": "rain"}, "classes": 2}
    data = open_data(DataSection(**{"name": "csv", "dir": str(tmp_path), **keys}))
    (found,) = doubts(data.train, data.about)
    assert found.startswith("column hPa has values of about 1.0")


def test_nothing_is_said_of_the_digits() -> None:
    data = open_data(recipe().data)
    assert doubts(data.train, data.about) == []


@pytest.mark.parametrize("keys", [{}, {"classes": 2, "partition": "iid"}, {"classes": 1}])
def test_one_class_is_nothing_to_learn(section, keys) -> None:
    with pytest.raises(DataError, match="all examples are of one class, so there is nothing to learn"):
        open_data(section(NORMAL, np.zeros(200, int), **keys))


def test_a_board_may_have_one_class_of_several(section) -> None:
    assert open_data(section(NORMAL, np.zeros(200, int), classes=2)).about.classes == 2


def test_a_board_says_it_before_it_trains(section, tmp_path) -> None:
    chosen = recipe(data={"name": "npz", "dir": section(HUGE, CLASSES).dir, "partition": "local"})
    folder = RunFolder.create(tmp_path / "runs", "own", recipes.to_toml(chosen), {})
    training.build_workload(chosen, 0, "pi-0", folder)
    folder.close()
    _, event = read_run(folder.path).events()
    assert (event.name, event.node) == ("doubt", "pi-0")
    assert event.text == f"pi-0's data: {event.fields['why']}" and "has values of about 1.01e+03" in event.text


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("inputs", "cure"), [(1e9 * HUGE, r"set data\.normalise = board"), (NORMAL, r"training\.lr")])
def test_a_loss_that_becomes_no_number_names_the_data_first(section, inputs, cure) -> None:
    data = {"name": "npz", "dir": section(inputs, CLASSES).dir, "partition": "local"}
    board = training.build_workload(
        recipe(data=data, model={"name": "mlp"}, training={"lr": 1e3, "local_steps": 50}), 0
    )
    with pytest.raises(UsageError, match=f"the training loss became (nan|inf) in round 0.*{cure}"):
        board.local_update(board.initial(0), 0)


def logged(tmp_path, **columns) -> DataSection:
    rows = zip(*columns.values(), strict=True)
    (tmp_path / "train.csv").write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    params = {"target": list(columns)[-1]}
    return DataSection(name="csv", dir=str(tmp_path), partition="local", params=params)


def said_of(section) -> list[str]:
    data = open_data(section)
    return doubts(data.train, data.about, whole=True, test=data.test)


PRESSURE = 1 + np.round(np.sin(np.arange(300)), 3)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            np.where(np.arange(300) % 50 == 7, -9999, PRESSURE),
            "column p holds -9999 in 6 of 300 rows, far from its other",
        ),
        (np.where(np.arange(300) == 299, 999, 20 * PRESSURE), "column p holds 999 in 1 of 300 rows"),
        (np.where(np.arange(300) % 50 == 7, 100, np.arange(300) % 2), ""),
        (np.arange(300) % 24, ""),
        (np.where(np.arange(300) % 9 == 7, 1000 + np.arange(300), 0), ""),  # mostly nothing, as rain
        (PRESSURE, ""),
    ],
)
def test_codes_in_tables_are_said(tmp_path, column, said) -> None:
    found = [
        doubt for doubt in said_of(logged(tmp_path, p=column, y=np.arange(300) % 2)) if "values of about" not in doubt
    ]
    assert len(found) == bool(said)
    assert "".join(found).startswith(said)


@pytest.mark.parametrize(
    ("code", "values", "said"),
    [
        (-9999, PRESSURE, "the target holds -9999 in 6 of 300 rows, far from its other values, 0 to 2; "),
        (0, 15 + PRESSURE, ""),  # as where there was none
        (30, 50 * PRESSURE, ""),
    ],
)
def test_codes_among_targets_are_said(tmp_path, code, values, said) -> None:
    section = logged(tmp_path, p=PRESSURE, y=np.where(np.arange(300) % 50 == 7, code, np.round(values + 1e-6, 4)))
    found = [doubt for doubt in said_of(replace(section, target="values")) if "targets are of about" not in doubt]
    assert len(found) == bool(said) and "".join(found).startswith(said)


def test_codes_in_signals_are_said_and_not_to_normalise_them(section) -> None:
    signals = RANDOM.standard_normal((200, 2, 30)).astype(np.float32)
    signals[::5, 1, 3] = -999
    (found,) = said_of(section(signals, CLASSES))
    assert found.startswith("channel 2 of 2 holds -999 in") and "normalise" not in found
    padded = 20 + signals.clip(-5, 5)
    padded[::5, 0, 20:] = 0
    assert said_of(section(padded, CLASSES)) == []


@pytest.mark.parametrize(
    ("labels", "keys", "said"),
    [
        ([0, 10, 20], {}, "of 21 classes only 0, 10, 20 have examples; number classes from 0"),
        ([0, 2, 4], {}, "of 5 classes only 0, 2, 4 have examples"),
        ([1, 2, 3], {}, "of 4 classes only 1, 2, 3 have examples"),
        ([0, 10, 20], {"classes": 21}, ""),
        ([1, 2], {"classes": 3}, ""),
        ([0, 1, 3], {}, ""),
    ],
)
def test_labels_that_leave_classes_without_examples_are_said(section, labels, keys, said) -> None:
    found = said_of(section(NORMAL[:198], np.array(labels * 99)[:198], **keys))
    assert len(found) == bool(said) and "".join(found).startswith(said)


def test_a_class_that_is_tested_on_alone_is_said(tmp_path) -> None:
    (tmp_path / "test.csv").write_text("p,y\n" + "".join(f"{PRESSURE[k]},{k % 3}\n" for k in range(30)))
    section = logged(tmp_path, p=PRESSURE, y=np.arange(300) % 2)
    assert said_of(section) == ["of class 2 there are examples to test on and none to train on"]


def test_seconds_since_1970_in_a_map_are_said(tmp_path) -> None:
    np.save(tmp_path / "train_inputs.npy", 1.7e9 + np.arange(80.0).reshape(40, 2))
    np.save(tmp_path / "train_targets.npy", np.arange(40) % 2)
    section = DataSection(name="npz", dir=str(tmp_path), partition="local", normalise="board")
    assert any("float32 cannot tell the values at [0] of an input apart" in doubt for doubt in said_of(section))


def test_what_each_board_scales_by_itself_has_no_unit_to_compare(section) -> None:
    rare = np.where(np.arange(200)[:, None] % 50 == 7, 1, 0) * np.ones((1, 3), np.float32)
    for normalise, count in (("none", 3), ("board", 0)):
        data = open_data(section(rare.astype(np.float32), CLASSES, normalise=normalise))
        assert len(sizes(data.train, data.about)) == count
