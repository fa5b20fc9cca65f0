"""Sections: what comes back, the same bytes everywhere, never larger than raw, and the codes that
the papers list."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import native
from edgegossip.native import coding, quantise
from tests.conformance.reference_entropy import Decoder
from tests.native import sections
from tests.native.sections import (
    CHOICES,
    CO3_TABLES,
    FP4,
    SIGN,
    TERNARY,
    decode,
    encode,
    exact,
    geometric,
    log2,
    uniform,
)

ISAS = native.available_isas()
QUANTISERS = [
    *(uniform(bits) for bits in range(2, 17)),
    *(uniform(bits, 8) for bits in (2, 4, 7, 12)),
    *(log2(bits, 64) for bits in (2, 3, 4, 5)),
    *(geometric(bits, 512) for bits in (3, 5, 8)),
    FP4,
    SIGN,
]
SIZES = st.one_of(
    st.integers(1, 70),
    st.integers(1000, 1050),
    st.integers(2040, 2060),
    st.integers(4090, 4100),
    st.integers(16380, 16390),
)
DENSITIES = (0.0, 0.0005, 0.02, 0.2, 1.0)


def name_of(q):
    return f"{q.kind.name}-{q.bits}-{q.bucket}"


def raw_size(q, n):
    return 1 + q.scale_bytes(n) + (n * q.bits + 7) // 8


def check(q, n, density, choice, seed, norms):
    """One tensor, there and back."""
    levels, signs = sections.sparse_levels(q, n, density, seed)
    x, scales = exact(q, levels, signs)
    if norms:
        x += np.float32(0.01) * (np.arange(n) % 3 == 0)
        scales = sections.norms(x, q.bucket)
    body = encode(q, x, choice, None if norms else scales)
    assert len(body) <= sections.bound(n, q, choice)
    assert choice == "elias" or len(body) <= raw_size(q, n)
    expected = sections.values_of(q, x, scales)
    if not norms and q.kind is not quantise.LevelKind.SIGN:
        assert ((expected != 0) == (levels > 0)).all() and (np.signbit(expected) == (signs & (levels > 0))).all()
    assert decode(q, body, n) == len(body)
    out = np.full(n, np.nan, np.float32)
    assert decode(q, body, n, out) == len(body)
    np.testing.assert_array_equal(out, expected)
    total = np.arange(n, dtype=np.float32)
    assert decode(q, body, n, total, 0.3) == len(body)
    np.testing.assert_array_equal(total, np.arange(n, dtype=np.float32) + np.float32(0.3) * expected)


@settings(max_examples=100)
@given(
    q=st.sampled_from(QUANTISERS),
    n=SIZES,
    density=st.sampled_from(DENSITIES),
    choice=st.sampled_from(CHOICES),
    seed=st.integers(0, 99),
    norms=st.booleans(),
)
def test_round_trip(q, n, density, choice, seed, norms):
    check(q, n, density, choice, seed, norms and q.kind not in (quantise.LevelKind.FP4, quantise.LevelKind.SIGN))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("n", [65537, 400_011])
@pytest.mark.parametrize("q", [uniform(2), uniform(3, 8), log2(4, 512), uniform(11)], ids=name_of)
def test_round_trip_over_several_blocks(q, n, choice):
    for density in (0.0005, 0.6) if n > 200_000 else (0.02, 0.2):
        check(q, n, density, choice, n, norms=q.bucket > 8)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "q", [TERNARY, uniform(3, 8), uniform(4, 512), geometric(8, 512), uniform(11, 65536), SIGN], ids=name_of
)
@pytest.mark.parametrize("n", [70, 300_011])
def test_same_bytes_on_every_instruction_set_and_for_any_number_of_threads(q, choice, n):
    for density in (0.003, 0.3):
        x, scales = exact(q, *sections.sparse_levels(q, n, density))
        x += np.float32(0.004) * (q.kind is not quantise.LevelKind.SIGN)
        body = encode(q, x, choice, scales, threads=1)
        out = np.empty(n, np.float32)
        assert decode(q, body, n, out, threads=1) == len(body)
        for isa, threads in [*((isa, 1) for isa in ISAS), *((ISAS[-1], t) for t in ((2, 3, 7) if n > 65536 else (2,)))]:
            assert encode(q, x, choice, scales, isa=isa, threads=threads) == body
            again = np.empty(n, np.float32)
            assert decode(q, body, n, again, isa=isa, threads=threads) == len(body)
            np.testing.assert_array_equal(again, out)
            assert decode(q, body, n, isa=isa, threads=threads) == len(body)


# Many tensors in one call.


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("q", [TERNARY, uniform(4, 512), uniform(12, 8), FP4], ids=name_of)
def test_many_tensors_are_their_sections_one_after_the_other(q, choice):
    sizes = [0, 1, 900, 0, 5000, 70_000, 3, 0]
    offsets, keys = np.cumsum([0, *sizes]), [sections.KEY] * len(sizes)
    parts = [exact(q, *sections.sparse_levels(q, n, 0.3, n)) for n in sizes]
    x, scales = (np.concatenate(found) for found in zip(*parts, strict=True))
    state, ends, body = coding.new_state(), [], b""
    for part, own in parts:
        body += encode(q, part, choice, own, state) if part.size else b""
        ends.append(len(body))
    for threads in (1, 3):
        again, room = coding.new_state(), np.empty(coding.bound_of(offsets, q, choice), np.uint8)
        size = coding.encode_all(q, x, offsets, keys, choice, again, room, scales=scales, threads=threads)
        assert room[:size].tobytes() == body and again == state
    out, state = np.full(len(x), np.nan, np.float32), coding.new_state()
    assert coding.decode_all(q, body, 0, offsets, 0, state, None) == (len(sizes), len(body))
    state = coding.new_state()
    assert coding.decode_all(q, body, 0, offsets, 0, state, out) == (len(sizes), len(body))
    np.testing.assert_array_equal(out, np.concatenate([sections.values_of(q, *part) for part in parts]))
    assert coding.decode_all(q, body, ends[5], offsets, 6, coding.new_state(), None) == (len(sizes), len(body))
    zstd = body[: ends[1]] + b"\4" + body[ends[1] + 1 :]
    assert coding.decode_all(q, zstd, 0, offsets, 0, coding.new_state(), None) == (2, ends[1])
    assert coding.decode_all(q, body[:-1], 0, offsets, 0, coding.new_state(), None)[0] == 6


def test_the_tensor_that_is_not_finite_is_named():
    for bad in range(3):
        x = np.ones(30, np.float32)
        x[10 * bad + 3] = np.inf
        room = np.empty(1000, np.uint8)
        offsets = np.array([0, 10, 20, 30])
        assert coding.encode_all(uniform(4, 8), x, offsets, [1, 2, 3], "auto", coding.new_state(), room) == -1 - bad


# What the coders are good for.


def coder(q, density, n=40_000, choice="auto"):
    x, scales = exact(q, *sections.sparse_levels(q, n, density))
    return encode(q, x, choice, scales)[0]


def test_the_coder_follows_the_codes():
    assert coder(uniform(4), 0.01) == 2 and coder(uniform(12), 0.01) == 2 and coder(uniform(4), 0.0005) == 3
    assert coder(uniform(4), 0.9) == 1 and coder(uniform(8), 0.9) == 1
    rng = np.random.default_rng(3)
    noise, scales = exact(uniform(8), rng.integers(0, 128, 40_000), rng.random(40_000) < 0.5)
    assert encode(uniform(8), noise, "auto", scales)[0] == 0
    assert encode(uniform(8), noise, "huffman", scales)[0] == 0
    assert encode(uniform(8), noise, "elias", scales)[0] == 3
    assert encode(SIGN, np.zeros(4000, np.float32), "auto", np.ones(1, np.float32))[0] == 0


def test_huffman_is_close_to_the_entropy():
    """Independent codes: within 1 % of the entropy of pairs, tables and sizes included."""
    n, q = 262_144, uniform(4)
    levels, signs = sections.sparse_levels(q, n, 0.7)
    codes = sections.codes_of(q, levels, signs)
    share = np.bincount(codes, minlength=16) / n
    entropy = -n * float((share[share > 0] * np.log2(share[share > 0])).sum()) / 8
    x, scales = exact(q, levels, signs)
    assert entropy < len(encode(q, x, "huffman", scales)) < 1.01 * entropy + 200


# Elias's recursive code, as the papers list it.


@pytest.mark.parametrize(
    ("k", "word"),
    [
        (1, "0"),
        (2, "100"),
        (4, "101000"),
        (8, "1110000"),
        (16, "10100100000"),
        (100, "1011011001000"),
    ],
)
def test_elias_words_bit_by_bit(k, word):
    """As a gap, behind a level of 1, and as a level."""
    q = uniform(12)
    as_gap, scales = exact(q, np.array([0] * (k - 1) + [1]), np.array([False] * k))
    body = encode(q, as_gap, "elias", scales)
    if body[0] == 3:  # else raw codes are smaller
        assert_bits(body, word + "0" + "0")
    sparse = np.zeros(200, int)
    sparse[0] = k
    x, scales = exact(q, sparse, sparse == k)
    assert_bits(encode(q, x, "elias", scales), "0" + "1" + word)


def assert_bits(body, expected):
    assert body[0] == 3 and int.from_bytes(body[9:13], "little") == 1
    size = int.from_bytes(body[5:9], "little")
    assert size == 4 + -(-len(expected) // 8) and len(body) == 9 + size
    bits = "".join(format(byte, "08b")[::-1] for byte in body[13:])
    assert bits == expected + "0" * (-len(expected) % 8)


# The slow decoder that was written from the documentation.


def reads(q, parts, choice, static=(), **more):
    """One body of several tensors (levels, signs), decoded by both; what the sections were made
    of."""
    slow = Decoder(q.bits, sections.largest_level(q), q.bucket, static)
    state, body, tensors = coding.new_state(), b"", [exact(q, *part) for part in parts]
    for x, scales in tensors:
        body += encode(q, x, choice, scales, state, **more)
    rest, state, at = body, coding.new_state(), 0
    for (levels, signs), (x, own) in zip(parts, tensors, strict=True):
        scales, codes, rest = slow.section(rest, len(levels))
        np.testing.assert_array_equal(codes, sections.codes_of(q, levels, signs))
        out = np.empty(len(levels), np.float32)
        at = decode(q, body, len(levels), out, at=at, state=state, tables=more.get("tables", coding.NO_TABLES))
        np.testing.assert_array_equal(scales, own)
        np.testing.assert_array_equal(out, sections.values_of(q, x, own))
    assert not rest and at == len(body)
    return slow.seen


def pairs(q, n):
    """Codes that come twice: their bytes are not as likely as products say."""
    levels, signs = sections.sparse_levels(q, n // 4, 0.6)
    return np.repeat(levels, 4), np.repeat(signs, 4)


@pytest.mark.parametrize("q", [TERNARY, uniform(3, 64), log2(4, 512), FP4], ids=name_of)
def test_the_documentation_decodes_marginals_and_blocks(q):
    assert {"huffman marginals", "1 streams"} <= reads(q, [sections.sparse_levels(q, 1500, 0.8)], "huffman")
    assert {"huffman marginals", "4 streams"} <= reads(q, [sections.sparse_levels(q, 9001, 0.8)], "huffman")
    assert {"huffman lengths", "4 streams"} <= reads(q, [pairs(q, 40_000)], "huffman")


@pytest.mark.parametrize("bits", [5, 8])
def test_the_documentation_decodes_codes_of_whole_bytes(bits):
    q = uniform(bits, 512)
    parts = [sections.sparse_levels(q, n, 0.7, n) for n in (900, 66_000)]
    assert {"huffman lengths", "huffman same", "1 streams", "4 streams"} <= reads(q, [*parts, parts[0]], "huffman")


@pytest.mark.parametrize("bits", [3, 4, 6])
def test_the_documentation_decodes_raw_blocks(bits):
    q, rng = uniform(bits), np.random.default_rng(1)
    plain, signs = sections.sparse_levels(q, 65536, 0.7)[0], np.zeros(65536, bool)
    codes = rng.integers(1, 2 ** (bits - 1), 30_001)
    mixed = np.concatenate([plain, codes]), np.concatenate([signs, rng.random(30_001) < 0.5])
    assert {"raw block", "4 streams"} <= reads(q, [mixed], "huffman")


@pytest.mark.parametrize("row", [0, 5, 12])
def test_the_documentation_decodes_static_and_same_tables(row):
    rng, static = np.random.default_rng(row), CO3_TABLES.reshape(-1, 16)
    parts = []
    for n in (700, 280, 1):
        codes = rng.choice(16, n, p=static[row] / static[row].sum())
        parts.append((codes & 7, codes >= 8))
    seen = reads(FP4, parts, "huffman", static.tolist(), tables=CO3_TABLES, preferred=row)
    assert {"huffman static", "huffman same"} <= seen
    assert reads(FP4, parts[2:], "huffman", static.tolist(), tables=CO3_TABLES, preferred=row) == set()  # raw


@pytest.mark.parametrize("q", [TERNARY, uniform(4, 512), uniform(7), uniform(12), uniform(16)], ids=name_of)
def test_the_documentation_decodes_runs(q):
    seen = set()
    for density, n in ((0.005, 140_000), (0.01, 2000), (0.1, 40_000)):
        part = sections.sparse_levels(q, n, density)
        seen |= reads(q, [part, part], "huffman")
    assert {"runs", "runs same", "1 streams of runs", "4 streams of runs", "skip"} <= seen
    assert q is TERNARY or q.bits == 4 or "low bits" in seen
    assert {"runs marginals", "runs lengths"} & seen


@pytest.mark.parametrize("minus", [False, True])
@pytest.mark.parametrize("q", [TERNARY, uniform(4, 512), uniform(7), uniform(12)], ids=name_of)
def test_runs_of_one_sign_have_no_bits_for_it(q, minus):
    signs = "all minus" if minus else "all plus"
    for density, n in ((0.01, 70_000), (0.05, 8191), (0.05, 8192), (0.1, 40_000)):
        levels, both = sections.sparse_levels(q, n, density)
        assert {"runs", signs if n >= 8192 else "signs beside"} <= reads(q, [(levels, (levels > 0) & minus)], "huffman")
        assert "signs beside" in reads(q, [(levels, both)], "huffman")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_sign_that_a_sample_missed_is_told(threads):
    q, n = uniform(4, 512), 400_000
    levels = sections.sparse_levels(q, n, 0.02)[0]
    for other in np.flatnonzero(levels)[[0, 3000, -1]]:
        signs = np.zeros(n, bool)
        signs[other] = True
        assert "signs beside" in reads(q, [(levels, signs)], "huffman", threads=threads)


@pytest.mark.parametrize("q", [TERNARY, uniform(5, 8), uniform(16)], ids=name_of)
@pytest.mark.parametrize("choice", ["elias", "auto"])
def test_the_documentation_decodes_elias_and_raw(q, choice):
    for density, n in ((0.0, 100), (0.004, 70_000), (0.5, 3000), (1.0, 9)):
        seen = reads(q, [sections.sparse_levels(q, n, density)], choice)
        assert choice == "auto" or n < 100 or "elias" in seen


@pytest.mark.parametrize("q", [TERNARY, uniform(3), log2(4, 512), uniform(8), uniform(16)], ids=name_of)
def test_the_documentation_decodes_words_of_every_length_side_by_side(q):
    """Gaps and levels of 1 to 19 bits, long ones beside short ones; then another number of them is
    claimed."""
    rng = np.random.default_rng(q.bits)
    n = 66_000
    places = np.cumsum(2 ** (8 * rng.random(20_000) ** 3) + 0.01).astype(int)
    places = np.unique(places[places < n])
    levels = np.zeros(n, int)
    levels[places] = np.maximum(sections.largest_level(q) ** rng.random(len(places)) ** 2, 1).astype(int)
    signs = rng.random(n) < 0.5
    assert "elias" in reads(q, [(levels, signs)], "elias")
    x, scales = exact(q, levels, signs)
    body = encode(q, x, "elias", scales)
    head = 1 + q.scale_bytes(n) + 4
    for nonzeros, end in ((len(places) // 2, -6), (len(places) + 3, -6), (len(places), len(body)), (2**32 - 1, -6)):
        claimed = body[:head] + nonzeros.to_bytes(4, "little") + body[head + 4 :]
        assert decode(q, claimed, n) == end
        assert decode(q, claimed, n, np.empty(n, np.float32)) == end
