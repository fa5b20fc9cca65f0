"""The jobs that boards ask what to run: who is there, who takes part, what is handed in; over plain
and TLS connections."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from edgegossip.scale.follow import JOB, RECORDS, FollowOptions, Job, JobClient, command
from edgegossip.scale.job_server import JobHttpServer, JobServer
from edgegossip.types import PeerError

DONE = {"code": 0, "reason": "", "metrics": ["{}"], "accuracy": 0.5}


@pytest.fixture
def server() -> Iterator[JobHttpServer]:
    made = JobHttpServer(JobServer(["a", "b"]), "127.0.0.1:0", None)
    made.start()
    yield made
    made.stop()


def _operator(server: JobHttpServer, name: str, port: int = 7700) -> JobClient:
    following = FollowOptions(server.address, name, f"127.0.0.1:{port}", None, False, (), Path("runs"))
    return JobClient(following, None)


def test_a_cell_from_asking_to_handing_in(server: JobHttpServer) -> None:
    jobs, a, b = server.jobs, _operator(server, "a", 7701), _operator(server, "b", 7702)
    assert jobs.missing(["a", "b"]) == ["a", "b"]
    assert a.job() == b.job() == {"state": "wait"}
    assert jobs.missing(["a", "b"]) == []
    jobs.begin("k1", "recipe", ["a", "b"])
    assert a.job() == {"state": "go", "cell": "k1", "recipe": "recipe", "peers": {"b": "127.0.0.1:7702"}}
    a.hand_in({"name": "a", "cell": "k1", **DONE})
    assert a.job() == {"state": "wait"} and b.job()["state"] == "go"
    b.hand_in({"name": "b", "cell": "of long ago", **DONE})
    assert set(jobs.wait(0.0)) == {"a"}
    b.hand_in({"name": "b", "cell": "k1", **DONE, "accuracy": None})
    found = jobs.wait(0.0)
    assert found["a"].accuracy == 0.5 and found["b"].accuracy is None and [*found["b"].lines] == ["{}"]
    jobs.end()
    assert b.job() == {"state": "wait"}
    jobs.finish()
    assert a.job() == {"state": "over"}


def test_strangers_and_nonsense_are_refused(server: JobHttpServer) -> None:
    with pytest.raises(PeerError, match="mallory takes no part; the boards are a, b"):
        _operator(server, "mallory").job()
    host, _, port = server.address.rpartition(":")

    def post(path: str, body: bytes) -> int:
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("POST", path, body)
        return connection.getresponse().status

    def status(*head: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"\r\n".join((*head, b"Host: x", b"", b"")))
            return connection.recv(100).split()[1]

    for document in ({}, [], {"name": "a"}, {"name": [], **DONE}):
        assert post(RECORDS, json.dumps(document).encode()) == 400
    assert post(RECORDS, json.dumps({"name": "a", "cell": "k", **DONE, "reason": "x" * 70_000}).encode()) == 400
    assert post(RECORDS, b"\xff{") == 400 and post("/", b"{}") == 400
    for length in (b"\xb2", b"-1", b"9" * 5000):
        assert status(f"POST {RECORDS} HTTP/1.1".encode(), b"Content-Length: " + length) == b"400"
    assert status(b"GET http://[/ HTTP/1.1") == status(f"GET {JOB}?name=a&port=%C2%B2 HTTP/1.1".encode()) == b"404"


def test_over_tls_a_board_is_who_its_certificate_says(tmp_path: Path) -> None:
    from edgegossip.fleet.store import Fleet, coordinator_of
    from edgegossip.security.identity import Identity

    fleet = Fleet.create(tmp_path / "fleet", "test", 20).add("a", "board", 20).add("b", "board", 20)
    other = Fleet.create(tmp_path / "other", "other", 20).add("a", "board", 20)
    made = JobHttpServer(JobServer(["a", "b"]), "127.0.0.1:0", Identity.load(coordinator_of(fleet.folder)))
    made.start()
    try:
        liar = FollowOptions(made.address, "b", "127.0.0.1:7700", None, False, (), Path("runs"))
        assert JobClient(liar, Identity.load(fleet.folder / "boards" / "a")).job() == {"state": "wait"}
        assert made.jobs.missing(["a", "b"]) == ["b"]
        with pytest.raises((PeerError, OSError)):
            JobClient(liar, Identity.load(other.folder / "boards" / "a")).job()
        with pytest.raises((PeerError, OSError)):
            JobClient(liar, None).job()
    finally:
        made.stop()


def test_a_board_has_few_connections_and_none_once_it_is_revoked(tmp_path: Path) -> None:
    from edgegossip.fleet.store import Fleet, coordinator_of
    from edgegossip.security import tls
    from edgegossip.security.identity import Identity

    fleet = Fleet.create(tmp_path / "fleet", "test", 20).add("a", "board", 20).add("b", "board", 20)
    serves = Identity.load(coordinator_of(fleet.folder))
    context = tls.caller_context(Identity.load(fleet.folder / "boards/a"), "coordinator")
    made = JobHttpServer(JobServer(["a", "b"]), "127.0.0.1:0", serves)
    made.start()

    def asking(name: str) -> JobClient:
        following = FollowOptions(made.address, name, "127.0.0.1:7700", None, False, (), Path("runs"))
        return JobClient(following, Identity.load(fleet.folder / "boards" / name))

    def closed(connection: socket.socket) -> bool:
        with suppress(ConnectionError):
            return connection.recv(1) == b""
        return True

    with ExitStack() as stack:
        stack.callback(made.stop)
        held = []
        for _ in range(4):
            plain = stack.enter_context(socket.create_connection(made.server_address[:2], 5))
            held.append(stack.enter_context(context.wrap_socket(plain)))
            held[-1].sendall(f"GET {JOB}?port=7700 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            while not held[-1].recv(4096).endswith(b"}"):
                pass
        assert closed(held[0])
        Fleet.open(fleet.folder).revoke("a")
        (serves.folder / "crl.pem").write_bytes((fleet.folder / "crl.pem").read_bytes())
        assert all(closed(connection) for connection in held[1:])
        with pytest.raises((PeerError, OSError), match="revoked"):
            asking("a").job()
        assert asking("b").job() == {"state": "wait"}


@pytest.mark.parametrize(("awaited", "unit"), [(True, b"[],"), (False, b"ab\n")], ids=["long lines", "short lines"])
def test_what_a_member_hands_in_takes_no_more_memory_than_it_has_bytes(
    tmp_path: Path, awaited: bool, unit: bytes
) -> None:
    """It lies on the disk, whatever its lines are, and however many come at once. Who else is in
    the cell hands in meanwhile."""
    from edgegossip.fleet.store import Fleet, coordinator_of
    from edgegossip.security import tls
    from edgegossip.security.identity import Identity

    fleet = Fleet.create(tmp_path / "fleet", "test", 20).add("a", "board", 20).add("b", "board", 20)
    made = JobHttpServer(JobServer(["a", "b"]), "127.0.0.1:0", Identity.load(coordinator_of(fleet.folder)))
    made.start()
    host, _, port = made.address.rpartition(":")
    identity = {name: Identity.load(fleet.folder / "boards" / name) for name in "ab"}
    a, b = (
        JobClient(FollowOptions(made.address, n, "127.0.0.1:7700", None, False, (), Path("runs")), identity[n])
        for n in "ab"
    )
    head = json.dumps({"name": "b", "cell": "k", "code": 0, "reason": "", "accuracy": None}).encode()
    body = head + b"\n" + unit * (2 << 20)

    def flood() -> None:
        context = tls.caller_context(identity["b"], "coordinator")
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        connection.request("POST", RECORDS, body)
        assert connection.getresponse().status == 200

    try:
        a.job(), b.job()
        made.jobs.begin("k", "recipe", ["a", "b"] if awaited else ["a"])
        tracemalloc.start()
        threads = [threading.Thread(target=flood) for _ in range(3)]
        for thread in threads:
            thread.start()
        a.hand_in({"name": "a", "cell": "k", **DONE})
        for thread in threads:
            thread.join()
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found = made.jobs.wait(0.0)
        assert set(found) == ({"a", "b"} if awaited else {"a"})
        assert sum(map(len, found["b"].lines if awaited else ())) == awaited * len(unit) * (2 << 20)
    finally:
        made.stop()
    assert peak_bytes < 1 << 20


def test_a_function_that_only_the_operator_names_is_not_called(tmp_path: Path) -> None:
    from edgegossip import recipe as recipes
    from edgegossip.scale.follow import _run

    text = recipes.to_toml(recipes.load("quickstart-gossip", ["model.name=os:system"]))
    following = FollowOptions("127.0.0.1:1", "a", "127.0.0.1:7700", None, False, (), tmp_path)
    document = _run(following, Job("0" * 16, text, {}), lambda _: True, lambda _: None)
    assert (
        document is not None
        and document["code"] == 2
        and "os:system" in document["reason"]
        and not list(tmp_path.glob("*/log"))
    )


def test_what_a_board_runs() -> None:
    following = FollowOptions(
        "10.0.0.9:7800", "a", "0.0.0.0:7700", Path("id"), False, ("data.dir=/data",), Path("runs")
    )
    job = Job("0" * 16, "", {"b": "10.0.0.2:7700"})
    words = command(following, job, Path("r.toml"), Path("runs"))
    assert words[3:5] == ["node", "r.toml"] and "b=10.0.0.2:7700" in words and "data.dir=/data" in words
    assert words[words.index("--identity") + 1] == "id" and "--insecure" not in words and "--fresh" in words
