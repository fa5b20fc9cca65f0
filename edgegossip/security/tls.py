"""TLS for boards with Python's own `ssl`: contexts, and its errors in words.

TLS 1.3 only, since both ends are ours; certificates both ways; no session tickets, because a
resumed session would not look at the certificate and the revocation list again. OpenSSL checks
chain, dates, usage and revocation; it reads the list from memory, for the folder may be read-only.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from edgegossip.security.certificates import Certificate
from edgegossip.security.identity import CERTIFICATE, KEY, Identity, Revocations
from edgegossip.security.names import Role, Subject, subject_of
from edgegossip.types import DataError, EdgegossipError, PeerError

H2, ADMISSION = "h2", "edgegossip-knock/1"  # ALPN: gRPC, and the admission handshake
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL, for which `ssl` has no name

# X509_V_ERR_* of OpenSSL (x509_vfy.h)
_VERIFY = {
    7: "its certificate is forged: the signature does not fit",
    18: "its certificate is self-signed: it must come from `edgegossip fleet add`",
    19: "its certificate is of another fleet",
    20: "its certificate is of another fleet",
    21: "its certificate is of another fleet",
    23: "its certificate was revoked",
    26: "its certificate is for another use",
    62: "its certificate is for another name",
}
_NOT_YET, _EXPIRED = 9, 10
_NOT_TLS = (
    "HTTP_REQUEST|WRONG_VERSION_NUMBER|PACKET_LENGTH|RECORD_TOO|UNKNOWN_PROTOCOL|RECORD_LAYER_FAILURE|HTTPS_PROXY"
)
_REASONS = (
    (r"PEER_DID_NOT_RETURN_A_CERTIFICATE", "it has no certificate: start it with --identity"),
    (r"UNSUPPORTED_PROTOCOL|VERSION_TOO_LOW|PROTOCOL_VERSION|INAPPROPRIATE_FALLBACK", "it does not speak TLS 1.3"),
    (_NOT_TLS, "it does not speak TLS: start it with --identity"),
    (r"NO_APPLICATION_PROTOCOL|NO_SUITABLE|NO_SHARED|HANDSHAKE_FAILURE", "it speaks another kind of TLS"),
    (r"ALERT_CERTIFICATE_REVOKED", "it says that our certificate was revoked"),
    (r"ALERT_CERTIFICATE_EXPIRED", "it says that our certificate is expired, or not valid yet by its clock"),
    (r"ALERT_UNKNOWN_CA", "it says that our certificate is of another fleet"),
    (r"ALERT_CERTIFICATE_REQUIRED", "it wants a certificate of us"),
    (r"ALERT_(BAD|UNSUPPORTED)_CERTIFICATE|ALERT_CERTIFICATE_UNKNOWN", "it does not accept our certificate"),
    (r"UNEXPECTED_EOF|EOF", "it ended the connection during the TLS handshake"),
)


def server_context(identity: Identity) -> ssl.SSLContext:
    """Make the context of the listening side. Raises DataError when the identity's files cannot be
    used."""
    context = _context(identity, ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    context.set_alpn_protocols([H2, ADMISSION])
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    """Make the context of a caller in the admission handshake. Raises DataError."""
    context = _context(identity, ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([ADMISSION])
    return context


class CallerContext(ssl.SSLContext):
    """Serves a client that knows a server by its role in the fleet, and not by the name or address
    at which it is found."""

    fleet: str
    role: Role
    revocations: Revocations

    def check_dates(self, certificate: Certificate, now_s: float) -> None:
        """Look at the dates that a handshake left out; handshakes from now on look themselves.
        Raises PeerError when the server's certificate is not valid at this time."""
        self.verify_flags &= ~_NO_CHECK_TIME
        begin_s, end_s = certificate.valid
        if not begin_s <= now_s <= end_s:
            raise PeerError(f"its certificate {out_of_date(now_s > end_s, now_s)}")

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Shake hands as the standard one does. Raises PeerError when it is somebody else who
        answers: trying again would not help."""
        try:
            connection = super().wrap_socket(*args, **options)
        except ssl.SSLCertVerificationError as error:
            raise PeerError(words(error)) from error
        except ssl.SSLError as error:
            if re.search(_NOT_TLS, error.reason or "", re.IGNORECASE):
                raise PeerError(f"it does not speak TLS: start it with an identity of {self.role}s too") from error
            raise
        try:
            subject, serial = peer_of(connection.getpeercert(), self.fleet)
            with suppress(EdgegossipError):  # half copied: the one that we have stays
                self.revocations.look_at_file()
            if self.revocations.revoked(serial):  # by a list that is newer than this context
                raise PeerError(_VERIFY[23])
            if subject.role != self.role:
                raise PeerError(
                    f"its certificate is that of {subject.name}, which is no {self.role} but a {subject.role}"
                )
        except PeerError:
            connection.close()
            raise
        return connection


def caller_context(identity: Identity, role: Role, *, dated: bool = True) -> CallerContext:
    """Make the context of a client of a server of our fleet that has this role. Not `dated`: it
    does not look at dates before its `check_dates`, for a board that does not know the time. Raises
    DataError."""
    context = CallerContext(ssl.PROTOCOL_TLS_CLIENT)
    _furnish(context, identity)
    context.check_hostname = False  # the role is what counts
    context.fleet, context.role, context.revocations = identity.fleet, role, identity.revocations
    if not dated:
        context.verify_flags |= _NO_CHECK_TIME
    return context


def _context(identity: Identity, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    _furnish(context, identity)
    return context


def _furnish(context: ssl.SSLContext, identity: Identity) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(identity.folder / CERTIFICATE, identity.folder / KEY)
        context.load_verify_locations(cadata=identity.authority.der)
        _load_revocations(context, identity.revocations.present.pem)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{identity.folder}: {str(reason).lower()}; copy the board's folder again") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_revocations(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a revocation list by way of a file in memory: `ssl` takes them from files only."""
    descriptor = os.memfd_create("crl", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_verify_locations(cafile=f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def peer_of(certificate: Mapping[str, Any] | None, fleet: str) -> tuple[Subject, int]:
    """Return subject and serial from `getpeercert()` of a connection whose handshake succeeded.
    Raises PeerError."""
    names = tuple(str(value).lower() for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS")
    subject = subject_of(names, fleet)
    assert certificate is not None
    return subject, int(certificate["serialNumber"], 16)


def went_away(error: object) -> bool:
    """Return whether the other side only ended the connection. It said nothing against us, and we
    nothing against it: a probe of the port, or one that was stopped."""
    ended = isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError))
    return ended or "Closed before TLS handshake" in str(error)  # so says `ssl` of a reset with data


def words(error: Exception, now_s: float | None = None) -> str:
    """Say why a handshake failed: one clause about the other side. `now_s`: by the clock here, if
    that is not this machine's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_NOT_YET, _EXPIRED):
            return (
                f"its certificate {out_of_date(error.verify_code == _EXPIRED, time.time() if now_s is None else now_s)}"
            )
        return _VERIFY.get(error.verify_code, f"its certificate is not valid: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return words_of(error.reason or str(error))
    if isinstance(error, ConnectionError):
        return "it ended the connection during the TLS handshake"
    return str(getattr(error, "strerror", None) or error).lower()


def out_of_date(expired: bool, now_s: float, name: str = "NAME") -> str:
    """Say that a certificate is, and by whose clock: it may be that one which is wrong."""
    what = "has expired" if expired else "is not valid yet"
    today = datetime.fromtimestamp(now_s, UTC).date()
    new = f"issue a new one with `edgegossip fleet add --again {name}`"
    return f"{what} by the clock here, which says {today}: if that is right, {new}"


def words_of(reason: str) -> str:
    """Say the same from OpenSSL's own word, such as HTTP_REQUEST."""
    for pattern, text in _REASONS:
        if re.search(pattern, reason, re.IGNORECASE):
            return text
    return f"the TLS handshake failed: {reason.lower().replace('_', ' ')}"
