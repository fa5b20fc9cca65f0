"""`ad-psgd`: asynchronous decentralised parallel SGD, by pairwise averaging.

Lian, Zhang, Zhang, Liu, "Asynchronous decentralized parallel stochastic gradient descent" (2018), algorithm 1: a node
averages with one random neighbour, x_i, x_j <- (x_i + x_j) / 2, while it computes the gradient at the model as it was
before, and then applies that to the model as it is. Nobody waits for a slow node.

Here `step` adds the local update to the present model and begins an exchange, which goes on while the next update is
computed; the next `step` waits for its end, up to the deadline. The initiator i sends p = C(x_i), the peer j answers
q = C(x_j) at once, and each adds its half when it has both: x_j += eta (p - q) / 2 and x_i += eta (q - p) / 2.

Deviations. (1) The halves are added, not averages assigned, and at different times: neither model has to stand still
meanwhile, so no pairing can deadlock and any undirected graph will do (the paper needs a bipartite one). What one adds the
other takes off, for any codec: the sum of all models moves by the local updates alone. (2) Where two ask each other at
the same time, the one of the smaller index takes no part in the other's exchange; else they would swap their models. (3)
The peer is drawn by a counter-based generator from (seed, node, round), uniformly among the neighbours that are up; the
weights of the topology are not used. (4) A node that has never exchanged anything, and whose peer is more than
`max_ahead` rounds ahead, takes over the peer's model; the peer does not average with it.

What is lost and what is not. A request is repeated `repeats` times within the deadline, and answered again, but averaged
once. An exchange that is given up stays open: a late answer still ends it; otherwise the next request to that peer says
that it was not done, and the peer takes its half back. So the sum is out by the halves of the exchanges that are open and
by nothing else, however many messages are lost, doubled or late; `Audit.taken` and `finished` tell which these are. A node
that restarts goes on with the exchange that its checkpoint holds. What it did after the checkpoint is undone on its side
only, but for the last exchange that it began with each peer; so are messages of the old process that arrive later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgegossip.codecs.base import Ctx
from edgegossip.frame import Frame
from edgegossip.gossip import edges, exchange, kinds, tags
from edgegossip.gossip.base import (
    Action,
    Adopted,
    Audit,
    Checkpoint,
    Message,
    NodeView,
    RoundDone,
    Send,
    SetTimer,
    Suspect,
)
from edgegossip.gossip.changed import changed
from edgegossip.gossip.exchange import Begun, Taken
from edgegossip.gossip.keys import derive_key
from edgegossip.gossip.params import check_integer, check_number
from edgegossip.gossip.publish import relative_error
from edgegossip.gossip.streams import number_of
from edgegossip.types import ConfigError, LocalError, LocalUpdate, NodeId, Round, Vec

_PEER, _ANSWER = 1, 2  # last counters of the keys that are not a request's

_NOTHING: Mapping[int, Any] = {}


@dataclass(frozen=True, eq=False)
class State:
    """Immutable; arrays in it are never written to once they are there."""

    view: NodeView
    index: int
    round: Round
    x: Vec  # float32[n]
    codec: Any  # the codec's state
    sequences: tuple[int, ...]  # of the last exchange begun with each member
    settled: tuple[int, ...]  # of the last one of them that is over, and not given up
    begun: Mapping[int, Begun] = field(default_factory=lambda: _NOTHING)  # by peer: not over yet
    taken: Mapping[int, tuple[Taken, ...]] = field(default_factory=lambda: _NOTHING)  # by peer: its exchanges with us
    waiting: int | None = None  # the peer of the exchange under way; others in `begun` were given up
    repeats: int = 0  # of its request so far
    stepped: bool = False  # the round's update is in x, and the round waits for the exchange under way
    fresh: bool = True  # has never exchanged anything
    local: tuple[float, float] = (math.nan, 0.0)  # loss and learning rate of the last update, for codecs
    count: int = 0  # models seen since the last round
    squares: float = 0.0  # sum of their ||x_j - x_i||^2
    late: int = 0  # messages of an exchange that was over, dropped
    duplicates: int = 0  # requests that came again, answered again or dropped


@dataclass(frozen=True, slots=True)
class AdPsgd:
    """Implements `gossip.base.GossipAlgorithm[State]`."""

    eta: float = 1.0  # averaging rate, (0, 1]
    repeats: int = 1  # of a request without answer, evenly over the deadline
    max_ahead: int = 0  # rounds that a peer must be ahead for a fresh node to take over its model; 0: twice the members

    name = "ad-psgd"
    asynchronous = True

    def __post_init__(self) -> None:
        check_number("eta of ad-psgd", self.eta, 0.0, 1.0)
        check_integer("repeats of ad-psgd", self.repeats, 0, 1000)
        check_integer("max_ahead of ad-psgd", self.max_ahead, 0, 2**32 - 1)

    def init(self, x: Vec, view: NodeView) -> State:
        """State before round 0; x is copied. Raises ConfigError unless every edge goes both ways in every round,
        LocalError when x does not fit the layout or is not finite."""
        index, topology = edges.check_view(view), view.topology
        for r in range(topology.period):
            if any(set((n := topology.neighbours(i, r)).in_) != set(n.out) for i in range(topology.n)):
                raise ConfigError(
                    f"ad-psgd averages in pairs and needs an undirected graph, which topology {topology.name!r} is not; "
                    "use one of: ring, torus, complete, star, random-regular"
                )
        edges.check_vector(view, x)
        zeros = (0,) * topology.n
        return State(view, index, 0, x.copy(), view.codec.init(view.layout), zeros, zeros)

    def resume(self, s: State, view: NodeView) -> State:
        """A round whose update is in the model already counts as done."""
        edges.check_same_run(s.view, view)
        waiting = s.waiting if s.waiting is not None and view.members[s.waiting] not in view.down else None
        return changed(s, view=view, waiting=waiting, repeats=0, round=s.round + int(s.stepped), stepped=False)

    def start(self, s: State) -> tuple[State, list[Action]]:
        """Asks again for the answer that the earlier process waited for."""
        return (s, []) if s.waiting is None else (s, self._ask(s, s.waiting))

    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Adds the update; ends the round at once, or when the exchange under way does. Raises LocalError when called
        twice in a round, or when the update is not finite (names the tensor)."""
        if s.stepped:
            raise LocalError(f"round {s.round} of {s.view.node} has its local update already")
        edges.check_vector(s.view, local.delta)
        s = changed(s, x=s.x + local.delta, stepped=True, local=(local.loss, local.lr))
        return self._begin(s) if s.waiting is None else (s, [])

    def receive(self, s: State, m: Message) -> tuple[State, list[Action]]:
        """Requests are answered at once, whatever else is under way."""
        sender, frame = exchange.admit(s.view, s.index, m), m.frame
        if frame.kind == kinds.STATE and self._wants_model(s, sender, frame):
            return self._adopt(s, sender, frame)
        if tags.ANSWER in frame.aux or frame.kind == kinds.STATE:
            begun = s.begun.get(sender)
            if begun is None or not begun.is_meant(frame):
                return changed(s, late=s.late + 1), []
            return self._answered(s, sender, begun, frame)
        session = int(frame.aux[tags.SESSION])
        if frame.kind == kinds.MODEL:
            return self._asked(s, sender, frame, session)
        return _with_taken(s, sender, exchange.close(s.taken.get(sender, ()), session, frame.sequence)), []

    def tick(self, s: State, now_s: float) -> tuple[State, list[Action]]:
        """Asks again, or gives up the exchange under way."""
        if s.waiting is None:
            return s, []
        if s.repeats < self.repeats:
            return changed(s, repeats=s.repeats + 1), self._ask(s, s.waiting)
        reason = f"no answer to the model of round {s.begun[s.waiting].frame.round} within {s.view.deadline_s:g} s"
        suspect = Suspect(s.view.members[s.waiting], reason)
        s, actions = self._go_on(changed(s, waiting=None))
        return s, [suspect, *actions]

    def membership(self, s: State, view: NodeView) -> tuple[State, list[Action]]:
        """Who is down is neither asked nor waited for."""
        edges.check_same_run(s.view, view)
        s = changed(s, view=view)
        if s.waiting is None or view.members[s.waiting] not in view.down:
            return s, []
        s, actions = self._go_on(changed(s, waiting=None))
        return s, [SetTimer(None), *actions]

    def model(self, s: State) -> Vec:
        return s.x

    def round(self, s: State) -> Round:
        return s.round

    def waiting_for(self, s: State) -> tuple[NodeId, ...]:
        return (s.view.members[s.waiting],) if s.stepped and s.waiting is not None else ()

    def audit(self, s: State) -> Audit:
        taken = {j: (t.sequence, t.change) for j, them in s.taken.items() for t in them if t.change is not None}
        return Audit(mass=s.x.astype(np.float64), taken=taken, finished=dict(enumerate(s.settled)))

    # -- the own exchange ------------------------------------------------------------------------------------

    def _begin(self, s: State) -> tuple[State, list[Action]]:
        """Ends the round and begins an exchange with somebody who is up, if there is anybody."""
        distance = math.sqrt(s.squares / s.count) if s.count else math.nan
        done = RoundDone(s.round, distance, math.nan)
        after = changed(s, round=s.round + 1, stepped=False, count=0, squares=0.0)
        peers = edges.up(s.view, s.view.topology.neighbours(s.index, s.round).out)
        if not peers:
            return after, [Checkpoint(), done]
        j = peers[derive_key(s.view.seed, s.index, s.round, _PEER) % len(peers)]
        key = edges.key_of(s.view, s.index, s.round)
        body, codec = s.view.codec.encode(s.x, s.codec, Ctx(key, s.round, *s.local))
        public = s.view.codec.decode(body, s.view.layout)
        sequence = s.sequences[j] + 1
        frame = exchange.request(s.view, s.round, key, body, sequence, s.settled[j], s.fresh)
        begun = {**s.begun, j: Begun(frame, public)}
        sequences = _put(s.sequences, j, sequence)
        s = changed(after, codec=codec, begun=begun, sequences=sequences, waiting=j, repeats=0)
        return s, [Checkpoint(), *self._ask(s, j), RoundDone(done.round, distance, relative_error(public - s.x, s.x))]

    def _ask(self, s: State, j: int) -> list[Action]:
        return [Send(s.view.members[j], s.begun[j].frame), SetTimer(s.view.deadline_s / (self.repeats + 1))]

    def _answered(self, s: State, j: int, begun: Begun, frame: Frame) -> tuple[State, list[Action]]:
        """Does this node's half, unless the peer did none."""
        actions: list[Action] = [Checkpoint()]
        last = _last_round(s)
        if frame.kind == kinds.MODEL:
            way = exchange.vector_of(s.view, j, frame, s.x)
            way -= begun.public
            s = _saw(changed(s, fresh=False), way)
            way *= np.float32(self.eta / 2)
            s = changed(s, x=s.x + way)
            actions.append(Send(s.view.members[j], exchange.done(s.view, begun, last)))
        elif tags.FRESH in frame.aux and not s.fresh and self._is_far(s, frame.round, last):
            actions.append(Send(s.view.members[j], exchange.model(s.view, frame, last, s.x)))
        left = {k: b for k, b in s.begun.items() if k != j}
        s = changed(s, begun=left, settled=_put(s.settled, j, frame.sequence))
        if s.waiting != j:
            return s, actions
        s, more = self._go_on(changed(s, waiting=None))
        return s, [*actions, SetTimer(None), *more]

    def _go_on(self, s: State) -> tuple[State, list[Action]]:
        """The exchange under way is over: a round that waited for it ends, and begins the next."""
        return self._begin(s) if s.stepped else (s, [])

    # -- those of others -------------------------------------------------------------------------------------

    def _asked(self, s: State, j: int, frame: Frame, session: int) -> tuple[State, list[Action]]:
        settled = number_of(frame, tags.SETTLED, 0, frame.sequence - 1)
        before = exchange.find(s.taken.get(j, ()), session)
        if before is not None and frame.sequence < before.sequence:
            return changed(s, late=s.late + 1), []
        if before is not None and frame.sequence == before.sequence:
            again = [] if before.answer is None else [Send(s.view.members[j], before.answer)]
            return changed(s, duplicates=s.duplicates + 1), [*again]
        public = exchange.vector_of(s.view, j, frame, s.x)
        s, change, answer = self._take(_take_back(s, j, settled), j, frame, public)
        new = Taken(session, frame.sequence, answer, change)
        s = _with_taken(s, j, exchange.remember(s.taken.get(j, ()), new))
        return s, [Checkpoint(), Send(s.view.members[j], answer)]

    def _take(self, s: State, j: int, frame: Frame, public: Vec) -> tuple[State, Vec | None, Frame]:
        """This node's half of another's exchange, the change that it is, and the answer."""
        last, theirs_fresh = _last_round(s), tags.FRESH in frame.aux
        if s.fresh and not theirs_fresh and self._is_far(s, last, frame.round):
            return s, None, exchange.decline(s.view, frame, last, {tags.FRESH: 1})
        if theirs_fresh and not s.fresh and self._is_far(s, frame.round, last):
            return s, None, exchange.model(s.view, frame, last, s.x)
        if s.waiting == j and s.index < j:
            return s, None, exchange.decline(s.view, frame, last, {})
        key = derive_key(s.view.seed, s.index, j, frame.sequence, _ANSWER)
        body, codec = s.view.codec.encode(s.x, s.codec, Ctx(key, last, *s.local))
        change = public - s.view.codec.decode(body, s.view.layout)
        s = _saw(s, change)
        change *= np.float32(self.eta / 2)
        s = changed(s, x=s.x + change, codec=codec, fresh=False)
        return s, change, exchange.answer(s.view, frame, last, key, body)

    def _adopt(self, s: State, j: int, frame: Frame) -> tuple[State, list[Action]]:
        """Goes on with the peer's model in the last round that the peer did; what this node began is given up."""
        x = exchange.vector_of(s.view, j, frame, s.x)
        s = changed(s, x=x, round=frame.round, begun=_NOTHING, waiting=None, fresh=False)
        s, actions = self._go_on(s)
        return s, [Checkpoint(), Adopted(s.view.members[j], frame.round), SetTimer(None), *actions]

    def _wants_model(self, s: State, j: int, frame: Frame) -> bool:
        """Whether a model answers this node's request, or its wish for the model instead of the peer's exchange."""
        if not s.fresh or not self._is_far(s, _last_round(s), frame.round):
            return False
        begun, taken = s.begun.get(j), exchange.find(s.taken.get(j, ()), int(frame.aux[tags.SESSION]))
        if taken is not None and taken.sequence == frame.sequence and taken.answer is not None:
            return tags.FRESH in taken.answer.aux
        return begun is not None and begun.is_meant(frame)

    def _is_far(self, s: State, behind: Round, ahead: Round) -> bool:
        return ahead > behind + (self.max_ahead or 2 * s.view.topology.n)


def _last_round(s: State) -> Round:
    """The last round whose update is in the model; 0 before the first."""
    return max(0, s.round - (not s.stepped))


def _take_back(s: State, j: int, settled: int) -> State:
    """Without this node's half of what j began and gave up."""
    for t in s.taken.get(j, ()):
        if t.change is not None and t.sequence > settled:
            s = changed(s, x=s.x - t.change)
    return s


def _with_taken(s: State, j: int, taken: tuple[Taken, ...]) -> State:
    return changed(s, taken={**s.taken, j: taken})


def _saw(s: State, way: Vec) -> State:
    """Counts the distance between a neighbour's model and this node's."""
    return changed(s, count=s.count + 1, squares=s.squares + float(way.dot(way)))


def _put(numbers: tuple[int, ...], k: int, value: int) -> tuple[int, ...]:
    return (*numbers[:k], value, *numbers[k + 1 :])
