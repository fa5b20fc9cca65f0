"""Bytes are real: what the table says was sent is what the kernel counted on an interface of our
own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgegossip.telemetry.run_folder import read_run
from tests.e2e.command import edgegossip
from tests.e2e.network import Namespaces, first_namespace, ip, needs_namespaces

SHORT = ("--set", "run.rounds=30", "--no-plots")
BOARDS = ("board-0", "board-1")
pytestmark = [needs_namespaces, pytest.mark.slow]  # test_forked.py has a relay that counts


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces, joined by a link with 10.77.0.1 and 10.77.0.2 at its ends."""
    with Namespaces() as spaces:
        names = (first_namespace(spaces, "a"), spaces.add("b"))
        ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire", "netns", names[1])
        for k, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{k}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
        yield names


def inside(namespace: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", namespace)


def cut_before_the_link(namespaces: tuple[str, str]) -> None:
    """Let the kernel cut into packets, so that the interface counts the headers of every one."""
    for name in namespaces:
        ip("-n", name, "link", "set", "wire", "gso_max_segs", "1")


def counted(namespace: str, interface: str) -> int:
    """Bytes that the kernel has sent on this interface."""
    (link,) = json.loads(ip("-n", namespace, "-s", "-j", "link", "show", interface))
    return int(link["stats64"]["tx"]["bytes"])


@pytest.mark.parametrize("codec", ["fp32", "minmax8"])
def test_gossip_on_one_machine(namespaces: tuple[str, str], codec: str, tmp_path: Path) -> None:
    """All that goes over the namespace's loopback is the boards' own."""
    name = namespaces[0]
    before = counted(name, "lo")
    settings = ("--set", f"codec.name={codec}", "--set", "run.nodes=3", "--json")
    with edgegossip("run", "quickstart-gossip", *SHORT, *settings, runs=tmp_path, prefix=inside(name)) as running:
        code, out, err = running.finish()
    assert code == 0, err
    assert json.loads(out)["sent_bytes"]["link"] == pytest.approx(counted(name, "lo") - before, rel=0.03)


def test_coordinator_and_boards_on_two_machines(namespaces: tuple[str, str], tmp_path: Path) -> None:
    """The commands that a fleet uses: a coordinator in one namespace, boards in the other, all
    their bytes on one link."""
    server, client = namespaces
    cut_before_the_link(namespaces)
    common = ("quickstart-server", *SHORT[:2], "--set", f"run.nodes={len(BOARDS)}")
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            edgegossip(
                "coordinator", *common, "--host", "10.77.0.1", "--port", "8000", "--insecure", "--json",
                runs=tmp_path / "server", prefix=inside(server),
            )
        )  # fmt: skip
        before, served = counted(client, "wire"), counted(server, "wire")
        boards = [
            stack.enter_context(
                edgegossip(
                    "node", *common, "--name", name, "--coordinator", "10.77.0.1:8000", "--insecure",
                    runs=tmp_path / name, prefix=inside(client),
                )
            )
            for name in BOARDS
        ]  # fmt: skip
        code, out, err = coordinator.finish()
        assert code == 0, err
        for board in boards:
            code, _, err = board.finish()
            assert code == 0 and board.nobody_left(), err
        assert coordinator.nobody_left()
        sent, served = counted(client, "wire") - before, counted(server, "wire") - served
    result = json.loads(out)
    assert result["accuracy"]["mean"] > 0.8 and result["rounds"] == 30 and result["failed_nodes"] == []
    assert {row["node"]: row["rounds"] for row in result["boards"] if row["role"] == "board"} == dict.fromkeys(
        BOARDS, 30
    )
    assert result["sent_bytes"]["payload"] > 0
    rows = [row for board in boards for row in read_run(board.folder()).metrics()]
    assert sum(row.number("net/link_bytes") or 0 for row in rows) == pytest.approx(sent, rel=0.03)
    own = [row for row in read_run(coordinator.folder()).metrics() if row.node == "coordinator"]
    # its last record comes before the final evaluation and the goodbyes
    assert sum(row.number("net/link_bytes") or 0 for row in own) == pytest.approx(served, rel=0.06)
    assert sum(row.number("net/received_bytes") or 0 for row in own) == pytest.approx(
        sum(row.number("net/sent_bytes") or 0 for row in rows), rel=0.06
    )
    assert list((coordinator.folder() / "checkpoint").glob("*.npz"))


@pytest.mark.parametrize("figure", ["net/sent_bytes", "net/link_bytes"])
def test_gossip_on_two_machines(namespaces: tuple[str, str], figure: str, tmp_path: Path) -> None:
    """Two boards that name each other, one in each namespace; plain traffic off the loopback has to
    be asked for.

    An interface that leaves the cutting into packets to its hardware counts the headers of up to 64
    KiB once, so the socket figure is the one to hold against it; one that does not counts them all,
    as the link figure does."""
    if figure == "net/link_bytes":
        cut_before_the_link(namespaces)
    common = ("quickstart-gossip", *SHORT[:2], "--set", "run.nodes=2")
    ends = {"left": (namespaces[0], "10.77.0.1:7700"), "right": (namespaces[1], "10.77.0.2:7700")}
    with ExitStack() as stack:
        running = {}
        for name, (namespace, address) in ends.items():
            other, (_, peer) = next(item for item in ends.items() if item[0] != name)
            command = ("node", *common, "--name", name, "--listen", address, "--peer", f"{other}={peer}", "--insecure")
            running[name] = stack.enter_context(edgegossip(*command, runs=tmp_path / name, prefix=inside(namespace)))
        for board in running.values():
            code, _, err = board.finish()
            assert code == 0, err
        sent = counted(namespaces[0], "wire") + counted(namespaces[1], "wire")
    rows = [row for board in running.values() for row in read_run(board.folder()).metrics()]
    assert sum(row.number(figure) or 0 for row in rows) == pytest.approx(sent, rel=0.03)
    assert all(list((board.folder() / "checkpoint").glob("*.npz")) for board in running.values())
