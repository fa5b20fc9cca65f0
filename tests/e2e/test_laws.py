"""Some twenty runs of all kinds, each by the command line: nothing in their folders contradicts."""

from __future__ import annotations

import signal
import subprocess
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgegossip.telemetry.run_folder import read_run
from lab.laws.laws import verify
from lab.soak.servers import server_fleet
from tests.e2e.command import Running, edgegossip, free_ports
from tests.e2e.test_restart import FITS
from tests.e2e.test_script import SCRIPT

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")
pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = ("training.local_steps=40", "evaluation.every=20")  # so that boards are killed in the middle
PATIENCE_S = 150.0


@dataclass(frozen=True)
class Kind:
    mode: str
    nodes: int
    fate: Callable[[Kind, Path], None]
    rounds: int = 20
    settings: tuple[str, ...] = ()

    @property
    def sets(self) -> list[str]:
        settings = (f"run.nodes={self.nodes}", f"run.rounds={self.rounds}", *self.settings)
        return [word for setting in settings for word in ("--set", setting)]

    def running(self, runs: Path) -> AbstractContextManager[Running]:
        return edgegossip("run", f"quickstart-{self.mode}", *self.sets, "--no-plots", runs=runs)

    @property
    def words(self) -> str:
        return "-".join(
            [self.fate.__name__, self.mode, str(self.nodes), *(s.rpartition("=")[2] for s in self.settings)]
        )


def ends_well(running: Running, *codes: int) -> None:
    code, out, err = running.finish()
    assert code in codes, (out, err)


def whole(kind: Kind, runs: Path) -> None:
    with kind.running(runs) as running:
        ends_well(running, 0, 8)


def killed(kind: Kind, runs: Path) -> None:
    """The last board dies, for good unless network.restarts says otherwise."""
    with kind.running(runs) as running:
        running.wait_until(lambda: running.rounds_done(5, kind.nodes), PATIENCE_S)
        running.board(f"board-{kind.nodes - 1}").send_signal(signal.SIGKILL)
        ends_well(running, 0, 7, 8)


def asleep(kind: Kind, runs: Path) -> None:
    """A board stands still for some seconds, and is left behind."""
    with kind.running(runs) as running:
        running.wait_until(lambda: running.rounds_done(3, kind.nodes), PATIENCE_S)
        board = running.board("board-1")
        board.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(4)
        board.send_signal(signal.SIGCONT)
        ends_well(running, 0, 7, 8)


def unfinished(kind: Kind, runs: Path) -> None:
    """All of it dies, and nobody goes on with it."""
    with kind.running(runs) as running:
        running.wait_until(lambda: running.rounds_done(5, kind.nodes), PATIENCE_S)
        running.process.kill()


def interrupted(kind: Kind, runs: Path) -> None:
    """Ctrl-C."""
    with kind.running(runs) as running:
        running.wait_until(lambda: running.rounds_done(5, kind.nodes), PATIENCE_S)
        running.process.send_signal(signal.SIGINT)
        ends_well(running, 130)


def resumed(kind: Kind, runs: Path) -> None:
    """All of it dies twice, and goes on."""
    unfinished(kind, runs)
    for last in (False, True):
        with edgegossip("run", "--resume", str(next(runs.iterdir())), "--no-plots", runs=runs) as running:
            if last:
                ends_well(running, 0, 8)
            else:
                running.wait_until(lambda: running.rounds_done(12, kind.nodes), PATIENCE_S)
                running.process.kill()


def scripted(kind: Kind, runs: Path) -> None:
    """A user's script trains."""
    runs.mkdir(exist_ok=True)
    script = runs.parent / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    sets = [*kind.sets, "--set", f"run.mode={kind.mode}"]
    with edgegossip("run", str(script), *sets, "--no-plots", "--", "--seed", "{index}", runs=runs) as running:
        ends_well(running, 0, 8)


