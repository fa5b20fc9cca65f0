"""What strangers can do at the coordinator's port: be refused, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pytest

from edgegossip.flower import admission
from edgegossip.flower._private import superlink
from edgegossip.flower._private.superlink import AdmissionMiddleware, ControlChannel
from edgegossip.flower.admission import AdmissionController
from edgegossip.flower.connection import JOIN_PATH, RECIPE_PATH
from edgegossip.security.admission import Admission, Caller
from edgegossip.security.limits import SharedRateLimiter, TokenBuckets
from edgegossip.security.names import Subject
from edgegossip.types import NodeId, PeerError
from edgegossip.untrusted import Refusal

BOARD, STRANGER = "10.0.0.1", "10.0.0.2"
PATIENCE_S = 60.0  # only bounds a failing test


class Clock:
    """The time of all rates."""

    time = staticmethod(time.time)

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def monotonic(self) -> float:
        """Goes on by a step with each look at it, and not by itself."""
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (admission, superlink):
        monkeypatch.setattr(module, "time", Clock())


class Board0(Admission):
    """Takes the signature b"board-0" for that board's, whatever its fleet."""

    def __init__(self) -> None: ...

    serials: Iterator[int] = itertools.repeat(1)

    def by_signature(self, role: str, among: Collection[str], data: bytes, signature: bytes) -> Caller:
        if signature not in (b"board-0", b"board-1"):
            raise PeerError("the proof is of nobody in this fleet")
        return Caller(Subject(signature.decode(), "board", "0" * 16), next(self.serials))

    gone = False

    def look(self) -> bool:
        return self.gone

    def revoked(self, serial: int) -> bool:
        return self.gone


class NoBundles:
    def serves(self, path: str) -> bool:
        return False

    def heard(self, path: str) -> None: ...

    def key_of(self, token: bytes) -> bytes:
        return b""

    async def __call__(self, *args: Any) -> None: ...


