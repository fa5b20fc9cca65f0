"""Kinds of faults, and the words that name them on the command line.

A fault SPEC is a list of entries, separated by commas or blanks:

- `KIND` or `KIND=AMOUNT`: drawn from the seed. For kinds that hit messages the amount is their
  strength (a probability, or seconds for `delay`); for the others it is how many times it happens.
- `KIND[=STRENGTH]@FROM-TO[:NODES]`: exactly this one, in virtual seconds, as a trace or a shrunk
  failure names it. NODES are indices joined by `+`: the node, sender and receiver of an edge, or
  one side of a split.
- `all`: a few kinds, drawn from the seed. `none`: nothing. An entry `-KIND` takes a kind out of
  `all`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Literal, TypeVar

from edgegossip.choices import did_you_mean
from edgegossip.types import ConfigError

T = TypeVar("T")

Scope = Literal["messages", "edge", "side", "node", "whole"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Describes one kind of fault. `low`..`high` bound the strength, in `unit`; what is drawn
    lies between them. `all` draws it `often` times as often as others, and only with the
    algorithms of `among`, if it says any: those whose messages it can change. `share`: instead,
    in this share of schedules, whatever else is drawn."""

    name: str
    scope: Scope
    help: str
    low: float = 1.0
    high: float = 1.0
    unit: str = ""
    often: int = 1
    among: frozenset[str] = frozenset()
    share: float = 0.0


