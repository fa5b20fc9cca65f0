"""`python -m tests.mesh.security.handshake_flood FOLDER COUNT`: gRPC's server with the credentials
of this identity folder, and so many callers, many at once, that go away in the middle of the TLS
handshake. A fault in gRPC's core ends the process."""

from __future__ import annotations

import socket
import ssl
import sys
from concurrent import futures
from contextlib import suppress

import grpc

from edgegossip.mesh.tls_security import TlsSecurity

CALLERS = 16


def main(folder: str, count: int) -> None:
    security = TlsSecurity.load(folder)  # it has to live as long as its credentials
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", security.server_credentials())
    server.start()
    with futures.ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(_call, count * [port], range(count)))
    server.stop(0).wait()


def _call(port: int, k: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as caller:
        if k % 2 == 0:  # a handshake up to where a certificate is asked for
            context.wrap_socket(caller)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
