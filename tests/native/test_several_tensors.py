"""Huffman coded sections of several tensors, whose blocks are decoded side by side:
as one by one, whatever lies between them."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import native
from edgegossip.native import coding
from edgegossip.native.quantise import Quantiser
from tests.native.sections import decode, geometric, log2, uniform

ISAS = native.available_isas()
HUFFMAN = 1


def values(sizes, seed=0):
    """Dense tensors and, every third one, tensors of mostly zeros."""
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(n) * (rng.random(n) < (0.1 if k % 3 == 2 else 1)) for k, n in enumerate(sizes)]
    return np.concatenate([*parts, []]).astype(np.float32)


def offsets_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def encoded(q, x, offsets, choice):
    out = np.empty(coding.bound_of(offsets, q, choice), np.uint8)
    keys = list(range(1, len(offsets)))
    size = coding.encode_all(q, x, offsets, keys, choice, coding.new_state(), out)
    assert size >= 0
    return out[:size]


def decoded(q, body, offsets, out, weight=None, first=0, position=0, **how):
    return coding.decode_all(q, body, position, offsets, first, coding.new_state(), out, weight, **how)


def section_starts(q, body, offsets):
    """Where each tensor's section begins; -1 for tensors without values."""
    starts, position, state = [], 0, coding.new_state()
    for k in range(len(offsets) - 1):
        n = int(offsets[k + 1] - offsets[k])
        starts.append(position if n else -1)
        if n:
            position = decode(q, body, n, at=position, state=state)
            assert position > 0
    assert position == len(body)
    return starts


@settings(max_examples=15)
@given(
    sizes=st.lists(
        st.one_of(st.sampled_from([0, 1, 300, 5000, 8192, 65536, 65537]), st.integers(8192, 150_000)),
        min_size=1,
        max_size=9,
    ),
    q=st.sampled_from(
        [uniform(3), uniform(4, 512), uniform(4, 65536), uniform(4, 16384), log2(4, 8), geometric(4, 2048)]
    ),
    threads=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_several_tensors_come_back_as_from_the_raw_coder(sizes, q, threads, seed):
    x, offsets = values(sizes, seed), offsets_of(sizes)
    body = encoded(q, x, offsets, "huffman")
    wanted = np.empty(x.size, np.float32)
    raw = encoded(q, x, offsets, "raw")
    assert decoded(q, raw, offsets, wanted) == (len(sizes), len(raw))
    for isa in ISAS:
        out = np.full(x.size, np.nan, np.float32)
        assert decoded(q, body, offsets, out, isa=isa, threads=threads) == (len(sizes), len(body))
        np.testing.assert_array_equal(out, wanted)
        assert decoded(q, body, offsets, None, isa=isa, threads=threads) == (len(sizes), len(body))
        out = np.ones(x.size, np.float32)
        assert decoded(q, body, offsets, out, 2.0, isa=isa, threads=threads) == (len(sizes), len(body))
        np.testing.assert_array_equal(out, np.float32(1) + np.float32(2) * wanted)


SIZES = [10_000, 400, 140_000, 9000, 30_000]
Q: Quantiser = uniform(4, 16)  # few zeros


@pytest.fixture(scope="module")
def body():
    x = values([sum(SIZES)])  # so that all tensors have the same table
    made = encoded(Q, x, offsets_of(SIZES), "huffman")
    starts = section_starts(Q, made, offsets_of(SIZES))
    assert [made[at] for at, n in zip(starts, SIZES, strict=True) if n > 1000] == [HUFFMAN] * 4
    return made, starts


def bad_last_byte(body, end):
    """In place of the last one of the section that ends there: with it, it is none."""
    trial = body.copy()
    for byte in range(256):
        trial[end - 1] = byte
        if decoded(Q, trial, offsets_of(SIZES), None)[1] in coding.FAULTS:
            return byte
    raise AssertionError("any byte would do")


@pytest.mark.parametrize("bad", [(0,), (2,), (4,), (0, 4), (2, 3), (3, 4)])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_tensor_with_an_error_is_named(body, bad, threads):
    """Errors of streams are found late, when blocks of all tensors are read; that of the first
    tensor counts."""
    made, starts = body
    whole, made, offsets, ends = made, made.copy(), offsets_of(SIZES), [*starts[1:], len(made)]
    for k in bad:
        made[ends[k] - 1] = bad_last_byte(whole, ends[k])
    for isa in ISAS:
        for out in (None, np.empty(int(offsets[-1]), np.float32)):
            tensor, fault = decoded(Q, made, offsets, out, isa=isa, threads=threads)
            assert tensor == bad[0] and fault in coding.FAULTS


def test_an_error_that_is_seen_at_once_does_not_hide_one_before_it(body):
    made, starts = body
    made, offsets = made.copy(), offsets_of(SIZES)
    byte = bad_last_byte(made, starts[3])
    made[starts[4]] = 99  # no coder
    assert decoded(Q, made, offsets, None)[0] == 4
    made[starts[3] - 1] = byte  # of tensor 2
    tensor, fault = decoded(Q, made, offsets, None)
    assert tensor == 2 and fault in coding.FAULTS
    made[starts[0]] = 99
    assert decoded(Q, made, offsets, None)[0] == 0


def test_tensors_before_a_zstd_section_are_done(body):
    made, starts = body
    made, offsets = made.copy(), offsets_of(SIZES)
    wanted, out = np.empty(int(offsets[-1]), np.float32), np.zeros(int(offsets[-1]), np.float32)
    decoded(Q, made, offsets, wanted)
    made[starts[3]] = 4
    assert decoded(Q, made, offsets, out) == (3, starts[3])
    np.testing.assert_array_equal(out[: offsets[3]], wanted[: offsets[3]])
    assert not out[offsets[3] :].any()


ALONE = """
import numpy as np
from edgegossip import codecs
from edgegossip.layout import Layout, TensorSpec
sizes = [968, 800, 550, 550, 484, 484, 352, 352, 352, 352, 275, 121, 121, 121, 99, 99, 22, 22, 11, 11]
layout = Layout.of([TensorSpec(f"t{k}", (n,)) for k, n in enumerate(sizes)])
codec, rng = codecs.get("e-elastiquant"), np.random.default_rng(0)
for key in range(200):
    x = rng.standard_normal(layout.size).astype(np.float32)
    body, _ = codec.encode(x, codec.init(layout), codecs.Ctx(key, key))
    assert np.linalg.norm(codec.decode(body, layout) - x) < np.linalg.norm(x)
    beside = [bytes(size) for size in range(0, 4000, 37)]  # whose memory is just behind
    assert not any(map(any, beside))
"""


def test_short_tensors_side_by_side_stay_within_their_room():
    """In a process that has decoded nothing larger: memory for longer tensors is kept."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
