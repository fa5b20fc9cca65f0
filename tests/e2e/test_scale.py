"""Scalability runs with real boards in network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from edgegossip.scale.devices import parse_rate
from lab.netns.network import (
    BACKLOG,
    BACKLOG_PACKETS,
    BEFORE,
    LOCKS,
    NAMES,
    AccessPoint,
    Namespaces,
    ip,
    remove_stale,
)
from tests.e2e.network import first_namespace, needs_namespaces

pytestmark = needs_namespaces
# The digits travel with the package; a perceptron of 200,000 values takes a while on the link and
# next to none to compute.
RECIPE = (
    "quickstart-gossip", "--set", "model.params.hidden=[1024,128]", "--set", "data.train_examples=960",
    "--set", "training.batch_size=32", "--set", "data.test_examples=200", "--no-plots", "--json", "--rounds", "5",
)  # fmt: skip
NETNS = ("lab.netns",)
SEND = """
import socket, sys, time
if sys.argv[1] == "take":
    server = socket.create_server((sys.argv[2], 9000))
    print("listens", flush=True)
    line, _ = server.accept()
    began_s = time.monotonic()
    while line.recv(1 << 20):
        pass
    print(time.monotonic() - began_s)
else:
    socket.create_connection((sys.argv[2], 9000), timeout=20).sendall(bytes(1_000_000))
