"""Runs a whole scalability run, as `edgegossip scale` asks for it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip import recipe as recipes
from edgegossip.recipe import Recipe
from edgegossip.report.style import Figures
from edgegossip.report.units import seconds_text
from edgegossip.scale import summary
from edgegossip.scale.cells import DEFAULT_SCHEMES, Backend, Cell, make_cells, parse_devices, parse_schemes
from edgegossip.scale.devices import BOARD, FleetProfile, load_device, load_fleet, parse_rate, rate_text
from edgegossip.sweep.campaign import Campaign, Say
from edgegossip.sweep.results import Result
from edgegossip.sweep.table import as_markdown, as_text, write_tables
from edgegossip.telemetry.machine import environment
from edgegossip.types import ConfigError, DataError, EdgegossipError, HostError
from edgegossip.untrusted import printable

RATE, LISTEN = "100mbit", "127.0.0.1:7800"
ON = ("model", "boards")


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Holds what the command line asks of a scalability run."""

    recipe: str
    settings: tuple[str, ...]
    devices: str
    schemes: str
    on: str
    rate: str  # empty: that of the fleet, or RATE
    link: str
    rounds: int  # counted ones a cell at most; 0: an epoch
    out: Path | None
    figures: Figures
    device: str = ""  # model: whose profile; empty: BOARD, unless a fleet is given
    fleet: str = ""  # model: a fleet's profile
    boards: str = ""  # boards: their names
    listen: str = ""  # boards: where they come to; empty: LISTEN
    security: tuple[Path | None, bool] = (None, False)  # boards: folder of the fleet; without TLS


def run(options: ScaleOptions, say: Say, warn: Say) -> tuple[dict[str, Any], int]:
    """Run what is missing, cell by cell; then table, verdicts and plots of all that was asked for.

    `say` gets progress and the table, line by line; `warn` what went wrong. Returns the document
    for --json and the exit code: EXIT_DEGRADED when cells failed. Raises EdgegossipError.
    """
    base, cells = plan(options)
    folder = options.out or Path("runs") / f"{base.run.name}-scale-{options.on}"
    return ScaleCampaign(folder, cells, options.figures, say, warn, base, lambda results: _backend(options, say)).run()


def plan(options: ScaleOptions) -> tuple[Recipe, list[Cell]]:
    """Return the base recipe and the cells. Raises ConfigError, DataError."""
    if options.on not in ON:
        raise ConfigError(f"--on {options.on}: one of {', '.join(ON)}")
    base = recipes.load(options.recipe, options.settings)
    _check_options(options)
    how = _how(options)
    named = parse_schemes(options.schemes or ",".join(DEFAULT_SCHEMES))
    return base, make_cells(
        base, named, parse_devices(options.devices), options.on, how, examples_of(base), options.rounds
    )


def _check_options(options: ScaleOptions) -> None:
    """Raises ConfigError for an option that would change nothing there."""
    given = {
        "--device": (bool(options.device), "model"),
        "--profile": (bool(options.fleet), "model"),
        "--rate": (bool(options.rate), "model"),
        "--link": (options.link != "shared", "model"),
        "--names": (bool(options.boards), "boards"),
        "--listen": (bool(options.listen), "boards"),
        "--fleet": (options.security[0] is not None, "boards"),
        "--insecure": (options.security[1], "boards"),
    }
    for option, (said, where) in given.items():
        if said and options.on != where:
            raise ConfigError(f"{option} says nothing --on {options.on}: leave it out, or say --on {where}")
    if options.device and options.fleet:
        raise ConfigError("--device and --profile: a fleet says which boards it has; leave one out")


