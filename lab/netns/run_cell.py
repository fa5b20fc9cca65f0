"""Runs cells on real processes in network namespaces."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import override

from edgegossip.fleet.launch.fork_server import MODULES, ForkServer
from edgegossip.fleet.launch.gossip import LocalRun, Machines, run_gossip
from edgegossip.fleet.launch.preflight import preflight
from edgegossip.fleet.launch.run_folders import make_folder
from edgegossip.frame import RUN_ID_BYTES
from edgegossip.node.spec import default_members, make_algorithm
from edgegossip.recipe import Recipe
from edgegossip.report.style import Figures
from edgegossip.scale import summary
from edgegossip.scale.campaign import ScaleCampaign
from edgegossip.scale.cells import WARM_UP, Backend, Cell
from edgegossip.sweep.campaign import Say
from edgegossip.sweep.results import Result
from edgegossip.telemetry.records import MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.sinks import Tee
from edgegossip.telemetry.summary import summarise
from edgegossip.types import ConfigError, NodeId, Round, RunError
from lab.netns.emulated import EmulatedDevice, emulation_key, known, of_profile
from lab.netns.network import AccessPoint, check_host
from lab.netns.scheduler import BUSY, Exchange, TimeDilationScheduler, Timings

# While boards exchange the cores are as busy as the scheduler takes for in the way, and the link is
# less full than this.
_FULL = 0.85
_UNLIKELY = 1.5  # times slower than a core of this machine
_FEW = 3  # rounds
_SPREAD = 0.15
_FREE = 1.05  # of the link's rate

Barriers: TypeAlias = Mapping[tuple[NodeId, Round], float]  # seconds of a board in a round


def check(cell: Cell) -> None:
    """Raise ConfigError, DataError or HostError when the cell cannot run here."""
    if cell.scheme.server:
        raise ConfigError(
            f"{cell.scheme.name}: `edgegossip scale` models schemes with a coordinator; on boards: `edgegossip coordinator`"
        )
    if make_algorithm(cell.recipe).listens:
        raise ConfigError(f"{cell.scheme.name} exchanges while it computes: boards of one machine cannot take turns")
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
                f"lab.netns.dilation:DilatedRuntime,{scheduler.path}",
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
        parts_of = partial(parts_until_the_last, barriers=_barriers(timings), late=_late(timings))
        row, curve = summary.row_of_records(cell, data.metrics(), members, first, parts_of)
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
        "exchanges": [asdict(e) for e in exchanges],
    }


def _spread(timings: Timings, first: int) -> float:
    """Of the boards' local updates, as a profile has it."""
    return summary.spread_of([mark["update"] for mark in timings.marks if mark["round"] >= first])


def parts_until_the_last(
    cell: Cell, records: Sequence[MetricsRecord], barriers: Barriers, late: Barriers
) -> dict[str, float]:
    """Return one board's parts, seconds of an epoch, where all begin to send at the same moment:
    what comes after that is Tx, until the last board has what it needs, as then a board waits while
    frames of the round are on the link, its own or others'.

    A board that is through before others are waits for them in its next round: that is the link's
    in the round before, of the last counted round too, and no part of the first one. `barriers`:
    what a board waited before all began to send; `late`: seconds from a board's own end of a round
    to the last board's."""
    parts = summary.parts_of(cell, records)
    at_barrier = [min(barriers.get((r.node, r.step), 0.0), r.number("time/wait_s") or 0.0) for r in records]
    for_others = [min(s, late.get((r.node, r.step - 1), 0.0)) for s, r in zip(at_barrier, records, strict=True)]
    first, last = (pick(range(len(records)), key=lambda k: records[k].step) for pick in (min, max))
    outside_s = late.get((records[last].node, records[last].step), 0.0) - for_others[first]
    each = cell.epoch_rounds / len(records)
    wait_s = each * (sum(at_barrier) - sum(for_others))
    return parts | {"tx_s": parts["tx_s"] + parts["wait_s"] - wait_s + each * outside_s, "wait_s": wait_s}


def _barriers(timings: Timings) -> Barriers:
    return {
        (mark["node"], mark["round"]): 1e-9 * (mark["go"] - mark["ready"]) for mark in timings.marks if "go" in mark
    }


def _late(timings: Timings) -> Barriers:
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


class NetnsCampaign(ScaleCampaign):
    """Runs cells so, and says of the table what is true of such cells only."""

    @classmethod
    def at(
        cls, folder: Path, cells: Sequence[Cell], figures: Figures, say: Say, warn: Say, base: Recipe
    ) -> NetnsCampaign:
        """Return one whose run folders lie in this folder, too."""

        def backend(results: Mapping[str, Result]) -> Backend:
            return NetnsBackend(folder / "runs", known(results), say)

        return cls(folder, cells, figures, say, warn, base, backend)

    @override
    def boards(self, rows: Sequence[summary.Row]) -> str:
        said = super().boards(rows)
        slower = sorted({f"{row['slower']:.3g}" for row in rows if row.get("slower")}, key=float)
        times = f", {' to '.join(slower[:1] + slower[1:][-1:])} times slower than a core here" if slower else ""
        return said + times

    @override
    def notes(self, rows: Sequence[summary.Row]) -> list[str]:
        return [*super().notes(rows), *doubts(rows)]


def given_s(row: summary.Row) -> float:
    """Return the seconds of T that are given in namespaces: computing and encoding.

    A core does them in no such time; its CPU seconds are scaled until an update takes what the
    device profile says. The others are of the wall, on the network that was played."""
    return float(row["cp_s"] + row["en_s"])


def doubts(rows: Sequence[summary.Row]) -> list[str]:
    """Say what was measured in namespaces and what was not, and which cells are doubtful."""
    said = [
        "netns: real processes; Cp + En are a board's CPU seconds at the speed that its profile or --slower gives, "
        "Tx + De + wait are of the wall on the shaped network"
    ]
    if free := _names(rows, lambda r: (r.get("exchange") or {}).get("rate_share", 0) > _FREE):
        said.append(
            "so little is sent at a time that the first packets, which a link of this rate lets through at once, are much of it, "
            f"so Tx is too short: {free}"
        )
    if few := _names(rows, lambda r: 0 < r.get("counted_rounds", 9) < _FEW):
        said.append(f"only the last one or two rounds count, in the others time was still dilated more and more: {few}")
    if uneven := _names(rows, lambda r: r.get("update_spread", 0) > _SPREAD):
        said.append(f"equal updates took this machine unequally long, so wait is too long: {uneven}")
    if busy := _names(rows, lambda r: bool(r.get("machine_bound"))):
        said.append(f"in the exchange the processors were busy and the link was not, so Tx is too long: {busy}")
    return said


def _names(rows: Sequence[summary.Row], which: Callable[[summary.Row], bool]) -> str:
    """Of the cells that have a result."""
    return ", ".join(f"{r['scheme']} on {r['devices']}" for r in rows if r.get("t_s", 0) is not None and which(r))