WEIGHED = frozenset({"sgp", "sparse-push", "quant-sgp", "parallel-sgd"})  # whose full states bring weights or counts
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        k.name: k
        for k in (
            Kind("delay", "messages", "messages take up to so many seconds longer, in order", 0.1, 3.0, "s"),
            Kind("loss", "messages", "messages are lost with this probability", 0.02, 0.5, "probability"),
            Kind("duplication", "messages", "messages arrive twice with this probability", 0.05, 0.6, "probability"),
            Kind("reorder", "messages", "messages overtake others with this probability", 0.05, 0.6, "probability"),
            Kind(
                "replay",
                "messages",
                "messages arrive again seconds later, whoever is there by then",
                0.02,
                0.3,
                "probability",
            ),
            Kind("one-way-cut", "edge", "nothing gets from the first node to the second"),
            Kind("split", "side", "nothing gets from one side to the other"),
            Kind("slow-link", "edge", "each message between the two takes so many seconds, one by one", 0.2, 1.5, "s"),
            Kind("flapping", "edge", "the link between the two goes down and up, so many seconds each", 0.2, 1.5, "s"),
            Kind("crash", "node", "the process dies and restarts from its newest checkpoint"),
            Kind(
                "old-checkpoint",
                "node",
                "the same, from a checkpoint that is so many files older",
                1,
                4,
                "files",
                often=2,  # as often as not there is only one yet
            ),
            Kind("empty-disk", "node", "the same, with nothing on its disk"),
            Kind("torn-write", "node", "the same, and the newest checkpoint cannot be read"),
            Kind(
                "lost-write", "node", "the same, and the last so many checkpoints never reached the disk", 1, 3, "files"
            ),
            Kind(
                "newcomer",
                "node",
                "the process dies and comes back with nothing on its disk when the others are far ahead",
                share=0.06,
            ),
            Kind("full-disk", "node", "checkpoints are not written while its disk is full"),
            Kind("slow-disk", "node", "a checkpoint is on its disk only so many seconds later", 0.5, 5.0, "s"),
            Kind("deaf", "node", "what is sent to the node is lost, though all seems to be well"),
            Kind("pause", "node", "the process stands still, then goes on as if nothing had happened"),
            Kind("clock-jump", "node", "the node's clock jumps by so many seconds", -4.0, 20.0, "s"),
            Kind("late-join", "node", "the node comes only then; the others start without it"),
            Kind("leave", "node", "the node says goodbye and does not come back"),
            Kind("byzantine-nan", "node", "this share of its messages holds NaN", 0.1, 1.0, "share"),
            Kind(
                "byzantine-huge",
                "node",
                "values of a few of its messages are a million times too large",
                0.1,
                1.0,
                "share",
            ),
            Kind("byzantine-weight", "node", "this share of its messages has a weight below zero", 0.1, 1.0, "share"),
            Kind(
                "byzantine-state",
                "node",
                "this share of its full states brings far too much weight",
                0.1,
                1.0,
                "share",
                often=4,  # in three of four schedules nobody asks the liar for a full state in time
                among=WEIGHED,
            ),
            Kind("byzantine-far", "node", "one message to each neighbour is of a round far ahead", 0.1, 1.0, "share"),
            Kind(
                "byzantine-tags", "node", "this share of its messages lacks numbers beside the body", 0.1, 1.0, "share"
            ),
            Kind("byzantine-run", "node", "this share of its messages is of another run", 0.1, 1.0, "share"),
            Kind("byzantine-mutation", "node", "this share of its messages is changed at random", 0.1, 1.0, "share"),
            Kind(
                "byzantine-flood",
                "node",
                "with this share of its messages come dozens more, of later rounds",
                0.1,
                1.0,
                "share",
                share=0.04,
            ),
            Kind(
                "other-model",
                "side",
                "these come with data that make another model, and then with the right ones",
                share=0.06,
            ),
            # What is drawn of those above stays as it was: these come after it.
            Kind("byzantine-silent", "node", "this share of its messages is never sent", 0.1, 1.0, "share", share=0.05),
            Kind(
                "byzantine-round",
                "node",
                "this share of its messages is of another round",
                0.1,
                1.0,
                "share",
                share=0.04,
            ),
            Kind("slow", "node", "the node trains so many times longer", 1.5, 6.0, "times", share=0.06),
        )
    }
)
SERVER_KINDS: Mapping[str, Kind] = MappingProxyType(  # of server runs: nodes are boards
    {
        k.name: k
        for k in (
            *(KINDS[name] for name in ("delay", "loss", "duplication", "reorder", "replay")),
            Kind("split", "side", "nothing gets to and from these boards"),
            *(KINDS[name] for name in ("crash", "empty-disk", "pause", "late-join", "leave")),
            Kind("fleet-away", "whole", "all boards die at once, as in a power cut, and come back", often=2),
            Kind("slow", "node", "the board trains so many times longer", 2.0, 30.0, "times"),
            Kind("hang", "node", "this share of its answers never comes", 0.2, 1.0, "share"),
            Kind("error", "node", "this share of its answers says that training failed", 0.2, 1.0, "share"),
            Kind(
                "coordinator-kill",
                "whole",
                "the coordinator dies so many steps later, and is back",
                0,
                40,
                "steps",
                often=3,
            ),
            Kind("coordinator-power-cut", "whole", "the same, and its disk loses what was not synced", 0, 40, "steps"),
            Kind("coordinator-torn-write", "whole", "the same, and its newest file cannot be read", 0, 40, "steps"),
            Kind("coordinator-lost-write", "whole", "the same, and its newest file is gone", 0, 40, "steps"),
            Kind("coordinator-pause", "whole", "the coordinator stands still, then goes on"),
            Kind("stop", "whole", "the coordinator is told to stop", share=0.02),
            *(KINDS[f"byzantine-{name}"] for name in ("nan", "huge", "tags", "run", "mutation")),
            Kind("byzantine-claim", "node", "this share of its updates claims nonsense", 0.1, 1.0, "share"),
            Kind("byzantine-examples", "node", "this share claims far too many examples", 0.1, 1.0, "share"),
            Kind("byzantine-stale", "node", "this share of its answers has an update of before", 0.1, 1.0, "share"),
            Kind("byzantine-answer", "node", "this share of its answers is to another question", 0.1, 1.0, "share"),
            Kind("byzantine-evaluation", "node", "this share of its evaluations is nonsense", 0.1, 1.0, "share"),
            Kind("byzantine-name", "node", "the board joins again, by the name of another", 0.1, 1.0, "share"),
            Kind(
                "other-layout",
                "node",
                "the board comes with another model than the coordinator's, then with the right one",
                share=0.05,
            ),
            Kind(
                "other-labels",
                "node",
                "the board comes with other labels than the others', then with the right ones",
                share=0.06,
            ),
        )
    }
)
# Of whole boards alone, whose members talk of each other, and whose disks are as others are.
FRAMING = Kind("byzantine-framing", "node", "it tells others that a third one is gone", share=0.2)
FAILING_DISK = Kind("failing-disk", "node", "its disk has errors at each write, for a while")
POWER_CUT = Kind("power-cut", "node", "it loses power: its disk has what was synced, and of the rest what it likes")
OTHER_VERSION = Kind(
    "other-version",
    "node",
    "it comes with another version of membership (1), mesh (2) or codec (3), and then with the right one",
    1,
    3,
    "protocol",
    share=0.12,
)
CERTIFICATE = Kind("certificate-ends", "node", "its certificate ends, and then it gets a new one", share=0.15)
OF_BOARDS: Mapping[str, Kind] = MappingProxyType(
    {kind.name: kind for kind in (FRAMING, FAILING_DISK, POWER_CUT, OTHER_VERSION, CERTIFICATE)}
)
_MODES = (
    ("gossip", "gossip runs", KINDS),
    ("server", "server runs", SERVER_KINDS),
    ("shell", "whole boards", OF_BOARDS),
)
EVERY_KIND: Mapping[str, Kind] = MappingProxyType({**SERVER_KINDS, **KINDS, **OF_BOARDS})
BYZANTINE = frozenset(k for k in EVERY_KIND if k.startswith("byzantine"))
CRASHES = ("crash", "old-checkpoint", "empty-disk", "torn-write", "lost-write", "newcomer", "power-cut")
FLOOD = "byzantine-flood"
LONG, PAUSE_S = 0.3, (4.0, 12.0)  # share of pauses that last beyond deadlines
FEW = 5  # nodes, up to which nobody is ahead of another for many rounds
AWAY_S = 0.8  # that a round takes while a newcomer is away, at most
ENDLESS = frozenset({"clock-jump", "leave", "stop"})  # they happen at once; their end is none
MOST_DRAWN = 5  # kinds that `all` draws for one schedule
_EXACT = re.compile(r"(?P<from>[0-9.]+)-(?P<to>[0-9.]+)(?::(?P<nodes>[0-9+]+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """Is one fault of one schedule, from `start` to `end` (virtual seconds)."""

    kind: str
    start: float
    end: float
    strength: float
    nodes: tuple[int, ...] = ()  # see the module's words on NODES

    def __str__(self) -> str:
        """As an entry of a SPEC that gives exactly this fault again."""
        strength = f"={self.strength:g}" if EVERY_KIND[self.kind].unit else ""
        nodes = ":" + "+".join(map(str, self.nodes)) if self.nodes else ""
        return f"{self.kind}{strength}@{self.start:g}-{self.end:g}{nodes}"


@dataclass(frozen=True, slots=True)
class Spec:
    """Is a parsed SPEC. `pool` are kinds to draw a few from; `asked` are drawn in any case;
    `exact` are there as they are. `kinds`: those that such runs know."""

    pool: tuple[str, ...] = ()
    asked: tuple[tuple[str, float | None], ...] = ()
    exact: tuple[Fault, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)


def parse(text: str, kinds: Mapping[str, Kind] = KINDS) -> Spec:
    """Parse a SPEC for runs that know these kinds. Raises ConfigError that names the entry and what
    is allowed."""
    pool: list[str] = []
    asked: list[tuple[str, float | None]] = []
    exact: list[Fault] = []
    for entry in re.split(r"[,\s]+", text.strip()):
        if entry == "all":
            pool = list(kinds)
        elif entry.startswith("-") and entry[1:] in EVERY_KIND:
            pool = [k for k in pool if k != entry[1:]]
        elif entry not in ("none", ""):
            head, at, window = entry.partition("@")
            name, equals, amount = head.partition("=")
            kind = _kind(name, kinds)
            value = _number(entry, amount) if equals else None
            if at:
                exact.append(_exact(entry, kind, value, window))
            else:
                asked.append((name, _amount(entry, kind, value)))
    return Spec(tuple(pool), tuple(asked), tuple(exact), kinds)


def draw(
    spec: Spec,
    rng: Random,
    nodes: int,
    edges: Iterable[tuple[int, int]],
    seconds: float,
    algorithm: str | None = None,
) -> tuple[Fault, ...]:
    """Draw the faults of one schedule of `nodes` nodes with these (sender, receiver) edges.

    All of them are over after `seconds`, but for newcomers, who stay away for as long as it
    takes the others to get far ahead, and long pauses. Of those of `all` only what can do something
    to `algorithm` is drawn, if it is said. Raises ConfigError when an exact one names a node that
    is not there."""
    links, kinds = sorted(set(edges)), spec.kinds
    faults: list[Fault] = []
    for name, amount in spec.asked:
        kind = kinds[name]
        if kind.scope == "messages":
            faults.append(_one(kind, rng, nodes, links, seconds, amount))
        else:
            faults += [_one(kind, rng, nodes, links, seconds) for _ in range(int(amount or 1))]
    if spec.pool:
        able = [k for k in spec.pool if algorithm is None or not kinds[k].among or algorithm in kinds[k].among]
        pool = [k for k in able if not kinds[k].share]
        count = min(int(rng.random() * (MOST_DRAWN + 1)), len(pool))
        often = [k for k in pool for _ in range(kinds[k].often)]
        faults += [_one(kinds[k], rng, nodes, links, seconds) for k in _sample(rng, often, count)]
        for kind in (kinds[k] for k in able if kinds[k].share):
            if rng.random() < kind.share:
                faults.append(_one(kind, rng, nodes, links, seconds))
    for fault in spec.exact:
        if any(i >= nodes for i in fault.nodes):
            raise ConfigError(f"--faults {fault}: there are {nodes} nodes, 0 to {nodes - 1}")
    return _with_one_liar([*faults, *spec.exact])


def _with_one_liar(faults: list[Fault]) -> tuple[Fault, ...]:
    """In order of time; of the nodes that lie only one does, and only one leaves."""
    kept: list[Fault] = []
    liar = next((f.nodes for f in faults if f.kind in BYZANTINE), None)
    for fault in faults:
        if fault.kind in BYZANTINE and fault.nodes != liar:
            fault = Fault(fault.kind, fault.start, fault.end, fault.strength, liar or ())
        if fault.kind in ("leave", "late-join") and any(f.kind == fault.kind for f in kept):
            continue
        kept.append(fault)
    return tuple(sorted(kept, key=lambda f: (f.start, f.end, f.kind, f.nodes)))


def _one(
    kind: Kind, rng: Random, nodes: int, links: list[tuple[int, int]], seconds: float, strength: float | None = None
) -> Fault:
    start, length = rng.random() * 0.7 * seconds, (0.05 + 0.45 * rng.random()) * seconds
    if kind.scope == "messages" and rng.random() < 0.3:
        start, length = 0.0, seconds
    if kind.name == "late-join":
        start = 0.0
    if strength is None:
        strength = kind.low + (kind.high - kind.low) * rng.random()
    if kind.unit in ("files", "steps", "protocol"):
        strength = round(strength)
    where: tuple[int, ...] = ()
    if kind.scope == "edge":
        where = links[int(rng.random() * len(links))]
    elif kind.scope == "node":
        where = (int(rng.random() * nodes),)
    elif kind.scope == "side":
        where = tuple(sorted(_sample(rng, tuple(range(nodes)), 1 + int(rng.random() * (nodes - 1)))))
    end = seconds if kind.name == FLOOD else min(start + length, seconds)  # shorter, it often floods nobody
    if kind.name == "pause" and rng.random() < LONG:
        end = start + PAUSE_S[0] + (PAUSE_S[1] - PAUSE_S[0]) * length / seconds
    if kind.name == "newcomer" and nodes <= FEW:
        end = start + (nodes + 2 + 8 * length / seconds) * AWAY_S
    return Fault(kind.name, round(start, 2), round(end, 2), round(strength, 2), where)


def _sample(rng: Random, things: Sequence[T], count: int) -> list[T]:
    """Without repetition, what is there several times as often; by `random()` alone, whose sequence
    is the same in every version of Python."""
    left, found = list(things), list[T]()
    for _ in range(count):
        found.append(left[int(rng.random() * len(left))])
        left = [thing for thing in left if thing != found[-1]]
    return found


def _kind(name: str, kinds: Mapping[str, Kind]) -> Kind:
    if name not in kinds:
        for mode, runs, others in _MODES:
            if name in others:
                raise ConfigError(f"--faults: {name} is a fault of {runs}: --mode {mode}")
        raise ConfigError(
            f"--faults: unknown kind {name!r}{did_you_mean(name, kinds)}; valid: all, none, {', '.join(kinds)}"
        )
    return kinds[name]


def _number(entry: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"--faults {entry}: {text!r} is not a number; write it as loss=0.2 or crash=2")
    return value


def _amount(entry: str, kind: Kind, value: float | None) -> float | None:
    if value is None:
        return None
    if kind.scope == "messages":
        most, unit = (1.0, "") if kind.unit == "probability" else (60.0, " s")
        if not 0.0 < value <= most:
            raise ConfigError(f"--faults {entry}: {kind.help}; it must be above 0 and at most {most:g}{unit}")
    elif value != int(value) or not 1 <= value <= 100:
        raise ConfigError(f"--faults {entry}: how many times it happens is a whole number from 1 to 100")
    return value


def _example(kind: Kind) -> str:
    """An exact entry of this kind."""
    nodes = {"messages": (), "edge": (0, 1), "node": (2,), "side": (0, 3), "whole": ()}[kind.scope]
    return str(Fault(kind.name, 3, 5, kind.low, nodes))


def _exact(entry: str, kind: Kind, value: float | None, window: str) -> Fault:
    match = _EXACT.fullmatch(window)
    if match is None:
        raise ConfigError(f"--faults {entry}: write it as KIND=STRENGTH@FROM-TO:NODES, such as {_example(kind)}")
    nodes = tuple(int(i) for i in (match["nodes"] or "").split("+") if i)
    wanted = {"messages": (0, 0), "edge": (2, 2), "node": (1, 1), "side": (1, 64), "whole": (0, 0)}[kind.scope]
    if not wanted[0] <= len(nodes) <= wanted[1]:
        words = {"edge": "2 nodes", "node": "1 node", "side": "the nodes of one side"}
        count = words.get(kind.scope, "no nodes")
        raise ConfigError(
            f"--faults {entry}: {kind.name} takes {count} after the colon, not {len(nodes)}; such as {_example(kind)}"
        )
    start, end = _number(entry, match["from"]), _number(entry, match["to"])
    if end < start:
        raise ConfigError(f"--faults {entry}: it ends before it starts")
    return Fault(kind.name, start, end, kind.low if value is None else value, nodes)
