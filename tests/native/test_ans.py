"""The ans coder: what comes back, the same bytes everywhere, close to the entropy, and what becomes
of damage."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip import native
from edgegossip.native import coding
from tests.conformance.reference_ans import ANS_FROM, ans, ans_codes
from tests.native import sections
from tests.native.faults import BAD_CODE, BAD_CODER, BAD_PADDING, BAD_STREAM, BAD_TABLE, ENDS_EARLY, survives
from tests.native.sections import FP4, decode, encode, exact, geometric, log2, uniform

ISAS = native.available_isas()
CODER_ANS = 5
QUANTISERS = [uniform(3), uniform(4), uniform(4, 512), log2(3, 64), log2(4, 512), geometric(4), FP4]
HEAD = 4 + 64 + 8  # of a block


def with_payload(q, n, scales, payload):
    head = np.asarray(scales, np.float32)
    stored = head.tobytes() if not q.bucket else (head.view(np.uint32) >> 15).astype("<u2").tobytes()
    return bytes([CODER_ANS]) + stored + struct.pack("<I", len(payload)) + payload


def payload_of(q, n, body):
    return body[5 + q.scale_bytes(n) :]


@settings(max_examples=60, deadline=None)
@given(
    q=st.sampled_from(QUANTISERS),
    n=st.one_of(st.integers(ANS_FROM, ANS_FROM + 300), st.integers(65_530, 65_540), st.integers(131_000, 131_300)),
    density=st.sampled_from((0.02, 0.2, 0.5, 0.9)),
    seed=st.integers(0, 99),
)
def test_round_trip(q, n, density, seed):
    x, scales = exact(q, *sections.sparse_levels(q, n, density, seed))
    body = encode(q, x, "ans", scales)
    assert body[0] in (0, CODER_ANS) and len(body) <= 1 + q.scale_bytes(n) + (n * q.bits + 7) // 8
    expected = sections.values_of(q, x, scales)
    for isa in ISAS:
        assert encode(q, x, "ans", scales, isa=isa, threads=2) == body
        out = np.full(n, np.nan, np.float32)
        assert decode(q, body, n, out, isa=isa) == len(body) == decode(q, body, n, isa=isa)
        np.testing.assert_array_equal(out, expected)
    total = np.ones(n, np.float32)
    assert decode(q, body, n, total, 0.5) == len(body)
    np.testing.assert_array_equal(total, np.float32(1) + np.float32(0.5) * expected)


@pytest.mark.parametrize("n", [ANS_FROM, 70_001])
@pytest.mark.parametrize("q", QUANTISERS, ids=lambda q: f"{q.kind.name}-{q.bits}-{q.bucket}")
def test_reference_and_product_read_each_other(q, n):
    levels, signs = sections.sparse_levels(q, n, 0.4)
    levels[np.arange(n) % 997 == 5] = sections.largest_level(q)  # rare codes, some of them strays
    codes = sections.codes_of(q, levels, signs)
    x, scales = exact(q, levels, signs)
    expected = sections.values_of(q, x, scales)
    body = with_payload(q, n, scales, ans(codes.tolist(), q.bits, sections.largest_level(q)))
    for isa in ISAS:
        out = np.empty(n, np.float32)
        assert decode(q, body, n, out, isa=isa) == len(body)
        np.testing.assert_array_equal(out, expected)
    own = encode(q, x, "ans", scales)
    assert own[0] == CODER_ANS
    assert ans_codes(payload_of(q, n, own), n, q.bits, sections.largest_level(q)) == codes.tolist()


@pytest.mark.parametrize("zeros", [0.3, 0.5])
def test_close_to_the_entropy(zeros):
    """Within 1.5 % for independent codes of a large tensor, states and heads of blocks included."""
    n, q, rng = 1_000_000, uniform(4), np.random.default_rng(7)
    levels = np.where(rng.random(n) < zeros, 0, np.minimum(rng.geometric(0.6, n), 7))
    signs = rng.random(n) < 0.5
    codes = sections.codes_of(q, levels, signs)
    share = np.bincount(codes, minlength=16) / n
    entropy = -n * float((share[share > 0] * np.log2(share[share > 0])).sum()) / 8
    x, scales = exact(q, levels, signs)
    body = encode(q, x, "ans", scales)
    assert body[0] == CODER_ANS and entropy < len(body) < 1.015 * entropy


def test_it_is_opt_in():
    """`huffman` and `auto` never take it; `ans` is `huffman` where a tensor cannot have it, raw
    where that is smaller."""
    rng = np.random.default_rng(3)
    for q, n in ((uniform(4), ANS_FROM - 1), (uniform(2), 20_000), (uniform(5), 20_000), (uniform(12), 20_000)):
        x, scales = exact(q, *sections.sparse_levels(q, n, 0.5))
        assert encode(q, x, "ans", scales) == encode(q, x, "huffman", scales)
    x, scales = exact(uniform(4), *sections.sparse_levels(uniform(4), 20_000, 0.5))
    assert encode(uniform(4), x, "ans", scales)[0] == CODER_ANS
    assert CODER_ANS not in {encode(uniform(4), x, choice, scales)[0] for choice in ("raw", "huffman", "elias", "auto")}
    q, codes = uniform(4), rng.integers(0, 15, ANS_FROM)
    x, scales = exact(q, (codes + 1) // 2, codes % 2 == 1)
    assert encode(q, x, "ans", scales) == encode(q, x, "raw", scales)


def test_values_that_are_not_finite_are_refused():
    for n in (ANS_FROM, 300_000):
        x = np.ones(n, np.float32)
        x[n - 5] = np.nan
        assert encode_all_of(x) == -1


def encode_all_of(x):
    out = np.empty(coding.bound(x.size, uniform(4, 512), "ans"), np.uint8)
    return coding.encode(uniform(4, 512), x, 7, "ans", coding.new_state(), out)


def test_codes_that_the_sample_lacks_are_strays():
    """A large tensor whose rare codes stand where no sample was taken."""
    n, q = 600_000, uniform(4)
    levels, signs = sections.sparse_levels(q, n, 0.6)
    levels = np.minimum(levels, 3)
    levels[::7919] = 7
    x, scales = exact(q, levels, signs)
    body = encode(q, x, "ans", scales)
    assert body[0] == CODER_ANS
    for isa in ISAS:
        out = np.empty(n, np.float32)
        assert decode(q, body, n, out, isa=isa) == len(body)
        np.testing.assert_array_equal(out, x)


Q4 = uniform(4)
N = ANS_FROM


def good_payload(strays=True):
    rng = np.random.default_rng(5)
    codes = np.minimum(rng.geometric(0.5, N) - 1, 3)
    if strays:
        codes[[0, 77, 5000, N - 1]] = 15
    return ans(codes.tolist(), 4, 7)


ONE_SCALE = np.ones(1, np.float32)
SHARES = 15


def changed(payload, at, value):
    return payload[:at] + value + payload[at + len(value) :]


def section(payload):
    return with_payload(Q4, N, ONE_SCALE, payload)


PAYLOAD = good_payload()
WORDS, STRAYS = struct.unpack_from("<HH", PAYLOAD, SHARES)
STRAYS_AT = SHARES + HEAD
FIRST_WORDS = STRAYS_AT + 2 * STRAYS
PART = next(k for k in range(8) if PAYLOAD[SHARES + 68 + k] % 8)


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (b"", BAD_TABLE),
        (PAYLOAD[: SHARES - 1], BAD_TABLE),
        (changed(PAYLOAD, 0, bytes([PAYLOAD[0] ^ 1])), BAD_TABLE),
        (PAYLOAD[:SHARES], ENDS_EARLY),
        (PAYLOAD[: SHARES + HEAD - 1], ENDS_EARLY),
        (PAYLOAD[:-1], ENDS_EARLY),
        (PAYLOAD + b"\0", BAD_STREAM),
        (changed(PAYLOAD, SHARES + 68, b"\x40"), ENDS_EARLY),  # more of a word is gone than it has
        (changed(PAYLOAD, SHARES, struct.pack("<H", WORDS + 1)) + bytes(8), BAD_STREAM),  # a last word of 0
        (changed(PAYLOAD, SHARES, struct.pack("<H", WORDS + 40)) + b"\1" * 320, BAD_STREAM),  # words that nothing takes
        (changed(PAYLOAD, SHARES, struct.pack("<H", WORDS - 1))[:-8], BAD_STREAM),
        (changed(PAYLOAD, SHARES + 4, bytes([PAYLOAD[SHARES + 4] ^ 1])), BAD_STREAM),
        (changed(PAYLOAD, STRAYS_AT, struct.pack("<H", 4095 << 4 | 15)), BAD_STREAM),
        (
            changed(PAYLOAD, STRAYS_AT, struct.pack("<H", 4094 << 4 | 15)),
            BAD_STREAM,
        ),  # then the last is beyond the tensor
        (changed(PAYLOAD, STRAYS_AT, struct.pack("<H", 8)), BAD_CODE),  # no code
        (changed(PAYLOAD, STRAYS_AT, struct.pack("<H", 1)), BAD_CODE),  # one with a share
    ],
)
def test_faults(payload, fault, at_the_edge):
    assert survives(Q4, at_the_edge(section(PAYLOAD)), N) > 0
    assert survives(Q4, at_the_edge(section(payload)), N) == fault


def test_bits_where_they_are_gone_are_refused(at_the_edge):
    at = FIRST_WORDS + sum(8 - used // 8 for used in PAYLOAD[SHARES + 68 : SHARES + 68 + PART])
    assert survives(Q4, at_the_edge(section(changed(PAYLOAD, at, bytes([PAYLOAD[at] | 1])))), N) == BAD_STREAM


def test_small_tensors_and_other_widths_have_no_such_section():
    body = section(PAYLOAD)
    assert decode(Q4, body, N - 1) == BAD_CODER
    for q in (uniform(2), uniform(5), uniform(8), uniform(12)):
        assert decode(q, body, N) == BAD_CODER


def test_what_follows_the_last_value_is_the_most_frequent_code():
    """70 values of another code than that are cut off: a section of fewer values is refused, as a
    section of all is read."""
    n = N + 100
    codes = [0] * N + [1] * 100
    payload = ans(codes, 4, 7)
    assert decode(Q4, with_payload(Q4, n, ONE_SCALE, payload), n) > 0
    assert decode(Q4, with_payload(Q4, n, ONE_SCALE, payload), N + 30) == BAD_PADDING


def test_a_quarter_of_a_block_may_be_strays():
    for count, good in ((N // 4, True), (N // 4 + 1, False)):
        payload = (
            bytes([128, 128, *bytes(13)])
            + struct.pack("<HH", 0, count)
            + bytes(72)
            + struct.pack("<H", 15) * count
            + bytes(64)
        )
        found = decode(Q4, section(payload), N)
        assert found == (len(section(payload)) if good else BAD_STREAM)


@pytest.mark.parametrize(("n", "density"), [(ANS_FROM, 0.5), (70_000, 0.3), (200_000, 0.9)])
def test_damaged_sections_end_alike_on_every_instruction_set(n, density, at_the_edge):
    q = uniform(4)
    x, scales = exact(q, *sections.sparse_levels(q, n, density))
    codes = sections.codes_of(q, *sections.sparse_levels(q, n, density)).tolist()
    body = with_payload(q, n, scales, ans(codes, 4, 7)) if n < 100_000 else encode(q, x, "ans", scales)
    assert body[0] == CODER_ANS
    rng = np.random.default_rng(n)
    places = [*range(5, 5 + SHARES + HEAD + 80, 7), *rng.integers(0, len(body), 60)]
    for at in places:
        other = bytearray(body)
        other[at] ^= 1 << int(rng.integers(8))
        found = set()
        for isa in ISAS:
            out = np.full(n, np.nan, np.float32)
            verdict = decode(q, at_the_edge(other), n, out, isa=isa, threads=1)
            assert verdict in coding.FAULTS or np.isfinite(out).all()
            found.add((verdict, out.tobytes() if verdict > 0 else b""))
        assert len(found) == 1


@settings(max_examples=100, deadline=None)
@given(shares=st.lists(st.integers(0, 255), min_size=15, max_size=15), noise=st.binary(max_size=600))
def test_noise_behind_shares(at_the_edge, shares, noise):
    rest = 256 - sum(shares[:14])
    if 0 <= rest <= 255:
        shares = [*shares[:14], rest]
    survives(Q4, at_the_edge(section(bytes(shares) + noise)), N)
