"""One schedule: who takes part, what they train, and what breaks when. All of it drawn from one
seed, each part by a generator of its own, so that fixing one part leaves the others as they
were.

Training is in miniature: node i pulls its model z towards its own optimum b_i, by -lr A_i (z -
b_i) with a positive diagonal A_i (`quadratic`). `quadratic-alike`: all of them begin with the
same model, as boards do, so that streams of differences need no full state at first.
`consensus`: no training at all, from different models, so that what the nodes agree on is known."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, TypeVar

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.choices import unknown
from edgegossip.codecs import auto
from edgegossip.gossip import topologies
from edgegossip.gossip.averaging import default_eta
from edgegossip.gossip.base import NodeView, Topology
from edgegossip.gossip.momentum import KINDS as MOMENTA
from edgegossip.gossip.outer import KINDS as OPTIMIZERS
from edgegossip.gossip.robust import RULES
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import ConfigError, EdgegossipError, LocalUpdate, Vec, replace
from lab.sim import faults as fault_words
from lab.sim import naming
from lab.sim.faults import Fault
from lab.sim.naming import Named

T = TypeVar("T")

ROUND_S = 0.7  # what a round takes, about, when nothing is wrong
ROUNDS = 3, 6  # with faults: most of what goes wrong does so within a few rounds, and short schedules are many
VALUES = 16
SMALL = 4  # nodes, up to which a complete graph is as likely as any other
LONG = frozenset({"random-pairs", "epidemic"})  # everybody is met in three times as many rounds as on the others
PUT_OFF = 0.6  # share of the draws of a costly topology in which any other is rather taken
FREE = 4  # times as long is waited where a node runs ahead in rounds in which it hears from nobody that is up
WIRE_EVERY = 4  # schedules, of which one has every frame as bytes
# Mistakes show about as often among few, and in a third of the time.
NODES = (*(2,) * 17, *(3,) * 25, *(4,) * 10, *(5,) * 4, 6, 6, 7, 8, 12, 18)
CODECS = (
    *(Named("fp32"),) * 6,
    *(Named("minmax8"), Named.of("qsgd", {"bits": 6}), Named.of("topk", {"ratio": 0.25})) * 2,
    *(Named("elastiquant"), Named("fp16")) * 2,
    Named("auto"),  # it looks for a step for every message, which takes its time
)
HONEST = 4  # nodes, from which on one may lie: else no honest majority, nor two to compare in the end, would be left
ROBUST = 0.05  # share of the schedules whose mixing bears one liar
ROBUST_NODES = (4, 4, 5, 6)
# Share of the schedules with more boards and rounds: whom a board relies on, and how it catches up,
# shows in these.
LARGE, LARGE_NODES, LARGE_ROUNDS = 0.03, (4, 5, 6, 7, 8), (12, 24)
STREAMS = 0.4  # share of those with an outer optimiser that overlap, or exchange fragments


@dataclass(frozen=True, slots=True)
class Options:
    """Says what is fixed of the schedules that `draw` makes; None: drawn from the seed."""

    algorithms: tuple[Named, ...] | None = None
    topology: Named | None = None
    codec: Named | None = None
    nodes: int | None = None
    rounds: int | None = None
    workload: str | None = None
    deadline_s: float | None = None
    values: int = VALUES
    faults: str = "all"
    mode: str = "gossip"  # or "server", or "both": one seed in four is a server run; or "shell": whole boards
    server: str | None = None  # KEY=VALUE,... of a server run's settings


@dataclass(frozen=True, slots=True)
class Schedule:
    """Holds everything that decides what happens, besides the code."""

    seed: int
    algorithm: Named
    topology: Named
    codec: Named
    nodes: int
    values: int  # of the model
    rounds: int  # about so many with faults
    workload: str
    deadline_s: float
    faults: tuple[Fault, ...]
    mode: str = "gossip"  # or "shell": whole boards play it

    @property
    def seconds(self) -> float:
        """Return the virtual time until everything is well again."""
        return max(self.rounds * ROUND_S, *(f.end for f in self.faults), 0.0)

    @property
    def by_wire(self) -> bool:
        """Tell whether every frame is made of bytes and read from them, in one of four
        schedules; else those that nobody tampers with arrive as they are, which is the same and
        takes less time."""
        return int(of(self.seed, "wire").random() * WIRE_EVERY) == 0

    def command(self) -> str:
        """Return a command line that replays exactly this."""
        words = [
            *("python", "-m", "lab.sim", "--seed", str(self.seed), "--algorithm", str(self.algorithm)),
            *("--topology", str(self.topology), "--codec", str(self.codec), "--boards", str(self.nodes)),
            *("--rounds", str(self.rounds), "--workload", self.workload, "--deadline", f"{self.deadline_s:g}"),
            *(("--values", str(self.values)) if self.values != VALUES else ()),
            *("--faults", ",".join(map(str, self.faults)) or "none"),
            *(("--mode", self.mode) if self.mode != "gossip" else ()),
        ]
        return shlex.join(words)


def draw(seed: int, options: Options, kinds: Mapping[str, fault_words.Kind] = fault_words.KINDS) -> Schedule:
    """Draw the schedule of a seed, with faults of these kinds; what is drawn goes with what is
    fixed. Raises ConfigError on an unknown name or parameter, and when what is fixed does not go
    together."""
    _check_words(options)
    codec = options.codec or pick(seed, "codec", CODECS)
    robust = options.algorithms is None and of(seed, "robust").random() < ROBUST
    large = options.mode != "shell" and of(seed, "large").random() < LARGE
    choices = ROBUST_NODES if robust else LARGE_NODES if large else NODES
    nodes = options.nodes or _nodes(seed, options.topology, choices)
    algorithm = _algorithm(seed, options, codec, nodes, robust)
    if options.codec is None and not _rate_may_be_left(algorithm, codec):
        codec = CODECS[0]
    topology = options.topology or _fitting(seed, algorithm, codec, nodes, options.values)
    for each in options.algorithms or (algorithm,) if options.topology else ():
        if fault := unfit(each, topology, codec, nodes, options.values):
            raise ConfigError(fault)
    least, most = LARGE_ROUNDS if large else ROUNDS
    rounds = options.rounds or least + int(of(seed, "rounds").random() * (most - least + 1))
    spec = fault_words.parse(options.faults, kinds)
    if options.mode != "shell":
        spec = replace(spec, pool=_with_company(spec.pool, nodes))
    built, name = naming.topology_of(topology, nodes), algorithm.name.partition("+")[0]
    return Schedule(
        seed,
        algorithm,
        topology,
        codec,
        nodes,
        options.values,
        rounds,
        options.workload or _workload(seed, algorithm),
        options.deadline_s or pick(seed, "deadline", (2.0, 4.0)) * (FREE if topology.name in LONG else 1),
        fault_words.draw(spec, of(seed, "faults"), nodes, edges(built), rounds * ROUND_S, name),
    )


def _with_company(kinds: Sequence[str], nodes: int) -> tuple[str, ...]:
    """Those of the kinds that leave two honest nodes or more, and liars fewer than these."""
    alone = {"leave"} if nodes == 2 else set()
    return tuple(k for k in kinds if k not in alone and (nodes >= HONEST or k not in fault_words.BYZANTINE))


def _check_words(options: Options) -> None:
    """Names and parameters, before anything is made of them. Raises ConfigError."""
    for algorithm in options.algorithms or ():
        naming.algorithm_of(algorithm)
    if options.codec is not None:
        naming.codec_of(options.codec)
    if options.workload is not None:
        check_workload(options.workload)


def _nodes(seed: int, topology: Named | None, choices: Sequence[int]) -> int:
    """How many; of those that a fixed topology can have."""
    nodes = pick(seed, "nodes", choices)
    if topology is None or _exists(topology, nodes):
        return nodes
    able = [n for n in choices if _exists(topology, n)]
    return pick(seed, "nodes", able) if able else nodes  # with nodes that it cannot have, to fail with its own words


@lru_cache(maxsize=1024)
def _exists(topology: Named, nodes: int) -> bool:
    try:
        naming.topology_of(topology, nodes)
    except EdgegossipError:
        return False
    return True


def _algorithm(seed: int, options: Options, codec: Named, nodes: int, robust: bool) -> Named:
    """One of those that are fixed, or of all that take what else is fixed; `robust`: one that bears
    a liar, if any can."""
    if options.algorithms is not None:
        return pick(seed, "algorithm", options.algorithms)
    if robust and (bearing := _bearing(codec, nodes, options.topology or Named("complete"), options.values)):
        return pick(seed, "algorithm", bearing)
    algorithm = with_params(seed, pick(seed, "algorithm", every_algorithm()), codec)

    def suits(named: Named) -> bool:
        if options.topology is not None:
            return fits(named, options.topology, codec, nodes, options.values)
        fragments = named.values.get("outer_fragments", 1)
        return fragments <= options.values and (options.codec is None or _rate_may_be_left(named, codec))

    if suits(algorithm):
        return algorithm
    able = [named for named in every_algorithm() if suits(named)]
    return pick(seed, "algorithm", able) if able else algorithm


@lru_cache(maxsize=1024)
def _bearing(codec: Named, nodes: int, topology: Named, values: int) -> tuple[Named, ...]:
    """Every algorithm that mixes so that a liar is borne."""
    able = []
    for plain in every_algorithm():
        for rule in RULES:
            named = Named.of(plain.name, {"malicious_nodes": 1, "malicious_rule": rule})
            able += [named] if fits(named, topology, codec, nodes, values) else []
    return tuple(able)


def of(seed: int, what: str) -> Random:
    """Return a generator for one purpose."""
    return Random(f"{seed}/{what}")


def pick(seed: int, what: str, choices: Sequence[T]) -> T:
    """Draw one of `choices` by a generator of its own."""
    return choices[int(of(seed, what).random() * len(choices))]


def edges(topology: Topology) -> set[tuple[int, int]]:
    """Return (sender, receiver) of any round."""
    return {(j, i) for r in range(topology.period) for i in range(topology.n) for j in topology.neighbours(i, r).in_}


@lru_cache(maxsize=1)
def every_algorithm() -> tuple[Named, ...]:
    """Return each algorithm twice as it is, and once with each momentum and each outer optimiser
    that it takes."""
    plain = gossip.names()
    momenta = [f"{n}+{m}" for n in plain for m in MOMENTA if m != "none"]
    outers = [f"{n}+{naming.OUTER}{kind}" for n in plain for kind in OPTIMIZERS]
    every = map(Named, (*plain, *plain, *momenta, *outers))
    return tuple(named for named in every if naming.OUTER not in named.name or _is_algorithm(named))


def _is_algorithm(named: Named) -> bool:
    try:
        naming.algorithm_of(named)
    except ConfigError:
        return False
    return True


def with_params(seed: int, algorithm: Named, codec: Named) -> Named:
    """Set something else than the defaults now and then, of the parameters that the algorithm
    has. An averaging rate is no larger than what the algorithm itself would take with this
    codec: more need not be stable."""
    rng = of(seed, "params")
    name = algorithm.name.partition("+")[0]
    params: dict[str, Any] = {}
    for key, share, values in (("staleness", 0.2, (1, 2)), ("quorum", 0.2, (0.5, 0.7)), ("eta", 0.25, (0.3, 0.6))):
        drawn, value = rng.random(), values[int(rng.random() * len(values))]
        if key == "staleness" and (name == "d2" or naming.OUTER in algorithm.name):
            continue  # extrapolating from old news (2 x_t - x_(t-1)) has no reason to converge, and does not
        if drawn < share and takes(name, key, value):
            params[key] = min(value, _largest_eta(name, codec)) if key == "eta" else value
    if naming.OUTER in algorithm.name:
        params |= _streams(rng, algorithm)
    return Named.of(algorithm.name, {**algorithm.values, **params})


def _streams(rng: Random, algorithm: Named) -> dict[str, Any]:
    """Overlap an outer optimiser's exchanges, or have them be of fragments, where it can."""
    ways: tuple[dict[str, Any], ...] = ({"outer_overlap": True}, {"outer_fragments": 2})
    way = {**ways[int(rng.random() * len(ways))], "outer_momentum": 0.3}
    able = rng.random() < STREAMS and _is_algorithm(Named.of(algorithm.name, way))
    return way if able else {}


