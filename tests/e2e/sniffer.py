"""Everything that a machine sends over TCP and UDP, by destination:
`python -m tests.e2e.sniffer [FILE]`, inside its network namespace. Prints a JSON list of
[interface, protocol, address, port] when its standard input ends. The packets themselves go to
FILE, one after the other."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading

ETH_P_ALL, IPV4, IPV6 = 3, 0x0800, 0x86DD
OUTGOING = 4  # sll_pkttype
SO_RCVBUFFORCE = 33  # Python has no name for it
PROTOCOLS = {6: "tcp", 17: "udp"}


def parse(kind: int, packet: bytes) -> tuple[str, str, int] | None:
    """Protocol, destination and its port; None for what is neither TCP nor UDP."""
    if kind == IPV4 and len(packet) >= 20:
        protocol, where, rest = (
            packet[9],
            socket.inet_ntop(socket.AF_INET, packet[16:20]),
            packet[4 * (packet[0] & 15) :],
        )
    elif kind == IPV6 and len(packet) >= 40:
        protocol, where, rest = packet[6], socket.inet_ntop(socket.AF_INET6, packet[24:40]), packet[40:]
    else:
        return None
    if protocol not in PROTOCOLS or len(rest) < 4:
        return None
    return PROTOCOLS[protocol], where, struct.unpack_from("!H", rest, 2)[0]


def main(file: str = "") -> None:
    seen: set[tuple[str, str, str, int]] = set()
    whole = 1 << 16 if file else 128  # bytes of a packet
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as s,
        open(file or os.devnull, "ab", buffering=0) as out,
    ):
        if file:
            s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)

        def listen() -> None:
            while True:
                packet, (interface, kind, direction, *_) = s.recvfrom(whole)
                found = parse(kind, packet)
                if direction == OUTGOING and found is not None:
                    seen.add((interface, *found))
                    out.write(packet)

        threading.Thread(target=listen, daemon=True).start()
        print("listening", flush=True)
        sys.stdin.read()
        print(json.dumps(sorted(seen)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
