"""`edgegossip scale`, `plan` and `calibrate`: does adding boards make training faster, and if not,
what eats it? What a run will be like on a fleet before anything runs, and a profile of the machine
for that."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from edgegossip.cli.options import JSON, OUTPUT, SCRIPT_ARGS, SETTINGS, chosen, command, with_script_args
from edgegossip.options import REQUIRED, option
from edgegossip.report.style import Figures
from edgegossip.types import HostError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCommand:
    """Options of `edgegossip scale`."""

    recipe: str | None = option(None, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    devices: str = option("2,4,7,18", "How many boards.", flag="--boards", metavar="A,B,...")
    schemes: str = option(
        "",
        "sgd, a codec (parallel SGD with it), or an algorithm and a codec such as choco-co3 or server-co3. "
        "Default: sgd, 8-bit-elastiquant, 4-bit-elastiquant, e-elastiquant, co3, choco-4-bit-elastiquant.",
        metavar="A,B,...",
    )
    on: str = option("model", "model: a virtual clock; boards: a live fleet.", choices=("model", "boards"))
    rate: str = option("", "model: of the link, such as 20mbit. Default: the fleet's, or 100mbit.", metavar="RATE")
    link: str = option(
        "shared",
        "One access point whose rate all boards share, or a link of that rate for each board.",
        choices=("shared", "each"),
    )
    rounds: int = option(0, "Count so many rounds of an epoch at most; 0: all of them.", low=0)
    device: str = option(
        "",
        "model: what every board is, of devices/ or a file of `calibrate`; default: raspberry-pi-4.",
        metavar="PROFILE",
    )
    fleet: str = option(
        "", "model: boards and link of this fleet, such as paper-7-xaviers.", flag="--profile", metavar="NAME|FILE"
    )
    out: Path | None = OUTPUT(
        None,
        "Folder of the results; one that has some already is gone on with. Default: runs/NAME-scale-ON.",
        path="folder",
    )
    boards: str = option(
        "", "boards: their names; default: all of the fleet in ./fleet.", flag="--names", metavar="A,B,..."
    )
    listen: str = option(
        "",
        "boards: where they ask what to run, default 127.0.0.1:7800; with --follow: where a board's peers reach it, "
        "default 0.0.0.0:7700.",
        metavar="HOST:PORT",
    )
    fleet_folder: Path | None = option(
        None,
        "boards: folder of `edgegossip fleet init`; default: ./fleet.",
        flag="--fleet",
        path="folder",
        metavar="DIR",
    )
    insecure: bool = option(False, "boards: without TLS, on a network that you trust.")
    follow: str = option("", "Be a board: run what the `scale --on boards` there says.", metavar="HOST:PORT")
    name: str = option("", "With --follow: this board's name.")
    identity: Path | None = option(
        None, "With --follow: this board's folder of `edgegossip fleet add`.", path="folder", metavar="DIR"
    )
    figures: Figures
    as_json: bool = JSON()


@command(ScaleCommand)
def scale(options: ScaleCommand) -> int:
    """Train RECIPE with several schemes on several numbers of boards: where an epoch's seconds go,
    and what is gained.

    The table is that of the ElastiQuant paper: computation, encoding, transmission, their sum T,
    and the speed-up, with decoding and waiting beside them. A run that was stopped, however hard,
    goes on where it was with the same command.

    \b
    Examples:
      edgegossip scale table3 --rate 20mbit
      edgegossip scale table3 --device raspberry-pi-5 --boards 2,4 --schemes sgd,e-elastiquant
      edgegossip scale elastiquant --profile paper-18
      edgegossip scale table3 --on boards --boards 2,4 --listen 10.0.0.9:7800
      edgegossip scale --follow 10.0.0.9:7800 --name pi-01 --identity identity      (on each board)
    """

    def warn(text: str) -> None:
        click.echo(text, err=True)

    if options.follow:
        from edgegossip.scale import follow as following

        board = chosen(
            options,
            following.FollowOptions,
            operator=options.follow,
            listen=options.listen or "0.0.0.0:7700",
            runs_dir=options.out or Path("runs"),
        )
        return following.follow(board, warn)
    if options.name or options.identity:
        raise click.UsageError(
            "--name and --identity are a board's: say --follow HOST:PORT of the machine that asks it"
        )
    if options.recipe is None:
        raise click.UsageError(
            "say which RECIPE to run, or --follow HOST:PORT of a machine that runs one on its boards"
        )
    from edgegossip.scale.campaign import ScaleOptions, run

    asked = chosen(options, ScaleOptions, security=(options.fleet_folder, options.insecure))
    document, code = run(asked, warn if options.as_json else click.echo, warn)
    if options.as_json:
        click.echo(json.dumps(document))
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommand:
    """Options of `edgegossip plan`."""

    recipe: str = option(REQUIRED, argument=True, metavar="RECIPE|SCRIPT")
    script_args: tuple[str, ...] = SCRIPT_ARGS()
    fleet: str = option(
        REQUIRED,
        "Boards and their link: mixed-home, paper-7-xaviers, paper-18, pi4-wifi, pi5-switch, or a TOML file.",
        flag="--profile",
        metavar="NAME|FILE",
    )
    count: int | None = option(None, "Only the fleet's first so many boards.", flag="--boards", low=2, high=64)
    settings: tuple[str, ...] = SETTINGS()
    as_json: bool = JSON()


@command(PlanCommand)
def plan(options: PlanCommand) -> int:
    """Work out bytes and seconds of a round of RECIPE, or of your own SCRIPT, on a fleet, memory of
    a board and how much others can make it keep, what limits it, and the codec that is faster.

    \b
    Examples:
      edgegossip plan cifar10-gossip --profile pi4-wifi
      edgegossip plan elastiquant --profile paper-18 --boards 7 --set model.name=resnet34
      edgegossip plan train.py --profile pi4-wifi -- --data data/{board}
      edgegossip calibrate -o me.toml   a profile of the board it runs on, for a fleet of yours

    Frames are really encoded; seconds and memory are modelled from the boards' profiles. A script
    runs up to its join, as board-0, with all that it does until then; its seconds are not modelled.
    """
    from edgegossip import recipe as recipes
    from edgegossip.scale.devices import load_fleet
    from edgegossip.scale.plan import plan as make
    from edgegossip.scale.plan import plan_text

    recipe = recipes.load(options.recipe, with_script_args(options.settings, options.script_args))
    document = make(recipe, load_fleet(options.fleet), options.count)
    click.echo(json.dumps(document) if options.as_json else plan_text(document))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate:
    """Options of `edgegossip calibrate`."""

    output: Path | None = OUTPUT(None, "Write the profile here (TOML); else it is printed.", path="file")
    name: str = option("", "Of the profile; default: the file's, or this-machine.")
    peer: str | None = option(None, "Also measure the link to a machine on which --serve runs.", metavar="HOST[:PORT]")
    serve: int | None = option(None, "Only answer a --peer, at this port.", low=0, high=65_535, metavar="PORT")
    seconds: float = option(600.0, "With --serve: seconds until it ends.", flag="--for", low=0.1, high=31 * 86_400.0)
    recipe: str = option("cifar10-gossip", "Whose model is trained.")
    profile: str | None = option(
        None,
        "A profile of devices/ or a file: what is measured here replaces what it says, the rest stays.",
        metavar="NAME",
    )
    settings: tuple[str, ...] = SETTINGS()
    as_json: bool = JSON()


@command(Calibrate)
def calibrate(options: Calibrate) -> int:
    """Measure this machine in about a minute: training rates in fp32 and int8, codecs, memory, the
    link to a peer.

    \b
    Examples:
      edgegossip calibrate -o pi.toml
      edgegossip calibrate -o pi.toml --recipe elastiquant   as exact as it gets for its model
      edgegossip calibrate -o nano.toml --profile jetson-nano   keeps what is not measured: its GPU
      edgegossip calibrate --serve 7733                         on another board, and on this one:
      edgegossip calibrate -o pi.toml --peer 192.168.1.20:7733

    Name the file in a fleet (devices/fleets/*.toml are examples) for `edgegossip plan` and
    `edgegossip scale`.
    """
    from edgegossip.fleet import link_test

    if options.serve is not None:
        with link_test.listen(options.serve) as listener:
            click.echo(
                f"answering on port {listener.getsockname()[1]} for {options.seconds:.0f} s", err=options.as_json
            )
            callers = link_test.serve(listener, time.monotonic() + options.seconds)
        click.echo(json.dumps({"callers": callers}) if options.as_json else f"{callers} callers")
        return 0
    if options.output and not options.output.absolute().parent.is_dir():
        raise HostError(f"cannot write {options.output}: there is no folder {options.output.absolute().parent}")
    link = link_test.measure(*link_test.parse_address(options.peer)) if options.peer else None
    from edgegossip import recipe as recipes
    from edgegossip.scale.calibrate import calibrate as measure
    from edgegossip.scale.calibrate import replaced
    from edgegossip.scale.devices import load_device, to_toml

    known = None if options.profile is None else load_device(options.profile)
    loaded = recipes.load(options.recipe, options.settings)
    name = options.name or (options.output.stem if options.output else "this-machine")
    profile = measure(name, loaded, link, lambda text: click.echo(f"measuring: {text}", err=True))
    profile = profile if known is None else replaced(known, profile)
    if options.output:
        try:
            options.output.write_text(to_toml(profile), encoding="utf-8")
        except OSError as error:
            raise HostError(f"cannot write {options.output}: {(error.strerror or str(error)).lower()}") from None
    if options.as_json:
        click.echo(json.dumps(asdict(profile)))
    elif options.output:
        click.echo(f"wrote {options.output}; name it in a fleet for `edgegossip plan`")
    else:
        click.echo(to_toml(profile), nl=False)
    return 0
