"""Error feedback: what is lost of one message is made up for by the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.feedback import ErrorFeedback
from edgegossip.codecs.quantised import Reader
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, UsageError

LAYOUT = Layout.of([TensorSpec("w", (30, 20)), TensorSpec("b", (7,))])


def vectors(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(LAYOUT.size).astype(np.float32) for _ in range(count)]


def test_old_states_stay_as_they_were() -> None:
    codec = codecs.error_feedback(codecs.get("minmax8"))
    first, second = vectors(2)
    _, state = codec.encode(first, codec.init(LAYOUT), codecs.Ctx(key=1, round=0))
    kept = state.memory.copy()
    one, _ = codec.encode(second, state, codecs.Ctx(key=2, round=1))
    two, _ = codec.encode(second, state, codecs.Ctx(key=2, round=1))
    assert bytes(one) == bytes(two)
    np.testing.assert_array_equal(state.memory, kept)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("inner", ["e-elastiquant", "elasticl"])
def test_a_body_of_its_own_is_read_once(inner: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign ones are checked before anything is added; this one was just made."""
    reads: list[bool] = []
    read = Reader.read
    monkeypatch.setattr(
        Reader, "read", lambda self, out, weight: (reads.append(out is None), read(self, out, weight))[1]
    )
    codec = codecs.get(
        "error-feedback", codec={"name": "small-tensors", "codec": inner, "below": 9} if wrapped else inner
    )
    body, state = codec.encode(vectors(1)[0], codec.init(LAYOUT), codecs.Ctx(key=1, round=0))
    assert reads == [False]
    total = vectors(1)[0]
    codec.decode(body, LAYOUT, total, -1.0)
    np.testing.assert_array_equal(total, state.memory)


def test_the_receiver_needs_the_inner_codec_only() -> None:
    codec = codecs.get("error-feedback", codec="minmax8")
    assert codec.name == "error-feedback(minmax8)"
    assert (codec.wire_id, codec.wire_params()) == (3, b"")


def test_a_sum_beyond_float32_names_the_tensor() -> None:
    codec = codecs.get("ef-signsgd")
    x = np.zeros(LAYOUT.size, np.float32)
    x[-1] = np.finfo(np.float32).max

    def send_ten() -> None:
        state = codec.init(LAYOUT)
        for k in range(10):
            _, state = codec.encode(x, state, codecs.Ctx(key=k, round=k))

    with pytest.raises(UsageError, match="^tensor b holds NaN or infinite values"):
        send_ten()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("topkk", "there is no codec 'topkk'; did you mean topk?"),
        ({"ratio": 0.1}, "codec error-feedback: codec needs the name of a codec"),
        ({"name": "topk", "ratio": 2.0}, "codec topk: ratio = 2.0 is "),
        (3, "codec error-feedback: codec = 3 is not a codec's name or table"),
    ],
)
def test_a_bad_inner_codec(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        codecs.get("error-feedback", codec=value)


@pytest.mark.parametrize("wrap", ["per-tensor", "small-tensors"])
@pytest.mark.parametrize("at", ["codec", "other"])
@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("dgc", "dgc has a memory of its own and needs no other"),
        ("randk", "randk scales its values up to be unbiased"),
        ({"name": "dither", "error": 1.0}, "dither adds an error as large as what it sends"),
        ({"name": "dither", "bytes": 4000}, "dither has an error that follows from its bytes"),
        ("2-bit-qsgd", "qsgd has too few levels for buckets of 512 values"),
    ],
)
def test_wrappers_hide_nothing(wrap: str, at: str, inner: object, message: str) -> None:
    wrapped = codecs.get(wrap, **{"codec": "fp16", at: inner})
    with pytest.raises(ConfigError, match=f"^codec error-feedback: {message}"):
        codecs.error_feedback(wrapped)
    with pytest.raises(ConfigError, match=f"^codec error-feedback: {message}"):
        codecs.get("error-feedback", codec={"name": wrap, at: inner})


