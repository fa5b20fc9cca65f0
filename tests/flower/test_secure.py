"""A coordinator with TLS and keys, over real sockets: who comes in, who does not, and what both
sides are refused."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")

from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

from edgegossip import codecs
from edgegossip import recipe as recipes
from edgegossip.fleet.launch.identities import credentials
from edgegossip.fleet.revocation import tell
from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.flower import Coordinator, NodeClient
from edgegossip.flower._private import link
from edgegossip.flower._private.link import BEAT_PATH, BEAT_TOKEN_HEADER, FleetLink
from edgegossip.flower.client import BEAT_S
from edgegossip.flower.connection import (
    JOIN_PATH,
    REVOKED_PATH,
    TOKEN_HEADER,
    BoardCredentials,
    LinkError,
    send_revocations,
)
from edgegossip.security import tls
from edgegossip.security.identity import Identity
from edgegossip.types import ConfigError, PeerError
from tests.flower import toy
from tests.flower.conftest import Memory

PATIENCE_S = 60.0  # of a loaded machine
HELD_S = 20.0  # a question for news, if none comes
RUN = {"mode": "server", "rounds": 100_000, "nodes": 3}


class Run:
    """A coordinator of the boards a, b and c of a fleet that also has d, and clients as threads of
    this process."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet.create(folder / "fleet", "test", 20)
        for name in ("a", "b", "c", "d"):
            self.fleet = self.fleet.add(name, "board", 20)
        self.sink = Memory()
        self.ended: dict[str, str] = {}
        serve = credentials(coordinator_of(self.fleet.folder))
        self.fleet = Fleet.open(self.fleet.folder)
        recipe = recipes.from_dict({"run": RUN, "server": {"join_s": 600}})
        self.coordinator = Coordinator(
            recipe, toy.LAYOUT, toy.Toy(0).initial(1), ["a", "b", "c"], self.sink, folder, credentials=serve
        )
        self.address = self.coordinator.start()

    def credentials(self, name: str) -> BoardCredentials:
        return _credentials(self.fleet.folder / "boards" / name)

    def start(self, name: str, identity: str = "") -> None:
        workload = toy.Toy(ord(name) - ord("a"), 0.3)  # rounds that leave the machine to others
        client = NodeClient(
            name,
            self.address,
            lambda: workload,
            codecs.get("fp32"),
            Memory(),
            credentials=self.credentials(identity or name),
        )

        def run() -> None:
            try:
                self.ended[name] = client.run()
            except PeerError as error:
                self.ended[name] = str(error)

        threading.Thread(target=run, daemon=True).start()

    def refused(self, credentials: BoardCredentials | None) -> str:
        """What a board is refused that is not let in."""
        link = FleetLink(self.address, credentials)
        try:
            with pytest.raises(LinkError) as refused:
                link.join()
        finally:
            link.close()
        assert not refused.value.gone, "the board would try again and again"
        return str(refused.value)

    def until(self, what: Callable[[], Any]) -> Any:
        return _until(what, self.sink)

    def logged(self, words: str) -> None:
        self.until(lambda: [t for t in self.sink.texts("refused") if words in t])


def _until(what: Callable[[], Any], sink: Memory) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < end, sink.events
        time.sleep(0.05)
    return found


def _credentials(folder: Path) -> BoardCredentials:
    identity = Identity.load(folder)
    return BoardCredentials(tls.caller_context(identity, "coordinator"), identity.sign)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("secure"))
    yield made
    made.coordinator.stop()


@pytest.fixture(scope="module")
def training(run: Run) -> Run:
    for name in ("a", "b", "c"):
        run.start(name)
    run.until(lambda: len(run.sink.records) > 2)
    return run


def test_a_board_of_the_fleet_that_is_not_in_the_run(run: Run) -> None:
    assert "d is not a board of this run; the boards are a, b, c" in run.refused(run.credentials("d"))
    run.logged("refused 127.0.0.1: d is not a board of this run")


SHUT_OUT = (
    "the certificate of {0} was revoked, so it is shut out until it has a new one "
    "(`edgegossip fleet add {0}`, and copy the folder to it)"
)