async def _reads(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what has come, as far as it does."""
    body = (await receive())["body"]
    if scope["path"].endswith("pull-messages"):
        await receive()  # until the other end is gone
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps({"detail": f"{len(body)} bytes"}).encode()})


async def _no_app(*args: Any) -> None:
    raise AssertionError("strangers do not get that far")


async def _flower(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b'{"detail": "flower"}'})


class Port:
    """Both ends of admission, as they are in two processes. `refused`: what the coordinator's log
    shows."""

    def __init__(self, *, answers: bool = True) -> None:
        here, there = socket.socketpair()
        self.line, self.refused = ControlChannel(here.detach()), list[str]()
        self.app, self.receive = _no_app, None
        self.middleware = AdmissionMiddleware(
            lambda *asked: self.app(*asked), self.line, "token", True, "key", NoBundles()
        )
        self.admission = Board0()
        self.registered: list[bytes] = []
        self.controller = AdmissionController(
            there, self.admission, ["board-0", "board-1"], self._register, self._refused, lambda *x: None
        )
        if answers:
            self.controller.start()

    def _refused(self, refusal: Refusal) -> None:
        self.refused.append(str(refusal))

    def _register(self, key: bytes, name: NodeId) -> int:
        if key == b"bug":
            raise LookupError("a bug")
        self.registered.append(key)
        return 5

    def ask(
        self, path: str, body: bytes, host: str = STRANGER, length: bytes | None = None, *more: tuple[bytes, bytes]
    ) -> tuple[int, str]:
        """Return status and detail."""
        return asyncio.run(asyncio.wait_for(self.asked(path, body, host, length, more), PATIENCE_S))

    async def asked(
        self, path: str, body: bytes, host: str, length: bytes | None, more: Iterable[tuple[bytes, bytes]]
    ) -> tuple[int, str]:
        out: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            out.append(message)

        headers = [(b"content-length", b"%d" % len(body) if length is None else length), *more]
        asked = {"type": "http", "path": path, "headers": headers, "client": (host, 5)}
        await self.middleware(asked, self.receive or receive, send)
        return out[0]["status"], json.loads(out[1]["body"])["detail"]


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.controller.close()


def _body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


NOW = "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("length", "status"), [(b"", 411), (b"-1", 411), (b"\xb2", 411), (b"9" * 5000, 413), (b"99999999", 413)]
)
def test_lengths_that_no_question_has(length: bytes, status: int, port: Port, caplog: pytest.LogCaptureFixture) -> None:
    assert port.ask(RECIPE_PATH, b"", length=length)[0] == status
    assert not caplog.records


def test_a_length_does_not_count_beside_another_encoding(port: Port) -> None:
    assert port.ask(JOIN_PATH, b"", STRANGER, b"9", (b"transfer-encoding", b"chunked"))[0] == 411


def test_a_body_that_does_not_come_is_not_waited_for(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are bodies that come a byte at a time, for as long as the stranger likes."""
    monkeypatch.setattr(superlink, "BODY_S", 0.05)

    async def drips() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    port.receive = drips
    assert port.ask(JOIN_PATH, b"", length=b"16000")[0] == 408
    port.receive = None
    assert port.ask(JOIN_PATH, b"null")[0] == 400


def _key(text: bytes) -> tuple[bytes, bytes]:
    return b"key", b64encode(text)


def test_only_an_admitted_key_alone_gets_as_far_as_flower(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower goes by the first of several headers."""
    monkeypatch.setattr(admission, "BEHIND_S", 1e12)
    port.app = _flower
    path = "/v1/fleet/push-messages"
    assert port.ask(path, b"", BOARD, None, _key(b"mine"))[0] == 401
    assert port.ask(JOIN_PATH, _body(key="mine", proof="Ym9hcmQtMA==", time=NOW), BOARD)[0] == 200
    assert port.ask(path, b"", BOARD, None, _key(b"mine")) == (200, "flower")
    for keys in ([b"revoked", b"mine"], [b"mine", b"revoked"], [b"mine", b"mine"]):
        assert port.ask(path, b"", BOARD, None, *map(_key, keys))[0] == 400
    assert port.ask(path, b"", BOARD)[0] == 401
    assert port.ask("/v1/control/anything", b"", BOARD, None, _key(b"mine"))[0] == 403


def test_a_revocation_that_overtakes_the_answer_to_a_join_still_counts(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator lets a key in and puts it out while the middleware's event loop is busy with
    others."""
    monkeypatch.setattr(admission, "BEHIND_S", 1e12)
    monkeypatch.setattr(admission, "LOOK_S", 0.0)
    came, went = threading.Event(), threading.Event()
    let_in, put_out = port.line.on_in, port.line.on_out
    port.line.on_in = lambda *asked: (let_in(*asked), came.set())
    port.line.on_out = lambda key: (put_out(key), went.set())
    port.app = _flower

    async def busy() -> int:
        join = _body(key="mine", proof="Ym9hcmQtMA==", time=NOW)
        asked = asyncio.create_task(port.asked(JOIN_PATH, join, BOARD, None, ()))
        await asyncio.sleep(0)  # it has asked; from here on nothing else runs on this loop
        assert came.wait(PATIENCE_S)
        port.admission.gone = True
        assert went.wait(PATIENCE_S)
        return (await asked)[0]

    assert asyncio.run(busy()) == 200
    assert port.ask("/v1/fleet/push-messages", b"", BOARD, None, _key(b"mine"))[0] == 401


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (RECIPE_PATH, _body(proof="eA==", time="\ud800"), 400),
        (JOIN_PATH, _body(key="\ud800", proof="eA==", time=NOW), 400),
        (JOIN_PATH, _body(key="k", proof="\udfff", time=NOW), 400),
        (RECIPE_PATH, b"[" * 16_000, 400),
        (RECIPE_PATH, b"null", 400),
        (RECIPE_PATH, b"\xff", 400),
        (RECIPE_PATH, _body(proof="eA==", time="0001-01-01T00:00:00+14:00"), 403),
        (RECIPE_PATH, _body(proof="eA==", time="9999-12-31T23:59:59"), 403),
        (JOIN_PATH, _body(key="k", proof="eA==", time=NOW), 403),
        (JOIN_PATH, _body(key="k", proof="not base64", time=NOW), 403),
    ],
)
def test_a_strange_question_is_refused_at_once(
    path: str, body: bytes, status: int, port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    assert port.ask(path, body)[0] == status
    assert not caplog.records and not port.registered and not port.line._pending


@pytest.mark.parametrize("name", ["time", "key"])
def test_the_controller_answers_what_is_no_text(name: str, caplog: pytest.LogCaptureFixture) -> None:
    here, there = socket.socketpair()
    here.settimeout(PATIENCE_S)
    controller = AdmissionController(there, Board0(), ["board-0"], lambda *x: 1, lambda refusal: None, lambda *x: None)
    controller.start()
    asked = {"join": 2, "key": "k", "proof": "eA==", "time": NOW, "from": "1.2.3.4:5", name: "\ud800"}
    here.sendall(json.dumps(asked).encode() + b"\n")
    assert json.loads(here.recv(1000)) == {"answer": 2, "why": "it did not say who it is"}
    controller.close()
    assert not caplog.records


def test_who_hears_news_may_close(caplog: pytest.LogCaptureFixture) -> None:
    here, there = socket.socketpair()
    controller, closed = list[AdmissionController](), threading.Event()

    def close() -> None:
        controller[0].close()
        closed.set()

    nothing = (lambda *x: 1, lambda refusal: None, lambda *x: None)
    controller.append(AdmissionController(there, None, ["board-0"], *nothing, close))
    controller[0].start()
    here.sendall(b'{"news": 1}\n')
    assert closed.wait(PATIENCE_S) and not caplog.records
    with pytest.raises(OSError, match="Bad file"):
        there.getsockname()


def test_who_closes_waits_for_what_is_under_way() -> None:
    here, there = socket.socketpair()
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def news() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        done.set()

    nothing = (lambda *x: 1, lambda refusal: None, lambda *x: None)
    controller = AdmissionController(there, None, ["board-0"], *nothing, news)
    controller.start()
    here.sendall(b'{"news": 1}\n')
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.05, go_on.set).start()
    controller.close()
    assert done.is_set()


