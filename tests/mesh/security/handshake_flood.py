"""`python -m tests.mesh.security.handshake_flood FOLDER SECONDS`: gRPC's server with the
credentials of this identity folder, and many callers at once that go away in the middle of the TLS
handshake. Says how many; a fault in gRPC's core ends the process."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from concurrent import futures
from contextlib import suppress

import grpc

from edgegossip.mesh.tls_security import TlsSecurity

CALLERS = 16


def main(folder: str, seconds: float) -> None:
    security = TlsSecurity.load(folder)  # it has to live as long as its credentials
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", security.server_credentials())
    server.start()
    until = time.monotonic() + seconds
    connections = [futures.Future[int]() for _ in range(CALLERS)]
    threads = [threading.Thread(target=_call, args=(port, k % 2 == 0, until, one)) for k, one in enumerate(connections)]
    for thread in threads:
        thread.start()
    print(sum(one.result() for one in connections))
    server.stop(0).wait()


def _call(port: int, speak: bool, until: float, told: futures.Future[int]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    count = 0
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as caller:
            count += 1
            if speak:  # a handshake up to where a certificate is asked for
                context.wrap_socket(caller)
    told.set_result(count)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
