"""What a run came to, beyond its figures: a line for each thing that is not what was asked for,
with its cure. Pure arithmetic on the records.

A finding is a *ruin* where the run failed its purpose, one good model that all boards hold: its
command then ends with EXIT_RUIN. It is a hint where a user should look. Whoever is warned of every
second run reads no warning, so each rule waits for evidence, and short runs are hardly judged:

- `untrained` (ruin): in every round all steps of a script's optimisers were on other parameters
  than those of the model that it gave to `join`. A hint where some boards did so, or nothing of the
  model changed.
- `diverged` (ruin): the training loss is no number, or ends far above its start, or gave back more
  than half of what it had gained.
- `chance` (ruin): after `ENOUGH_ROUNDS` rounds and one pass over its data, the fleet's accuracy is
  what guessing gives, or near it with a test loss that guessing would beat; or its r2 is not above
  0, which predicting the mean gives. Where the classes are not known, as of a script: the training
  loss hardly fell, and is that of guessing right as often as the accuracy says.
- `apart` (ruin): the boards hold different models. The average of them is far worse than they are,
  or they are far worse than it, or the worst board has learnt a quarter of what the best has, or
  they are further from the average than that is long. A hint where they are merely far from it, the
  run was short, or their statistics of batch norm are far.
- `isolated` (ruin): the boards exchanged nothing in the whole run, however short it was, whatever
  the reason: no message of another counted, or no update was used.
- `split` (ruin): boards that finished fall into groups that exchanged nothing in the last third of
  the run, or all of them mixed with nobody in most rounds.
- `mute` (hint): what gossip sends has next to nothing of what was meant, so boards learn alone.
- `alone` (hint): a board mixed with nobody in most of its rounds, or none of its updates was used.
- `stalled` (hint): the training loss did not fall.
- `gap` (hint): the accuracy is not half of what the training loss promises: boards that know only
  classes of their own look like that, and a model that has learnt its examples by heart. Or a
  board's test loss is far above the training loss, as where batch norms met other inputs.
- `outlier` (hint): most of a board's neighbours, or a coordinator, found its model far beyond the
  others' in most rounds.
- `worse` (hint): a board had a better score by itself, where `run --alone` tried that. If all had,
  what is said of them blames the exchange, and not the data.
- `refused` (hint): a board was refused, and took no part.
- `lost` (hint): boards ended before the run did. It is said as soon as it is so.

A run in which nobody was to exchange anything (`alone`) is judged by what its boards learnt.

A loss may be below 0, such as a log-likelihood: what it rises by is held against its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from edgegossip.gossip.topologies import NOBODY
from edgegossip.telemetry.clocks import COORDINATOR
from edgegossip.telemetry.records import (
    EVALUATED,
    FAR_PREFIX,
    LINK_BYTES,
    LINK_PREFIX,
    EventRecord,
    MetricsRecord,
    score_text,
    scores_in,
)
from edgegossip.types import NodeId, better_of
from edgegossip.untrusted import Refusal

ENOUGH_ROUNDS = 10  # before which nobody is told that nothing was learnt
MANY_ROUNDS = 100  # after which less than one pass over the data is enough
FEW_LOSSES = 5  # a curve of fewer rounds is none
LATE = 2 / 3  # the last third of a run: who has not exchanged in it, does not any more
FAR_STATISTICS = 0.5  # deviations from the average statistics of batch norm: a layer is given other numbers
FAR = 0.3  # from the average, in lengths of it: boards with even data are at 0.01 to 0.05
COARSE = 0.5  # relative error of a message from which on whole models suffer
MUTE = 0.99  # ... and nothing is said
ABSURD = 10.0  # times the training loss, and 10 nats: no guess is so bad
BEYOND = 1.0  # there the boards' models have less in common than they have not
MOSTLY = 0.8  # of all examples in one class: guessing that is hard to beat, at any learning rate
MOST_NAMED = 4
_NUMBER = re.compile(r"\d+")

# Algorithms that send whole models, each with the one of its kind that sends differences.
_BY_DIFFERENCES = {
    **dict.fromkeys(("dpsgd", "d2", "ad-psgd", "deep-squeeze"), "choco-sgd"),
    **dict.fromkeys(("sgp", "sparse-push"), "quant-sgp"),
    **dict.fromkeys(("gt-dsgd", "k-gt"), "motef"),
}
_FINENESS = {"error": "lower", "step": "lower", "bytes": "raise", "ratio": "raise", "bits": "raise"}  # a codec's
_FINE = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Finding:
    """Is one line of the verdict."""

    kind: str  # a word for programs
    text: str  # what is so: a sentence for people, without its full stop
    cure: str  # what to do, without its full stop
    ruin: bool = False  # the run failed its purpose

    def to_json(self) -> dict[str, Any]:
        """Return the finding as summary.json has it."""
        return {"kind": self.kind, "text": self.text, "cure": self.cure, "ruin": self.ruin}


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
        """Whether each board was to train by itself."""
        return bool(self.get("run", "mode") == "gossip" and self.get("gossip", "topology") == NOBODY)

    @property
    def lr(self) -> float | None:
        """The learning rate, where the recipe says it."""
        lr = self.get("training", "lr")
        return lr if isinstance(lr, float | int) and not self.script else None

    @property
    def guess(self) -> float | None:
        """Accuracy of whoever says the most frequent class, always."""
        return max(self.classes) / sum(self.classes) if sum(self.classes) and len(self.classes) > 1 else None


@dataclass(slots=True)
class _Node:
    """What is known of one board."""

    examples: float = 0.0  # seen in training
    rounds: int = 0
    alone: int = 0  # rounds that ended without news of any neighbour
    mixed: int = 0  # rounds that ended with some
    counts: bool = False  # it says of how many neighbours there was news
    lost: float = 0.0  # relative error of its last message
    last: float | None = math.nan  # training loss of the last round; None: no number
    score: float | None = None
    tested_itself: bool = False
    alone_scores: Mapping[str, float] = field(default_factory=dict)  # what it reached by itself, by name
    loss: float | None = None  # of the last evaluation
    r2: float | None = None
    tested: float = 0.0  # examples of it
    untrained: Mapping[str, Any] | None = None  # how often steps did not reach the model: in every round
    away: float | None = None  # from the average, in lengths of it
    statistics: float = 0.0  # of batch norm, from their average, in deviations
    compared: int = 0  # rounds in which others' models were held against each other
    far: dict[NodeId, list[float]] = field(default_factory=dict)  # whose -> rounds far off, sum of log times
    sent: dict[NodeId, int] = field(default_factory=dict)  # neighbour -> last round in which it got something


class _Curve:
    """The training loss by rounds, the mean over the boards; of a long run in at most POINTS
    stretches of equal length."""

    POINTS = 4096

    def __init__(self) -> None:
        self.rounds, self._width = 0, 1
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, step: int, loss: float) -> None:
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
        windows = [_median(means[k : k + size]) for k in range(0, len(means) - size + 1, size)]
        windows.append(_median(means[-size:]))
        return windows[0], min(windows), windows[-1]


class Evidence:
    """Takes the records of a run, in any order, and says what came of it."""

    def __init__(self, plan: RunPlan | None = None) -> None:
        self._plan = plan or RunPlan()
        self._nodes: dict[NodeId, _Node] = {}
        self._curve = _Curve()
        self._score = ""  # the one that the task goes by
        self._averages: dict[NodeId, Mapping[str, float]] = {}  # the average of the boards' models, by who tested it
        self._refused: dict[tuple[NodeId, str], Refusal] = {}  # by name and reason
        self._came: set[NodeId] = set()  # who was there at some time
        self._used: int | None = None  # updates of which a coordinator made models; None: there is none
        self._unused: set[NodeId] = set()  # whose updates were not among them
        self._quarantined: dict[NodeId, str] = {}
        self._doubts: dict[str, set[NodeId]] = {}  # what is wrong with data -> whose

    def take(self, record: MetricsRecord | EventRecord) -> None:
        """Take in one record."""
        if isinstance(record, EventRecord):
            self._event(record)
            return
        node = self._nodes.setdefault(record.node, _Node())
        node.rounds = max(node.rounds, record.step + 1)
        node.examples += record.number("train/examples") or 0.0
        if "train/loss" in record.values:
            node.last = record.number("train/loss")
            if node.last is not None:
                self._curve.add(record.step, node.last)
        node.lost = record.number("codec/relative_error") or node.lost
        if "server/used" in record.values:
            self._used = (self._used or 0) + int(record.number("server/used") or 0)
        node.counts = node.counts or "gossip/heard" in record.values
        if node.counts or "gossip/consensus_distance" in record.values:  # older records have the latter only
            far = record.number("gossip/consensus_distance") is not None
            heard = bool(record.number("gossip/heard")) or far
            node.alone, node.mixed = node.alone + (not heard), node.mixed + heard
        node.compared += bool(record.number("gossip/consensus_distance") or record.number("server/used"))
        if any(name.startswith(EVALUATED) for name in record.values):  # a script may tell no loss
            self._evaluated(node, record)
        for name in record.values:
            if name.startswith(FAR_PREFIX) and (times := record.number(name) or 0.0) >= 1.0:
                found = node.far.setdefault(name[len(FAR_PREFIX) :], [0, 0.0])
                found[0], found[1] = found[0] + 1, found[1] + math.log(times)
            if name.startswith(LINK_PREFIX) and name.endswith(LINK_BYTES):
                peer = name[len(LINK_PREFIX) : -len(LINK_BYTES)]
                node.sent[peer] = max(record.step, node.sent.get(peer, 0))

    def findings(self, finished: Collection[NodeId]) -> list[Finding]:
        """Return what is not as it should be with the boards that finished, ruins first."""
        nodes = {name: node for name, node in self._nodes.items() if name in finished}
        found = [*self._untrained(nodes)] or [*self._diverged(nodes)] or [*self._chance(nodes)]
        if self._plan.alone:
            return found
        found += self._apart(nodes)
        found += [*self._isolated(nodes)] or [*self._split(nodes)]
        found += [*self._mute(nodes), *self._worse(nodes)]
        if not any(f.ruin for f in found):
            found += [*self._stalled(nodes), *self._gap(nodes)]
        found += self._outliers()
        found += self._were_refused(finished)
        return sorted(found, key=lambda f: not f.ruin)

    @staticmethod
    def lost(why: Mapping[NodeId, str], boards: int) -> list[Finding]:
        """Return what is to say of the boards that were lost, of so many, and why."""
        if not why:
            return []
        text = f"{len(why)} of {boards} boards {'was' if len(why) == 1 else 'were'} lost: {causes(why)}"
        cure = "what came of the run is of the others; logs/ in the run folder has what each board said last"
        return [Finding("lost", text, cure)]

    # -- what comes in ----------------------------------------------------------------------------

    def _evaluated(self, node: _Node, record: MetricsRecord) -> None:
        node.loss, node.tested = record.number("eval/loss"), record.number("eval/examples") or 0.0
        node.r2, node.tested_itself = record.number("eval/r2"), True
        for name in scores_in(record.values)[:1]:
            self._score, node.score = name, record.number(f"{EVALUATED}{name}")

    def _event(self, event: EventRecord) -> None:
        peer = str(event.fields.get("peer", ""))
        match event.name:
            case "compared":
                away, length = event.fields.get("distance"), event.fields.get("length")
                if isinstance(away, float | int) and isinstance(length, float | int) and length > 0:
                    node = self._nodes.setdefault(event.node, _Node())
                    node.away, statistics = away / length, event.fields.get("statistics")
                    node.statistics = float(statistics) if isinstance(statistics, float | int) else 0.0
            case "unchanged" if "rounds" in event.fields:  # else the first round of that kind
                self._nodes.setdefault(event.node, _Node()).untrained = event.fields
            case "averaged":
                self._averages[event.node] = _figures(event)
            case "trained-alone":
                self._nodes.setdefault(event.node, _Node()).alone_scores = _figures(event)
            case "refused" if "why" in event.fields:  # else a message was, and nobody
                refusal = Refusal(*(str(event.fields.get(key, "")) for key in ("who", "address", "why")))
                self._refused.setdefault((peer or refusal.who or refusal.address, refusal.why), refusal)
            case "doubt":
                self._doubts.setdefault(str(event.fields.get("why", event.text)), set()).add(event.node)
            case "peer-up" | "member-here" | "readmitted":
                self._quarantined.pop(peer, None)
                self._came.add(peer)
            case "unused":
                self._unused.add(peer)
            case "quarantine":
                self._quarantined[peer] = event.text

    # -- rules ------------------------------------------------------------------------------------

    def _untrained(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        told = {name: node.untrained for name, node in nodes.items() if node.untrained is not None}
        if not told:
            return
        elsewhere = [name for name, of in told.items() if of.get("elsewhere") == of["rounds"]]
        script, names = self._plan.script or "the script", _names(elsewhere or told)
        if elsewhere:
            text = f"what {script} trained at {names} is not the model that join was given: all steps were on other parameters"
        else:
            text = f"training changed nothing of the model that join was given at {names}, in any round"
        cure = "unless they were not to train: give join what is trained, after all that copies a model"
        yield Finding("untrained", text, cure, len(elsewhere) == len(nodes))

    def _diverged(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        lr, where = self._plan.lr, f" in {self._plan.script}" if self._plan.script else ""
        lower = f"lower the learning rate{where}" if lr is None else f"training.lr = {lr:g}: try a tenth of it"
        eta = self._rate()
        cure = self._finer_first(nodes) + lower + (f"; or a lower gossip.params.eta than {eta:g}" if eta else "")
        if self._all_better_alone(nodes):
            cure = f"each board learnt by itself: {self._cure_of_mixing()}"
        cure = self._doubted(nodes) or cure
        broken = [name for name, node in nodes.items() if node.last is None]
        if broken:
            yield Finding("diverged", f"the training loss of {_names(broken)} ended as no number", cure, True)
            return
        ends = self._curve.ends()
        if ends is None:
            return
        start, low, end = ends
        # Most may be learnt in the first few rounds, before the median of the first twentieth.
        first = self._curve.first
        gained = first - low
        worse = end - start > max(abs(start), abs(low), 0.1)
        learnt = self._curve.rounds >= 2 * ENOUGH_ROUNDS and gained > 0.2 * max(abs(first), abs(low))
        if worse or (learnt and end > 2.0 * low and end - low > 0.5 * gained):
            was = f"from {start:.3g} at the start" if worse else f"from {low:.3g} at its least"
            yield Finding("diverged", f"training diverged: the training loss rose {was} to {end:.3g}", cure, True)

    def _chance(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        scores = self._scores(nodes)
        if not scores or not self._enough(nodes):
            return
        judged = self._judged(nodes)
        explained = [node.r2 for node in judged.values() if node.r2 is not None]
        if explained and (r2 := sum(explained) / len(explained)) <= 0.0:
            text = f"r2, {r2:.3g}, is not better than that of always predicting the mean"
            yield Finding("chance", text, self._cure_of_chance(nodes), True)
        if self._score != "accuracy":
            return
        reached = sum(scores.values()) / len(scores)
        losses = [node.loss for node in judged.values() if node.loss is not None]
        tested = max((node.tested for node in judged.values()), default=0.0) or 1000.0
        guess = self._plan.guess
        if guess is None:
            ends = self._curve.ends()
            if ends is None or not ends[2] > max(0.9 * ends[0], math.log(1.9)):
                return
            guess = math.exp(-ends[2])  # a guess among k classes has a loss of log k
            if abs(reached - guess) <= _noise(guess, tested):
                text = f"the accuracy, {_percent(reached)}, is that of guessing: so is the training loss, {ends[2]:.3g}"
                yield Finding("chance", f"{text}, which hardly fell", self._cure_of_chance(nodes), True)
            return
        exact = reached <= guess + _noise(guess, tested)
        near = reached <= guess + min(0.1 * (1.0 - guess), guess)
        beaten = bool(losses) and sum(losses) / len(losses) > 0.95 * math.log(len(self._plan.classes))
        if exact or (near and beaten):
            count = len(self._plan.classes)
            text = f"the accuracy, {_percent(reached)}, is that of guessing among {count} classes ({_percent(guess)})"
            yield Finding("chance", text, self._cure_of_chance(nodes), True)

    def _apart(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        floor, scores = self._plan.guess, self._scores(nodes)
        far = max((node.away for node in nodes.values() if node.away is not None), default=0.0)
        away = f"; they are up to {far:.2g} of a model's length from it" if far >= 0.01 else ""
        own, one = _mean(scores.values()), _mean(a[self._score] for a in self._averages.values() if self._score in a)
        if floor is not None and self._score == "accuracy" and own is not None and self._enough(nodes):
            best, worst = max(scores.values()), min(scores, key=lambda name: scores[name])
            reached = max(own, one or 0.0, best)
            costs = 0.25 if far > FAR else 0.5  # of what was learnt
            if reached > 2 * floor and one is not None and abs(own - one) > costs * (max(own, one) - floor):
                text = f"the boards hold different models: accuracy {_percent(own)}, of their average {_percent(one)}{away}"
                yield Finding("apart", text, self._cure_of_apart(), True)
                return
            if reached > 2 * floor and scores[worst] < floor + 0.25 * (best - floor):
                text = f"the boards hold different models: accuracy {_percent(scores[worst])} at {worst}, up to {_percent(best)}"
                yield Finding("apart", text + " elsewhere", self._cure_of_apart(), True)
                return
        enough = self._enough(nodes)
        if far > (FAR if enough else BEYOND):
            text = f"the boards hold different models: up to {far:.2g} of a model's length from their average"
            yield Finding("apart", text, self._cure_of_apart(), far > BEYOND and enough)
        statistics = max((node.statistics for node in nodes.values()), default=0.0)
        if statistics > FAR_STATISTICS and far <= FAR and self._enough(nodes):
            text = f"the boards' statistics of batch norm differ: up to {statistics:.2g} deviations from their average"
            cure = "use the average of the models (model save), exchange after fewer steps, or take a norm without them"
            yield Finding("apart", text, cure)

    def _isolated(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        if self._plan.edges and not any(self._plan.edges):
            return  # nothing was to be exchanged
        if self._used == 0:
            text = "no update of any board was used: the model is as it was at the start"
            yield Finding("isolated", text, "look at the coordinator's refused and late events", True)
        elif nodes and all(node.counts and not node.mixed for node in nodes.values()):
            text = "the boards exchanged nothing: no message of another counted in any round, and each trained alone"
            cure = (
                f"look at their refused, suspect and peer-down events, and the network between them{self._deadline()}"
            )
            yield Finding("isolated", text, cure, True)

    def _deadline(self) -> str:
        """What a cure says of the deadline, where it is short."""
        deadline = self._plan.get("gossip", "deadline_s")
        return f"; raise gossip.deadline_s (now {deadline:g})" if isinstance(deadline, float | int) else ""

    def _split(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        """By bytes that were acknowledged; only among boards whose records are all here."""
        if len(nodes) < 2 or not any(node.sent for node in nodes.values()):
            yield from self._mixed_with_nobody(nodes)
            return
        played = self._plan.edges[: max(node.rounds for node in nodes.values())]
        pairs = {(a, b) for edges in played for a, b in edges if a in nodes and b in nodes}
        late = {(a, b) for a, b in pairs if b in nodes[a].sent and nodes[a].sent[b] >= LATE * (nodes[a].rounds - 1)}
        groups = _groups(nodes, late)
        if pairs and len(_groups(nodes, pairs)) == 1 < len(groups):
            side = {name: k for k, group in enumerate(groups) for name in group}
            since = max((nodes[a].sent.get(b, -1) + 1 for a, b in pairs - late if side[a] != side[b]), default=0)
            said = "; ".join(_names(group) for group in groups[:MOST_NAMED])
            when = f"since round {since}" if since else "at any time"
            text = f"the fleet split, and nothing was exchanged {when} between {said}"
            yield Finding("split", text, "look at their peer-down events and the network between them", True)
            return
        yield from self._mixed_with_nobody(nodes)

    def _mixed_with_nobody(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        """Boards that trained and waited in vain, by what their rounds ended with."""
        if self._unused:
            text = f"no update of {_names(sorted(self._unused))} was ever used: the model is made of the others' data"
            yield Finding("alone", text, "look at the coordinator's refused, late and lost events")
        if not any(node.mixed for node in self._nodes.values()) and len(nodes) > 1:
            return  # an algorithm that tells no distance
        alone = [name for name, n in nodes.items() if n.alone > n.mixed and (n.rounds >= ENOUGH_ROUNDS or not n.mixed)]
        if alone and self._plan.get("gossip", "algorithm") != "ad-psgd":
            cure = f"look at the peer-down and suspect events{self._deadline()}"
            if len(alone) == len(nodes) > 1:
                yield Finding("split", "every board trained alone in most rounds", cure, True)
                return
            yield Finding("alone", f"{_names(alone)} mixed with no neighbour in most rounds", cure)

    def _mute(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        lost = _median([node.lost for node in nodes.values()]) if nodes else 0.0
        if not self._sends_updates() and lost >= MUTE and (finer := self._finer()):
            text = f"messages hold next to nothing: they lose {lost:.3g} times the length of what was meant"
            yield Finding("mute", text, finer)

    def _worse(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        """By more than what the size of a test set explains."""
        if said := self._better_alone(nodes):
            first = sorted(said, key=lambda board: -said[board][0])
            figures = "; ".join(said[board][1] for board in first[:MOST_NAMED])
            more = f"; and {len(first) - MOST_NAMED} more" if len(first) > MOST_NAMED else ""
            were = "was" if len(said) == 1 else "were"
            text = (
                f"{len(said)} of {len(nodes)} boards {were} better off alone: {self._score or 'loss'} {figures}{more}"
            )
            keep = "join(keep=...)" if self._plan.script else "model.keep"
            cure = (
                f"look at the data there; let boards keep layers of their own ({keep}), or exchange after fewer steps"
            )
            yield Finding("worse", text, self._cure_of_mixing() if len(said) == len(nodes) else cure)

    def _better_alone(self, nodes: Mapping[NodeId, _Node]) -> Mapping[NodeId, tuple[float, str]]:
        """Who had a better score by itself: by how much, and a text of it."""
        name, judged = self._score or "loss", self._judged(nodes)
        better = better_of(name, str(self._plan.get("evaluation", "better") or "auto"))
        said: dict[NodeId, tuple[float, str]] = {}
        if better is None:
            return said
        for board, node in nodes.items():
            own = node if node.tested_itself else judged.get(COORDINATOR, node)
            together, alone = own.loss if name == "loss" else own.score, node.alone_scores.get(name)
            if together is None or alone is None:
                continue
            lost = alone - together if better == "higher" else together - alone
            share = name == "accuracy" and 0.0 <= alone <= 1.0
            if lost > (_noise(alone, own.tested if own.tested > 1 else 1000.0) if share else 0.05 * abs(alone)):
                said[board] = lost, f"{score_text(name, together)} at {board}, {score_text(name, alone)} by itself"
        return said

    def _all_better_alone(self, nodes: Mapping[NodeId, _Node]) -> bool:
        """Whether it is what they did together that kept every board from learning."""
        return 0 < len(nodes) == len(self._better_alone(nodes))

    def _stalled(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        ends = self._curve.ends()
        if ends is None or self._curve.rounds < 2 * ENOUGH_ROUNDS or not self._enough(nodes):
            return
        start, _, end = ends
        if abs(start) > 0.05 and end > start - 0.02 * abs(start):
            text = f"the training loss did not fall: {start:.3g} at the start, {end:.3g} at the end"
            yield Finding("stalled", text, self._cure_of_chance(nodes))

    def _gap(self, nodes: Mapping[NodeId, _Node]) -> Iterable[Finding]:
        ends, scores = self._curve.ends(), self._scores(nodes)
        if ends is None or ends[2] < 0.0 or not scores or self._score != "accuracy" or not self._enough(nodes):
            return
        reached, promised = sum(scores.values()) / len(scores), math.exp(-ends[2])  # of a cross-entropy
        if promised > 0.6 and reached < 0.5 * promised:
            text = f"the accuracy, {_percent(reached)}, is far below what the training loss, {ends[2]:.3g}, promises"
            cure = "where boards hold different classes, let them exchange after fewer steps; else the test data differ"
            yield Finding("gap", text, f"{cure}, or the model knows its examples by heart")
            return
        judged = self._judged(nodes)
        beyond = {
            name: node.loss
            for name, node in judged.items()
            if node.loss is not None
            and node.loss > ABSURD * max(1.0, ends[2])
            and scores.get(name, 1.0) < 0.8 * promised
        }
        if beyond:
            text = f"the test loss of {_names(beyond)}, {max(beyond.values()):.3g}, is far above the training loss, {ends[2]:.3g}"
            keep = "join(keep=...)" if self._plan.script else "model.keep"
            cure = f"where inputs differ in scale by board, let each keep its own batch norm ({keep})"
            yield Finding("gap", text, f"{cure}; else the test data differ")

    def _outliers(self) -> Iterable[Finding]:
        """By what most of a board's neighbours say of it, or a coordinator: one that lies makes
        nobody an outlier."""
        served = self._plan.get("run", "mode") == "server"
        for peer in sorted({peer for node in self._nodes.values() for peer in node.far}):
            others = {name: node for name, node in self._nodes.items() if name != peer and node.compared}
            near = [node for node in others.values() if served or peer in node.sent] or list(others.values())
            said = [node for node in near if node.far.get(peer, [0])[0] > node.compared / 2]
            if 2 * len(said) <= len(near) or len(said) < (1 if served else 2):
                continue
            compared, rounds = sum(node.compared for node in said), sum(int(node.far[peer][0]) for node in said)
            if compared < ENOUGH_ROUNDS * len(said):
                continue
            times = math.exp(sum(node.far[peer][1] for node in said) / rounds)
            whose = "the model made of all" if served else "its neighbours'"
            text = f"{peer}'s model lay far from {whose} in {rounds // len(said)} of {compared // len(said)} rounds"
            bound = "server.strategy = multikrum" if served else "gossip.malicious_nodes"
            cure = f"look at its data, its code and who else has its key; {bound} bounds what it can do"
            yield Finding("outlier", f"{text} ({times:.2g} times the median distance)", cure)

    def _were_refused(self, finished: Collection[NodeId]) -> Iterable[Finding]:
        took_part = {peer for node in self._nodes.values() for peer in node.sent} | set(finished) | self._came
        out = [refusal for (name, _), refusal in self._refused.items() if name not in took_part]
        if out:
            said = "; ".join(f"{refusal.caller}: {refusal.why}" for refusal in out[:MOST_NAMED])
            more = f"; and {len(out) - MOST_NAMED} more" if len(out) > MOST_NAMED else ""
            cure = "compare name, run, version and certificate there; a member is named with --members or --boards"
            yield Finding("refused", f"refused, and took no part: {said}{more}", cure)
        if self._quarantined:
            text = f"the updates of {_names(self._quarantined)} were refused until the end"
            yield Finding("refused", text, "; ".join(list(self._quarantined.values())[:MOST_NAMED]))

    # -- of all of them ---------------------------------------------------------------------------

    def _scores(self, nodes: Mapping[NodeId, _Node]) -> dict[NodeId, float]:
        return {name: node.score for name, node in self._judged(nodes).items() if node.score is not None}

    def _judged(self, nodes: Mapping[NodeId, _Node]) -> Mapping[NodeId, _Node]:
        """Whose evaluations count: the coordinator's for all, where it has some. Of one model,
        scores on each board's own test set tell those sets apart, and not the boards."""
        whole = self._nodes.get(COORDINATOR)
        return nodes if whole is None or whole.score is None else {COORDINATOR: whole}

    def _enough(self, nodes: Mapping[NodeId, _Node]) -> bool:
        """Whether these boards trained for long enough to be told what they have not learnt."""
        return any(
            node.rounds >= ENOUGH_ROUNDS
            and (
                self._plan.script or node.rounds >= MANY_ROUNDS or node.examples >= self._plan.holds.get(name, math.inf)
            )
            for name, node in nodes.items()
        )

    def _rate(self) -> float | None:
        """The averaging rate that the recipe sets."""
        params = self._plan.get("gossip", "params")
        eta = params.get("eta") if isinstance(params, Mapping) else None
        return float(eta) if isinstance(eta, float | int) and eta else None

    def _doubted(self, nodes: Mapping[NodeId, _Node]) -> str:
        """What keeps half of the boards from learning in their data; else empty."""
        for why, of in sorted(self._doubts.items(), key=lambda item: -len(item[1])):
            if 2 * len(of & set(nodes)) >= len(nodes):
                return f"look at the data first: at {_names(sorted(of))} {why}"
        return ""

    def _cure_of_chance(self, nodes: Mapping[NodeId, _Node]) -> str:
        """What the data say comes first, for then no learning rate helps."""
        if doubted := self._doubted(nodes):
            return doubted
        if (guess := self._plan.guess) is not None and guess > MOSTLY:
            share = "all" if guess == 1.0 else _percent(guess)
            return f"look at the data first: {share} of the training examples are of one class; balance the classes"
        if self._all_better_alone(nodes):
            return f"each board learnt by itself: {self._finer_first(nodes)}{self._cure_of_mixing()}"
        lr, script = self._plan.lr, self._plan.script
        said = f" in {script}" if script else "" if lr is None else f" (training.lr = {lr:g})"
        look = f"look at the learning rate{said}, the labels and the inputs' scale; train one board alone first"
        return self._finer_first(nodes) + look

    def _cure_of_apart(self) -> str:
        """What was set comes first, and nothing that is so already."""
        eta, plan = self._rate(), self._plan
        cures = [] if eta is None else [f"leave gossip.params.eta = {eta:g} out: it then goes by the codec"]
        around = plan.get("outer", "optimizer")
        key = "momentum" if around in ("heavy-ball", "nesterov") and plan.get("outer", "momentum") else "lr"
        if around not in (None, "none"):
            cures.append(f"lower outer.{key} = {plan.get('outer', key):g}")
        elif plan.get("gossip", "momentum") not in (None, "none"):
            cures.append(f"lower gossip.momentum_factor = {plan.get('gossip', 'momentum_factor'):g}")
        if finer := self._finer():
            cures.append(finer)
        if cures:
            return "; or ".join(cures)
        lower = "learning rate" if plan.script else "training.lr"
        order = "; gossip.order = adapt-then-combine for many steps a round" if self._mixes_before_steps() else ""
        return f"take a denser topology, a lower {lower}, or more rounds; gossip.momentum for uneven data{order}"

    def _mixes_before_steps(self) -> bool:
        """Whether models travel as they are before a round's steps: many steps then overshoot."""
        algorithm, order = self._plan.get("gossip", "algorithm"), self._plan.get("gossip", "order")
        own = algorithm == "dpsgd" and order in (None, "auto") and not self._plan.script
        first = order == "adapt-with-combine" or own
        return first and self._plan.get("run", "mode") != "server"

    def _cure_of_mixing(self) -> str:
        """What helps where boards learn by themselves, and not together."""
        order = ", or say gossip.order = adapt-then-combine, which mixes after a round's steps"
        return "exchange after fewer steps" + (order if self._mixes_before_steps() else "")

    def _finer_first(self, nodes: Mapping[NodeId, _Node]) -> str:
        """The beginning of a cure where messages lose more than training bears; else empty."""
        lost = max((node.lost for node in nodes.values()), default=0.0)
        bears = COARSE if self._by_differences() else MUTE
        if self._sends_updates():  # whose errors average out
            bears = math.sqrt(len(nodes))
        finer = self._finer() if lost > bears else ""
        return finer and f"{finer}: a message loses {lost:.2g} times its length; then "

    def _finer(self) -> str:
        """How messages become finer; empty where they are exact, or nearly."""
        codec, params = self._plan.get("codec", "name"), self._plan.get("codec", "params")
        if codec in (None, *_FINE):
            return ""
        given = params if isinstance(params, Mapping) else {}
        key, instead = next((key for key in _FINENESS if given.get(key)), ""), self._by_differences()
        if key:
            finer = f"{_FINENESS[key]} codec.params.{key} = {given[key]:g}"
        else:
            such = "fp16" if str(codec).startswith(("8-bit", "minmax8")) else "8-bit-elastiquant"
            finer = f"take a finer codec than {codec}, such as {such}"
        return finer + (f", or take {instead}, which sends differences" if instead else "")

    def _by_differences(self) -> str:
        """The algorithm that sends differences where this run's sends whole models; else empty."""
        return "" if self._sends_updates() else _BY_DIFFERENCES.get(str(self._plan.get("gossip", "algorithm")), "")

    def _sends_updates(self) -> bool:
        """Whether all boards' updates are averaged, or their gradients."""
        plan = self._plan
        return bool(plan.get("run", "mode") == "server" or plan.get("gossip", "algorithm") == "parallel-sgd")


