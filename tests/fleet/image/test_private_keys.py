"""Private keys in plain sight are found however they are laid out, wherever they lie, once each;
other things are none."""

from __future__ import annotations

import base64
import io
import json
import textwrap
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from edgegossip.fleet.image import private_keys
from edgegossip.fleet.image.private_keys import find_keys, of_libraries

CURVE, EDWARDS = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(65537, 2048)
PKCS8, SEC1 = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL


def numbered(cases):
    """By number: keys made anew would name a test otherwise each time it is collected."""
    return [pytest.param(case, id=str(k)) for k, case in enumerate(cases)]


def text(key, form=PKCS8):
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def der(key, form=PKCS8):
    return key.private_bytes(Encoding.DER, form, NoEncryption())


def found(data: bytes):
    return list(find_keys(io.BytesIO(data)))


PEM = text(CURVE)
LAYOUTS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "Windows' ends of lines": lambda p: p.replace(b"\n", b"\r\n"),
    "ends of lines of old Macs": lambda p: p.replace(b"\n", b"\r"),
    "blanks at the ends": lambda p: p.replace(b"-----\n", b"----- \n"),
    "indented": lambda p: b"key: |\n    " + p.replace(b"\n", b"\n    "),
    "one line": lambda p: _one_line(p),
    "short lines": lambda p: _lines(p, 32),
    "no ends of lines": lambda p: p.replace(b"\n", b""),
    "JSON": lambda p: json.dumps({"key": p.decode()}).encode(),
    "JSON in JSON": lambda p: json.dumps(json.dumps({"key": p.decode()})).encode(),
    "a program's lines": lambda p: b"\n".join(b'    "%s\\n"' % line for line in p.splitlines()),
    "UTF-16": lambda p: p.decode().encode("utf-16-le"),
    "base64": base64.b64encode,
    "base64, one on": lambda p: base64.b64encode(b"\n" + p),
    "base64, two on": lambda p: base64.b64encode(b"\n\n" + p),
    "base64 in lines": lambda p: base64.encodebytes(p),
}


PKCS1 = der(RSA, SEC1)


def _one_line(pem: bytes) -> bytes:
    first, *body, last = pem.splitlines()
    return b"\n".join((first, b"".join(body), last))


def _lines(pem: bytes, width: int) -> bytes:
    first, *body, last = pem.decode().splitlines()
    return "\n".join((first, *textwrap.wrap("".join(body), width), last)).encode()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_however_it_is_laid_out_it_is_the_same_key(layout):
    (plain,) = found(PEM)
    (key,) = found(b"before it " + LAYOUTS[layout](PEM) + b" and after")
    assert key.digest == plain.digest


@pytest.mark.parametrize(
    "data",
    numbered(
        [
            *(text(key, form) for key in (CURVE, RSA) for form in (PKCS8, SEC1, PrivateFormat.OpenSSH)),
            text(EDWARDS),
            text(EDWARDS, PrivateFormat.OpenSSH),
            text(dsa.generate_private_key(1024), SEC1),
            CURVE.private_bytes(Encoding.PEM, PKCS8, BestAvailableEncryption(b"x")),
            *(der(key, form) for key in (CURVE, RSA) for form in (PKCS8, SEC1)),
            der(EDWARDS),
            der(x25519.X25519PrivateKey.generate()),
            *(
                der(ec.generate_private_key(c), form)
                for c in (ec.SECP384R1(), ec.SECP521R1())
                for form in (PKCS8, SEC1)
            ),
            *(der(rsa.generate_private_key(65537, bits), SEC1) for bits in (1024, 3072)),
            b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQHYBF" + b"A" * 60 + b"\n",
            b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"
            + b"A" * 64
            + b"\n",
            b'network={\n\tssid="home"\n\tpsk=' + b"0a" * 32 + b"\n}",
            json.dumps(json.dumps({"wifi": [{"ssid": "home", "psk": "0a" * 32}]})).encode(),
        ]
    ),
)
@pytest.mark.parametrize("before", [0, 4096 + 7])
def test_every_kind_of_key(data, before):
    key, *inside = found(b"\x30\x82" * (before // 2) + b"\0" * 9 + data + b"\0" * 99)
    assert len(inside) == (PKCS1 in data and data != PKCS1), "PKCS#8 has RSA's own structure in it"
    assert abs(key.at - (before // 2 * 2 + 9)) < 60


@pytest.mark.parametrize("kind", numbered([PEM, der(CURVE), der(RSA, SEC1), PEM.decode().encode("utf-16-le")]))
def test_once_wherever_the_windows_end(kind, monkeypatch):
    monkeypatch.setattr(private_keys, "_WINDOW", 40_000)
    for at in (*range(20_000, 45_000, 1_111), 79_990, 39_999):
        data = bytearray(120_000)
        data[at : at + len(kind)] = kind
        assert [key.at for key in found(bytes(data))] == [at]


def test_keys_are_told_apart_by_all_of_them():
    """All keys of OpenSSH of one kind begin with the same line: one that is known must not stand
    for the others."""
    for form, make in (
        (PrivateFormat.OpenSSH, ed25519.Ed25519PrivateKey.generate),
        (PKCS8, lambda: ec.generate_private_key(ec.SECP521R1())),
    ):
        keys = [make() for _ in range(4)]
        for encode in (lambda key, form=form: text(key, form), *([der] if form is PKCS8 else [])):
            assert len({k.digest for key in keys for k in found(encode(key))}) == 4


@pytest.mark.parametrize(
    "data",
    numbered(
        [
            b'HEADER = "-----BEGIN PRIVATE KEY-----"\nFOOTER = "-----END PRIVATE KEY-----"\n' * 40,
            b"-----BEGIN PRIVATE KEY-----\nshort\n",
            b"a text of -----BEGIN PRIVATE KEY----- and words that follow it without any end of the sentence at all",
            b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(bytes(range(200))) + b"-----END CERTIFICATE-----\n",
            base64.b64encode(b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 100),
            CURVE.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            b'psk="a passphrase of an example"\npsk=0123456789\n',
            bytes(100_000),
        ]
    ),
)
def test_what_is_no_key(data):
    assert found(data) == []


def test_programs_and_kernels_may_test_themselves(tmp_path):
    for name, magic in (("usr/lib/arm/a.so", b"\x7fELF"), ("usr/bin/openssl", b"\x7fELF"), ("boot/vmlinuz-6", b"MZ\0\0"),
                        ("usr/bin/script", b"#!/b"), ("etc/keys.so", b"\x7fELF")):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(magic + bytes(500) + der(ec.generate_private_key(ec.SECP256R1())))
    digests = {
        name: found((tmp_path / name).read_bytes())[0].digest
        for name in ("usr/bin/openssl", "etc/keys.so", "usr/bin/script")
    }
    known = of_libraries(tmp_path)
    assert len(known) == 3 and digests["usr/bin/openssl"] in known
    assert digests["etc/keys.so"] not in known and digests["usr/bin/script"] not in known
