"""Boards with data of their own: each keeps all of it, and they agree on what one example is."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.agreement import Agreement, difference
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.training.check import check, data_doubts, data_notice
from edgegossip.training.data import Board, describe, open_data
from edgegossip.training.loader import make_loader
from edgegossip.types import ConfigError, DataError, UsageError
from tests.training.fakes import recipe

# Board k has 10 * (k + 1) examples of the classes k and k + 1, and no test set but on board 0.
BY_BOARD = """
import numpy as np
def data(folder, board, index):
    n = 10 * (index + 1)
    y = index + np.arange(n) % 2
    x = np.full((n, 4), index, np.float32)
    return ((x, y), (x[:5], y[:5])) if board == "pi-0" else (x, y)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Write a module into the current directory; gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        name = f"{tmp_path.name.replace('-', '_')}_{len(list(tmp_path.glob('*.py')))}"
        (tmp_path / f"{name}.py").write_text("import numpy as np\n" + source)
        return name

    return write


def local(name: str, **keys):
    return recipe(run={"nodes": 3}, data={"name": name, "partition": "local", **keys})


def test_each_board_calls_the_function_and_keeps_all_that_it_returns(here):
    chosen = local(f"{here(BY_BOARD)}:data", classes=4)
    boards = [training.build_workload(chosen, k, f"pi-{k}") for k in range(3)]
    assert [b.loader.holds for b in boards] == [10, 20, 30]
    assert [b.local_update(b.initial(1), 0).weight for b in boards] == [10, 20, 30]
    for k, board in enumerate(boards):
        assert set(board.loader.batch(0).inputs.ravel().tolist()) == {float(k)}


def test_doubts_are_said_of_all_boards_that_have_them_and_one_kind_of_data_is_asked_for(here):
    boards = [Board(f"pi-{k}", k) for k in range(3)]
    chosen = local(f"{here(BY_BOARD.replace('index, np', 'index // 2, np'))}:data", classes=4)
    two, one = data_doubts(chosen, boards)
    assert two.startswith("the data of pi-0, pi-1: every value is 0.0") and one.startswith("the data of pi-2: every")
    assert data_doubts(replace(chosen, run=replace(chosen.run, script="mine.py")), boards) == []
    units = f"{here(BY_BOARD.replace('index, np', '100.0 ** index, np'))}:data"
    assert "times as large on pi-0 as on others" in data_doubts(local(units, classes=4), boards)[-1]
    with pytest.raises(
        DataError, match="pi-0 and pi-1 cannot train together: one input is float32 4 here and float32 5"
    ):
        data_doubts(local(f"{here(BY_BOARD.replace('4)', '4 + index)'))}:data", classes=4), boards)


def test_boards_that_lack_classes_build_one_model_where_the_number_is_declared(here):
    chosen = local(f"{here(BY_BOARD)}:data", classes=4)
    boards = [training.build_workload(chosen, k, f"pi-{k}") for k in range(3)]
    assert len({b.layout.hash for b in boards}) == 1
    assert boards[0].layout.tensors[-1].shape == (4,)
    one = f"{here(BY_BOARD.replace('np.arange(n) % 2', 'np.zeros(n, int)'))}:data"
    assert open_data(local(one, classes=4).data, Board("pi-0", 0)).about.classes == 4
    with pytest.raises(DataError, match=r"all examples are of one class.* declare data\.labels or data\.classes"):
        open_data(local(one).data, Board("pi-0", 0))


def test_boards_that_count_other_classes_are_told_what_to_declare(here):
    chosen = local(f"{here(BY_BOARD)}:data")
    abouts = [describe(chosen.data, Board(f"pi-{k}", k)) for k in range(3)]
    assert [a.classes for a in abouts] == [2, 3, 4]
    sentence = difference(Agreement(abouts[0].facts()), Agreement(abouts[2].facts()))
    assert "2 classes here and 4 classes there" in sentence
    assert "data.classes = 4" in sentence
    assert difference(Agreement(abouts[0].facts()), Agreement(abouts[0].facts())) == ""


