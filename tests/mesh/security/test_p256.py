"""ECDSA in plain Python, against the vectors of RFC 6979 and against `cryptography`; and the DER reader against rubbish."""

from __future__ import annotations

import secrets

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.fleet import authority as authorities
from edgegossip.mesh.security import certificate as certificates
from edgegossip.mesh.security import der, p256
from edgegossip.types import DecodeError


@pytest.mark.parametrize(
    ("message", "r", "s"),
    [  # RFC 6979, A.2.5, with SHA-256
        (
            b"sample",
            "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716",
            "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
        ),
        (
            b"test",
            "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367",
            "019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
        ),
    ],
)
def test_vectors_of_rfc_6979(message, r, s):
    private = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    assert p256.sign(private, message) == bytes.fromhex(r + s)


def test_agrees_with_cryptography_both_ways():
    for k in range(5):
        key, message = ec.generate_private_key(ec.SECP256R1()), secrets.token_bytes(40 * k)
        number = key.private_numbers().private_value
        public = p256.point_from_bytes(p256.public_point(number))
        numbers = key.public_key().public_numbers()
        assert public == (numbers.x, numbers.y)
        mine = p256.sign(number, message)
        theirs_der = key.sign(message, ec.ECDSA(hashes.SHA256()))
        encoded = utils.encode_dss_signature(int.from_bytes(mine[:32], "big"), int.from_bytes(mine[32:], "big"))
        key.public_key().verify(encoded, message, ec.ECDSA(hashes.SHA256()))
        r, s = utils.decode_dss_signature(theirs_der)
        theirs = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        assert p256.verify(public, message, theirs)
        flipped = bytearray(theirs)
        flipped[secrets.randbelow(64)] ^= 1 << secrets.randbelow(8)
        assert not p256.verify(public, message, bytes(flipped))
        assert not p256.verify(public, message + b"x", theirs)
        with pytest.raises(InvalidSignature):
            key.public_key().verify(encoded, message + b"x", ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize(
    ("r", "s"),
    [(0, 1), (1, 0), (p256.N, 1), (1, p256.N), (0, 0), (2**256 - 1, 2**256 - 1)],
)
def test_numbers_out_of_range_are_no_signature(r, s):
    assert not p256.verify(p256.G, b"", r.to_bytes(32, "big") + s.to_bytes(32, "big"))


def test_small_and_extreme_private_numbers():
    for k in (1, 2, 3, p256.N - 1, p256.N - 2):
        expected = ec.derive_private_key(k, ec.SECP256R1()).public_key().public_numbers()
        assert p256.point_from_bytes(p256.public_point(k)) == (expected.x, expected.y)


def test_points_off_the_curve_are_none():
    good = p256.public_point(7)
    assert p256.point_from_bytes(good) is not None
    for bad in (good[:-1] + bytes([good[-1] ^ 1]), good[:-1], b"\x02" + good[1:33], b"\x04" + b"\xff" * 64, b""):
        assert p256.point_from_bytes(bad) is None


AUTHORITY = authorities.found("test", authorities.years_from_now(1))
BOARD = authorities.issue(AUTHORITY, "a", "board", not_after=authorities.years_from_now(1))
LISTS = {n: authorities.revocation_list(AUTHORITY, n, range(1, n)) for n in (1, 2, 200)}


def as_der(thing) -> bytes:
    return der.from_pem(
        authorities.certificate_pem(thing), "X509 CRL" if hasattr(thing, "next_update_utc") else "CERTIFICATE"
    )


def test_reads_what_cryptography_writes():
    ca = certificates.parse_certificate(as_der(AUTHORITY.certificate))
    board = certificates.parse_certificate(as_der(BOARD.certificate))
    assert board.serial == BOARD.certificate.serial_number
    assert board.is_signed_by(ca) and ca.is_signed_by(ca) and not board.is_signed_by(board)
    assert board.dns_names[0] == f"a.board.{AUTHORITY.fleet_id}.edgegossip"
    for number, made in LISTS.items():
        read = certificates.parse_revocations(as_der(made))
        assert (read.number, read.serials) == (number, frozenset(range(1, number)))
        assert read.is_signed_by(ca) and not read.is_signed_by(board)
    pem = authorities.key_pem(BOARD.key)
    assert certificates.parse_private_key(der.from_pem(pem, "PRIVATE KEY")) == BOARD.key.private_numbers().private_value
    assert der.from_pem(der.to_pem(board.der, "CERTIFICATE"), "CERTIFICATE") == board.der


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rubbish_is_an_error_and_nothing_else(data):
    read = data.draw(st.sampled_from([certificates.parse_certificate, certificates.parse_revocations]))
    good = as_der(BOARD.certificate if read is certificates.parse_certificate else LISTS[2])
    kind = data.draw(st.sampled_from(["cut", "flip", "insert", "random"]))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = {
        "cut": good[:at],
        "flip": good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :],
        "insert": good[:at] + data.draw(st.binary(min_size=1, max_size=4)) + good[at:],
        "random": data.draw(st.binary(max_size=60)),
    }[kind]
    try:
        read(bad)
    except DecodeError:
        return
    assert (
        kind == "flip" or kind == "insert"
    )  # what is read all the same is not signed: checked below for one byte each


def test_no_byte_of_what_is_signed_can_be_changed():
    ca = certificates.parse_certificate(as_der(AUTHORITY.certificate))
    good = as_der(LISTS[2])
    for at in range(0, len(good), 9):
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        try:
            read = certificates.parse_revocations(bad)
        except DecodeError:
            continue
        assert not read.is_signed_by(ca), at
