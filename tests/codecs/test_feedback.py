"""Error feedback: what is lost of one message is made up for by the next."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.feedback import error_feedback
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, LocalError

LAYOUT = Layout.of([TensorSpec("w", (30, 20)), TensorSpec("b", (7,))])


def vectors(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(LAYOUT.size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("inner", ["minmax8", "signsgd", "4-bit-elastiquant", {"name": "topk", "ratio": 0.05}], ids=str)
def test_memory_is_what_the_papers_lines_say(inner: object, decay: float) -> None:
    codec = codecs.get("error-feedback", codec=inner, decay=decay)
    state, memory = codec.init(LAYOUT), np.zeros(LAYOUT.size, np.float32)
    for k, x in enumerate(vectors(4)):
        body, state = codec.encode(x, state, codecs.Ctx(key=k, round=k))
        corrected = np.float32(decay) * memory + x
        sent = codec.decode(body, LAYOUT)
        memory = corrected - sent
        np.testing.assert_array_equal(state.memory, memory)


def test_a_sum_of_messages_approaches_the_sum_of_inputs() -> None:
    """One bit a value: without feedback the error of the mean stays, with it, it falls with the number of messages."""
    x = vectors(1)[0]
    errors = {}
    for codec in (codecs.get("signsgd"), codecs.get("ef-signsgd")):
        state, total = codec.init(LAYOUT), np.zeros(LAYOUT.size, np.float32)
        for k in range(200):
            body, state = codec.encode(x, state, codecs.Ctx(key=k, round=k))
            codec.decode(body, LAYOUT, total, 1 / 200)
        errors[codec.name] = codecs.relative_error(x, total)
    assert errors["signsgd"] > 0.5 and errors["ef-signsgd"] < 0.06, errors


def test_old_states_stay_as_they_were() -> None:
    codec = error_feedback(codecs.get("minmax8"))
    first, second = vectors(2)
    _, state = codec.encode(first, codec.init(LAYOUT), codecs.Ctx(key=1, round=0))
    kept = state.memory.copy()
    one, _ = codec.encode(second, state, codecs.Ctx(key=2, round=1))
    two, _ = codec.encode(second, state, codecs.Ctx(key=2, round=1))
    assert bytes(one) == bytes(two)
    np.testing.assert_array_equal(state.memory, kept)


def test_the_receiver_needs_the_inner_codec_only() -> None:
    codec = codecs.get("error-feedback", codec="minmax8")
    assert codec.name == "error-feedback(minmax8)"
    assert (codec.wire_id, codec.wire_params()) == (3, b"")


def test_a_sum_beyond_float32_names_the_tensor() -> None:
    codec = codecs.get("ef-signsgd")
    x = np.zeros(LAYOUT.size, np.float32)
    x[-1] = np.finfo(np.float32).max
    state = codec.init(LAYOUT)
    with pytest.raises(LocalError, match="^tensor b holds NaN or infinite values"):
        for k in range(10):
            _, state = codec.encode(x, state, codecs.Ctx(key=k, round=k))


@pytest.mark.parametrize(
    "value, message",
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


def test_what_cannot_have_feedback() -> None:
    for inner in ("ef-signsgd", "co3", "dgc", "powersgd"):
        with pytest.raises(ConfigError, match="has a memory of its own and needs no other$"):
            codecs.get("error-feedback", codec=inner)
    with pytest.raises(ConfigError, match="randk scales its values up to be unbiased"):
        codecs.get("error-feedback", codec="randk")
    codecs.get("error-feedback", codec={"name": "randk", "unbiased": False})
    with pytest.raises(ConfigError, match="decay = 7.0 is outside 0.0 to 1.0"):
        error_feedback(codecs.get("fp16"), 7.0)
