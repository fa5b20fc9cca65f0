"""Pairwise exchanges of `adpsgd`: the messages of one, and what either end keeps of it.

    request  MODEL   C(x_i)   SESSION, sequence, SETTLED; FRESH            i -> j
    answer   MODEL   C(x_j)   SESSION, sequence of the request, ANSWER     j -> i
             HELLO            the same: j takes no part; with FRESH it asks for the model instead
             STATE   x_j      the same: the model itself, fp32, for one that is fresh and far behind
    close    HELLO            SESSION, sequence of the request             i -> j: i has done its half

An exchange is known by (initiator, session, sequence): the session is the boot of the process that began it, the sequence
counts a node's exchanges with one peer and goes on over restarts. SETTLED is the sequence of the last exchange with this
peer of which the initiator has done its half, or the peer none: what the peer added for a later one is taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from edgegossip.codecs.base import Body
from edgegossip.frame import Frame
from edgegossip.gossip import edges, kinds, tags
from edgegossip.gossip.base import Message, NodeView
from edgegossip.gossip.streams import FP32, MAX_ID, control, number_of
from edgegossip.types import PeerError, Round, Vec

MAX_SEQUENCE = 2**53  # whole numbers up to here are exact beside a body
SESSIONS = 4  # processes of one peer whose exchanges are remembered


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """An exchange that this node began and of which it has not done its half."""

    frame: Frame  # the request
    public: Vec  # C(x), float32[n], as the peer sees it

    def is_meant(self, frame: Frame) -> bool:
        """Whether an answer belongs to this exchange."""
        same_process = frame.aux.get(tags.SESSION) == self.frame.aux[tags.SESSION]
        return same_process and frame.sequence == self.frame.sequence


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The last exchange that one process of a peer began with this node, and what became of it here."""

    session: int
    sequence: int
    answer: Frame | None  # None once the peer has it
    change: (
        Vec | None
    )  # float32[n], what this node added to its model; None when nothing, or once the peer did its half

    def closed(self) -> Taken:
        return Taken(self.session, self.sequence, None, None)


def find(taken: Iterable[Taken], session: int) -> Taken | None:
    return next((t for t in taken if t.session == session), None)


def remember(taken: Iterable[Taken], new: Taken) -> tuple[Taken, ...]:
    """With the newest of one session, in front; the others' changes are settled by now, but not forgotten: a message that
    comes twice must be known."""
    return (new, *(t.closed() for t in taken if t.session != new.session))[:SESSIONS]


def close(taken: Iterable[Taken], session: int, sequence: int) -> tuple[Taken, ...]:
    return tuple(t.closed() if (t.session, t.sequence) == (session, sequence) else t for t in taken)


def around(view: NodeView, index: int) -> frozenset[int]:
    """Everybody with whom this node exchanges in some round."""
    return _around(view.topology, index)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _around(topology: Any, index: int) -> frozenset[int]:
    return frozenset(j for r in range(topology.period) for j in topology.neighbours(index, r).out)


def admit(view: NodeView, index: int, m: Message) -> int:
    """Index of the sender. Raises PeerError, with what is wrong, unless the message belongs to this run, model and
    codec, and comes from a neighbour."""
    frame, sender = m.frame, edges.belongs(view, m)
    if frame.kind not in (kinds.MODEL, kinds.HELLO, kinds.STATE):
        raise PeerError(f"{m.sender} sent a message of kind {int(frame.kind)}, where model (1) is expected")
    if sender not in around(view, index):
        raise PeerError(f"{m.sender} is not a neighbour of {view.node}")
    codec = FP32 if frame.kind == kinds.STATE else view.codec
    if frame.kind != kinds.HELLO and (frame.codec_id, frame.codec_params) != (codec.wire_id, codec.wire_params()):
        raise PeerError(f"{m.sender} sent a body of another codec than {codec.name} with this run's parameters")
    number_of(frame, tags.SESSION, 0, MAX_ID)
    if frame.sequence > MAX_SEQUENCE:
        raise PeerError(f"{m.sender} sent sequence {frame.sequence}, which is out of range")
    return sender


def vector_of(view: NodeView, sender: int, frame: Frame, own: Vec) -> Vec:
    """The body's float32[n]. Raises DecodeError, or PeerError when it is too large to average with the own model."""
    codec = FP32 if frame.kind == kinds.STATE else view.codec
    vec: Vec = codec.decode(frame.body, view.layout, out=np.empty(view.layout.size, np.float32))
    edges.squared_norm(view.members[sender], vec, own)
    return vec


def request(view: NodeView, round: Round, key: int, body: Body, sequence: int, settled: int, fresh: bool) -> Frame:
    aux: dict[int, float] = {tags.SESSION: view.boot, tags.SETTLED: settled}
    if fresh:
        aux[tags.FRESH] = 1
    return edges.make_frame(view, kinds.MODEL, round, key, body).numbered(sequence, aux)


def answer(view: NodeView, asked: Frame, round: Round, key: int, body: Body) -> Frame:
    """To a request: this node's model, as the codec makes it."""
    return edges.make_frame(view, kinds.MODEL, round, key, body).numbered(asked.sequence, _to(asked))


def decline(view: NodeView, asked: Frame, round: Round, aux: Mapping[int, float]) -> Frame:
    """To a request: this node takes no part."""
    return control(view, kinds.HELLO, round, asked.sequence, {**_to(asked), **aux}, None)


def model(view: NodeView, asked: Frame, round: Round, x: Vec) -> Frame:
    """To a request of one that is fresh and far behind, or asks for the model: the model itself."""
    return control(view, kinds.STATE, round, asked.sequence, _to(asked), x)


def done(view: NodeView, begun: Begun, round: Round) -> Frame:
    """To the peer of an exchange of which this node has done its half."""
    return control(view, kinds.HELLO, round, begun.frame.sequence, {tags.SESSION: begun.frame.aux[tags.SESSION]}, None)


def _to(asked: Frame) -> dict[int, float]:
    return {tags.SESSION: asked.aux[tags.SESSION], tags.ANSWER: 1}
