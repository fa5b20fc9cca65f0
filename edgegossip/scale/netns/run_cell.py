"""Runs cells on real processes in network namespaces."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip.fleet.launch.fork_server import MODULES, ForkServer
from edgegossip.fleet.launch.gossip import LocalRun, Machines, run_gossip
from edgegossip.fleet.launch.preflight import preflight
from edgegossip.fleet.launch.run_folders import make_folder
from edgegossip.frame import RUN_ID_BYTES
from edgegossip.node.spec import default_members, make_algorithm
from edgegossip.scale import summary
from edgegossip.scale.cells import WARM_UP, Backend, Cell
from edgegossip.scale.emulated import EmulatedDevice, emulation_key, of_profile
from edgegossip.scale.netns.network import AccessPoint, check_host
from edgegossip.scale.netns.scheduler import BUSY, Exchange, TimeDilationScheduler, Timings
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.sinks import Tee
from edgegossip.telemetry.summary import summarise
from edgegossip.types import ConfigError, RunError

# While boards exchange the cores are as busy as the scheduler takes for in the way, and the link is
# less full than this.
_FULL = 0.85
_UNLIKELY = 1.5  # times slower than a core of this machine


def check(cell: Cell) -> None:
    """Raise ConfigError, DataError or HostError when the cell cannot run here."""
    if cell.scheme.server:
        raise ConfigError(
            f"{cell.scheme.name}: only --on model plays schemes with a coordinator; on boards: `edgegossip coordinator`"
        )
    if make_algorithm(cell.recipe).listens:
        raise ConfigError(
            f"{cell.scheme.name} exchanges while it computes: boards of one machine cannot take turns; say --on boards"
        )
    preflight(cell.recipe, default_members(cell.devices))


def run_cell(
    cell: Cell, runs_dir: Path, fork_server: ForkServer | None = None, device: EmulatedDevice | None = None
) -> dict[str, Any]:
    """Run a cell; return its row and what the plots need. The run folder stays.

    `fork_server`: where boards come from, if it is there already. `device`: what boards are
    like, if the cell does not say it. Raises RunError when boards were lost, HostError."""
    check(cell)
    members = default_members(cell.devices)
    folder = make_folder(cell.recipe, runs_dir, members)
    run_id = secrets.token_bytes(RUN_ID_BYTES)
    folder.write_run(run_id, members)
    cores = max(1, len(os.sched_getaffinity(0)) // cell.recipe.run.threads)
    if device is None:
        device = EmulatedDevice(cell.how["slower"], cell.how["slower"])
    try:
        with (
            AccessPoint(cell.devices, cell.how["rate_bps"], cell.how["link"]) as network,
            tempfile.TemporaryDirectory(prefix="edgegossip-") as temporary,
            TimeDilationScheduler(Path(temporary) / "pace", cell.devices, cores, network, device) as scheduler,
            closing(Tee(folder)) as sink,
        ):
            places = {name: k for k, name in enumerate(members, 1)}
            machines = Machines(
                {name: network.address(k) for name, k in places.items()},
                {name: network.namespace(k) for name, k in places.items()},
                scheduler.path,
                fork_server,
            )
            run = LocalRun(cell.recipe, members, run_id, folder, sink, machines=machines)
            lost = run_gossip(run)
            if scheduler.failure:
                raise RunError(f"the scheduler of the boards failed: {scheduler.failure}")
            if scheduler.hung:
                raise RunError("no board said a word for a quarter of an hour")
        if lost:
            name, why = next(iter(lost.items()))
            raise RunError(f"lost {len(lost)} of {cell.devices} boards, first {name}: {why}")
        result = _result(cell, folder, scheduler.timings)
        result["row"] |= {"slower": device.slower, "played": asdict(device)}
        if device.update_s is not None:
            result["row"]["step_s"] = device.update_s / cell.recipe.training.local_steps
        return result
    finally:
        folder.close()


def _result(cell: Cell, folder: RunFolder, timings: Timings) -> dict[str, Any]:
    data = read_run(folder.path)
    told = summarise(data)
    folder.write_summary(told)
    members = default_members(cell.devices)
    first = first_settled(timings.exchanges[: cell.recipe.run.rounds])
    try:
        row, curve = summary.row_of_records(cell, data.metrics(), members, first, _barriers(timings), _late(timings))
    except ValueError as error:
        raise RunError(str(error)) from None
    row["update_spread"] = _spread(timings, first)
    row["accuracy"] = told["accuracy"]["mean"]
    exchanges = timings.exchanges[first:]
    seconds, carried = sum(e.charged_s for e in exchanges), sum(e.carried_bytes for e in exchanges)
    wall_s = sum(e.seconds for e in exchanges)
    row["exchange"] = {
        "seconds": seconds / len(exchanges),
        "carried_bytes": carried / len(exchanges),
        "rate_share": 8 * carried / (seconds * cell.how["rate_bps"]),
        "cpu_share": sum(e.cpu_s for e in exchanges) / (wall_s * (os.cpu_count() or 1)),
        "dilation": wall_s / seconds,
    }
    row["machine_bound"] = row["exchange"]["cpu_share"] > BUSY and row["exchange"]["rate_share"] < _FULL
    last = [mark for mark in timings.marks if mark["round"] == max(m["round"] for m in timings.marks)]
    return {
        "row": row,
        "curve": curve,
        "marks": last,
        "links": _links(timings, first),
        "exchanges": [asdict(e) for e in exchanges],
    }


def _spread(timings: Timings, first: int) -> float:
    """Of the boards' local updates, as a profile has it."""
    return summary.spread_of([mark["update"] for mark in timings.marks if mark["round"] >= first])