def _how(options: ScaleOptions) -> dict[str, Any]:
    """What decides a cell's result besides its recipe. A profile counts by what is in it: it may be
    calibrated anew."""
    if options.on == "boards":
        from edgegossip.scale.job_server import members

        return members(options.boards, *options.security)
    if options.fleet:
        fleet = load_fleet(options.fleet)
        profiles: list[Any] = [fleet, *(load_device(name) for name, _ in fleet.boards)]
        return link_of(options.rate or _rate_of(fleet, options.link), options.link, profiles) | {"fleet": options.fleet}
    device = options.device or BOARD
    return link_of(options.rate or RATE, options.link, [load_device(device)]) | {"device": device}


def link_of(rate: str, link: str, profiles: Sequence[Any]) -> dict[str, Any]:
    """Return what cells on this link say of it and of the boards' profiles. Raises ConfigError for
    a rate that the first one's interface does not have."""
    rate_bps = parse_rate(rate)
    own_bps = getattr(profiles[0], "link_bits_per_s", rate_bps) if profiles else rate_bps
    if link == "each" and rate_bps > own_bps:
        own = rate_text(own_bps)
        raise ConfigError(f"--rate {rate_text(rate_bps)} --link each: the interface of a {profiles[0].name} does {own}")
    digest = hashlib.sha256(repr(profiles).encode()).hexdigest()[:16]
    return {"rate_bps": rate_bps, "link": link, "profiles": digest}


def _rate_of(fleet: FleetProfile, link: str) -> str:
    """The fleet's own. Each byte counts once, however often it crosses the air."""
    if link == "each" or fleet.link.shared_bits_per_s is None:
        raise ConfigError(f"--profile {fleet.name}: it says nothing of the links of its boards: say --link and --rate")
    return f"{fleet.link.shared_bits_per_s / fleet.link.crossings:.0f}bit"


def examples_of(recipe: Recipe) -> int:
    """Return how many examples an epoch has. Raises DataError, ConfigError."""
    if recipe.data.train_examples:
        return recipe.data.train_examples
    from edgegossip.training.data import open_data

    return len(open_data(recipe.data).indexed())


