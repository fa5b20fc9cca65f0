"""Profiles of boards and fleets: what a board computes, encodes and sends in a second, and which
boards share which link.

The packaged profiles are the files devices/*.toml and devices/fleets/*.toml. Every number in them
has an entry in [sources] that begins with one of

    measured:    on which machine, by whom, with which command
    vendor:      what the data sheet says
    predicted:   the formula and what went in, or that nobody says it, and why this value

None of the boards has been at hand, so what is `measured` in the packaged profiles was measured by
others. `edgegossip calibrate --profile NAME` on a board puts its own numbers in their place. Rates
are of plain float32 bytes: encoding takes 4 bytes a value in, decoding gives 4 bytes a value out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from edgegossip.choices import did_you_mean
from edgegossip.files import parse_toml, read_text
from edgegossip.options import REQUIRED, filled, option
from edgegossip.types import ConfigError

BOARD = "raspberry-pi-4"  # where nobody says which
DEFAULT = "default"  # rate of every codec that is not named
SOURCES = ("measured:", "vendor:", "predicted:")
MAX_BOARDS = 64

SHORT_STEP_S = (
    0.05  # of a step that a profile says takes less, Python and torch's own work are a share that no profile has
)
SHORT_STEP = (
    "so short a step is mostly Python's and torch's own work, which no profile has: it takes a real board longer"
)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
LOWEST_BPS, HIGHEST_BPS = 8e3, 10e9


_RATE = partial(option, low=1e-6, high=1e18)  # in the second


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Describes one kind of board. Rates are sustained ones, of the whole board with all its
    cores unless said otherwise."""

    name: str = option(REQUIRED)
    title: str = option(REQUIRED)
    cores: int = option(REQUIRED, low=1)
    memory_bytes: int = option(REQUIRED, low=1)
    fp32_flops: float = _RATE(REQUIRED, "float32 operations of training steps on the CPU; a multiply-add is two")
    int8_ops: float = _RATE(REQUIRED, "the same of integer training")
    memory_bytes_per_s: float = _RATE(REQUIRED, "copied: read and written again counts once")
    link_bits_per_s: float = _RATE(REQUIRED, "of the board's own network interface, as TCP sees it, each way")
    encode_bytes_per_s: Mapping[str, float] = _RATE(
        REQUIRED, "by codec: float32 bytes, one thread; default: all others"
    )
    decode_bytes_per_s: Mapping[str, float] = _RATE(REQUIRED, "the same of decoding")
    one_thread_flops: float | None = _RATE(None, "fp32_flops on one thread; default: an even share of the cores")
    one_thread_int8_ops: float | None = _RATE(None, "int8_ops on one thread")
    update_spread: float | None = option(
        None,
        "standard deviation of a local update's seconds by their mean: the slowest is waited for",
        low=0.0,
        high=0.99,
    )
    accelerator_flops: float | None = _RATE(None, "as fp32_flops, on its GPU; default: nothing that trains")
    power_sensors: tuple[str, ...] = option((), "what edgegossip.telemetry.sensors finds on it")
    power_mode: str | None = option(None, "of a Jetson: in which these numbers hold, as nvpmodel names it")
    sources: Mapping[str, str] = option({}, "by key: where the number comes from")

    def kind(self, key: str) -> str:
        """Return whether the number of that key is "measured", the "vendor"'s or "predicted"."""
        return self.sources[key].partition(":")[0]

    def encode_rate(self, codec: str) -> float:
        """Return the float32 bytes/s that go into `codec` on one thread."""
        return self.encode_bytes_per_s.get(codec, self.encode_bytes_per_s[DEFAULT])

    def decode_rate(self, codec: str) -> float:
        """Return the float32 bytes/s that come out of `codec` on one thread."""
        return self.decode_bytes_per_s.get(codec, self.decode_bytes_per_s[DEFAULT])

    def training_rate(self, precision: str = "fp32", threads: int = 1, accelerated: bool = False) -> float:
        """Return the operations/s of training steps on so many threads; on the GPU where there
        is one and `accelerated` is set. Integer training runs on the CPU only."""
        if accelerated and self.accelerator_flops is not None and precision != "int8":
            return self.accelerator_flops
        whole, one = self.fp32_flops, self.one_thread_flops
        if precision == "int8":
            whole, one = self.int8_ops, self.one_thread_int8_ops
        one = whole / self.cores if one is None else one
        more = min(threads, self.cores) - 1
        return one if not more else one + (whole - one) * more / (self.cores - 1)


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """Describes what all boards of a fleet share, beside each board's own interface."""

    shared_bits_per_s: float | None = _RATE(
        None, "of the access point as TCP sees it, all directions together; default: a switch"
    )
    crossings: int = option(1, "how often a message takes that capacity; 2: by radio, up and down again", low=1)
    latency_s: float = option(0.001, "one way", low=0.0, high=1e18)