def _barriers(timings: Timings) -> summary.Barriers:
    return {
        (mark["node"], mark["round"]): 1e-9 * (mark["go"] - mark["ready"]) for mark in timings.marks if "go" in mark
    }


def _late(timings: Timings) -> summary.Barriers:
    """What passed on the boards' clocks from a board's own end of a round to that of the last
    one."""
    return {
        (mark["node"], mark["round"]): max(0.0, exchange.charged_s - 1e-9 * (mark["done"] - mark["go"]))
        for round, exchange in enumerate(timings.exchanges)
        for mark in timings.marks
        if mark["round"] == round and "go" in mark and "done" in mark
    }


def first_settled(exchanges: Sequence[Exchange]) -> int:
    """Return the first round that counts: after those of the warm-up, and after the last one in
    which the cores were found to be in the way.

    So all that count are of one dilation; one there is at least. Raises RunError."""
    if len(exchanges) <= WARM_UP:
        raise RunError("the boards did not exchange anything in a round that counts")
    last = exchanges[-1].dilation
    return next(k for k, e in enumerate(exchanges) if k >= WARM_UP and e.dilation == last)


def _links(timings: Timings, first: int) -> dict[str, dict[str, int]]:
    """Bytes from board to board over the counted rounds."""
    sums: dict[str, dict[str, int]] = {}
    for mark in timings.marks:
        if mark["round"] >= first:
            own = sums.setdefault(mark["node"], {})
            for to, (_, size_bytes, _) in mark["sent"].items():
                own[to] = own.get(to, 0) + size_bytes
    return sums


class NetnsBackend(Backend):
    """Runs cells in network namespaces. Run folders go into `runs_dir`. `devices`: boards that
    were emulated before, by `emulated.emulation_key`."""

    def __init__(
        self,
        runs_dir: Path,
        devices: Mapping[str, EmulatedDevice] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Raises HostError where there can be no namespaces."""
        check_host()
        self._runs_dir, self._devices, self._say = runs_dir, dict(devices or {}), say
        self._fork_servers: dict[int, ForkServer] = {}  # by the boards' threads

    @override
    def check(self, cell: Cell) -> None:
        check(cell)

    @override
    def run(self, cell: Cell) -> dict[str, Any]:
        threads = cell.recipe.run.threads
        if threads not in self._fork_servers:
            self._fork_servers[threads] = ForkServer(MODULES["gossip"], threads, self._runs_dir / "fork-server.log")
        return run_cell(cell, self._runs_dir, self._fork_servers[threads], self._device(cell))

    def _device(self, cell: Cell) -> EmulatedDevice | None:
        """A board of the cell's profile, measured once; None without a profile."""
        profile = cell.how.get("device", "")
        if not profile:
            return None
        key = emulation_key(cell.how)
        if key not in self._devices:
            self._say(f"measuring how much slower than a core here a {profile} is")
            found = self._devices[key] = of_profile(cell.recipe, profile)
            self._say(f"a {profile} is {found.slower:.3g} times slower, and {found.handling:.3g} times with messages")
            if found.slower < _UNLIKELY:
                self._say(
                    "that is hardly so: its profile's rate is of larger models than this one; `edgegossip calibrate --recipe` on "
                    "the board measures the recipe's own"
                )
        return self._devices[key]

    @override
    def close(self, over: bool) -> None:
        for fork_server in self._fork_servers.values():
            fork_server.close()
