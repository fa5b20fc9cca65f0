"""Bringing a revocation list to a running coordinator, over a connection that is open already."""

from __future__ import annotations

import http.client
import json
import ssl

from edgegossip.flower.admission import REVOKED_PATH
from edgegossip.types import PeerError

_MOST = 65_536  # bytes of an answer


def give(s: ssl.SSLSocket, revocations: bytes) -> int:
    """`revocations`: a list in DER. The number of the list that the coordinator has then. Raises
    PeerError."""
    connection = http.client.HTTPConnection("coordinator")
    connection.sock = s
    try:
        connection.request("POST", REVOKED_PATH, revocations, {"content-type": "application/pkix-crl"})
        answer = connection.getresponse()
        document = json.loads(answer.read(_MOST))
        if answer.status != 200:
            raise PeerError(str(document["detail"]))
        return int(document["has"])
    except (http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PeerError(f"its answer makes no sense: {error}") from error
