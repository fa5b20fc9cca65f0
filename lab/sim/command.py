"""What `python -m lab.sim` does: one schedule with its trace, or a campaign with its first failure
made small.

A recipe fixes of a schedule algorithm, topology, codec, boards and deadline, or what a server
run asks of its boards. Models and data are the simulator's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgegossip import recipe as recipes
from edgegossip.cli.options import JSON, SETTINGS
from edgegossip.options import option
from edgegossip.recipe import Recipe
from edgegossip.types import EXIT_OK, EXIT_RUN, ConfigError
from lab.sim import naming
from lab.sim.campaign import REPLAY_EVERY, Result, campaign, cores, replayed, run, schedule_of, shrink
from lab.sim.checkers import REPLAY, RULES
from lab.sim.faults import EVERY_KIND, KINDS, SERVER_KINDS
from lab.sim.naming import OUTER, Named
from lab.sim.schedule import Options, Schedule
from lab.sim.server_checkers import SERVER_RULES
from lab.sim.server_schedule import ServerSchedule, check_words

JOIN_S = 120.0  # that `run` waits for boards where the recipe does not say
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sim:
    """Options of `python -m lab.sim`."""

    recipe: str | None = option(None, argument=True)
    settings: tuple[str, ...] = SETTINGS()
    seed: int = option(1, "Of the schedule, or of the first one.", low=0)
    faults: str = option(
        "all",
        "all, none, or entries such as loss=0.2,crash=2,split or crash@3-5:2 (see lab/sim/README.md).",
        metavar="SPEC",
    )
    mode: str = option(
        "both",
        "both: one seed in four is a server run, unless something is said, such as a fault, that only one of them has; "
        "shell: the whole program of a gossip board.",
        choices=("gossip", "server", "both", "shell"),
    )
    campaign: int | None = option(None, "Run N schedules instead of one with its trace.", low=1, metavar="N")
    jobs: int | None = option(None, "Processes of a campaign. Default: one a core.", low=1, high=256)
    algorithms: tuple[str, ...] = option(
        (),
        "Such as choco-sgd:eta=0.5, sgp+nesterov or dpsgd+outer-nesterov; may be repeated. Default: drawn from all.",
        flag="--algorithm",
        metavar="NAME[+MOMENTUM][:KEY=VALUE,...]",
    )
    topology: str = option("", "Default: drawn from those that fit.", metavar="NAME[:KEY=VALUE,...]")
    codec: str = option("", "Default: drawn.", metavar="NAME[:KEY=VALUE,...]")
    nodes: int | None = option(
        None, "Default: drawn, 2 to 18, of whole boards 2 to 5.", flag="--boards", low=2, high=64
    )
    rounds: int | None = option(
        None, "About so many with faults. Default: 3 to 6, of a server run 3 to 10.", low=1, high=100_000
    )
    workload: str = option("", "quadratic, quadratic-alike or consensus. Default: drawn.")
    deadline_s: float | None = option(
        None, "Of a round, in virtual seconds. Default: 2 or 4.", flag="--deadline", low=0.1
    )
    server: tuple[str, ...] = option(
        (),
        "Of a server run, such as quorum=2,downlink=fp16; plain,...: the rest is not drawn.",
        metavar="KEY=VALUE,...",
    )
    values: int = option(16, "In the model.", low=1, high=2**20)
    as_json: bool = JSON()


def fixed_by(recipe: Recipe, options: Options) -> Options:
    """Return `options` with the recipe's parts where they say nothing. Raises ConfigError for a
    server recipe's strategy, and for what the simulator does not do."""
    recipes.require_all_rounds(recipe, "the simulator")
    if recipe.run.mode != "gossip":
        return _server(recipe, options)
    if options.mode == "server":
        raise ConfigError(f"{recipe.run.name} is a gossip recipe: leave --mode server away")
    gossip = recipe.gossip
    name, params = gossip.algorithm, dict(gossip.params)
    if gossip.momentum != "none":
        name, params = f"{name}+{gossip.momentum}", {**params, "momentum_factor": gossip.momentum_factor}
    if (around := asdict(recipe.outer)).pop("optimizer") != "none":
        name = f"{name}+{OUTER}{recipe.outer.optimizer}"
        params |= {f"outer_{key}": value for key, value in around.items()}
    if gossip.order != "auto":
        params |= {"order": gossip.order}
    if gossip.malicious_nodes:
        params |= {"malicious_nodes": gossip.malicious_nodes, "malicious_rule": gossip.malicious_rule}
    places = dict(gossip.topology_params)
    if gossip.topology == "file":
        places["path"] = gossip.topology_file
    return replace(
        options,
        mode="shell" if options.mode == "shell" else "gossip",
        algorithms=options.algorithms or (Named.of(name, params),),
        topology=options.topology or Named.of(gossip.topology, places),
        codec=options.codec or Named.of(recipe.codec.name, recipe.codec.params),
        nodes=options.nodes or recipe.run.nodes,
        deadline_s=options.deadline_s or recipe.gossip.deadline_s,
    )


