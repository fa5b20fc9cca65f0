"""What strangers can do at the coordinator's port: be refused, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
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
from edgegossip.security.limits import SharedRateLimiter
from edgegossip.security.names import Subject
from edgegossip.types import NodeId, PeerError
from edgegossip.untrusted import Refusal

BOARD, STRANGER = "10.0.0.1", "10.0.0.2"


class Board0(Admission):
    """Takes the signature b"board-0" for that board's, whatever its fleet."""

    def __init__(self) -> None: ...

    def by_signature(self, role: str, among: Collection[str], data: bytes, signature: bytes) -> Caller:
        if signature != b"board-0":
            raise PeerError("the proof is of nobody in this fleet")
        return Caller(Subject("board-0", "board", "0" * 16), 1)

    gone = False

    def look(self) -> bool:
        return self.gone

    def revoked(self, serial: int) -> bool:
        return self.gone


class NoBundles:
    def serves(self, path: str) -> bool:
        return False

    def heard(self, path: str) -> None: ...

    async def __call__(self, *args: Any) -> None: ...


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
            there, self.admission, ["board-0"], self._register, self._refused, lambda *x: None
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
        return asyncio.run(asyncio.wait_for(self.asked(path, body, host, length, more), 10))

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
    for keys in ([b"revoked", b"mine"], [b"mine", b"revoked"], [b"mine", b"mine"], []):
        assert port.ask(path, b"", BOARD, None, *map(_key, keys))[0] == 401
    assert port.ask("/v1/control/anything", b"", BOARD, None, _key(b"mine"))[0] == 403


def test_a_revocation_that_overtakes_the_answer_to_a_join_still_counts(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator lets a key in and puts it out while the middleware's event loop is busy with
    others."""
    monkeypatch.setattr(admission, "BEHIND_S", 1e12)
    monkeypatch.setattr(admission, "LOOK_S", 0.01)
    came, went = threading.Event(), threading.Event()
    let_in, put_out = port.line.on_in, port.line.on_out
    port.line.on_in = lambda key: (let_in(key), came.set())
    port.line.on_out = lambda key: (put_out(key), went.set())
    port.app = _flower

    async def busy() -> int:
        join = _body(key="mine", proof="Ym9hcmQtMA==", time=NOW)
        asked = asyncio.create_task(port.asked(JOIN_PATH, join, BOARD, None, ()))
        await asyncio.sleep(0)  # it has asked; from here on nothing else runs on this loop
        assert came.wait(10)
        port.admission.gone = True
        assert went.wait(10)
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
    here.settimeout(5.0)
    controller = AdmissionController(there, Board0(), ["board-0"], lambda *x: 1, lambda refusal: None, lambda *x: None)
    controller.start()
    asked = {"join": 2, "key": "k", "proof": "eA==", "time": NOW, "from": "1.2.3.4:5", name: "\ud800"}
    here.sendall(json.dumps(asked).encode() + b"\n")
    assert json.loads(here.recv(1000)) == {"answer": 2, "why": "it did not say who it is"}
    controller.close()
    assert not caplog.records


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
    assert news.wait(5.0) and len(moves) == 1
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
    assert port.refused == [f"refused {strangers.format(0)}: the proof is of nobody in this fleet"]
    good = [port.ask(JOIN_PATH, _body(key=f"{k}", proof="Ym9hcmQtMA==", time=NOW), BOARD)[0] for k in range(30)]
    assert good == [200] * 30
