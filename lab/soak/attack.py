"""One member of a fleet turns against the others: what they lose, beside what they did before.

    python -m lab.soak.attack --row silent --boards 8 --mode gossip

A fleet as people start it: certificates, one process a board. All are honest for a while; then
`evil` does what ROW says, with its own process (`IN_BOARD`) or from this one with its certificate
(`FROM_OUTSIDE`). Of each honest board: rounds a second from the third deadline on, beside its own
before; seconds lost in all, without the two deadlines that a member may cost; memory of its
process, beside what it took undisturbed. A JSON line a case; exit status 1 where a board lost more
than is allowed, or `evil` did nothing at all. `--row all` plays every row that the mode has."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from http.client import HTTPException, HTTPSConnection
from multiprocessing.synchronize import Event
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import psutil
from torch import nn

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.fork_server import MODULES, ForkServer
from edgegossip.layout import Layout
from edgegossip.telemetry.machine import result_source
from edgegossip.training import build_workload
from lab.soak.boards import Boards, Fleet, at_work
from lab.soak.servers import JobFleet, ServerFleet
from lab.soak.slow_mlp import slow_mlp

EVIL = "evil"
KEPT, MOST_LOST_S, DEADLINES, MOST_LEAP = 0.7, 10.0, 2, 20  # the last in rounds, from one look to the next
PAUSE_S, DEADLINE_S = 0.3, 3.0
CONTROL_S, ATTACK_S = 12.0, 20.0  # the latter from the third deadline on
OWN_ROUNDS = 10  # at least, before: what a board takes for itself goes up and down by 30 MiB
PATIENCE_S = 90.0
CHUNK_BYTES = 1 << 21
HOARD = 70  # messages: 31 rounds may pass without news, in a graph of four boards
TRICKLE_S = DEADLINE_S / 6  # less than from one look at what has come to the next
KRUM = ("server.strategy=multikrum", "server.strategy_params.num_malicious_nodes=1")  # takes six boards

TRACKED = ("gossip.algorithm=gt-dsgd", "training.momentum=0.0", "training.nesterov=false")


# -- what is seen


class Watch(threading.Thread):
    """Sees how much memory processes take, with their children, and how many steps each board has
    done."""

    def __init__(self, processes: Mapping[str, int], steps: Callable[[], Mapping[str, int]] = dict) -> None:
        super().__init__(daemon=True)
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._steps, self._over = steps, threading.Event()
        self.seen: list[tuple[float, Mapping[str, int], dict[str, int]]] = []

    def run(self) -> None:
        while not self._over.wait(0.1):
            held = {name: held_bytes(process) for name, process in self._processes.items()}
            self.seen.append((time.monotonic(), self._steps(), held))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def peak_bytes(self, name: str, since_s: float = 0.0, until_s: float = float("inf")) -> int:
        return max(held[name] for at_s, _, held in self.seen if since_s <= at_s <= until_s)

    def rate(self, name: str, since_s: float, until_s: float) -> float:
        """Steps a second, from the first step in this time to the last."""
        steps = [(at_s, done[name]) for at_s, done, _ in self.seen if since_s <= at_s <= until_s]
        ends = [b for a, b in itertools.pairwise(steps) if b[1] != a[1]]
        return (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0]) if len(ends) > 1 else 0.0

    def steps(self, name: str, when_s: float) -> int:
        return max(done[name] for at_s, done, _ in self.seen if at_s <= when_s)

    def pauses_s(self, name: str) -> list[float]:
        """From each step to the next, and from the last one on."""
        steps = [(at_s, done[name]) for at_s, done, _ in self.seen]
        ends = [steps[0][0], *(b[0] for a, b in itertools.pairwise(steps) if b[1] != a[1]), steps[-1][0]]
        return [b - a for a, b in itertools.pairwise(ends)]


def held_bytes(process: psutil.Process) -> int:
    held = 0
    with suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                held += one.memory_info().rss
    return held


# -- in the member's own process, which loads its model from here


def model(*how: Any, row: str = "", when: str = "", **params: Any) -> nn.Module:
    """`slow_mlp`; in the process of EVIL what ROW says begins when the file `when` is there."""
    if f"--name {EVIL} " in " ".join(sys.argv) + " " and row in IN_BOARD:
        threading.Thread(target=turn, args=(row, Path(when)), daemon=True).start()
    return slow_mlp(*how, **params)


def turn(row: str, when: Path) -> None:
    while not when.exists():
        time.sleep(0.05)
    names = ("edgegossip.mesh.transport", "edgegossip.mesh.outbound", "edgegossip.flower.client")
    IN_BOARD[row](*(sys.modules.get(name) for name in names), sign_of(when).touch)


def sign_of(when: Path) -> Path:
    """The file that is there once EVIL has acted. What it puts in the place of names that have
    moved is never called."""
    return when.with_name("acted")


Acts: TypeAlias = Callable[[], object]  # to be called wherever something evil is done


def silent(transport: ModuleType | None, _outbound: ModuleType | None, client: ModuleType | None, acts: Acts) -> None:
    """Take part and say nothing."""
    ids = itertools.count(1 << 40)

    def no_reply(*_: object) -> None:
        acts()
        time.sleep(1e6)

    def no_send(*_: object) -> int:
        acts()
        return next(ids)

    if client is not None:
        client.FleetLink.reply = no_reply
    elif transport is not None:
        transport.GrpcTransport.send = no_send


def late(transport: ModuleType | None, _outbound: ModuleType | None, client: ModuleType | None, acts: Acts) -> None:
    """Say what is to be said, just after its deadline."""
    if client is not None:
        of, name = client.FleetLink, "reply"
    elif transport is not None:
        of, name = transport.GrpcTransport, "send"
    else:
        return
    says = getattr(of, name)

    def later(*arguments: Any) -> Any:
        acts()
        time.sleep(1.1 * DEADLINE_S)
        return says(*arguments)

    setattr(of, name, later)


def trickle(_transport: ModuleType | None, outbound: ModuleType | None, client: ModuleType | None, acts: Acts) -> None:
    """Send of each message a twentieth of what is left, and again, so that it never looks stuck."""
    if client is not None:
        import ssl

        send = ssl.SSLSocket.send

        def slow_send(self: ssl.SSLSocket, data: Any, flags: int = 0) -> int:
            if len(data) < 10_000:
                return send(self, data, flags)
            acts()
            time.sleep(TRICKLE_S)
            return send(self, bytes(data[: len(data) // 20]), flags)

        ssl.SSLSocket.send = slow_send  # type: ignore[method-assign]
    elif outbound is not None:
        until = outbound.FrameStream._until

        async def slow_until(self: Any, ready: Callable[[], bool]) -> bool:
            await asyncio.sleep(TRICKLE_S)
            goes_on: bool = await until(self, ready)
            if (frame := self._queue.under_way) is not None:
                acts()
                self._window.chunk_bytes = max(1, (frame.frame_bytes - frame.written_bytes) // 20)
            return goes_on

        outbound.FrameStream._until = slow_until


def claims(_transport: ModuleType | None, _outbound: ModuleType | None, client: ModuleType | None, acts: Acts) -> None:
    """Count for 900 boards."""
    if client is not None:
        encoded = client.BoardWorker._encoded

        def heavier(self: Any, update: Any, *rest: Any) -> Any:
            acts()
            return encoded(self, replace(update, holds=900 * update.weight), *rest)

        client.BoardWorker._encoded = heavier


def answers(_transport: ModuleType | None, _outbound: ModuleType | None, client: ModuleType | None, acts: Acts) -> None:
    """Give each answer fifty times."""
    if client is not None:
        reply = client.FleetLink.reply

        def again(self: Any, message: Any) -> None:
            acts()
            for _ in range(50):
                with suppress(Exception):
                    reply(self, message)

        client.FleetLink.reply = again


def steer(_transport: ModuleType | None, _outbound: ModuleType | None, client: ModuleType | None, acts: Acts) -> None:
    """Turn the direction round, and say it three times as long."""
    from edgegossip.gossip.publish import Plain

    publish = Plain.publish

    def turned(self: Any, memory: Any, v: Any, local: Any, ctx: Any) -> Any:
        if ctx.part == 1:
            acts()
            v = np.float32(-3.0) * v
        return publish(self, memory, v, local, ctx)

    Plain.publish = turned  # type: ignore[method-assign]


IN_BOARD: Mapping[str, Callable[..., None]] = {
    "silent": silent,
    "late": late,
    "trickle": trickle,
    "claims": claims,
    "answers": answers,
    "steer": steer,
}


# -- from here, with its certificate


def brackets(size_bytes: int) -> bytes:
    return b"[" + b"[]," * (size_bytes // 3) + b"[]]"


class Stolen:
    """The identity of EVIL, as a program of its own has it, beside the board that goes on."""

    def __init__(self, boards: Boards, acts: Acts = lambda: None) -> None:
        from edgegossip.mesh import address as addresses
        from edgegossip.mesh.membership.client import request_join
        from edgegossip.mesh.tls_security import TlsSecurity

        self.security, self.acts = TlsSecurity.load(boards.identity(EVIL)), acts
        at = {name: boards.address(name) for name in boards.boards if isinstance(boards, Fleet)}
        self.places: dict[str, Any] = {
            name: addresses.parse(where, "target") for name, where in at.items() if name != EVIL
        }
        self.members = boards.boards
        if self.places:
            answer = request_join(next(iter(self.places.values())), EVIL, self.security)
            self.manifest, self.rows = answer.manifest, answer.rows

    async def channel(self, name: str) -> Any:
        from edgegossip.mesh import MeshLimits
        from edgegossip.mesh.connections import ChannelFactory

        channels = ChannelFactory(MeshLimits(), self.security)
        await channels.check(name, self.places[name])
        return channels.open(name, self.places[name])


def layout_of(settings: Sequence[str]) -> Layout:
    values = {key: recipes.parse_value(text) for key, _, text in (s.partition("=") for s in settings)}
    return build_workload(recipes.with_settings(recipes.load("quickstart-gossip"), values), 0).layout


async def hoard(stolen: Stolen, to: str, layout: Layout) -> int:
    """Say what a neighbour says in each of HOARD rounds to come; how much of it was taken."""
    from edgegossip import codecs, frame
    from edgegossip.mesh._proto import mesh_pb2 as pb
    from edgegossip.mesh.wire import METHOD, chunk_message

    body, codec, run_id = np.full(layout.size, 1e-3, "<f4").tobytes(), codecs.get("fp32"), stolen.manifest.run_id

    async def said() -> AsyncIterator[bytes]:
        hello = pb.Hello(protocol_version=1, run_id=run_id, sender=EVIL, receiver=to, session=7)
        yield pb.ExchangeRequest(hello=hello).SerializeToString()
        for k in range(1, HOARD + 1):
            message = frame.Frame(frame.Kind.MODEL, codec.wire_id, b"", layout.hash, run_id, 10_000 + k, k, 0, body)
            data = memoryview(b"".join(frame.build(message)))
            for at in range(0, len(data), CHUNK_BYTES):
                yield chunk_message(k, at, len(data), True, [data[at : at + CHUNK_BYTES]])

    taken = 0
    channel = await stolen.channel(to)
    while not taken:  # on a busy machine a caller comes too late with its hello, and calls again, as boards do
        async for answer in channel.stream_stream(METHOD)(said(), timeout=PATIENCE_S):
            told = pb.ExchangeResponse.FromString(answer)
            assert not told.HasField("refusal") or "said nothing for" in told.refusal.reason, told.refusal
            taken = max(taken, told.ack.transfer)
            if taken == HOARD:
                break
    await channel.close()
    return taken


async def ask(stolen: Stolen, name: str, *questions: bytes) -> None:
    from edgegossip.mesh.membership.wire import PROBE

    channel = await stolen.channel(name)
    try:
        for question in questions:
            await channel.unary_unary(PROBE)(question, timeout=5.0)
    finally:
        await channel.close()


async def again_and_again(stolen: Stolen, over: Event, does: Callable[[str], Awaitable[object]]) -> None:
    """Do it to every other board, each second."""
    from edgegossip.mesh._grpc import grpc

    while not over.is_set():
        for name in stolen.places:
            with suppress(Exception):  # it is in quarantine, perhaps
                with suppress(grpc.RpcError):  # an answer, too
                    await does(name)
                stolen.acts()
        await asyncio.sleep(1.0)


def malformed(_boards: Boards, stolen: Stolen, over: Event) -> None:
    """Be put into quarantine, again and again, while the board itself goes on."""
    asyncio.run(again_and_again(stolen, over, lambda name: ask(stolen, name, *(b"\xff\xfe",) * 3)))


def rumours(_boards: Boards, stolen: Stolen, over: Event) -> None:
    """Say of all others that they are dead, as everybody found out."""
    from edgegossip.mesh.membership import wire
    from edgegossip.mesh.membership.protocol import MAX_STEP, Ping, Status, View

    numbers = itertools.count(1)

    async def lie(to: str) -> None:
        number = next(numbers)
        rows = tuple(
            (k, replace(entry, status=Status.DEAD, incarnation=entry.incarnation + number * MAX_STEP // 4))
            for k, entry in stolen.rows
            if stolen.members[k] not in (to, EVIL)
        )
        await ask(stolen, to, wire.request(stolen.manifest, EVIL, to, Ping(number, View(number, rows))))

    asyncio.run(again_and_again(stolen, over, lie))


def early(boards: Boards, stolen: Stolen, over: Event) -> None:
    """In the place of the board, say what it would in rounds that are far away."""
    boards.processes[EVIL].kill()
    layout = layout_of(boards.settings)
    asyncio.run(again_and_again(stolen, over, lambda name: hoard(stolen, name, layout)))


def metrics(boards: Boards, stolen: Stolen, over: Event) -> None:
    """Four clients, each with fifty questions under way."""
    port = int(next(iter(boards.more.values()))[1])

    def client() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.settimeout(5)
                while not over.is_set():
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50)
                    if not connection.recv(1 << 20):
                        break
                    stolen.acts()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def nested(boards: Boards, stolen: Stolen, over: Event) -> None:
    """Three documents of brackets at a time: of 64 MiB, or as large as a Hello may be."""
    if isinstance(boards, ServerFleet | JobFleet):
        from edgegossip.flower.connection import JOIN_PATH
        from edgegossip.scale.follow import RECORDS
        from edgegossip.security import tls
        from edgegossip.security.identity import Identity

        context = tls.caller_context(Identity.load(boards.identity(EVIL)), "coordinator")
        path, large = JOIN_PATH, brackets((64 << 20) - 8)
        if isinstance(boards, JobFleet):  # its first line says of which cell it is
            path, large = RECORDS, boards.head() + large[len(boards.head()) :]

        def send() -> None:
            with closing(HTTPSConnection("127.0.0.1", boards.port, timeout=20, context=context)) as connection:
                connection.request("POST", path, large)
                connection.getresponse().read()

        async def bring(_: str) -> None:
            found = await asyncio.gather(*(asyncio.to_thread(send) for _ in range(3)), return_exceptions=True)
            for failed in found:
                if isinstance(failed, Exception) and not isinstance(failed, OSError | HTTPException):  # it was cut off
                    raise failed

        stolen.places = {boards.names[0]: None}
    else:
        from edgegossip.mesh._proto import mesh_pb2 as pb
        from edgegossip.mesh.wire import METHOD

        async def bring(name: str) -> None:
            hello = pb.Hello(protocol_version=1, run_id=stolen.manifest.run_id, sender=EVIL, receiver=name, session=7)
            hello.agreement = brackets(3 << 20)
            channel = await stolen.channel(name)
            said = [pb.ExchangeRequest(hello=hello).SerializeToString()]
            calls = [channel.stream_stream(METHOD)(iter(said), timeout=9.0) for _ in range(3)]
            await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
            await channel.close()

    asyncio.run(again_and_again(stolen, over, bring))


FROM_OUTSIDE: Mapping[str, Callable[[Boards, Stolen, Event], None]] = {
    "malformed": malformed,
    "rumours": rumours,
    "early": early,
    "metrics": metrics,
    "nested": nested,
}
ROWS = {
    "gossip": ("silent", "late", "trickle", "malformed", "early", "metrics", "nested", "rumours", "steer"),
    "server": ("silent", "late", "trickle", "answers", "metrics", "nested", "claims"),
    "jobs": ("nested",),
}


# -- a case


@contextmanager
def attacked(boards: Boards, row: str, when: Path) -> Iterator[None]:
    """The fleet, while the block runs."""
    when.touch()
    if row not in FROM_OUTSIDE:
        yield
        return
    processes = multiprocessing.get_context("fork")  # whoever watches is not to be slowed down
    over = processes.Event()
    stolen = lambda: Stolen(boards, sign_of(when).touch)  # noqa: E731
    work = processes.Process(target=lambda: FROM_OUTSIDE[row](boards, stolen(), over), daemon=True)
    work.start()
    try:
        yield
        assert work.is_alive()
    finally:
        over.set()
        work.join(PATIENCE_S)
        work.kill()


def fleet_of(mode: str, names: Sequence[str], settings: Sequence[str], folder: Path) -> Boards:
    if mode == "gossip":
        return Fleet(names, settings, folder)
    from edgegossip.flower.superlink import free_port

    if mode == "jobs":
        return JobFleet(folder, [free_port("127.0.0.1", 0) for _ in range(len(names) + 1)], names, settings)
    return ServerFleet(folder, free_port("127.0.0.1", 0), names, (*settings, f"run.nodes={len(names)}"), PATIENCE_S)


def play(row: str, size: int, mode: str, attack_s: float = ATTACK_S, *more: str) -> dict[str, Any]:
    """One case: what the honest boards did before and then."""
    names, hidden = [*(f"pi-{k}" for k in range(1, size)), EVIL], 7000 if row in ("early", "answers") else 1000
    with tempfile.TemporaryDirectory(prefix="edgegossip-boards-") as name, ExitStack() as stack:
        folder = Path(name)
        when = folder / "when"
        params = {"pause_s": PAUSE_S, "hidden": f"[{hidden}]", "row": row, "when": when}
        settings = (
            "model.name=lab.soak.attack:model",
            *(f"model.params.{key}={value}" for key, value in params.items()),
            *("training.lr=0.02", "training.local_steps=1", "run.rounds=1000000", "evaluation.every=1000000"),
            *(f"{part}.deadline_s={DEADLINE_S}" for part in ("gossip", "server")),
            *more,
            *(KRUM if row == "claims" and size > 5 else ()),
            *(TRACKED if row == "steer" else ()),
        )
        boards = fleet_of(mode, names, settings, folder)
        if row == "metrics":
            with socket.create_server(("127.0.0.1", 0)) as free:
                boards.more = {boards.names[0]: ("--metrics", str(free.getsockname()[1]))}
        if mode in MODULES:
            boards.forks = stack.enter_context(ForkServer(MODULES[mode], 1, folder / "forks.log"))
        stack.enter_context(at_work(boards))
        honest = [n for n in boards.boards if n != EVIL]
        pids = {n: p.pid for n, p in boards.processes.items() if n != EVIL}
        steps = lambda: {n: int(boards.last(n).get("step", -1)) for n in honest}  # noqa: E731
        with Watch(pids, steps) as watch:
            end_s, least = time.monotonic() + CONTROL_S, {n: done + OWN_ROUNDS for n, done in steps().items()}
            boards.until(
                lambda: time.monotonic() > end_s and all(done >= least[n] for n, done in steps().items()),
                "some rounds of their own are over",
            )
            began_s = time.monotonic()
            told = {n: len(boards.events(n)) for n in pids}
            with attacked(boards, row, when):
                third_s = began_s + 3 * DEADLINE_S
                time.sleep(third_s + attack_s - time.monotonic())
                over_s = time.monotonic()
        events = [e for n in pids for e in boards.events(n)[told[n] :]]
        values = layout_of(settings).size
        found = judge(watch, honest, (began_s, third_s, over_s), values, events, acted=sign_of(when).exists())
        return {"row": row, "boards": size, "mode": mode, "seconds": attack_s, **found}


def judge(
    watch: Watch,
    honest: Sequence[str],
    times_s: tuple[float, float, float],
    values: int,
    events: Sequence[Mapping[str, Any]],
    *,
    acted: bool,
) -> dict[str, Any]:
    """What is told of a case, and `wrong`: where that is more than may be lost, or nobody was
    attacked."""
    began_s, third_s, over_s = times_s
    rates = {n: watch.rate(n, 0.0, began_s) for n in honest}
    kept = min(watch.rate(n, third_s, over_s) / rates[n] for n in honest)
    lost_s = max((over_s - began_s) - (watch.steps(n, over_s) - watch.steps(n, began_s)) / rates[n] for n in honest)
    grew = max(watch.peak_bytes(n, began_s) - watch.peak_bytes(n, 0.0, began_s) for n in watch.seen[0][2])
    leap = max(b[1][n] - a[1][n] for a, b in itertools.pairwise(watch.seen) for n in honest)
    limits = {
        "acted": not acted,
        "kept": kept < KEPT,
        "lost_s": lost_s > DEADLINES * DEADLINE_S + MOST_LOST_S,
        "grew_mib": grew > 3 * 4 * values + (64 << 20),
        "leap": leap > MOST_LEAP,
    }
    return {
        "acted": acted,
        "control": round(statistics.median(rates.values()), 2),
        "kept": round(kept, 2),
        "lost_s": round(lost_s, 1),
        "grew_mib": grew >> 20,
        "leap": leap,
        "said": sorted({f"{e['event']} {e['peer']}" for e in events if e.get("peer")}),
        "wrong": [name for name, wrong in limits.items() if wrong],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=("all", *IN_BOARD, *FROM_OUTSIDE), default="all")
    parser.add_argument("--boards", type=int, default=4)
    parser.add_argument("--mode", choices=tuple(ROWS), default="gossip")
    parser.add_argument("--seconds", type=float, default=ATTACK_S, help="of the attack, from the third deadline on")
    parser.add_argument("--set", action="append", default=[], help="of the recipe, such as gossip.algorithm=ad-psgd")
    options, wrong = parser.parse_args(), False
    for row in ROWS[options.mode] if options.row == "all" else (options.row,):
        found = play(row, options.boards, options.mode, options.seconds, *options.set)
        print(json.dumps({"load": os.getloadavg()[0], **found, **result_source()}), flush=True)
        wrong |= bool(found["wrong"])
    raise SystemExit(int(wrong))


if __name__ == "__main__":
    main()
