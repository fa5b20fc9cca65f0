"""A cell on boards that follow this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.fleet.launch.admission import boards_of, find_fleet
from edgegossip.fleet.launch.preflight import FLEET, check_exposure
from edgegossip.lab.scale import measure
from edgegossip.lab.scale.boards.desk import Desk, HandedIn, Server
from edgegossip.lab.scale.boards.follow import PATIENCE_S
from edgegossip.lab.scale.cells import Cell
from edgegossip.mesh import address as addresses
from edgegossip.node.spec import check_names, make_algorithm
from edgegossip.security.identity import Identity
from edgegossip.telemetry.lines import LogText, MetricsRecord, parse_record
from edgegossip.types import ConfigError, NodeId, RunError

ANNOUNCE_S = 5.0
JOIN_S = 600.0  # for boards that are not there
SILENT_S = 120.0  # a board that has not asked for so long while it should run is lost: see follow.RUNNING_ASK_S
LONGEST_S = 4 * 3600.0  # a cell

Say = Callable[[str], None]


class Boards:
    """Implements campaign.Place."""

    def __init__(self, names: str, listen: str, fleet: Path | None, insecure: bool, say: Say) -> None:
        """`names`: a,b,...; empty: all boards of the fleet. Raises ConfigError, HostError,
        DataError."""
        identity, known, _ = _fleet(fleet, insecure)
        self._names = _named(names) or known
        if not self._names:
            raise ConfigError(
                "--on boards: name the boards with --boards, or make a fleet with `edgegossip fleet init`"
            )
        check_names("--boards", self._names)
        if strangers := [name for name in self._names if known and name not in known]:
            raise ConfigError(
                f"--boards: {strangers[0]} is not a board of the fleet: add it with `edgegossip fleet add`"
            )
        check_exposure(addresses.parse(listen, "--listen", any_port=True).host, insecure or identity is not None)
        self._desk, self._say = Desk(self._names), say
        self._server = Server(self._desk, listen, None if identity is None else Identity.load(identity))
        self._server.start()
        how = "--identity IDENTITY" if identity is not None else "--insecure" if insecure else ""
        say(f"boards join with: edgegossip scale --follow {self._server.address} --name NAME {how}".rstrip())

    @property
    def address(self) -> str:
        return self._server.address

    def check(self, cell: Cell) -> None:
        if cell.scheme.server:
            raise ConfigError(
                f"{cell.scheme.name}: --on boards plays schemes without a coordinator; use `edgegossip coordinator` for it"
            )
        if cell.devices > len(self._names):
            raise ConfigError(
                f"--devices {cell.devices}: there are {len(self._names)} boards ({', '.join(self._names)})"
            )
        training.check(cell.recipe)
        make_algorithm(cell.recipe)

    def run(self, cell: Cell) -> dict[str, Any]:
        names = self._names[: cell.devices]
        self._await(names)
        self._desk.begin(cell.key, recipes.to_toml(cell.recipe), names)
        try:
            found = self._gather(names)
        finally:
            self._desk.end()
        for name in names:
            if found[name].code:
                raise RunError(
                    f"{name}: {found[name].reason or f'its process ended with exit code {found[name].code}'}"
                )
        try:
            records = [record for name in names for record in _records(name, found[name])]
            row, curve = measure.of_records(cell, records, names)
        except ValueError as error:
            raise RunError(str(error)) from None
        rates = [result.accuracy for result in found.values() if result.accuracy is not None]
        row["accuracy"] = sum(rates) / len(rates) if rates else None
        return {"row": row, "curve": curve, "marks": [], "links": {}}

    def close(self, over: bool) -> None:
        """`over`: boards are told so, and end. Else they stay for who goes on."""
        if over:
            self._desk.finish()
            time.sleep(2.5)  # boards ask every second: they are to hear it
        self._server.stop()
        if not over:
            self._say(f"boards go on asking here for {PATIENCE_S / 60:.0f} minutes")

    def _await(self, names: Sequence[NodeId]) -> None:
        """Until all of them ask. Raises RunError."""
        until_s = time.monotonic() + JOIN_S
        while missing := self._desk.missing(names):
            if time.monotonic() > until_s:
                raise RunError(f"{', '.join(missing)} did not come within {JOIN_S:.0f} s")
            self._say(f"waiting for {', '.join(missing)}")
            stop_s = time.monotonic() + ANNOUNCE_S
            while self._desk.missing(names) and time.monotonic() < stop_s:
                time.sleep(0.2)

    def _gather(self, names: Sequence[NodeId]) -> Mapping[NodeId, HandedIn]:
        """What they hand in. Once the first has, the others get SILENT_S. Raises RunError, also
        when one is lost."""
        until_s = time.monotonic() + LONGEST_S
        hurried = False
        while True:
            found = self._desk.wait(1.0)
            if missing := [name for name in names if name not in found]:
                if found and not hurried:
                    until_s, hurried = min(until_s, time.monotonic() + SILENT_S), True
                lost = self._desk.silent(missing, SILENT_S)
                if lost or time.monotonic() > until_s:
                    failed = [f"{name}: {result.reason}" for name, result in found.items() if result.code]
                    why = f"lost {', '.join(lost)}: not heard of for {SILENT_S:.0f} s"
                    raise RunError((failed or [why if lost else f"{', '.join(missing)} handed in no records"])[0])
                continue
            return found


def members(names: str, fleet: Path | None, insecure: bool) -> dict[str, Any]:
    """What a cell's result depends on: `boards`, who takes part, and `fleet`, its id, empty without
    TLS. Raises ConfigError, HostError, DataError, UsageError."""
    _, known, fleet_id = _fleet(fleet, insecure)
    return {"boards": _named(names) or known, "fleet": fleet_id}


def _named(names: str) -> tuple[NodeId, ...]:
    return tuple(filter(None, names.split(",")))


def _fleet(fleet: Path | None, insecure: bool) -> tuple[Path | None, tuple[NodeId, ...], str]:
    """This machine's identity, the boards, and the id, of the fleet that is served."""
    identity = find_fleet(fleet, None, insecure)
    if identity is None:
        return None, (), ""
    return identity, boards_of(fleet or Path(FLEET)), Identity.load(identity).fleet


def _records(name: NodeId, handed_in: HandedIn) -> list[MetricsRecord]:
    """Its own lines only, whatever else it says."""
    parsed = (parse_record(line, node=name) for line in handed_in.lines)
    return [r for r in parsed if not isinstance(r, LogText) and isinstance(r, MetricsRecord) and r.node == name]