def by_hand(kind: Kind, runs: Path) -> None:
    """A command a board, each with a folder of its own; in server mode the coordinator and a board
    die and come back."""
    names = [f"board-{k}" for k in range(kind.nodes)]
    if kind.mode == "server":
        runs.mkdir()
        settings = (f"run.nodes={kind.nodes}", f"run.rounds={kind.rounds}", *kind.settings)
        with server_fleet(runs, names, settings, PATIENCE_S) as fleet:
            for name in fleet.names:
                fleet.start(name)
            for round, name in ((5, "coordinator"), (12, names[-1])):
                fleet.until_round(round)
                fleet.kill(name)
                fleet.start(name)
            fleet.finish()
        return
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with ExitStack() as stack:
        boards = []
        for name in names:
            peers = [w for other in names if other != name for w in ("--peer", f"{other}=127.0.0.1:{ports[other]}")]
            where = ("--name", name, "--listen", f"127.0.0.1:{ports[name]}", *peers)
            boards.append(
                stack.enter_context(edgegossip("node", "quickstart-gossip", *where, *kind.sets, runs=runs / name))
            )
        for board in boards:
            ends_well(board, 0)


def of(algorithm: str, *more: str) -> tuple[str, ...]:
    topology, _, codec = FITS.get(algorithm, ("ring", 4, "minmax8"))
    return (f"gossip.algorithm={algorithm}", f"gossip.topology={topology}", f"codec.name={codec}", *more)


KINDS = [
    Kind("gossip", 18, whole, settings=of("ad-psgd", "gossip.topology=ring")),
    Kind("gossip", 12, whole, settings=("gossip.topology=torus", "codec.name=4-bit-elastiquant")),
    Kind("gossip", 6, whole, settings=of("sgp")),
    Kind("gossip", 3, whole, 40, ("gossip.momentum=quasi-global", "training.momentum=0")),
    Kind("gossip", 3, whole, 5, ("data.partition=dirichlet", "data.alpha=0.1", "evaluation.every=1")),
    Kind("gossip", 3, whole, 20, ("network.tls=on", "codec.name=topk")),
    Kind("gossip", 4, killed, 60, of("dpsgd", *LONG)),
    Kind("gossip", 8, killed, 60, of("choco-sgd", "network.restarts=1", *LONG)),
    Kind("gossip", 6, killed, 60, of("sgp", "network.restarts=2", "checkpoint.every=0", *LONG)),
    Kind("gossip", 4, asleep, 60, ("gossip.deadline_s=0.5", *LONG)),
    Kind("gossip", 3, unfinished, 90, LONG),
    Kind("gossip", 4, resumed, 60, of("ad-psgd", *LONG)),
    Kind("gossip", 3, scripted, 20, ("gossip.algorithm=choco-sgd", "codec.name=minmax8")),
    Kind("gossip", 4, by_hand, 40, of("ad-psgd")),
    Kind("server", 18, whole, 10),
    Kind("server", 8, whole, 20, ("server.fraction=0.5", "codec.name=qsgd")),
    Kind("server", 4, whole, 20, ("server.strategy=krum", "network.tls=on", "codec.name=topk")),
    Kind("server", 3, killed, 60, LONG),
    Kind("server", 3, asleep, 60, ("server.deadline_s=0.5", *LONG)),
    Kind("server", 3, interrupted, 90, LONG),
    Kind("server", 4, resumed, 60, ("codec.name=co3", "server.downlink=8-bit-elastiquant", *LONG)),
    Kind("server", 3, by_hand, 24, ("training.local_steps=2", "codec.name=co3", "server.downlink=8-bit-elastiquant")),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=[kind.words for kind in KINDS])
def test_nothing_contradicts(kind: Kind, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    kind.fate(kind, runs)
    folders = sorted(path.parent for path in runs.glob("**/metrics.jsonl"))
    assert folders
    assert {folder.name: verify(read_run(folder)) for folder in folders} == {folder.name: [] for folder in folders}