def _groups(nodes: Iterable[NodeId], pairs: Collection[tuple[NodeId, NodeId]]) -> list[list[NodeId]]:
    """The nodes that the pairs connect, one way or the other; the largest group first."""
    home = {node: [node] for node in nodes}
    for a, b in pairs:
        if home[a] is not home[b]:
            small, large = sorted((home[a], home[b]), key=len)
            large += small
            for node in small:
                home[node] = large
    found: list[list[NodeId]] = []
    for group in home.values():
        if not any(group is other for other in found):
            found.append(group)
    return sorted((sorted(group) for group in found), key=lambda group: (-len(group), group))


def _noise(guess: float, tested: float) -> float:
    """How far from its mean the accuracy of guessing may be, over so many examples."""
    return 2.0 * math.sqrt(guess * (1.0 - guess) / tested) + 0.01


def _figures(event: EventRecord) -> dict[str, float]:
    """The scores in an event; of earlier versions without `eval/`."""
    return {k.removeprefix(EVALUATED): float(v) for k, v in event.fields.items() if isinstance(v, float | int)}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def causes(why: Mapping[NodeId, str]) -> str:
    """Say for what boards were lost, each cause once: two that differ in their numbers alone, such
    as those in boards' names, are one.

    Example:
        >>> causes({"board-0": "no data/board-0", "board-1": "no data/board-1"})
        'board-0 and board-1: no data/board-0'
    """
    groups: dict[str, list[NodeId]] = {}
    for name, text in why.items():
        groups.setdefault(_NUMBER.sub("#", text), []).append(name)
    return "; ".join(f"{_names(names)}: {why[names[0]]}" for names in groups.values())


def _names(nodes: Iterable[NodeId]) -> str:
    """Return "a", "a and b", "a, b, c and 5 more"."""
    names = list(nodes)
    if len(names) > MOST_NAMED:
        names = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle. (The standard library's takes a waiting
    board 2 MiB.)"""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
