"""Another codec by tensor: runs of neighbours, keys of their own, and bodies that lie."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from edgegossip import codecs
from edgegossip.codecs.per_tensor import Rule
from edgegossip.layout import SUMS, Layout, TensorSpec
from edgegossip.types import ConfigError, DecodeError, UsageError

SHAPES = {"conv.weight": (8, 4), "conv.bias": (8,), "empty": (0,), "fc.weight": (10, 8), "fc.bias": (10,)}
LAYOUT = Layout.of(TensorSpec(name, shape) for name, shape in SHAPES.items())
X = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32)
CTX = codecs.Ctx(key=9, round=0)


def encode(codec: codecs.Codec[Any], x: np.ndarray = X) -> bytes:
    return bytes(codec.encode(x, codec.init(LAYOUT), CTX)[0])


def test_small_tensors_are_nearly_exact_and_the_others_are_not() -> None:
    codec = codecs.get("small-tensors", codec="minmax8", below=20)
    y = LAYOUT.views(codec.decode(encode(codec), LAYOUT))
    for name, x in LAYOUT.views(X).items():
        assert (np.array_equal(y[name], x.astype(np.float16).astype(np.float32))) == (x.size < 20), name


def test_names_by_pattern() -> None:
    codec = codecs.get("per-tensor", codec="minmax8", tensors="fc.*", other={"name": "fp32"})
    y = LAYOUT.views(codec.decode(encode(codec), LAYOUT))
    for name, x in LAYOUT.views(X).items():
        assert np.array_equal(y[name], x) == (name.startswith("fc.") or x.size == 0), name


def test_runs_of_one_random_codec_do_not_share_their_random_numbers() -> None:
    """The same values in two runs, with another codec between them, are not rounded alike."""
    layout = Layout.of([TensorSpec("a", (4096,)), TensorSpec("b.x", (1,)), TensorSpec("c", (4096,))])
    part = np.random.default_rng(2).standard_normal(4096).astype(np.float32)
    x = np.concatenate([part, part[:1], part])
    codec = codecs.get("per-tensor", codec="4-bit-elastiquant", tensors="b.*")
    y = layout.views(codec.decode(codec.encode(x, codec.init(layout), CTX)[0], layout))
    assert (y["a"] != y["c"]).mean() > 0.1


@pytest.mark.parametrize("choice", [3, -1, 300, 1.0, None, "0"])
def test_a_choice_that_is_no_codec_names_the_tensor(choice: Any) -> None:
    codec = codecs.by_tensor([codecs.get("fp32"), codecs.get("fp16")], lambda t: choice if t.name == "fc.weight" else 0)
    with pytest.raises(UsageError, match="^codec per-tensor: the choice for tensor fc.weight is .* one of 2 codecs$"):
        codec.init(LAYOUT)


def test_a_choice_may_be_a_truth_or_a_number_of_numpy() -> None:
    made = codecs.by_tensor([codecs.get("fp32"), codecs.get("fp16")], lambda t: np.int64(t.size > 10))
    assert made.init(LAYOUT).choices == codecs.by_tensor(made.codecs, lambda t: t.size > 10).init(LAYOUT).choices


def test_a_sum_makes_no_vector_of_the_models_size() -> None:
    layout = Layout.of([TensorSpec("a", (300_000,)), TensorSpec("b.bias", (5,)), TensorSpec("c", (300_000,))])
    x = np.random.default_rng(3).standard_normal(layout.size).astype(np.float32)
    out = np.zeros(layout.size, np.float32)
    for inner in ("minmax8", "fp16", "e-elastiquant", "co3", "elasticl", "signsgd", "qsgd"):
        codec = codecs.get("per-tensor", codec=inner)
        body = codec.encode(x, codec.init(layout), CTX)[0]
        codec.decode(body, layout, out, 1.0)
        tracemalloc.start()
        codec.decode(body, layout, out, 1.0)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 100_000, (inner, most)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:4], "the per-tensor body ends within the choices of 5 tensors"),
        (lambda b: b"\x02" + b[1:], "the per-tensor body chooses codec 2, there are 2"),
        (lambda b: b[:7], "the per-tensor body ends within a length"),
        (
            lambda b: b[:5] + struct.pack("<I", 2**32 - 1) + b[9:],
            "the per-tensor body holds [0-9]+ bytes where 4294967295",
        ),
        (lambda b: b + b"\0", "the per-tensor body is followed by 1 bytes"),
    ],
)
def test_bodies_that_lie_leave_a_sum_alone(change: Any, message: str) -> None:
    codec = codecs.get("small-tensors", codec="minmax8", below=20)
    out = np.full(LAYOUT.size, 7, np.float32)
    with pytest.raises(DecodeError, match=f"^{message}"):
        codec.decode(change(encode(codec)), LAYOUT, out, 1.0)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("main", "other"), [("fp32", "qsgd"), ("topk", "minmax8"), ("minmax8", "topk"), ("qsgd", "fp32")]
)
def test_damage_in_any_run_leaves_a_sum_alone(main: str, other: str) -> None:
    """Whichever run is the largest, with a check of its own or without."""
    codec = codecs.get("per-tensor", codec=main, tensors="conv.*", other=other)
    body = bytearray(encode(codec))
    for at in range(len(body)):
        damaged = bytes(body[:at]) + b"\xff\xff\xff\xff" + bytes(body[at + 4 :])
        out = np.full(LAYOUT.size, 7, np.float32)
        try:
            codec.decode(damaged, LAYOUT, out, 1.0)
        except DecodeError as error:
            reason = str(error)
        else:
            codec.check(damaged, LAYOUT)
            continue
        assert reason and (out == 7).all()
        with pytest.raises(DecodeError):
            codec.check(damaged, LAYOUT)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (b"", "the per-tensor parameters name no codec"),
        (b"\1\0", "the per-tensor parameters end within an entry"),
        (struct.pack("<HH", 1, 5), "the per-tensor parameters end within a codec's parameters"),
        (struct.pack("<HH", 16, 0), "a codec inside per-tensor cannot itself choose by tensor"),
        (struct.pack("<HH", 999, 0), "unknown codec id 999"),
        (struct.pack("<HH", 1, 0) * 9, "the per-tensor parameters name more than 8 codecs"),
    ],
)
def test_parameters_that_lie(params: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=f"^{message}"):
        codecs.from_wire(16, params)


def test_what_cannot_be_inside() -> None:
    inner = codecs.get("per-tensor", codec="fp16")
    with pytest.raises(ConfigError, match="cannot itself choose by tensor"):
        codecs.get("per-tensor", codec=inner)
    with pytest.raises(ConfigError, match="from 1 to 8 codecs are possible, got 9"):
        codecs.by_tensor([codecs.get("fp32")] * 9, Rule())
    long = codecs.get("elastiquant", bits=8, levels=[k / 124 for k in range(125)])
    with pytest.raises(ConfigError, match="take more than 512 bytes"):
        codecs.by_tensor([long, long], Rule())


STATISTICS = Layout.of([*LAYOUT.tensors, TensorSpec("norm.running_var", (8,), trainable=False)])


@pytest.mark.parametrize("name", codecs.names())
def test_statistics_and_sums_over_boards_travel_exactly_whatever_the_codec(name: str) -> None:
    """As of layers, as the variance of air pressure in Pa (fp16 ends at 65,504), and as the squares
    of small values. Where there are none, a codec is as it was."""
    plain, n = codecs.get(name), LAYOUT.size
    assert codecs.for_layout(plain, LAYOUT) is plain
    for kept, scale in (("norm.running_var", 1.0), ("norm.running_var", 810_000.0), (f"{SUMS}squares", 1e-18)):
        layout = Layout.of([*LAYOUT.tensors, TensorSpec(kept, (8,), trainable=False)])
        codec, x = codecs.for_layout(plain, layout), np.random.default_rng(2).uniform(0.1, 2, layout.size)
        x[n:] *= scale
        x = x.astype(np.float32)
        body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(key=9, round=0, loss=1.0, lr=0.1))
        received = codecs.from_wire(codec.wire_id, codec.wire_params()).decode(body, layout)
        assert (received[n:] == x[n:]).all() and (received[:n] == x[:n]).all() == (name == "fp32")


def test_a_choice_by_tensor_keeps_its_choices_beside_exact_statistics() -> None:
    codec = codecs.for_layout(codecs.get("small-tensors", codec="minmax8", below=20, other="bf16"), STATISTICS)
    state = codec.init(STATISTICS)
    assert list(state.choices) == [0, 1, 1, 0, 1, 2] and codec.name == "small-tensors"
