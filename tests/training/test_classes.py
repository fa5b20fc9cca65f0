"""Arrays and data sets as a user's function returns them, or a file has them: what targets are
taken for, and that training gets what numpy reads."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.recipe import DataSection
from edgegossip.training.data import DataSet, open_data
from edgegossip.training.loader import Normalize, in_order
from edgegossip.types import ConfigError, DataError, EdgegossipError
from tests.training.fakes import opened

# A refusal names a column, a place or a key in its folder.
PLACE = re.compile(r"data\.\w+|(inputs|targets)\[\d+\]|(target|example) \d+|(inputs|targets) are")
X, Y = np.arange(48, dtype=np.float32).reshape(24, 2), np.arange(24) % 3


class Own(torch.utils.data.Dataset):
    """Examples that come one at a time."""

    def __init__(self, target) -> None:
        self.target = target

    def __len__(self) -> int:
        return 24

    def __getitem__(self, k: int):
        return X[k].astype(">f4"), self.target(k)


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ((X, Y[:, None]), {}),
        ((X, np.eye(3, dtype=np.int32)[Y]), {}),
        ((X.astype(">f8"), Y.astype(">u2")), {}),
        ((np.asfortranarray(X), Y.astype(np.float16)), {"classes": 3}),
        ((X.astype(np.longdouble), np.eye(3, dtype=bool)[Y]), {"target": "class"}),
        ((torch.from_numpy(X).bfloat16(), torch.from_numpy(Y)), {}),
        (Own(lambda k: np.array([k % 3])), {}),
        (Own(lambda k: np.eye(3, dtype=np.int64)[k % 3]), {}),
        (Own(lambda k: float(k % 3)), {"labels": ["a", "b", "c"]}),
    ],
)
def test_arrays_and_data_sets_may_have_classes_in_any_form(given, keys):
    data = opened(given, **keys)
    taken = data.train.take(np.arange(24))
    assert (data.about.target, data.about.classes) == ("class", 3)
    assert taken.targets.tolist() == Y.tolist() and taken.targets.dtype == np.int64
    assert (taken.inputs == X).all() and taken.inputs.dtype.isnative


def test_tables_of_pandas_are_arrays():
    import pandas

    data = opened((pandas.DataFrame(X), pandas.Series(Y)))
    assert (data.train.inputs.take(np.arange(24)) == X).all()
    assert data.train.labels.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("given", "keys", "error", "message"),
    [
        ((X, Y.astype(float)), {}, DataError, "all of them whole numbers; classes or values"),
        ((X, np.eye(3)[Y]), {}, DataError, "all of them one-hot; classes or values"),
        ((X, 1.0 - np.eye(3)[Y]), {}, DataError, 'whole numbers; labels or values. set data.target = "labels"'),
        ((X, Y + 0.5), {"classes": 3}, DataError, "training part: target 0 is 0.5, which is no class"),
        ((X, np.ones((24, 3))), {"classes": 3}, DataError, r"targets are float64\[3\] and not one-hot, and 3 classes"),
        ((X, Y.astype(np.uint64) + 2**63), {}, DataError, "target 0 is 9223372036854775808, which is no class"),
        ((X.astype(np.uint64) + 2**63, Y), {}, DataError, r"inputs\[0\] holds .* a number too large"),
        (
            (1.7e9 + X.astype(float) / 100, Y),
            {},
            DataError,
            r"float32 cannot tell the values at \[0\] of an input apart",
        ),
        ((np.ma.masked_greater(X, 40), Y), {}, DataError, r"inputs\[20\] holds a NaN"),
        ((X, np.linspace(0, 1e300, 24)), {}, DataError, r"targets\[1\] holds .* a number too large"),
        ((X, Y * 1000), {}, DataError, "found the label 2000, which makes 2001 classes"),
        ((X, Y), {"labels": ["2", "0", "1"]}, ConfigError, "data.labels has '2' as place 0"),
        (Own(lambda k: float(k % 3)), {}, DataError, "classes or values"),
    ],
)
def test_arrays_that_may_be_two_things_are_asked_about(given, keys, error, message):
    with pytest.raises(error, match=message):
        opened(given, **keys)


def test_classes_may_be_counted_and_named():
    assert opened((X, Y), classes=3, labels=["a", "b", "c"]).about.names == ("a", "b", "c")
    with pytest.raises(ConfigError, match=r"data.classes = 4, but data.labels has 3 names"):
        opened((X, Y), classes=4, labels=["a", "b", "c"])


def test_values_have_no_classes():
    with pytest.raises(ConfigError, match="leave data.classes and data.labels out"):
        opened((X, Y), target="values", classes=3)


def tensors(data: DataSet) -> tuple[np.ndarray, np.ndarray | None]:
    """All training examples as a model gets them."""
    batch = next(iter(in_order(data.name, data.train, data.about, len(data.train), len(data.train))))
    return Normalize.of(data.about)(batch.inputs).numpy(), batch.targets


DTYPES = ["<f4", ">f4", "<f8", ">f8", "<f2", "longdouble", "|i1", "|u1", "<i2", ">u2", "<i4", ">i8", ">u8", "|b1"]
DTYPES += ["<c8", "<M8[s]", "<U3"]


@st.composite
def arrays(draw) -> tuple[np.ndarray, np.ndarray, dict]:
    count, width = draw(st.integers(4, 30)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes = draw(st.integers(2, 4))
    y = random.integers(0, classes, count)
    y[:classes] = np.arange(classes)
    x = random.integers(0, 9, (count, width)).astype(draw(st.sampled_from(DTYPES)))
    form = draw(st.sampled_from(["plain", "column", "one-hot", "real"]))
    targets = {"plain": y, "column": y[:, None], "one-hot": np.eye(classes)[y], "real": random.normal(size=count)}[form]
    targets = targets.astype(draw(st.sampled_from([d for d in DTYPES if form != "real" or "f" in d])))
    if draw(st.booleans()):
        x = np.asfortranarray(x)
    if x.dtype.kind == "f" and draw(st.integers(0, 4)) == 0:
        x[draw(st.integers(0, count - 1)), 0] = draw(st.sampled_from([np.nan, np.inf]))
    said = draw(
        st.sampled_from([{}, {}, {"classes": classes}, {"target": "class"}, {"labels": ["a", "b", "c", "d"][:classes]}])
    )
    return x, targets, {**said, "dtype": draw(st.sampled_from(["auto", "float32"]))}


def as_classes(targets: np.ndarray) -> np.ndarray:
    """The reference: one number an example, however it is stored."""
    return (
        targets.reshape(len(targets), -1).argmax(1) if targets.ndim == 2 and targets.shape[1] > 1 else targets.ravel()
    )


@given(arrays(), st.sampled_from(["data.npz", "train_inputs.npy"]))
def test_arrays_are_read_as_numpy_reads_them_or_refused(made, kind):
    x, y, keys = made
    with tempfile.TemporaryDirectory() as folder:
        if kind == "data.npz":
            np.savez(Path(folder) / kind, train_inputs=x, train_targets=y)
        else:
            np.save(Path(folder) / kind, x)
            np.save(Path(folder) / "train_targets.npy", y)
        try:
            data = open_data(DataSection(name="npz", dir=folder, partition="local", **keys))
            inputs, targets = tensors(data)
        except EdgegossipError as error:
            if folder not in str(error) or not PLACE.search(str(error)):
                raise
            return
        wanted = np.int64 if data.about.dtype == "int64" else np.float32
        np.testing.assert_array_equal(inputs, x.astype(wanted))
        assert inputs.dtype == wanted
        if data.about.target == "class":
            np.testing.assert_array_equal(targets, as_classes(y).astype(np.int64))
            assert data.about.classes == (keys.get("classes") or len(keys.get("labels", ())) or int(targets.max()) + 1)
        else:
            assert not {"classes", "labels"} & set(keys) or data.about.target in ("labels", "places")
            np.testing.assert_array_equal(targets, y.astype(targets.dtype))