class ScaleCampaign(Campaign[Cell]):
    """Runs cells one after the other. One that failed is named in all tables, and run again by the
    same command."""

    FILE, WHAT, FOLDER = "scale.jsonl", "scalability run", "results"

    def __init__(
        self,
        folder: Path,
        cells: Sequence[Cell],
        figures: Figures,
        say: Say,
        warn: Say,
        base: Recipe,
        open_backend: Callable[[Mapping[str, Result]], Backend],
    ) -> None:
        """`base`: the recipe that all cells are made of. `open_backend` gets the results that are
        there, and returns what runs the others."""
        super().__init__(folder, cells, figures, say, warn)
        self._base, self._open_backend = base, open_backend
        self._number = 0  # cells that are done or failed

    @override
    def is_done(self, result: Result | None) -> bool:
        return result is not None and result["state"] == "done"

    @override
    def execute(self, missing: Sequence[Cell]) -> Generator[tuple[Cell, Result]]:
        backend, over = self._open_backend(self.results), False
        try:
            for cell in missing:
                backend.check(cell)
            self._number, total = len(self.cases) - len(missing), len(self.cases)
            self.say(f"{total} cells in {self.folder}: {self._number} done, {len(missing)} to go")
            for cell in missing:
                yield cell, _run_cell(backend, cell, first=cell is missing[0])
            over = True
        finally:
            backend.close(over)

    @override
    def finished(self, case: Cell, result: Result) -> None:
        self._number += 1
        self.say(f"[{self._number}/{len(self.cases)}] {_outcome(case, result)}")

    @override
    def kept(self) -> str:
        return f"what is done is kept in {self.folder}"

    def boards(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Say which boards these are, and what their link is like; "" where they say it best."""
        how = self.cases[0].how
        if "rate_bps" not in how:
            return ""
        link = "one link that all share" if how["link"] == "shared" else "a link each"
        boards = how.get("device") or how.get("fleet") or "cores of this machine"
        return f", boards: {boards}, {rate_text(how['rate_bps'])}, {link}"

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Say what the columns are, and which cells are doubtful."""
        base = self._base
        epoch = f"{base.run.name}: {examples_of(base)} examples, batches of {base.training.batch_size}"
        return summary.notes(rows, epoch + self.boards(rows))

    @override
    def tabulate(self) -> dict[str, Any]:
        rows = rows_of(self.cases, self.results)
        failed = [
            {"scheme": cell.scheme.name, "devices": cell.devices, "reason": self.results[cell.key]["reason"]}
            for cell in self.cases
            if self.results.get(cell.key, {}).get("state") == "failed"
        ]
        verdicts, notes = summary.verdicts(rows), self.notes(rows)
        document = {
            "scale": str(self.folder),
            "recipe": self._base.run.name,
            "on": self.cases[0].on,
            "rows": rows,
            "verdicts": verdicts,
            "failed": failed,
            "environment": environment(),
            "sources": self.sources(),
        }
        cells = summary.cells(rows)
        said = "\n".join(f"- {verdict}" for verdict in verdicts)
        texts = {
            "txt": "\n".join([as_text(cells, notes), "", *verdicts]) + "\n",
            "md": f"{as_markdown(cells, [f'- {note}' for note in notes])}\n{said}\n",
        }
        write_tables(self.folder, document, texts)
        return document

    @override
    def text(self, document: Mapping[str, Any]) -> str:
        return (self.folder / "table.txt").read_text().rstrip()

    @override
    def failures(self, document: Mapping[str, Any]) -> list[str]:
        failed = document["failed"]
        return [f"{one['scheme']} on {one['devices']} failed: {printable(one['reason'])}" for one in failed]

    @override
    def draw(self, document: Mapping[str, Any]) -> list[Path]:
        done = [r for cell in self.cases if (r := self.results.get(cell.key, {})).get("state") == "done"]
        return (
            summary.write_plots(self.folder, document["recipe"], document["rows"], done, self.figures) if done else []
        )


def _backend(options: ScaleOptions, say: Say) -> Backend:
    if options.on == "model":
        from edgegossip.scale.model import ModelBackend

        return ModelBackend(options.device or BOARD, options.fleet)
    from edgegossip.scale.job_server import BoardsBackend

    return BoardsBackend(options.boards, options.listen or LISTEN, *options.security, say)


def _run_cell(backend: Backend, cell: Cell, first: bool) -> dict[str, Any]:
    """Its line in the file of results. Raises what is the caller's own mistake: after the `first`
    cell no other would do better. A later one that fails where others did not is one among them."""
    head = {"key": cell.key, "scheme": cell.scheme.name, "devices": cell.devices, "on": cell.on, "how": dict(cell.how)}
    begun_s = time.monotonic()
    try:
        return {**head, "state": "done", "reason": "", **backend.run(cell), "seconds": time.monotonic() - begun_s}
    except EdgegossipError as error:
        if first and isinstance(error, (ConfigError, DataError, HostError)):
            raise
        return {**head, "state": "failed", "reason": str(error), "seconds": time.monotonic() - begun_s}


def _outcome(cell: Cell, result: Mapping[str, Any]) -> str:
    took = seconds_text(result["seconds"])
    if result["state"] == "failed":
        return f"{cell.name}: failed: {printable(result['reason'])} (after {took})"
    row = result["row"]
    return f"{cell.name}: T {row['t_s']:.2f} s, of it compute {row['cp_s']:.2f} s, transmit {row['tx_s']:.2f} s (took {took})"


def rows_of(cells: Sequence[Cell], results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every cell with a result, failed ones with null figures, compared with
    each other."""
    rows: list[dict[str, Any]] = []
    for cell in cells:
        result = results.get(cell.key)
        if result is None:
            continue
        empty = dict.fromkeys(summary.KEYS)
        rows.append(
            empty | {"scheme": cell.scheme.name, "devices": cell.devices, "on": cell.on} | result.get("row", {})
        )
    return summary.compare(rows)
