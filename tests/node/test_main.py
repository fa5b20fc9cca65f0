"""What a board refuses before it does anything; what it hears of its parent under `run`, and that
it ends with it, whatever it is busy with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgegossip import recipe as recipes
from edgegossip.fleet.launch.board import run_follower
from edgegossip.memory import Spool
from edgegossip.mesh.base import Notice, PeerDown
from edgegossip.node import main
from edgegossip.node.main import NodeOptions, Runtime, check_coordinator
from edgegossip.node.meters import NodeMeters
from edgegossip.node.spec import NodeSpec
from edgegossip.types import EXIT_INTERRUPTED, ConfigError
from tests.node.fakes import ListSink

BUSY = "import time; from edgegossip.node.main import Parent; Parent(); print('up', flush=True); time.sleep(60)"
LISTENS = """
import sys, threading
from edgegossip.node.main import Parent
parent, heard, more = Parent(), [], threading.Event()
print(parent.addresses(), flush=True)
sys.stdout.flush()
threading.Event().wait(0.3)  # a line comes before anybody listens
parent.listen(lambda lost: (heard.append(lost["lost"]), print(heard, flush=True)))
threading.Event().wait(60)
"""


def _options(identity: Path | None = None, *, insecure: bool = False) -> NodeOptions:
    return NodeOptions("pi-01", "", (), "", insecure, identity, Path("runs"), False, None, (), b"", None)


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"])
def test_plaintext_to_a_coordinator_on_the_same_machine(address: str) -> None:
    check_coordinator(address, _options())


@pytest.mark.parametrize("address", ["10.0.0.1:8000", "coordinator.local:8000", "[fe80::1]:8000"])
def test_plaintext_to_one_elsewhere_has_to_be_asked_for(address: str) -> None:
    for ask in (check_coordinator, lambda where, options: run_follower(where, (), options)):
        with pytest.raises(ConfigError, match=r"anybody on that network can read.*--identity DIR\), or say --insecure"):
            ask(address, _options())
    check_coordinator(address, _options(insecure=True))
    check_coordinator(address, _options(Path("kit")))


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--coordinator '10.0.0.1' is not an address: write host:port"):
        check_coordinator("10.0.0.1", _options(insecure=True))


def test_a_board_opens_streams_to_its_neighbours_and_takes_those_of_all() -> None:
    recipe = recipes.load("quickstart-gossip", ("run.nodes=5",))
    names = ("pi-01", "pi-02", "pi-03", "pi-04", "pi-05")
    spec, options = NodeSpec(recipe, "pi-01", names, bytes(16)), replace(_options(), listen="127.0.0.1:0")
    told = {name: f"127.0.0.1:{k}" for k, name in enumerate(names) if k}
    made = main._open(
        spec, lambda: told, ("pi-03", "pi-04"), options, ListSink(), NodeMeters(), None, Spool(), Runtime()
    )
    with made[0] as transport:
        made[1]()
        heard = {e.peer for _ in range(2) if isinstance(e := transport.incoming(30.0), Notice)}
        assert heard == {"pi-02", "pi-05"}  # who do not answer
        transport.close_peer("pi-03", "it is lost")
        assert transport.incoming(30.0) == PeerDown("pi-03", "it is lost", closed=True)


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_board_that_is_still_loading_ends_with_its_parent() -> None:
    process = start(BUSY)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.stdin.close()
    assert process.wait(20) == EXIT_INTERRUPTED


ASKS = """
import subprocess, sys, threading
from edgegossip.node.main import Parent
parent = Parent()
for ask in (input, lambda: input() or sys.stdin.read(1)):
    try:
        ask()
    except EOFError:
        print("nobody answers", flush=True)
read = "import sys; print(repr(sys.stdin.read()), flush=True)"
subprocess.run([sys.executable, "-c", read])
print(parent.addresses(), flush=True)
threading.Event().wait(60)
"""


def test_who_asks_on_standard_input_neither_waits_nor_takes_news_away() -> None:
    """Nor does a program that the board starts."""
    process = start(ASKS)
    assert process.stdin is not None and process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["nobody answers\n", "nobody answers\n", "''\n"]
    process.stdin.write(json.dumps({"b": "127.0.0.1:1"}) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "{'b': '127.0.0.1:1'}\n"
    process.stdin.close()
    assert process.wait(20) == EXIT_INTERRUPTED


def test_signs_of_life_come_one_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[float] = []

    def beat() -> None:
        said.append(0.0)
        if len(said) > 4:
            raise BrokenPipeError

    monkeypatch.setattr(main.time, "sleep", said.append)
    main._heartbeat(SimpleNamespace(beat=beat))  # type: ignore[arg-type]
    assert said == [0.0, main.BEAT_S, 0.0, main.BEAT_S, 0.0]


def test_a_transport_that_does_not_answer_does_not_end_the_watch() -> None:
    late = "def late(lost): print(lost['lost'], flush=True); raise TimeoutError"
    process = start(
        f"from edgegossip.node.main import Parent\n{late}\nParent().listen(late)\nimport time; time.sleep(60)"
    )
    assert process.stdin is not None and process.stdout is not None
    for name in "bc":
        process.stdin.write(json.dumps({"lost": name, "why": "x"}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{name}\n"
    process.stdin.close()
    assert process.wait(20) == EXIT_INTERRUPTED


ALONE = """
from pathlib import Path
from edgegossip import recipe
from edgegossip.node.main import NodeOptions, run_node
from tests.node.fakes import ListSink
class Told(ListSink):
    def event(self, node, name, text, **data):
        print(name, text, flush=True)
of = recipe.load("quickstart-gossip", ("run.nodes=2", "run.rounds=1"))
options = NodeOptions("a", "127.0.0.1:0", (), None, True, None, Path(), True, None, ("a", "b"), bytes(16), None)
run_node(of, options, lambda spec: (Told(), None))
"""


def test_a_board_does_not_wait_for_one_that_its_parent_says_is_lost() -> None:
    process = start(ALONE)
    for line in ({"b": "127.0.0.1:1"}, {"lost": "b", "why": "it broke"}):
        process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    said = process.stdout.readlines()
    assert any("it broke" in line for line in said) and said[-1].startswith("finished")
    assert process.wait() == 0


def test_lines_come_in_order_and_none_is_lost() -> None:
    process = start(LISTENS)
    assert process.stdin is not None and process.stdout is not None
    for line in ({"b": "127.0.0.1:1"}, {"lost": "b", "why": "x"}):
        process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "{'b': '127.0.0.1:1'}\n"
    assert process.stdout.readline() == "['b']\n"
    process.stdin.write(json.dumps({"lost": "c", "why": "y"}) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "['b', 'c']\n"
    process.stdin.close()
    assert process.wait(20) == EXIT_INTERRUPTED