def test_a_board_of_another_fleet(run: Run, tmp_path: Path) -> None:
    other = Fleet.create(tmp_path / "other", "test", 20).add("a", "board", 20)
    folder = other.folder / "boards" / "a"
    assert "cannot be trusted: its certificate is of another fleet" in run.refused(_credentials(folder))
    run.logged("it says that our certificate is of another fleet")
    hostile = Identity.load(folder)  # which does not mind whom it talks to
    context = run.credentials("a").context
    assert "its certificate is of another fleet" in run.refused(BoardCredentials(context, hostile.sign))


def test_a_board_that_was_revoked_or_whose_certificate_has_expired(run: Run) -> None:
    Fleet.open(run.fleet.folder).add("late", "board", 1e-9)
    assert "the certificate of late has expired" in run.refused(run.credentials("late"))
    Fleet.open(run.fleet.folder).revoke("d")
    run.until(lambda: SHUT_OUT.format("d") in run.refused(run.credentials("d")))
    run.logged(SHUT_OUT.format("d"))


def test_who_speaks_no_tls_is_told_so_and_logged(run: Run) -> None:
    assert "speaks TLS: start this board with --identity" in run.refused(None)
    run.logged("it does not speak TLS")


def _dial(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE_S, source_address=(source, 0))


def _is_ended(s: socket.socket) -> bool:
    """Whether it ends, with an alert of TLS first or without."""
    said = b""
    with suppress(ConnectionError, ssl.SSLEOFError):
        while more := s.recv(4096):
            said += more
    return said[:1] in (b"", b"\x15")


def _drips(s: socket.socket) -> float:
    """For how many seconds it may send byte after byte."""
    began = time.monotonic()
    s.settimeout(0.2)
    with suppress(ConnectionError, ssl.SSLEOFError):
        while time.monotonic() - began < PATIENCE_S:
            s.sendall(b"x")
            with suppress(TimeoutError):
                if not s.recv(1):
                    break
    return time.monotonic() - began


@pytest.fixture(scope="module")
def silent(run: Run) -> Iterator[list[socket.socket]]:
    """Connections that say nothing, and those that stop in the midst of a ClientHello."""
    with ExitStack() as stack:
        found = [stack.enter_context(_dial(run.address)) for _ in range(8)]
        for s in found[4:]:
            s.sendall(b"\x16\x03\x01\x02\x00\x01")
        yield found


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 4096, bytes(range(255, -1, -1)) * 16, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05" + bytes(5)],
    ids=["zeros", "any bytes", "plaintext", "no hello"],
)
def test_garbage_ends_its_own_connection_only(run: Run, silent: list[socket.socket], garbage: bytes) -> None:
    with _dial(run.address, "127.0.0.7") as s:
        s.sendall(garbage)
        assert _is_ended(s)
    run.logged("refused 127.0.0.7: ")
    assert "refuses this board" in run.refused(run.credentials("d"))  # it answers


