"""Bytes are real: what the table says was sent is what the kernel counted on a link of our own, for
each packet. What boards of a gossip run say of their sockets goes through a relay in
test_forked.py."""

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
pytestmark = [needs_namespaces, pytest.mark.slow]


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
