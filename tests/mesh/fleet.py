"""Fleets for the tests of security: identities as `edgegossip fleet` makes them, and as it never
would."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from edgegossip.fleet.store import Fleet
from edgegossip.mesh.tls_security import TlsSecurity
from edgegossip.security import certificates
from edgegossip.security.certificates import Authority, Issued, certificate_pem, key_pem
from edgegossip.security.identity import CERTIFICATE, KEY
from edgegossip.security.names import Subject

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class TestFleet:
    """A fleet with the boards a, b and c, and what an attacker might make or get hold of."""

    fleet: Fleet
    ca: Authority
    work: Path

    __test__ = False

    @classmethod
    def make(cls, folder: Path) -> TestFleet:
        fleet = Fleet.create(folder / "fleet", "test", 20)
        for name in ("a", "b", "c"):
            fleet = fleet.add(name, "board", 20)
        (folder / "work").mkdir()
        return cls(fleet, fleet.authority(), folder / "work")

    def folder(self, name: str) -> Path:
        return self.fleet.folder / "boards" / name

    def security(self, name: str) -> TlsSecurity:
        return TlsSecurity.load(self.folder(name))

    def files(self, what: str) -> tuple[Path, Path] | None:
        """Certificate and key of somebody who must not come in as board c."""
        if what == "none":
            return None
        until, options = NOW + DAY, {}
        authority = self.ca
        if what == "other fleet":
            authority = certificates.new_authority("test", until)
        elif what == "expired":
            until = NOW - DAY
        elif what == "not yet valid":
            options["not_before"], until = NOW + DAY, NOW + 2 * DAY
        elif what == "wrong usage":
            options["usages"] = [x509.oid.ExtendedKeyUsageOID.CODE_SIGNING]
        elif what == "self-signed":
            return self._write(what, self._self_signed())
        name, role = "b" if what == "as b" else "c", "coordinator" if what == "coordinator" else "board"
        issued = certificates.issue(authority, name, role, not_after=until, **options)
        return self._write(what, issued)

    def _write(self, what: str, issued: Issued) -> tuple[Path, Path]:
        paths = self.work / f"{what}.pem", self.work / f"{what}.key"
        paths[0].write_bytes(certificate_pem(issued.certificate))
        paths[1].write_bytes(key_pem(issued.key))
        return paths

    def _self_signed(self) -> Issued:
        issued = certificates.issue(self.ca, "c", "board", not_after=NOW + DAY)
        old = issued.certificate
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "c")])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(issued.key.public_key())
        builder = builder.serial_number(old.serial_number).not_valid_before(NOW - DAY).not_valid_after(NOW + DAY)
        san = x509.SubjectAlternativeName([x509.DNSName(Subject("c", "board", self.ca.fleet_id).dns_name)])
        return Issued(issued.key, builder.add_extension(san, critical=False).sign(issued.key, hashes.SHA256()))

    def client_context(self, files: tuple[Path, Path] | None, *protocols: str, **changes: Any) -> ssl.SSLContext:
        """An attacker's side of TLS: it takes anybody for its server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return _finish(context, files, protocols, changes)

    def server_context(self, files: tuple[Path, Path] | None, *protocols: str, **changes: Any) -> ssl.SSLContext:
        """An attacker that listens, and takes anybody for a client."""
        return _finish(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files, protocols, changes)

    def of(self, name: str) -> tuple[Path, Path]:
        return self.folder(name) / CERTIFICATE, self.folder(name) / KEY


def _finish(
    context: ssl.SSLContext, files: tuple[Path, Path] | None, protocols: tuple[str, ...], changes: dict[str, Any]
) -> ssl.SSLContext:
    if files is not None:
        context.load_cert_chain(*files)
    context.set_alpn_protocols(list(protocols or ("h2",)))
    for name, value in changes.items():
        if name == "ciphers":
            context.set_ciphers(value)
        else:
            setattr(context, name, value)
    return context