def test_a_codecs_wrapper_of_ones_own_hides_nothing_either() -> None:
    class Own:
        name, codec = "own", codecs.get("small-tensors", codec="dgc")

    with pytest.raises(ConfigError, match="^codec error-feedback: dgc has a memory of its own"):
        codecs.error_feedback(Own())  # type: ignore[type-var]


GROWING = [
    ("2-bit-qsgd", {}),
    ("qsgd", {}),
    ("elastiquant", {"bits": 3}),
]
BOUNDED = [
    ("4-bit-qsgd", {"bucket": 256}, 4),
    ("4-bit-elastiquant", {}, 1),
    ("elastiquant", {"bits": 3, "bucket": 64}, 2),
    ("elasticl", {}, 1),
]


def relative_memory(codec: codecs.Codec[Any], messages: int, decay: float = 1.0) -> list[float]:
    """||memory|| / ||x|| after each of these messages of normally distributed vectors."""
    layout, rng, norms = Layout.of([TensorSpec("w", (64, 128))]), np.random.default_rng(1), []
    wrapped = object.__new__(ErrorFeedback)  # past what refuses it
    for field, value in {"codec": codec, "decay": decay, "title": ""}.items():
        object.__setattr__(wrapped, field, value)
    state = wrapped.init(layout)
    for k in range(messages):
        x = rng.standard_normal(layout.size).astype(np.float32)
        _, state = wrapped.encode(x, state, codecs.Ctx(key=k * 0x9E3779B97F4A7C15 % 2**64, round=k))
        norms.append(float(np.linalg.norm(state.memory) / np.linalg.norm(x)))
    return norms


@pytest.mark.parametrize(("name", "params"), GROWING, ids=str)
def test_codecs_whose_memory_grows_without_end_are_refused(name: str, params: dict[str, Any]) -> None:
    codec = codecs.get(name, **params)
    with pytest.raises(ConfigError, match="has too few levels for buckets of [0-9]+ values: the error would grow"):
        codecs.error_feedback(codec)
    norms = relative_memory(codec, 60)
    assert norms[59] > 3 * norms[29] > 9 * norms[9]


@pytest.mark.parametrize(("name", "params", "most"), BOUNDED, ids=str)
def test_codecs_whose_memory_stays_small_are_taken(name: str, params: dict[str, Any], most: float) -> None:
    codec = codecs.get(name, **params)
    assert codecs.error_feedback(codec).codec is codec
    assert max(relative_memory(codec, 60)) < most


def test_dither_in_so_many_bytes_is_refused_as_its_error_is_open() -> None:
    few = codecs.get("dither", bytes=300)
    assert relative_memory(few, 12)[11] > 1e3
    with pytest.raises(ConfigError, match="dither has an error that follows from its bytes, .*; take deadzone"):
        codecs.error_feedback(few)
    for bounded in (codecs.get("dither", step=1.0), codecs.get("deadzone", bytes=300)):
        assert max(relative_memory(codecs.error_feedback(bounded).codec, 60)) < 8


def test_a_smaller_decay_bounds_what_would_grow() -> None:
    codec = codecs.get("4-bit-qsgd")
    assert codecs.error_feedback(codec, 0.7).decay == 0.7
    assert max(relative_memory(codec, 60, 0.7)) < 4


def test_what_cannot_have_feedback() -> None:
    for inner in ("ef-signsgd", "co3", "dgc", "powersgd"):
        with pytest.raises(ConfigError, match="has a memory of its own and needs no other$"):
            codecs.get("error-feedback", codec=inner)
    with pytest.raises(ConfigError, match="randk scales its values up to be unbiased"):
        codecs.get("error-feedback", codec="randk")
    codecs.get("error-feedback", codec={"name": "randk", "unbiased": False})
    with pytest.raises(ConfigError, match="decay = 7.0 is outside 0.0 to 1.0"):
        codecs.error_feedback(codecs.get("fp16"), 7.0)
