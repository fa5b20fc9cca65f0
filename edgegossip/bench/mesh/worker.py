"""One process of a measurement: `python -m edgegossip.bench.mesh.worker KIND NAME`. Orders come as JSON lines on its standard
input, each is answered by one JSON line; it ends when the input does."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

from edgegossip.bench.mesh.peers import MeshPeer, Peer


def make_peer(kind: str, name: str) -> Peer:
    """`kind`: mesh, grpc or tcp. Imported here so that a process loads only what it measures."""
    if kind == "mesh":
        return MeshPeer(name)
    if kind == "grpc":
        from edgegossip.bench.mesh.grpc_peer import BareGrpcPeer

        return BareGrpcPeer(name)
    from edgegossip.bench.mesh.tcp_peer import TcpPeer

    return TcpPeer(name)


def usage() -> dict[str, float]:
    """CPU seconds and resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        rss_bytes = int(statm.read().split()[1]) * resource.getpagesize()
    times = os.times()
    return {"cpu_s": times.user + times.system, "rss_bytes": rss_bytes, "at_s": time.monotonic()}


def main() -> None:
    peer = make_peer(sys.argv[1], sys.argv[2])
    print(json.dumps({"result": peer.address}), flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        name = order.pop("do")
        try:
            answer = {"result": usage() if name == "usage" else getattr(peer, name)(**order)}
        except Exception as error:  # whatever it is, the one who ordered has to know
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
