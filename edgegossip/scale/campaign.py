"""Runs a whole scalability run, as `edgegossip scale` asks for it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from edgegossip import recipe as recipes
from edgegossip.recipe import Recipe
from edgegossip.report.style import Figures
from edgegossip.report.units import seconds_text
from edgegossip.scale import emulated, summary
from edgegossip.scale.cells import DEFAULT_SCHEMES, Backend, Cell, make_cells, parse_devices, parse_schemes
from edgegossip.scale.devices import load_device, load_fleet, parse_rate, rate_text
from edgegossip.sweep.campaign import Campaign, Say
from edgegossip.sweep.results import Result
from edgegossip.sweep.table import as_markdown, as_text, write_tables
from edgegossip.telemetry.machine import environment
from edgegossip.types import ConfigError, DataError, EdgegossipError, HostError
from edgegossip.untrusted import printable

RATE, LISTEN = "100mbit", "127.0.0.1:7800"
ON = ("netns", "model", "boards")


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
    slower: float | None = None  # netns: than this machine's cores the boards are; None: as the profile says
    device: str = ""  # netns, model: whose profile; empty: emulated.BOARD, unless `slower` or a fleet is given
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
    return ScaleCampaign(folder, cells, say, warn, options, base).run()


def plan(options: ScaleOptions) -> tuple[Recipe, list[Cell]]:
    """Return the base recipe and the cells. Raises ConfigError, DataError."""
    if options.on not in ON:
        raise ConfigError(f"--on {options.on}: one of {', '.join(ON)}")
    base = recipes.load(options.recipe, options.settings)
    _check_options(options)
    how = _how(options, base)
    named = parse_schemes(options.schemes or ",".join(DEFAULT_SCHEMES))
    return base, make_cells(
        base, named, parse_devices(options.devices), options.on, how, examples_of(base), options.rounds
    )


def _check_options(options: ScaleOptions) -> None:
    """Raises ConfigError for an option that would change nothing there."""
    given: Mapping[str, tuple[bool, tuple[str, ...]]] = {
        "--device": (bool(options.device), ("netns", "model")),
        "--profile": (bool(options.fleet), ("model",)),
        "--rate": (bool(options.rate), ("netns", "model")),
        "--slower": (options.slower is not None, ("netns",)),
        "--names": (bool(options.boards), ("boards",)),
        "--listen": (bool(options.listen), ("boards",)),
        "--fleet": (options.security[0] is not None, ("boards",)),
        "--insecure": (options.security[1], ("boards",)),
        "--link": (options.link != "shared", ("netns", "model")),
    }
    for option, (said, where) in given.items():
        if said and options.on not in where:
            raise ConfigError(
                f"{option} says nothing --on {options.on}: leave it out, or say --on {' or '.join(where)}"
            )
    if options.slower is not None and (options.device or options.fleet):
        raise ConfigError("--slower is of this machine's cores; a profile has its own rates: leave one out")
    if options.device and options.fleet:
        raise ConfigError("--device and --profile: a fleet says which boards it has; leave one out")


def _how(options: ScaleOptions, base: Recipe) -> dict[str, Any]:
    """What decides a cell's result besides its recipe. A profile counts by what is in it: it may be
    calibrated anew."""
    if options.on == "boards":
        from edgegossip.scale.job_server import members

        return members(options.boards, *options.security)
    how: dict[str, Any] = {"rate_bps": _rate_bps(options), "link": options.link, "slower": options.slower or 1.0}
    device = _device(options)
    if options.on == "model" or device:
        how |= {"device": device, "fleet": options.fleet}
    profiles: list[Any] = [load_device(device)] if device else []
    if profiles and options.link == "each" and how["rate_bps"] > profiles[0].link_bits_per_s:
        own = rate_text(profiles[0].link_bits_per_s)
        raise ConfigError(f"--rate {rate_text(how['rate_bps'])} --link each: the interface of a {device} does {own}")
    if options.fleet:
        fleet = load_fleet(options.fleet)
        profiles += [fleet, *(load_device(name) for name, _ in fleet.boards)]
    if profiles:
        how["profiles"] = hashlib.sha256(repr(profiles).encode()).hexdigest()[:16]
    if options.on == "netns" and device:
        how["workload"] = emulated.workload_of(base)
    return how


def _device(options: ScaleOptions) -> str:
    """The profile of every board; empty: cores of this machine, or a fleet's."""
    if options.on == "boards" or options.fleet or options.slower is not None:
        return ""
    return options.device or emulated.BOARD