@dataclass(frozen=True, slots=True)
class FleetProfile:
    """Describes boards that train together."""

    name: str
    title: str
    boards: tuple[tuple[str, int], ...]  # (board profile, how many), in the order in which a smaller run takes them
    link: LinkProfile = LinkProfile()
    accelerated: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return how many boards there are."""
        return sum(count for _, count in self.boards)

    def names(self, count: int | None = None) -> tuple[str, ...]:
        """Return the board profile, as `load_device` takes it, of each of the first `count`
        boards, of all without `count`. Raises ConfigError when there are fewer."""
        every = tuple(name for name, n in self.boards for _ in range(n))
        if count is not None and not 1 <= count <= len(every):
            raise ConfigError(f"{count} boards of fleet {self.name}: it has {len(every)}; ask for 1 to {len(every)}")
        return every[:count]


def device_names() -> list[str]:
    """Return the names of the packaged profiles of boards."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def fleet_names() -> list[str]:
    """Return the names of the packaged fleets."""
    return sorted(path.stem for path in (_folder() / "fleets").glob("*.toml"))


def load_device(source: str) -> DeviceProfile:
    """Read a packaged profile by its name, or a TOML file by its path. Raises ConfigError.

    Example:
        load_device("raspberry-pi-4").training_rate(threads=4)
    """
    document, name = _read(source, _folder(), "board profile", device_names())
    return device_of(document, name)


def load_fleet(source: str) -> FleetProfile:
    """Read a packaged fleet by its name, or a TOML file by its path. Its boards are named in the
    packaged profiles, or are paths that count from the fleet's own folder. Raises ConfigError."""
    document, name = _read(source, _folder() / "fleets", "fleet", fleet_names())
    boards = document.get("boards")
    if source not in fleet_names() and isinstance(boards, list):
        document["boards"] = [_beside(Path(source).parent, entry) for entry in boards]
    return fleet_of(document, name)


def devices_of(fleet: FleetProfile, count: int | None = None) -> tuple[DeviceProfile, ...]:
    """Return the profile of each of the fleet's first `count` boards. Raises ConfigError."""
    names = fleet.names(count)
    known = {name: load_device(name) for name in dict.fromkeys(names)}
    return tuple(known[name] for name in names)


def device_of(document: Mapping[str, Any], name: str) -> DeviceProfile:
    """Check a parsed TOML document. Raises ConfigError."""
    what = f"board profile {name}"
    profile = filled(DeviceProfile, {"sources": {}, **document, "name": name}, where=f"{what}: ")
    for key in ("encode_bytes_per_s", "decode_bytes_per_s"):
        if DEFAULT not in getattr(profile, key):
            raise ConfigError(f"{what}: {key} has no {DEFAULT!r}, the rate of every codec that is not named there")
    _check_sources(what, document, profile.sources)
    return profile


@dataclass(frozen=True, slots=True)
class _FleetWords:
    """What a fleet's document says beside its boards and their link."""

    title: str = option(REQUIRED)
    accelerated: bool = option(False, "train on GPUs where boards have one")
    sources: Mapping[str, str] = option({}, "by key: where the number comes from")


def fleet_of(document: Mapping[str, Any], name: str) -> FleetProfile:
    """Check a parsed TOML document. Raises ConfigError."""
    what, rest = f"fleet {name}", dict(document)
    boards, link = _boards(what, rest.pop("boards", None)), rest.pop("link", {})
    if not isinstance(link, Mapping):
        raise ConfigError(f"{what}: link = {link!r}: must be a table")
    words = filled(_FleetWords, rest, where=f"{what}: ")
    said = {"boards": document["boards"], **{f"link.{key}": value for key, value in link.items()}}
    _check_sources(what, said, words.sources)
    of_link = filled(LinkProfile, link, "link.", f"{what}: ")
    fleet = FleetProfile(name, words.title, boards, of_link, words.accelerated, words.sources)
    if not 1 <= fleet.size <= MAX_BOARDS:
        raise ConfigError(f"{what} has {fleet.size} boards; a run has 1 to {MAX_BOARDS}")
    return fleet


