"""One schedule of a server run: how many boards, what the run asks of them, and what breaks when.
All drawn from one seed, each part by a generator of its own, so that fixing one part leaves the
others as they were."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from edgegossip.engine.server_frames import check_downlink
from edgegossip.types import ConfigError
from lab.sim import faults as fault_words
from lab.sim import naming
from lab.sim.faults import KINDS, SERVER_KINDS, Fault
from lab.sim.naming import Named
from lab.sim.schedule import VALUES, Options, of, pick

ROUND_S = 1.2  # what a round takes, about, when nothing is wrong
ROUNDS = 3, 8
BOARDS = (*(2, 3) * 4, 4, 4, 4, 5, 5, 6, 8, 13, 18)  # mostly small, as of gossip
SERVER_EVERY = 4  # seeds, of which one is a server run where nothing says which
PLAIN = "plain"
CODECS = (
    Named("fp32"),
    Named("fp32"),
    Named("fp16"),
    Named("minmax8"),
    Named.of("qsgd", {"bits": 6}),
    Named.of("topk", {"ratio": 0.25}),
    Named("elastiquant"),
    Named("elasticl"),
    Named("elasticl"),
    Named("signsgd"),
    Named("ef-signsgd"),
    Named("terngrad"),
    Named.of("randk", {"ratio": 0.5}),
)
DOWNLINKS = ("fp32", "fp32", "fp32", "fp16", "minmax8", "qsgd:bits=8", "elastiquant")


@dataclass(frozen=True, slots=True)
class Settings:
    """Says what a server run asks of its boards, as `ServerPlan` has it. Defaults are the
    plainest."""

    downlink: str = "fp32"  # a codec, NAME[:KEY=VALUE]
    weighting: str = "examples"  # or "uniform"
    quorum: int = 0
    min_nodes: int = 1
    fraction: float = 1.0
    deadline_s: float = 4.0
    join_s: float = 20.0
    return_s: float = 120.0
    every: int = 0  # the model is evaluated after every so many rounds; 0: after the last one
    evaluates: str = "boards"  # or "coordinator"
    combiner: str = "mean"  # or "momentum", "scaffold"
    certified: bool = False  # boards prove their names
    records: bool = False  # of boards, with profiles
    notices: str = "silence"  # tells of a board's end; or "leave" (at once), "launcher"

    def __str__(self) -> str:
        """Return KEY=VALUE,... of what is not the default."""
        return ",".join(
            f"{f.name}={_word(value)}" for f in fields(self) if (value := getattr(self, f.name)) != f.default
        )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "weighting": ("examples", "uniform"),
    "evaluates": ("boards", "coordinator"),
    "combiner": ("mean", "momentum", "scaffold"),
    "notices": ("silence", "leave", "launcher"),
}
LOW: Mapping[str, float] = {"quorum": 0, "min_nodes": 1, "every": 0, "deadline_s": 0.1, "join_s": 0, "return_s": 0}


def parse(text: str) -> dict[str, Any]:
    """Read KEY=VALUE,... of settings, with every other one where it begins with `plain`: those are
    the defaults then.

    Raises ConfigError that names the key and what is allowed."""
    plain, _, rest = text.partition(",") if text.partition(",")[0] == PLAIN else ("", "", text)
    values, known = naming.parse("--server", f"server:{rest}").values, {f.name: f for f in fields(Settings)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"--server: unknown key {key!r}; valid: {', '.join(known)}")
        default = known[key].default
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(default, (bool, str)):
            right = isinstance(value, type(default)) and value in CHOICES.get(key, (value,))
        else:
            right = number and value >= LOW.get(key, -1) and (isinstance(default, float) or value == int(value))
            right = right and (key != "fraction" or 0 < value <= 1)
        if not right:
            allowed = ", ".join(CHOICES.get(key, (f"something like {_word(default)}",)))
            raise ConfigError(f"--server {key}={_word(value)}: valid: {allowed}")
    if "downlink" in values:
        check_downlink(naming.codec_of(naming.parse("--server downlink", values["downlink"])))
    return {**({f.name: f.default for f in known.values()} if plain else {}), **values}


@dataclass(frozen=True, slots=True)
class ServerSchedule:
    """Holds everything that decides what happens in one server run, besides the code."""

    seed: int
    codec: Named  # of updates
    nodes: int  # boards
    values: int  # of the model
    rounds: int
    settings: Settings
    faults: tuple[Fault, ...]

    @property
    def algorithm(self) -> str:
        """Return what a table of algorithms calls it."""
        return f"server-{self.settings.combiner}"

    @property
    def seconds(self) -> float:
        """Return the virtual time until everything is well again."""
        return max(self.rounds * ROUND_S, *(f.end for f in self.faults), 0.0)

    def command(self) -> str:
        """Return a command line that replays exactly this."""
        words = [
            *("python", "-m", "lab.sim", "--mode", "server", "--seed", str(self.seed), "--codec", str(self.codec)),
            *("--boards", str(self.nodes), "--rounds", str(self.rounds)),
            *(("--values", str(self.values)) if self.values != VALUES else ()),
            *("--server", ",".join(filter(None, (PLAIN, str(self.settings))))),
            *("--faults", ",".join(map(str, self.faults)) or "none"),
        ]
        return shlex.join(words)


def is_server(seed: int, options: Options) -> bool:
    """Tell whether the schedule of this seed is a server run: one in four, unless what is fixed
    says which."""
    if options.mode != "both":
        return options.mode == "server"
    if options.server is not None:
        return True
    if options.algorithms is not None or options.topology is not None or options.workload is not None:
        return False
    named = {f.lstrip("-").partition("=")[0].partition("@")[0] for f in options.faults.replace(",", " ").split()}
    named -= {"all", "none"}
    if named & set(KINDS) - set(SERVER_KINDS):
        return False
    return bool(named & set(SERVER_KINDS) - set(KINDS)) or seed % SERVER_EVERY == SERVER_EVERY - 1


def check_words(options: Options, asked: str) -> None:
    """Raise ConfigError for what a server run does not have. `asked`: what makes it one."""
    for what in ("algorithms", "topology", "workload"):
        if getattr(options, what) is not None:
            word = what.rstrip("s")
            raise ConfigError(f"a server run has no {word}: leave --{word} away, or {asked}")


def draw(seed: int, options: Options) -> ServerSchedule:
    """Draw the schedule of a seed. Raises ConfigError on an unknown name or parameter."""
    check_words(options, "--mode server" if options.server is None else "--server")
    if options.codec is not None:
        naming.codec_of(options.codec)
    nodes = options.nodes or pick(seed, "nodes", BOARDS)
    rounds = options.rounds or ROUNDS[0] + int(of(seed, "rounds").random() * (ROUNDS[1] - ROUNDS[0] + 1))
    fixed = parse(options.server) if options.server else {}
    if options.deadline_s:
        fixed = {"deadline_s": options.deadline_s, **fixed}
    spec = fault_words.parse(options.faults, SERVER_KINDS)
    broken = fault_words.draw(spec, of(seed, "faults"), nodes, (), rounds * ROUND_S)
    return ServerSchedule(
        seed,
        options.codec or pick(seed, "codec", CODECS),
        nodes,
        options.values,
        rounds,
        Settings(**{**_settings(seed, nodes), **fixed}),
        broken,
    )


def _settings(seed: int, nodes: int) -> dict[str, Any]:
    """Draw settings that go with so many boards."""
    rng = of(seed, "settings")
    chance = rng.random
    return {
        "downlink": pick(seed, "downlink", DOWNLINKS),
        "weighting": "uniform" if chance() < 0.3 else "examples",
        "quorum": 1 + int(chance() * nodes) if chance() < 0.35 else 0,
        "min_nodes": 1 + int(chance() * nodes) if chance() < 0.6 else 1,
        "fraction": (0.3, 0.5, 0.7)[int(chance() * 3)] if chance() < 0.2 else 1.0,
        "deadline_s": (2.0, 4.0, 8.0)[int(chance() * 3)],
        "join_s": (3.0, 20.0)[int(chance() * 2)],
        "return_s": (0.0, 10.0, 120.0, 120.0)[int(chance() * 4)],
        "every": (0, 1, 2)[int(chance() * 3)],
        "evaluates": "coordinator" if chance() < 0.25 else "boards",
        "combiner": ("momentum", "momentum", "mean", "mean", "scaffold")[int(chance() * 5)],
        "certified": chance() < 0.4,
        "records": chance() < 0.4,
        "notices": ("silence", "silence", "leave", "launcher")[int(chance() * 4)],
    }


def plainer(s: ServerSchedule) -> Iterator[ServerSchedule]:
    """Yield the schedule with one setting less that is no default."""
    for f in fields(Settings):
        if getattr(s.settings, f.name) != f.default:
            other: dict[str, Any] = {f.name: f.default}
            yield replace(s, settings=replace(s.settings, **other))