@lru_cache(maxsize=1024)
def takes(algorithm: str, key: str, value: float) -> bool:
    """Tell whether an algorithm has such a parameter."""
    try:
        gossip.get(algorithm, **{key: value})
    except ConfigError:
        return False
    return True


def _workload(seed: int, algorithm: Named) -> str:
    """Without training nothing would ever move where all nodes must start from one model."""
    alike = algorithm.name.partition("+")[0] in EQUAL_START
    return "quadratic-alike" if alike else pick(seed, "workload", DRAWN_WORKLOADS)


@lru_cache(maxsize=1024)
def _largest_eta(algorithm: str, codec: Named) -> float:
    """The default of an algorithm whose averaging rate goes by the codec; 1 for the others."""
    own = naming.param_of(naming.algorithm_of(Named(algorithm)), "eta", 1.0)
    return own or round(default_eta(naming.codec_of(codec)), 3)


def _fitting(seed: int, algorithm: Named, codec: Named, nodes: int, values: int) -> Named:
    """A topology that the algorithm takes."""
    rng = of(seed, "topology")
    names = [n for n in topologies.names() if n != "file"]
    faults: dict[str, str] = {}
    while names:
        named = Named(names.pop(int(rng.random() * len(names))))
        costly = named.name in LONG or (named.name == "complete" and nodes > SMALL)  # n (n - 1) messages a round
        if costly and names and rng.random() < PUT_OFF:
            names.insert(0, named.name)
            continue
        fault = unfit(algorithm, named, codec, nodes, values)
        if fault is None:
            return named
        faults[named.name] = fault
    raise ConfigError(f"no topology of {nodes} nodes suits {algorithm} with {codec}; ring: {faults['ring']}")


