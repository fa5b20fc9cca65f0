"""Options of `edgegossip fleet add` and `fleet set`: what a board's kit has besides its
identity."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from edgegossip.mesh import address as addresses
from edgegossip.types import ConfigError

PASSWORD = "EDGEGOSSIP_WIFI_PASSWORD"

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_OPTIONS = (
    click.option("--board", metavar="BOARD", help="Which board it is, such as raspberry-pi-4."),
    click.option(
        "--wifi", metavar="SSID", help=f"Wi-Fi; the password is asked for, or comes from a file or ${PASSWORD}."
    ),
    click.option(
        "--wifi-password-file", type=_FILE, metavar="FILE", help="First line: the password; - is standard input."
    ),
    click.option("--wifi-country", metavar="CC", default="", help="Where the radio is used, such as DE."),
    click.option(
        "--ssh-key", "ssh_keys", multiple=True, type=_FILE, metavar="FILE", help="Public key of who may log in; repeat."
    ),
    click.option("--recipe", metavar="NAME", help="With --join: what it runs; default quickstart-gossip."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a key of the recipe; repeat. With --coordinator only what is the board's own matter.",
    ),
    click.option(
        "--coordinator", metavar="HOST:PORT", help="It is a client of this coordinator, which tells it the recipe."
    ),
    click.option(
        "--join", multiple=True, metavar="HOST:PORT", help="It joins the mesh there: the founder's place first."
    ),
    click.option("--founder", metavar="NAME", help="With --join: the board that begins the run."),
    click.option("--boards", metavar="A,B,...", help="With --join: of the run; default: all of the fleet."),
    click.option("--listen", metavar="HOST:PORT", help="Where it listens for peers.  [default: 0.0.0.0:7700]"),
    click.option(
        "--check-in", metavar="HOST:PORT", help="Where `edgegossip fleet serve` listens: time, status, updates."
    ),
)


def profile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, as one argument `given` of keywords for `Profile.changed`."""

    def with_given(**arguments: Any) -> Any:
        taken = {str(o): arguments.pop(o) for o in _NAMES}
        return command(given=_given(**taken), **arguments)

    with_given.__doc__, with_given.__name__ = command.__doc__, command.__name__
    with_given.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), with_given)


_NAMES = (
    *("board", "wifi", "wifi_password_file", "wifi_country", "ssh_keys", "recipe", "settings", "coordinator"),
    *("join", "founder", "boards", "listen", "check_in"),
)


def _given(**taken: Any) -> dict[str, Any]:
    ssid, file, country = taken.pop("wifi"), taken.pop("wifi_password_file"), taken.pop("wifi_country")
    if ssid is None and (file or country):
        raise ConfigError("--wifi-password-file and --wifi-country go with --wifi SSID")
    given: dict[str, Any] = {key: value or None for key, value in taken.items()}
    from edgegossip.fleet.kitfile import Wifi

    given["wifi"] = None if ssid is None else (Wifi.of(ssid, _password(ssid, file), country),)
    for option in ("coordinator", "join", "check_in"):
        for place in filter(None, (given[option],) if option != "join" else given[option] or ()):
            _reached(f"--{option.replace('_', '-')}", place)
    given["boards"] = tuple(filter(None, given["boards"].split(","))) if given["boards"] else None
    if given["ssh_keys"]:
        given["ssh_keys"] = tuple(line for key in given["ssh_keys"] for line in _lines(key))
    return given


def _reached(option: str, place: str) -> None:
    """Raises ConfigError for a place that is another on each machine: a kit's board would look for
    it on itself."""
    address = addresses.parse(place, option)
    if address.is_loopback or address.host in ("localhost", "0.0.0.0", "::"):
        raise ConfigError(
            f"{option} {place}: that is each board itself: name this machine as boards reach it, such as 192.168.1.10"
        )


def _password(ssid: str, file: Path | None) -> str:
    """Never from the command line, which others on the machine can see."""
    if file is not None:
        lines = _lines(file)
        if not lines:
            raise ConfigError(f"--wifi-password-file {file}: it is empty")
        return lines[0]
    if PASSWORD in os.environ:
        return os.environ[PASSWORD]
    if not sys.stdin.isatty():
        raise ConfigError(f"--wifi {ssid}: say its password with --wifi-password-file FILE, or in ${PASSWORD}")
    return str(click.prompt(f"Password of the Wi-Fi {ssid}", hide_input=True, err=True))


def _lines(file: Path) -> list[str]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    return [line for line in text.splitlines() if line.strip()]
