"""One process of a measurement: `python -m edgegossip.lab.bench.mesh.worker KIND NAME`. Orders come
as JSON lines on its standard input, each is answered by one JSON line; it ends when the input
does."""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from edgegossip.lab.bench.mesh.peers import MeshPeer, Peer, RingPeer


def make_peer(kind: str, name: str) -> Peer:
    """`kind`: mesh, member-N (of N), grpc (grpc-N: messages of N MiB), tuned-N (gRPC with the
    mesh's poller) or tcp. Imported here so that a process loads only what it measures."""
    if kind == "mesh":
        return MeshPeer(name)
    if kind.startswith("member"):
        from edgegossip.lab.bench.mesh.member import MemberPeer

        return MemberPeer(name, int(kind.partition("-")[2]))
    if kind.startswith(("grpc", "tuned")):
        from edgegossip.lab.bench.mesh.grpc_peer import BareGrpcPeer

        _, _, message_mib = kind.partition("-")
        bare: RingPeer = BareGrpcPeer(name, int(message_mib or 1) << 20)
        return bare
    from edgegossip.lab.bench.mesh.tcp_peer import TcpPeer

    return TcpPeer(name)


def usage() -> dict[str, int]:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return {"rss_bytes": int(statm.read().split()[1]) * resource.getpagesize()}


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
