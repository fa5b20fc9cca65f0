"""What is known of how a run went: gathers the verdict's evidence from records, as they come. Pure
arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from edgegossip import codecs, gossip
from edgegossip.codecs.base import Codec
from edgegossip.gossip.base import GossipAlgorithm
from edgegossip.gossip.order import with_order
from edgegossip.gossip.topologies import NOBODY
from edgegossip.telemetry.clocks import COORDINATOR
from edgegossip.telemetry.records import (
    EVALUATED,
    FAR_PREFIX,
    LINK_BYTES,
    LINK_PREFIX,
    LONG_PREFIX,
    EventRecord,
    MetricsRecord,
    in_order,
    score_text,
    scores_in,
    shown_scores,
)
from edgegossip.types import ConfigError, NodeId, better_of
from edgegossip.untrusted import Refusal, printable

ENOUGH_ROUNDS = 10  # before which nobody is told that nothing was learnt
MANY_ROUNDS = 100  # after which less than one pass over the data is enough
FEW_LOSSES = 5  # a curve of fewer rounds is none
_NAME = 60  # characters of a column that are shown


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Says what was to be done, as far as the run folder tells."""

    recipe: Mapping[str, Any] = field(default_factory=dict)  # plain tables
    classes: Sequence[int] = ()  # training examples of each class, over all boards; none: not known
    holds: Mapping[NodeId, int] = field(default_factory=dict)  # training examples of each board
    # Of each round of the topology's period, the pairs that exchange.
    edges: Sequence[Sequence[tuple[NodeId, NodeId]]] = ()

    @classmethod
    def of(
        cls,
        recipe: Mapping[str, Any],
        partition: Mapping[str, Any] | None = None,
        topology: Mapping[str, Any] | None = None,
    ) -> RunPlan:
        """Read it from a run folder's recipe, partition.json and topology.json."""
        counts = partition["counts"] if partition else []
        holds = {node: sum(row) for node, row in zip(partition["nodes"], counts, strict=True)} if partition else {}
        rounds = topology.get("rounds", []) if topology else []
        edges = [[(str(a), str(b)) for a, b in one.get("edges", ())] for one in rounds]
        return cls(recipe, [sum(column) for column in zip(*counts, strict=True)], holds, edges)

    def get(self, section: str, key: str) -> Any:
        """Return a recipe's value; None when it is not known."""
        table = self.recipe.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    @property
    def script(self) -> str:
        """The name of the user's training script, which goes by none of the keys of training and
        of which nobody knows how much of its data a round takes; "" where a recipe trains."""
        return PurePath(str(self.get("run", "script") or "")).name

    @property
    def alone(self) -> bool:
        """Whether each board was to train by itself: nothing was to be exchanged."""
        nobody = self.get("gossip", "topology") == NOBODY or (self.edges and not any(self.edges))
        return bool(self.get("run", "mode") == "gossip" and nobody)

    @property
    def lr(self) -> float | None:
        """The learning rate, where the recipe says it."""
        lr = self.get("training", "lr")
        return lr if isinstance(lr, float | int) and not self.script else None

    @property
    def eta(self) -> float | None:
        """The averaging rate that the recipe sets."""
        params = self.get("gossip", "params")
        eta = params.get("eta") if isinstance(params, Mapping) else None
        return float(eta) if isinstance(eta, float | int) and eta else None

    @property
    def algorithm(self) -> GossipAlgorithm[Any] | None:
        """The gossip algorithm; None with a coordinator, or where the recipe names none."""
        if self.get("run", "mode") == "server":
            return None
        with suppress(ConfigError, TypeError):
            algorithm = gossip.get(str(self.get("gossip", "algorithm")), **(self.get("gossip", "params") or {}))
            return with_order(algorithm, self.get("gossip", "order") or "auto", many_steps=bool(self.script))
        return None

    @property
    def codec(self) -> Codec[Any] | None:
        """The codec; None where the recipe names none."""
        with suppress(ConfigError, TypeError):
            return codecs.get(str(self.get("codec", "name")), **(self.get("codec", "params") or {}))
        return None

    @property
    def guess(self) -> float | None:
        """Accuracy of whoever says the most frequent class, always."""
        return max(self.classes) / sum(self.classes) if sum(self.classes) and len(self.classes) > 1 else None


