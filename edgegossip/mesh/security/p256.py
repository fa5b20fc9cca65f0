"""ECDSA with SHA-256 over NIST P-256 (FIPS 186-5, SEC 2 secp256r1) in plain Python: for the few signatures that a board reads.

A board checks a signature when a newer revocation list or a run's signed document comes, which is seldom; that is not worth the
16 MB of a cryptographic package. TLS itself is not done here. Signing is deterministic (RFC 6979) and blinded: the ladder has a
fixed length and starts from randomised projective coordinates. Python's integers are all the same not constant in time, so do
not sign what an attacker may choose and time by the thousand.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from typing import TypeAlias

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
SIGNATURE_BYTES = 64  # r and s, big-endian

Point: TypeAlias = tuple[int, int]  # affine, never the neutral element
_Jacobian: TypeAlias = tuple[int, int, int]  # x = X / Z^2, y = Y / Z^3; Z = 0 is the neutral element
_NEUTRAL: _Jacobian = (1, 1, 0)


def point_from_bytes(data: bytes) -> Point | None:
    """An uncompressed point (65 bytes, SEC 1 2.3.3), None for anything that is not on the curve."""
    if len(data) != 65 or data[0] != 4:
        return None
    x, y = int.from_bytes(data[1:33], "big"), int.from_bytes(data[33:], "big")
    if x >= P or y >= P or (y * y - (x * x * x - 3 * x + B)) % P:
        return None
    return x, y


def public_point(private: int) -> bytes:
    """The uncompressed point of a private number."""
    point = _affine(_ladder(private, G))
    assert point is not None
    return b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")


def verify(public: Point, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) is that of `message`. FIPS 186-5, 6.4.2."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    if not (0 < r < N and 0 < s < N):
        return False
    w = pow(s, -1, N)
    point = _affine(_sum_of_two(_digest(message) * w % N, G, r * w % N, public))
    return point is not None and point[0] % N == r


def sign(private: int, message: bytes) -> bytes:
    """64 bytes. FIPS 186-5, 6.4.1, with the number k of RFC 6979, 3.2."""
    digest = _digest(message)
    for k in _candidates(private, digest):
        point = _affine(_ladder(k, G))
        r = point[0] % N if point else 0
        blind = secrets.randbelow(N - 1) + 1
        s = pow(k * blind % N, -1, N) * (blind * digest + blind * r % N * private) % N
        if r and s:
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    raise AssertionError("unreachable")


def _digest(message: bytes) -> int:
    return int.from_bytes(hashlib.sha256(message).digest(), "big")


def _candidates(private: int, digest: int) -> Iterator[int]:
    """RFC 6979, 3.2, steps b to h."""
    seed = private.to_bytes(32, "big") + (digest % N).to_bytes(32, "big")
    v, key = b"\x01" * 32, b"\x00" * 32
    for byte in (b"\x00", b"\x01"):
        key = hmac.digest(key, v + byte + seed, "sha256")
        v = hmac.digest(key, v, "sha256")
    while True:
        v = hmac.digest(key, v, "sha256")
        if 0 < (k := int.from_bytes(v, "big")) < N:
            yield k
        key = hmac.digest(key, v + b"\x00", "sha256")
        v = hmac.digest(key, v, "sha256")


# -- the group; formulas for a = -3 from Bernstein and Lange's Explicit-Formulas Database ---------------------


def _double(p: _Jacobian) -> _Jacobian:
    """dbl-2001-b."""
    x, y, z = p
    delta, gamma = z * z % P, y * y % P
    beta, alpha = x * gamma % P, 3 * (x - delta) * (x + delta) % P
    x3 = (alpha * alpha - 8 * beta) % P
    return x3, (alpha * (4 * beta - x3) - 8 * gamma * gamma) % P, ((y + z) ** 2 - gamma - delta) % P


def _add(p: _Jacobian, q: _Jacobian) -> _Jacobian:
    """add-1998-cmo-2."""
    if not p[2]:
        return q
    if not q[2]:
        return p
    z1z1, z2z2 = p[2] * p[2] % P, q[2] * q[2] % P
    u1, u2 = p[0] * z2z2 % P, q[0] * z1z1 % P
    s1, s2 = p[1] * q[2] * z2z2 % P, q[1] * p[2] * z1z1 % P
    h, r = (u2 - u1) % P, (s2 - s1) % P
    if not h:
        return _double(p) if not r else _NEUTRAL
    hh = h * h % P
    hhh, v = h * hh % P, u1 * hh % P
    x3 = (r * r - hhh - 2 * v) % P
    return x3, (r * (v - x3) - s1 * hhh) % P, p[2] * q[2] * h % P


def _affine(p: _Jacobian) -> Point | None:
    if not p[2]:
        return None
    inverse = pow(p[2], -1, P)
    return p[0] * inverse * inverse % P, p[1] * inverse * inverse * inverse % P


def _sum_of_two(a: int, p: Point, b: int, q: Point) -> _Jacobian:
    """a p + b q, both scanned at once (Straus's trick). Not for secrets."""
    first, second = (*p, 1), (*q, 1)
    table = (_NEUTRAL, first, second, _add(first, second))
    total = _NEUTRAL
    for i in reversed(range(256)):
        total = _double(total)
        total = _add(total, table[(a >> i & 1) | (b >> i & 1) << 1])
    return total


def _ladder(k: int, p: Point) -> _Jacobian:
    """k p by Montgomery's ladder: one addition and one doubling for each of 257 bits, from random coordinates."""
    z = secrets.randbelow(P - 1) + 1
    k += N if (k + N).bit_length() == 257 else 2 * N  # the same multiple, always 257 bits long
    low = (p[0] * z * z % P, p[1] * z * z * z % P, z)
    high = _double(low)
    for i in reversed(range(256)):
        if k >> i & 1:
            low, high = _add(low, high), _double(high)
        else:
            low, high = _double(low), _add(low, high)
    return low
