"""Implements `ad-psgd`: asynchronous decentralised parallel SGD, by pairwise averaging.

Lian, Zhang, Zhang, Liu, "Asynchronous decentralized parallel stochastic gradient descent" (2018),
algorithm 1: a node averages with one random neighbour, x_i, x_j <- (x_i + x_j) / 2, while it
computes the gradient at the model as it was before, and then applies that to the model as it is.
Nobody waits for a slow node.

Here `step` adds the local update to the present model and begins an exchange, which goes on while
the next update is computed; the next `step` waits for its end, up to the deadline. The initiator i
sends p = C(x_i), the peer j answers q = C(x_j) at once, and each adds its half when it has both:
x_j += eta (p - q) / 2 and x_i += eta (q - p) / 2.

Deviations. (1) The halves are added, not averages assigned, and at different times: neither model
has to stand still meanwhile, so no pairing can deadlock and any undirected graph will do (the paper
needs a bipartite one). What one adds the other takes off, for any codec: the sum of all models
moves by the local updates alone. (2) Where two ask each other at the same time, the one of the
smaller index takes no part in the other's exchange; else they would swap their models. (3) The peer
is drawn by a counter-based generator from (seed, node, round), uniformly among the neighbours that
are up; the weights of the topology are not used. (4) A node that has never exchanged anything, and
whose peer is more than `max_ahead` rounds ahead, takes over the peer's model; the peer does not
average with it.

What is lost and what is not. A request is repeated `repeats` times within the deadline, and
answered again, but averaged once. An exchange that is given up stays open: a late answer still ends
it; otherwise the next request to that peer says that it was not done, and the peer takes its half
back. So the sum is out by the halves of the exchanges that are open and by nothing else, however
many messages are lost, doubled or late; `Audit.taken` and `finished` tell which these are. A node
that restarts goes on with the exchange that its checkpoint holds. What it did after the checkpoint
is undone on its side only, but for the last exchange that it began with each peer; so are messages
of the old process that arrive later.

The messages of one exchange:

    request  MODEL  C(x_i)  SESSION, sequence, SETTLED; FRESH         i -> j
    answer   MODEL  C(x_j)  SESSION, sequence of the request, ANSWER  j -> i
             HELLO          the same: j takes no part; with FRESH it asks for the model instead
             STATE  x_j     the same: the model itself, fp32, for one that is fresh and far behind
    close    HELLO          SESSION, sequence of the request          i -> j: i has done its half

An exchange is known by (initiator, session, sequence): the session is the boot of the process that
began it, the sequence counts a node's exchanges with one peer and goes on over restarts. SETTLED is
the sequence of the last exchange with this peer of which the initiator has done its half, or the
peer none: what the peer added for a later one is taken back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from typing_extensions import override

from edgegossip.choices import Range
from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.codecs.keys import derive_key
from edgegossip.frame import Aux, Frame, Kind, expect_codec
from edgegossip.gossip import messages
from edgegossip.gossip.averaging import Eta
from edgegossip.gossip.base import (
    Action,
    Adopted,
    Audit,
    Checkpoint,
    GossipAlgorithm,
    Message,
    NodeView,
    RoundDone,
    Says,
    Send,
    SetTimer,
    Suspect,
)
from edgegossip.gossip.messages import FP32, MAX_ID, control, number_of, relative_error, round_key
from edgegossip.gossip.requirements import require_undirected
from edgegossip.gossip.state import Reliance
from edgegossip.gossip.traits import Traits
from edgegossip.types import LocalUpdate, NodeId, PeerError, Round, UsageError, Vec, replace

MAX_SEQUENCE = 2**53  # whole numbers up to here are exact beside a body
RESTARTS = 4  # of a process that waits for one answer; its new one asks for it again
SESSIONS = 4  # processes of one peer whose exchanges are remembered

_PEER, _ANSWER = 1, 2  # last counters of the keys that are not a request's

_NOTHING: Mapping[int, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """Holds an exchange that this node began and of which it has not done its half."""

    frame: Frame  # the request
    public: Vec  # C(x), float32[n], as the peer sees it

    def is_meant(self, frame: Frame) -> bool:
        """Tell whether an answer belongs to this exchange."""
        same_process = frame.aux.get(Aux.SESSION) == self.frame.aux[Aux.SESSION]
        return same_process and frame.sequence == self.frame.sequence


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Holds the last exchange that one process of a peer began with this node, and what became of
    it here."""

    session: int
    sequence: int
    answer: Frame | None  # None once the peer has it
    change: Vec | None  # float32[n], what this node added to its model; None: nothing, or the peer did its half too
    again: int = 0  # how often the answer was given once more

    def closed(self) -> Taken:
        """Return the exchange of which nothing but its number needs to be known."""
        return Taken(self.session, self.sequence, None, None)