"""


def scale(*arguments: str, out: Path, by: tuple[str, ...] = ("edgegossip", "scale")) -> dict[str, Any]:
    command = [sys.executable, "-m", *by, *RECIPE, *arguments, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def kept_by_itself() -> str:
    """Packets that the kernel keeps while nobody has namespaces; another test may have some."""
    return BEFORE.read_text() if BEFORE.exists() else BACKLOG.read_text()


def check_is_as_before(before: str) -> None:
    """At once, or as soon as no other test has namespaces any more."""
    until = time.monotonic() + 100
    while BACKLOG.read_text() != before:
        others = any(LOCKS.glob("*.lock"))
        time.sleep(0.1)
        assert BACKLOG.read_text() == before or (others and time.monotonic() < until)


def taker(network: AccessPoint, k: int) -> subprocess.Popen[str]:
    """A process of that machine which listens and will say how long the bytes took to come."""
    command = [*network.inside(k), sys.executable, "-c", SEND, "take", network.address(k)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "listens\n"
    return process


@pytest.mark.parametrize(("link", "least_s"), [("shared", 0.74), pytest.param("each", 0.24, marks=pytest.mark.slow)])
def test_who_shares_an_access_point(link: str, least_s: float) -> None:
    """Three machines send a megabyte each, all at a time: at 32 Mbit/s that takes 0.75 s if they
    share it, 0.25 s if not."""
    with Namespaces() as probe:
        first_namespace(probe, "probe")
    before = kept_by_itself()
    with AccessPoint(3, parse_rate("32mbit"), link) as network, ExitStack() as stack:
        assert int(BACKLOG.read_text()) >= BACKLOG_PACKETS
        command = (sys.executable, "-c", SEND)
        takers = [stack.enter_context(taker(network, k)) for k in (1, 2, 3)]
        began_s = time.monotonic()
        senders = [
            subprocess.Popen([*network.inside(k), *command, "send", network.address(k % 3 + 1)]) for k in (1, 2, 3)
        ]
        assert all(process.wait(60) == 0 for process in (*senders, *takers))
        assert time.monotonic() - began_s > least_s
        carried = network.carried_bytes()
        assert len(carried) == (1 if link == "shared" else 6)  # or up and down of each
        assert all(3_000_000 < n * len(carried) / (1 if link == "shared" else 2) < 3_600_000 for n in carried), carried
        names = [network.namespace(k) for k in (1, 2, 3)]
    assert not any((NAMES / name).exists() for name in names)
    check_is_as_before(before)


def test_packets_are_kept_until_the_last_run_is_over_and_then_as_before(tmp_path: Path) -> None:
    """Also after one that was killed."""
    with Namespaces() as probe:
        first_namespace(probe, "probe")
    before = kept_by_itself()
    make = "from lab.netns.network import AccessPoint; import os; AccessPoint(1, 1e6); os._exit(1)"
    subprocess.run([sys.executable, "-c", make])
    with AccessPoint(1, parse_rate("1mbit")):
        with AccessPoint(1, parse_rate("1mbit")):
            pass
        assert int(BACKLOG.read_text()) >= BACKLOG_PACKETS
    check_is_as_before(before)


def test_little_passes_at_once_when_time_is_dilated() -> None:
    """A megabyte at a twentieth of 200 Mbit/s takes 0.8 s. What passes in 5 ms at the full rate
    would be an eighth of it."""
    with Namespaces() as probe:
        first_namespace(probe, "probe")
    with AccessPoint(2, parse_rate("200mbit")) as network:
        network.slow_down(20.0)
        command = (sys.executable, "-c", SEND)
        with taker(network, 1) as taking:
            subprocess.run([*network.inside(2), *command, "send", network.address(1)], check=True)
            assert float(taking.communicate(timeout=60)[0]) > 0.76


def test_what_a_dead_owner_left_is_removed() -> None:
    script = (
        "from lab.netns.network import Namespaces\n"
        "import os, signal\n"
        "spaces = Namespaces()\n"
        "print(spaces.add('orphan'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Namespaces() as alive:
        mine = first_namespace(alive, "mine")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        orphan = done.stdout.strip()
        assert done.returncode == -signal.SIGKILL and (NAMES / orphan).exists(), done.stderr
        assert orphan in remove_stale() and not (NAMES / orphan).exists() and (NAMES / mine).exists()
    assert mine not in ip("netns", "list")


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgegossip.types import HostError

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="root"):
        Namespaces()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_transmit_seconds_are_bytes_by_rate_and_the_model_agrees(tmp_path: Path) -> None:
    arguments = ("--boards", "2,4", "--schemes", "sgd,4-bit-elastiquant", "--rate", "20mbit")
    real = scale(*arguments, out=tmp_path / "netns", by=NETNS)
    model = scale(*arguments, out=tmp_path / "model")
    assert real["failed"] == model["failed"] == []
    for row, modelled in zip(real["rows"], model["rows"], strict=True):
        exchange = row["exchange"]
        assert exchange["seconds"] == pytest.approx(8 * exchange["carried_bytes"] / 20e6, rel=0.1), row
        assert row["t_s"] == pytest.approx(sum(row[key] for key in ("cp_s", "en_s", "tx_s", "de_s", "wait_s")))
        if row["scheme"] == "sgd":  # in the other, of so small a model, most is Python's work, which no profile has
            assert row["t_s"] == pytest.approx(modelled["t_s"], rel=0.15), (row, modelled)
        assert modelled["modelled"] is True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_boards_that_follow(tmp_path: Path) -> None:
    from edgegossip.flower.superlink import free_port

    port, *listen = (free_port("127.0.0.1", 0) for _ in range(3))
    follow = [sys.executable, "-m", "edgegossip", "scale", "--follow", f"127.0.0.1:{port}"]
    boards = [
        subprocess.Popen([*follow, "--name", name, "--listen", f"127.0.0.1:{at}", "--output", str(tmp_path / name)])
        for name, at in zip("ab", listen, strict=True)
    ]
    try:
        where = ("--on", "boards", "--names", "a,b", "--listen", f"127.0.0.1:{port}")
        document = scale(*where, "--boards", "2", "--schemes", "4-bit-elastiquant", out=tmp_path / "out")
        assert all(board.wait(30) == 0 for board in boards)
    finally:
        for board in boards:
            board.kill()
            board.wait()
    (row,) = document["rows"]
    assert row["on"] == "boards" and row["t_s"] > row["cp_s"] > 0 and 4.0 < row["bits_per_value"] < 4.3
