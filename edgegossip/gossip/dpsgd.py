"""`dpsgd`: decentralised parallel SGD.

Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (2017), algorithm 1:
x_i <- sum_j W_ij x_j - gamma g_i(x_i), gradient at the model before mixing, W symmetric and doubly stochastic.

Deviations. (1) It is computed as x_i + eta sum_j W_ij (xhat_j - xhat_i) + delta_i with xhat = decode(encode(x)), which
is the same for a lossless codec and eta = 1, and keeps the mean of the models for any codec: what i adds, j takes off.
(2) delta_i, the local update, may be several optimiser steps. (3) W may be directed if it is doubly stochastic in every
round. (4) A neighbour that is silent past the deadline, or known to be down, is left out and its weight stays with the
node itself. (5) A node that its neighbours have left far behind goes on in their round, with the model that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgegossip.codecs.base import Ctx
from edgegossip.frame import Frame, Kind
from edgegossip.gossip import edges
from edgegossip.gossip.base import (
    Action,
    Audit,
    Checkpoint,
    Message,
    Neighbours,
    NodeView,
    RoundDone,
    SetTimer,
    Suspect,
)
from edgegossip.gossip.inbox import Inbox
from edgegossip.gossip.mixing import Gathered, coding_error
from edgegossip.gossip.params import check_integer, check_number
from edgegossip.gossip.weights import is_doubly_stochastic
from edgegossip.types import ConfigError, LocalError, LocalUpdate, NodeId, PeerError, Round, Vec

SUITABLE = "ring, torus, complete, star, random-regular, directed-ring, exponential, one-peer-exponential"


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """This node's own part of a round, from `step` until the round is done."""

    base: Vec  # x + delta, float32[n]
    frame: Frame  # what out-neighbours get
    sent: bool  # whether there was any to send it to


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Immutable; arrays in it are never written to once they are there."""

    view: NodeView
    index: int
    round: Round
    x: Vec  # float32[n], the model at the start of the round
    codec: Any  # the codec's state
    sequences: tuple[int, ...]  # last sequence number used towards each member
    gathered: Gathered = field(default_factory=Gathered)
    inbox: Inbox = field(default_factory=Inbox)
    stepped: Stepped | None = None
    late: int = 0  # messages of a round that was over, dropped
    duplicates: int = 0  # second messages of one sender and round, dropped


@dataclass(frozen=True, slots=True)
class Dpsgd:
    """Implements `gossip.base.GossipAlgorithm[State]`."""

    eta: float = 1.0  # averaging rate, (0, 1]
    max_ahead: int = 0  # rounds that a neighbour may be ahead before we count as left behind; 0: members + period
    early_bytes: int = (
        0  # limit of early messages kept, encoded; 0: what honest neighbours can send, or 256 MiB if more
    )

    name = "dpsgd"
    asynchronous = False

    def __post_init__(self) -> None:
        check_number("eta of dpsgd", self.eta, 0.0, 1.0)
        check_integer("max_ahead of dpsgd", self.max_ahead, 0, 2**32 - 1)
        check_integer("early_bytes of dpsgd", self.early_bytes, 0, 2**63 - 1)

    def init(self, x: Vec, view: NodeView) -> State:
        """State before round 0; x is copied. Raises ConfigError unless W is doubly stochastic in every round,
        LocalError when x does not fit the layout or is not finite."""
        index = edges.check_view(view)
        topology = view.topology
        for r in range(topology.period):
            if not is_doubly_stochastic(topology.matrix(r)):
                raise ConfigError(
                    f"dpsgd needs weights whose rows and columns sum to 1, and those of topology {topology.name!r} "
                    f"do not in round {r}; use an undirected one with metropolis weights or one of: {SUITABLE}"
                )
        edges.check_vector(view, x)
        return State(view, index, 0, x.copy(), view.codec.init(view.layout), (0,) * topology.n)

    def resume(self, s: State, view: NodeView) -> State:
        edges.check_same_run(s.view, view)
        return replace(s, view=view)

    def start(self, s: State) -> tuple[State, list[Action]]:
        """Models stand for themselves: there is nothing to agree on first."""
        return s, []

    def step(self, s: State, local: LocalUpdate) -> tuple[State, list[Action]]:
        """Sends the model x of this round and waits for the neighbours'. Raises LocalError when called twice in a
        round, or when the update is not finite (names the tensor)."""
        if s.stepped is not None:
            raise LocalError(f"round {s.round} of {s.view.node} has its local update already")
        edges.check_vector(s.view, local.delta)
        key = edges.key_of(s.view, s.index, s.round)
        body, codec = s.view.codec.encode(s.x, s.codec, Ctx(key, s.round, local.loss, local.lr))
        frame = edges.make_frame(s.view, Kind.MODEL, s.round, key, body)
        sends, sequences = edges.address(s.view, frame, edges.up(s.view, _here(s).out), s.sequences)
        stepped = Stepped(s.x + local.delta, frame, bool(sends))
        s = replace(s, codec=codec, sequences=sequences, stepped=stepped)
        if _missing(s):
            return s, [*sends, SetTimer(s.view.deadline_s)]
        s, done = self._finish(s)
        return s, [*sends, *done]

    def receive(self, s: State, m: Message) -> tuple[State, list[Action]]:
        """Late messages and duplicates are counted and dropped: (round, sender) tells them, whatever their order."""
        sender = edges.admit(s.view, s.index, m, Kind.MODEL)
        if m.frame.round < s.round:
            return replace(s, late=s.late + 1), []
        if m.frame.round > s.round:
            return self._receive_early(s, sender, m.frame)
        if sender in s.gathered.senders:
            return replace(s, duplicates=s.duplicates + 1), []
        return self._proceed(replace(s, gathered=_add(s, sender, m.frame)))

    def tick(self, s: State, now_s: float) -> tuple[State, list[Action]]:
        """The deadline of the round has passed: goes on without whoever is missing."""
        missing = _missing(s)
        if not missing:
            return s, []
        reason = f"no message of round {s.round} within {s.view.deadline_s:g} s"
        done, actions = self._finish(s)
        return done, [*(Suspect(s.view.members[j], reason) for j in missing), *actions]

    def membership(self, s: State, view: NodeView) -> tuple[State, list[Action]]:
        """Who is down is neither waited for nor sent to; who came back gets the message of the round in progress."""
        edges.check_same_run(s.view, view)
        back = s.view.down - view.down
        s = replace(s, view=view)
        if s.stepped is None:
            return s, []
        to = [j for j in edges.up(view, _here(s).out) if view.members[j] in back]
        sends, sequences = edges.address(view, s.stepped.frame, to, s.sequences)
        stepped = replace(s.stepped, sent=s.stepped.sent or bool(sends))
        s, actions = self._proceed(replace(s, sequences=sequences, stepped=stepped))
        return s, [*sends, *actions]

    def model(self, s: State) -> Vec:
        return s.x

    def round(self, s: State) -> Round:
        return s.round

    def waiting_for(self, s: State) -> tuple[NodeId, ...]:
        return tuple(s.view.members[j] for j in _missing(s))

    def audit(self, s: State) -> Audit:
        return Audit()

    def _receive_early(self, s: State, sender: int, frame: Frame) -> tuple[State, list[Action]]:
        ahead = self.max_ahead or s.view.topology.n + s.view.topology.period
        try:
            inbox = s.inbox.put(sender, frame, ahead + 1, self._early_bytes(s, ahead))
        except PeerError as error:
            raise PeerError(f"{s.view.members[sender]}: {error}") from None
        if inbox is None:
            return replace(s, duplicates=s.duplicates + 1), []
        s = replace(s, inbox=inbox)
        target = _left_behind(s, ahead)
        return self._proceed(s) if target is None else self._catch_up(s, target)

    def _early_bytes(self, s: State, ahead: int) -> int:
        """As many messages as `ahead` allows of every neighbour, at fp32's size."""
        honest = (ahead + 1) * len(_here(s).in_) * (4 * s.view.layout.size + 2**16)
        return self.early_bytes or max(honest, 256 * 2**20)

    def _proceed(self, s: State) -> tuple[State, list[Action]]:
        """Ends the round if nothing is missing any more."""
        if s.stepped is None or _missing(s):
            return s, []
        reason = f"its message of round {s.round} was lost"
        lost = [
            Suspect(s.view.members[j], reason) for j in edges.up(s.view, _here(s).in_) if j not in s.gathered.senders
        ]
        s, actions = self._finish(s)
        return s, [SetTimer(None), *lost, *actions]

    def _finish(self, s: State) -> tuple[State, list[Action]]:
        """x_i + delta_i + eta sum_j W_ij (xhat_j - xhat_i), with sum_j W_ij (xhat_j - x_i) already gathered."""
        assert s.stepped is not None
        error, relative = coding_error(s.view, s.stepped.frame.body, s.x)
        error *= np.float32(s.gathered.weight)
        if s.gathered.total is not None:
            error += s.gathered.total
        error *= np.float32(self.eta)
        error += s.stepped.base
        done = RoundDone(s.round, s.gathered.distance, relative if s.stepped.sent else math.nan)
        s, actions = _enter(s, s.round + 1, error)
        return s, [Checkpoint(), done, *actions]

    def _catch_up(self, s: State, target: Round) -> tuple[State, list[Action]]:
        """Goes on in round `target`; an update that waited to be mixed is kept, unmixed."""
        if s.stepped is None:
            s, actions = _enter(s, target, s.x)
            return s, [Checkpoint(), *actions]
        s, actions = _enter(s, target, s.stepped.base)
        return s, [SetTimer(None), Checkpoint(), RoundDone(target - 1, math.nan, math.nan), *actions]


