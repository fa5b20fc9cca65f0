"""The stages, in order. Each is a function of the work folder that says in a line what it saw, or
raises Stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgegossip.accept.page import page
from edgegossip.fleet.image import configure, disk
from edgegossip.fleet.image.tools import run
from lab.smoke import emulated
from lab.smoke.machine import GUEST, Board, Stopped, new_card

NAME, HELPERS = "pi-01", ("host-a", "host-b")
COORDINATOR, FOUNDER, THIRD = ("10.0.2.100", 8000), ("10.0.2.101", 7700), ("10.0.2.102", 7700)
ADDRESSES = (GUEST, COORDINATOR[0], FOUNDER[0], THIRD[0])
MESH_ROUNDS = 3  # with the board, before its power is cut and again after
RUN_ROUNDS = 100_000  # so many that the two others, which go on without it, are still at it when it has booted again
_PATIENT = ("network.grace_s=1800", "run.threads=1", "training.precision=int8", "training.batch_size=32")
SERVER = ("run.nodes=2", "run.rounds=1", "server.deadline_s=3600", *_PATIENT)
# Steps enough that the power can be cut in the middle of a round
MESH = ("run.nodes=3", f"run.rounds={RUN_ROUNDS}", "training.local_steps=60", "gossip.deadline_s=3600", *_PATIENT)
SLOW = float(os.environ.get("EDGEGOSSIP_SMOKE_PATIENCE", "1"))  # on a busy machine: 4
# Whose image it is; one of another kernel does not start as raspi3b.
BOARD = os.environ.get("EDGEGOSSIP_SMOKE_BOARD", "raspberry-pi-4")
SUITE = os.environ.get("EDGEGOSSIP_SMOKE_SUITE", "")


def edgegossip(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "edgegossip", *map(str, arguments)]


def cli(*arguments: str | Path, timeout_s: float = 300) -> str:
    """A command that must succeed; what it prints."""
    done = subprocess.run(edgegossip(*arguments), capture_output=True, text=True, timeout=timeout_s * SLOW)
    if done.returncode:
        raise Stopped(f"edgegossip {arguments[0]} {arguments[1]}: {done.stderr.strip()}")
    return done.stdout


def settings(keys: tuple[str, ...]) -> list[str]:
    return [part for key in keys for part in ("--set", key)]


def build(work: Path, cache: Path) -> str:
    log = work / "build.log"
    with open(log, "w") as stream:
        command = edgegossip("image", "build", "--board", BOARD, "-o", work / "base.img", "--cache", cache)
        command += ["--suite", SUITE] if SUITE else []
        if subprocess.run(command, stdout=stream, stderr=stream).returncode:
            raise Stopped(f"image build: {log.read_text().splitlines()[-1]}")
    cli("image", "verify", work / "base.img", timeout_s=900)
    return f"{(work / 'base.img').stat().st_size / 1e6:.0f} MB, looked through: no private key"


def files(work: Path, cache: Path) -> str:
    """A board's files, without starting it."""
    tree = max(cache.glob("tree-*/root"), key=lambda root: root.stat().st_mtime, default=None)
    if tree is None:
        raise Stopped(f"no built tree in {cache}")
    python = json.loads((tree.parent / "image.json").read_text())["python"]
    try:
        return emulated.agree(emulated.on_the_board(tree, python, 900 * SLOW), emulated.here(120 * SLOW))
    except AssertionError as error:
        raise Stopped(f"a board's files under user-mode emulation: {error}") from error


def bundles(work: Path, cache: Path) -> str:
    """A fleet, bundles for both ways to train, and the card."""
    fleet = work / "fleet"
    if not (fleet / "fleet.json").exists():
        cli("fleet", "init", f"{fleet}")
        cli("fleet", "add", "--fleet", fleet, *HELPERS)
        cli("fleet", "add", "--fleet", fleet, NAME, "--board", BOARD)
    cli("fleet", "set", "--fleet", fleet, NAME, "--coordinator", ":".join(map(str, COORDINATOR)))
    cli("fleet", "kit", "--fleet", fleet, NAME, "-o", work / "server.kit")
    everybody = ",".join((*HELPERS, NAME))
    join = ["--join", f"{FOUNDER[0]}:{FOUNDER[1]}", "--founder", HELPERS[0], "--boards", everybody]
    cli("fleet", "set", "--fleet", fleet, NAME, "--recipe", "quickstart-gossip", *join, *settings(MESH))
    cli("fleet", "kit", "--fleet", fleet, NAME, "-o", work / "mesh.kit")
    cli("image", "configure", work / "base.img", "--kit", work / "server.kit", "-o", work / "pi-01.img", timeout_s=600)
    cli("image", "verify", work / "pi-01.img", timeout_s=900)
    return "kits for a coordinator and for a mesh; card configured and looked through"