def test_boards_compare_what_they_agree_on(here):
    name = f"{here(BY_BOARD)}:data"
    declared, found = (
        [training.build_workload(local(name, **keys), k, f"pi-{k}") for k in (0, 1)] for keys in ({"classes": 4}, {})
    )
    assert difference(declared[0].agreement(), declared[1].agreement()) == ""
    assert "data.classes = 3" in difference(found[0].agreement(), found[1].agreement())
    other = training.build_workload(recipe(run={"seed": 2}, data=asdict(local(name, classes=4).data)), 0)
    assert "run.seed" in difference(declared[0].agreement(), other.agreement())
    assert Agreement.from_json(declared[0].agreement().to_json()) == declared[0].agreement()


def test_a_label_beyond_the_declared_classes_is_named_with_the_cure(here):
    chosen = local(f"{here(BY_BOARD)}:data", classes=3)
    with pytest.raises(DataError, match=r"label 3, but with data\.classes = 3 .* set data\.classes = 4 on every board"):
        open_data(chosen.data, Board("pi-2", 2))


def test_a_board_without_a_test_set_evaluates_nothing(here):
    chosen = local(f"{here(BY_BOARD)}:data", classes=4)
    first, second = (training.build_workload(chosen, k, f"pi-{k}") for k in range(2))
    assert first.evaluate(first.initial(1)).examples == 5
    assert second.evaluate(second.initial(1)) is None


def test_a_coordinator_has_a_test_set_of_its_own_or_says_that_it_has_none(here):
    source = """
def data(folder, board):
    x, y = np.zeros((8, 4), np.float32), np.arange(8) % 2
    return ((x, y), (x[:3], y[:3])) if board == "coordinator" else (x, y)
"""
    chosen = local(f"{here(source)}:data")
    assert training.build_evaluator(chosen)(training.initial_model(chosen)[1], None).examples == 3
    without = local(f"{here(source.replace('coordinator', 'nobody'))}:data")
    with pytest.raises(ConfigError, match=r"coordinator has no test set: give it one .* evaluation\.where = boards"):
        training.build_evaluator(without)


def test_declared_data_need_not_be_opened_to_know_the_model(here):
    name = f"{here('def data(folder): raise RuntimeError')}:data"
    for classes in ({"classes": 7}, {"labels": list("abcdefg")}):
        assert training.layout_of(local(name, shape=[3, 16, 16], **classes)).tensors[-1].shape == (7,)
    with pytest.raises(UsageError, match="RuntimeError"):
        training.layout_of(local(name, classes=7))
    values = describe(local(name, shape=[12], target="values", target_shape=[2]).data)
    assert (values.outputs, values.dtype, values.facts()["target"]) == (2, "float32", "float32 2")


def test_data_dir_has_the_boards_name_and_number_in_it(here, tmp_path):
    for k, name in enumerate(["pi-0", "pi-1"]):
        folder = tmp_path / "data" / f"{name}-{k}"
        folder.mkdir(parents=True)
        np.save(folder / "train_inputs.npy", np.full((k + 3, 2), k, np.float32))
        np.save(folder / "train_targets.npy", np.zeros(k + 3, np.int64))
    chosen = local("npz", dir=str(tmp_path / "data" / "{board}-{index}"), classes=2)
    check(chosen, [Board("pi-0", 0), Board("pi-1", 1)])
    assert [len(open_data(chosen.data, Board(f"pi-{k}", k)).train) for k in range(2)] == [3, 4]
    with pytest.raises(
        DataError, match=r"pi-2-2: there is no such folder of npz data; the nearest that is there is .*data"
    ):
        check(chosen, [Board("pi-2", 2)])
    (tmp_path / "data" / "pi-2-2").touch()
    with pytest.raises(DataError, match=r"pi-2-2 is a file: name a folder that holds this board's npz data"):
        check(chosen, [Board("pi-2", 2)])


def test_another_folder_a_board_and_one_data_set_for_all_contradict_each_other():
    chosen = recipe(data={"name": "npz", "dir": "data/{board}"})
    with pytest.raises(ConfigError, match=r'data\.dir = data/\{board\} .* set data\.partition = "local"'):
        check(chosen)


