"""The coders huffman, runs and elias, bit by bit: some valid encoding of codes (another encoder may
choose another table); reference_entropy.py decodes any. Shares no code with the product."""

from __future__ import annotations

import heapq
import itertools
import struct
from collections import Counter

from tests.conformance.reference_common import bits_to_bytes, low_first

LONGEST = 14  # bits of a Huffman code
SKIP = 0xF0
OWN_TABLE_FROM = 512  # values: smaller tensors have no code table of their own
LENGTHS = 3  # the kind of table that lists all lengths


def omega(k: int) -> str:
    """Elias's recursive code."""
    word = "0"
    while k > 1:
        binary = format(k, "b")
        word, k = binary + word, len(binary) - 1
    return word


def read_omega(bits: str, at: int) -> tuple[int, int]:
    """The number, and where the next word begins."""
    n = 1
    while bits[at] == "1":
        n, at = int(bits[at : at + n + 1], 2), at + n + 1
    return n, at + 1


def symbol_width(bits: int) -> int:
    return next(width for width in (1, 2, 4, 8) if width >= bits)


def valid_codes(bits: int, largest: int) -> set[int]:
    sign = 1 << bits - 1
    return {0} | set(range(1, largest + 1)) | {sign | level for level in range(1, largest + 1)}


def symbol_bytes(bits: int, largest: int) -> list[int]:
    """Bytes of symbols that are made of codes only."""
    width, valid = symbol_width(bits), valid_codes(bits, largest)
    mask = (1 << width) - 1
    return [b for b in range(256) if all(b >> k & mask in valid for k in range(0, 8, width))]


def level_class(level: int, largest: int) -> tuple[int, int]:
    """How a token has a level, and how many low bits of it follow."""
    bits = level.bit_length()
    if largest <= 7 or (largest <= 255 and level <= 3):
        return level, 0
    if largest > 255:
        return bits, bits - 1
    return 2 * (bits - 1) + (level >> bits - 2 & 1), bits - 2


def least_level(of: int, largest: int) -> int:
    """The least level of a class."""
    return next(level for level in range(1, largest + 1) if level_class(level, largest)[0] == of)


def tokens(largest: int) -> list[int]:
    return [b for b in range(256) if b == SKIP or 0 < b & 15 <= level_class(largest, largest)[0]]


def code_lengths(alphabet: list[int], seen: Counter[int]) -> dict[int, int]:
    """Of a complete code over the whole alphabet, none longer than LONGEST."""
    flat = 0
    while True:
        heap = [((seen[s] >> flat) + 1, s, (s,)) for s in alphabet]
        heapq.heapify(heap)
        lengths = dict.fromkeys(alphabet, 0)
        while len(heap) > 1:
            a, b = heapq.heappop(heap), heapq.heappop(heap)
            for s in a[2] + b[2]:
                lengths[s] += 1
            heapq.heappush(heap, (a[0] + b[0], min(a[1], b[1]), a[2] + b[2]))
        if max(lengths.values()) <= LONGEST:
            return lengths
        flat += 1


def canonical(lengths: dict[int, int]) -> dict[int, str]:
    """Symbol -> code, in the order of length and symbol."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((n, s) for s, n in lengths.items()):
        code <<= length - before
        codes[symbol] = format(code, f"0{length}b")
        code, before = code + 1, length
    return codes


def table(lengths: dict[int, int], alphabet: list[int]) -> bytes:
    nibbles = [lengths[s] for s in alphabet] + [0] * (len(alphabet) % 2)
    return bytes([LENGTHS, *(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))])


def read_symbol(bits: str, at: int, codes: dict[str, int]) -> tuple[int, int]:
    length = next(n for n in range(1, LONGEST + 1) if bits[at : at + n] in codes)
    return codes[bits[at : at + length]], at + length


def huffman(codes: list[int], bits: int, largest: int) -> bytes:
    """One block of up to 65536 values."""
    width = symbol_width(bits)
    symbols = bits_to_bytes("".join(low_first(c, width) for c in codes))
    alphabet = symbol_bytes(bits, largest)
    lengths = code_lengths(alphabet, Counter(symbols))
    words, streams = canonical(lengths), 1 if len(symbols) < 1024 else 4
    cuts = [len(symbols) // 4 * k for k in range(streams)] + [len(symbols)]
    coded = [bits_to_bytes("".join(words[s] for s in symbols[a:b])) for a, b in itertools.pairwise(cuts)]
    sizes = struct.pack(f"<{streams}H", *map(len, coded))
    return table(lengths, alphabet) + sizes + b"".join(coded)


def run_streams(n: int) -> list[int]:
    """The values of each stream of a block of the runs coder."""
    quarter = n // 256 * 64
    return [n] if n < 2048 else [quarter, quarter, quarter, n - 3 * quarter]


def run_signs(codes: list[int], bits: int) -> int:
    """Where the signs of codes are told: 0 beside each, 1 all plus, 2 all minus."""
    found = {code >> bits - 1 for code in codes if code}
    return 1 + found.pop() if len(found) == 1 and len(codes) >= 8192 else 0


def run_items(codes: list[int], bits: int, largest: int, k: int, signs: int) -> list[tuple[int, str]]:
    """Tokens of a stream and the bits that stand beside them."""
    items: list[tuple[int, str]] = []
    zeros = 0
    for code in [*codes, None]:
        if code == 0:
            zeros += 1
            continue
        while zeros >= 16 << k or (code is None and zeros > 0):
            items.append((SKIP, "1" * k))
            zeros -= 16 << k
        if code is not None:
            level = code & (1 << bits - 1) - 1
            of, width = level_class(int(level), largest)
            sign = "" if signs else str(code >> bits - 1)
            low = low_first(zeros & (1 << k) - 1, k) + low_first(level & (1 << width) - 1, width)
            items.append((zeros >> k << 4 | of, sign + low))
            zeros = 0
    return items


def runs(codes: list[int], bits: int, largest: int, k: int = 1) -> bytes:
    """One block of up to 65536 values."""
    streams, at, signs = [], 0, run_signs(codes, bits)
    for count in run_streams(len(codes)):
        streams.append(run_items(codes[at : at + count], bits, largest, k, signs))
        at += count
    alphabet = tokens(largest)
    lengths = code_lengths(alphabet, Counter(token for items in streams for token, _ in items))
    words = canonical(lengths)
    coded = [bits_to_bytes("".join(words[token] + rest for token, rest in items)) for items in streams]
    sizes = struct.pack(f"<{len(coded)}H", *map(len, coded))
    return bytes([signs << 4 | k]) + table(lengths, alphabet) + sizes + b"".join(coded)


def elias(codes: list[int], bits: int) -> bytes:
    """The number of nonzeros, then for each: omega(gap), sign, omega(level)."""
    stream, previous, nonzeros = "", -1, 0
    for i, code in enumerate(codes):
        if code:
            stream += omega(i - previous) + str(code >> bits - 1) + omega(code & (1 << bits - 1) - 1)
            previous, nonzeros = i, nonzeros + 1
    return struct.pack("<I", nonzeros) + bits_to_bytes(stream)