def test_the_coordinator_hears_that_a_large_message_moves_but_not_of_every_object() -> None:
    here, there = socket.socketpair()
    moves, line = list[float](), ControlChannel(here.detach())
    controller = AdmissionController(
        there,
        None,
        ["board-0"],
        lambda *x: 1,
        lambda text: None,
        lambda *x: None,
        lambda: news.set(),
        taken=lambda: moves.append(1.0),
    )
    news = threading.Event()
    controller.start()
    bundles = superlink.Batching(line.news, line.taken)
    for _ in range(100):
        bundles.heard(superlink.PULL_OBJECT_PATH)
    bundles.heard("/v1/fleet/push-object")  # lines come in order
    assert news.wait(PATIENCE_S) and len(moves) == 1
    controller.close()


def test_a_bug_is_answered_too_and_logged_once_a_minute(
    port: Port, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgegossip.flower.admission.BEHIND_S", 1e12)
    for _ in range(3):
        status, detail = port.ask(JOIN_PATH, _body(key="bug", proof="Ym9hcmQtMA==", time=NOW))
        assert status == 403 and "the coordinator failed" in detail
    assert len(caplog.records) == 1
    assert port.ask(JOIN_PATH, _body(key="good", proof="Ym9hcmQtMA==", time=NOW), BOARD)[0] == 200


def test_a_question_that_is_not_answered_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "ANSWER_S", 0.05)
    port = Port(answers=False)
    assert port.ask(RECIPE_PATH, _body(proof="eA==", time=NOW))[0] == 503
    assert not port.line._pending
    port.line._receive({"answer": 1, "why": ""})  # too late: nobody is hurt


@pytest.mark.parametrize("strangers", [STRANGER, "fd00:bad::{:x}"], ids=["one address", "one IPv6 network"])
def test_a_flood_of_strangers_leaves_boards_their_turn(
    port: Port, monkeypatch: pytest.MonkeyPatch, strangers: str
) -> None:
    monkeypatch.setattr("edgegossip.flower.admission.BEHIND_S", 1e12)
    floods = [
        port.ask(JOIN_PATH, _body(key="k", proof="eA==", time=NOW), strangers.format(k))[0]
        for k in range(int(SharedRateLimiter.BOARDS_BURST) + 60)
    ]
    assert floods[0] == 403 and 429 in floods
    assert port.refused[0] == f"refused {strangers.format(0)}: the proof is of nobody in this fleet"
    port.admission.serials = itertools.count(1)  # as many boards behind one address
    good = [port.ask(JOIN_PATH, _body(key=f"{k}", proof="Ym9hcmQtMA==", time=NOW), BOARD)[0] for k in range(30)]
    assert good == [200] * 30
    # The answers came over the line that the refusals went over before them, so all are there.
    assert [line.partition(": ")[2] for line in port.refused[1:]] == ["too many boards at once; try again in a moment"]