def _server(recipe: Recipe, options: Options) -> Options:
    server, name = recipe.server, recipe.run.name
    if options.mode in ("gossip", "shell"):
        raise ConfigError(f"{name} is a server recipe: leave --mode {options.mode} away")
    check_words(options, name)
    combiner = {"fedavg": "mean", "scaffold": "scaffold"}.get(server.strategy)
    if combiner is None:
        raise ConfigError(
            f"{name} has server.strategy = {server.strategy}, which is Flower's; the simulator has fedavg and scaffold"
        )
    if recipe.outer.optimizer != "none":
        raise ConfigError(
            f"{name} has outer.optimizer = {recipe.outer.optimizer}; the simulator's coordinator has none, or heavy-ball with "
            "lr 1 and momentum 0.9 (--server combiner=momentum): say outer.optimizer = none"
        )
    downlink = str(Named.of(server.downlink, server.downlink_params))
    settings = {
        "downlink": f'"{downlink}"' if "," in downlink else downlink,
        "weighting": server.weighting,
        "quorum": server.quorum,
        "min_nodes": server.min_nodes,
        "fraction": server.fraction,
        "join_s": server.join_s or JOIN_S,
        "every": recipe.evaluation.every,
        "evaluates": recipe.evaluation.where,
        "combiner": combiner,
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    return replace(
        options,
        mode="server",
        codec=options.codec or Named.of(recipe.codec.name, recipe.codec.params),
        nodes=options.nodes or recipe.run.nodes,
        deadline_s=options.deadline_s or server.deadline_s,
        server=",".join([*words, *([options.server] if options.server else [])]),
    )


def options_of(arguments: Sim) -> Options:
    """Return what the command line fixes of every schedule. Raises ConfigError."""
    options = Options(
        algorithms=tuple(naming.parse("--algorithm", a) for a in arguments.algorithms) or None,
        topology=naming.parse("--topology", arguments.topology) if arguments.topology else None,
        codec=naming.parse("--codec", arguments.codec) if arguments.codec else None,
        nodes=arguments.nodes,
        rounds=arguments.rounds,
        workload=arguments.workload or None,
        deadline_s=arguments.deadline_s,
        values=arguments.values,
        faults=arguments.faults,
        mode=arguments.mode,
        server=",".join(arguments.server) or None,
    )
    if arguments.recipe is None:
        return options
    return fixed_by(recipes.load(arguments.recipe, arguments.settings), options)


def replay(arguments: Sim, say: Say, quiet: bool) -> tuple[dict[str, Any], int]:
    """Run one schedule; its trace goes to `say` unless quiet. If it breaks nothing it is run a
    second time, without a trace, and must go the same way. Returns the JSON document and the
    exit code."""
    schedule = schedule_of(arguments.seed, options_of(arguments))
    if not quiet:
        say(f"# {schedule.command()}")
        say(f"# {'time_s':>7}  node  event")
    outcome = run(schedule, say=None if quiet else say)
    other = None if outcome.violations else replayed(outcome)
    violations = (other,) if other else outcome.violations
    if not quiet:
        for violation in violations:
            say(f"# VIOLATION of {violation}")
        if not violations:
            apart = outcome.spread
            end = "" if apart is None else f"; in the end the models differ by at most {apart:.3g} in any value"
            say(f"# 0 violations{end}")
            say("# run twice, with the same hash")
        what = "updates used" if isinstance(schedule, ServerSchedule) else "rounds of all nodes together"
        say(f"# hash {outcome.digest}, {outcome.events} events, {outcome.rounds} {what}")
    document = {
        "seed": schedule.seed,
        "command": schedule.command(),
        "hash": outcome.digest,
        "events": outcome.events,
        "rounds": outcome.rounds,
        "virtual_s": round(outcome.virtual_s, 3),
        "spread": outcome.spread,
        "faults": dict(outcome.seen),
        "violations": [{"rule": v.rule, "node": v.node, "time_s": v.time_s, "text": v.text} for v in violations],
    }
    return document, EXIT_RUN if violations else EXIT_OK


def many(arguments: Sim, count: int, say: Say, quiet: bool) -> tuple[dict[str, Any], int]:
    """Run a campaign of `count` seeds from `arguments.seed` on. Returns the JSON document and
    the exit code."""
    options = options_of(arguments)
    schedule_of(arguments.seed, options)  # so that a mistake is one sentence, before any process starts
    seeds = range(arguments.seed, arguments.seed + count)
    told = [0]

    def progress(result: Result) -> None:
        if result.schedules - told[0] >= max(200, count // 20):
            told[0] = result.schedules
            rate = result.schedules / result.seconds
            say(f"{result.schedules} of {count} schedules, {result.violations} violations, {rate:.1f} a second")

    result = campaign(seeds, options, jobs=arguments.jobs or cores(), progress=None if quiet else progress)
    document = {**result.to_json(), "first_failure": None}
    if not quiet:
        _show(result, say, options)
    if result.failures:
        seed, rule, _ = result.failures[0]
        small, how = _smallest(schedule_of(seed, options), rule)
        document["first_failure"] = small.command()
        if not quiet:
            say(f"the first failure, {how}:\n  {small.command()}")
    return document, EXIT_RUN if result.violations else EXIT_OK


def _smallest(schedule: Schedule | ServerSchedule, rule: str) -> tuple[Schedule | ServerSchedule, str]:
    """A schedule that breaks the same rule, and what was done to it. Only a second run shows that
    one is not the same again."""

    def fails(candidate: Schedule | ServerSchedule) -> str | None:
        try:
            outcome = run(candidate)
        except ConfigError:  # what is left of it does not go together
            return None
        if outcome.violations:
            return outcome.violations[0].rule
        other = replayed(outcome) if rule == REPLAY else None
        return other.rule if other else None

    if fails(schedule) != rule:
        return schedule, "which did not come again when it was looked for once more"
    return shrink(schedule, fails), "made small"


def _show(result: Result, say: Say, options: Options) -> None:
    name, rules, kinds = "gossip", RULES, {} if options.mode == "server" else KINDS
    if options.mode == "shell":
        from lab.sim.shell.run import SHELL_KINDS, SHELL_RULES  # here: with gRPC

        name, rules, kinds = "whole boards", SHELL_RULES, SHELL_KINDS
    able = {**(SERVER_KINDS if options.mode in ("server", "both") else {}), **kinds}
    wide = max(map(len, EVERY_KIND))
    say("faults, in so many schedules:")
    for kind in (kind for kind in EVERY_KIND if kind in able):
        count = result.faults[kind]
        say(f"  {kind:{wide}}  {count:6}  {count / max(1, result.schedules):6.1%}")
    for what, checked, looked, among in (
        (name, rules, result.looked, result.schedules - result.server),
        ("server runs", SERVER_RULES, result.looked_server, result.server),
    ):
        if looked:
            say(f"rules that had something to look at, in so many of {among} schedules of {what}:")
            say("  " + ", ".join(f"{rule} {looked[rule]}" for rule in checked))
    say(f"server runs: {result.server}")
    plain, momenta = _parts(result.algorithms)
    tables = (
        ("algorithms", plain),
        ("momentum", momenta),
        ("topologies", result.topologies),
        ("codecs", result.codecs),
    )
    for what, table in tables:
        say(f"{what}: " + ", ".join(f"{name} {count}" for name, count in sorted(table.items())))
    rate = result.schedules / result.seconds if result.seconds else 0.0
    say(
        f"{result.schedules} schedules, {result.violations} violations, {_twice(result)}; "
        f"{rate:.1f} schedules and {result.events / max(result.seconds, 1e-9):.0f} events a second, "
        f"{result.schedules / max(result.cpu_s, 1e-9):.1f} schedules a second and core of CPU time"
    )
    for rule, count in sorted(result.rules.items()):
        say(f"  {rule}: {count}")
    _failures(result.failures[:10], say)


def _twice(result: Result) -> str:
    """How many were run again, and what came of it."""
    if not result.replays:
        return f"none run twice (the first and every {REPLAY_EVERY}th are, unless they fail)"
    other = result.rules[REPLAY]
    return f"{result.replays} run twice, " + (f"{other} of them with another hash" if other else "with the same hash")


def _parts(algorithms: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
    """Counts by algorithm and by momentum, of counts by NAME[+MOMENTUM]."""
    plain: Counter[str] = Counter()
    momenta: Counter[str] = Counter()
    for name, count in algorithms.items():
        algorithm, _, momentum = name.partition("+")
        plain[algorithm] += count
        momenta[momentum or "none"] += count
    return plain, momenta


def _failures(failures: Sequence[tuple[int, str, str]], say: Say) -> None:
    for seed, _, text in failures:
        say(f"  seed {seed}: {text}")
