"""What a flood of strangers does to honest peers, with gRPC's own mutual TLS at the port and with
our TLS front end before it.

    python -m lab.results.tls_flood [--rate 300] [--seconds 20] [--json FILE]

A server answers a small call. An honest peer calls it on a connection that stays, 20 times a
second, and on a new connection four times a second. Meanwhile an attacker on another address opens
`rate` connections a second, each of them in turn: garbage, half a ClientHello that is held, a whole
ClientHello that is held, and, the expensive one, a whole handshake with the certificate of another
fleet. lab/decisions/tls-front-end.md has a table of it."""

import argparse
import asyncio
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import grpc
import psutil

from edgegossip.fleet.store import Fleet
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import MeshLimits
from edgegossip.mesh.tls_security import TlsSecurity

METHOD = "/edgegossip.Flood/Ping"
PATIENCE_S = 5.0  # of an honest call


class Ping(grpc.GenericRpcHandler):
    def service(self, details):
        async def ping(request, context):
            return request

        return grpc.unary_unary_rpc_method_handler(ping)


async def serve(kind: str, folder: Path) -> None:
    limits = MeshLimits()
    security = TlsSecurity.load(folder)
    server = grpc.aio.server(options=limits.server_options(secured=True))
    server.add_generic_rpc_handlers((Ping(),))
    if kind == "grpc":
        pem, key, ca = ((folder / name).read_bytes() for name in ("identity.pem", "identity.key", "ca.pem"))
        credentials = grpc.ssl_server_credentials([(key, pem)], ca, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
    else:
        server.add_secure_port(
            security.start(limits, lambda peer, text: None, lambda: None, lambda *_: None),
            security.server_credentials(),
        )
        await server.start()
        port = security.listen(Address("127.0.0.1", 0)).port
    print(port, flush=True)
    await server.wait_for_termination()


class Peer:
    """An honest peer."""

    def __init__(self, kind: str, folder: Path, port: int) -> None:
        self.kind, self.address = kind, Address("127.0.0.1", port)
        self.security = TlsSecurity.load(folder)

    async def channel(self) -> grpc.aio.Channel:
        options = MeshLimits().channel_options()
        if self.kind == "grpc":  # by the name in its certificate
            fleet = self.security.identity.fleet
            options += [("grpc.ssl_target_name_override", f"server.board.{fleet}.edgegossip")]
        else:
            await self.security.check("server", self.address)
            options += self.security.channel_options("server")
        return grpc.aio.secure_channel(str(self.address), self.security.channel_credentials("server"), options=options)

    async def call(self, channel: grpc.aio.Channel) -> None:
        await channel.unary_unary(METHOD)(b"x" * 64, timeout=PATIENCE_S, wait_for_ready=True)

    async def standing(self, until: float, took: list[float]) -> None:
        channel = await self.channel()
        while time.monotonic() < until:
            began = time.monotonic()
            with suppress(grpc.aio.AioRpcError):
                await self.call(channel)
                took.append(time.monotonic() - began)
                await asyncio.sleep(max(0.0, 0.05 - took[-1]))
        await channel.close()

    async def coming(self, until: float, took: list[float], tried: list[int]) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            tried[0] += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    channel = await self.channel()
                    await self.call(channel)
                    took.append(time.monotonic() - began)
                    await channel.close()
            except Exception:  # every failure of an honest peer counts
                pass
            await asyncio.sleep(max(0.0, 0.25 - (time.monotonic() - began)))


def attack(port: int, other: Path, rate: float, seconds: float) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(other / "identity.pem", other / "identity.key")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    hello = outgoing.read()
    held: list[socket.socket] = []
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        while count < (now - began) * rate:
            count += 1
            with suppress(OSError):
                s = socket.socket()
                s.settimeout(0.5)
                s.bind(("127.0.0.2", 0))
                s.connect(("127.0.0.1", port))
                held.append(s)
                if count % 4 == 0:
                    s.sendall(b"GET / HTTP/1.1\r\n\r\n")
                elif count % 4 == 1:
                    s.sendall(hello[: len(hello) // 2])
                elif count % 4 == 2:
                    s.sendall(hello)
                else:
                    s.settimeout(0.05)
                    held[-1] = context.wrap_socket(s)
            while len(held) > 2000:
                held.pop(0).close()
        time.sleep(0.002)
    print(count, flush=True)


async def measure(kind: str, fleet: Path, other: Path, rate: float, seconds: float) -> dict[str, float]:
    me = [sys.executable, "-m", "lab.results.tls_flood"]
    server = subprocess.Popen(
        [*me, "--serve", kind, "--folder", str(fleet / "server")], stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(server.stdout.readline())
        peer, process = Peer(kind, fleet / "peer", port), psutil.Process(server.pid)
        warm = await peer.channel()
        await peer.call(warm)
        await warm.close()
        attacker = None
        if rate:
            words = ["--attack", str(port), "--folder", str(other), "--rate", str(rate), "--seconds", str(seconds)]
            attacker = subprocess.Popen([*me, *words], stdout=subprocess.PIPE, text=True)
        before = sum(process.cpu_times()[:2])
        standing, coming, tried, most_fds, most_rss = [], [], [0], 0, 0
        until = time.monotonic() + seconds
        tasks = [
            asyncio.create_task(peer.standing(until, standing)),
            asyncio.create_task(peer.coming(until, coming, tried)),
        ]
        while time.monotonic() < until:
            await asyncio.sleep(0.5)
            most_fds, most_rss = max(most_fds, process.num_fds()), max(most_rss, process.memory_info().rss)
        await asyncio.gather(*tasks)
        cpu_s = sum(process.cpu_times()[:2]) - before
        came = int(attacker.communicate(timeout=30)[0]) if attacker else 0

        def ms(values: list[float], share: float) -> float:
            return (
                round(1000 * statistics.quantiles(values, n=100)[round(100 * share) - 1], 1)
                if len(values) > 1
                else -1.0
            )

        return {
            "attempts_of_attacker": came,
            "server_cpu_s": round(cpu_s, 1),
            "server_fds": most_fds,
            "server_rss_mib": round(most_rss / 2**20),
            "calls": len(standing),
            "call_p50_ms": ms(standing, 0.5),
            "call_p99_ms": ms(standing, 0.99),
            "call_max_ms": round(1000 * max(standing, default=-1), 1),
            "connections": tried[0],
            "connected": len(coming),
            "connect_p50_ms": ms(coming, 0.5),
            "connect_p99_ms": ms(coming, 0.99),
        }
    finally:
        server.kill()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve")
    parser.add_argument("--attack", type=int)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.serve:
        return asyncio.run(serve(given.serve, given.folder))
    if given.attack:
        return attack(given.attack, given.folder, given.rate, given.seconds)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet.create(Path(folder) / "fleet", "flood", 20).add("server", "board", 20).add("peer", "board", 20)
        strange = Fleet.create(Path(folder) / "other", "other", 20).add("server", "board", 20)
        for _ in range(given.rounds):
            for rate in (0.0, given.rate):
                for kind in ("grpc", "front end"):
                    load = os.getloadavg()[0]
                    row = asyncio.run(
                        measure(kind, made.folder / "boards", strange.folder / "boards/server", rate, given.seconds)
                    )
                    found.append({"kind": kind, "rate": rate, "load": round(load, 1), **row})
                    print(json.dumps(found[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