def fits(algorithm: Named, topology: Named, codec: Named, nodes: int, values: int) -> bool:
    """Tell whether the algorithm takes the topology."""
    return unfit(algorithm, topology, codec, nodes, values) is None


@lru_cache(maxsize=65536)
def unfit(algorithm: Named, topology: Named, codec: Named, nodes: int, values: int) -> str | None:
    """Say why the algorithm does not take the topology; None where it does."""
    try:
        if not _rate_may_be_left(algorithm, codec):
            return f"the codec auto does not go with {algorithm}, whose rounds do not wait for one message each"
        view = view_of(naming.topology_of(topology, nodes), codec, nodes, values)
        naming.algorithm_of(algorithm).init(np.zeros(values, np.float32), view)
    except ConfigError as error:
        return str(error)
    return None


def _rate_may_be_left(algorithm: Named, codec: Named) -> bool:
    """Tell whether the codec is none whose rate the engine chooses, or it can."""
    built = naming.algorithm_of(algorithm)
    return codec.name != "auto" or not (built.asynchronous or built.bodies > 1 or naming.streams(built))


def layout_of(values: int) -> Layout:
    """Return a layout of two tensors, so that codecs that work tensor by tensor have something
    to do."""
    first = max(1, values * 3 // 4)
    rest = [TensorSpec("bias", (values - first,))] if values > first else []
    return Layout.of([TensorSpec("weight", (first,)), *rest])


def view_of(
    topology: Topology,
    codec: Named,
    nodes: int,
    values: int,
    seed: int = 0,
    deadline_s: float = 2.0,
    repaired: bool = False,
) -> NodeView:
    """Make the view of node 0. `repaired`: the algorithm's messages make up for what one loses,
    which decides what `auto` is."""
    members = tuple(naming.member_names(nodes))
    run_id = seed.to_bytes(16, "big", signed=True)
    layout = layout_of(values)
    made = naming.codec_of(codec)
    if codecs.leaves_rate(made):
        made = auto.for_scheme(made, repaired)
    return NodeView(members[0], members, topology, layout, made, run_id, seed, deadline_s)


EQUAL_START = frozenset({"bagua-lp", "parallel-sgd"})  # algorithms whose definition starts from one model on all nodes
WORKLOADS = ("quadratic", "quadratic-alike", "consensus")
DRAWN_WORKLOADS = ("quadratic", *("quadratic-alike",) * 4, "consensus", "consensus", "consensus")
LEARNING_RATE = 0.1
UNEVEN = 0.3  # share of the schedules in which nodes have learning rates and numbers of steps of their own


def check_workload(name: str) -> None:
    """Raise ConfigError unless this is one of WORKLOADS."""
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)