def _rate_bps(options: ScaleOptions) -> float:
    """Of the link: what is asked for, else the fleet's. Each byte counts once, however often it
    crosses the air."""
    if options.rate or options.on != "model" or not options.fleet:
        return parse_rate(options.rate or RATE)
    if options.link == "each":
        raise ConfigError(
            f"--profile {options.fleet} --link each: say the --rate of a link; the fleet's is of what all share"
        )
    link = load_fleet(options.fleet).link
    if link.shared_bits_per_s is None:
        raise ConfigError(f"--profile {options.fleet}: its boards share no link; say --link each and --rate")
    return link.shared_bits_per_s / link.crossings


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
        self, folder: Path, cells: Sequence[Cell], say: Say, warn: Say, options: ScaleOptions, base: Recipe
    ) -> None:
        """`base`: the recipe that all cells are made of."""
        super().__init__(folder, cells, options.figures, say, warn)
        self._options, self._base = options, base
        self._number = 0  # cells that are done or failed

    @override
    def is_done(self, result: Result | None) -> bool:
        return result is not None and result["state"] == "done"

    @override
    def execute(self, missing: Sequence[Cell]) -> Generator[tuple[Cell, Result]]:
        backend, over = _backend(self._options, self.folder, self.results, self.say), False
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

    @override
    def tabulate(self) -> dict[str, Any]:
        options, base = self._options, self._base
        rows = rows_of(self.cases, self.results)
        failed = [
            {"scheme": cell.scheme.name, "devices": cell.devices, "reason": self.results[cell.key]["reason"]}
            for cell in self.cases
            if self.results.get(cell.key, {}).get("state") == "failed"
        ]
        epoch = f"{base.run.name}: {examples_of(base)} examples, batches of {base.training.batch_size}"
        if "rate_bps" in self.cases[0].how:
            link = "one link that all share" if options.link == "shared" else "a link each"
            epoch += _emulated(self.cases[0], rows)
            epoch += f", {rate_text(self.cases[0].how['rate_bps'])}, {link}"
        verdicts, notes = summary.verdicts(rows), summary.notes(rows, epoch)
        document = {
            "scale": str(self.folder),
            "recipe": base.run.name,
            "on": options.on,
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


def _backend(options: ScaleOptions, folder: Path, results: Mapping[str, Mapping[str, Any]], say: Say) -> Backend:
    if options.on == "model":
        from edgegossip.scale.model import ModelBackend

        return ModelBackend(_device(options), options.fleet)
    if options.on == "boards":
        from edgegossip.scale.job_server import BoardsBackend

        return BoardsBackend(options.boards, options.listen or LISTEN, *options.security, say)
    from edgegossip.scale.netns.run_cell import NetnsBackend

    return NetnsBackend(folder / "runs", emulated.known(results), say)


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


def _emulated(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> str:
    """Which boards they were."""
    device = cell.how.get("device", "")
    found = {f"{row['slower']:.3g}": row["slower"] for row in rows if row.get("slower")} or {
        "": cell.how.get("slower", 1.0)
    }
    slower = min(found.values())
    times = f"{' to '.join(f'{s:.3g}' for s in sorted({slower, max(found.values())}))} times slower than a core here"
    if not device:
        return f", boards {times}" if slower != 1.0 else ""
    return f", boards: {device}" + (f", {times}" if cell.on == "netns" else "")
