"""Certificates, revocation lists and signatures: what is read is what was made, and rubbish is an
error and nothing else."""

from __future__ import annotations

import itertools
import secrets
import warnings
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, utils
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.security import certificates
from edgegossip.types import DecodeError

AUTHORITY = certificates.new_authority("test", certificates.years_from_now(1))
BOARD = certificates.issue(AUTHORITY, "a", "board", not_after=certificates.years_from_now(1))
LISTS = {n: certificates.revocation_list(AUTHORITY, n, range(1, n)) for n in (1, 2, 200)}
CA = certificates.certificate_from_pem(certificates.certificate_pem(AUTHORITY.certificate))
SIGNER = certificates.certificate_from_pem(certificates.certificate_pem(BOARD.certificate))


def as_der(thing) -> bytes:
    return thing.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("message", "signature"),
    [  # RFC 6979, A.2.5, with SHA-256
        (
            b"sample",
            "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716"
            "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
        ),
        (
            b"test",
            "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367"
            "019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083",
        ),
    ],
)
def test_signatures_of_the_wire_format_are_those_of_rfc_6979(message, signature):
    """64 bytes, r before s, as boards of earlier releases have made them."""
    number = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    key = ec.derive_private_key(number, ec.SECP256R1())
    name = x509.Name([])
    day = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(day).not_valid_after(day + timedelta(1))
    signer = certificates.parse_certificate(as_der(builder.sign(key, hashes.SHA256())))
    assert signer.dns_names == ()
    assert signer.valid == (day.timestamp(), day.timestamp() + 86_400)
    assert certificates.verify(signer, message, bytes.fromhex(signature))
    assert certificates.verify(signer, message, certificates.sign(key, message))


def test_a_signature_is_of_one_message_and_one_key():
    for k in range(5):
        message = secrets.token_bytes(40 * k)
        mine = certificates.sign(BOARD.key, message)
        assert len(mine) == certificates.SIGNATURE_BYTES
        assert certificates.verify(SIGNER, message, mine)
        assert not certificates.verify(CA, message, mine)
        assert not certificates.verify(SIGNER, message + b"x", mine)
        flipped = bytearray(mine)
        flipped[secrets.randbelow(64)] ^= 1 << secrets.randbelow(8)
        assert not certificates.verify(SIGNER, message, bytes(flipped))
        r, s = utils.decode_dss_signature(BOARD.key.sign(message, ec.ECDSA(hashes.SHA256())))
        assert certificates.verify(SIGNER, message, r.to_bytes(32, "big") + s.to_bytes(32, "big"))


N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.mark.parametrize(("r", "s"), [(0, 1), (1, 0), (N, 1), (1, N), (0, 0), (2**256 - 1, 2**256 - 1)])
def test_numbers_out_of_range_are_no_signature(r, s):
    assert not certificates.verify(SIGNER, b"", r.to_bytes(32, "big") + s.to_bytes(32, "big"))


@pytest.mark.parametrize("length", [0, 63, 65, 128])
def test_another_length_is_no_signature(length):
    assert not certificates.verify(SIGNER, b"", bytes(length))


def test_reads_what_an_authority_makes():
    assert certificates.parse_certificate(as_der(BOARD.certificate)) == SIGNER
    assert SIGNER.serial == BOARD.certificate.serial_number
    assert SIGNER.is_signed_by(CA) and CA.is_signed_by(CA) and not SIGNER.is_signed_by(SIGNER)
    assert SIGNER.dns_names[0] == f"a.board.{AUTHORITY.fleet_id}.edgegossip"
    assert SIGNER.fingerprint == BOARD.certificate.fingerprint(hashes.SHA256()).hex()
    assert SIGNER.pem == certificates.certificate_pem(BOARD.certificate)
    for number, made in LISTS.items():
        read = certificates.parse_revocations(as_der(made))
        assert (read.number, read.serials) == (number, frozenset(range(1, number)))
        assert read.is_signed_by(CA) and not read.is_signed_by(SIGNER)
        assert certificates.revocations_from_pem(read.pem) == read
    key = certificates.private_key_from_pem(certificates.key_pem(BOARD.key))
    assert certificates.public_point(key.public_key()) == SIGNER.public_key


def test_what_is_not_over_p_256_with_sha_256_is_refused():
    day = datetime(2026, 1, 1, tzinfo=UTC)

    def certificate(key, digest) -> bytes:
        name = x509.Name([])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(1).not_valid_before(day).not_valid_after(day + timedelta(1))
        return as_der(builder.sign(key, digest))

    other_curve = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(DecodeError, match="not over the curve P-256"):
        certificates.parse_certificate(certificate(other_curve, hashes.SHA256()))
    with pytest.raises(DecodeError, match="not signed with ECDSA and SHA-256"):
        certificates.parse_certificate(certificate(BOARD.key, hashes.SHA384()))
    with pytest.raises(DecodeError, match="not signed with ECDSA and SHA-256"):
        certificates.parse_certificate(certificate(rsa.generate_private_key(65_537, 2048), hashes.SHA256()))
    with pytest.raises(DecodeError, match="not over the curve P-256"):
        certificates.private_key_from_pem(certificates.key_pem(other_curve))


def test_a_list_needs_a_number_in_range():
    def made(*numbers: int) -> bytes:
        builder = x509.CertificateRevocationListBuilder().issuer_name(AUTHORITY.certificate.subject)
        builder = builder.last_update(certificates.EPOCH).next_update(certificates.EPOCH + timedelta(1))
        for number in numbers:
            builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        return as_der(builder.sign(AUTHORITY.key, hashes.SHA256()))

    assert certificates.parse_revocations(made(2**63 - 1)).number == 2**63 - 1
    with pytest.raises(DecodeError, match="without a number"):
        certificates.parse_revocations(made())
    with pytest.raises(DecodeError, match="out of range"):
        certificates.parse_revocations(made(2**63))


@pytest.mark.parametrize(
    "read", [certificates.parse_certificate, certificates.parse_revocations, certificates.revocations_from_pem]
)
def test_more_bytes_than_there_may_be(read):
    with pytest.raises(DecodeError, match="too many"):
        read(bytes((1 << 20) + 1))


@pytest.mark.parametrize(
    "read",
    [certificates.certificate_from_pem, certificates.revocations_from_pem, certificates.private_key_from_pem],
)
@pytest.mark.parametrize(
    "text", [b"", b"-----BEGIN X-----\n", b"-----BEGIN CERTIFICATE-----\n#\n-----END CERTIFICATE-----\n"]
)
def test_no_pem_is_an_error_of_one_clause(read, text):
    with pytest.raises(DecodeError) as error:
        read(text)
    assert str(error.value) and "http" not in str(error.value) and "\n" not in str(error.value)


@settings(max_examples=300, deadline=None)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cryptography, about what it still reads
        try:
            found = read(bad)
            signed = found.is_signed_by(CA)
        except DecodeError:
            return
    assert kind in ("flip", "insert")
    assert not signed or bad == good  # such as a byte inserted beside the same byte


@pytest.mark.parametrize("read", [certificates.parse_certificate, certificates.parse_revocations])
def test_no_byte_of_what_is_signed_can_be_changed(read):
    good = as_der(BOARD.certificate if read is certificates.parse_certificate else LISTS[2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at, bit in itertools.product(range(len(good)), range(8)):
            bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            try:
                assert not read(bad).is_signed_by(CA), at
            except DecodeError:
                continue