def test_a_proof_of_another_key_and_a_wrong_clock(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    good = run.credentials("a")
    replayed = good.sign(b"something else")
    assert "does not fit what was signed" in run.refused(BoardCredentials(good.context, lambda data: replayed))
    monkeypatch.setattr(link, "now", lambda: datetime.now(UTC) + timedelta(minutes=3))
    assert "the clock of a is 180 s ahead of the coordinator's: set it" in run.refused(good)


def test_only_the_coordinator_reaches_what_is_not_for_boards(run: Run) -> None:
    with httpx.Client(verify=run.credentials("a").context, base_url=f"https://{run.address}") as client:
        for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/openapi.json"):
            assert client.post(path, headers={TOKEN_HEADER: "guess"}).status_code == 403, path
        assert client.post("/v1/fleet/pull-messages", content=b"").status_code == 401
        assert client.post("/v1/fleet/push-object", headers={"flwr-public-key": "YQ=="}).status_code == 401
        assert client.post(JOIN_PATH, content=b"x" * 20_000).status_code == 413
        assert client.post(JOIN_PATH, content=b"{}").status_code == 400


def test_signs_of_life_are_small_once_the_board_is_known(run: Run) -> None:
    """What a board sends a second beside its messages, with TLS, TCP and Ethernet."""
    board = FleetLink(run.address, run.credentials("b"))
    board.join()
    assert board.beat()
    before = board.meter.sent_bytes()
    assert board.beat()
    beat_bytes = board.meter.sent_bytes() - before + 22 + 66
    assert (beat_bytes + 2 * 66) / BEAT_S <= 250
    guess = {BEAT_TOKEN_HEADER: "guess"}
    with httpx.Client(verify=run.credentials("b").context, base_url=f"https://{run.address}") as client:
        assert client.post(BEAT_PATH, headers=guess).status_code == 401
    board._beat_token, given = "lost", board._beat_token
    assert board.beat() and board._beat_token not in ("lost", given)
    board.close()


def test_requests_that_are_refused_do_not_fill_the_log(run: Run) -> None:
    log = run.fleet.folder.parent / "logs/superlink.log"
    board = FleetLink(run.address, run.credentials("b"))
    board.join()
    key = {"flwr-public-key": b64encode(board._public).decode(), "content-type": "application/protobuf"}
    before = log.stat().st_size
    with httpx.Client(verify=run.credentials("b").context, base_url=f"https://{run.address}") as client:
        for k in range(40):
            bad = client.post("/v1/fleet/register-node", headers=key, content=b"\x0b" * 99).status_code
            assert (bad, client.post(f"/v1/fleet/{k}", headers=key, content=b"").status_code) == (400, 404)
    board.close()
    run.logged("refused b at 127.0.0.1: its request for what is not there was answered with 404")
    assert not [t for t in run.sink.texts("refused") if "/v1/fleet/1" in t]
    assert log.stat().st_size - before < 2000, log.read_text()[-2000:]


def test_replies_that_come_object_by_object_are_let_through(training: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BUNDLE_BYTES", 100)
    before = len(training.sink.records)
    training.until(lambda: len(training.sink.records) > before + 5)
    assert not training.coordinator.lost


def test_who_claims_another_name_is_sent_away_and_the_others_train_on(training: Run) -> None:
    training.start("a", identity="b")
    words = training.until(lambda: training.ended.get("a"))
    assert "it says that it is a, but its certificate is that of b" in words
    training.logged("it says that it is a, but its certificate is that of b")
    before = len(training.sink.records)
    training.until(lambda: len(training.sink.records) > before + 3)
    assert not training.coordinator.lost


def _held(board: FleetLink) -> float:
    """For how long a question for news is held that none answers."""
    began = time.monotonic()
    with suppress(LinkError):
        board.receive(HELD_S)
    return time.monotonic() - began


def _request(board: FleetLink, path: str, length: int) -> bytes:
    """The head of a board's request that brings so many bytes."""
    key = b64encode(board._public).decode()
    return f"POST {path} HTTP/1.1\r\nhost: x\r\nflwr-public-key: {key}\r\ncontent-length: {length}\r\n\r\n".encode()


def test_a_board_that_is_revoked_while_it_trains_is_out_in_seconds(training: Run) -> None:
    Fleet.open(training.fleet.folder).revoke("c")
    assert f"refuses this board: {SHUT_OUT.format('c')}" in training.until(lambda: training.ended.get("c"))
    training.until(lambda: "c" in training.coordinator.lost)
    assert training.coordinator.lost["c"] == SHUT_OUT.format("c")
    before = len(training.sink.records)
    training.until(lambda: len(training.sink.records) > before + 3)
    assert set(training.ended) <= {"a", "c"}


def test_silence_is_ended_and_keeps_nobody_out(training: Run, silent: list[socket.socket]) -> None:
    """Also that of who sends the head of a request byte by byte."""
    before = len(training.sink.records)
    with training.credentials("a").context.wrap_socket(_dial(training.address, "127.0.0.8")) as head:
        head.sendall(b"POST /v1/f")
        assert _drips(head) < PATIENCE_S
    training.logged("refused 127.0.0.8: it connected and asked for nothing in 10 s")
    assert all(_is_ended(s) for s in silent)
    training.until(lambda: len(training.sink.records) > before)


def test_questions_that_do_not_wait_for_answers_end_their_connection(run: Run) -> None:
    """Else all that have come stay in memory until they were answered."""
    asked = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        run.credentials("a").context.wrap_socket(_dial(run.address)) as s,
        pytest.raises((ConnectionError, ssl.SSLError)),
    ):
        s.sendall(1_000_000 * asked)


def test_a_websocket_is_no_way_in(run: Run) -> None:
    with httpx.Client(verify=run.credentials("a").context) as client:
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        answer = client.get(f"https://{run.address}/health", headers={**upgrade, "Sec-WebSocket-Key": "eA=="})
        assert answer.status_code == 200


# From here on another coordinator runs in this process, which ends `training`: flwr keeps the
# number of a run for the whole process.


def test_a_coordinator_elsewhere_is_told_of_a_revocation(tmp_path: Path) -> None:
    """It has an identity of the fleet, but not the fleet's folder. What a revoked board has open
    ends in seconds, answers that trickle in and questions that wait for news; another board's go
    on."""
    fleet = Fleet.create(tmp_path / "fleet", "test", 20).add_all(("b", "c"), "board", 20)
    shutil.copytree(coordinator_of(fleet.folder), tmp_path / "identity")
    fleet, sink, held, slow = Fleet.open(fleet.folder), Memory(), dict[str, float](), dict[str, socket.socket]()
    recipe = recipes.from_dict({"run": {**RUN, "nodes": 2}, "server": {"join_s": 600}})
    serve, names = credentials(tmp_path / "identity"), ["b", "c"]
    coordinator = Coordinator(recipe, toy.LAYOUT, toy.Toy(0).initial(1), names, sink, tmp_path, credentials=serve)
    with coordinator, ExitStack() as stack:
        address, own = coordinator.start(), {name: _credentials(fleet.folder / "boards" / name) for name in names}
        boards = {name: FleetLink(address, own[name]) for name in names}
        for name, board in boards.items():
            stack.callback(board.close)
            board.join()
            hello = board.receive(10.0)
            board._received = ""  # as if the answer had been lost on its way
            again = board.receive(0.0)
            assert hello is not None and again is not None
            assert again.message.metadata.message_id == hello.message.metadata.message_id
            assert again.contents == hello.contents and board.receive(0.0) is None
            assert {item.object_id for item in iterate_object_tree(hello.tree)} == hello.contents.keys()
            s = stack.enter_context(own[name].context.wrap_socket(_dial(address)))
            s.sendall(_request(board, link.GIVE_PATH, 1000) + b"x")
            slow[name] = s
            threading.Thread(target=lambda n=name, b=board: held.update({n: _held(b)}), daemon=True).start()
        assert tell(fleet, address, send_revocations)[1] == 1 and not held
        fleet = fleet.revoke("c")
        assert tell(fleet, address, send_revocations) == ("the-coordinator", 2)
        assert slow["c"].recv(12) == b"HTTP/1.1 408"
        assert _until(lambda: held.get("c"), sink) < HELD_S
        slow["b"].settimeout(0.5)
        with pytest.raises(TimeoutError):
            slow["b"].recv(1)
        assert "b" not in held
        with pytest.raises(LinkError, match="its certificate was revoked|the certificate of c was revoked"):
            boards["c"].join()
        other = Fleet.create(tmp_path / "other", "test", 20)
        forged = Identity.load(other.folder / "operator").revocations.present.der
        with httpx.Client(verify=own["b"].context) as client:
            for body, status in ((forged, 200), (b"no list", 403), (b"x" * (2 << 20), 413)):  # that one is older
                assert client.post(f"https://{address}{REVOKED_PATH}", content=body).status_code == status
            newer = other
            for k in range(3):
                newer = newer.add(f"x{k}", "board", 20).revoke(f"x{k}")
            forged = Identity.load(newer.folder / "operator").revocations.present.der
            answer = client.post(f"https://{address}{REVOKED_PATH}", content=forged)
            assert answer.status_code == 403 and "did not sign" in answer.json()["detail"]
        _until(lambda: [t for t in sink.texts("refused") if "did not sign" in t], sink)  # who asked is answered first


def test_a_board_does_not_take_another_board_for_its_coordinator(tmp_path: Path) -> None:
    fleet = Fleet.create(tmp_path / "fleet", "test", 20).add("a", "board", 20)
    with pytest.raises(ConfigError, match="this is a .board.; a coordinator needs a folder that"):
        credentials(fleet.folder / "boards" / "a")
    shutil.rmtree(fleet.folder)