@dataclass(frozen=True, eq=False)
class State:
    """Holds one node's state. Immutable; arrays in it are never written to once they are there."""

    view: NodeView
    index: int
    round: Round
    x: Vec  # float32[n]
    codec: Any  # the codec's state
    sequences: tuple[int, ...]  # of the last exchange begun with each member
    settled: tuple[int, ...]  # of the last one of them that is over, and not given up
    begun: Mapping[int, Begun] = field(default_factory=lambda: _NOTHING)  # by peer: not over yet
    taken: Mapping[int, tuple[Taken, ...]] = field(default_factory=lambda: _NOTHING)  # by peer: its exchanges with us
    reliance: Mapping[int, Reliance] = field(default_factory=lambda: _NOTHING)  # on who has let a deadline pass
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
class AdPsgd(GossipAlgorithm[State]):
    """Averages pairs of boards asynchronously (AD-PSGD), as the top of this file describes."""

    eta: Eta = 1.0
    repeats: Annotated[int, Range(0, 1000, "repeats of a request without answer, evenly over the deadline")] = 1
    max_ahead: Annotated[
        int, Range(0, 2**32 - 1, "rounds ahead at which a fresh node takes a model; 0: 2 * members")
    ] = 0

    name = "ad-psgd"
    traits = Traits(
        orders=(),
        one_order="steps and exchanges wait for no round",
        unbounded="it averages with one board at a time, and has no other distance to compare",
        no_outer="its exchanges are of models from before the outer step, by which momentum drives boards apart",
        in_differences="choco-sgd",
    )
    asynchronous = True
    says = Says.MODELS

    @override
    def init(self, x: Vec, view: NodeView) -> State:
        """Return the state before round 0; x is copied. Raises ConfigError unless every edge goes
        both ways in every round, UsageError when x does not fit the layout or is not finite."""
        index = messages.check_view(view)
        require_undirected(self.name, view)
        messages.check_vector(view, x)
        zeros = (0,) * len(view.members)
        return State(view, index, 0, x.copy(), view.codec.init(view.layout), zeros, zeros)

    @override
    def resume(self, s: State, view: NodeView) -> State:
        """Count a round as done whose update is in the model already."""
        messages.check_same_run(s.view, view)
        waiting = s.waiting if s.waiting is not None and view.members[s.waiting] not in view.down else None
        round = s.round + int(s.stepped)
        return replace(s, view=view, reliance=_NOTHING, waiting=waiting, repeats=0, round=round, stepped=False)

    @override
    def start(self, s: State) -> tuple[State, list[Action]]:
        """Ask again for the answer that the earlier process waited for."""
        return (s, []) if s.waiting is None else (s, self._ask(s, s.waiting))

    @override
    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Add the update; end the round at once, or when the exchange under way does. Raises
        UsageError when called twice in a round, or when the update is not finite (names the
        tensor)."""
        if s.stepped:
            raise UsageError(f"round {s.round} of {s.view.node} has its local update already")
        messages.check_vector(s.view, local.delta)
        s = replace(s, x=s.x + local.delta, stepped=True, local=(local.loss, local.lr))
        return self._begin(s) if s.waiting is None else (s, [])

    @override
    def receive(self, s: State, m: Message) -> tuple[State, list[Action]]:
        """Answer requests at once, whatever else is under way, and take in answers."""
        sender, frame = _admit(s.view, s.index, m), m.frame
        known = s.reliance.get(sender)
        if known is not None and known.newest < s.round:  # once in each of our rounds, however much it sends
            s = _relied(s, sender, replace(known, sent=known.sent + 1, newest=s.round))
        if frame.kind == Kind.STATE and self._wants_model(s, sender, frame):
            return self._adopt(s, sender, frame)
        if Aux.ANSWER in frame.aux or frame.kind == Kind.STATE:
            begun = s.begun.get(sender)
            if begun is None or not begun.is_meant(frame):
                return replace(s, late=s.late + 1), []
            return self._answered(s, sender, begun, frame)
        session = int(frame.aux[Aux.SESSION])
        if frame.kind == Kind.MODEL:
            return self._asked(s, sender, frame, session)
        return _with_taken(s, sender, _close(s.taken.get(sender, ()), session, frame.sequence)), []

    @override
    def tick(self, s: State, now_s: float) -> tuple[State, list[Action]]:
        """Ask again, or give up the exchange under way."""
        if s.waiting is None:
            return s, []
        if s.repeats < self.repeats:
            return replace(s, repeats=s.repeats + 1), self._ask(s, s.waiting)
        round, waited_s = s.begun[s.waiting].frame.round, s.view.deadline_s
        reason = f"no answer to the model of round {round} within {waited_s:g} s"
        suspect = Suspect(s.view.members[s.waiting], reason, "answer", round, waited_s)
        s = _relied(s, s.waiting, s.reliance.get(s.waiting, Reliance()).miss())
        s, actions = self._go_on(replace(s, waiting=None))
        return s, [suspect, *actions]

    @override
    def membership(self, s: State, view: NodeView) -> tuple[State, list[Action]]:
        """Take note of who is down, and is neither asked nor waited for. A step that waited for it
        until then has waited in vain, as with a deadline: it may come and go."""
        messages.check_same_run(s.view, view)
        s = replace(s, view=view)
        if s.waiting is None or view.members[s.waiting] not in view.down:
            return s, []
        if s.stepped:
            s = _relied(s, s.waiting, s.reliance.get(s.waiting, Reliance()).miss())
        s, actions = self._go_on(replace(s, waiting=None))
        return s, [SetTimer(None), *actions]

    @override
    def model(self, s: State) -> Vec:
        return s.x

    @override
    def round(self, s: State) -> Round:
        return s.round

    @override
    def waiting_for(self, s: State) -> tuple[NodeId, ...]:
        return (s.view.members[s.waiting],) if s.stepped and s.waiting is not None else ()

    @override
    def audit(self, s: State) -> Audit:
        taken = {j: (t.sequence, t.change) for j, them in s.taken.items() for t in them if t.change is not None}
        return Audit(mass=s.x.astype(np.float64), taken=taken, finished=dict(enumerate(s.settled)))

    # -- the own exchange

    def _begin(self, s: State) -> tuple[State, list[Action]]:
        """End the round and begin an exchange with somebody who is up, if there is anybody."""
        distance = math.sqrt(s.squares / s.count) if s.count else math.nan
        done = RoundDone(s.round, distance, math.nan, heard=s.count)
        after = replace(s, round=s.round + 1, stepped=False, count=0, squares=0.0)
        peers = s.view.up(s.view.topology.neighbours(s.index, s.round).out)
        if not peers:
            return after, [Checkpoint(), done]
        j = peers[derive_key(s.view.seed, s.index, s.round, _PEER) % len(peers)]
        key = round_key(s.view.seed, s.index, s.round)
        body, codec = s.view.codec.encode(s.x, s.codec, Ctx(key, s.round, *s.local))
        public = s.view.codec.decode(body, s.view.layout)
        sequence = s.sequences[j] + 1
        frame = _request(s.view, s.round, key, body, sequence, s.settled[j], s.fresh)
        begun = {**s.begun, j: Begun(frame, public)}
        sequences = _put(s.sequences, j, sequence)
        s = replace(after, codec=codec, begun=begun, sequences=sequences, waiting=j, repeats=0)
        ask = self._ask(s, j)
        if j in s.reliance and not s.reliance[j].holds:  # given up at once: its answer counts all the same
            s, ask = replace(s, waiting=None), ask[:1]
        return s, [Checkpoint(), *ask, replace(done, relative_error=relative_error(public - s.x, s.x))]

    def _ask(self, s: State, j: int) -> list[Action]:
        """Send the request to j, and give it its share of the deadline."""
        return [Send(s.view.members[j], s.begun[j].frame), SetTimer(s.view.deadline_s / (self.repeats + 1))]

    def _answered(self, s: State, j: int, begun: Begun, frame: Frame) -> tuple[State, list[Action]]:
        """Do this node's half, unless the peer did none."""
        actions: list[Action] = [Checkpoint()]
        last = _last_round(s)
        if frame.kind == Kind.MODEL:
            way = _vector_of(s.view, j, frame, s.x)
            way -= begun.public
            s = _saw(replace(s, fresh=False), way)
            way *= np.float32(self.eta / 2)
            s = replace(s, x=s.x + way)
            actions.append(Send(s.view.members[j], _done(s.view, begun, last)))
        elif Aux.FRESH in frame.aux and not s.fresh and self._is_far(s, frame.round, last):
            actions.append(Send(s.view.members[j], _model(s.view, frame, last, s.x)))
        left = {k: b for k, b in s.begun.items() if k != j}
        s = replace(s, begun=left, settled=_put(s.settled, j, frame.sequence))
        if s.waiting != j:
            return s, actions
        s, more = self._go_on(replace(s, waiting=None))
        return s, [*actions, SetTimer(None), *more]

    def _go_on(self, s: State) -> tuple[State, list[Action]]:
        """Begin the next round, if this one waited for the exchange that is over."""
        return self._begin(s) if s.stepped else (s, [])

    # -- those of others

    def _asked(self, s: State, j: int, frame: Frame, session: int) -> tuple[State, list[Action]]:
        """Take part in an exchange that j began, once, and answer whenever it asks again."""
        settled = number_of(frame, Aux.SETTLED, 0, frame.sequence - 1)
        before = _find(s.taken.get(j, ()), session)
        if before is not None and frame.sequence < before.sequence:
            return replace(s, late=s.late + 1), []
        if before is not None and frame.sequence == before.sequence:
            s = replace(s, duplicates=s.duplicates + 1)
            if before.answer is None or before.again >= self.repeats + RESTARTS:
                return s, []
            again = replace(before, again=before.again + 1)
            s = _with_taken(s, j, tuple(again if t is before else t for t in s.taken[j]))
            return s, [Send(s.view.members[j], before.answer)]
        public = _vector_of(s.view, j, frame, s.x)
        s, change, answer = self._take(_take_back(s, j, settled), j, frame, public)
        new = Taken(session, frame.sequence, answer, change)
        s = _with_taken(s, j, _remember(s.taken.get(j, ()), new))
        return s, [Checkpoint(), Send(s.view.members[j], answer)]

    def _take(self, s: State, j: int, frame: Frame, public: Vec) -> tuple[State, Vec | None, Frame]:
        """Do this node's half of another's exchange; return the change that it is, and the
        answer."""
        last, theirs_fresh = _last_round(s), Aux.FRESH in frame.aux
        if s.fresh and not theirs_fresh and self._is_far(s, last, frame.round):
            return s, None, _decline(s.view, frame, last, {Aux.FRESH: 1})
        if theirs_fresh and not s.fresh and self._is_far(s, frame.round, last):
            return s, None, _model(s.view, frame, last, s.x)
        if s.waiting == j and s.index < j:
            return s, None, _decline(s.view, frame, last, {})
        key = derive_key(s.view.seed, s.index, j, frame.sequence, _ANSWER)
        body, codec = s.view.codec.encode(s.x, s.codec, Ctx(key, last, *s.local))
        change = public - s.view.codec.decode(body, s.view.layout)
        s = _saw(s, change)
        change *= np.float32(self.eta / 2)
        s = replace(s, x=s.x + change, codec=codec, fresh=False)
        return s, change, _answer(s.view, frame, last, key, body)

    def _adopt(self, s: State, j: int, frame: Frame) -> tuple[State, list[Action]]:
        """Go on with the peer's model in the last round that the peer did; what this node began is
        given up."""
        x = _vector_of(s.view, j, frame, s.x, 1.0 + frame.round)  # a fresh node's own has learnt nothing yet
        s = replace(s, x=x, round=frame.round, begun=_NOTHING, waiting=None, fresh=False)
        s, actions = self._go_on(s)
        return s, [Checkpoint(), Adopted(s.view.members[j], frame.round), SetTimer(None), *actions]

    def _wants_model(self, s: State, j: int, frame: Frame) -> bool:
        """Tell whether a model answers this node's request, or its demand for the model instead of
        the peer's exchange."""
        if not s.fresh or not self._is_far(s, _last_round(s), frame.round):
            return False
        begun, taken = s.begun.get(j), _find(s.taken.get(j, ()), int(frame.aux[Aux.SESSION]))
        if taken is not None and taken.sequence == frame.sequence and taken.answer is not None:
            return Aux.FRESH in taken.answer.aux
        return begun is not None and begun.is_meant(frame)

    def _is_far(self, s: State, behind: Round, ahead: Round) -> bool:
        return ahead > behind + (self.max_ahead or 2 * s.view.topology.n)


