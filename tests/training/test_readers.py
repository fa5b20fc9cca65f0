"""Readers of files that a user has: pictures, tables and arrays."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgegossip import training
from edgegossip.modelfile import ModelFile
from edgegossip.recipe import DataSection
from edgegossip.training.data import Board, locate, open_data
from edgegossip.training.loader import make_loader
from edgegossip.types import ConfigError, DataError, HostError
from tests.training.fakes import recipe


def section(name: str, folder: Path, **keys) -> DataSection:
    return DataSection(name=name, dir=str(folder), partition="local", **keys)


def everything(data):
    taken = data.train.take(np.arange(len(data.train)))
    return taken.inputs, taken.targets


# -- pictures ------------------------------------------------------------------------------------


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def zoo(tmp_path):
    for k in range(3):
        picture(tmp_path / "train" / "bee" / f"{k}.png", (k, 0, 0))
        picture(tmp_path / "train" / "ant" / f"{k}.jpg", (200, 100 + k, 50), (40, 30))
    picture(tmp_path / "test" / "ant" / "x.png", (1, 2, 3))
    (tmp_path / "train" / "bee" / "notes.txt").write_text("not a picture")
    (tmp_path / "train" / ".hidden").mkdir()
    return tmp_path


def test_pictures_are_decoded_when_they_are_needed(zoo):
    data = open_data(section("image-folder", zoo, params={"size": 4}))
    (zoo / "train" / "bee" / "1.png").write_bytes(b"\x89PNG broken")
    data.train.take(np.array([0, 3]))
    with pytest.raises(DataError, match=r"bee/1\.png cannot be read as a picture"):
        data.train.take(np.array([4]))


def test_a_board_without_a_class_has_the_same_numbers_where_names_are_declared(zoo, tmp_path):
    picture(tmp_path / "other" / "cat" / "0.png", (0, 0, 0))
    picture(tmp_path / "other" / "bee" / "0.png", (0, 0, 0))
    data = open_data(section("image-folder", tmp_path / "other", labels=["ant", "bee", "cat"], shape=[3, 8, 12]))
    assert everything(data)[1].tolist() == [1, 2]
    assert (data.about.classes, data.test) == (3, None)
    with pytest.raises(
        DataError, match=r"'cat' is not one of data\.labels; did you mean .*bat\? .*add it to data\.labels"
    ):
        open_data(section("image-folder", tmp_path / "other", labels=["ant", "bee", "bat"]))


def test_declared_pictures_may_be_shared_out(zoo):
    keys = {"name": "image-folder", "dir": str(zoo), "shape": [3, 6, 5], "labels": ["ant", "bee"]}
    for normalise in ("auto", "board"):
        shared = recipe(data={**keys, "normalise": normalise})
        training.check(shared)
        training.layout_of(shared)
        about = training.build_workload(shared, 0).about
        assert len(about.mean) == len(about.std) == 3


def test_grey_pictures_and_pictures_without_classes(tmp_path):
    picture(tmp_path / "a.png", (90, 90, 90))
    picture(tmp_path / "b.png", (90, 90, 90))
    data = open_data(section("image-folder", tmp_path, params={"grey": True}))
    assert everything(data)[0].shape == (2, 1, 8, 12)
    assert (data.about.target, data.about.outputs) == ("none", 96)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"params": {"sise": 4}}, ConfigError, "did you mean size"),
        ({"params": {"size": "big"}}, ConfigError, r"say \[height, width\]"),
        ({"params": {"size": 4}, "shape": [3, 5, 5]}, ConfigError, "leave one out"),
        ({"shape": [1, 5, 5]}, ConfigError, r"pictures are \[3, height, width\]"),
    ],
)
def test_sizes_that_cannot_be(zoo, keys, error, message):
    with pytest.raises(error, match=message):
        everything(open_data(section("image-folder", zoo, **keys)))


def test_a_folder_without_pictures(tmp_path):
    with pytest.raises(DataError, match="there are no pictures"):
        open_data(section("image-folder", tmp_path))


def test_pictures_train(zoo):
    chosen = recipe(
        run={"nodes": 2},
        data={"name": "image-folder", "dir": str(zoo), "partition": "local", "shape": [3, 8, 8], "augment": True},
        model={"name": "cnn"},
        training={"batch_size": 4},
    )
    board = training.build_workload(chosen, 1)
    update = board.local_update(board.initial(1), 0)
    assert np.isfinite(update.delta).all()
    assert board.evaluate(board.initial(1)).examples == 1


# -- arrays --------------------------------------------------------------------------------------


def test_arrays_in_one_file_in_two_and_mapped(tmp_path):
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6) % 3
    for name in ("one", "two", "mapped"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "one" / "data.npz", train_inputs=x, train_targets=y)
    np.savez(tmp_path / "two" / "train.npz", inputs=x, targets=y)
    np.savez(tmp_path / "two" / "test.npz", inputs=x[:2], targets=y[:2])
    np.save(tmp_path / "mapped" / "train_inputs.npy", x)
    np.save(tmp_path / "mapped" / "train_targets.npy", y)
    found = {name: open_data(section("npz", tmp_path / name, classes=3)) for name in ("one", "two", "mapped")}
    for data in found.values():
        assert (everything(data)[0] == x).all()
        assert (everything(data)[1] == y).all()
    assert (found["one"].test, len(found["two"].test)) == (None, 2)
    assert isinstance(found["mapped"].train.inputs.array, np.memmap)


@pytest.mark.parametrize(("mapped", "first"), [(True, 0), (True, 20), (False, 20)])
def test_arrays_that_are_shared_out_are_looked_at_as_ones_own_are(tmp_path, mapped, first):
    x, y = np.ones((24, 5), np.float32), np.arange(24) % 4
    x[7, 2] = np.nan
    if mapped:
        np.save(tmp_path / "train_inputs.npy", x)
        np.save(tmp_path / "train_targets.npy", y)
    else:
        np.savez(tmp_path / "train.npz", inputs=x, targets=y)
    shared = {"name": "npz", "dir": str(tmp_path), "train_examples": first}
    one = recipe(run={"nodes": 1}, training={"batch_size": 24}, data=shared)
    with pytest.raises(DataError, match="an input holds a NaN or an infinity"):
        make_loader(open_data(one.data), one, 0).batch(0)


def test_labels_in_a_map_are_looked_at_when_they_are_opened(tmp_path):
    np.save(tmp_path / "train_inputs.npy", np.ones((24, 5), np.float32))
    np.save(tmp_path / "train_targets.npy", np.arange(24) % 10)
    with pytest.raises(DataError, match="found the label 9, but with data.classes = 4"):
        open_data(DataSection(name="npz", dir=str(tmp_path), classes=4))


def test_arrays_that_could_run_code_are_refused(tmp_path):
    np.save(tmp_path / "train_inputs.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"train_inputs\.npy cannot be read by numpy"):
        open_data(section("npz", tmp_path))
    (tmp_path / "train_inputs.npy").unlink()
    with pytest.raises(DataError, match=r"expected train_inputs\.npy, train\.npz or data\.npz"):
        locate(section("npz", tmp_path), Board())
    np.savez(tmp_path / "data.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="expected the arrays train_inputs, .* found x"):
        open_data(section("npz", tmp_path))


@pytest.mark.parametrize("shape", [(10**13,), (10**8,), (2**40, 2**40)])
def test_an_array_that_claims_more_than_is_there_takes_no_memory(tmp_path, shape):
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(entry, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("train_inputs.npy", entry.getvalue() + bytes(64))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"data\.npz cannot be read by numpy: train_inputs claims to be float32"):
        open_data(section("npz", tmp_path))
    with pytest.raises(DataError, match="train_inputs claims to be float32"):
        ModelFile(tmp_path / "data.npz")["train_inputs"]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1e6


# -- what is missing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module", "cure"),
    [
        ("image-folder", "PIL", "pip install pillow"),
        ("csv", "pandas", "pip install pandas"),
        ("parquet", "pyarrow", "pip install pandas pyarrow"),
        ("huggingface", "datasets", "pip install datasets"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_what_to_type(tmp_path, monkeypatch, name, module, cure):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HostError) as caught:
        locate(section(name, tmp_path), Board())
    assert cure in str(caught.value)


def test_flower_partitioners_need_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    chosen = recipe(data={"partition": "flwr", "partitioner": "IidPartitioner"})
    with pytest.raises(HostError, match="pip install flwr-datasets"):
        training.partition_counts(chosen)
    with pytest.raises(ConfigError, match="set both for a partitioner of flwr-datasets"):
        training.check(recipe(data={"partition": "flwr"}))


def test_readers_need_a_folder():
    with pytest.raises(ConfigError, match=r"csv needs data\.dir"):
        training.check(recipe(data={"name": "csv"}))
    with pytest.raises(ConfigError, match="did you mean image-folder"):
        training.check(recipe(data={"name": "imagefolder"}))


def test_extras_are_declared():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {"images", "tables", "parquet", "huggingface"} <= set(project["optional-dependencies"])
    assert json.dumps(project["dependencies"]).count("pillow") == 0


BYTES = np.arange(12 * 28 * 28, dtype=np.int64).reshape(12, 28, 28).astype(np.uint8)
KINDS = np.arange(12) % 3


def arrays_of(folder, inputs, targets, **keys):
    np.savez(folder / "data.npz", train_inputs=inputs, train_targets=targets)
    return open_data(DataSection(name="npz", dir=str(folder), partition="local", **keys))


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (BYTES, r"reshape them to \[1, 28, 28\]; else declare data\.shape = \[28, 28\]"),
        (BYTES[..., None], r"transpose them to \[1, 28, 28\]; else declare data\.shape = \[28, 28, 1\]"),
        (BYTES.reshape(12, 14, 14, 4)[..., :3].astype(np.uint16), r"transpose them to \[3, 14, 14\]"),
        (BYTES.reshape(12, 14, 14, 4)[..., :3] / np.float32(255), r"transpose them to \[3, 14, 14\]"),
    ],
)
def test_pictures_whose_channels_are_not_first_are_asked_about(tmp_path, inputs, wanted):
    with pytest.raises(DataError, match=wanted):
        arrays_of(tmp_path, inputs, KINDS)
    declared = arrays_of(tmp_path, inputs, KINDS, shape=list(inputs.shape[1:]))
    assert declared.about.shape == inputs.shape[1:]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 16), (4, 8, 3), (28, 5)])
def test_ordinary_pictures_and_windows_are_not_asked_about(tmp_path, shape):
    inputs = np.random.default_rng(0).integers(0, 255, (12, *shape)).astype(np.uint8)
    assert arrays_of(tmp_path, inputs, KINDS).about.shape == shape


@pytest.mark.parametrize("masks", [255 * (BYTES > 99), np.where(BYTES > 199, 255, BYTES % 3)])
def test_masks_of_a_few_labels_and_255_are_refused(tmp_path, masks):
    with pytest.raises(DataError, match="labels, and found the label 255, which makes 256 classes"):
        arrays_of(tmp_path, BYTES[:, None], masks.astype(np.uint8))
    assert arrays_of(tmp_path, BYTES[:, None], masks.astype(np.uint8), classes=256).about.classes == 256


def test_whole_numbers_below_0_are_no_tokens(tmp_path):
    numbers = np.arange(36).reshape(12, 3) - 5
    with pytest.raises(DataError, match=r'inputs\[0\] holds -5.* set data\.dtype = "float32"'):
        arrays_of(tmp_path, numbers, KINDS)
    assert arrays_of(tmp_path, numbers, KINDS, dtype="float32").about.dtype == "float32"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train_inputs.npy", "train_target.npy"], r"train_target\.npy would not be read.*did you mean train_targets"),
        (["train_inputs.npy", "train.npz"], r"train_inputs\.npy and train\.npz are both there"),
        (["train_inputs.npy", "test_targets.npy"], "there are test_targets, and no test_inputs"),
        (["mnist.npz"], r"none is there, but mnist\.npz"),
    ],
)
def test_arrays_that_would_not_be_read_are_named(tmp_path, files, message):
    for name in files:
        with (tmp_path / name).open("wb") as file:
            np.savez(file, inputs=np.ones((4, 2))) if name.endswith("z") else np.save(file, np.ones((4, 2)))
    with pytest.raises(DataError, match=message):
        open_data(DataSection(name="npz", dir=str(tmp_path), partition="local"))