def server(work: Path, cache: Path) -> str:
    """First boot, and one round of int8 through a coordinator over TLS."""
    card, runs = work / "card.img", work / "runs-server"
    new_card(work / "pi-01.img", card)
    board = Board(work, card, reaches=(COORDINATOR,))
    where = ["--fleet", work / "fleet", "--boards", ",".join((HELPERS[0], NAME)), *settings(SERVER), "--runs", runs]
    identity = work / "fleet" / "boards" / HELPERS[0]
    helper = [
        "node",
        "quickstart-server",
        "--name",
        HELPERS[0],
        "--coordinator",
        ":".join(map(str, COORDINATOR)),
        "--identity",
        identity,
    ]
    helper += ["--boards", ",".join((HELPERS[0], NAME)), *settings(SERVER), "--runs", work / "runs-helper"]
    start = time.monotonic()
    with running(work, "coordinator", "coordinator", "quickstart-server", "--host", COORDINATOR[0], "--port", COORDINATOR[1],
                 "--no-plots", "--fresh", *where) as coordinator, running(work, "helper", *helper):  # fmt: skip
        board.plug_in()
        try:
            board.wait_for(rf"this board is {NAME} of fleet", 900 * SLOW)
            print(f"  first boot done after {after(start, board)}", flush=True)
            board.wait_for(r"Started edgegossip-node\.service", 900 * SLOW)
            print(f"  at the coordinator's TLS front end after {after(start, board)}", flush=True)
            board.wait_until(
                lambda: str(coordinator.poll() is not None or ""), "end of the coordinator's run", 3000 * SLOW
            )
            print(f"  round done after {after(start, board)}", flush=True)
        finally:
            board.unplug()
        if coordinator.returncode:
            raise Stopped(f"the coordinator ended with {coordinator.returncode}; see {work / 'coordinator.log'}")
    heard = records(newest(runs), NAME)
    if not heard or "train/loss" not in heard[0]:
        raise Stopped(f"the coordinator has no record of {NAME} in {newest(runs)}")
    return f"loss {heard[0]['train/loss']:.3f}, and at the coordinator the profile of {profile_of(heard, NAME)}"


def mesh(work: Path, cache: Path) -> str:
    """The board of the stage before with another bundle: rounds of a mesh, a power cut in the
    middle of one, and rounds again. The others count it out and go on; it goes on from its
    checkpoint, in their round."""
    card, here = work / "card-mesh.img", work / "runs-a"
    card.unlink(missing_ok=True)
    for old in (here, work / "runs-b"):
        shutil.rmtree(old, ignore_errors=True)
    disk.copy_sparse(work / "card.img", card)  # so that this stage can be done again
    board = Board(work, card, reaches=(FOUNDER, THIRD), listens=7700)
    board.insert_bundle(work / "mesh.kit")
    start = time.monotonic()
    with running(work, "host-a", *_founder(work, here)) as first, running(work, "host-b", *_joins(work)) as third:
        board.plug_in()
        try:
            _reach(board, MESH_ROUNDS)
            board.unplug()
            cut = rounds_of(here, HELPERS[0])
            print(f"  power cut in round {cut + 1} after {after(start, board)}", flush=True)
            board.plug_in()
            words = board.wait_for(r"going on with /var/lib/edgegossip/runs/\S+", 3000 * SLOW)
            print(f"  {NAME} says after {after(start, board)}: {words}", flush=True)
            alone = rounds_of(here, HELPERS[0])
            if alone <= cut + 1:
                raise Stopped(f"the others did not go on without it: round {alone}, power cut in round {cut + 1}")
            _reach(board, alone + MESH_ROUNDS)
        finally:
            board.unplug()
        if first.poll() is not None or third.poll() is not None:
            raise Stopped(f"the others ended with {first.poll()} and {third.poll()}; see {work / 'host-a.log'}")
    profile = profile_of(records(newest(here), HELPERS[0]), HELPERS[0])
    return (
        f"power cut in round {cut + 1} of three boards, back in round {alone} of the others, then all three; {profile}"
    )


def _reach(board: Board, round: int) -> None:
    """Until the board itself has done this round, which takes all three."""
    done = rf"round (\d+)/{RUN_ROUNDS} "
    board.wait_until(lambda: str(board.largest(done) >= round or ""), f"round {round} on the console", 3000 * SLOW)


