"""`edgegossip.encode` and `decode`: arrays and tensors by public names only."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import edgegossip
from edgegossip import codecs
from edgegossip.types import ConfigError, DecodeError, UsageError

NORMAL = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)


@pytest.mark.parametrize("name", codecs.names())
def test_every_codec_by_its_name(name: str) -> None:
    """What comes back has the shape and the type; bytes that travelled decode to the same; the next
    message goes on."""
    first = edgegossip.encode(NORMAL, name)
    decoded = edgegossip.decode(first)
    assert decoded.shape == NORMAL.shape and decoded.dtype == np.float32
    assert np.array_equal(edgegossip.decode(bytes(first), like=np.empty_like(NORMAL)), decoded)
    assert first.nbytes == len(bytes(first)) > len(first.body) and first.values == NORMAL.size
    assert first.bits_per_value == 8 * len(first.body) / NORMAL.size
    error = np.linalg.norm(decoded - NORMAL) / np.linalg.norm(NORMAL)
    assert first.relative_error(NORMAL) == pytest.approx(error, rel=1e-5)
    second = edgegossip.encode(NORMAL, name, after=first)
    assert second.round == 1 and np.isfinite(edgegossip.decode(second)).all()
    assert bytes(edgegossip.encode(NORMAL, name)) == bytes(first)
    assert repr(first).startswith(f"<Encoded {name}: 2048 values in ")


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("name", codecs.names())
def test_what_fits_a_type_comes_back_finite(name: str) -> None:
    """A codec may overshoot the largest number of a short type: then that comes back."""
    values = np.random.default_rng(0).normal(size=1000)
    values /= np.abs(values).max()
    for most, x in {
        "float16": (65504 * values).astype(np.float16),
        "float32": (3.4e38 * values).astype(np.float32),
        "torch.float16": torch.tensor(65504 * values).half(),
        "torch.bfloat16": torch.tensor(3.38e38 * values).bfloat16(),
    }.items():
        decoded = edgegossip.decode(edgegossip.encode(x, name, loss=1.0, lr=0.1))
        assert str(decoded.dtype) == most and decoded.shape == (1000,)
        assert np.isfinite(np.asarray(decoded, np.float64) if "torch" not in most else decoded.double().numpy()).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_come_back_as_they_were(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(dtype).T.requires_grad_()
    y = edgegossip.decode(edgegossip.encode(x, "fp32"))
    assert y.dtype == dtype and torch.equal(y, x) and not y.requires_grad


@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7),
        elements=st.floats(-1000, 1000, width=16),
    )
)
def test_arrays_of_any_shape_and_type_come_back_exactly(x: Any) -> None:
    y = edgegossip.decode(edgegossip.encode(x, "fp32"))
    assert y.dtype == x.dtype and y.shape == x.shape and np.array_equal(y, x)
    tensor = edgegossip.decode(edgegossip.encode(torch.from_numpy(x), "fp32"))
    assert torch.equal(tensor, torch.from_numpy(x))


def test_a_matrix_comes_back_in_its_shape() -> None:
    x = np.matrix([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert np.array_equal(edgegossip.decode(edgegossip.encode(x, "fp32")), np.asarray(x))


def test_several_by_name_or_in_a_row() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    by_name = edgegossip.decode(edgegossip.encode(dict(model.named_parameters()), "bf16"))
    model.load_state_dict(by_name)
    listed = edgegossip.decode(edgegossip.encode(list(model.parameters()), "fp32"))
    assert isinstance(listed, list) and all(map(torch.equal, listed, by_name.values()))
    mixed = edgegossip.decode(edgegossip.encode((NORMAL, torch.ones(2)), "fp32"))
    assert isinstance(mixed, tuple) and isinstance(mixed[0], np.ndarray) and torch.equal(mixed[1], torch.ones(2))


def test_like_says_what_the_result_is() -> None:
    encoded = edgegossip.encode(NORMAL, "minmax8")
    tensor = edgegossip.decode(encoded, like=torch.empty(32, 64))
    assert np.array_equal(tensor.numpy(), edgegossip.decode(encoded))
    with pytest.raises(UsageError, match="other names or shapes"):
        edgegossip.decode(encoded, like=np.empty(3))


def test_seeds_draw_other_numbers_and_the_mean_of_many_is_the_input() -> None:
    drawn = [edgegossip.decode(edgegossip.encode(NORMAL, "4-bit-elastiquant", seed=k)) for k in range(200)]
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.linalg.norm(np.mean(drawn, 0) - NORMAL) < 0.05 * np.linalg.norm(NORMAL)


def test_what_was_encoded_may_change_afterwards() -> None:
    x = NORMAL.copy()
    encoded = edgegossip.encode(x, "fp32")
    x[:] = 0
    assert np.array_equal(edgegossip.decode(encoded), NORMAL)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.arange(3), "tensor x holds int64: only floating-point values are encoded"),
        ({"steps": torch.tensor(3)}, r"tensor steps holds torch\.int64"),
        (np.ones(2, complex), "holds complex128"),
        ({"a": np.ones(2), "b": np.array([np.nan])}, "tensor b holds NaN"),
        (np.array([1e300]), "tensor x holds NaN or infinite values .* or the numbers are beyond float32"),
        ([1.0, 2.0], "0 is of type float: encode takes numpy arrays and torch tensors"),
        (torch.nn.Linear(2, 2), r"x is of type Linear.*give dict\(model\.named_parameters\(\)\)"),
        ({}, "nothing to encode"),
        ({1: np.ones(2)}, "names of tensors are text, and one is 1"),
        (torch.ones(2, 2).to_sparse(), "tensor x is sparse"),
        (torch.ones(2, device="meta"), "tensor x is on the meta device"),
        ([np.ma.masked_array(np.ones(2), mask=[0, 1])], "tensor 0 is a masked array"),
    ],
)
def test_what_cannot_be_encoded_is_named(x: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        edgegossip.encode(x, "fp32")


def test_a_wrong_codec_parameter_or_stream_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean topk"):
        edgegossip.encode(NORMAL, "topq")
    with pytest.raises(ConfigError, match="ratio = 2 is outside"):
        edgegossip.encode(NORMAL, "topk", ratio=2)
    with pytest.raises(ConfigError, match="has its parameters already: leave ratio out"):
        edgegossip.encode(NORMAL, codecs.get("topk"), ratio=0.1)
    first = edgegossip.encode(NORMAL, "co3")
    with pytest.raises(ConfigError, match="this one is to be of"):
        edgegossip.encode(NORMAL, "dgc", after=first)
    with pytest.raises(ConfigError, match="other names or shapes"):
        edgegossip.encode(NORMAL.T, "co3", after=first)
    with pytest.raises(UsageError, match="other names or shapes"):
        first.relative_error(NORMAL.T)


@given(st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    sent = bytearray(bytes(edgegossip.encode(NORMAL, "e-elastiquant")))
    sent[data.draw(st.integers(0, len(sent) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DecodeError):
        edgegossip.decode(sent, like=NORMAL)


def test_bytes_of_other_tensors_are_refused() -> None:
    sent = bytes(edgegossip.encode(NORMAL, "fp16"))
    with pytest.raises(DecodeError, match="other names or shapes than `like`"):
        edgegossip.decode(sent, like=NORMAL.T)
    with pytest.raises(UsageError, match="bytes do not say names and shapes"):
        edgegossip.decode(sent)
    with pytest.raises(UsageError, match="this is a ndarray"):
        edgegossip.decode(NORMAL)  # type: ignore[arg-type]


def test_examples_of_the_docstrings() -> None:
    from edgegossip import encoding

    found = doctest.testmod(encoding)
    assert found.attempted > 8 and not found.failed
