"""What a run came to, beyond its figures: a line for each thing that is not what was asked for,
with its cure. Pure arithmetic on the records.

A finding is a *ruin* where the run failed its purpose, one good model that all boards hold: its
command then ends with EXIT_RUIN. It is a hint where a user should look. Whoever is warned of every
second run reads no warning, so each rule waits for evidence, and short runs are hardly judged:

- `untrained` (ruin): in every round nothing of the model changed that a script gave to `join`, or
  all steps of its optimisers were on other parameters; on all boards. A hint where it was so on
  some, which may be there to evaluate, or in a quarter of a board's rounds, and in two or more.
- `undone` (ruin): from the second round on, training began at what the model had been before, and
  not at what the exchange brought; on all boards. A hint as with `untrained`.
- `drifted` (hint): parameters that were frozen at a script's join, and do not travel, changed.
- `diverged` (ruin): the training loss is no number, or ends far above its start, or gave back more
  than half of what it had gained.
- `chance` (ruin): after `ENOUGH_ROUNDS` rounds and one pass over its data, the fleet's accuracy is
  what guessing gives, or near it with a test loss that guessing would beat; or its r2 is not above
  0, which predicting the mean gives. Where the classes are not known, as of a script: the training
  loss hardly fell, and is that of guessing right as often as the accuracy says, or more often.
- `apart` (ruin): the boards hold different models. The average of them, where it was tested, is
  far worse than they are, or they are far worse than it, or the worst board has learnt a quarter of
  what the best has, or they are further from the average than that is long. A hint where they are
  merely far from it, or the run was short.
- `isolated` (ruin): the boards exchanged nothing in the whole run, however short it was, whatever
  the reason: no message of another counted, or no update was used.
- `split` (ruin): boards that finished fall into groups that exchanged nothing in the last third of
  the run, or all of them mixed with nobody in most rounds.
- `alone` (hint): a board mixed with nobody in most of its rounds, or none of its updates was used,
  or in gossip nothing of it reached another board.
- `outlier` (hint): most of a board's neighbours, or a coordinator, found its model far beyond the
  others' in most rounds, or its direction much longer, where directions travel.
- `worse` (hint): a board had a better score by itself, where `run --alone` tried that. If all had,
  what is said of them blames the exchange, and not the data.
- `refused` (hint): a board was refused, and took no part.
- `starved` (hint): a board stood still for long: it was stopped, or had no processor.
- `records` (hint): the run folder's disk took no records for a while, so figures are of the rest.
- `lost` (hint): boards ended before the run did. It is said as soon as it is so.

A run in which nobody was to exchange anything (`alone`) is judged by what its boards learnt.

A loss may be below 0, such as a log-likelihood: what it rises by is held against its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgegossip.telemetry.cures import MOST_NAMED, Cures, named, percent
from edgegossip.telemetry.evidence import ENOUGH_ROUNDS, BoardEvidence, Evidence, Outcome, noise
from edgegossip.types import NodeId

LATE = 2 / 3  # the last third of a run: who has not exchanged in it, does not any more
FAR = 0.3  # from the average, in lengths of it: boards with even data are at 0.01 to 0.05
BEYOND = 1.0  # there the boards' models have less in common than they have not
STOOD_STILL_S = 10.0  # in a run: a moment of it is nothing
_NUMBER = re.compile(r"\d+|\b(nan|inf)\b")


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


def findings(evidence: Evidence, finished: Collection[NodeId]) -> list[Finding]:
    """Return what is not as it should be with the boards that finished, ruins first."""
    rules = _Rules(Outcome(evidence, finished))
    found = [*rules.untrained(), *rules.undone()]
    if not any(f.ruin for f in found):
        found += [*rules.diverged()] or [*rules.chance()]
    if evidence.plan.alone:
        return found
    found += [*rules.drifted(), *rules.apart()]
    found += [*rules.isolated()] or [*rules.split()]
    found += [*rules.worse(), *rules.outliers(), *rules.refused(finished), *rules.starved(), *rules.records()]
    return sorted(found, key=lambda f: not f.ruin)


def lost(why: Mapping[NodeId, str], boards: int) -> list[Finding]:
    """Return what is to say of the boards that were lost, of so many, and why."""
    if not why:
        return []
    text = f"{len(why)} of {boards} boards {'was' if len(why) == 1 else 'were'} lost: {causes(why)}"
    others = "what came of the run is of the others; " if len(why) < boards else ""
    cure = f"{others}logs/ in the run folder has what each board said last"
    return [Finding("lost", text, cure)]


class _Rules:
    """Holds what came of a run against each rule."""

    def __init__(self, of: Outcome) -> None:
        self._of, self._known, self._plan, self._boards = of, of.evidence, of.plan, of.boards
        self._cures = Cures(of)

    def untrained(self) -> Iterable[Finding]:
        told = {name: node.untrained for name, node in self._boards.items() if node.untrained is not None}
        # In the first round of an average of what is trained both are the same.
        beside = {name for name, one in told.items() if one.elsewhere >= max(1, one.rounds - 1)}
        always = {name: one for name, one in told.items() if one.most == one.rounds or name in beside}
        cure = "unless they were not to train: give join what is trained, after all that copies a model"
        if always:
            elsewhere = [name for name in always if name in beside]
            script, names = self._plan.script or "the script", named(elsewhere or always)
            if elsewhere:
                text = f"what {script} trained at {names} is not the model that join was given"
                text += ": all steps were on other parameters"
            else:
                text = f"training changed nothing of the model that join was given at {names}, in any round"
                cure += "; where it is, look at its gradients (zero_grad comes before backward) and the learning rate"
            # Of one board's own folder it is not known whether others trained.
            everywhere = len(always) == len(self._boards) and (len(always) > 1 or bool(elsewhere))
            yield Finding("untrained", text, cure, everywhere)
        often = [
            f"{one.most} of {one.rounds} rounds at {name}"
            for name, one in sorted(told.items())
            if 2 <= one.most < one.rounds <= 4 * one.most and name not in always
        ]
        if often:
            more = f", and at {len(often) - MOST_NAMED} more" if len(often) > MOST_NAMED else ""
            text = f"training did not reach the model in {', '.join(often[:MOST_NAMED])}{more}"
            yield Finding(
                "untrained",
                text,
                f"look where the data end, whether the rate is 0 or the script puts values back; {cure}",
            )

    def undone(self) -> Iterable[Finding]:
        told = {name: one for name, node in self._boards.items() if (one := node.untrained) is not None and one.undone}
        always = {name for name, one in told.items() if one.undone >= one.rounds - 1}
        often = {name for name, one in told.items() if one.undone >= 2 and one.rounds <= 4 * one.undone} | always
        if often:
            rounds = "every round" if always == often else "many rounds"
            text = f"{rounds} of {named(sorted(often))} began at older values of the model, and what was mixed was lost"
            cure = f"load weights before the join, and in no round of {self._plan.script or 'the script'}"
            yield Finding("undone", text, cure, len(always) == len(self._boards) > 1)

    def drifted(self) -> Iterable[Finding]:
        said = {name: text for name, text in self._known.drifted.items() if name in self._boards}
        if said:
            what = next(iter(said.values()))
            text = f"{what}, frozen at the join, changed at {named(sorted(said))}, and does not travel"
            cure = (
                "boards' models differ in it, and an adapter does not fit the base: let it travel, or name it in keep"
            )
            yield Finding("drifted", text, cure)

    def diverged(self) -> Iterable[Finding]:
        cure = self._cures.for_divergence()
        broken = [name for name, node in self._boards.items() if node.last is None]
        if broken:
            yield Finding("diverged", f"the training loss of {named(broken)} ended as no number", cure, True)
            return
        ends = self._known.curve.ends()
        if ends is None:
            return
        start, low, end = ends
        # Most may be learnt in the first few rounds, before the median of the first twentieth.
        first = self._known.curve.first
        gained = first - low
        worse = end - start > max(abs(start), abs(low), 0.1)
        learnt = self._known.curve.rounds >= 2 * ENOUGH_ROUNDS and gained > 0.2 * max(abs(first), abs(low))
        if worse or (learnt and end > 2.0 * low and end - low > 0.5 * gained):
            was = f"from {start:.3g} at the start" if worse else f"from {low:.3g} at its least"
            text = f"training diverged: the training loss rose {was} to {end:.3g}"
            # One who fine-tunes begins near 0, and may end somewhat above it, well trained.
            yield Finding("diverged", text, cure, not (0.0 <= end < math.log(2.0) and self._learnt()))

    def chance(self) -> Iterable[Finding]:
        scores = self._of.scores
        if not scores or not self._of.enough:
            return
        judged, tested = self._of.judged, self._of.tested
        explained = [node.r2 for node in judged.values() if node.r2 is not None]
        if explained and (r2 := sum(explained) / len(explained)) <= 0.0:
            text = f"r2, {r2:.3g}, is not better than that of always predicting the mean"
            yield Finding("chance", text, self._cures.for_chance(), True)
        if self._known.score != "accuracy":
            return
        reached = sum(scores.values()) / len(scores)
        guess = self._plan.guess
        if guess is None:
            yield from self._as_the_loss_guesses(reached)
            return
        losses = [node.loss for node in judged.values() if node.loss is not None]
        exact = reached <= guess + noise(guess, tested)
        near = reached <= guess + _nearly(guess)
        beaten = bool(losses) and sum(losses) / len(losses) > 0.95 * math.log(len(self._plan.classes))
        if exact or (near and beaten):
            count = len(self._plan.classes)
            text = f"the accuracy, {percent(reached)}, is that of guessing among {count} classes ({percent(guess)})"
            yield Finding("chance", text, self._cures.for_chance(), True)

    def _as_the_loss_guesses(self, reached: float) -> Iterable[Finding]:
        """An accuracy of guessing, of classes that nobody knows: a guess among k of them has a loss
        of log k."""
        ends = self._known.curve.ends()
        if ends is None:
            return
        start, end = self._known.curve.start, ends[2]
        guess = math.exp(-end)
        if 0.9 * start < end and math.log(1.9) < end and reached <= guess + noise(guess, self._of.tested):
            text = f"the accuracy, {percent(reached)}, is that of guessing or less: the training loss, {end:.3g}, hardly fell, "
            text += f"and is that of guessing right in {percent(guess)}"
            yield Finding("chance", text, self._cures.for_chance(), True)

    def apart(self) -> Iterable[Finding]:
        floor, scores, enough = self._plan.guess, self._of.scores, self._of.enough
        far = max((node.away for node in self._boards.values() if node.away is not None), default=0.0)
        away = f"; they are up to {far:.2g} of a model's length from it" if far >= 0.01 else ""
        score, averages = self._known.score, self._known.beside["average"].values()
        own, one = _mean(scores.values()), _mean(average[score] for average in averages if score in average)
        if floor is not None and score == "accuracy" and own is not None and enough:
            best, worst = max(scores.values()), min(scores, key=lambda name: scores[name])
            reached = max(own, one or 0.0, best)
            # Where most examples are of one class, nobody doubles what guessing gives.
            learnt = reached - floor > max(min(floor, 0.25 * (1.0 - floor)), noise(floor, self._of.tested))
            costs = 0.25 if far > FAR else 0.5  # of what was learnt
            if learnt and one is not None and abs(own - one) > costs * (max(own, one) - floor):
                text = (
                    f"the boards hold different models: accuracy {percent(own)}, of their average {percent(one)}{away}"
                )
                yield Finding("apart", text, self._cures.for_apart(), True)
                return
            if learnt and scores[worst] < floor + 0.25 * (best - floor):
                text = f"the boards hold different models: accuracy {percent(scores[worst])} at {worst}, up to {percent(best)}"
                yield Finding("apart", text + " elsewhere", self._cures.for_apart(), True)
                return
        if far > (FAR if enough else BEYOND):
            text = f"the boards hold different models: up to {far:.2g} of a model's length from their average"
            yield Finding("apart", text, self._cures.for_apart(), far > BEYOND and enough)

    def isolated(self) -> Iterable[Finding]:
        if self._known.used == 0:
            text = "no update of any board was used: the model is as it was at the start"
            yield Finding("isolated", text, "look at the coordinator's refused and late events", True)
        elif self._boards and all(node.alone and not node.mixed for node in self._boards.values()):
            text = "the boards exchanged nothing: no message of another counted in any round, and each trained alone"
            cure = (
                f"look at their refused, suspect and peer-down events, and the network between them{self._deadline()}"
            )
            yield Finding("isolated", text, cure, True)

    def _deadline(self) -> str:
        """What a cure says of the deadline, where it is short."""
        deadline = self._plan.get("gossip", "deadline_s")
        return f"; raise gossip.deadline_s (now {deadline:g})" if isinstance(deadline, float | int) else ""

    def split(self) -> Iterable[Finding]:
        """By bytes that were acknowledged; only among boards whose records are all here."""
        boards = self._boards
        if len(boards) < 2 or not any(node.sent for node in boards.values()):
            yield from self._mixed_with_nobody()
            return
        played = self._plan.edges[: max(node.rounds for node in boards.values())]
        pairs = {(a, b) for edges in played for a, b in edges if a in boards and b in boards}
        late = {(a, b) for a, b in pairs if b in boards[a].sent and boards[a].sent[b] >= LATE * (boards[a].rounds - 1)}
        groups = _groups(boards, late)
        if pairs and len(_groups(boards, pairs)) == 1 < len(groups):
            side = {name: k for k, group in enumerate(groups) for name in group}
            since = max((boards[a].sent.get(b, -1) + 1 for a, b in pairs - late if side[a] != side[b]), default=0)
            said = "; ".join(named(group) for group in groups[:MOST_NAMED])
            when = f"since round {since}" if since else "at any time"
            text = f"the fleet split, and nothing was exchanged {when} between {said}"
            yield Finding("split", text, "look at their peer-down events and the network between them", True)
            return
        yield from self._mixed_with_nobody()

    def _mixed_with_nobody(self) -> Iterable[Finding]:
        """Boards that trained and waited in vain, by what their rounds ended with."""
        if self._known.unused:
            text = (
                f"no update of {named(sorted(self._known.unused))} was ever used: the model is made of the others' data"
            )
            yield Finding("alone", text, "look at the coordinator's refused, late and lost events")
        speakers = {a for edges in self._plan.edges for a, _ in edges} or self._boards.keys()
        unheard = [name for name, n in self._boards.items() if n.rounds > 1 and not n.sent and name in speakers]
        if unheard and any(node.sent for node in self._boards.values()):
            text = f"nothing of what {named(unheard)} trained reached the others"
            cure = f"look at the peer-down and late events, and whether it is slower{self._deadline()}"
            yield Finding("alone", text, cure)
        # That all of a board's neighbours were lost is said, and why.
        kept = {x for edges in self._plan.edges for a, b in edges for x, y in ((a, b), (b, a)) if y in self._boards}
        alone = [
            name
            for name, n in self._boards.items()
            if n.alone > n.mixed
            and (n.rounds >= ENOUGH_ROUNDS or not n.mixed)
            and (name in kept or not self._plan.edges)
        ]
        algorithm = self._plan.algorithm
        if alone and not (algorithm is not None and algorithm.asynchronous):
            cure = f"look at the peer-down and suspect events{self._deadline()}"
            if len(alone) == len(self._boards) > 1:
                yield Finding("split", "every board trained alone in most rounds", cure, True)
                return
            yield Finding("alone", f"{named(alone)} mixed with no neighbour in most rounds", cure)

    def worse(self) -> Iterable[Finding]:
        """By more than what the size of a test set explains."""
        if said := self._of.better_alone():
            first = sorted(said, key=lambda board: -said[board][0])
            figures = "; ".join(said[board][1] for board in first[:MOST_NAMED])
            more = f"; and {len(first) - MOST_NAMED} more" if len(first) > MOST_NAMED else ""
            were = "was" if len(said) == 1 else "were"
            name, count = self._known.score or "loss", f"{len(said)} of {len(self._boards)} boards"
            text = f"{count} {were} better off alone: {name} {figures}{more}"
            keep = "join(keep=...)" if self._plan.script else "model.keep"
            apart = self._cures.unlike()
            look = apart or "it may be another board's data that harm these: look at the data of all"
            cure = f"{look}; let boards keep layers of their own ({keep}), or exchange after fewer steps"
            if len(said) == len(self._boards):
                cure = "; then ".join(filter(None, [apart, self._cures.for_mixing()]))
            yield Finding("worse", text, cure)

    def _learnt(self) -> bool:
        """Whether a score is halfway from a guess to the best, or further."""
        reached, guess = _mean(self._of.scores.values()) or 0.0, self._plan.guess or 0.5
        r2 = _mean(node.r2 for node in self._of.judged.values() if node.r2 is not None) or 0.0
        return (self._known.score == "accuracy" and reached > guess + 0.5 * (1.0 - guess)) or r2 > 0.5

    def outliers(self) -> Iterable[Finding]:
        """By what most of a board's neighbours say of it, or a coordinator: one that lies makes
        nobody an outlier."""
        served, known = self._plan.get("run", "mode") == "server", len(self._known.boards)
        far = (
            ("update was turned against most others'", "turn")
            if served
            else ("model lay far from its neighbours'", "distance")
        )
        found = {
            **self._outliers(lambda node: node.far, 1 if served else 2, *far),
            # Of a board's own folder there is nobody who could be believed but it.
            **self._outliers(lambda node: node.long, min(2, known), "direction was out of line with others'", "length"),
        }
        cure = f"look at its data, its code and who else has its key; {self._cures.for_liars()}"
        for _, text in sorted(found.items()):
            yield Finding("outlier", text, cure)

    def _outliers(
        self, seen: Callable[[BoardEvidence], Mapping[NodeId, Sequence[float]]], least: int, what: str, measure: str
    ) -> Mapping[NodeId, str]:
        """Say it of each board of whom most others, `least` of them, have `seen` it in most
        rounds."""
        texts, served = {}, self._plan.get("run", "mode") == "server"
        for peer in {peer for node in self._known.boards.values() for peer in seen(node)}:
            others = {name: node for name, node in self._known.boards.items() if name != peer and node.compared}
            near = [node for node in others.values() if served or peer in node.sent] or list(others.values())
            said = [node for node in near if seen(node).get(peer, [0])[0] > node.compared / 2]
            if 2 * len(said) <= len(near) or len(said) < least:
                continue
            compared, rounds = sum(node.compared for node in said), sum(int(seen(node)[peer][0]) for node in said)
            if compared < ENOUGH_ROUNDS * len(said):
                continue
            times = math.exp(sum(seen(node)[peer][1] for node in said) / rounds)
            text = f"{peer}'s {what} in {rounds // len(said)} of {compared // len(said)} rounds"
            texts[peer] = f"{text} ({times:.2g} times the median {measure})"
        return texts

    def refused(self, finished: Collection[NodeId]) -> Iterable[Finding]:
        took_part = (
            {peer for node in self._known.boards.values() for peer in node.sent} | set(finished) | self._known.came
        )
        out = [refusal for (name, _), refusal in self._known.refused.items() if name not in took_part]
        if out:
            said = "; ".join(f"{refusal.caller}: {refusal.why}" for refusal in out[:MOST_NAMED])
            more = f"; and {len(out) - MOST_NAMED} more" if len(out) > MOST_NAMED else ""
            cure = "compare name, run, version and certificate there; a member is named with --members or --boards"
            yield Finding("refused", f"refused, and took no part: {said}{more}", cure)
        if self._known.quarantined:
            text = f"the updates of {named(self._known.quarantined)} were refused until the end"
            yield Finding("refused", text, "; ".join(list(self._known.quarantined.values())[:MOST_NAMED]))

    def starved(self) -> Iterable[Finding]:
        long = {name: seconds for name, seconds in self._known.stood_still.items() if seconds >= STOOD_STILL_S}
        if long:
            text = f"{named(sorted(long))} stood still for {max(long.values()):.0f} s"
            yield Finding("starved", text, "boards that are stopped, or share too few processors, keep others waiting")

    def records(self) -> Iterable[Finding]:
        if lost := self._known.records_lost:
            text = f"{lost} records are missing in the run folder, and in these figures: its disk took none for a while"
            yield Finding("records", text, "make room on that disk; what was trained is whole")


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


def _nearly(guess: float) -> float:
    """How far above guessing an accuracy says little, where the test loss is bad as well."""
    return min(0.1 * (1.0 - guess), guess)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def causes(why: Mapping[NodeId, str]) -> str:
    """Say for what boards were lost, each cause once: two that differ in their numbers alone, such
    as those in boards' names, are one, and the first board's stands for it.

    Example:
        >>> causes({"board-0": "no data/board-0", "board-1": "no data/board-1"})
        'board-0 and board-1, such as at board-0: no data/board-0'
    """
    groups: dict[str, list[NodeId]] = {}
    for name, text in why.items():
        groups.setdefault(_NUMBER.sub("#", text), []).append(name)
    said = []
    for first, *others in groups.values():
        one = f", such as at {first}" if any(why[name] != why[first] for name in others) else ""
        said.append(f"{named([first, *others])}{one}: {why[first]}")
    return "; ".join(said)