def _founder(work: Path, runs: Path) -> list[str | Path]:
    name, listen = HELPERS[0], ":".join(map(str, FOUNDER))
    node = ["node", "quickstart-gossip", "--name", name, "--members", ",".join((*HELPERS, NAME)), "--listen", listen]
    return [*node, "--identity", work / "fleet/boards" / name, *settings(MESH), "--runs", runs, "--fresh"]


def _joins(work: Path) -> list[str | Path]:
    name, listen = HELPERS[1], ":".join(map(str, THIRD))
    node = ["node", "--join", ":".join(map(str, FOUNDER)), "--name", name, "--listen", listen]
    return [*node, "--identity", work / "fleet/boards" / name, "--runs", work / "runs-b", "--fresh"]


def accept(work: Path, cache: Path) -> str:
    """`edgegossip accept` on the booted image, in place of its services: a report and its page."""
    card, there = work / "card-accept.img", Path("/var/lib/accept.json")
    new_card(work / "base.img", card)
    program = "/usr/bin/env PYTHONPATH=/opt/edgegossip/current/site HOME=/root /usr/bin/python3 -s -m edgegossip"
    board = Board(work, card, command=f"{program} accept --profile {BOARD} -o {there}")
    board.plug_in()
    try:
        board.wait_for(rf"wrote {there}, and beside it the page", 3600 * SLOW)
        board.wait_for_end(600 * SLOW)
    finally:
        board.unplug()
    _, root = configure.layout(card)
    for file in (there, there.with_suffix(".html")):
        run(["debugfs", "-R", f"dump {file} {work / file.name}", f"{card}?offset={root.start}"], 120)
    report = json.loads((work / there.name).read_text())
    if report["kind"] != "emulated" or report["sections"]["isa"]["used"] != "neon":
        raise Stopped(f"the report is of a machine that is {report['kind']}: {report['sections']['isa']}")
    if wrong := report["sections"]["bits"]["wrong"]:
        raise Stopped(f"bits: {wrong}")
    if page(report) != (work / "accept.html").read_text():
        raise Stopped("the page is not the report's")
    return f"{', '.join(report['sections'])} in {report['seconds']:.0f} s, {report['bad']} to put right"


def raspi3b(work: Path, cache: Path) -> str:
    """The same image on an emulated Raspberry Pi 3, from its SD card slot with its device tree, to
    the end of first boot."""
    card = work / "card-raspi3b.img"
    new_card(work / "pi-01.img", card)
    board = Board(work, card, machine="raspi3b")
    board.plug_in()
    try:
        return board.wait_for(rf"this board is {NAME} of fleet .*", 1800 * SLOW).strip()
    finally:
        board.unplug()


STAGES: tuple[Callable[[Path, Path], str], ...] = (build, files, bundles, server, mesh, accept, raspi3b)


@contextmanager
def running(work: Path, log: str, *arguments: str | Path | int) -> Iterator[subprocess.Popen[bytes]]:
    """A board that is a process here. It gives way to the emulator, which does a hundredth of its
    work in the same time."""
    command = ["nice", "-n", "19", *edgegossip(*map(str, arguments))]
    with open(work / f"{log}.log", "wb") as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def after(start: float, board: Board) -> str:
    return f"{time.monotonic() - start:.0f} s ({board.cpu_s:.0f} s of the emulator's CPU)"


def newest(runs: Path) -> Path:
    folders = sorted(runs.glob("*/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    if not folders:
        raise Stopped(f"no run in {runs}")
    return folders[-1].parent


def records(run: Path, name: str) -> list[dict[str, Any]]:
    return [r for r in lines_of((run / "metrics.jsonl").read_text()) if r["node"] == name]


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def rounds_of(runs: Path, name: str) -> int:
    try:
        return max((int(r["step"]) + 1 for r in records(newest(runs), name)), default=0)
    except Stopped:
        return 0


def profile_of(lines: list[dict[str, Any]], name: str) -> str:
    """Seconds and bytes of a board's first record. Raises Stopped when something is missing."""
    found = [r for r in lines if r["node"] == name and "time/compute_s" in r]
    if not found:
        raise Stopped(f"there is no profile of {name}")
    keys = ("time/compute_s", "time/encode_s", "time/transmit_s", "net/sent_bytes")
    values = {key: found[0].get(key, 0.0) for key in keys}
    if not all(value > 0 for value in values.values()):
        raise Stopped(f"the profile of {name} is not whole: {values}")
    return f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items())
