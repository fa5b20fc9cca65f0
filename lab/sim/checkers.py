"""What must hold at every moment of every schedule, whatever breaks. Independent of the algorithms'
own code: only their audit, model and round are looked at."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from edgegossip.engine.events import FrameReceived
from edgegossip.engine.joining import PendingFrames
from edgegossip.frame import AUX_BYTES, HEADER_BYTES, Frame
from edgegossip.gossip.base import Audit, NodeView, Topology
from edgegossip.types import Vec
from lab.sim import naming

ROW_TOLERANCE = 1e-6  # of the sum of the weights of a mixing; they may be float32
HULL_TOLERANCE = 1e-4  # of the largest value, for float32's rounding
PLAUSIBLE = 3e4  # times the norm + 1: more no model grows in a round whatever a neighbour says
IMPOSSIBLE = 1e5  # push-sum weight that a few nodes hand over in a few hundred rounds
FAIR = 12 * math.log(10.0)  # a fair choice gains as much once in 10^12 runs
SURE = 0.98  # the most that is bet on somebody
SLACK_S = 5.0  # on top of what a round may take
REPLAY = "replay"  # the rule that only a second run can break


@dataclass(frozen=True, slots=True)
class Violation:
    """Says which promise was broken. `rule` is one of RULES."""

    rule: str
    node: int | None
    time_s: float  # virtual
    text: str

    def __str__(self) -> str:
        where = "" if self.node is None else f"node {self.node}: "
        return f"{self.rule} at {self.time_s:.3f} s: {where}{self.text}"


RULES: Mapping[str, str] = {
    "crash": "an algorithm raises nothing but PeerError",
    "finite": "models are finite",
    "rounds": "rounds never go back within one process",
    "led": "nobody goes on in a round that one lie alone spoke of, or with a model that too few offer",
    "behind": "a node does not play rounds of its own while most neighbours, far ahead, offer their models",
    "progress": "every node that is up finishes rounds",
    "weights": "the weights of a mixing sum to 1 and none is negative; a push-sum weight is positive",
    "hull": "averaging alone takes no model beyond the values that the nodes started from",
    "ledger": "mass and weight change by local updates only",
    "edges": "what one end of an edge handed over has come in at the other, once quiet",
    "replicas": "replicas equal the original at all holders, once quiet",
    "refused": "no honest message is refused",
    "accepted": "no lie about the weight, no value out of all proportion and nothing of another run is accepted",
    "memory": "early messages take bounded memory",
    "share": "no honest message is dropped for want of room that others take",
    "frames": "a frame that comes is taken in, kept, dropped for want of room or refused, and once only",
    "newcomer": "a board that begins with nothing takes over a model before it goes on in a round far ahead",
    "alone": "a board that comes again with nothing does not train before it has heard of the run",
    "update": "no update counts that is of a model which was given up",
    "silence": "nobody waits for long without saying so",
    "unfit": "who trains something else is named, nobody waits for it or sends to it, and only who fits nobody ends",
    "end": "a board ends after the run's last round, and not before there is nobody left",
    "catch-up": "once all is well, everybody gets to the same round",
    "left-out": "once all is well, nobody is left out of a round",
    "shut-out": "no honest board is shut out for good; a refused one is neither counted nor sent to",
    "blame": "who is said to be silent is, and whose message is refused lies",
    "patience": "no neighbour costs more than two deadlines, and one more each time it has sent twice as much; "
    "until then it is waited for",
    "fair": "nobody among those who are up is chosen more often than others",
    "rates": "no link is taken to be slower than it ever was",
    "robust": "whatever up to `malicious` liars say, they pull no farther than honest neighbours may",
    "correction": "local steps of gradient tracking follow what it differs from all others, as its paper says",
    "outer": "an outer optimiser steps as its paper says, after a restart too",
    "consensus": "once all is well, the nodes agree",
    "mean": "what they agree on is the mean, where it is conserved",
    REPLAY: "the same schedule goes the same way when it is run again",
}


def finite_fault(x: Vec) -> str | None:
    """Say whether a model is not finite. A finite sum of squares tells quickly that there is
    nothing wrong; it may overflow though all values are finite."""
    return None if math.isfinite(x.dot(x)) or np.isfinite(x).all() else "the model is not finite"


@dataclass(frozen=True, slots=True, eq=False)
class Hull:
    """Holds the values between which models stay that are averaged only: every coordinate's
    smallest and largest, float32[n]."""

    low: Vec
    high: Vec

    @classmethod
    def of(cls, models: Sequence[Vec]) -> Hull:
        """Return the hull of these models, a little wider for float32's rounding."""
        stack = np.asarray(models)
        slack = np.float32(HULL_TOLERANCE) * max(np.float32(1.0), np.abs(stack).max())
        return cls(stack.min(axis=0) - slack, stack.max(axis=0) + slack)

    def fault(self, x: Vec) -> str | None:
        """Say how far a model is beyond the hull; None when it is inside."""
        beyond = float(np.maximum(self.low - x, x - self.high).max())
        return f"the model is {beyond:.3g} beyond what the nodes started from" if beyond > 0.0 else None