PUSH, PULL = "/v1/fleet/push-object", "/v1/fleet/pull-messages"
PROOFS = {"board-0": "Ym9hcmQtMA==", "board-1": "Ym9hcmQtMQ=="}


@pytest.fixture
def joined(port: Port, monkeypatch: pytest.MonkeyPatch) -> Port:
    """Two boards have introduced a key each, of their own names."""
    monkeypatch.setattr(admission, "BEHIND_S", 1e12)
    port.app = _reads
    for name, proof in PROOFS.items():
        assert port.ask(JOIN_PATH, _body(key=name, proof=proof, time=NOW), BOARD)[0] == 200
    return port


def _pieces(size: int, count: int, pause_s: float, read: asyncio.Event) -> Any:
    """A body that comes in so many pieces; after it nothing comes."""
    left = list(range(count))

    async def receive() -> dict[str, Any]:
        if not left:
            read.set()
            await asyncio.Event().wait()
        await asyncio.sleep(pause_s)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left.pop())}

    return receive


async def _open(port: Port, name: str, count: int) -> list[asyncio.Task[tuple[int, str]]]:
    """So many requests of a board that wait for news, which does not come."""
    tasks = []
    for _ in range(count):
        port.receive = _pieces(0, 1, 0.0, read := asyncio.Event())
        tasks.append(asyncio.create_task(port.asked(PULL, b"", BOARD, None, [_key(name.encode())])))
        await asyncio.wait_for(read.wait(), PATIENCE_S)
    return tasks


def logged(port: Port, words: str) -> int:
    """How many lines of the coordinator's log say so, when all that was reported is there."""
    end = time.monotonic() + PATIENCE_S
    port.ask(JOIN_PATH, _body(key=f"{end}", proof="eA==", time=NOW), f"10.9.{end * 1000 % 250:.0f}.1")
    while not any("10.9." in line for line in port.refused[-1:]) and time.monotonic() < end:
        time.sleep(0.005)
    return sum(words in line for line in port.refused)


@pytest.mark.parametrize("name", ["flwr-signature", "flwr-timestamp", "x-edgegossip-token", "content-length"])
def test_a_header_that_says_who_asks_comes_once(name: str, joined: Port) -> None:
    twice = [(name.encode(), b"1"), (name.encode(), b"2")]
    for _ in range(3):
        assert joined.ask(PUSH, b"", BOARD, None, _key(b"board-0"), *twice)[0] == 400
    assert logged(joined, f"refused {BOARD}: a request with a header twice") == 1


def test_a_request_of_more_than_the_model_is_refused_before_it_comes(joined: Port) -> None:
    async def nothing() -> dict[str, Any]:
        raise AssertionError("it is not read")

    joined.controller._send({"most": 1000})
    most = 1000 + (1 << 20)
    assert joined.ask(JOIN_PATH, _body(key="board-1", proof=PROOFS["board-1"], time=NOW), BOARD)[0] == 200
    assert joined.ask(PUSH, bytes(most), BOARD, None, _key(b"board-0")) == (200, f"{most} bytes")
    joined.receive = nothing
    for path, size in ((PUSH, most + 1), (PULL, 65_537), ("/v1/fleet/push-messages", (1 << 20) + 1)):
        for _ in range(2):
            assert joined.ask(path, b"", BOARD, b"%d" % size, _key(b"board-0"))[0] == 413
    joined.receive = None
    assert logged(joined, "refused board-0 at 10.0.0.1: a request of more than") == 3


def test_a_boards_request_that_trickles_ends_and_a_slow_one_does_not(
    joined: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink, "REQUEST_S", 10.0)
    monkeypatch.setattr(superlink, "SLOWEST_BYTES_PER_S", 100.0)

    async def comes_in(size: int, count: int) -> tuple[int, str]:
        """A body in pieces of this size. Its clock goes on by two seconds for each, and by nothing
        else."""
        now_s, loop, left = 0.0, asyncio.get_running_loop(), list(range(count))

        async def receive() -> dict[str, Any]:
            nonlocal now_s
            now_s += 2.0
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # what is due has ended the request
            return {"type": "http.request", "body": bytes(size), "more_body": bool(left.pop())}

        joined.receive = receive
        monkeypatch.setattr(loop, "time", lambda: now_s)
        return await joined.asked(PUSH, b"", BOARD, b"%d" % (size * count), [_key(b"board-0")])

    assert asyncio.run(comes_in(1, 1000))[0] == 408
    assert asyncio.run(comes_in(500, 20)) == (200, "10000 bytes")
    joined.receive = None
    assert logged(joined, "refused board-0 at 10.0.0.1: a request that takes too long") == 1


