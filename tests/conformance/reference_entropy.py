"""Sections of the quantised codecs decoded the slow, plain way, from docs/wire-format.md: every
coder but zstd, every transport of a Huffman code. Shares no code with the product."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.conformance.reference_coders import (
    OWN_TABLE_FROM,
    canonical,
    least_level,
    level_class,
    read_omega,
    read_symbol,
    run_streams,
    symbol_bytes,
    tokens,
)
from tests.conformance.reference_common import bits_of

RAW, HUFFMAN, RUNS, ELIAS = range(4)
SAME, STATIC, MARGINALS, LENGTHS = range(4)
BLOCK, RAW_BLOCK = 65536, 0xFFFF


def read_scales(data: bytes, count: int, bucket: int) -> list[float]:
    """float32; of buckets the 16 bits below the sign of one."""
    if not bucket:
        return list(struct.unpack_from(f"<{count}f", data))
    halves = struct.unpack_from(f"<{count}H", data)
    return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 15 for half in halves))))


@dataclass
class Decoder:
    """Sections of one body. `largest`: the largest level; `static`: rows of 2^W marginals. `seen`
    collects what the sections were made of, as words."""

    bits: int
    largest: int
    bucket: int = 0
    static: Sequence[Sequence[int]] = ()
    last: dict[int, dict[int, int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def section(self, body: bytes, n: int) -> tuple[list[float], list[int], bytes]:
        """Scales and codes, and the rest of the body."""
        count = -(-n // self.bucket) if self.bucket else 1
        coder, scales = body[0], read_scales(body[1:], count, self.bucket)
        body = body[1 + (2 if self.bucket else 4) * count :]
        if coder == RAW:
            size = -(-n * self.bits // 8)
            return list(scales), self.dense(body[:size], n), body[size:]
        size = struct.unpack_from("<I", body)[0]
        payload, rest = body[4 : 4 + size], body[4 + size :]
        assert len(payload) == size
        read = {HUFFMAN: self.huffman, RUNS: self.runs, ELIAS: self.elias}[coder]
        self.seen.add(("raw", "huffman", "runs", "elias")[coder])
        return list(scales), read(payload, n), rest

    def dense(self, data: bytes, n: int, width: int = 0) -> list[int]:
        width, bits = width or self.bits, bits_of(data)
        assert len(bits) - n * width in range(8) and "1" not in bits[n * width :]
        return [int(bits[i : i + width][::-1], 2) for i in range(0, n * width, width)]

    def elias(self, payload: bytes, n: int) -> list[int]:
        codes, bits, at, i = [0] * n, bits_of(payload[4:]), 0, -1
        for _ in range(struct.unpack_from("<I", payload)[0]):
            gap, at = read_omega(bits, at)
            i += gap
            level, end = read_omega(bits, at + 1)
            codes[i] = self.code(int(bits[at]), level)
            at = end
        ends(bits, at)
        return codes

    def huffman(self, payload: bytes, n: int) -> list[int]:
        width = next(w for w in (1, 2, 4, 8) if w >= self.bits)
        alphabet = symbol_bytes(self.bits, self.largest)
        words, payload = self.words(payload, HUFFMAN, alphabet, width, n)
        codes: list[int] = []
        for start in range(0, n, BLOCK):
            block, payload = self.block(payload, min(BLOCK, n - start), width, words)
            codes += block
        assert not payload
        return codes

    def block(self, data: bytes, n: int, width: int, words: dict[str, int]) -> tuple[list[int], bytes]:
        if struct.unpack_from("<H", data)[0] == RAW_BLOCK:
            self.seen.add("raw block")
            size = 2 + -(-n * self.bits // 8)
            return self.dense(data[2:size], n), data[size:]
        count = -(-n * width // 8)
        streams = 1 if count < 1024 else 4
        self.seen.add(f"{streams} streams")
        sizes = struct.unpack_from(f"<{streams}H", data)
        data, symbols = data[2 * streams :], bytearray()
        for k, size in enumerate(sizes):
            bits, at = bits_of(data[:size]), 0
            for _ in range(count // 4 if k < streams - 1 else count - count // 4 * k):
                symbol, at = read_symbol(bits, at, words)
                symbols.append(symbol)
            ends(bits, at)
            data = data[size:]
        return self.dense(bytes(symbols), n, width), data

    def runs(self, payload: bytes, n: int) -> list[int]:
        signs, k = divmod(payload[0], 16)
        assert k <= 13 and (n >= 8192 or signs == 0)
        self.seen.add(("signs beside", "all plus", "all minus")[signs])
        words, payload = self.words(payload[1:], RUNS, tokens(self.largest), 4, n)
        codes: list[int] = []
        for start in range(0, n, BLOCK):
            counts = run_streams(min(BLOCK, n - start))
            self.seen.add(f"{len(counts)} streams of runs")
            sizes = struct.unpack_from(f"<{len(counts)}H", payload)
            payload = payload[2 * len(counts) :]
            for count, size in zip(counts, sizes, strict=True):
                codes += self.items(payload[:size], count, k, signs, words)
                payload = payload[size:]
        assert not payload
        return codes

    def items(self, data: bytes, n: int, k: int, signs: int, words: dict[str, int]) -> list[int]:
        codes: list[int] = []
        bits, at = bits_of(data), 0
        while len(codes) < n:
            token, at = read_symbol(bits, at, words)
            of, sign = token & 15, 0
            if of and signs:
                sign = int(signs == 2)
            elif of:
                sign, at = int(bits[at]), at + 1
            codes += [0] * ((token >> 4 << k) + int("0" + bits[at : at + k][::-1], 2))
            at += k
            if not of:
                self.seen.add("skip")
                codes.append(0)
                continue
            level = least_level(of, self.largest)
            if width := level_class(level, self.largest)[1]:
                self.seen.add("low bits")
                level, at = level + int(bits[at : at + width][::-1], 2), at + width
            assert len(codes) < n
            codes.append(self.code(sign, level))
        ends(bits, at)
        return codes[:n]

    def code(self, sign: int, level: int) -> int:
        assert 0 < level <= self.largest
        return sign << self.bits - 1 | level

    def words(self, data: bytes, coder: int, alphabet: list[int], width: int, n: int) -> tuple[dict[str, int], bytes]:
        """Code words and their bytes, and what follows the table."""
        kind, data = data[0], data[1:]
        assert kind == SAME or n >= OWN_TABLE_FROM
        self.seen.add(f"{('huffman', 'runs')[coder - 1]} {('same', 'static', 'marginals', 'lengths')[kind]}")
        rows = 1 if coder == HUFFMAN else 2  # lists of marginals
        if kind == SAME:
            lengths = self.last[coder]
        elif kind == STATIC:
            lengths, data = lengths_from(weights_of(alphabet, width, [self.static[data[0]]])), data[1:]
        elif kind == MARGINALS:
            marginals, data = read_marginals(data, alphabet, width, rows)
            lengths = lengths_from(weights_of(alphabet, width, marginals))
        else:
            size = (len(alphabet) + 1) // 2
            halves = [half for byte in data[:size] for half in (byte & 15, byte >> 4)]
            assert not any(halves[len(alphabet) :])
            lengths, data = {s: n for s, n in zip(alphabet, halves, strict=False) if n}, data[size:]
        assert sum(2.0**-n for n in lengths.values()) == 1 and max(lengths.values()) <= 14
        self.last[coder] = lengths
        return {word: symbol for symbol, word in canonical(lengths).items()}, data


def ends(bits: str, at: int) -> None:
    """A stream ends here: less than a byte is left, all zero."""
    assert len(bits) - at in range(8) and "1" not in bits[at:]


def fields(byte: int, width: int) -> list[int]:
    return [byte >> k & (1 << width) - 1 for k in range(0, 8, width)]


def read_marginals(data: bytes, alphabet: list[int], width: int, rows: int) -> tuple[list[list[int]], bytes]:
    marginals, at = [[0] * (1 << width) for _ in range(rows)], 0
    for row, values in enumerate(marginals):
        occur = {f for byte in alphabet for k, f in enumerate(fields(byte, width)) if k % rows == row}
        for f in sorted(occur):
            b = data[at]
            assert b
            values[f] = b if b < 16 else (16 + b % 16) * 2 ** (b // 16 - 1)
            at += 1
    return marginals, data[at:]


def weights_of(alphabet: list[int], width: int, marginals: Sequence[Sequence[int]]) -> dict[int, int]:
    factor = 2 ** max(0, 20 - max(map(max, marginals)).bit_length())
    found = {}
    for byte in alphabet:
        m = [marginals[k % len(marginals)][f] * factor for k, f in enumerate(fields(byte, width))]
        product = m[0] * m[1] if len(m) == 2 else ((m[0] * m[1] >> 12) * (m[2] * m[3] >> 12)) >> 8
        found[byte] = max(1, product)
    return found


def lengths_from(weights: dict[int, int]) -> dict[int, int]:
    """Lengths of Huffman's code for the nine highest bits of the weights, cut to 14 bits."""
    cut = {s: w >> max(0, w.bit_length() - 9) << max(0, w.bit_length() - 9) for s, w in weights.items()}
    order = sorted(cut, key=lambda s: (cut[s], s))
    heap: list[tuple[int, int, tuple[int, ...]]] = [(cut[s], k, (s,)) for k, s in enumerate(order)]  # ordered: a heap
    depth = dict.fromkeys(weights, 0)
    for made in range(len(weights) - 1):
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        for s in a[2] + b[2]:
            depth[s] += 1
        heapq.heappush(heap, (a[0] + b[0], len(weights) + made, a[2] + b[2]))
    counts = [sum(min(d, 14) == bits for d in depth.values()) for bits in range(15)]
    while sum(count * 2 ** (14 - bits) for bits, count in enumerate(counts) if bits) > 2**14:
        grows = max(bits for bits in range(1, 14) if counts[bits])
        counts[14] -= 1
        counts[grows] -= 1
        counts[grows + 1] += 2
    lengths = [bits for bits in range(14, 0, -1) for _ in range(counts[bits])]
    return dict(zip(order, lengths, strict=True))