def implausible_fault(models: Sequence[Vec]) -> str | None:
    """Compare the models at the start of the last rounds, the newest last, where somebody lies."""
    if len(models) < 2:
        return None
    before, now = (float(np.linalg.norm(x.astype(np.float64))) for x in models[-2:])
    if now > PLAUSIBLE * (before + 1.0):
        return f"took in values so large that the model's norm went from {before:.4g} to {now:.4g}"
    return None


def row_fault(audit: Audit, positive: bool) -> str | None:
    """Check the weights of the last mixing. `positive`: no node has gone back to an older state,
    and none lies. After that a push-sum weight may be zero or less for a while: what was handed
    over since the checkpoint is taken back from those who have already passed it on."""
    if audit.row:
        least, total = min(audit.row.values()), sum(audit.row.values())
        if not least >= 0.0:
            return f"a weight of the last mixing is {least:.6g}"
        if not abs(total - 1.0) <= ROW_TOLERANCE:
            return f"the weights of the last mixing sum to {total:.9g}"
    if not (audit.weight > 0.0 or not positive) or not abs(audit.weight) < np.inf:
        return f"the push-sum weight is {audit.weight:.6g}"
    return None


def weight_lie_fault(sender: int, before: Audit, after: Audit) -> str | None:
    """Check what came of a message whose weight was tampered with."""
    for key, (_, weight) in after.seen.items():
        if key[0] == sender and weight > IMPOSSIBLE:
            return f"took in a total weight of {weight:.6g} from {sender}"
        if key[0] == sender and not weight > 0.0 and key in before.seen and before.seen[key][1] > 0.0:
            return f"took in a total weight of {weight:.6g} from {sender}"
    return None


@dataclass(frozen=True, slots=True)
class PendingMessages:
    """Counts messages that wait for their round, and the bytes of their bodies."""

    messages: int
    bytes: int


def pending_limit(topology: Topology, index: int, algorithm: Any, body_bytes: int) -> PendingMessages:
    """Return what a node may keep: of everybody who sends to it in some round one message a
    round, of as many rounds as an honest one can be ahead (one period a hop, and the staleness;
    one of its own may be under way) and the one beyond, which tells that this node was left
    behind; and of each stream all but the last part of a full state. `body_bytes`: the largest body
    that is accepted. `max_ahead` of the algorithm says it anew."""
    edges = {(j, r) for r in range(topology.period) for j in topology.neighbours(index, r).in_}
    messages = len({j for j, _ in edges}) * (rounds_ahead(topology, algorithm) + 1)
    messages += len(edges) * int(naming.param_of(algorithm, "parts", 0))
    return PendingMessages(messages, messages * body_bytes)


def rounds_ahead(topology: Topology, algorithm: Any) -> int:
    """Return by how many rounds an honest neighbour may be ahead."""
    ahead = topology.n * (topology.period + naming.param_of(algorithm, "staleness", 0)) + 1
    return int(naming.param_of(algorithm, "max_ahead", 0) or ahead)


def memory_fault(held: PendingMessages, most: PendingMessages) -> str | None:
    """Say what is held beyond the limit; None when nothing is."""
    if held.messages > most.messages:
        return f"holds {held.messages} messages, {most.messages} may be early"
    return f"holds {held.bytes} bytes of messages, of at most {most.bytes}" if held.bytes > most.bytes else None


def pending_in(state: Any) -> PendingMessages:
    """Count the messages that a state holds anywhere inside."""
    count, size, stack, known = 0, 0, [state], set[int]()
    while stack:
        thing = stack.pop()
        holds = _holds(type(thing))  # type: ignore[arg-type]
        if holds == "frame":
            count += 1
            size += memoryview(thing.body).nbytes
        elif holds == "values":
            stack.extend(thing.values())
        elif holds == "items":
            stack.extend(thing)
        elif holds and id(thing) not in known:
            known.add(id(thing))
            stack.extend([getattr(thing, name) for name in holds])
    return PendingMessages(count, size)


