"""Every kind of data that a user's function may return: what becomes of its inputs and targets."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from edgegossip import training
from edgegossip.recipe import DataSection
from edgegossip.training.check import check_augmentation
from edgegossip.training.data import DataSet, describe, open_data, schema
from edgegossip.training.data.custom import parts
from edgegossip.training.loader import Normalize, in_order, make_loader
from edgegossip.training.partition import partition_data
from edgegossip.types import ConfigError, DataError, UsageError
from tests.training.fakes import opened, recipe

N = 24
IMAGES = np.arange(N * 3 * 4 * 4, dtype=np.uint8).reshape(N, 3, 4, 4)
TABLE = np.linspace(-1, 1, N * 5, dtype=np.float32).reshape(N, 5)
TOKENS = np.arange(N * 6, dtype=np.int64).reshape(N, 6) % 11
CLASSES = np.arange(N) % 4


def batch(data: DataSet, step: int = 0, **training):
    return make_loader(data, recipe(data={"partition": "local"}, training=training), 0).batch(step)


@pytest.mark.parametrize(
    ("inputs", "dtype", "tensor"),
    [
        (IMAGES, "uint8", torch.float32),
        (TABLE, "float32", torch.float32),
        (TABLE.astype(np.float64), "float32", torch.float32),
        (TABLE.astype(np.float16), "float32", torch.float32),
        (TABLE > 0, "float32", torch.float32),
        ((TABLE * 100).astype(np.int16), "float32", torch.float32),
        (TOKENS, "int64", torch.int64),
        (TOKENS.astype(np.int32), "int64", torch.int64),
        (TOKENS.astype(np.uint32), "int64", torch.int64),
        (torch.from_numpy(TABLE), "float32", torch.float32),
    ],
)
def test_inputs_of_any_real_type(inputs, dtype, tensor):
    data = opened((inputs, CLASSES))
    assert (data.about.dtype, data.about.shape) == (dtype, tuple(inputs.shape[1:]))
    given = Normalize.of(data.about)(batch(data, batch_size=8).inputs)
    assert given.dtype is tensor
    assert given.shape == (8, *inputs.shape[1:])


@pytest.mark.parametrize(
    ("targets", "keys", "kind", "classes", "outputs", "dtype"),
    [
        (CLASSES, {}, "class", 4, 4, np.int64),
        (CLASSES.astype(np.uint8), {"classes": 9}, "class", 9, 9, np.int64),
        (CLASSES > 1, {}, "class", 2, 2, np.int64),
        (TABLE[:, 0], {}, "values", 0, 1, np.float32),
        (TABLE[:, :2].astype(np.float64), {}, "values", 0, 2, np.float32),
        (CLASSES, {"target": "values"}, "values", 0, 1, np.float32),
        (TABLE > 0, {}, "labels", 5, 5, np.float32),
        ((TABLE > 0).astype(int), {"target": "labels"}, "labels", 5, 5, np.float32),
        (IMAGES[:, 0] % 7, {}, "places", 7, 7, np.int64),
        (np.where(TOKENS == 3, -100, TOKENS), {}, "places", 11, 11, np.int64),
        (None, {}, "none", 0, 5, None),
        (CLASSES, {"target": "none"}, "none", 0, 5, None),
    ],
)
def test_targets_of_every_kind(targets, keys, kind, classes, outputs, dtype):
    data = opened((TABLE, targets), **keys)
    assert (data.about.target, data.about.classes, data.about.outputs) == (kind, classes, outputs)
    taken = batch(data).targets
    assert taken is None if dtype is None else taken.dtype == dtype
    if kind != "none":
        one_by_one = TensorDataset(torch.from_numpy(TABLE), torch.from_numpy(targets))
        declared = {"target": kind, **({"classes": classes} if classes else {}), **keys}
        assert batch(opened(one_by_one, **declared)).targets.shape == taken.shape


def test_tokens_without_targets_are_for_the_next_token():
    data = opened(TOKENS)
    assert (data.about.target, data.about.classes) == ("tokens", 11)
    assert opened(TOKENS, classes=50).about.outputs == 50
    with pytest.raises(DataError, match=r"label 10, but with data\.classes = 7"):
        opened(TOKENS, classes=7)
    with pytest.raises(DataError, match="expected tokens from 0, found -1"):
        opened(TOKENS - 1)


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        ((TABLE, CLASSES), {"target": "labels"}, "targets are int64.* data.target = labels; expected class or values"),
        ((TABLE, TABLE), {"target": "class"}, "training part: target 0 is not one-hot, which is no class"),
        (TABLE, {"target": "tokens"}, "inputs are float32, but data.target = tokens"),
        (TABLE, {"dtype": "int64"}, "inputs are float32, but data.dtype = int64; tokens are whole"),
        (TABLE, {"dtype": "uint8"}, "inputs are float32, but data.dtype = uint8"),
        (TABLE, {"shape": [6]}, r"an input has the shape \[5\], but data\.shape = \[6\]"),
        ((TABLE, TABLE), {"target_shape": [4]}, r"a target has the shape \[5\], but data\.target_shape = \[4\]"),
        ((TABLE, TABLE > 0), {"classes": 4}, "a target has 5 labels, but data.classes = 4"),
        ((TABLE, TABLE * np.nan), {}, r"training part: targets\[0\] holds a NaN"),
        ((TABLE, np.where(CLASSES == 2, -1, CLASSES)), {}, "expected labels from 0, found -1"),
        ((TABLE, CLASSES * 10**9), {}, 'found the label 3000000000, which makes .* set data.target = "values"'),
        (((TABLE, CLASSES), TABLE), {}, r"training targets are int64\[\], test targets none"),
        (((TABLE, TABLE), (TABLE, TABLE[:, :2])), {}, r"targets are float32\[5\], test targets float32\[2\]"),
    ],
)
def test_data_that_are_not_as_declared(given, keys, message):
    with pytest.raises(DataError, match=message):
        opened(given, **keys)


def test_a_memory_map_is_read_batch_by_batch_and_looked_at_then(tmp_path):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (N, 5))
    x[:] = TABLE
    x[7, 2] = np.inf
    x.flush()
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = opened((mapped, CLASSES))
    assert isinstance(data.train.inputs.array, np.memmap)
    with pytest.raises(DataError, match=r"an input holds a NaN or an infinity, .* \(example 7 of this board's"):
        batch(data, batch_size=N)


class Pairs(Dataset):
    """A map-style data set that counts what is read of it."""

    def __init__(self, targets: bool = False, wrong: object = None) -> None:
        self.read: Counter[int] = Counter()
        self.wrong = wrong
        if targets:
            self.targets = CLASSES.tolist()

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int):
        self.read[k] += 1
        if k == 3 and self.wrong is not None:
            if isinstance(self.wrong, Exception):
                raise self.wrong
            return self.wrong
        return torch.full((2, 3), float(k)), int(CLASSES[k])


def test_a_torch_data_set_is_read_when_it_is_needed():
    own = Pairs(targets=True)
    data = opened(own, classes=4)
    assert sum(own.read.values()) == 1 + 5  # the first, to see what one is, and five to compare their targets
    taken = batch(data, batch_size=4)
    assert sum(own.read.values()) == 1 + 5 + 4
    assert (taken.inputs[:, 0, 0].astype(int) % 4 == taken.targets).all()
    assert make_loader(data, recipe(data={"partition": "local"}), 0).counts.tolist() == [6, 6, 6, 6]


def test_a_torch_data_set_without_targets_is_looked_through_once_unless_classes_are_declared():
    first, second = Pairs(), Pairs()
    assert opened(first).about.classes == 4
    assert sum(first.read.values()) == N + 1
    assert opened(second, classes=4).about.classes == 4
    assert sum(second.read.values()) == 1


@pytest.mark.parametrize("stale", [CLASSES + 5, CLASSES[::-1], np.eye(4)[CLASSES], CLASSES[:9]])
def test_a_list_of_targets_that_is_not_that_of_the_examples_is_not_used(stale):
    own = Pairs()
    own.targets = stale
    data = opened(own)
    assert data.about.classes == 4 and data.train.targets is None
    assert sorted(batch(data, batch_size=N).targets) == sorted(CLASSES)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (OSError("the card is gone"), UsageError, "example 3 failed: OSError: the card is gone"),
        ((torch.zeros(2, 4), 1), DataError, r"must have one shape, and these have \(2, 3\), \(2, 4\)"),
        ((torch.zeros(2, 3), 4), DataError, r"found the label 4; with data\.classes = 4 they are 0 to 3"),
        ((torch.zeros(2, 3), -1), DataError, "found the label -1"),
        ((torch.full((2, 3), torch.nan), 1), DataError, "an input holds a NaN"),
        (("a text", 1), DataError, "must be an input or .input, target..*found str"),
        ({"x": 1}, DataError, "must be an input or .input, target..*found dict"),
    ],
)
def test_what_goes_wrong_in_one_example_is_said(wrong, error, message):
    data = opened(Pairs(wrong=wrong), classes=4)
    with pytest.raises(error, match=message):
        batch(data, batch_size=N)


class Numbers(IterableDataset):
    """A stream of 0 .. n-1, without a length."""

    def __init__(self, n: int) -> None:
        self.n, self.begun = n, 0

    def __iter__(self):
        self.begun += 1
        return ((np.float32([k]), k % 4) for k in range(self.n))


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 40), buffer=st.integers(1, 50), size=st.integers(1, 9), seed=st.integers(0, 3))
def test_a_pass_of_a_stream_is_an_epoch_whatever_the_buffer(n, buffer, size, seed):
    data = opened(Numbers(n), classes=4)
    chosen = recipe(
        run={"seed": seed},
        data={"partition": "local", "shuffle_buffer": buffer},
        training={"batch_size": size},
    )
    batches = make_loader(data, chosen, 0)
    steps = -(-3 * n // size)
    seen = np.concatenate([batches.batch(t).inputs.ravel() for t in range(steps)]).astype(int).tolist()
    for epoch in range(3):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))
    again = make_loader(data, chosen, 0)
    assert np.concatenate([again.batch(t).inputs.ravel() for t in range(steps)]).astype(int).tolist() == seen


def test_a_stream_is_mixed_and_never_held_as_a_whole():
    own = Numbers(10_000)
    data = opened(own, classes=4)
    batches = make_loader(data, recipe(data={"partition": "local", "shuffle_buffer": 100}), 0)
    first = batches.batch(0).inputs.ravel().astype(int).tolist()
    assert first != sorted(first)
    assert max(first) < 100 + 32
    assert (batches.holds, batches.counts) == (0, None)


def test_what_a_stream_cannot_do_is_said():
    with pytest.raises(ConfigError, match=r"is a stream, .* data\.classes = N"):
        opened(Numbers(5))
    with pytest.raises(DataError, match="the stream ends before its first example"):
        opened(Numbers(0), classes=4)
    for how in ("board", "together"):
        with pytest.raises(ConfigError, match="a stream cannot be looked through first; declare data.mean"):
            opened(Numbers(5), classes=4, normalise=how)
    with pytest.raises(DataError, match='is a stream, which cannot be shared out .* data.partition = "local"'):
        partition_data(opened(Numbers(5), classes=4), recipe())


def test_a_data_loader_keeps_its_batches_and_its_order():
    data = opened(DataLoader(Pairs(), batch_size=7), classes=4)
    batches = make_loader(data, recipe(data={"partition": "local"}, training={"batch_size": 2}), 0)
    assert batches.holds == N
    assert [len(batches.batch(t).inputs) for t in range(5)] == [7, 7, 7, 3, 7]
    assert batches.batch(5).inputs[:, 0, 0].tolist() == list(range(7, 14))


def test_a_stream_may_be_the_test_set():
    data = opened((Numbers(9), Numbers(5)), classes=4)
    (held,) = in_order("mine", data.test, data.about, 5, 10)
    assert held.inputs.ravel().tolist() == [0, 1, 2, 3, 4]
    loader = opened((Numbers(9), DataLoader(Numbers(5), batch_size=2)), classes=4)
    assert len(loader.test) == 5


@pytest.mark.parametrize("partition", ["skew", "sorted", "dirichlet"])
def test_rules_that_go_by_class_need_classes(partition):
    data = opened((TABLE, TABLE[:, 0]))
    with pytest.raises(ConfigError, match=f"data.partition = {partition} goes by the class"):
        partition_data(data, recipe(data={"partition": partition}))
    shares = partition_data(data, recipe())
    assert sorted(np.concatenate(shares).tolist()) == list(range(N))


def test_masks_are_not_moved_with_their_images():
    data = opened((IMAGES, IMAGES[:, 0] % 3))
    with pytest.raises(ConfigError, match="moves images and not the masks"):
        check_augmentation(recipe(data={"augment": True}), data.about)


# -- normalisation -------------------------------------------------------------------------------


def normalised(data: DataSet) -> np.ndarray:
    taken = batch(data, batch_size=N)
    return Normalize.of(data.about)(taken.inputs).numpy()


def test_images_of_boards_go_to_the_same_range_without_anybody_looking_at_them():
    data = opened((IMAGES, CLASSES))
    assert set(data.about.mean + data.about.std) == {127.5}
    assert opened((TABLE, CLASSES)).about.mean == ()
    assert opened((TABLE, CLASSES)).about.facts()["scale"] == "none"


def test_each_board_may_normalise_by_its_own_data():
    data = opened((TABLE * 100 + 7, CLASSES), normalise="board")
    values = normalised(data)
    assert np.abs(values.mean(0)).max() < 1e-4
    assert np.abs(values.std(0) - 1).max() < 1e-4
    other = opened((TABLE, CLASSES), normalise="board")
    assert data.about.facts()["scale"] == other.about.facts()["scale"]  # boards need not agree on it


def test_a_data_set_of_the_package_may_be_normalised_by_each_boards_own_data():
    keys = recipe(data={"name": "digits", "normalise": "board"})
    training.check(keys)
    assert training.build_workload(keys, 0).about.mean != describe(DataSection(name="digits")).mean


@pytest.mark.parametrize(("given", "lacks"), [("mean", "std"), ("std", "mean")])
def test_half_a_scale_is_refused_for_a_data_set_of_the_package(given, lacks):
    with pytest.raises(ConfigError, match=f"data.{lacks} has 0 numbers"):
        open_data(DataSection(name="digits", **{given: [0.5]}))


def test_declared_means_and_deviations_are_facts_to_agree_on():
    data = opened((TABLE, CLASSES), mean=[0.5], std=[2.0])
    assert np.allclose(normalised(data)[np.argsort(batch(data, batch_size=N).inputs[:, 0])], (TABLE - 0.5) / 2)
    other = opened((TABLE, CLASSES), mean=[0.5], std=[3.0])
    assert data.about.facts()["scale"] != other.about.facts()["scale"]


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        ((TOKENS, CLASSES), {"normalise": "together"}, "together: the inputs are tokens"),
        (
            (TABLE, CLASSES),
            {"mean": [0.0], "std": [1.0], "normalise": "together"},
            "data.mean and data.std are declared",
        ),
        ((TABLE, CLASSES), {"normalise": "declared"}, "needs data.mean and data.std"),
        ((TABLE, CLASSES), {"mean": [0.0, 1.0], "std": [1.0]}, "data.mean has 2 numbers, and an input has 5 channels"),
        ((TABLE, CLASSES), {"mean": [0.0]}, "data.std has 0 numbers"),
        ((TABLE, CLASSES), {"mean": [0.0], "std": [1.0], "normalise": "none"}, "data.mean and data.std are declared"),
        ((TOKENS, CLASSES), {"normalise": "board"}, "the inputs are tokens"),
        ((TOKENS, CLASSES), {"mean": [0.0], "std": [1.0]}, "the inputs are tokens"),
    ],
)
def test_normalisation_that_cannot_be(given, keys, message):
    with pytest.raises(ConfigError, match=message):
        opened(given, **keys)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 3), st.floats(-50, 50), st.floats(0.125, 20))
def test_statistics_are_those_of_numpy(n, channels, shift, scale):
    random = np.random.default_rng(n)
    x = (random.standard_normal((n, channels, 3)) * scale + shift).astype(np.float32)
    x[:, 0] = 3.0  # a channel that never changes
    train, _, _ = parts("mine", x)
    mean, std = schema.Sums.of(train).moments()
    assert np.allclose(mean, x.mean((0, 2), dtype=np.float64), atol=1e-6)
    assert std[0] == 1.0
    assert np.allclose(std[1:], x.std((0, 2), dtype=np.float64)[1:], rtol=1e-4, atol=1e-6)
    cut = n // 2
    if cut:
        halves = [schema.Sums.of(parts("mine", half)[0]) for half in (x[:cut], x[cut:])]
        assert np.allclose((halves[0] + halves[1]).moments(), (mean, std))
