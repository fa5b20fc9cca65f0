"""A whole scalability run: what is missing is run, cell by cell; then the table, the verdicts and
the plots of all that was asked for are made. A cell that fails is named in all of them, and tried
again by the same command.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgegossip import recipe as recipes
from edgegossip.files import write_atomic, write_json
from edgegossip.lab.scale import measure, played, schemes, table
from edgegossip.lab.scale.cells import Cell, make_cells, parse_devices
from edgegossip.lab.scale.devices import load_device, load_fleet
from edgegossip.lab.scale.netns.rates import parse_rate, rate_text
from edgegossip.lab.study import store
from edgegossip.recipe import Recipe
from edgegossip.report.units import printable, seconds_text
from edgegossip.telemetry.environment import environment
from edgegossip.types import EXIT_DEGRADED, EXIT_OK, ConfigError, DataError, EdgegossipError, HostError

FILE, RATE, LISTEN = "scale.jsonl", "100mbit", "127.0.0.1:7800"
ON = ("netns", "model", "boards")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line."""

    recipe: str
    settings: tuple[str, ...]
    devices: str
    schemes: str
    on: str
    rate: str  # empty: that of the fleet, or RATE
    link: str
    rounds: int  # counted ones a cell at most; 0: an epoch
    out: Path | None
    plots: bool
    slower: float | None = None  # netns, model: than this machine's cores the boards are; None: as the profile says
    device: str = ""  # netns, model: whose profile; empty: played.BOARD, unless `slower` or a fleet is given
    fleet: str = ""  # model: a fleet's profile
    boards: str = ""  # boards: their names
    listen: str = ""  # boards: where they come to; empty: LISTEN
    security: tuple[Path | None, bool] = (None, False)  # boards: folder of the fleet; without TLS


class Place(Protocol):
    """Where cells run."""

    def check(self, cell: Cell) -> None:
        """Raises ConfigError, DataError or HostError when it cannot."""

    def run(self, cell: Cell) -> dict[str, Any]:
        """{"row": ..., "curve": ..., and what the plots want}. Raises EdgegossipError."""

    def close(self, over: bool) -> None: ...  # `over`: every cell had its turn


def run(asked: Asked, say: Say, warn: Say) -> tuple[dict[str, Any], int]:
    """Everything. `say` gets progress and the table, line by line; `warn` what went wrong. The
    document for --json and the exit code: EXIT_DEGRADED when cells failed."""
    begun_s = time.monotonic()
    base, cells = plan(asked)
    folder = asked.out or Path("runs") / f"{base.run.name}-scale-{asked.on}"
    with store.Store(folder, FILE, "scalability run") as kept:
        results = store.read(folder, FILE)
        missing = [cell for cell in cells if results.get(cell.key, {}).get("state") != "done"]
        place, over = _place(asked, folder, results, say), False
        try:
            for cell in missing:
                place.check(cell)
            say(f"{len(cells)} cells in {folder}: {len(cells) - len(missing)} done, {len(missing)} to go")
            for number, cell in enumerate(missing, len(cells) - len(missing) + 1):
                results[cell.key] = _run_cell(place, cell, first=cell is missing[0])
                kept.add(results[cell.key])
                say(f"[{number}/{len(cells)}] {_outcome(cell, results[cell.key])}")
            over = True
        except KeyboardInterrupt:
            warn(f"stopped: what is done is kept in {folder}; the same command goes on from there")
            raise
        finally:
            place.close(over)
        document = _write(asked, base, folder, cells, results)
    document["wall_s"] = time.monotonic() - begun_s
    _show(document, folder, cells, results, asked.plots, say, warn)
    return document, EXIT_DEGRADED if document["failed"] else EXIT_OK