def _last_round(s: State) -> Round:
    """Return the last round whose update is in the model; 0 before the first."""
    return max(0, s.round - (not s.stepped))


def _take_back(s: State, j: int, settled: int) -> State:
    """Return the model without this node's half of what j began and gave up."""
    for t in s.taken.get(j, ()):
        if t.change is not None and t.sequence > settled:
            s = replace(s, x=s.x - t.change)
    return s


def _with_taken(s: State, j: int, taken: tuple[Taken, ...]) -> State:
    return replace(s, taken={**s.taken, j: taken})


def _relied(s: State, j: int, reliance: Reliance) -> State:
    return replace(s, reliance={**s.reliance, j: reliance})


def _saw(s: State, way: Vec) -> State:
    """Count the distance between a neighbour's model and this node's."""
    return replace(s, count=s.count + 1, squares=s.squares + messages.squares_of(way))


def _put(numbers: tuple[int, ...], k: int, value: int) -> tuple[int, ...]:
    return (*numbers[:k], value, *numbers[k + 1 :])


# -- The messages of an exchange, and what is remembered of others'


def _find(taken: Iterable[Taken], session: int) -> Taken | None:
    return next((t for t in taken if t.session == session), None)


def _remember(taken: Iterable[Taken], new: Taken) -> tuple[Taken, ...]:
    """Return what is remembered with the newest exchange of one session in front. The others'
    changes are final by now, but not forgotten: a message that comes twice must be known."""
    return (new, *(t.closed() for t in taken if t.session != new.session))[:SESSIONS]


