"""A board for the tests: sends every frame back, ends when its standard input does."""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import threading

import numpy  # noqa: F401  (a gossip board has it loaded)

from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh.base import Received
from edgegossip.telemetry.sockets import SocketMeter


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    node, listen, run_id, limits, identity = sys.argv[1:6]
    meter = SocketMeter()
    insecure = not listen.startswith("127.")
    security = None
    if identity:  # as a board does, which loads `cryptography` only if it has an identity
        from edgegossip.mesh.tls_security import TlsSecurity

        security = TlsSecurity.load(identity)
    transport = GrpcTransport(
        node,
        bytes.fromhex(run_id),
        listen,
        limits=MeshLimits(**json.loads(limits)),
        insecure=insecure,
        security=security,
    )
    say(address=transport.address)

    def echo() -> None:
        while (event := transport.incoming(None)) is not None:
            if isinstance(event, Received):
                transport.send(event.sender, [event.data])

    thread = threading.Thread(target=echo)
    thread.start()
    for line in sys.stdin:
        if line.strip() == "report":
            totals = meter.sample()
            say(rss_bytes=rss_bytes(), sent=totals and totals.sent_bytes, link=totals and totals.sent_link_bytes)
        elif line.strip() == "hold":
            ctypes.PyDLL(None).system(b"echo '{\"held\": true}'; read line")  # PyDLL keeps Python's lock
        else:
            transport.connect(json.loads(line))
    transport.close()
    thread.join()


if __name__ == "__main__":
    main()
