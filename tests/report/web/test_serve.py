"""The live page's server, asked over real sockets."""

import http.client
import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from edgegossip.report.web.serve import PORT, LiveRuns, PageServer, listen
from edgegossip.security import https
from edgegossip.telemetry.records import MetricsRecord, to_line
from edgegossip.types import HostError
from tests.report.web.packed import unpack
from tests.report.web.synthetic import write_run


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(folder, server) of a run of three boards."""
    folder = write_run(tmp_path_factory.mktemp("runs"), boards=3, rounds=20, lost=False)
    with PageServer(LiveRuns([folder]), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield folder, server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", host=None):
    """Status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_page_may_ask_its_server_and_nobody_else(served):
    _, server = served
    status, headers, body = ask(server, "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert b"connect-src 'self'" in body and b"run-data" not in body.split(b"<script>")[0]
    assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
    assert ask(server, "/", "HEAD")[2] == b""


def test_data_come_whole_first_and_then_what_is_new(served):
    folder, server = served
    document, columns = unpack(ask(server, "/data/0")[2])
    assert {node: len(c["step"]) for node, c in columns.items()} == {"pi-00": 20, "pi-01": 20, "pi-02": 20}
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(to_line(MetricsRecord("pi-01", 20, 9.0, {"train/loss": 0.25})))
    rows = ",".join(map(str, document["rows"]))
    known = f"rows={rows}&events={document['events_until']}&span={document['spans_until']}"
    document, columns = unpack(ask(server, f"/data/0?generation=0&{known}")[2])
    assert columns["pi-01"]["step"].tolist() == [20] and columns["pi-01"]["train/loss"].tolist() == [0.25]
    assert not columns["pi-00"] or len(columns["pi-00"]["step"]) == 0
    whole = unpack(ask(server, f"/data/0?generation=7&{known}")[2])[1]  # what was known is of another run
    assert len(whole["pi-01"]["step"]) == 21
    now = ",".join(map(str, document["rows"]))
    assert ask(server, f"/data/0?generation=0&{known.replace(rows, now)}")[::2] == (204, b"")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/data/1", 404), ("/data/0/..", 404), ("/../../etc/passwd", 404), ("/metrics.jsonl", 404), ("/data/9999", 404),
        ("/data/0?rows=x,-1&generation=" + "9" * 50, 200), ("/data/0?rows=99999,1&generation=0&events=0&span=0", 200),
        ("http://[/", 400), ("//[", 404),
        ("/data/0?rows=-5&generation=0&events=-3&span=-9", 200), ("/data/0?" + "&".join(f"a{k}=1" for k in range(99)), 200),
    ],
)  # fmt: skip
def test_nothing_in_a_request_names_a_file(served, path, status):
    assert ask(served[1], path, host="127.0.0.1")[0] == status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "localhost.evil"]
)
def test_a_name_that_only_points_here_is_refused(served, host):
    assert ask(served[1], "/data/0", host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:80", "LOCALHOST:1"])
def test_this_machine_is_let_in(served, host):
    assert ask(served[1], "/", host=host)[0] == 200


def test_on_the_network_this_machine_is_let_in_by_its_own_names(served, monkeypatch):
    _, on_loopback = served
    monkeypatch.setattr(socket, "gethostname", lambda: "Pi-7.lan")
    with PageServer(on_loopback.runs, "0.0.0.0", 0) as server:
        for host in ("pi-7.local:8765", "PI-7.local", "pi-7.lan", "192.168.1.7:8765"):
            assert server.may_ask(host), host
        for host in ("pi-8.local", "pi-7.local.evil.example", "evil.example", "pi-7.evil", ".local", "local"):
            assert not server.may_ask(host), host
    assert on_loopback.may_ask("pi-7.lan") and not on_loopback.may_ask("pi-7.local")


def test_only_reading(served):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(served[1], "/", method)[0] == 501


def test_a_folder_that_is_gone_is_said_and_not_fatal(tmp_path):
    folder = write_run(tmp_path, boards=2, rounds=2)
    runs = LiveRuns([folder])
    with PageServer(runs, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        (folder / "metrics.jsonl").rename(folder / "moved")
        (folder / "recipe.toml").unlink()
        runs._refreshed_s[0] = -1e9
        status, _, body = ask(server, "/data/0")
        server.shutdown()
        thread.join()
    assert status == 503 and b"not a run folder" in body


def test_a_port_that_is_taken_is_one_sentence_or_another_port(tmp_path):
    runs = LiveRuns([write_run(tmp_path, boards=2, rounds=2)])
    with PageServer(runs, "127.0.0.1", 0) as first, pytest.raises(HostError, match="choose another --port"):
        listen(runs, "127.0.0.1", first.server_address[1])
    with listen(runs, "127.0.0.1", None) as one, listen(runs, "127.0.0.1", None) as other:
        assert one.server_address[1] != other.server_address[1] and PORT > 1024


def test_connections_that_ask_for_nothing_have_an_end(served, monkeypatch):
    _, server = served
    monkeypatch.setattr(https, "REQUEST_S", 0.5)
    with ExitStack() as stack:
        there = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_address[1]), 10))
            for _ in range(100)
        ]
        for s in there:
            with suppress(OSError):  # it had to go
                s.sendall(b"GET / HT")
        assert ask(server, "/")[0] == 200
        for s in there:
            with suppress(ConnectionError):
                assert s.recv(1) == b""
