"""Inputs: sizes, shapes, distributions, real gradients, files."""

import numpy as np
import pytest

from edgegossip import recipe as recipes
from edgegossip.codecs.co3 import fit
from edgegossip.codecs.typical import BETA
from edgegossip.types import ConfigError, DataError, UsageError
from lab.bench import inputs
from lab.bench.cases import parse_size
from lab.bench.inputs import Tensors


def test_sizes():
    assert [parse_size(text) for text in ("250000", "2M", "8MB", "4MiB", "1.5k", " 64 kB ")] == [
        250000,
        2_000_000,
        2_000_000,
        2**20,
        1500,
        16_000,
    ]
    assert [parse_size(text) for text in ("8MB", "100MB")] == [2_000_000, 25_000_000]
    for text in ("", "0", "-1", "8 mb", "MB", "1e6", "9GB", "3B"):
        with pytest.raises(ConfigError, match="--size"):
            parse_size(text)


def test_resnet50_is_the_published_one():
    shapes = inputs.resnet50_shapes()
    assert len(shapes) == len(dict(shapes)) == 161
    assert sum(int(np.prod(shape)) for _, shape in shapes) == 25_557_032


@pytest.mark.parametrize("n", [1, 7, 1000, 54_321])
def test_synthetic_has_the_size_asked_for_and_real_tensors(n):
    data = inputs.synthetic(n, seed=3)
    assert data.x.dtype == np.float32 and data.x.size == data.layout.size == n
    assert np.isfinite(data.x).all()
    shapes = [shape for _, shape in inputs.resnet50_shapes()]
    whole = [t.shape for t in data.layout.tensors][: -2 if n > 9408 else 0]
    assert whole == shapes[: len(whole)]
    if n == 54_321:  # 50 752 values up to layer1.0.conv2's norm, 55 rows of the next tensor, 49 values
        assert [t.shape for t in data.layout.tensors[-2:]] == [(55, 64, 1, 1), (49,)]


def test_synthetic_is_seeded_and_generalised_normal():
    data = inputs.synthetic(300_000, seed=1)
    assert np.array_equal(data.x, inputs.synthetic(300_000, seed=1).x)
    assert not np.array_equal(data.x, inputs.synthetic(300_000, seed=2).x)
    large = max(range(len(data.layout.tensors)), key=lambda k: data.layout.tensors[k].size)
    v = data.x[data.layout.offsets[large] : data.layout.offsets[large + 1]].astype(float)
    assert abs(fit(np.abs(v).sum(), (v * v).sum(), v.size).beta - BETA) < 0.08
    assert abs(np.mean(v > 0) - 0.5) < 0.02


def _tensors():
    return Tensors((("a", np.arange(24, dtype=np.float32).reshape(6, 4)), ("b", np.arange(100, 103, dtype=np.float32))))


@pytest.mark.parametrize("n", [1, 5, 13, 26, 27, 28, 54, 60])
def test_fitted_takes_rows_or_copies(n):
    data = inputs.fitted("real", _tensors(), n)
    assert data.x.size == data.layout.size == n and data.name == "real"
    assert set(data.x.tolist()) <= {*range(24), 100, 101, 102}
    if n >= 27:
        assert np.array_equal(data.x[:24], np.arange(24)) and data.layout.tensors[0].shape == (6, 4)
    if n == 13:  # whole rows, and what is left over as a flat piece
        assert [t.shape for t in data.layout.tensors] == [(3, 4), (1,)]
        assert np.array_equal(data.x, np.arange(13))
    if n == 60:
        assert [t.shape for t in data.layout.tensors] == [(6, 4), (3,), (6, 4), (3,), (1, 4), (2,)]
        assert np.array_equal(data.x[54:], np.arange(6))


def test_files_round_trip(tmp_path):
    path = tmp_path / "g.npz"
    inputs.save(path, _tensors())
    back = inputs.read(path)
    assert [name for name, _ in back.arrays] == ["a", "b"]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(back.arrays, _tensors().arrays, strict=True))
    np.save(tmp_path / "one.npy", np.ones(5))
    assert inputs.read(tmp_path / "one.npy").shapes == (("one", (5,)),)


def test_bad_files(tmp_path):
    path = tmp_path / "bad.npz"
    whole = tmp_path / "g.npz"
    inputs.save(whole, _tensors())
    for content in (b"", b"nonsense", whole.read_bytes()[:200]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.npz"):
            inputs.read(path)
    for array in (np.array([np.nan]), np.arange(3), np.empty(0), np.array(["x"])):
        np.save(tmp_path / "bad.npy", array)
        with pytest.raises(DataError, match=r"bad\.npy"):
            inputs.read(tmp_path / "bad.npy")


SMALL = ("model.params.hidden=[16]", "data.train_examples=200")


def test_gradients_are_those_of_the_loss():
    made = inputs.recipe_for(SMALL)
    tensors = inputs.dump(made, steps=5)
    assert [name.partition("/")[0] for name, _ in tensors.arrays] == ["step0"] * 4 + ["step2"] * 4 + ["step4"] * 4
    assert all(np.isfinite(a).all() and a.any() for _, a in tensors.arrays)
    again = inputs.dump(made, steps=5)
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(tensors.arrays, again.arrays, strict=True))
    # The last layer's bias has the gradient mean(softmax - one-hot), which sums to zero over the
    # classes.
    bias = dict(tensors.arrays)["step0/" + made_bias(tensors)]
    assert bias.shape == (10,) and abs(bias.sum()) < 1e-6


def made_bias(tensors):
    return next(n.partition("/")[2] for n, a in tensors.arrays if a.shape == (10,))


def test_gradients_refuse_what_cannot_be():
    with pytest.raises(ConfigError, match="did you mean mlp"):
        inputs.dump(inputs.recipe_for(("model.name=mpl",)), 2)
    with pytest.raises(UsageError, match="augment"):
        inputs.dump(inputs.recipe_for((*SMALL, "data.augment=true")), 2)
    with pytest.raises(UsageError, match=r"loss became .* in step"):
        inputs.dump(inputs.recipe_for((*SMALL, "training.lr=1000")), 60)
    assert recipes.load("quickstart-gossip").model.name == "mlp"
