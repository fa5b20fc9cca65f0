"""Private keys in plain sight are found however their text is laid out, wherever they lie, once
each; other things are none."""

import base64
import io
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
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
PKCS8, SEC1, OPENSSH = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL, PrivateFormat.OpenSSH


def text(key, form=PKCS8):
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def found(data):
    return list(find_keys(io.BytesIO(data)))


PEM = text(CURVE)
LAYOUTS = {
    "as it is": PEM,
    "Windows' ends of lines": PEM.replace(b"\n", b"\r\n"),
    "indented": b"key: |\n    " + PEM.replace(b"\n", b"\n    "),
    "no ends of lines": PEM.replace(b"\n", b""),
    "JSON in JSON": json.dumps(json.dumps({"key": PEM.decode()})).encode(),
    "a program's lines": b"\n".join(b'    "%s\\n"' % line for line in PEM.splitlines()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_however_it_is_laid_out_it_is_the_same_key(layout):
    (plain,) = found(PEM)
    (key,) = found(b"before it " + LAYOUTS[layout] + b" and after")
    assert key.digest == plain.digest


# By number: keys made anew would name a test otherwise each time it is collected.
KINDS = [
    *(text(key, form) for key in (CURVE, RSA) for form in (PKCS8, SEC1, OPENSSH)),
    text(EDWARDS),
    CURVE.private_bytes(Encoding.PEM, PKCS8, BestAvailableEncryption(b"x")),
    b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQHYBF" + b"A" * 60 + b"\n",
    b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n" + b"A" * 64 + b"\n",
    b'network={\n\tssid="home"\n\tpsk=' + b"0a" * 32 + b"\n}",
    json.dumps(json.dumps({"wifi": [{"ssid": "home", "psk": "0a" * 32}]})).encode(),
]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_every_kind_of_key(kind):
    (key,) = found(b"\0" * 9 + KINDS[kind] + b"\0" * 99)
    assert abs(key.at - 9) < 60


def test_once_wherever_the_windows_end(monkeypatch):
    monkeypatch.setattr(private_keys, "_WINDOW", 40_000)
    for at in (*range(20_000, 45_000, 1_111), 79_990, 39_999):
        data = bytearray(120_000)
        data[at : at + len(PEM)] = PEM
        assert [key.at for key in found(bytes(data))] == [at]


def test_keys_are_told_apart_by_all_of_them():
    """All keys of OpenSSH of one kind begin with the same line: one that is known must not stand
    for the others."""
    keys = [ed25519.Ed25519PrivateKey.generate() for _ in range(4)]
    assert len({found(text(key, OPENSSH))[0].digest for key in keys}) == 4


@pytest.mark.parametrize(
    "data",
    [
        b'HEADER = "-----BEGIN PRIVATE KEY-----"\nFOOTER = "-----END PRIVATE KEY-----"\n' * 40,
        b"-----BEGIN PRIVATE KEY-----\nshort\n",
        b"a text of -----BEGIN PRIVATE KEY----- and words that follow it without any end of the sentence at all",
        b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(bytes(range(200))) + b"-----END CERTIFICATE-----\n",
        rsa.generate_private_key(65537, 1024).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        b'psk="a passphrase of an example"\npsk=0123456789\n',
        bytes(100_000),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_is_no_key(data):
    assert found(data) == []


def test_programs_and_kernels_may_test_themselves(tmp_path):
    for name, magic in (("usr/lib/arm/a.so", b"\x7fELF"), ("usr/bin/openssl", b"\x7fELF"), ("boot/vmlinuz-6", b"MZ\0\0"),
                        ("usr/bin/script", b"#!/b"), ("etc/keys.so", b"\x7fELF")):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(magic + bytes(500) + text(ec.generate_private_key(ec.SECP256R1())))
    (tmp_path / "usr/lib/arm/b.so").symlink_to("a.so")
    digests = {
        name: found((tmp_path / name).read_bytes())[0].digest
        for name in ("usr/bin/openssl", "etc/keys.so", "usr/bin/script")
    }
    known = of_libraries(tmp_path)
    assert len(known) == 3 and digests["usr/bin/openssl"] in known
    assert digests["etc/keys.so"] not in known and digests["usr/bin/script"] not in known
