"""Malformed messages by the million against a live board, while it trains with two honest ones.

    python -m tests.mesh.malformed --messages 2000000 --seed 1 --out malformed.jsonl

A fleet of three boards and four attackers is founded with certificates and trains; then the
attackers' processes are killed and their identities taken over. They send malformed messages at
full rate on every call that the board serves: frames in honest streams, streams in which something
is wrong, probes, questions to join, health and reflection, admission handshakes, HTTP/2; and bytes
without a certificate. node.py says what the attacked board is lenient about, so that they are not
out after the first message.

Resumable: OUT has a line every few seconds, and a second call goes on with a new fleet behind the
last batch that was done. At the end OUT.md and OUT.json have the verdict; the exit status is 1 when
something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.layout import Layout
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.tls_security import TlsSecurity
from tests.e2e.loopback import Fleet, fleet
from tests.mesh.malformed import attack, node, verdicts
from tests.mesh.malformed.messages import Maker, Target

BOARD, HONEST = "pi-1", ("pi-2", "pi-3")
ATTACKERS = tuple(f"evil-{k}" for k in range(1, 5))
SETTINGS = (
    "model.name=tests.e2e.slow_mlp:slow_mlp",
    "model.params.pause_s=0.8",
    "model.params.hidden=[4]",
    "training.lr=0.02",
    "run.rounds=1000000",
    "evaluation.every=100",
    "gossip.deadline_s=5",
    "gossip.topology=file",
)
EDGES = [(BOARD, HONEST[0]), (BOARD, HONEST[1]), HONEST, *((BOARD, evil) for evil in ATTACKERS)]
SAMPLE_S = 3.0
EVALUATED_S = 300.0  # 100 rounds of 0.8 s, on a busy machine


class Batches:
    """Numbers of batches of one queue, each to be done once; `done` are all below it."""

    def __init__(self, first: int, end: int) -> None:
        self.done, self._end, self._next = first, end, first
        self._finished: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        while self._next < self._end:
            self._next += 1
            yield self._next - 1

    def finish(self, number: int) -> None:
        self._finished.add(number)
        while self.done in self._finished:
            self._finished.discard(self.done)
            self.done += 1


def targets_of(boards: Fleet, layout: Layout) -> list[Target]:
    """What each attacker knows, from the run that it was in."""
    members = tuple(boards.names)
    [entered] = [e for e in boards.events(BOARD) if e["event"] == "entered"]
    run_id = bytes.fromhex(entered["run_id"])
    manifest, address = manifest_of(boards), boards.address(BOARD)
    return [Target(BOARD, run_id, manifest, members, layout, me, address) for me in ATTACKERS]


def manifest_of(boards: Fleet) -> int:
    """The hash in every probe: asked for as any member may, while it is not yet cut off."""
    from edgegossip.mesh import address as addresses
    from edgegossip.mesh.membership.client import request_join

    security = TlsSecurity.load(boards.identity(ATTACKERS[0]))
    told = request_join(addresses.parse(boards.address(BOARD), "target"), ATTACKERS[0], security)
    assert isinstance(told.manifest, manifests.Manifest)
    return told.manifest.hash


def layout_of() -> Layout:
    from edgegossip.training import build_workload

    settings = dict(s.split("=", 1) for s in SETTINGS if not s.startswith("gossip.topology"))
    values = {key: recipes.parse_value(text) for key, text in settings.items()}
    recipe = recipes.with_settings(recipes.load("quickstart-gossip"), values)
    return build_workload(recipe, 0).layout


async def attacked(
    boards: Fleet,
    seed: int,
    queues: dict[str, Batches],
    counts: Path,
    write: Any,
    targets: list[Target],
    limit_s: float,
) -> None:
    """All batches that are left, a line every SAMPLE_S."""
    tally = attack.Tally()
    workers = []
    attackers = []
    for where in targets:
        attacker = attack.Attacker(TlsSecurity.load(boards.identity(where.me)), Maker(where), where, tally)
        attackers.append(attacker)
        workers += [asyncio.create_task(_work(attacker, seed, q, batches)) for q, batches in queues.items()]
    began = time.monotonic()
    while True:
        _, pending = await asyncio.wait(workers, timeout=SAMPLE_S, return_when=asyncio.FIRST_EXCEPTION)
        write(
            {
                "t_s": round(time.monotonic() - began, 1),
                "done": {q: b.done for q, b in queues.items()},
                "delivered": tally.delivered,
                "lost": tally.lost,
                "answers": tally.answers,
                "counts": json.loads(counts.read_text()),
                "boards": {n: s for n, s in boards.sample().items() if n not in ATTACKERS},
                "load": os.getloadavg()[0],
            }
        )
        failed = [w.exception() for w in workers if w.done() and not w.cancelled() and w.exception()]
        if failed or not pending or time.monotonic() - began > limit_s:
            break
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)
    for attacker in attackers:
        with suppress(Exception):
            await attacker.close()
    if failed:
        raise RuntimeError("the attack ended early") from failed[0]


async def _work(attacker: attack.Attacker, seed: int, queue: str, batches: Batches) -> None:
    kinds = attack.STREAMS if queue == "streams" else attack.CALLS
    for number in batches:
        await attacker.batch(kinds[number % len(kinds)], Random(f"{seed}/{queue}/{number}"))
        batches.finish(number)


def _await_evaluation(boards: Fleet) -> None:
    """Until the boards have shown what they learn, which a short attack does not last for."""
    until_s = time.monotonic() + EVALUATED_S
    names = (BOARD, *HONEST)
    while time.monotonic() < until_s and any(verdicts.accuracy(boards.runs(n)) is None for n in names):
        time.sleep(1.0)


def session(messages: int, seed: int, out: Path, limit_s: float = math.inf) -> None:
    """One fleet, from the batch on where the last one ended, for at most `limit_s`."""
    lines = verdicts.read(out)
    total = messages // attack.BATCH
    ends = {"streams": round(total * attack.SHARE_OF_STREAMS)}
    ends["calls"] = total - ends["streams"]
    done: dict[str, int] = next((line["done"] for line in reversed(lines) if "done" in line), {})
    queues = {q: Batches(done.get(q, 0), end) for q, end in ends.items()}
    if all(queue.done >= ends[q] for q, queue in queues.items()):
        return
    with tempfile.TemporaryDirectory() as folder, out.open("a") as file:

        def write(what: dict[str, Any]) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        topology = Path(folder) / "topology.json"
        topology.write_text(json.dumps({"directed": False, "edges": EDGES}))
        counts = Path(folder) / "counts.json"
        os.environ[node.VARIABLE] = str(counts)
        settings = (*SETTINGS, f"gossip.topology_file={topology}")
        names = (BOARD, *HONEST, *ATTACKERS)
        with fleet(names, settings, {BOARD: "tests.mesh.malformed.node"}) as boards:
            for name in ATTACKERS:
                boards.processes[name].kill()
                boards.processes[name].wait()
            write({"session": datetime.now(UTC).isoformat(timespec="seconds"), "seed": seed, "messages": messages})
            failure = ""
            try:
                targets = targets_of(boards, layout_of())
                asyncio.run(attacked(boards, seed, queues, counts, write, targets, limit_s))
            except RuntimeError as error:
                failure = f"{error}: {error.__cause__!r}"
            before = {n: boards.last(n)["step"] for n in HONEST}
            time.sleep(10.0)  # they go on, and the board lets go of what it held for the attackers
            _await_evaluation(boards)
            write({"after": boards.sample(), "counts": json.loads(counts.read_text())})
            ended = {n: boards.processes[n].poll() for n in (BOARD, *HONEST)}
            after = {n: boards.last(n)["step"] for n in HONEST}
            codes = boards.stop()
            kinds = Counter(e["event"] for e in boards.events(BOARD))
            lost = {n: [e["text"] for e in boards.events(n) if e.get("peer") in (BOARD, *HONEST)][:40] for n in HONEST}
            logs = {n: boards.log(n) for n in (BOARD, *HONEST) if re.search("Traceback|Fatal", boards.log(n))}
            accuracy = {n: verdicts.accuracy(boards.runs(n)) for n in (BOARD, *HONEST)}
            write(
                {
                    "end": {n: code for n, code in codes.items() if n not in ATTACKERS},
                    "early": {n: code for n, code in ended.items() if code is not None},
                    "rounds_after": {n: after[n] - before[n] for n in HONEST},
                    "events": kinds,
                    "honest": lost,
                    "logs": logs,
                    "accuracy": accuracy,
                    "failure": failure,
                }
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end this session after so long; go on later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("malformed.jsonl"))
    options = parser.parse_args()
    session(options.messages, options.seed, options.out, 60 * options.minutes)
    document, wrong = verdicts.judge(verdicts.read(options.out))
    options.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(verdicts.markdown(document))
    print(verdicts.markdown(document))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
