"""A board of the fleet turns hostile: with its certificate and its key it sends requests of every
kind to each server, at random from a seed, and holds connections on which a byte comes a second.
Other boards work on, the server's memory stays, and its log names each reason once a minute. In a
mesh lab/soak/attack.py and tests/mesh/test_malformed.py do the same."""

from __future__ import annotations

import json
import re
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from edgegossip.fleet.store import Fleet
from edgegossip.security import tls
from edgegossip.security.identity import Identity
from edgegossip.types import PeerError
from edgegossip.update.client import CHECK_IN, RELEASE, REVOCATIONS, Client
from lab.soak.attack import EVIL, Watch
from lab.soak.servers import COORDINATOR, server_fleet

SEED = 5
ELSEWHERE = "127.0.0.2"  # boards of one address share how often it may connect
MAX_PAUSE_S = 10.0  # of an honest board, longer than usual
QUIET_S = 60.0  # between two lines of a log that are the same
DRIPPING = 12  # connections on which a byte comes a second
THREADS = 3
ANSWER_S = 0.5  # for an answer; who is told that more comes waits for it
PATIENCE_S = 90.0
MODEL = ("model.name=lab.soak.slow_mlp:slow_mlp", "model.params.hidden=[4]", "training.local_steps=1")
FREE = 3  # rounds before the attack

many = pytest.mark.parametrize(
    "count", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])], ids=["few", "many"]
)


class Rounds:
    """Keeps honest boards in their rounds for as long as the attack goes on, however slow it is:
    so many of the rounds are allowed as of the requests have been sent. `file` is for slow_mlp."""

    def __init__(self, file: Path, count: int) -> None:
        self.file, self._count, self.all = file, count, FREE + 3 * count // 5
        self.allow(0)

    @property
    def settings(self) -> tuple[str, ...]:
        return (*MODEL, "model.params.pause_s=0.02", f"model.params.allowed={self.file}", f"run.rounds={self.all}")

    def allow(self, sent: int) -> None:
        self.file.write_bytes(bytes(FREE + min(sent, self._count) * (self.all - FREE) // self._count))


# -- what is looked at


def check(watch: Watch) -> None:
    """The server takes no more memory, and no honest board waits long from one step to the next."""
    idle_bytes, peak_bytes = watch.seen[0][2]["server"], watch.peak_bytes("server")
    assert peak_bytes < 2 * idle_bytes, f"{idle_bytes >> 20} MiB idle, {peak_bytes >> 20} then"
    pauses_s = watch.pauses_s("board")
    assert len(pauses_s) > 2, "an honest board has stopped"
    assert max(pauses_s) < MAX_PAUSE_S + statistics.median(pauses_s), pauses_s


def check_log(refusals: Sequence[tuple[float, str]]) -> None:
    """Of seconds and lines."""
    assert [line for _, line in refusals if EVIL in line], refusals
    last: dict[str, float] = {}
    for when_s, text in refusals:
        line = re.sub(r":\d+: ", ": ", text, count=1)  # but for the port
        assert when_s - last.get(line, -QUIET_S) > QUIET_S - 1, f"twice in a minute: {line}"
        last[line] = when_s


# -- HTTP


def fill(message: Any, rng: Random, known: dict[str, list[Any]], depth: int = 0) -> Any:
    """A message of protobuf with values at random, some of them `known` for the names of their
    fields."""
    for f in message.DESCRIPTOR.fields:
        if rng.randrange(4) == 0 or depth > 6 or (f.message_type and f.message_type.GetOptions().map_entry):
            continue
        for _ in range(rng.choice((1, 1, 2, 30 if depth < 2 else 0)) if f.is_repeated else 1):
            if f.message_type:
                inner = getattr(message, f.name)
                fill(inner.add() if f.is_repeated else inner, rng, known, depth + 1)
                continue
            value = _value(f, rng, known)
            if f.is_repeated:
                getattr(message, f.name).append(value)
            else:
                setattr(message, f.name, value)
    return message


def _value(f: Any, rng: Random, known: dict[str, list[Any]]) -> Any:
    if f.name in known and rng.randrange(3):
        return rng.choice(known[f.name])
    match f.cpp_type:
        case f.CPPTYPE_STRING if f.type == f.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 3, 3000)))
        case f.CPPTYPE_STRING:
            return rng.choice(("", "\x1b[2J\n", "../" * 40, "a" * 3000, rng.randbytes(32).hex()))
        case f.CPPTYPE_DOUBLE | f.CPPTYPE_FLOAT:
            return rng.choice((float("nan"), float("inf"), -1.0, 1e300 if f.cpp_type == f.CPPTYPE_DOUBLE else 1e30))
        case f.CPPTYPE_BOOL:
            return rng.randrange(2) == 0
        case f.CPPTYPE_UINT64:
            return rng.choice((0, 1, 2**63, 2**64 - 1))
        case f.CPPTYPE_INT64:
            return rng.choice((0, -1, 2**63 - 1, -(2**63)))
        case f.CPPTYPE_ENUM:
            return rng.choice(f.enum_type.values).number
        case _:
            return rng.choice((0, 1, 2**31 - 1))


