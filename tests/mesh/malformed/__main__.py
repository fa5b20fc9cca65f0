"""Malformed messages by the million against a live board, while it trains with two honest ones.

    python -m tests.mesh.malformed --messages 2000000 --seed 1

A fleet of three boards and four attackers is founded with certificates and trains; then the
attackers' processes are killed and their identities taken over. They send malformed messages at
full rate on every call that the board serves: frames in honest streams, streams in which something
is wrong, probes, questions to join, health and reflection, admission handshakes, HTTP/2; and bytes
without a certificate. node.py says what the attacked board is lenient about, so that they are not
out after the first message.

It prints what was delivered, what reached each decoder, why messages were refused, and what went
wrong; the exit status is 1 when something did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

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
Batches = dict[str, Iterator[int]]  # numbers of batches of each queue, each to be done once


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


async def attacked(boards: Fleet, seed: int, batches: Batches, counts: Path, targets: list[Target]) -> verdicts.Attack:
    """All batches, with a sample every SAMPLE_S."""
    attack_, workers, attackers = verdicts.Attack(), [], []
    for where in targets:
        attacker = attack.Attacker(TlsSecurity.load(boards.identity(where.me)), Maker(where), where, attack_.tally)
        attackers.append(attacker)
        workers += [asyncio.create_task(_work(attacker, seed, queue, numbers)) for queue, numbers in batches.items()]
    began = time.monotonic()
    while True:
        _, pending = await asyncio.wait(workers, timeout=SAMPLE_S, return_when=asyncio.FIRST_EXCEPTION)
        held = {n: s for n, s in boards.sample().items() if n not in ATTACKERS}
        attack_.samples.append((time.monotonic() - began, held))
        failed = [w.exception() for w in workers if w.done() and w.exception()]
        if failed or not pending:
            break
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)
    for attacker in attackers:
        with suppress(Exception):
            await attacker.close()
    attack_.counts = json.loads(counts.read_text())
    attack_.failure = "".join(f"the attack ended early: {error!r}" for error in failed[:1])
    return attack_


async def _work(attacker: attack.Attacker, seed: int, queue: str, numbers: Iterator[int]) -> None:
    kinds = attack.STREAMS if queue == "streams" else attack.CALLS
    for number in numbers:
        await attacker.batch(kinds[number % len(kinds)], Random(f"{seed}/{queue}/{number}"))


def _await_evaluation(boards: Fleet) -> None:
    """Until the boards have shown what they learn, which a short attack does not last for."""
    until_s = time.monotonic() + EVALUATED_S
    names = (BOARD, *HONEST)
    while time.monotonic() < until_s and any(verdicts.accuracy(boards.runs(n)) is None for n in names):
        time.sleep(1.0)


def session(messages: int, seed: int) -> verdicts.Attack:
    """A fleet that is attacked, and how it ended."""
    streams = round(messages // attack.BATCH * attack.SHARE_OF_STREAMS)
    batches = {"streams": iter(range(streams)), "calls": iter(range(messages // attack.BATCH - streams))}
    with tempfile.TemporaryDirectory() as folder:
        topology, counts = Path(folder) / "topology.json", Path(folder) / "counts.json"
        topology.write_text(json.dumps({"directed": False, "edges": EDGES}))
        os.environ[node.VARIABLE] = str(counts)
        settings = (*SETTINGS, f"gossip.topology_file={topology}")
        with fleet((BOARD, *HONEST, *ATTACKERS), settings, {BOARD: "tests.mesh.malformed.node"}) as boards:
            for name in ATTACKERS:
                boards.kill(name)
            found = asyncio.run(attacked(boards, seed, batches, counts, targets_of(boards, layout_of())))
            before = {n: boards.last(n)["step"] for n in HONEST}
            time.sleep(10.0)  # they go on, and the board lets go of what it held for the attackers
            _await_evaluation(boards)
            early = {n: boards.processes[n].poll() for n in (BOARD, *HONEST)}
            found.early = {n: code for n, code in early.items() if code is not None}
            found.rounds_after = {n: boards.last(n)["step"] - before[n] for n in HONEST}
            found.codes = {n: code for n, code in boards.stop().items() if n not in ATTACKERS}
            found.blamed = {
                n: [e["text"] for e in boards.events(n) if e.get("peer") in (BOARD, *HONEST)] for n in HONEST
            }
            logs = {n: boards.log(n) for n in (BOARD, *HONEST)}
            found.logs = {n: log for n, log in logs.items() if re.search("Traceback|Fatal", log)}
            found.accuracy = {n: verdicts.accuracy(boards.runs(n)) for n in (BOARD, *HONEST)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    document = verdicts.judge(session(options.messages, options.seed))
    print(json.dumps(document, indent=1))
    raise SystemExit(1 if document["wrong"] else 0)


if __name__ == "__main__":
    main()
