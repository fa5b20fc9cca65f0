"""One server run each way: our coordinator with our boards, and Flower's own programs with FedAvg.
Both train nothing."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from edgegossip import recipe as recipes
from edgegossip.flower.superlink import QUIET, answers, free_port
from edgegossip.types import HostError, NodeId, Round, RunError
from lab.bench import processes
from lab.bench.cases import parse_codec
from lab.bench.server_board import TrivialWorkload, layout_of

PATIENCE_S = 600.0  # for one stock run; 18 SuperNodes that import torch on two cores take minutes
COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Load:
    """Says what is run: boards, values of the model, its tensors, rounds (the first of which is not
    timed)."""

    nodes: int
    values: int
    tensors: int
    rounds: int
    codec: str = "fp32"


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds one run's figures. Seconds are medians of rounds; CPU is of all processes, a round."""

    seconds_per_round: float
    cpu_s: float
    client_rss_bytes: int  # the largest board's, with all processes that it starts


class _Rounds:
    """A sink that notes when the coordinator finished each round, and the CPU of the whole fleet
    after the first and last."""

    def __init__(self, load: Load) -> None:
        self._load, self.fleet = load, list[psutil.Process]()
        self.seconds: list[float] = []
        self.cpu_s: list[float] = []
        self.lost: list[str] = []

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Any], ago_s: float = 0.0) -> None:
        if node != COORDINATOR or "time/round_s" not in values:
            return
        self.seconds.append(float(values["time/round_s"]))
        if step in (0, self._load.rounds - 1):
            own = psutil.Process().cpu_times()
            self.cpu_s.append(own.user + own.system + processes.cpu_s(self.fleet))

    def event(self, node: NodeId, name: str, text: str, **fields: Any) -> None:
        if name in ("peer-down", "refused"):
            self.lost.append(text)

    def close(self) -> None: ...


def run_ours(load: Load) -> Figures:
    """Run our coordinator and boards, each a process of its own. Raises RunError when a board was
    lost."""
    from edgegossip.flower import Coordinator

    name, params = parse_codec(load.codec)
    boards = [f"board-{k:02}" for k in range(load.nodes)]
    recipe = recipes.from_dict(
        {
            "run": {"mode": "server", "nodes": load.nodes, "rounds": load.rounds},
            "codec": {"name": name, "params": params},
            "evaluation": {"every": load.rounds},
        }
    )
    layout, notes = layout_of(load.values, load.tensors), _Rounds(load)
    with _folder() as folder:
        coordinator = Coordinator(recipe, layout, TrivialWorkload(layout).initial(1), boards, notes, folder)
        children: list[psutil.Popen] = []
        try:
            address = coordinator.start()
            for board in boards:
                shape = [str(load.values), str(load.tensors), load.codec]
                command = [sys.executable, "-m", "lab.bench.server_board", board, address, *shape]
                children.append(processes.start(command, folder / f"{board}.log", {}))
            notes.fleet = psutil.Process().children()  # the boards and the SuperLink
            with processes.PeakMemory(children) as memory:
                if not coordinator.wait(PATIENCE_S):
                    raise RunError(f"{load.rounds} rounds took more than {PATIENCE_S:.0f} s")
        finally:
            coordinator.stop()
            processes.stop(children)
    if notes.lost:
        raise RunError(f"a board failed within the benchmark: {notes.lost[0]}")
    return Figures(median(notes.seconds[1:]), _a_round(notes.cpu_s, load), memory.bytes())


def run_stock(load: Load) -> Figures:
    """Run flower-superlink, flower-supernode and FedAvg as they come. Raises RunError when the run
    does not get on."""
    from edgegossip.flower._private.runtime import start_run
    from lab.bench import stock_app

    port = free_port("127.0.0.1", 0)
    with _folder() as folder:
        environment = {**QUIET, "FLWR_HOME": str(folder / "home")}
        address, times = f"127.0.0.1:{port}", folder / "times"
        arguments = ["--insecure", "--host", "127.0.0.1", "--port", str(port)]
        link = _stock("flower-superlink", arguments, folder, environment)
        nodes: list[psutil.Popen] = []
        try:
            if not answers(address, lambda: _alive(link)):
                raise RunError("stock Flower's SuperLink did not come up within 60 s")
            for _ in range(load.nodes):
                arguments = ["--insecure", "--superlink", address, "--port", str(free_port("127.0.0.1", 0))]
                nodes.append(_stock("flower-supernode", arguments, folder, environment))
            config = {"values": load.values, "tensors": load.tensors, "nodes": load.nodes}
            app = Path(stock_app.__file__).read_bytes()
            start_run(address, None, {**config, "rounds": load.rounds, "times": str(times)}, app)
            with processes.PeakMemory(nodes) as memory:
                ends, cpu_s = _follow(times, load, [link, *nodes])
        except BaseException:
            _keep_log(folder)
            raise
        finally:
            processes.stop([link, *nodes])
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    return Figures(median(gaps[1:]), _a_round(cpu_s, load), memory.bytes())


def _a_round(cpu_s: Sequence[float], load: Load) -> float:
    """From the end of the first round to that of the last."""
    return (cpu_s[-1] - cpu_s[0]) / (load.rounds - 1)


def _follow(times: Path, load: Load, fleet: Sequence[psutil.Popen]) -> tuple[list[float], list[float]]:
    """Ends of the rounds (the start first) on the wall clock, and the fleet's CPU seconds after the
    first and the last."""
    until, cpu_s, seen = time.monotonic() + PATIENCE_S, list[float](), 0
    while time.monotonic() < until:
        lines = times.read_text().splitlines() if times.exists() else []
        if len(lines) > seen:
            seen = len(lines)
            if seen >= 2 and (not cpu_s or seen == load.rounds + 1):
                cpu_s.append(processes.cpu_s(fleet))
        if seen == load.rounds + 1:
            return [float(line.split()[1]) for line in lines], cpu_s
        for process in fleet:
            if process.poll() is not None:
                raise RunError(f"a stock Flower process ended with status {process.returncode}")
        time.sleep(0.1)
    raise RunError(f"{load.rounds} rounds of stock Flower took more than {PATIENCE_S:.0f} s")


def _stock(program: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> psutil.Popen:
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        raise HostError(f"{program} is not installed beside this Python: pip install flwr==1.41.0")
    environment = {**environment, "PATH": f"{path.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    return processes.start([str(path), *arguments], folder / f"{program}.log", environment)


def _alive(link: psutil.Popen) -> None:
    if (status := link.poll()) is not None:
        raise RunError(f"stock Flower's SuperLink ended with status {status}")


def _keep_log(folder: Path) -> None:
    """The last words of a stock process that failed."""
    for log in sorted(folder.glob("*.log")):
        sys.stderr.write(f"{log.name}: ...{log.read_text(errors='replace')[-2000:]}\n")


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="edgegossip-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