def plan(asked: Asked) -> tuple[Recipe, list[Cell]]:
    """The base recipe and the cells. Raises ConfigError, DataError."""
    if asked.on not in ON:
        raise ConfigError(f"--on {asked.on}: one of {', '.join(ON)}")
    base = recipes.load(asked.recipe, asked.settings)
    _check_options(asked)
    how = _how(asked, base)
    named = schemes.parse(asked.schemes or ",".join(schemes.DEFAULT))
    return base, make_cells(base, named, parse_devices(asked.devices), asked.on, how, examples_of(base), asked.rounds)


def _check_options(asked: Asked) -> None:
    """Raises ConfigError for an option that would change nothing there."""
    given: Mapping[str, tuple[bool, tuple[str, ...]]] = {
        "--device": (bool(asked.device), ("netns", "model")),
        "--fleet": (bool(asked.fleet), ("model",)),
        "--rate": (bool(asked.rate), ("netns", "model")),
        "--slower": (asked.slower is not None, ("netns", "model")),
        "--boards": (bool(asked.boards), ("boards",)),
        "--listen": (bool(asked.listen), ("boards",)),
        "--fleet-folder": (asked.security[0] is not None, ("boards",)),
        "--insecure": (asked.security[1], ("boards",)),
        "--link": (asked.link != "shared", ("netns", "model")),
    }
    for option, (said, where) in given.items():
        if said and asked.on not in where:
            raise ConfigError(f"{option} says nothing --on {asked.on}: leave it out, or say --on {' or '.join(where)}")
    if asked.slower is not None and (asked.device or asked.fleet):
        raise ConfigError("--slower is of this machine's cores; a profile has its own rates: leave one out")
    if asked.device and asked.fleet:
        raise ConfigError("--device and --fleet: a fleet says which boards it has; leave one out")


def _how(asked: Asked, base: Recipe) -> dict[str, Any]:
    """What decides a cell's result besides its recipe. A profile counts by what is in it: it may be
    calibrated anew."""
    if asked.on == "boards":
        from edgegossip.lab.scale.boards.place import members

        return members(asked.boards, *asked.security)
    how: dict[str, Any] = {"rate_bps": _rate_bps(asked), "link": asked.link, "slower": asked.slower or 1.0}
    device = _device(asked)
    if asked.on == "model" or device:
        how |= {"device": device, "fleet": asked.fleet}
    profiles: list[Any] = [load_device(device)] if device else []
    if profiles and asked.link == "each" and how["rate_bps"] > profiles[0].link_bits_per_s:
        own = rate_text(profiles[0].link_bits_per_s)
        raise ConfigError(f"--rate {rate_text(how['rate_bps'])} --link each: the interface of a {device} does {own}")
    if asked.fleet:
        fleet = load_fleet(asked.fleet)
        profiles += [fleet, *(load_device(name) for name, _ in fleet.boards)]
    if profiles:
        how["profiles"] = hashlib.sha256(repr(profiles).encode()).hexdigest()[:16]
    if asked.on == "netns" and device:
        how["workload"] = played.workload_of(base)
    return how


def _device(asked: Asked) -> str:
    """The profile of every board; empty: cores of this machine, or a fleet's."""
    if asked.on == "boards" or asked.fleet or asked.slower is not None:
        return ""
    return asked.device or played.BOARD


def _rate_bps(asked: Asked) -> float:
    """Of the link: what is asked for, else the fleet's. Each byte counts once, however often it
    crosses the air."""
    if asked.rate or asked.on != "model" or not asked.fleet:
        return parse_rate(asked.rate or RATE)
    if asked.link == "each":
        raise ConfigError(
            f"--fleet {asked.fleet} --link each: say the --rate of a link; the fleet's is of what all share"
        )
    link = load_fleet(asked.fleet).link
    if link.shared_bits_per_s is None:
        raise ConfigError(f"--fleet {asked.fleet}: its boards share no link; say --link each and --rate")
    return link.shared_bits_per_s / link.crossings


def examples_of(recipe: Recipe) -> int:
    """Of an epoch. Raises DataError, ConfigError."""
    if recipe.data.train_examples:
        return recipe.data.train_examples
    from edgegossip.training.data import open_data

    return len(open_data(recipe.data).indexed())


