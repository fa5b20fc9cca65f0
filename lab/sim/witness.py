"""What boards say of each other, and how they deal with each other, held against what a witness
saw who reads every message. Independent of the algorithms' own books: it keeps what came from whom,
what was asked of whom, and who offered a model.

Blame must be true: whoever is said to be silent must not have been heard; nobody is blamed before
his time is over, or before anything broke. Progress: a round ends at its deadline; a newcomer waits
no longer than it may. Fairness: nobody is never heard, or never asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgegossip.engine.events import Accepted, Arrived, Log
from edgegossip.engine.node import Stage
from edgegossip.frame import Aux, Kind
from edgegossip.gossip.base import Audit, GossipAlgorithm, Send, Topology
from edgegossip.types import Round
from lab.sim import naming
from lab.sim.checkers import Choices, rounds_ahead
from lab.sim.network import FailureDetector
from lab.sim.node import Node
from lab.sim.schedule import Schedule

# Deadlines that a neighbour may cost before it has to send, each time twice as much; those in which
# it comes nearer do not count, as many in a row as it has cost before.
FREE = 2
ROUNDING_S = 1e-6  # of a node's own clock, which may be far from the virtual one
LATE_S = 1.0  # after which somebody should have noticed
_SILENT = "deadline", "quorum"  # causes of a suspicion: no message of a round came

Check = Callable[[str, int | None, str | None], None]


@dataclass(slots=True)
class Patience:
    """Counts what one neighbour costs."""

    deadlines: int = 0
    sent: int = 0  # messages of further rounds since the last of them
    newest: Round = -1
    began: Round = -1  # the newest when the node began to wait
    nearer: int = 0  # deadlines in a row since then that did not count
    behind: float = math.inf  # rounds, after the last of these
    lost: int = 0  # times that it went away in a round that may have waited for it
    since: int = 0  # messages since the last of these, or of the deadlines

    @property
    def spent(self) -> bool:
        """Whether it need not be waited for, as far as can be told from here."""
        times = self.deadlines + self.lost
        return times >= FREE and self.since < 2 ** (times - FREE)

    @property
    def ended(self) -> bool:
        """Whether it may cost no other deadline yet."""
        return self.deadlines >= FREE and self.sent < 2 ** (self.deadlines - FREE)

    def passed(self, round: Round) -> None:
        """The deadline of a round passed in vain. What is doubtful, as it went away in between,
        counts for the node: less is spent, and what came before need not be remembered."""
        left = round - self.newest
        nearer = 0 < left < self.behind and self.newest > self.began
        if nearer and self.lost and self.deadlines + self.lost >= FREE:
            self.went()
        elif nearer and FREE <= self.deadlines > self.nearer:
            self.nearer, self.behind = self.nearer + 1, left
        else:
            self.deadlines, self.sent, self.since, self.nearer, self.behind = self.deadlines + 1, 0, 0, 0, math.inf

    def went(self) -> None:
        """It went away, perhaps while the node waited for it."""
        self.lost, self.since, self.nearer, self.behind = self.lost + 1, 0, 0, math.inf


@dataclass(slots=True)
class Observation:
    """Holds what was seen of one process of a node."""

    newest: dict[int, set[Round]] = field(default_factory=dict)  # by sender: rounds of the messages that it took in
    offers: dict[int, Round] = field(default_factory=dict)  # by sender: the round of the model it offered last
    offered_in: Round = -1  # its own round, at the last offer
    bare: bool = False  # it had nothing at the last offer, so that less is far
    asked: int = -1  # whom it asked for an exchange last
    asks: bool = False  # somebody went, so those that offered are asked again
    stepped_s: float = math.inf  # on its own clock: when its update was used
    open: Round | None = None  # its round, since then
    given_up: set[int] = field(default_factory=set)  # before that round, or in it: suspected, or gone
    links: dict[str, tuple[float, float]] = field(default_factory=dict)  # when busy until, slowest bytes/s seen
    unfit: set[int] = field(default_factory=set)  # whom it said to train something else
    trained: bool = False
    outvoted: int = 0  # rounds that it has done since it is
    nothing: bool = False  # it came again without a checkpoint, and has got nobody's values
    patience: dict[int, Patience] = field(default_factory=dict)  # with who let a deadline pass


class Witness:
    """Watches all nodes of a world; `check` hears which rule had something to look at, and what is
    wrong."""

    def __init__(
        self,
        schedule: Schedule,
        algorithm: GossipAlgorithm[object],
        detector: FailureDetector,
        topology: Topology,
        catch_up_s: float,
        check: Check,
    ) -> None:
        self._algorithm, self._topology, self._check = algorithm, topology, check
        self._detector, self.pairs = detector, algorithm.asynchronous  # whether exchanges go in pairs
        self._deadline_s, self._catch_up_s = schedule.deadline_s, catch_up_s
        self._staleness = int(naming.param_of(algorithm, "staleness", 0))
        self._ahead = rounds_ahead(topology, algorithm)
        self._malicious = int(naming.param_of(algorithm, "malicious", 0))
        self._overlaps = algorithm.listens and not algorithm.asynchronous
        self._rounds = not algorithm.asynchronous and not getattr(scheme_of(algorithm), "streams", True)
        self.broken_s = min((f.start for f in schedule.faults), default=math.inf)  # when the first thing breaks
        n = schedule.nodes
        self._seen = [Observation() for _ in range(n)]
        self._senders = [{j for r in range(topology.period) for j in topology.neighbours(i, r).in_} for i in range(n)]
        self._heard: dict[tuple[int, int], bool] = {}  # (node, in-neighbour) of the last rounds
        self._choices, self._begun = Choices(), set[tuple[int, Round]]()  # of peers; and who chose in which round

    # -- what nodes do

    def began(self, index: int) -> None:
        """A new process of a node listens."""
        self._seen[index] = Observation()

    def booted(self, node: Node, nothing: bool) -> None:
        """A process has its model, or has `nothing`."""
        self._seen[node.index].nothing = nothing and node.process > 1

    def fits(self, index: int, peer: int) -> None:
        """A node hears that a peer is there, and trains the same."""
        self._seen[index].unfit.discard(peer)

    def trains(self, node: Node) -> None:
        """A node begins a local update."""
        i, seen, detector = node.index, self._seen[node.index], self._detector
        if not seen.trained and (detector.fits_nobody(i) or detector.outvoted(i)):
            self._check("unfit", i, "begins to train, though it does not fit its neighbours")
        seen.trained = True
        if seen.nothing:
            text = "trains, though it came again with nothing and nobody is there to take a model from"
            self._check("alone", i, text if all(detector.knows_down(i, j) for j in detector.peers[i]) else None)
        asks, seen.asks = seen.asks, False
        if self._rounds and not (self._malicious or asks):
            offered, alive = self._offered(node, self._algorithm.round(node.state) + self._ahead)
            # Of several that are not about as far as each other the wrong one's may have come last.
            far = min(self._ahead, len(self._senders) + 1)
            near = [[j for j in offered if 0 <= seen.offers[j] - seen.offers[k] <= far] for k in offered]
            led = max(near, key=len, default=[])
            text = f"trains, though {led} of {sorted(alive)}, far ahead, have offered their models"
            self._check("behind", i, text if 2 * len(led) > len(alive) else None)

    def _offered(self, node: Node, near: Round) -> tuple[list[int], set[int]]:
        """Return in-neighbours that are up and offered a model of a round above `near`; and all
        that are up."""
        seen, down, members = self._seen[node.index], node.engine.down, node.view.members
        alive = {j for j in self._senders[node.index] if members[j] not in down}
        return sorted(j for j in alive if seen.offers.get(j, -1) > near), alive

    def done(self, node: Node) -> None:
        """It has done a round."""
        seen = self._seen[node.index]
        seen.open = None
        seen.outvoted = seen.outvoted + 1 if self._detector.outvoted(node.index) else 0
        if seen.outvoted > 2:  # it may have heard so in the middle of one
            text = "goes on, though the larger part of the boards trains something else"
            self._check("unfit", node.index, text)

    def spent(self, index: int, peer: int) -> bool:
        """Tell whether a peer let deadlines pass or went away, and has not sent enough since to be
        waited for."""
        return peer in self._seen[index].patience and self._seen[index].patience[peer].spent

    def stepped(self, node: Node, round: Round) -> None:
        """Its update of a round was used."""
        seen = self._seen[node.index]
        seen.stepped_s, seen.open = node.own_s, round
        seen.given_up = {j for j, costs in seen.patience.items() if costs.spent}
        for costs in seen.patience.values():
            costs.began = costs.newest

    def received(self, node: Node, sender: int, accepted: Accepted) -> None:
        """It took in a message."""
        seen, frame = self._seen[node.index], accepted.frame
        seen.nothing = seen.nothing and not len(frame.body)
        if frame.kind is Kind.STATE:
            before, after = _innermost(accepted.before), _innermost(accepted.after)
            if Aux.MODEL in frame.aux and getattr(after, "late", 0) == getattr(before, "late", 0):
                seen.offers[sender], seen.offered_in = frame.round, self._algorithm.round(accepted.before)
                seen.bare = getattr(before, "bare", False)
        elif frame.kind is not Kind.HELLO:
            if self._rounds:
                seen.newest.setdefault(sender, set()).add(frame.round)
            costs = seen.patience.setdefault(sender, Patience())
            if costs.newest < frame.round <= self._algorithm.round(accepted.before) + self._ahead:
                costs.sent, costs.since, costs.newest = costs.sent + 1, costs.since + 1, frame.round

    def adopted(self, node: Node) -> None:
        """It took over a model: where there are rounds, half of its neighbours must have offered
        theirs, of a round that is far ahead of its own."""
        if not self.pairs:
            seen = self._seen[node.index]
            far = min(self._ahead, len(self._senders) + 1) if seen.bare else self._ahead
            led, alive = self._offered(node, seen.offered_in - self._overlaps + far)
            text = f"took over a model that {led} of {sorted(alive)}, far ahead, had offered"
            self._check("led", node.index, text if 2 * len(led) < len(alive) else None)

    def sent(self, node: Node, to: int, send: Send) -> None:
        """It sent a message."""
        if shut_out := node.shut_out:
            text = f"sends to {to}, whose message it refused"
            self._check("shut-out", node.index, text if send.to in shut_out else None)
        if unfit := self._seen[node.index].unfit:
            false = to in unfit and self._detector.unfit(node.index, to)
            self._check("unfit", node.index, f"sends to {to}, which trains something else" if false else None)
        if self.pairs and send.frame.kind is Kind.MODEL and Aux.ANSWER not in send.frame.aux:
            self._chosen(node, to, send.frame.round)

    def _chosen(self, node: Node, to: int, round: Round) -> None:
        """It asks a peer for an exchange. A process that plays a round again chooses as the one
        before did, which says nothing new."""
        self._seen[node.index].asked = to
        if (node.index, round) in self._begun:
            return
        self._begun.add((node.index, round))
        down, members = node.engine.down, node.view.members
        peers = [j for j in self._topology.neighbours(node.index, round).out if members[j] not in down]
        if to in peers and len(peers) > 1:
            self._check("fair", node.index, self._choices.fault(node.index, peers, [to]))

    def said(self, node: Node, line: Log, lies: bool, now_s: float) -> None:
        """It logged something of a peer. `lies`: that one may."""
        if line.event == "disagrees":
            self._seen[node.index].unfit.add(node.view.members.index(line.fields["peer"]))
        if line.event == "waiting" and node.engine.stage is Stage.EXCHANGING:
            down = node.engine.down.intersection(line.fields["missing"].split(","))
            self._check("blame", node.index, f"waits for {sorted(down)}, who are gone: {line.text}" if down else None)
        elif line.event == "suspect" and line.fields["cause"] == "deadline":
            costs = self._seen[node.index].patience.setdefault(node.view.members.index(line.fields["peer"]), Patience())
            text = f"waited though that neighbour has cost {costs.deadlines} deadlines, and sent {costs.sent} messages since"
            self._check("patience", node.index, f"{text}: {line.text}" if costs.ended else None)
            costs.passed(line.fields["round"])
        elif line.event in ("peer-down", "peer-left"):
            self._went(self._seen[node.index], node.view.members.index(line.fields["peer"]))
        if line.event == "suspect":
            self._seen[node.index].given_up.add(node.view.members.index(line.fields["peer"]))
        if line.event == "suspect" and not lies:
            # With a quorum the rest gets less time than boards may begin apart.
            early = now_s < self.broken_s and line.fields["cause"] != "quorum"
            fault = "blames a neighbour before anything broke" if early else self._false(node, line)
            self._check("blame", node.index, f"{fault}: {line.text}" if fault else None)

    def _went(self, seen: Observation, peer: int) -> None:
        """A peer went away: who waited for it has waited in vain, and what it offered is void."""
        seen.given_up.add(peer)
        seen.offers.pop(peer, None)
        seen.asks = True
        if (seen.open is not None and seen.open not in seen.newest.get(peer, ())) or self._overlaps:
            seen.patience.setdefault(peer, Patience()).went()

    def hasty(self, node: Node, round: Round, row: Collection[int], lied: Collection[int]) -> str | None:
        """Say of whom a round did not wait, though they are there and have not let it down; None
        where it cannot be told."""
        seen, down, members = self._seen[node.index], node.engine.down, node.view.members
        if not (self._rounds and row and seen.open == round) or self._staleness or self._overlaps:
            return None
        senders = [j for j in self._topology.neighbours(node.index, round).in_ if j not in row and j not in lied]
        later = {j for j in senders if max(seen.newest.get(j, ()), default=-1) > round}  # this one was lost
        excused = seen.given_up | later | {j for j in senders if members[j] in down or self.spent(node.index, j)}
        out = [j for j in senders if j not in excused]
        return f"did not wait for {out} in round {round}" if out else None

    def _false(self, node: Node, line: Log) -> str:
        """Say why what it says of a neighbour is false; "" where it is true."""
        seen = self._seen[node.index]
        rounds = seen.newest.get(node.view.members.index(line.fields["peer"]), set())
        if line.fields["cause"] in _SILENT:
            round, waited_s = line.fields["round"], node.own_s - seen.stepped_s
            if waited_s < min(line.fields["waited_s"], self._deadline_s) - 1e-3:
                return f"it has waited for {waited_s:.3f} s"
            news = rounds & set(range(round - self._staleness, round + 1))
            later = self._rounds and max(rounds, default=-1) > round
            return f"it has taken in its message of round {max(news or rounds)}" if news or later else ""
        if line.fields["cause"] == "refused":
            return "it does not lie"
        asked = node.view.members[seen.asked]
        return f"it has asked {asked}" if line.fields["peer"] != asked else ""

    def arrived(self, sender: int, arrived: Arrived) -> None:
        """One of its messages is acknowledged. While it waited for the one before it, it took no
        time of its link."""
        peer, size, start_s, end_s = arrived
        until_s, slowest = self._seen[sender].links.get(peer, (-math.inf, math.inf))
        took_s = max(end_s - max(start_s, until_s), 1e-6)
        self._seen[sender].links[peer] = end_s, min(slowest, size / took_s)

    def rated(self, node: Node, figures: Mapping[str, float]) -> None:
        """It says how fast its links are."""
        for peer, (_, slowest) in self._seen[node.index].links.items():
            if (said := figures.get(f"rate/{peer}_mbit")) is not None:
                text = f"takes the link to {peer} for one of {said:.3g} Mbit/s, and never saw it below {8e-6 * slowest:.3g}"
                self._check("rates", node.index, text if said < 8e-6 * slowest * (1.0 - 1e-6) else None)

    # -- what must be so at any time, and in the end

    def look(self, node: Node, now_s: float) -> None:
        """Check a node that does not stand still."""
        i, detector = node.index, self._detector
        if node.has_heard and node.engine.listens:
            unnamed = [j for j in detector.peers[i] if detector.unfit(i, j) and j not in self._seen[i].unfit]
            if unnamed:
                self._check("unfit", i, f"does not say that {unnamed} train something else")
        stage, since_s = node.engine.stage, now_s - node.since_s
        if shut_out := node.shut_out:
            counted = sorted(peer for peer in shut_out if peer not in node.engine.down)
            text = f"counts {counted} as there, whose messages it refused"
            self._check("shut-out", node.index, text if counted else None)
        if stage is Stage.EXCHANGING and not self._overlaps:
            text = f"its round is open for {since_s:.1f} s; the deadline is {self._deadline_s:g} s"
            self._check("progress", node.index, text if since_s > self._deadline_s + LATE_S else None)
        if stage is Stage.CATCHING_UP:
            text = f"waits for a model for {since_s:.1f} s, instead of going on"
            self._check("progress", node.index, text if since_s > self._catch_up_s + LATE_S else None)

    def mixed(self, i: int, round: Round, audit: Audit, done: Sequence[Round], lied: Collection[int]) -> None:
        """Take note of whom one of the last mixings heard, and whom it did not, of those who had
        `done` that round."""
        for j in self._topology.neighbours(i, round).in_ if audit.row else ():
            if j not in lied and self._detector.connected(i, j) and (j in audit.row or done[j] >= round):
                self._heard[i, j] = self._heard.get((i, j), False) or j in audit.row

    def conclude(self, live: Sequence[int]) -> None:
        """Check that nobody was shut out, once all was well."""
        for (i, j), heard in self._heard.items():
            if i in live and j in live:
                self._check("shut-out", i, None if heard else f"has not heard {j} in any of the last rounds")


def _innermost(state: Any) -> Any:
    """Return the state of the algorithm inside all wrappers."""
    while (inner := getattr(state, "inner", None)) is not None:
        state = inner
    return state


def scheme_of(algorithm: object) -> object:
    """Return what the rounds of an algorithm exchange; None where there are no rounds."""
    while (inner := getattr(algorithm, "algorithm", None)) is not None:
        algorithm = inner
    return getattr(algorithm, "scheme", None)