class Workload:
    """Trains in miniature. `values` is the size of the model. `equal`: nodes start from one
    model whatever the name says."""

    def __init__(self, name: str, nodes: int, values: int, seed: int, equal: bool) -> None:
        check_workload(name)
        rng, equal = np.random.default_rng(seed), equal or name == "quadratic-alike"
        starts = rng.normal(size=(1 if equal else nodes, values)).astype(np.float32)
        self.starts: list[Vec] = [starts[i % len(starts)] for i in range(nodes)]  # float32[values] each
        self.trains = name != "consensus"
        self._pull = -LEARNING_RATE * rng.uniform(0.5, 1.5, (nodes, values)).astype(np.float32)  # -lr A_i
        self._optimum = rng.normal(1.0, 1.0, (nodes, values)).astype(np.float32)
        self.still = LocalUpdate(np.zeros(values, np.float32), 0.0, 0.0, 1, 1)  # changes nothing
        chance = of(seed, "steps").random
        uneven = chance() < UNEVEN
        self._steps = [1 + int(3 * chance()) if uneven else 1 for _ in range(nodes)]
        self._rates = [0.5 + chance() if uneven else 1.0 for _ in range(nodes)]  # times LEARNING_RATE

    def update(self, node: int, z: Vec, quiet: bool, correction: Vec | None = None) -> LocalUpdate:
        """Return one round's training at z, each step with the correction, float32[n]; none when
        quiet."""
        corrected = correction is not None
        if quiet or not self.trains:
            return replace(self.still, corrected=corrected)
        steps, rate, x = self._steps[node], np.float32(self._rates[node]), z
        lr = LEARNING_RATE * float(rate)
        for _ in range(steps):
            x = x + rate * ((x - self._optimum[node]) * self._pull[node])
            if correction is not None:
                x = x - np.float32(lr) * correction
        return LocalUpdate(x - z, lr, 1.0, 1, steps, corrected=corrected)