def _close(taken: Iterable[Taken], session: int, sequence: int) -> tuple[Taken, ...]:
    return tuple(t.closed() if (t.session, t.sequence) == (session, sequence) else t for t in taken)


@lru_cache(maxsize=64)
def _peers(topology: Any, index: int) -> frozenset[int]:
    """Return everybody with whom this node exchanges in some round."""
    return frozenset(j for r in range(topology.period) for j in topology.neighbours(index, r).out)


def _admit(view: NodeView, index: int, m: Message) -> int:
    """Return the index of the sender. Raises PeerError, with what is wrong, unless the message is
    of this run's codec and comes from a neighbour."""
    frame, sender = m.frame, messages.sender_of(view, m)
    if frame.kind not in (Kind.MODEL, Kind.HELLO, Kind.STATE):
        raise PeerError(f"{m.sender} sent a message of kind {int(frame.kind)}, where model (1) is expected")
    if sender not in _peers(view.topology, index):  # type: ignore[arg-type]
        raise PeerError(f"{m.sender} is not a neighbour of {view.node}")
    if frame.kind != Kind.HELLO:
        expect_codec(frame, _codec_of(view, frame), m.sender)
    number_of(frame, Aux.SESSION, 0, MAX_ID)
    if frame.sequence > MAX_SEQUENCE:
        raise PeerError(f"{m.sender} sent sequence {frame.sequence}, which is out of range")
    return sender


