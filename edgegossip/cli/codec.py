"""`edgegossip codec`: what codecs there are, and whether one keeps what it claims."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from edgegossip.cli.options import JSON, Listing, command, listed, parse_params
from edgegossip.options import option, options_of
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError, UsageError

if TYPE_CHECKING:
    from edgegossip.codecs import Param
    from edgegossip.verify import Check, Report

_INTERFACE = ("name", "wire_id", "wire_params", "init", "encode", "decode")
_COLUMNS = ("gain", "bias", "variance", "size", "same", "refuses")


@click.group()
def codec() -> None:
    """List the codecs, and verify that one keeps what it claims."""


@command(Listing, codec, name="list")
def list_(options: Listing) -> None:
    """Show every codec with its parameters, their ranges and defaults."""
    from edgegossip.codecs import REGISTRY

    families = REGISTRY.families.values()
    if options.as_json:
        rows = [{"name": f.name, "help": f.help, "params": [_param(p) for p in f.params]} for f in families]
        click.echo(json.dumps(rows))
        return
    click.echo(listed((f.name, f.help, options_of(f.params)) for f in families))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Options of `edgegossip codec verify`."""

    name: str | None = option(None, argument=True)
    settings: tuple[str, ...] = option(
        (), "A parameter of NAME; may be repeated.", flag="--params", metavar="KEY=VALUE"
    )
    size: int = option(65536, "Values in the vector.", low=64, high=2**24)
    draws: int = option(32, "Encodings, each with a key.", low=4, high=4096)
    as_json: bool = JSON()


@command(Verify, codec)
def verify(options: Verify) -> int:
    """Run NAME, or every codec, and hold it to its claims: gain, bias, variance, size, the same
    bytes again, bad bodies refused.

    NAME may be your own codec: module:function, where the function takes the parameters and returns
    the codec. It is built again in a process of its own to be the receiver. Exits with 6 when a
    check fails.
    """
    from edgegossip import codecs
    from edgegossip.sweep.results import plain
    from edgegossip.verify import verify as run

    name, params = options.name, parse_params(options.settings)
    if name is None:
        if params:
            raise ConfigError("--params belong to one codec; name it")
        made = [(known, codecs.get(known)) for known in codecs.names()]
    else:
        made = [(name, build_codec(name, params))]
    receiver: dict[str, Any] = {"rebuild": codecs.from_wire}
    if name is not None and ":" in name:  # no frame names it: the receiver is built as this one was
        receiver = {"build": functools.partial(build_codec, name, params)}
    size, draws = options.size, options.draws
    reports = [run(one, title, size=size, draws=draws, **receiver) for title, one in made]
    if options.as_json:
        document = [plain({**asdict(report), "passed": report.passed}) for report in reports]
        click.echo(json.dumps({"size": size, "draws": draws, "codecs": document}))
    else:
        click.echo("\n".join(_table(reports)))
    return EXIT_OK if all(report.passed for report in reports) else EXIT_RUN


def build_codec(name: str, params: dict[str, Any]) -> Any:
    """Build a codec by name, or a user's own. Raises ConfigError or UsageError."""
    from edgegossip import codecs
    from edgegossip.training.names import call_custom, import_function, is_custom_function

    if not is_custom_function(name):
        return codecs.get(name, **params)
    try:
        made = call_custom(name, import_function("codec", name), **params)
    except SystemExit as error:
        raise UsageError(f"{name} ended the process (SystemExit: {error.code}) instead of returning a codec") from None
    if missing := [part for part in _INTERFACE if not hasattr(made, part)]:
        raise UsageError(f"{name} returned {type(made).__name__}, which is no codec: it lacks {', '.join(missing)}")
    return made


def _param(param: Param) -> dict[str, Any]:
    return {key: value for key, value in asdict(param).items() if key == "default" or value not in (None, ())}


def _table(reports: list[Report]) -> list[str]:
    """A line a codec, then what failed and why."""
    from edgegossip.report.table import in_columns

    rows: list[tuple[str, ...]] = [("codec", "bits/value", "error", *_COLUMNS, "verdict")]
    for report in reports:
        found = {check.name: check for check in report.checks}
        measured = (_number(report.bits_per_value), _number(report.relative_error))
        cells = (_cell(found[column]) if column in found else "-" for column in _COLUMNS)
        rows.append((report.codec, *measured, *cells, "ok" if report.passed else "FAILED"))
    faults = [_fault(report.codec, check) for report in reports for check in report.checks if check.passed is False]
    return in_columns(rows) + (["", *faults] if faults else [])


def _cell(check: Check) -> str:
    mark = {True: "ok", False: "FAILED", None: ""}[check.passed]
    return f"{_number(check.value)} {mark}".strip() if check.value is not None else mark or "-"


def _fault(codec_name: str, check: Check) -> str:
    said = [check.note] if check.note else []
    if check.value is not None and check.limit is not None:
        word = "is off 1 by more than" if check.name == "gain" else "exceeds"
        said.insert(0, f"{check.value:.6g} {word} {check.limit:.6g}")
    return f"{codec_name}: {check.name}: {'; '.join(said)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