def _place(asked: Asked, folder: Path, results: Mapping[str, Mapping[str, Any]], say: Say) -> Place:
    if asked.on == "model":
        from edgegossip.lab.scale.model.place import Model

        return Model(_device(asked), asked.fleet)
    if asked.on == "boards":
        from edgegossip.lab.scale.boards.place import Boards

        return Boards(asked.boards, asked.listen or LISTEN, *asked.security, say)
    from edgegossip.lab.scale.netns.run_cell import Netns

    return Netns(folder / "runs", played.known(results), say)


def _run_cell(place: Place, cell: Cell, first: bool) -> dict[str, Any]:
    """Its line in the file of results. Raises what is the caller's own mistake: after the `first`
    cell no other would do better. A later one that fails where others did not is one among them."""
    head = {"key": cell.key, "scheme": cell.scheme.name, "devices": cell.devices, "on": cell.on, "how": dict(cell.how)}
    begun_s = time.monotonic()
    try:
        return {**head, "state": "done", "reason": "", **place.run(cell), "seconds": time.monotonic() - begun_s}
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
    """A row for every cell with a result, failed ones with null figures, compared with each
    other."""
    rows: list[dict[str, Any]] = []
    for cell in cells:
        result = results.get(cell.key)
        if result is None:
            continue
        empty = dict.fromkeys(table.KEYS)
        rows.append(
            empty | {"scheme": cell.scheme.name, "devices": cell.devices, "on": cell.on} | result.get("row", {})
        )
    return measure.compare(rows)


def _write(
    asked: Asked, base: Recipe, folder: Path, cells: Sequence[Cell], results: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """table.txt, table.md and table.json; the document that the last holds."""
    rows = rows_of(cells, results)
    failed = [
        {"scheme": cell.scheme.name, "devices": cell.devices, "reason": results[cell.key]["reason"]}
        for cell in cells
        if results.get(cell.key, {}).get("state") == "failed"
    ]
    epoch = f"{base.run.name}: {examples_of(base)} examples, batches of {base.training.batch_size}"
    if "rate_bps" in cells[0].how:
        link = "one link that all share" if asked.link == "shared" else "a link each"
        epoch += _played(cells[0], rows)
        epoch += f", {rate_text(cells[0].how['rate_bps'])}, {link}"
    said, notes = table.verdicts(rows), table.notes(rows, epoch)
    document = {
        "scale": str(folder),
        "recipe": base.run.name,
        "on": asked.on,
        "rows": rows,
        "verdicts": said,
        "failed": failed,
        "environment": environment(),
    }
    write_atomic(folder / "table.txt", ("\n".join([table.as_text(rows, notes), "", *said]) + "\n").encode())
    write_atomic(
        folder / "table.md", (table.as_markdown(rows, notes) + "\n" + "\n".join(f"- {s}" for s in said) + "\n").encode()
    )
    write_json(folder / "table.json", document)
    return document


def _played(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> str:
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


def _show(
    document: Mapping[str, Any],
    folder: Path,
    cells: Sequence[Cell],
    results: Mapping[str, dict[str, Any]],
    plots: bool,
    say: Say,
    warn: Say,
) -> None:
    say("")
    say((folder / "table.txt").read_text().rstrip())
    for failure in document["failed"]:
        warn(f"{failure['scheme']} on {failure['devices']} failed: {printable(failure['reason'])}")
    if plots and any(row["t_s"] is not None for row in document["rows"]):
        from edgegossip.lab.scale.plots import write_plots

        try:
            done = [results[cell.key] for cell in cells if results.get(cell.key, {}).get("state") == "done"]
            for path in write_plots(folder, document["recipe"], document["rows"], done):
                say(f"plot {path}")
        except HostError as error:
            warn(f"no plots: {error}")
    say(f"results {folder}")