def _codec_of(view: NodeView, frame: Frame) -> Codec[Any]:
    """Return the codec that the body of a frame of this kind is of."""
    return FP32 if frame.kind == Kind.STATE else view.codec


def _vector_of(view: NodeView, sender: int, frame: Frame, own: Vec, times: float = 1.0) -> Vec:
    """Decode a body, float32[n]. Raises DecodeError, or PeerError when it is too large to average
    with the own model."""
    vec: Vec = _codec_of(view, frame).decode(frame.body, view.layout, out=np.empty(view.layout.size, np.float32))
    messages.require_proportion(view.members[sender], vec, own, view.layout, times)
    return vec


def _request(view: NodeView, round: Round, key: int, body: Body, sequence: int, settled: int, fresh: bool) -> Frame:
    aux: dict[int, float] = {Aux.SESSION: view.boot, Aux.SETTLED: settled}
    if fresh:
        aux[Aux.FRESH] = 1
    return replace(messages.make_frame(view, Kind.MODEL, round, key, body), sequence=sequence, aux=aux)


def _answer(view: NodeView, asked: Frame, round: Round, key: int, body: Body) -> Frame:
    """Answer a request with this node's model, as the codec makes it."""
    frame = messages.make_frame(view, Kind.MODEL, round, key, body)
    return replace(frame, sequence=asked.sequence, aux=_to(asked))


def _decline(view: NodeView, asked: Frame, round: Round, aux: Mapping[int, float]) -> Frame:
    """Answer a request with no: this node takes no part."""
    return control(view, Kind.HELLO, round, asked.sequence, {**_to(asked), **aux}, None)


def _model(view: NodeView, asked: Frame, round: Round, x: Vec) -> Frame:
    """Answer a request of one that is fresh and far behind, or asks for the model: the model
    itself."""
    return control(view, Kind.STATE, round, asked.sequence, _to(asked), x)


def _done(view: NodeView, begun: Begun, round: Round) -> Frame:
    """Tell the peer of an exchange that this node has done its half."""
    return control(view, Kind.HELLO, round, begun.frame.sequence, {Aux.SESSION: begun.frame.aux[Aux.SESSION]}, None)


def _to(asked: Frame) -> dict[int, float]:
    return {Aux.SESSION: asked.aux[Aux.SESSION], Aux.ANSWER: 1}
