"""Readers: what is published is read, what is damaged is named."""

import gzip
import os
import struct
import tracemalloc

import numpy as np
import pytest

from edgegossip.recipe import DataSection
from edgegossip.training.data import locate, open_data
from edgegossip.training.data.folders import data_root
from edgegossip.training.data.vision import read_idx
from edgegossip.types import ConfigError, DataError, HostError
from tests.training.fakes import RECORD, put, write_cifar, write_idx


def every(examples):
    return examples.inputs.take(np.arange(len(examples)))


def test_digits_split_is_fixed_and_stratified():
    data = open_data(DataSection())
    assert (len(data.train), len(data.test)) == (1442, 355)
    share = np.bincount(data.test.labels) / (np.bincount(data.train.labels) + np.bincount(data.test.labels))
    assert (np.abs(share - 0.2) < 0.01).all()
    images = every(data.train)
    assert images.shape == (1442, 1, 8, 8)
    assert images.dtype == np.uint8
    assert images.max() == 16
    assert (abs(images.mean() - data.about.mean[0]), abs(images.std() - data.about.std[0])) < (0.1, 0.1)
    assert data.test.labels[:5].tolist() == open_data(DataSection()).test.labels[:5].tolist()


def test_cifar_binary(tmp_path):
    write_cifar(tmp_path)
    for folder in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        data = open_data(DataSection(name="cifar10", dir=str(folder)))
        assert (len(data.train), len(data.test)) == (50_000, 10_000)
        assert data.train.labels[[0, 1, 10_000, 40_003]].tolist() == [0, 1, 1, 7]
        # In the order asked for, across files, repeats included.
        images = data.train.inputs.take(np.array([40_000, 0, 10_001, 40_000, 49_999]))
        assert images.shape == (5, 3, 32, 32)
        assert images.reshape(5, -1).max(1).tolist() == [4, 0, 1, 4, 0]
        assert every(data.test)[19].max() == 5


def test_cifar_binary_planes_are_red_green_blue_row_major(tmp_path):
    out = write_cifar(tmp_path)
    with (out / "data_batch_1.bin").open("r+b") as file:
        file.seek(1 + 1024 + 32 * 2 + 3)  # green plane, row 2, column 3
        file.write(b"\x63")
    image = open_data(DataSection(name="cifar10", dir=str(tmp_path))).train.inputs.take(np.array([0]))[0]
    assert image[1, 2, 3] == 0x63
    assert np.count_nonzero(image) == 1


def test_cifar_truncated_and_mislabelled_files_are_named(tmp_path):
    out = write_cifar(tmp_path)
    section = DataSection(name="cifar10", dir=str(tmp_path))
    victim = out / "data_batch_3.bin"
    with victim.open("r+b") as file:
        file.write(b"\x0a")
    with pytest.raises(DataError, match=r"data_batch_3\.bin: expected labels 0 to 9, found 10"):
        open_data(section)
    os.truncate(victim, 5000)
    with pytest.raises(DataError, match=r"data_batch_3\.bin: expected 30730000 bytes .* found 5000"):
        open_data(section)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx(tmp_path, name, zipped):
    write_idx(tmp_path / name, zipped=zipped)
    data = open_data(DataSection(name=name, dir=str(tmp_path)))
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.labels[[0, 13, 59_999]].tolist() == [0, 3, 9]
    images = data.train.inputs.take(np.array([300, 2]))
    assert images.shape == (2, 1, 28, 28)
    assert images.reshape(2, -1).max(1).tolist() == [49, 2]


def idx(magic=0x803, sizes=(4, 2, 2), values=16):
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + bytes(values)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(values=15), "expected 16 values after the header, found 15"),
        (idx(values=17), "expected 16 values after the header, found more"),
        (idx(magic=0x801), "expected the idx header"),
        (idx(sizes=(5, 2, 2), values=20), r"expected the idx header \[2051, 4, 2, 2\], found \[2051, 5, 2, 2\]"),
        (b"\x00\x00", "expected the idx header"),
        (b"", "expected the idx header"),
    ],
)
def test_damaged_idx(tmp_path, content, message, zipped):
    put(tmp_path / "images", content, zipped)
    with pytest.raises(DataError, match=f"images.*{message}"):
        read_idx(tmp_path / "images", (4, 2, 2))


def test_damaged_gzip(tmp_path):
    whole = gzip.compress(idx())
    for content in (whole[:-12], b"not gzip at all", whole[:15] + bytes([whole[15] ^ 255]) + whole[16:]):
        (tmp_path / "images.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"images\.gz: expected"):
            read_idx(tmp_path / "images", (4, 2, 2))


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx() + bytes(50_000_000), 1))
    tracemalloc.start()
    with pytest.raises(DataError, match="found more"):
        read_idx(tmp_path / "images", (4, 2, 2))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5_000_000


def test_first_examples_only():
    data = open_data(DataSection(train_examples=100, test_examples=7))
    assert (len(data.train), len(data.test)) == (100, 7)
    assert len(open_data(DataSection(train_examples=10**6)).train) == 1442


def test_missing_data_names_folder_and_command(tmp_path):
    with pytest.raises(DataError) as caught:
        locate(DataSection(name="cifar10", dir=str(tmp_path)))
    text = str(caught.value)
    assert str(tmp_path) in text
    assert f"edgegossip data download cifar10 --dir {tmp_path}" in text
    assert "data_batch_1.bin is missing" in text


def test_a_missing_file_of_a_started_set_is_the_one_named(tmp_path):
    out = write_cifar(tmp_path)
    (out / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin/data_batch_4\.bin is missing"):
        locate(DataSection(name="cifar10", dir=str(tmp_path)))


def test_unknown_data_set_names_the_nearest():
    with pytest.raises(ConfigError, match=r"data\.name = 'cifar' is not known; did you mean cifar10\?"):
        open_data(DataSection(name="cifar"))


def test_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEGOSSIP_DATA", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    assert data_root() == tmp_path / "a"
    monkeypatch.delenv("EDGEGOSSIP_DATA")
    assert data_root() == tmp_path / "b" / "edgegossip"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".local/share/edgegossip"
    with pytest.raises(HostError, match="~nobody-of-this-name/x: this machine knows no such home folder"):
        data_root("~nobody-of-this-name/x")
    monkeypatch.setenv("EDGEGOSSIP_DATA", str(tmp_path / "a"))
    write_cifar(tmp_path / "a")
    locate(DataSection(name="cifar10"))
    assert RECORD == 1 + 3 * 32 * 32
