"""Faults of a section that no attack frame has, by what brings each about, and how much work a
hostile table can make."""

import struct

import numpy as np
import pytest

from edgegossip.native import _native, coding
from edgegossip.native.quantise import LevelKind, Quantiser
from tests.conformance.reference_coders import tokens
from tests.conformance.reference_common import bits_to_bytes, low_first
from tests.native import sections
from tests.native.faults import BAD_CODE, BAD_CODER, BAD_PADDING, BAD_STREAM, BAD_TABLE, ENDS_EARLY, survives
from tests.native.sections import SIGN, TERNARY, decode, geometric, uniform

# One scale; UNIFORM with 4 bits: levels to 7, 15 * 15 symbols.

ONE = struct.pack("<f", 1.0)
Q4 = uniform(4)
HALF = bytes([3, 0x11, *([0] * 112)])  # the symbols 00 and 01, one bit each


N = 600  # values: a section of fewer than 512 has no code of its own


def coded(coder, payload, scale=ONE):
    return bytes([coder]) + scale + struct.pack("<I", len(payload)) + payload


def stream(*data):
    return struct.pack("<H", len(data)) + bytes(data)


def lengths_table(lengths):
    """The transport of a code with these lengths, in the order of the alphabet."""
    return bytes(
        [3, *(a | b << 4 for a, b in zip(lengths[::2], [*lengths[1::2], 0][: -(-len(lengths) // 2)], strict=True))]
    )


def two_tokens(largest, *wanted):
    """A code of two tokens, one bit each."""
    return lengths_table([int(t in wanted) for t in tokens(largest)])


TOKENS = two_tokens(7, 0x01, 0xF0)  # bit 0: a level of 1, then its sign; bit 1: 16 zeros
SKIPS = [0xFF] * 4 + [0x3F]  # 38 of them: 608 values
WIDE = Quantiser(LevelKind.UNIFORM, 10, 300, 0)
OCTAVES = two_tokens(300, 0x09, 0xF0)  # bit 0: a level of 256 to 511, its sign, its 8 low bits


def level_and_zeros(level):
    """The stream of that level and then zeros to the end of N values."""
    return bits_to_bytes("00" + low_first(level - 256, 8) + "1" * 38)


def test_a_level_is_at_most_the_largest(at_the_edge):
    body = coded(2, b"\0" + OCTAVES + stream(*level_and_zeros(300)))
    assert survives(WIDE, at_the_edge(body), N) == len(body)


@pytest.mark.parametrize(
    ("q", "n", "body", "fault"),
    [
        (Q4, 2, b"\3" + ONE + b"\0\0\0", ENDS_EARLY),
        (Q4, N, coded(1, HALF), ENDS_EARLY),
        (Q4, N, coded(1, HALF + b"\xff\xff"), ENDS_EARLY),
        (Q4, N, coded(2, b""), ENDS_EARLY),
        (Q4, 2, coded(3, b"\0\0\0"), ENDS_EARLY),
        (Q4, 2, coded(4, b""), BAD_CODER),  # zstd is not read here
        (uniform(9), 2, coded(1, HALF), BAD_CODER),
        (SIGN, 2, coded(1, HALF), BAD_CODER),
        (SIGN, 2, coded(2, b"\0"), BAD_CODER),
        (Q4, N, coded(1, bytes([3, 0xD1, *([0] * 112)]) + stream(0)), BAD_TABLE),  # 13 bits
        (Q4, N, coded(1, HALF[:-1] + b"\x10" + stream(0)), BAD_TABLE),  # half a byte too many
        (Q4, N, coded(2, b"\x0f" + bytes([2, *([1] * 31)]) + stream(0)), BAD_TABLE),  # runs of 15 bits
        (Q4, N, coded(2, b"\0\1\0" + stream(0)), BAD_TABLE),  # tokens have no static tables
        (geometric(5), N, coded(1, bytes([2, *([1] * 31)]) + stream(0)), BAD_TABLE),  # whole bytes have no marginals
        (Q4, N, coded(2, b"\0" + TOKENS + stream(*bytes(12))), BAD_STREAM),  # 11 bits a value, and 88 values
        (Q4, N, coded(2, b"\0" + TOKENS + stream(*SKIPS, 0)), BAD_STREAM),  # a byte too many
        (Q4, N, coded(2, b"\0" + TOKENS + stream(*SKIPS[:-1])), BAD_STREAM),  # one too few
        (Q4, N, coded(2, b"\0" + TOKENS + stream(*SKIPS[:-1], SKIPS[-1] | 0x80)), BAD_STREAM),  # padding
        (Q4, N, coded(2, b"\0" + TOKENS + stream(*SKIPS) + b"\0"), BAD_STREAM),
        (Q4, N, coded(2, b"\0" + TOKENS + b"\5"), ENDS_EARLY),
        (Q4, N, coded(2, b"\0" + TOKENS + stream(*SKIPS)[:-1]), ENDS_EARLY),
        (WIDE, N, coded(2, b"\0" + OCTAVES + stream(*level_and_zeros(301))), BAD_STREAM),
        (Q4, 2, coded(3, struct.pack("<I", 3) + b"\0\0"), BAD_STREAM),  # a third code of two
        (Q4, 2, coded(3, struct.pack("<I", 1) + b"\x07"), BAD_STREAM),  # a gap of 3
        (Q4, 2, coded(3, struct.pack("<I", 1) + b"\xff" * 30), BAD_STREAM),
        (Q4, 2, coded(3, struct.pack("<I", 1) + bytes([0b00011100, 0])), BAD_STREAM),  # level 8
        (Q4, 2, coded(3, struct.pack("<I", 1) + b"\x08"), BAD_STREAM),  # padding
        (Q4, N, coded(1, HALF + b"\xff\xff\x08" + bytes(299)), BAD_CODE),
        (uniform(3), 1, b"\0" + ONE + b"\x09", BAD_PADDING),
        (Q4, N - 1, coded(1, HALF + b"\xff\xff" + bytes(299) + b"\x10"), BAD_PADDING),
    ],
)
def test_each_fault(q, n, body, fault, at_the_edge):
    assert survives(q, at_the_edge(body), n) == fault


def test_a_symbol_with_a_code_too_many_is_padding(at_the_edge):
    lengths = [0] * 225
    symbols = [b for b in range(256) if b & 15 != 8 and b >> 4 != 8]
    lengths[symbols.index(0x00)] = lengths[symbols.index(0x11)] = 1
    body = coded(1, lengths_table(lengths) + stream(*bytes(37), 0b1000))
    assert survives(Q4, at_the_edge(body), N) == len(body)
    assert survives(Q4, at_the_edge(body), N - 1) == BAD_PADDING


@pytest.mark.parametrize(
    "payload", [HALF + stream(*bytes(32)), b"\0" + TOKENS + stream(*[0xFF] * 4)], ids=["huffman", "runs"]
)
def test_a_code_of_ones_own_needs_values(payload, at_the_edge):
    coder = 2 if payload[0] == 0 else 1
    assert survives(Q4, at_the_edge(coded(coder, payload)), 512) == len(coded(coder, payload))
    assert survives(Q4, at_the_edge(coded(coder, payload)), 511) == BAD_TABLE


@pytest.mark.parametrize(("q", "n"), [(Q4, 512), (uniform(8), 512), (TERNARY, 512), (Q4, 8192), (Q4, 100_000)])
@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("coder", [1, 2])
def test_tables_cost_in_proportion_to_values(q, n, kind, coder):
    """The worst that sections can do: a new code in each, with words as long as can be."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        before = _native.coding_table_work()
        decode(q, coded(coder, bytes(coder - 1) + hostile_table(q, coder, kind, rng) + bytes(60)), n)
        assert _native.coding_table_work() - before <= 16 * n


def test_where_signs_are_cannot_make_work():
    q, body, write, sizes = sections.uniform(4), b"", coding.new_state(), [8192, 600] * 10
    for n in sizes:
        levels, signs = sections.sparse_levels(q, n, 0.05)
        x, scales = sections.exact(q, levels, signs & (n < 8192))
        body += sections.encode(q, x, "huffman", scales, write)
    at, state, before = 0, coding.new_state(), _native.coding_table_work()
    for n in sizes:
        assert body[at] == 2 and body[at + 9] >> 4 == (n == 8192)
        if n < 8192:
            other = bytearray(body)
            other[at + 9] |= 0x10
            assert sections.decode(q, bytes(other), n, at=at, state=bytearray(state)) == BAD_TABLE
        at = sections.decode(q, body, n, at=at, state=state)
    assert at == len(body) and _native.coding_table_work() - before <= 16 * sum(sizes)


def test_small_tensors_cannot_make_work(at_the_edge):
    before = _native.coding_table_work()
    for payload in (HALF, b"\0" + TOKENS):
        for n in (1, 2, 100, 511):
            survives(Q4, at_the_edge(coded(1 if payload is HALF else 2, payload + bytes(60))), n)
    assert _native.coding_table_work() == before


def hostile_table(q, coder, kind, rng):
    """Marginals that differ by powers of two; or lengths 1, 2, .., 14, 14 of random bytes."""
    if kind == 2 and not (coder == 1 and sections.code_width(q) == 8):
        return bytes([2, *rng.permutation(np.arange(32) * 8 + 1).astype(np.uint8).tolist()])
    largest = sections.largest_level(q)
    size = {1: {4: 225, 2: 81, 8: 255}[sections.code_width(q)], 2: len(tokens(largest))}[coder]
    lengths = np.zeros(size, int)
    lengths[rng.permutation(size)[:15]] = [*range(1, 14), 14, 14]
    return lengths_table(lengths.tolist())