def test_of_too_many_requests_of_a_board_the_oldest_goes_and_no_other_boards(joined: Port) -> None:
    async def many() -> None:
        other = await _open(joined, "board-1", 2)
        tasks = await _open(joined, "board-0", superlink.MAX_REQUESTS + 3)
        assert [(await asyncio.wait_for(task, PATIENCE_S))[0] for task in tasks[:3]] == [408] * 3
        assert not any(task.done() for task in other + tasks[3:])

    asyncio.run(many())


def test_large_requests_of_a_board_have_little_room_together(joined: Port) -> None:
    async def many() -> None:
        tasks = []
        for _ in range(3):
            joined.receive = _pieces(1, 1000, 0.01, asyncio.Event())
            tasks.append(asyncio.create_task(joined.asked(PUSH, b"", BOARD, b"1000000", [_key(b"board-0")])))
            await asyncio.sleep(0.02)
        assert (await asyncio.wait_for(tasks[0], PATIENCE_S))[0] == 408
        assert not tasks[1].done() and not tasks[2].done()

    asyncio.run(many())


def test_what_a_revoked_board_has_under_way_ends(joined: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOOK_S", 0.0)

    async def revoked() -> None:
        [task] = await _open(joined, "board-0", 1)
        joined.admission.gone = True
        assert (await asyncio.wait_for(task, PATIENCE_S))[0] == 408

    asyncio.run(revoked())


def test_a_board_that_asks_too_often_waits_and_no_other_one(joined: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "time", clock := Clock(1 / superlink.REQUESTS_PER_S))  # it waits as long each time
    joined.middleware._requests = TokenBuckets(10.0, 2.0)
    assert [joined.ask(PUSH, b"", BOARD, None, _key(b"board-0"))[0] for _ in range(4)] == [200] * 4
    assert 0.2 <= clock.now_s < 0.3
    joined.middleware._requests = TokenBuckets(0.01, 1.0)
    assert joined.ask(PUSH, b"", BOARD, None, _key(b"board-0"))[0] == 200
    assert joined.ask(PUSH, b"", BOARD, None, _key(b"board-1"))[0] == 200


def test_a_board_has_few_keys_and_does_not_make_many(joined: Port) -> None:
    def introduces(k: int) -> int:
        return joined.ask(JOIN_PATH, _body(key=f"{k}", proof=PROOFS["board-0"], time=NOW), BOARD)[0]

    answers = [introduces(k) for k in range(int(admission.KEY_BURST) + 2)]
    assert answers[:10] == [200] * 10 and answers[-1] == 403
    assert introduces(0) == 403  # it went out, and would be new again
    assert len(joined.registered) <= admission.KEY_BURST + 2
    taken = [joined.ask(PUSH, b"", BOARD, None, _key(b"%d" % k))[0] for k in range(10)]
    assert taken.count(200) <= admission.MAX_KEYS and joined.ask(PUSH, b"", BOARD, None, _key(b"board-1"))[0] == 200
    assert logged(joined, "board-0 has introduced more keys than one board needs") == 1


def test_a_board_that_an_earlier_process_of_the_coordinator_knew_is_refused_nothing(joined: Port) -> None:
    """Flower does not know its old number."""

    async def unknown(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b'{"detail": "Invalid SuperNode authentication"}'})

    joined.app = unknown
    assert joined.ask("/v1/fleet/send-node-heartbeat", b"", BOARD, None, _key(b"board-0"))[0] == 401
    assert logged(joined, "board-0") == 0


def test_one_boards_refusals_of_many_kinds_are_a_quarter_of_the_log_at_most(joined: Port) -> None:
    """Each path and status is a line of its own."""
    status = itertools.count(400)

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": next(status), "headers": []})
        await send({"type": "http.response.body", "body": b'{"detail": "no"}'})

    joined.app = refuses
    joined.middleware._requests = TokenBuckets(1e6, 1e6)
    for k in range(150):
        joined.ask(f"/v1/fleet/{k}", b"", BOARD, None, _key(b"board-0"))
    joined.ask("/v1/fleet/push-object", b"", BOARD, None, _key(b"board-1"))
    assert logged(joined, "refused board-1") == 1
    assert 1 <= logged(joined, "refused board-0") <= 20  # 64 at once and one a second, of all