def to_toml(profile: DeviceProfile) -> str:
    """Return a file from which `load_device` reads an equal profile; its name becomes the
    file's."""
    values = {f.name: getattr(profile, f.name) for f in fields(profile) if f.name != "name"}
    plain = {k: v for k, v in values.items() if v is not None}
    tables = {k: dict(v) for k, v in plain.items() if isinstance(v, Mapping)}
    return tomli_w.dumps({**{k: v for k, v in plain.items() if k not in tables}, **tables})


def _folder() -> Path:
    """devices/ as a wheel has it, inside the package, or as the source tree has it, beside the
    package."""
    package = Path(__file__).parents[1]
    inside = package / "devices"
    return inside if inside.is_dir() else package.parent / "devices"


def _beside(folder: Path, entry: Any) -> Any:
    """A board profile of one's own is named as it lies beside its fleet."""
    if isinstance(entry, list) and entry and isinstance(entry[0], str) and entry[0].endswith(".toml"):
        return [str(folder / entry[0]), *entry[1:]]
    return entry


def _read(source: str, folder: Path, what: str, known: list[str]) -> tuple[dict[str, Any], str]:
    path = folder / f"{source}.toml" if source in known else Path(source)
    if source not in known and path.suffix != ".toml":
        near = did_you_mean(source, known)
        raise ConfigError(f"no {what} named {source}{near} (there are: {', '.join(known)}; or a path to a .toml file)")
    try:
        text = read_text(path)
    except ValueError as error:
        raise ConfigError(f"cannot read {what} {path}: {error}") from None
    try:
        return parse_toml(text), path.stem
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _check_sources(what: str, document: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Every number says where it comes from, and so does the power mode to which they belong."""
    for key, value in document.items():
        is_number = not isinstance(value, (bool, str, list)) and key != "sources"
        if (is_number or key == "power_mode") and key not in sources:
            raise ConfigError(f"{what}: [sources] does not say where {key} comes from")
    for key, text in sources.items():
        if key not in document:
            raise ConfigError(f"{what}: [sources] names {key}, which is not there{did_you_mean(key, document)}")
        if not text.startswith(SOURCES):
            raise ConfigError(f"{what}: the source of {key} begins with one of {' '.join(SOURCES)}")


def _boards(what: str, value: Any) -> tuple[tuple[str, int], ...]:
    """[["raspberry-pi-4", 3], ...]"""
    pairs = [entry for entry in value or () if isinstance(entry, list) and len(entry) == 2]
    whole = isinstance(value, list) and len(pairs) == len(value) > 0
    if not whole or not all(isinstance(name, str) and type(count) is int and count > 0 for name, count in pairs):
        shape = '[["raspberry-pi-4", 3], ...]: a board profile and how many of it'
        raise ConfigError(f"{what}: boards: write it as {shape}")
    for name, _ in pairs:
        load_device(name)
    return tuple((name, count) for name, count in pairs)


def parse_rate(text: str) -> float:
    """Read a rate as `tc` and people write it (20mbit, 1.5mbit, 1gbit, 250kbit), in bits a
    second. Raises ConfigError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)bit(?:/s|ps)?\s*", text.lower())
    if found is None:
        raise ConfigError(f"--rate {text}: write it as a number and kbit, mbit or gbit, such as --rate 20mbit")
    rate_bps = float(found[1]) * _UNITS[found[2]]
    if not LOWEST_BPS <= rate_bps <= HIGHEST_BPS:
        nearest = "8kbit" if rate_bps < LOWEST_BPS else "10gbit"
        raise ConfigError(f"--rate {text}: a link has 8kbit to 10gbit; the nearest is {nearest}")
    return rate_bps


def rate_text(rate_bps: float) -> str:
    """Put a rate in words, such as "20 Mbit/s"."""
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate_bps >= factor:
            return f"{rate_bps / factor:g} {unit}"
    return f"{rate_bps:g} bit/s"
