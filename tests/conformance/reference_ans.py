"""The coder ans, value by value: some valid encoding of codes (another encoder may choose other
shares), and the decoding of any. Shares no code with the product."""

from __future__ import annotations

import struct
from collections import Counter

from tests.conformance.reference_coders import valid_codes

ANS_FROM = 8192  # values: smaller tensors have no such section
STATES, LANES, ROW, BLOCK = 256, 64, 128, 65536
MOST_GAP = 4095
_M64 = 2**64 - 1

Shares = dict[int, int]


def shares_of(codes: list[int], bits: int, largest: int) -> Shares:
    """Of all existing codes; none for those that are rarer than one in a thousand, which are strays
    then."""
    seen = Counter(codes)
    kept = sorted(valid_codes(bits, largest), key=lambda c: (-seen[c], c))
    kept = kept[: max(2, sum(1000 * seen[c] > len(codes) for c in kept))]
    shares = dict.fromkeys(sorted(valid_codes(bits, largest)), 0)
    for code in kept:
        shares[code] = max(1, min(200, seen[code] * STATES // len(codes)))
    while (total := sum(shares.values())) != STATES:
        most = max(shares, key=lambda c: (shares[c], -c))
        shares[most if shares[most] < 255 else kept[1]] += 1 if total < STATES else -1
    return shares


def filling(shares: Shares) -> int:
    """The code in the place of strays and after the last value."""
    return max(shares, key=lambda c: (shares[c], -c))


def table(shares: Shares) -> list[tuple[int, int, int]]:
    """(code, bits, base) of every state."""
    code_of, at = [0] * STATES, 0
    for code in sorted(shares):
        for _ in range(shares[code]):
            code_of[at] = code
            at = (at + 163) % STATES
    found, seen = [], dict(shares)
    for code in code_of:
        bits = 9 - seen[code].bit_length()
        found.append((code, bits, (seen[code] << bits) - STATES))
        seen[code] += 1
    return found


def steps(n: int) -> list[list[int]]:
    """Of each step of a block of n values, the value that each lane gives."""
    rows = -(-n // ROW)
    return [[ROW * row + 2 * lane + half for lane in range(LANES)] for row in range(rows) for half in (0, 1)]


def ans(codes: list[int], bits: int, largest: int) -> bytes:
    """The payload of any number of blocks."""
    shares = shares_of(codes, bits, largest)
    blocks = [ans_block(codes[at : at + BLOCK], shares) for at in range(0, len(codes), BLOCK)]
    return bytes(shares[c] for c in sorted(shares)) + b"".join(blocks)


def ans_block(codes: list[int], shares: Shares) -> bytes:
    fill, entries = filling(shares), table(shares)
    strays, last = [], 0
    for i, code in enumerate(codes):
        if shares[code]:
            continue
        while i - last >= MOST_GAP:
            strays.append(MOST_GAP << 4)
            last += MOST_GAP
        strays.append((i - last) << 4 | code)
        last = i + 1
    before = {}  # (code, state after it) -> (state before it, the bits that it takes)
    for state, (code, count, base) in enumerate(entries):
        before |= {(code, base + low): (state, count, low) for low in range(1 << count)}
    states = [0] * LANES
    taken: list[list[str]] = []  # of each step the bits of each string, the first one first
    for places in reversed(steps(len(codes))):
        strings = [""] * 8
        for lane, i in enumerate(places):
            code = codes[i] if i < len(codes) and shares[codes[i]] else fill
            states[lane], count, low = before[code, states[lane]]
            strings[lane // 8] += format(low, f"0{count}b")[::-1] if count else ""
        taken.insert(0, strings)
    # Each string ends with a word's end: how much of its first word is gone follows from its
    # length.
    bits = ["".join(step[k] for step in taken) for k in range(8)]
    used = [-len(string) % 64 for string in bits]
    whole = ["0" * gone + string for gone, string in zip(used, bits, strict=True)]
    words = [[int(string[at : at + 64][::-1], 2) for at in range(0, len(string), 64)] for string in whole]
    row = [([*own, 0, 0])[1] for own in words]  # every string has its second word from the start
    place = list(used)
    for step in taken:
        for k in range(8):
            held = place[k] // 64
            place[k] += len(step[k])
            if place[k] // 64 > held:
                row += [(words[k] + [0, 0, 0])[place[k] // 64 + 1]]
    while row and row[-1] == 0:
        row.pop()
    first = b"".join(struct.pack("<Q", (own or [0])[0])[gone // 8 :] for own, gone in zip(words, used, strict=True))
    head = struct.pack("<HH", len(row), len(strays)) + bytes(states) + bytes(used)
    return head + struct.pack(f"<{len(strays)}H", *strays) + first + struct.pack(f"<{len(row)}Q", *row)


def ans_codes(payload: bytes, n: int, bits: int, largest: int) -> list[int]:
    existing = sorted(valid_codes(bits, largest))
    shares, at = dict(zip(existing, payload, strict=False)), len(existing)
    assert sum(shares.values()) == STATES
    codes: list[int] = []
    for start in range(0, n, BLOCK):
        block, at = block_codes(payload, at, min(BLOCK, n - start), shares)
        codes += block
    assert at == len(payload)
    return codes


def block_codes(payload: bytes, at: int, n: int, shares: Shares) -> tuple[list[int], int]:
    count, stray_count = struct.unpack_from("<HH", payload, at)
    states, used = list(payload[at + 4 : at + 68]), list(payload[at + 68 : at + 76])
    strays = struct.unpack_from(f"<{stray_count}H", payload, at + 76)
    at += 76 + 2 * stray_count
    strings = []  # the bits at hand of each string, the next one lowest, and how many
    for gone in used:
        left = 8 - gone // 8
        strings.append([int.from_bytes(payload[at : at + left], "little") >> gone % 8, 64 - gone])
        at += left
    words = iter(struct.unpack_from(f"<{count}Q", payload, at))
    for string in strings:
        take(string, words)
    entries, codes = table(shares), [filling(shares)] * (-(-n // ROW) * ROW)
    for places in steps(n):
        for lane, i in enumerate(places):
            codes[i], bits, base = entries[states[lane]]
            string = strings[lane // 8]
            states[lane] = base + (string[0] & (1 << bits) - 1)
            string[0] >>= bits
            string[1] -= bits
        for string in strings:
            if string[1] <= 64:
                take(string, words)
    assert not any(states) and next(words, None) is None and all(left == 128 for _, left in strings)
    i = 0
    for stray in strays:
        i += stray >> 4
        if stray >> 4 < MOST_GAP:
            codes[i] = stray & 15
            i += 1
    return codes[:n], at + 8 * count


def take(string: list[int], words: object) -> None:
    string[0] |= next(words, 0) << string[1]  # type: ignore[call-overload]
    string[1] += 64
