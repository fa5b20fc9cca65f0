"""`edgegossip accept`: everything about this machine in one command."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import click

from edgegossip.accept.page import SECTIONS, page, text_of
from edgegossip.cli.options import JSON, OUTPUT, SETTINGS, command
from edgegossip.options import option
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Options of `edgegossip accept`."""

    output: Path = OUTPUT(
        Path("accept.json"), "Write the report here; the page and the profile lie beside it.", path="file"
    )
    profile: str | None = option(
        None, "What predicts this machine: a board of devices/, a fleet of equal ones, or a file.", metavar="NAME"
    )
    peer: str | None = option(
        None, "Also measure the link to a machine on which `calibrate --serve` runs.", metavar="HOST[:PORT]"
    )
    only: tuple[str, ...] = option((), "Measure this section alone; may be repeated.", choices=SECTIONS)
    emulated: bool = option(False, "Say in the report that this machine is an emulated one.")
    recipe: str = option("cifar10-gossip", "Whose model is trained.")
    settings: tuple[str, ...] = SETTINGS()
    as_json: bool = JSON()


@command(Accept)
def accept(options: Accept) -> int:
    """Measure all that matters on this machine, in at most ten minutes: instruction sets, bits and
    speed of every codec and int8 kernel, training beside torch, memory, storage, sensors, a minute
    of load, and with --peer the link.

    \b
    Examples:
      edgegossip accept --profile raspberry-pi-4
      edgegossip accept --profile pi4-wifi --peer pi-2:7733 -o pi-1.json
      edgegossip accept --only storage --only load

    Writes a report (JSON), a page of it (HTML) and a profile (TOML) for `plan` and `scale`. Every
    finding is one sentence with its cure; ends with 6 when something must be put right.
    """
    if options.output.suffix != ".json":
        raise ConfigError(f"-o {options.output}: name it .json; the page becomes .html and the profile .toml beside it")
    from edgegossip import recipe as recipes
    from edgegossip.accept.machine import Machine
    from edgegossip.accept.run import Options, measured_profile
    from edgegossip.accept.run import accept as measure
    from edgegossip.files import write_atomic, write_json
    from edgegossip.fleet.link_test import parse_address
    from edgegossip.scale.devices import to_toml

    folder = options.output.absolute().parent
    wanted = Options(
        recipe=recipes.load(options.recipe, options.settings),
        profile=options.profile,
        peer=None if options.peer is None else parse_address(options.peer),
        only=options.only,
        emulated=options.emulated,
        isa=os.environ.get("EDGEGOSSIP_ISA"),
    )
    report = measure(Machine(folder=folder), wanted, lambda text: click.echo(f"measuring: {text}", err=True))
    write_json(options.output, report)
    write_atomic(options.output.with_suffix(".html"), page(report).encode())
    profile = measured_profile(report, options.output.stem)
    if profile is not None:
        write_atomic(options.output.with_suffix(".toml"), to_toml(profile).encode())
    click.echo(json.dumps(report) if options.as_json else text_of(report))
    if not options.as_json:
        click.echo(f"wrote {options.output}, and beside it the page{' and the profile' if profile else ''}")
    return EXIT_RUN if report["bad"] else EXIT_OK