def _here(s: State) -> Neighbours:
    return s.view.topology.neighbours(s.index, s.round)


def _missing(s: State) -> tuple[int, ...]:
    """Whom the round waits for; nobody before `step`. Not for a sender whose message of a later round is here: an edge keeps
    its order, so that one's message of this round was lost and will not come."""
    if s.stepped is None:
        return ()
    waited = edges.up(s.view, _here(s).in_)
    return tuple(j for j in waited if j not in s.gathered.senders and s.inbox.newest(j) <= s.round)


def _add(s: State, sender: int, frame: Frame) -> Gathered:
    return s.gathered.add(s.view, sender, frame.body, _here(s).weights[sender], s.x)


def _enter(s: State, round: Round, x: Vec) -> tuple[State, list[Action]]:
    """Start of a round with model x: takes in what came early. A sender of a body that cannot be used is suspected, and
    not waited for."""
    frames, inbox = s.inbox.take(round)
    s = replace(s, round=round, x=x, gathered=Gathered(), inbox=inbox, stepped=None)
    actions: list[Action] = []
    for sender, frame in frames.items():
        try:
            gathered = _add(s, sender, frame)
        except PeerError as error:
            gathered = s.gathered.refuse(sender)
            actions.append(Suspect(s.view.members[sender], f"message of round {round} refused: {error}"))
        s = replace(s, gathered=gathered)
    return s, actions


def _left_behind(s: State, ahead: int) -> Round | None:
    """The round to go on in, when at least half of the members that send to this node and are up are more than `ahead`
    rounds ahead. Half, not more: after a split heals, a node of a ring has one neighbour on either side of it."""
    topology = s.view.topology
    senders = {j for r in range(topology.period) for j in topology.neighbours(s.index, r).in_}
    alive = edges.up(s.view, senders)
    far = [r for j in alive if (r := s.inbox.newest(j)) > s.round + ahead]
    return min(far) if far and 2 * len(far) >= len(alive) else None
