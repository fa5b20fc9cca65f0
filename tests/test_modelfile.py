"""Model files: what is written comes back, the safetensors library reads it, and nothing in a file
is trusted."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from edgegossip.modelfile import ModelFile, write_model
from edgegossip.types import ConfigError, DataError

ARRAYS = {
    "body.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "phase": np.array([1 + 2j, 3 - 1j], np.complex64),
    "mask": np.array([True, False, True]),
    "file": np.array([-1, 2, 3], np.int8),
    "half": np.array([[0.5]], np.float16),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "big-endian": np.array([1, 2], ">i4"),
}
ABOUT = {"board": "pi-01", "round": "40", "travels": "2"}
BOTH = pytest.mark.parametrize("suffix", [".npz", ".safetensors"])


@BOTH
def test_what_is_written_comes_back_in_its_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"m{suffix}"
    assert write_model(path, ARRAYS, ABOUT) == path.stat().st_size
    found = ModelFile(path)
    assert list(found) == list(ARRAYS) and found.about == ABOUT and found.travels == ("body.weight", "steps")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=") and found[name].shape == array.shape
    with pytest.raises(KeyError):
        found["other"]


def test_the_safetensors_library_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    write_model(tmp_path / "ours.safetensors", ARRAYS, ABOUT)
    theirs = safetensors.numpy.load_file(tmp_path / "ours.safetensors")
    assert theirs.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(theirs[name], array)
    with safetensors.safe_open(tmp_path / "ours.safetensors", "numpy") as file:
        assert file.metadata() == ABOUT
    plain = {name: np.ascontiguousarray(a) for name, a in ARRAYS.items() if name != "big-endian"}
    safetensors.numpy.save_file(plain, tmp_path / "theirs.safetensors")
    ours = ModelFile(tmp_path / "theirs.safetensors")
    assert set(ours) == set(plain) == set(ours.travels)
    for name, array in plain.items():
        np.testing.assert_array_equal(ours[name], array)


def test_numpy_reads_our_archives(tmp_path: Path) -> None:
    write_model(tmp_path / "m.npz", ARRAYS, ABOUT)
    with np.load(tmp_path / "m.npz", allow_pickle=False) as archive:
        assert archive.files == list(ARRAYS)
        np.testing.assert_array_equal(archive["turned"], ARRAYS["turned"])


def test_an_archive_of_an_earlier_version_has_no_word_of_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", w=np.ones(3, np.float32))
    old = ModelFile(tmp_path / "old.npz")
    assert old.about == {} and old.travels == ("w",)


def test_what_a_format_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tensor c holds complex128.*write a .npz"):
        write_model(tmp_path / "m.safetensors", {"c": np.zeros(1, np.complex128)}, {})
    with pytest.raises(ConfigError, match="__metadata__"):
        write_model(tmp_path / "m.safetensors", {"__metadata__": np.zeros(1)}, {})
    with pytest.raises(ConfigError, match="m.safetensor: .*did you mean .safetensors"):
        write_model(tmp_path / "m.safetensor", {}, {})
    assert list(tmp_path.iterdir()) == []


def header(tensors: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


EIGHT = bytes(8)
HOSTILE = {
    "nothing": b"",
    "half a length": b"\0\0\0",
    "a header longer than the file": header({}, length=2**40),
    "no JSON": header(b"{"),
    "nested beyond reason": header(b"[" * 100_000),
    "no table": header([], EIGHT),
    "a header that is a number": header(3, EIGHT),
    "a type of another world": header(entry("F4"), EIGHT),
    "no type": header({"w": {}}, EIGHT),
    "a negative size": header(entry(shape=(-2,)), EIGHT),
    "a size that is a text": header(entry(shape=("2",)), EIGHT),
    "half a value": header(entry(shape=(1.5,)), EIGHT),
    "more than the file has": header(entry(shape=(2**40,), offsets=(0, 2**42)), EIGHT),
    "offsets that do not fit the shape": header(entry(offsets=(0, 4)), EIGHT),
    "offsets turned round": header(entry(offsets=(8, 0)), EIGHT),
    "a name twice": header(b'{"w":1,"w":2}', EIGHT),
    "metadata that is no text": header({"__metadata__": {"a": 1}}, EIGHT),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_was_made_to_hurt_is_refused_in_one_sentence(tmp_path: Path, what: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(HOSTILE[what])
    with pytest.raises(DataError, match="cannot read a model|table of texts|stands in its header twice"):
        ModelFile(tmp_path / "m.safetensors")


def test_an_archive_with_objects_in_it_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.array([object()], object))
    with pytest.raises(DataError, match="cannot read tensor w"):
        ModelFile(tmp_path / "m.npz")["w"]
    np.save(tmp_path / "other.npy", np.ones(2))
    (tmp_path / "other.npy").rename(tmp_path / "other.npz")
    with pytest.raises(DataError, match="no archive of arrays"):
        ModelFile(tmp_path / "other.npz")
    (tmp_path / "torn.npz").write_bytes(b"")
    with pytest.raises(DataError, match="cannot read a model from .*torn.npz"):
        ModelFile(tmp_path / "torn.npz")


def test_a_packed_array_that_memory_does_not_hold_is_refused_before_it_takes_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", bomb=np.zeros(1 << 20), fits=np.zeros(10))
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 10)
    file = ModelFile(tmp_path / "a.npz")
    assert file["fits"].shape == (10,)
    with pytest.raises(DataError, match=r"bomb has 8\d* bytes when it is unpacked, and this machine 1048576 of"):
        file["bomb"]