@dataclass
class Http:
    """Requests to a server that speaks HTTP: honest ones, most with something wrong. `who` are the
    headers with which a board says who it is."""

    address: str
    context: ssl.SSLContext
    paths: Sequence[str]
    body: Callable[[Random, str], bytes]
    who: Callable[[], dict[str, str]] = dict
    heard: Counter[str] = field(default_factory=Counter)
    reasons: set[str] = field(default_factory=set)  # of servers that answer with nothing else

    def make(self, rng: Random) -> bytes:
        path = rng.choice(self.paths)
        body, method = self.body(rng, path), "GET" if rng.randrange(8) == 0 else "POST"
        headers = [("host", self.address), *self.who().items(), ("content-length", str(len(body)))]
        if rng.randrange(4):
            headers.append(("connection", "close"))
        version = "HTTP/1.1"
        for _ in range(rng.choice((0, 1, 1, 2))):
            match rng.randrange(13):
                case 0:
                    method = rng.choice(("", "get", "PRI", "CONNECT", "OPTIONS", "M" * 70_000, rng.randbytes(4).hex()))
                case 1:
                    path = rng.choice(("//[", "*", "/" * 9000, f"{path}/../../ca.key", f"{path}?%00", "http://[::", ""))
                case 2:
                    path = f"{path}{rng.randbytes(3).hex()}"
                case 3:
                    version = rng.choice(("HTTP/0.9", "HTTP/2.0", "HTTP/1.1.1", "", "\x00"))
                case 4:  # a header twice
                    headers.insert(rng.randrange(len(headers) + 1), rng.choice(headers))
                case 5:  # or with another value
                    headers.append((rng.choice(headers)[0], rng.choice(("", "0", "x" * 70_000, "\x00"))))
                case 6:
                    del headers[rng.randrange(len(headers))]
                case 7:
                    length = rng.choice(("", "-1", "²", "1e3", str(10**30), str(len(body) + 9), str(len(body) // 2)))
                    headers = [(k, length if k == "content-length" else v) for k, v in headers]
                case 8:
                    headers.append(("transfer-encoding", rng.choice(("chunked", "gzip, chunked", "x"))))
                case 9:
                    headers += [(f"x-{k}", "y") for k in range(rng.choice((99, 500)))]
                case 10:
                    body = body[: rng.randrange(len(body) + 1)]
                case 11:
                    body += rng.randbytes(rng.choice((1, 1000, 300_000)))
                case _:
                    headers.append(
                        (rng.choice(("", " folded", "no colon\r\nx", "x-y ")), rng.randbytes(9).decode("latin1"))
                    )
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"{method} {path} {version}\r\n{head}\r\n".encode("latin1", "replace") + body

    def open(self) -> ssl.SSLSocket:
        host, _, port = self.address.rpartition(":")
        plain = socket.create_connection((host, int(port)), 5, source_address=(ELSEWHERE, 0))
        try:
            return self.context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise

    def open_slow(self) -> ssl.SSLSocket:
        """A connection on which the body of a request is still to come, or all of the request."""
        s = self.open()
        if time.monotonic_ns() % 3:
            who = "".join(f"{name}: {value}\r\n" for name, value in self.who().items())
            s.sendall(f"POST {self.paths[0]} HTTP/1.1\r\n{who}content-length: 90\r\n\r\n".encode())
        return s

    def send(self, rng: Random) -> bool:
        """One to three requests on a connection; whether they came through: of too many
        connections the oldest is cut off."""
        said = b""
        try:
            with self.open() as s:
                s.settimeout(ANSWER_S)
                s.sendall(b"".join(self.make(rng) for _ in range(rng.choice((1, 1, 1, 3)))))
                while more := s.recv(65_536):
                    said += more
        except (ssl.SSLEOFError, ConnectionError):
            self.heard["cut off"] += 1
            return False
        except (OSError, PeerError) as error:
            said = said or type(error).__name__.encode()
        statuses = re.findall(rb"^HTTP/1\.. (\d+)", said, re.MULTILINE) or [said[:20]]
        for status in statuses:
            self.heard[status.decode("latin1")] += 1
        if statuses[-1].isdigit() and statuses[-1] >= b"400" and (why := said.rpartition(b"\r\n\r\n")[2]):
            self.reasons.add(why.decode("latin1"))
        return True


def drip(open_one: Callable[[], ssl.SSLSocket], data: bytes, over: threading.Event) -> None:
    """Hold connections on which a byte comes a second; who is put out comes again."""
    there: list[tuple[ssl.SSLSocket, Iterator[int]]] = []
    while not over.wait(1.0):
        while len(there) < DRIPPING and not over.is_set():
            try:
                there.append((open_one(), iter(data)))
            except (OSError, PeerError):
                break
        for one in list(there):
            try:
                one[0].settimeout(0.2)
                one[0].sendall(bytes((next(one[1], 0),)))
            except OSError:
                one[0].close()
                there.remove(one)
    for s, _ in there:
        s.close()


@contextmanager
def attacked(http: Http) -> Iterator[Callable[[], int]]:
    """The server, while the block runs. The function says how many requests have been sent."""
    over, numbers = threading.Event(), iter(range(10**9))
    sent = Counter[str]()

    def work() -> None:
        while not over.is_set():
            if http.send(Random(f"{SEED}/{next(numbers)}")):
                sent["requests"] += 1

    slow = b"POST / HTTP/1.1\r\ncontent-length: 90\r\n\r\n" + bytes(90)
    threads = [threading.Thread(target=drip, args=(http.open_slow, slow, over), daemon=True)]
    threads += [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sent["requests"]
    finally:
        over.set()
        for thread in threads:
            thread.join(20)


def until(what: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.1)


# -- check-ins


def report(rng: Random, path: str) -> bytes:
    values = ("x" * 3000, -1, 1e308, 10**400, None, True, ["a"] * 500, {"a": {"b": "\x1b[2J"}}, "\ud800")
    names = ("version", "state", "failed", "number", "clock_s", "restarts", "pending", "name", "\n")
    made = json.dumps({name: rng.choice(values) for name in names if rng.randrange(2)}).encode()
    return rng.choice((made, made, b"[" * 30_000, b"null", b'{"number":NaN}', rng.randbytes(500), b"\xff\xfe"))


@many
def test_boards_check_in_as_ever(tmp_path: Path, count: int) -> None:
    present = Fleet.create(tmp_path / "fleet", "home", 20).add_all(("a", EVIL), "board", 20)
    command = [sys.executable, "-u", "-m", "edgegossip", "fleet", "serve", "--fleet", str(present.folder)]
    server = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    lines: list[tuple[float, str]] = []
    done, failed, over = [0], list[str](), threading.Event()

    def read() -> None:
        lines.extend((time.monotonic(), line.strip()) for line in server.stdout or ())

    def check_in(address: str) -> None:
        identity = Identity.load(present.folder / "boards/a")
        while not over.wait(1.0):
            try:
                with Client(identity, address) as client:
                    client.check_in({"version": "1"})
                done[0] += 1
            except PeerError as error:
                failed.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        until(lambda: bool(lines))
        [address] = re.findall(r"check in at (\S+);", lines[0][1])
        honest = threading.Thread(target=check_in, args=(address,), daemon=True)
        honest.start()
        until(lambda: done[0] > 1)
        context = tls.caller_context(Identity.load(present.folder / "boards" / EVIL), "coordinator")
        paths = (CHECK_IN, REVOCATIONS, f"{RELEASE}/1?from=0&count=99", f"{RELEASE}/1?from=0&count=99999999999", "/")
        http = Http(address, context, paths, report)
        with Watch({"server": server.pid}, lambda: {"board": done[0]}) as watch, attacked(http) as sent:
            until(lambda: sent() >= count and done[0] > 4, 10 * PATIENCE_S)
        over.set()
        honest.join(20)
        assert server.poll() is None and not failed, failed
    finally:
        server.kill()
        server.wait()
        reader.join(5)
    check(watch)
    refusals = [(when_s, line) for when_s, line in lines if line.startswith("refused")]
    check_log(refusals)
    unheard = [
        why for why in http.reasons if f"refused {EVIL} at {ELSEWHERE}: {why}" not in {line for _, line in refusals}
    ]
    assert not unheard


# -- a coordinator


def flower_requests(address: str, identity: Identity) -> Http:
    """Of a board that has introduced its key, is online, and has been asked something."""
    import httpx
    from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
    from flwr.supercore.protobuf.client import PROTOBUF_MEDIA_TYPE

    from edgegossip.flower._private import link
    from edgegossip.flower._private.superlink import RUN_PREFIX
    from edgegossip.flower.connection import (
        JOIN_PATH,
        KEY_DOMAIN,
        RECIPE_PATH,
        REVOKED_PATH,
        TOKEN_HEADER,
        BoardCredentials,
    )

    credentials, signature = BoardCredentials.of(identity), link.Signature()

    def who() -> dict[str, str]:
        request = SimpleNamespace(headers=dict[str, str]())
        signature.intercept(SimpleNamespace(request=request), lambda context: context)  # type: ignore[arg-type, return-value]
        return {"content-type": PROTOBUF_MEDIA_TYPE, **request.headers}

    clock = link.now().isoformat()
    public = signature.public.decode()
    join = {"key": public, "proof": credentials.proof(KEY_DOMAIN, signature.public), "time": clock}
    with httpx.Client(verify=credentials.context, base_url=f"https://{address}", timeout=20) as client:
        client.post(JOIN_PATH, json=join).raise_for_status()
        online = fleet_pb2.ActivateNodeRequest(public_key=signature.public, heartbeat_interval=60)
        answer = client.post("/v1/fleet/activate-node", content=online.SerializeToString(), headers=who())
        node_id = fleet_pb2.ActivateNodeResponse.FromString(answer.raise_for_status().content).node_id
        ask = fleet_pb2.PullMessagesRequest()
        ask.node.node_id = node_id
        answer = client.post(
            link.TAKE_PATH, content=ask.SerializeToString(), headers={**who(), link.HOLD_HEADER: "10"}
        ).raise_for_status()
    asked = fleet_pb2.PullMessagesResponse.FromString(link.unpack(answer.content)[0]).messages_list[0].metadata
    own = "a" * 64
    known: dict[str, list[Any]] = {
        "node_id": [node_id, node_id, node_id + 1, 1],
        "src_node_id": [node_id, node_id, 1],
        "dst_node_id": [1, node_id],
        "run_id": [asked.run_id],
        "reply_to_message_id": [asked.message_id],
        "message_id": [own, asked.message_id],
        "message_ids": [asked.message_id],
        "object_id": [own, asked.message_id],
        "message_object_id": [own, asked.message_id],
        "public_key": [signature.public],
    }
    kinds: dict[str, Any] = {
        "register-node": fleet_pb2.RegisterNodeFleetRequest,
        "activate-node": fleet_pb2.ActivateNodeRequest,
        "unregister-node": fleet_pb2.UnregisterNodeFleetRequest,
        "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatRequest,
        "pull-messages": fleet_pb2.PullMessagesRequest,
        "push-messages": fleet_pb2.PushMessagesRequest,
        "get-run": run_pb2.GetRunRequest,
        "push-object": message_pb2.PushObjectRequest,
        "pull-object": message_pb2.PullObjectRequest,
        "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
    }
    made = {f"/v1/fleet/{name}": kind for name, kind in kinds.items()}
    made |= {link.TAKE_PATH: fleet_pb2.PullMessagesRequest, link.GIVE_PATH: fleet_pb2.PushMessagesRequest}

    def body(rng: Random, path: str) -> bytes:
        match rng.randrange(8):
            case 0:
                return rng.randbytes(rng.choice((0, 10, 5000)))
            case 1:  # deeper than any parser follows
                return b"\x0b" * rng.choice((99, 101, 60_000))
            case 2 if path == link.GIVE_PATH:  # more objects than are there
                return b"\xff" * 8 + rng.randbytes(100)
        if path in made:
            data: bytes = fill(made[path](), rng, known).SerializeToString()
            return link.pack(data, {own: rng.randbytes(4000)}) if path == link.GIVE_PATH else data
        document = {**join, rng.choice(("key", "proof", "time")): rng.choice(("", "x" * 4000, 5, None, "\ud800"))}
        return rng.choice((json.dumps(document).encode(), b"[" * 9000, b"{}", rng.randbytes(300)))

    def headers() -> dict[str, str]:
        found = {**who(), link.HOLD_HEADER: "0"}
        return found if time.monotonic_ns() % 5 else {**found, TOKEN_HEADER: "guess"}

    paths = (
        link.GIVE_PATH,
        *made,
        *made,
        JOIN_PATH,
        RECIPE_PATH,
        REVOKED_PATH,
        f"{RUN_PREFIX}take",
        "/v1/runtime/acquire-task",
    )
    return Http(address, credentials.context, (*paths, "/v1/control/start-run", "/docs"), body, headers)


@pytest.mark.slow  # each kind of request is in tests/flower/test_admission.py and test_secure.py
@many
def test_a_coordinators_boards_end_their_rounds(tmp_path: Path, count: int) -> None:
    pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")
    rounds = Rounds(tmp_path / "allowed", count)
    settings = (*rounds.settings, "run.nodes=3", "server.quorum=2", "server.join_s=2", "server.deadline_s=20")
    with server_fleet(tmp_path, ("a", "b", EVIL), settings, PATIENCE_S) as run:
        identity = run.enrol() / "boards" / EVIL
        for name in (COORDINATOR, "a", "b"):
            run.start(name)
        run.until_round(FREE)
        http = flower_requests(f"127.0.0.1:{run.port}", Identity.load(identity))
        server = run.processes[COORDINATOR]
        with Watch({"server": server.pid}, lambda: {"board": run.rounds()}) as watch, attacked(http) as sent:

            def over() -> bool:
                rounds.allow(sent())
                return run.rounds() >= rounds.all or server.poll() is not None

            until(over, 10 * PATIENCE_S)
        run.finish()
        assert run.rounds() == rounds.all and sent() >= count
        folder = run.run_folder(COORDINATOR)
    said = (folder / "logs/superlink.log").read_text(errors="replace")
    assert len(said) < 100_000 and "Traceback" not in said, said[-5000:]
    check(watch)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert not [e for e in events if e["event"] in ("lost", "peer-down") and EVIL not in e["text"]], events
    refusals = [(e["t_s"], e["text"]) for e in events if e["event"] == "refused"]
    check_log(refusals)
