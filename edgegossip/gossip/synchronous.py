"""Rounds: every synchronous algorithm is this protocol around a `scheme.Scheme`.

A round: `step` publishes, messages of the in-neighbours come in, the scheme mixes. Who is down is neither waited for nor
counted. Past the deadline the round goes on without whoever is silent; with a quorum it waits only a little longer for the
rest; with bounded staleness s, news of a neighbour that is at most s rounds old will do. A message of a later round tells
that this round's was lost. A node that most of its in-neighbours have left behind goes on in their round; a newcomer takes
over a neighbour's model as well. Where messages are differences or carry mass, `streams` keeps the two ends together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgegossip.gossip import catching_up, edges, handshake, kinds, receiving, sending, tags
from edgegossip.gossip.base import Action, Audit, Checkpoint, Message, NodeView, RoundDone, SetTimer, Suspect
from edgegossip.gossip.changed import changed
from edgegossip.gossip.here import Here
from edgegossip.gossip.inbox import Inbox
from edgegossip.gossip.later import Later
from edgegossip.gossip.params import check_integer, check_number
from edgegossip.gossip.scheme import Scheme
from edgegossip.gossip.state import NO_IN_EDGE, Key, Outcome, State, Stepped
from edgegossip.gossip.streams import life_of
from edgegossip.types import LocalError, LocalUpdate, NodeId, Round, Vec


@dataclass(frozen=True, slots=True)
class Synchronous:
    """Implements `gossip.base.GossipAlgorithm[State]`."""

    scheme: Scheme[Any]
    staleness: int = 0  # rounds that a neighbour's news may be old
    quorum: float = 1.0  # share of the neighbours that are up after which the rest gets only linger_s
    linger_s: float = 1.0
    max_ahead: int = (
        0  # rounds that a neighbour may be ahead before we count as left behind; 0: what honest ones may be
    )
    early_bytes: int = 0  # limit of early messages kept, encoded; 0: what honest neighbours can send, at least 256 MiB

    asynchronous = False

    def __post_init__(self) -> None:
        name = self.scheme.name
        check_integer(f"staleness of {name}", self.staleness, 0, 1000)
        check_number(f"quorum of {name}", self.quorum, 0.0, 1.0)
        check_number(f"linger_s of {name}", self.linger_s, 0.0, 86_400.0)
        check_integer(f"max_ahead of {name}", self.max_ahead, 0, 2**32 - 1)
        check_integer(f"early_bytes of {name}", self.early_bytes, 0, 2**63 - 1)

    @property
    def name(self) -> str:
        return self.scheme.name

    def init(self, x: Vec, view: NodeView) -> State:
        """State before round 0; x is copied. Raises ConfigError on an unsuitable topology, LocalError when x does not
        fit the layout or is not finite."""
        index = edges.check_view(view)
        self.scheme.check(view)
        edges.check_vector(view, x)
        here = Here.at(view, index, 0)
        return State(view, index, 0, here, self.scheme.init(x, here), life_of(view), life_of(view))

    def resume(self, s: State, view: NodeView) -> State:
        """The streams that this node sent are broken, and those that it received have to be opened anew: nobody knows
        what was lost. An update that was not mixed yet counts."""
        edges.check_same_run(s.view, view)
        here = Here.at(view, s.index, s.round)
        s = changed(
            s,
            view=view,
            here=here,
            epoch=life_of(view),
            inbox=Inbox(),
            refused=frozenset(),
            lingering=False,
            sessions=0,
            claims={},
        )
        s = changed(s, out={key: changed(edge, session=0, answers=0) for key, edge in s.out.items()})
        if s.stepped is None:
            return s
        math_, here = self.scheme.settle(s.math, None, s.here), Here.at(view, s.index, s.round + 1)
        return changed(s, round=s.round + 1, here=here, math=math_, stepped=None)

    def start(self, s: State) -> Outcome:
        """Opens the streams of the in-neighbours, and asks whether they are far ahead."""
        return handshake.greet(self, s, handshake.in_keys(self, s))

    def step(self, s: State, local: LocalUpdate) -> Outcome:
        """Publishes and waits for the neighbours. Raises LocalError when called twice in a round, or when the update is
        not finite (names the tensor)."""
        if s.stepped is not None:
            raise LocalError(f"round {s.round} of {s.view.node} has its local update already")
        edges.check_vector(s.view, local.delta)
        here = s.here
        math_, published = self.scheme.publish(s.math, local, here, edges.up(s.view, here.around.out))
        frame = edges.make_frame(s.view, self.scheme.kind, s.round, here.key, published.body)
        s = changed(s, math=math_, stepped=Stepped(frame, published))
        s, sends = sending.tell(self, s, here.around.out, advance=True)
        s, greetings = handshake.remind(self, s)
        lost = self._all_lost(s)
        if lost is None:
            s, actions = self._linger(s)
            return s, [*greetings, *sends, SetTimer(s.view.deadline_s), *actions]
        suspects = self._suspects(s, lost)
        s, done = self._finish(s)
        return s, [*greetings, *sends, *suspects, *done]

    def receive(self, s: State, m: Message) -> Outcome:
        """Late messages and duplicates are counted and dropped: (round, sender) tells them, or the stream's number."""
        sender, frame = edges.belongs(s.view, m), m.frame
        if frame.kind == kinds.HELLO:
            return handshake.hello(self, s, sender, frame)
        if frame.kind == kinds.STATE:
            return catching_up.state(self, s, sender, frame)
        edges.admit(s.view, s.index, sender, frame, self.scheme.kind)
        return (
            receiving.next_of_stream(self, s, sender, frame)
            if self.scheme.streams
            else receiving.single(self, s, sender, frame)
        )

    def tick(self, s: State, now_s: float) -> Outcome:
        """The deadline of the round has passed: goes on without whoever is missing."""
        missing = self.missing(s)
        if not missing:
            return s, []
        waited = f"{self.linger_s:g} s after the others" if s.lingering else f"{s.view.deadline_s:g} s"
        reason = f"no message of round {s.round} within {waited}"
        done, actions = self._finish(s)
        return done, [*(Suspect(s.view.members[j], reason) for j in missing), *actions]

    def membership(self, s: State, view: NodeView) -> Outcome:
        """Who is down is neither waited for nor sent to; who came back gets the message of the round in progress."""
        edges.check_same_run(s.view, view)
        back = {j for j, name in enumerate(view.members) if name in s.view.down - view.down}
        gone = {j for j, name in enumerate(view.members) if name in view.down - s.view.down}
        s = changed(
            s,
            view=view,
            here=Here.at(view, s.index, s.round),
            claims={j: r for j, r in s.claims.items() if view.members[j] not in view.down},
        )
        s, greetings = handshake.welcome(self, handshake.part(s, gone), back)
        if s.stepped is None:
            return s, greetings
        sent = s.stepped.sent
        s, sends = sending.tell(self, s, [j for j in s.here.around.out if j in back and j not in sent], advance=False)
        s, actions = self.proceed(s)
        return s, [*greetings, *sends, *actions]

    def model(self, s: State) -> Vec:
        return self.scheme.model(s.math)

    def round(self, s: State) -> Round:
        return s.round

    def waiting_for(self, s: State) -> tuple[NodeId, ...]:
        return tuple(s.view.members[j] for j in self.missing(s))

    def audit(self, s: State) -> Audit:
        audit = self.scheme.audit(s.math, s.here)
        if not self.scheme.replicates:
            return audit
        a = audit
        public: Later[int, tuple[int, Vec]] = Later(lambda: _told(s, a.public))
        held = Later(lambda: {key: (s.in_edge(key).position, vec) for key, (_, vec) in a.replicas.items()})
        return Audit(a.mass, a.weight, a.mixed, a.sent, a.seen, public, held, a.taken, a.finished, a.row)

    def key(self, j: int, phase: int) -> Key:
        """Where the edge with j is kept."""
        return (j, phase) if self.scheme.streams else (j, 0)

    def ahead(self, s: State) -> int:
        """In a strongly connected graph without deadlines nobody can be more than n - 1 hops ahead; on each of them a node
        goes on for `staleness` rounds without news, and hears of it again after a period."""
        topology = s.view.topology
        return self.max_ahead or topology.n * (topology.period + self.staleness) + 1

    def missing(self, s: State) -> tuple[int, ...]:
        """Whom the round waits for; nobody before `step`."""
        return () if s.stepped is None else tuple([j for j in self._silent(s) if not self._lost(s, j)])

    def proceed(self, s: State) -> Outcome:
        """Ends the round if nothing is missing any more."""
        if s.stepped is None:
            return s, []
        lost = self._all_lost(s)
        if lost is None:
            return self._linger(s)
        suspects = self._suspects(s, lost)
        s, actions = self._finish(s)
        return s, [SetTimer(None), *suspects, *actions]

    def enter(self, s: State, round: Round, math_: Any) -> Outcome:
        """Start of a round: takes in what came early, and answers what the last round had no answer left for. A sender of a
        body that cannot be used is suspected, and not waited for."""
        answered = {k: changed(e, answers=0) for k, e in s.out.items() if e.answers}
        owed = [k for k in answered if s.out[k].owes]
        out = {**s.out, **answered} if answered else s.out
        here = Here.at(s.view, s.index, round)
        s = changed(
            s,
            round=round,
            here=here,
            math=math_,
            out=out,
            stepped=None,
            refused=frozenset(),
            lingering=False,
            claims={},
        )
        actions: list[Action] = []
        if self.scheme.streams:
            for sender in sorted(s.inbox.frames):
                s, more = receiving.drain(self, s, sender)
                actions += more
            s, answers = handshake.pay(self, s, owed)
            return s, [*actions, *answers]
        frames, inbox = s.inbox.take(round)
        s = changed(s, inbox=inbox)
        for sender, frame in frames.items():
            s, more = receiving.use(self, s, sender, frame)
            actions += more
        return s, actions

    def _suspects(self, s: State, lost: Sequence[int]) -> list[Action]:
        return [Suspect(s.view.members[j], f"its message of round {s.round} was lost") for j in lost]

    def _all_lost(self, s: State) -> list[int] | None:
        """Those of whom there is no news, once that of all of them is lost; None while somebody is waited for."""
        lost = []
        for j in self._silent(s):
            if not self._lost(s, j):
                return None
            lost.append(j)
        return lost

    def _silent(self, s: State) -> Iterator[int]:
        """In-neighbours that are up, of whom there is no news and no refused message either."""
        here, oldest, in_ = s.here, s.round - self.staleness, s.in_
        phase = here.phase if self.scheme.streams else 0
        for j in here.waited:
            if j not in s.refused and in_.get((j, phase), NO_IN_EDGE).round < oldest:
                yield j

    def _lost(self, s: State, j: int) -> bool:
        """Whether a message of a later round is here: an edge keeps its order, so that of this round was lost and will
        not come. Of a stream it is on its way, in a full state; unless the sender left this round out."""
        if not self.scheme.streams:
            return s.inbox.newest(j) > s.round
        if j not in s.inbox.frames:
            return False
        edge = s.in_edge((j, s.here.phase))
        return any(
            f.round > s.round and f.sequence == edge.position + 1 and f.aux[tags.SESSION] == edge.session
            for f in s.inbox.of(j)
        )

    def _linger(self, s: State) -> Outcome:
        """Shortens the wait once the quorum is there."""
        if s.lingering or self.quorum >= 1.0:
            return s, []
        waited = len(s.here.waited)
        if waited - len(self.missing(s)) < self.quorum * waited:
            return s, []
        return changed(s, lingering=True), [SetTimer(min(self.linger_s, s.view.deadline_s))]

    def _finish(self, s: State) -> Outcome:
        assert s.stepped is not None
        here, oldest, in_ = s.here, s.round - self.staleness, s.in_
        phase = here.phase if self.scheme.streams else 0
        fresh = [j for j in here.around.in_ if j not in s.refused and in_.get((j, phase), NO_IN_EDGE).round >= oldest]
        math_, distance = self.scheme.mix(s.math, here, fresh)
        error = s.stepped.published.relative_error if s.stepped.sent else math.nan
        done = RoundDone(s.round, distance, error)
        s, actions = self.enter(s, s.round + 1, math_)
        return s, [Checkpoint(), done, *actions]


def _told(s: State, public: Mapping[int, tuple[int, Vec]]) -> dict[int, tuple[int, Vec]]:
    """By phase: how many messages its receivers should have by now, and what they hold then."""
    told = dict.fromkeys(public, 0)
    for (_, phase), edge in s.out.items():
        if edge.position > told.get(phase, edge.position):
            told[phase] = edge.position
    return {phase: (told[phase], vec) for phase, (_, vec) in public.items()}