@lru_cache(maxsize=256)
def _holds(kind: type) -> str | tuple[str, ...]:
    """What there is to look at in a thing of this type: the names of its fields, or in which
    manner; empty: nothing."""
    if issubclass(kind, Frame):
        return "frame"
    if issubclass(kind, (str, bytes, int, float, np.ndarray, NodeView)):
        return ""
    if issubclass(kind, Mapping):
        return "values"
    if issubclass(kind, (tuple, list, frozenset, set)):
        return "items"
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ""


def pending_fault(pending: PendingFrames, most_bytes: int) -> str | None:
    """Say whether a board keeps more than it may before it can do anything with it."""
    size = sum(map(_room_of, pending.frames))
    return f"keeps {size} bytes of frames that came too early, of at most {most_bytes}" if size > most_bytes else None


def frames_fault(
    handed: Mapping[str, int],
    accepted: Mapping[str, int],
    dropped: Mapping[str, int],
    refused: Collection[str],
    pending: PendingFrames,
) -> str | None:
    """Check that all frames of one process are accounted for; all are numbers of frames by
    sender."""
    kept = Counter(frame.sender for frame in pending.frames)
    for sender, count in handed.items():
        known = accepted[sender] + dropped[sender] + kept[sender]
        if sender not in refused and known != count:
            return f"got {count} frames of {sender}, and took in, kept or dropped {known}"
    return None


def share_fault(pending: PendingFrames, sender: str, body_bytes: int) -> str | None:
    """Check, after a frame of this sender was dropped, that it had filled its share, to the size
    of a frame."""
    mine = sum(_room_of(frame) for frame in pending.frames if frame.sender == sender)
    if mine + body_bytes + 2048 <= pending.share_bytes:
        return f"dropped a frame of {sender}, which has {mine} bytes there and may have {pending.share_bytes}"
    return None


def _room_of(frame: FrameReceived) -> int:
    """At least what a frame counts for that is empty."""
    data = frame.data
    size = HEADER_BYTES + AUX_BYTES * len(data.aux) + len(data.body) if isinstance(data, Frame) else len(data)
    return max(size, 1024)


class Choices:
    """Counts whom each chooser chose among whom, and tells when the counts foretell it.

    Before each choice a bet is made by the counts so far. Whoever chooses fairly, each of those who
    are there alike, cannot be foretold: what the bets have gained together is a martingale of mean
    1, whatever the counts, and gets to 10^12 at any time in one run of 10^12, at most (Ville's
    inequality). Always the same of k, or always the same half, loses by a factor near k, or 2^k,
    with each choice."""

    def __init__(self) -> None:
        self._counts: dict[tuple[object, object], tuple[int, int]] = {}  # by chooser and one of them: there, chosen
        self._gain = 0.0  # its logarithm

    def fault(self, chooser: object, among: Sequence[Any], chosen: Collection[Any]) -> str | None:
        """Count a choice, and say what is wrong with all of them so far."""
        there = [self._counts.get((chooser, one), (0, 0)) for one in among]
        weights = [(taken + 1) / (count + 2) for count, taken in there]
        left = len(chosen)
        for k, one in enumerate(among):  # one after the other; for each of the rest the chance is the same
            rest = len(among) - k
            if not 0 < left < rest:
                break
            bet = min(SURE, left * weights[k] / sum(weights[k:]))
            self._gain += math.log(bet * rest / left if one in chosen else (1.0 - bet) * rest / (rest - left))
            left -= one in chosen
        for one, (count, taken) in zip(among, there, strict=True):
            self._counts[chooser, one] = count + 1, taken + (one in chosen)
        if self._gain <= FAIR:
            return None
        often = {f"{who}: {one}": f"{taken} of {count}" for (who, one), (count, taken) in self._counts.items()}
        return f"chooses by whom it chose before: {often}"


def replica_fault(audits: list[Audit | None], reachable: Mapping[int, set[int]]) -> str | None:
    """Compare copies of what a node has told everybody with the original; both ends quiet and
    able to talk."""
    for i, audit in enumerate(audits):
        if audit is None:
            continue
        for (j, phase), (mark, copy) in audit.replicas.items():
            original = audits[j]
            if original is None or j not in reachable[i] or phase not in original.public:
                continue
            said, public = original.public[phase]
            if mark != said:
                return f"node {i}'s replica of {j} stands at message {mark} of {said} (phase {phase})"
            if copy is not public and not (copy == public).all():
                worst = float(np.abs(copy - public).max())
                return f"node {i}'s replica of {j} differs by up to {worst:.3g} (phase {phase})"
    return None
