"""What a board under `run` hears of its parent, and that it ends with it, whatever it is busy
with."""

from __future__ import annotations

import json
import subprocess
import sys

from edgegossip.types import EXIT_INTERRUPTED

BUSY = "import time; from edgegossip.node.main import Parent; Parent(); print('up', flush=True); time.sleep(60)"
TOLD = """
import sys, threading
from edgegossip.node.main import Parent
parent, heard, more = Parent(), [], threading.Event()
print(parent.addresses(), flush=True)
sys.stdout.flush()
threading.Event().wait(0.3)  # a line comes before anybody listens
parent.listen(lambda lost: (heard.append(lost["lost"]), print(heard, flush=True)))
threading.Event().wait(60)
"""


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_board_that_is_still_loading_ends_with_its_parent() -> None:
    process = start(BUSY)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.stdin.close()
    assert process.wait(20) == EXIT_INTERRUPTED


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


def test_lines_come_in_order_and_none_is_lost() -> None:
    process = start(TOLD)
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