def test_a_folder_of_ones_own_that_is_shared_out_is_said_in_a_sentence(here):
    name = f"{here(BY_BOARD)}:data"
    shared = recipe(run={"nodes": 4}, data={"name": name, "dir": "/srv/own"})
    assert "its share, about 1/4" in data_notice(shared)
    assert 'data.partition = "local"' in data_notice(shared)
    assert data_notice(recipe(data={"name": "cifar10", "dir": "/srv/cifar"})) == ""  # the same for all, it is known
    assert "declare data.labels, data.classes, or data.target = values" in data_notice(local(name, dir="/srv/own"))
    assert data_notice(local(name, dir="/srv/own", classes=3)) == ""


def test_boards_say_how_many_examples_they_hold_and_nothing_else(here, tmp_path):
    various = BY_BOARD.replace("np.float32)", "np.float32) + np.arange(n, dtype=np.float32)[:, None]")
    chosen = local(f"{here(various)}:data", labels=["ant", "bee", "cat", "dog"])
    folder = RunFolder.create(tmp_path / "runs", "own", recipes.to_toml(chosen), {})
    assert training.partition_counts(chosen) is None
    for k in range(2):
        training.build_workload(chosen, k, f"pi-{k}", folder)
    folder.close()
    read = read_run(folder.path)
    assert read.partition == {
        "nodes": ["pi-0", "pi-1"],
        "classes": ["ant", "bee", "cat", "dog"],
        "counts": [[5, 5, 0, 0], [0, 10, 10, 0]],
    }
    assert [e.text for e in read.events()] == [
        "pi-0 holds 10 examples of 2 of 4 classes",
        "pi-1 holds 20 examples of 2 of 4 classes",
    ]
    sizes = [json.loads(e.fields["sizes"]) for e in read.events()]
    assert [list(of.values()) for of in sizes] == [[5.0] * 4, [10.0] * 4], "to one digit"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"examples": 3},
        {"examples": "3", "classes": "[]", "counts": "[]"},
        {"examples": 3, "classes": '["a"]', "counts": "[-1]"},
        {"examples": 3, "classes": "[" * 5000, "counts": "[]"},
    ],
)
def test_a_record_that_no_board_writes_makes_no_partition(fields, tmp_path):
    folder = RunFolder.create(tmp_path, "own", "", {})
    folder.event("pi-0", "holds", "pi-0 holds examples", **fields)
    folder.close()
    assert read_run(folder.path).partition is None


def test_boards_without_classes_say_their_number_of_examples(tmp_path):
    folder = RunFolder.create(tmp_path, "own", "", {})
    for node, held in [("pi-1", 7), ("pi-0", 3)]:
        folder.event(node, "holds", "", examples=held, classes=json.dumps([]), counts=json.dumps([]))
    folder.close()
    assert read_run(folder.path).partition == {"nodes": ["pi-0", "pi-1"], "classes": ["examples"], "counts": [[3], [7]]}


def test_a_part_is_held_out_as_test_set_the_same_one_whatever_the_seed(here):
    source = "def data(folder):\n    x = np.arange(100, dtype=np.float32)[:, None]\n    return x, np.arange(100) % 2\n"
    name = f"{here(source)}:data"
    sets = []
    for seed in (1, 2):
        chosen = recipe(run={"seed": seed}, data={"name": name, "partition": "local", "test_share": 0.2})
        data = open_data(chosen.data)
        sets.append(data.test.take(np.arange(20)).inputs.ravel().tolist())
        kept = data.train.take(np.arange(80)).inputs.ravel().tolist()
        assert sorted(kept + sets[-1]) == list(range(100))
    assert sets[0] == sets[1]
    with pytest.raises(DataError, match=r"data\.test_share = 0\.001 of 100 examples .* are 0"):
        open_data(local(name, test_share=0.001).data)


def test_names_of_classes_are_declared_once_for_all():
    with pytest.raises(ConfigError, match=r"data\.labels names 'ant' twice"):
        check(recipe(data={"labels": ["ant", "ant"]}))
    with pytest.raises(ConfigError, match=r"data\.classes = 3, but data\.labels has 2 names"):
        check(recipe(data={"classes": 3, "labels": ["ant", "bee"]}))