@dataclass(frozen=True, slots=True)
class Untrained:
    """Says in how many of a board's rounds its training did not reach the model, or lost it."""

    rounds: int
    unchanged: int  # nothing of it changed
    elsewhere: int  # all steps were on other parameters
    undone: int = 0  # its steps began at older values than the exchange had brought

    @property
    def most(self) -> int:
        """In how many it did not at least."""
        return max(self.unchanged, self.elsewhere)


@dataclass(slots=True)
class BoardEvidence:
    """What is known of one board."""

    examples: float = 0.0  # seen in training
    rounds: int = 0
    alone: int = 0  # rounds that ended without news of any neighbour
    mixed: int = 0  # rounds that ended with some
    lost: float = 0.0  # relative error of its last message
    last: float | None = math.nan  # training loss of the last round; None: no number
    score: float | None = None
    scores: dict[str, float] = field(default_factory=dict)  # the last ones known
    tested_itself: bool = False
    loss: float | None = None  # of the last evaluation
    r2: float | None = None
    tested: float = 0.0  # examples of it
    untrained: Untrained | None = None
    away: float | None = None  # from the average, in lengths of it
    compared: int = 0  # rounds in which others' models were held against each other
    # Whose model lay far off, and whose direction was long -> rounds, sum of log times.
    far: dict[NodeId, list[float]] = field(default_factory=dict)
    long: dict[NodeId, list[float]] = field(default_factory=dict)
    sent: dict[NodeId, int] = field(default_factory=dict)  # neighbour -> last round in which it got something


