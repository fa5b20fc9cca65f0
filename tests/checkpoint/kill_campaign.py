"""kill -9 at every failpoint of the checkpoint code, in real processes on the real disk.

    python -m tests.checkpoint.kill_campaign --kills 1000 --folder DIR

Each process goes on from what the one before left in DIR, saves round after round and says on a
pipe which of them are durable, until it kills itself at its failpoint: before or after one of its
file operations, or in the middle of a write. Every fourth one keeps its states through the `Writer`
and is killed from outside, at a random moment. Then every file must be whole, the newest must be of
a round that is not older than the last one acknowledged, and its values must be that round's to the
bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.checkpoint.files import OS_FILES, Damaged, OpenFile
from edgegossip.checkpoint.format import to_bytes
from edgegossip.checkpoint.registry import RunContext
from edgegossip.checkpoint.store import Found, Store
from edgegossip.checkpoint.writer import Writer
from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate

IDENTITY = {"board": "board-0", "run": b"kills"}
SAVES = 4  # of one process, if it lives
ANEW = 100  # kills after which the folder is begun anew
_ROUND = struct.Struct("<I")

LAYOUT = Layout.of([TensorSpec("w", (150, 100)), TensorSpec("b", (100,))])
MEMBERS = ("board-0", "board-1", "board-2")
VIEW = NodeView(
    "board-0", MEMBERS, topologies.get("complete", 3), LAYOUT, codecs.get("error-feedback"), b"k" * 16, 1, 9.0
)
ALGORITHM = gossip.get("choco-sgd")


class KillingFiles:
    """The real files; this process ends at the failpoint with this number."""

    def __init__(self, at: int) -> None:
        self.left, self.seen = at, list[str]()

    def _point(self, name: str) -> None:
        self.seen.append(name)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        self.left -= 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(OS_FILES, name)

        def around(*arguments: Any) -> Any:
            self._point(f"before {name}")
            result = operation(*arguments)
            self._point(f"after {name}")
            return result

        return around

    def write(self, file: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self._point("before write")
        OS_FILES.write(file, view[: len(view) // 2])
        self._point("within write")
        OS_FILES.write(file, view[len(view) // 2 :])
        self._point("after write")

    def names(self, folder: str) -> list[str]:
        return OS_FILES.names(folder)

    def open(self, path: str) -> OpenFile:
        return OS_FILES.open(path)


def state_of(round: int) -> Any:
    """A state in the middle of a run, which the round decides."""
    state = ALGORITHM.init(np.full(LAYOUT.size, round, np.float32), VIEW)
    rng = np.random.default_rng(round)
    state, _ = ALGORITHM.start(state)
    return ALGORITHM.step(state, LocalUpdate(rng.normal(size=LAYOUT.size).astype(np.float32), 0.1, 1.0, 1, 1))[0]


STATES_OF: dict[int, Any] = {}


def value_of(round: int) -> dict[str, Any]:
    if round not in STATES_OF:
        STATES_OF[round] = {
            "state": state_of(round),
            "training": {"momentum": np.full(LAYOUT.size, -round, np.float32)},
        }
    return STATES_OF[round]


def load(folder: Path) -> Found | None:
    store = Store(folder, IDENTITY)
    try:
        return store.load(RunContext.of(VIEW))
    finally:
        store.close()


def live(folder: Path, at: int, through_writer: bool, out: int) -> None:
    """What a process does until it is killed."""
    store = Store(folder, IDENTITY, files=KillingFiles(at if not through_writer else -1))
    found = store.load(RunContext.of(VIEW))
    first = (found.meta["round"] if found else 0) + 1
    if through_writer:
        writer = Writer(store, lambda event, text: None, slack_s=0.0)
        said = first - 1
        for round in range(first, first + 50):
            writer.offer(round, value_of(round))
            if (writer.durable or 0) > said:
                said = writer.durable or 0
                os.write(out, _ROUND.pack(said))
    else:
        for round in range(first, first + SAVES):
            store.save(value_of(round), round=round)
            os.write(out, _ROUND.pack(round))


def kill_once(folder: Path, at: int, through_writer: bool, rng: Random) -> tuple[bool, int]:
    """Whether the process was killed rather than done, and the last round it acknowledged; 0:
    none."""
    reader, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            live(folder, at, through_writer, out)
            code = 0
        finally:
            os._exit(code)
    os.close(out)
    if through_writer:
        time.sleep(rng.random() * 0.15)
        os.kill(pid, signal.SIGKILL)
    said = b""
    while chunk := os.read(reader, 4096):
        said += chunk
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"a process failed at failpoint {at}")
    acknowledged = _ROUND.unpack(said[-_ROUND.size :])[0] if said else 0
    return os.WIFSIGNALED(status), acknowledged


def judge(folder: Path, acknowledged: int) -> tuple[int, int]:
    """(torn files, acknowledged rounds that are lost)."""
    torn = 0
    for path in sorted(folder.glob("*.ckpt")):
        try:
            Store(folder, IDENTITY)._read(str(path), RunContext.of(VIEW))
        except Damaged:
            torn += 1
    found = load(folder)
    round = found.meta["round"] if found else 0
    if found is not None and to_bytes(found.value) != to_bytes(value_of(round)):
        torn += 1
    return torn, max(0, acknowledged - round)


def failpoints(folder: Path) -> list[str]:
    """Of a process that is not killed, from an empty folder."""
    files = KillingFiles(-1)
    store = Store(folder, IDENTITY, files=files)
    store.load()
    for round in range(1, SAVES + 1):
        store.save(value_of(round), round=round)
    store.close()
    return files.seen


def campaign(folder: Path, kills: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """So many kills. Names of failpoints are counted. A process that ended before its kill from
    outside came is in `processes` alone."""
    done: list[dict[str, Any]] = []
    points = failpoints(folder / f"plain-{os.getpid()}")
    stride = next(s for s in (7, 11, 13, 17) if len(points) % s)  # a prime: each comes before any comes again
    while sum(d["killed"] for d in done) < kills:
        k = len(done)
        where, rng = folder / f"board-{k // ANEW}", Random(k)
        outside = k % 4 == 3
        at = (k - (k + 1) // 4) * stride % len(points)
        before = load(where)
        killed, acknowledged = kill_once(where, at, outside, rng)
        acknowledged = max(acknowledged, before.meta["round"] if before else 0)
        torn, lost = judge(where, acknowledged)
        point = "from outside" if outside else points[at]
        done.append({"point": point, "killed": killed, "torn": torn, "lost": lost})
        if torn or lost:
            say(f"kill {k} at {point}: {torn} torn, {lost} lost")
    return {
        "kills": sum(d["killed"] for d in done),
        "processes": len(done),
        "torn": sum(d["torn"] for d in done),
        "lost": sum(d["lost"] for d in done),
        "points": dict(sorted(Counter(d["point"] for d in done if d["killed"]).items())),
        "failpoints": len(points),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    outcome = campaign(given.folder, given.kills)
    print(json.dumps(outcome, indent=1))
    sys.exit(bool(outcome["torn"] or outcome["lost"]))