def test_virtual_boards_do_what_boards_do_each_with_its_own_statistics(here):
    source = BY_BOARD.replace("index, np.float32)", "index, np.float32) + np.arange(n, dtype=np.float32)[:, None]")
    chosen = local(f"{here(source)}:data", classes=4, normalise="board")
    alone = [training.build_workload(chosen, k) for k in range(3)]
    x = alone[0].initial(1)
    together = training.build_workloads(chosen)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.local_update(x, 0).delta, other.local_update(x, 0).delta)


def test_virtual_boards_that_do_not_fit_are_refused(here):
    with pytest.raises(ConfigError, match=r"board-0 and board-1 cannot train together: .* set data\.classes = 3"):
        training.build_workloads(local(f"{here(BY_BOARD)}:data"))


def test_the_first_examples_of_a_stream_are_those_of_each_pass(here):
    source = """
from torch.utils.data import DataLoader, IterableDataset
class Endless(IterableDataset):
    def __iter__(self):
        k = 0
        while True:
            yield np.float32([k]), k % 2
            k += 1
def data(folder):
    return Endless()
def loader(folder):
    return DataLoader(Endless(), batch_size=4)
"""
    name = here(source)
    chosen = local(f"{name}:data", classes=2, train_examples=6)
    batches = make_loader(open_data(chosen.data), replace(chosen, training=replace(chosen.training, batch_size=6)), 0)
    for t in range(3):
        assert sorted(batches.batch(t).inputs.ravel().tolist()) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="a DataLoader makes batches of its own"):
        open_data(local(f"{name}:loader", classes=2, train_examples=6).data)


REGRESSION = """
def data(folder, index):
    random = np.random.default_rng(index)
    x = random.standard_normal((64, 3)).astype(np.float32)
    y = x @ np.float32([1, -2, 3]) + 5
    return x, y.astype(np.float64), x[:16], y[:16].astype(np.float64)
"""
TOKENS = """
def data(folder, index):
    return (index + np.arange(40)[:, None] + np.arange(9)) % 12, None
def build(shape, tokens, norm):
    from torch import nn
    return nn.Sequential(nn.Embedding(tokens, 8), nn.Linear(8, tokens))
"""


def test_boards_learn_numbers_from_their_own_data(here):
    chosen = local(f"{here(REGRESSION)}:data")
    chosen = replace(chosen, training=replace(chosen.training, lr=0.02, local_steps=20))
    boards = [training.build_workload(chosen, k) for k in range(2)]
    x = boards[0].initial(1)
    before = boards[0].evaluate(x).loss
    for t in range(10):
        x = x + sum(b.local_update(x, t).delta for b in boards) / np.float32(2)
    assert boards[0].evaluate(x).loss < before / 10
    assert boards[0].evaluate(x).scores["r2"] > 0.9


def test_boards_learn_the_next_token_of_their_own_texts(here):
    name = here(TOKENS)
    chosen = local(f"{name}:data", classes=12)
    chosen = replace(chosen, model=replace(chosen.model, name=f"{name}:build"))
    board = training.build_workload(chosen, 1)
    x = board.initial(1)
    losses = []
    for t in range(60):
        update = board.local_update(x, t)
        x = x + update.delta
        losses.append(update.loss)
    assert losses[-1] < losses[0] / 4


def test_one_data_set_that_all_share_is_shared_out_as_before(here):
    source = """
def data(folder):
    x, y = np.arange(60, dtype=np.float32)[:, None], np.arange(60) % 3
    return x, y, x, y
"""
    chosen = recipe(run={"nodes": 3}, data={"name": f"{here(source)}:data"})
    data = open_data(chosen.data)
    boards = [make_loader(data, chosen, k) for k in range(3)]
    assert [b.holds for b in boards] == [20, 20, 20]
    seen = np.concatenate([b.batch(0).inputs.ravel() for b in boards])
    assert sorted(seen.tolist()) == list(range(60))