class Curve:
    """The training loss by rounds, the mean over the boards; of a long run in at most POINTS
    stretches of equal length."""

    POINTS = 4096

    def __init__(self) -> None:
        self.rounds, self._width = 0, 1
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, step: int, loss: float) -> None:
        """Take in a board's loss of one round."""
        self.rounds = max(self.rounds, step + 1)
        while step // self._width >= self.POINTS:
            self._width *= 2
            sums, counts = self._sums, self._counts
            self._sums, self._counts = {}, {}
            for k, total in sums.items():
                self._put(k // 2, total, counts[k])
        self._put(step // self._width, loss, 1)

    def _put(self, k: int, total: float, count: int) -> None:
        self._sums[k] = self._sums.get(k, 0.0) + total
        self._counts[k] = self._counts.get(k, 0) + count

    @property
    def first(self) -> float:
        """The highest loss in the first twentieth of the run."""
        return max(self._means()[: self._window()])

    @property
    def start(self) -> float:
        """The loss at the start of one that has `ends`: what was learnt before the median of the
        first twentieth counts, too."""
        first, ends = self.first, self.ends()
        return first if ends is None or first > 2.0 * abs(ends[2]) else ends[0]

    def _means(self) -> list[float]:
        return [self._sums[k] / self._counts[k] for k in sorted(self._sums)]

    def _window(self) -> int:
        return max(1, len(self._sums) // 20)

    def ends(self) -> tuple[float, float, float] | None:
        """Return the loss at the start, at its least and at the end: medians over twentieths of the
        run. None of fewer than FEW_LOSSES rounds."""
        if self.rounds < FEW_LOSSES or len(self._sums) < FEW_LOSSES:
            return None
        means, size = self._means(), self._window()
        windows = [median(means[k : k + size]) for k in range(0, len(means) - size + 1, size)]
        windows.append(median(means[-size:]))
        return windows[0], min(windows), windows[-1]


class Evidence:
    """Takes the records of a run, in any order."""

    def __init__(self, plan: RunPlan | None = None) -> None:
        self.plan = plan or RunPlan()
        self.boards: dict[NodeId, BoardEvidence] = {}
        self.curve = Curve()
        self.score = ""  # the one that the task goes by, the first of these
        self._scores: list[str] = []
        # By what: scores by name of what boards made by themselves, of their models' average there.
        self.beside: dict[str, dict[NodeId, Mapping[str, float]]] = {"alone": {}, "average": {}}
        self.refused: dict[tuple[NodeId, str], Refusal] = {}  # by name and reason
        self.came: set[NodeId] = set()  # who was there at some time
        self.used: int | None = None  # updates of which a coordinator made models; None: there is none
        self.unused: set[NodeId] = set()  # whose updates were not among them
        self.quarantined: dict[NodeId, str] = {}
        self.drifted: dict[NodeId, str] = {}  # which frozen parameters did not stay as they were
        self.records_lost = 0
        self.stood_still: dict[NodeId, float] = {}  # seconds
        self.doubts: dict[str, set[NodeId]] = {}  # what is wrong with data -> whose
        self.sizes: dict[NodeId, Mapping[str, float]] = {}  # of inputs as a model gets them, by column

    def take(self, record: MetricsRecord | EventRecord) -> None:
        """Take in one record."""
        if isinstance(record, EventRecord):
            self._event(record)
            return
        node = self.boards.setdefault(record.node, BoardEvidence())
        node.rounds = max(node.rounds, record.step + 1)
        node.examples += record.number("train/examples") or 0.0
        if "train/loss" in record.values:
            node.last = record.number("train/loss")
            if node.last is not None:
                self.curve.add(record.step, node.last)
        node.lost = record.number("codec/relative_error") or node.lost
        if "server/used" in record.values:
            self.used = (self.used or 0) + int(record.number("server/used") or 0)
        if "gossip/heard" in record.values:
            heard = bool(record.number("gossip/heard"))
            node.alone, node.mixed = node.alone + (not heard), node.mixed + heard
        node.compared += bool(record.number("gossip/consensus_distance") or record.number("server/used"))
        if any(name.startswith(EVALUATED) for name in record.values):  # a script may tell no loss
            self._evaluated(node, record)
        for name in record.values:
            for prefix, of in ((FAR_PREFIX, node.far), (LONG_PREFIX, node.long)):
                if name.startswith(prefix) and (times := record.number(name) or 0.0) >= 1.0:
                    found = of.setdefault(name[len(prefix) :], [0, 0.0])
                    found[0], found[1] = found[0] + 1, found[1] + math.log(times)
            if name.startswith(LINK_PREFIX) and name.endswith(LINK_BYTES):
                peer = name[len(LINK_PREFIX) : -len(LINK_BYTES)]
                node.sent[peer] = max(record.step, node.sent.get(peer, 0))

    def _evaluated(self, node: BoardEvidence, record: MetricsRecord) -> None:
        node.loss, node.tested = record.number("eval/loss"), record.number("eval/examples") or 0.0
        node.r2, node.tested_itself = record.number("eval/r2"), True
        if names := scores_in(record.values):
            found = {name: value for name in names if (value := record.number(f"{EVALUATED}{name}")) is not None}
            node.scores = node.scores | found
            self._scores = in_order(self._scores, names)
            self.score = self._scores[0]
            for board in self.boards.values():
                board.score = board.scores.get(self.score)

    def _event(self, event: EventRecord) -> None:
        peer = str(event.fields.get("peer", ""))
        match event.name:
            case "compared":
                away, length = event.fields.get("distance"), event.fields.get("length")
                if isinstance(away, float | int) and isinstance(length, float | int) and length > 0:
                    node = self.boards.setdefault(event.node, BoardEvidence())
                    node.away = away / length
            case "unchanged" if "rounds" in event.fields:  # else the first round of that kind
                counts = (int(_number(event, key)) for key in ("rounds", "unchanged", "elsewhere", "undone"))
                self.boards.setdefault(event.node, BoardEvidence()).untrained = Untrained(*counts)
            case "drifted":
                self.drifted[event.node] = str(event.fields.get("tensors", ""))
            case "averaged":
                self.beside["average"][event.node] = shown_scores(event.fields)
            case "trained-alone":
                self.beside["alone"][event.node] = shown_scores(event.fields)
            case "refused" if "why" in event.fields:  # else a message was, and nobody
                refusal = Refusal(*(str(event.fields.get(key, "")) for key in ("who", "address", "why")))
                self.refused.setdefault((peer or refusal.who or refusal.address, refusal.why), refusal)
            case "holds":
                self.sizes[event.node] = held_sizes(event)
            case "doubt":
                self.doubts.setdefault(str(event.fields.get("why", event.text)), set()).add(event.node)
            case "records-lost":
                self.records_lost += int(_number(event, "records"))
            case "starved":
                self.stood_still[event.node] = self.stood_still.get(event.node, 0.0) + _number(event, "seconds")
            case "peer-up" | "member-here":
                self.came.add(peer)
            case "readmitted":
                self.quarantined.pop(peer, None)
            case "unused":
                self.unused.add(peer)
            case "quarantine":
                self.quarantined[peer] = event.text


class Outcome:
    """Is what the boards that finished came to."""

    def __init__(self, evidence: Evidence, finished: Collection[NodeId]) -> None:
        self.evidence, self.plan = evidence, evidence.plan
        self.boards = {name: board for name, board in evidence.boards.items() if name in finished}

    @property
    def judged(self) -> Mapping[NodeId, BoardEvidence]:
        """Whose evaluations count: the coordinator's for all, where it has some. Of one model,
        scores on each board's own test set tell those sets apart, and not the boards."""
        whole = self.evidence.boards.get(COORDINATOR)
        return self.boards if whole is None or whole.score is None else {COORDINATOR: whole}

    @property
    def scores(self) -> dict[NodeId, float]:
        """The scores that count."""
        return {name: board.score for name, board in self.judged.items() if board.score is not None}

    @property
    def tested(self) -> float:
        """How many examples the largest of their test sets has, or so."""
        return max((node.tested for node in self.judged.values()), default=0.0) or 1000.0

    @property
    def enough(self) -> bool:
        """Whether these boards trained for long enough to be told what they have not learnt."""
        return any(
            board.rounds >= ENOUGH_ROUNDS
            and (
                self.plan.script or board.rounds >= MANY_ROUNDS or board.examples >= self.plan.holds.get(name, math.inf)
            )
            for name, board in self.boards.items()
        )

    def better_alone(self) -> Mapping[NodeId, tuple[float, str]]:
        """Say who had a better score by itself, by more than what the size of a test set explains,
        or half of what its r2 left unexplained: by how much, and a text of it. A score that is
        better where it is lower is taken for a mean over examples that spread as wide as it is."""
        name = self.evidence.score or "loss"
        better = better_of(name, str(self.plan.get("evaluation", "better") or "auto"))
        said: dict[NodeId, tuple[float, str]] = {}
        if better is None:
            return said
        for who, board in self.boards.items():
            own = board if board.tested_itself else self.judged.get(COORDINATOR, board)
            together = own.loss if name == "loss" else own.score
            alone = self.evidence.beside["alone"].get(who, {}).get(name)
            if together is None or alone is None:
                continue
            lost = alone - together if better == "higher" else together - alone
            bearable, tested = 0.05 * abs(alone), own.tested if own.tested > 1 else 1000.0
            if name == "accuracy" and 0.0 <= alone <= 1.0:
                bearable = noise(alone, tested)
            elif name == "r2":
                bearable = max(0.5 * (1.0 - alone), 0.005)
            elif better == "lower":
                bearable += 2.0 * abs(alone) / math.sqrt(tested)
            elif 0.0 <= alone <= 1.0:
                bearable = max(bearable, noise(alone, tested))
            if lost > bearable:
                said[who] = lost, f"{score_text(name, together)} at {who}, {score_text(name, alone)} by itself"
        return said

    @property
    def all_better_alone(self) -> bool:
        """Whether it is what they did together that kept every board from learning."""
        return 0 < len(self.boards) == len(self.better_alone())


def noise(guess: float, tested: float) -> float:
    """Return how far from its mean the accuracy of guessing may be, over so many examples."""
    return 2.0 * math.sqrt(guess * (1.0 - guess) / tested) + 0.01


def held_sizes(event: EventRecord) -> dict[str, float]:
    """Return the sizes in a record of what a board holds; empty where it says none."""
    try:
        said = json.loads(str(event.fields.get("sizes", "")))
    except (ValueError, RecursionError):
        return {}
    found = said.items() if isinstance(said, dict) else ()
    return {printable(k, _NAME): v for k, v in found if type(v) is float and math.isfinite(v)}


def _number(event: EventRecord, field: str) -> float:
    found = event.fields.get(field)
    return float(found) if isinstance(found, float | int) else 0.0


def median(values: Sequence[float]) -> float:
    """Return the middle one, or the mean of the two in the middle. (The standard library's takes a
    waiting board 2 MiB.)"""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
