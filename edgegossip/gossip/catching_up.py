"""How a node that lost messages, or slept, or begins late gets on a level with its neighbours.

A full state replaces what a stream would have brought. A node goes on in the others' round when at least half of its
in-neighbours that are up are far ahead: half, not more, because after a split heals a node of a ring has one neighbour
on either side of it. A single one of many cannot lead it where it likes; on a ring each neighbour is half of them, so that
one message is not enough: it goes no further than two messages of different rounds, both of which can be decoded, bear out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgegossip.frame import Frame
from edgegossip.gossip import edges, receiving, tags
from edgegossip.gossip.base import Action, Adopted, Checkpoint, RoundDone, SetTimer
from edgegossip.gossip.changed import changed
from edgegossip.gossip.handshake import in_keys, out_keys
from edgegossip.gossip.scheme import Full
from edgegossip.gossip.streams import MAX_ID, InEdge, number_of, vector_of
from edgegossip.types import PeerError, Round, Vec

if TYPE_CHECKING:
    from edgegossip.gossip.state import Key, Outcome, State
    from edgegossip.gossip.synchronous import Synchronous


def state(algorithm: Synchronous, s: State, sender: int, frame: Frame) -> Outcome:
    """A part of a full state. Of a session that was not asked for, or is established already, or older than what is known:
    dropped. What it holds would otherwise come twice to one who waits for its round: early messages hold it, too."""
    name = s.view.members[sender]
    key = (sender, number_of(frame, tags.PHASE, 0, s.view.topology.period - 1))
    if key not in in_keys(algorithm, s):
        raise PeerError(f"{name} sent a state of a stream that {s.view.node} does not get")
    session, position, edge = number_of(frame, tags.SESSION, 1, MAX_ID), frame.sequence - 1, s.in_edge(key)
    stale = (
        session == edge.parts_of[0] and position < edge.parts_of[1] and frame.aux.get(tags.EPOCH) == edge.parts_of[2]
    )
    if session != edge.opening or stale:
        return changed(s, late=s.late + 1), []
    of = (session, position, number_of(frame, tags.EPOCH, 1, MAX_ID))
    number_of(frame, tags.LIFE, 1, MAX_ID)
    parts = _with_part(algorithm, s, edge, frame, of)
    if len(parts) < frame.aux[tags.PARTS]:
        return s.with_in(key, changed(edge, parts=parts, parts_of=of)), []
    vectors = [parts[k] for k in sorted(parts)]
    model = vectors.pop() if tags.MODEL in frame.aux else None
    s, actions = _take_full(algorithm, s, key, session, Full(vectors, frame.aux, frame.round), frame)
    if model is not None:
        s, more = _claim(algorithm, s, sender, frame.round, model)
        return s, [*actions, *more]
    s, more = algorithm.proceed(s)
    return s, [*actions, *more]


def left_behind(algorithm: Synchronous, s: State) -> Round | None:
    """The round to go on in, when the early messages of at least half of the in-neighbours that are up are far ahead."""
    limit = s.round + algorithm.ahead(s)
    if all(s.inbox.newest(j) <= limit for j in s.inbox.frames):
        return None
    alive = _alive(algorithm, s)
    far = [r for j in alive if (r := _far(s, j, limit)) is not None]
    return min(far) if far and 2 * len(far) >= len(alive) else None


def _far(s: State, j: int, limit: Round) -> Round | None:
    """The round before the last that j sent a message of, if the last is beyond `limit` and that one next to it."""
    by_round = {f.round: f for f in s.inbox.of(j)}
    *_, before, last = (-1, -1, *sorted(by_round))
    if last <= limit or before <= limit - s.view.topology.period:
        return None
    return before if _decodes(s, by_round[before]) and _decodes(s, by_round[last]) else None


def _decodes(s: State, frame: Frame) -> bool:
    try:
        s.view.codec.decode(frame.body, s.view.layout)
    except PeerError:
        return False
    return True


def skip_to(algorithm: Synchronous, s: State, target: Round, model: Vec | None) -> Outcome:
    """Goes on in round `target`; an update that waited to be mixed is kept, unmixed, unless there is another model."""
    stepped = s.stepped is not None
    math_ = algorithm.scheme.settle(s.math, model, s.here)
    s, actions = algorithm.enter(_break_streams(algorithm, s, math_), target, math_)
    done: list[Action] = [RoundDone(target - 1, math.nan, math.nan)] if stepped else []
    return s, [*([SetTimer(None)] if stepped else []), Checkpoint(), *done, *actions]


def _with_part(
    algorithm: Synchronous, s: State, edge: InEdge, frame: Frame, of: tuple[int, int, int]
) -> Mapping[int, Vec]:
    """The parts so far. Raises PeerError when there are not as many as there should be."""
    wanted = algorithm.scheme.parts + (tags.MODEL in frame.aux)
    parts = number_of(frame, tags.PARTS, wanted, wanted)
    part = number_of(frame, tags.PART, 0, parts - 1)
    return {**(edge.parts if edge.parts_of == of else {}), part: vector_of(s.view, frame)}


def _take_full(algorithm: Synchronous, s: State, key: Key, session: int, full: Full, frame: Frame) -> Outcome:
    """The stream goes on after what the full state holds."""
    if not algorithm.scheme.streams:
        return s.with_in(key, changed(s.in_edge(key), parts=InEdge().parts, parts_of=(0, 0, 0))), []
    math_ = algorithm.scheme.adopt(s.math, *key, full, s.here)
    s = _break_streams(algorithm, s, math_)
    s = s.with_in(
        key,
        s.in_edge(key).settled(session, frame.sequence - 1, frame.round - 1, int(frame.aux[tags.EPOCH])),
        math=math_,
    )
    return receiving.drain(algorithm, s, key[0])


def _break_streams(algorithm: Synchronous, s: State, math_: Any) -> State:
    """Before `math_` takes the place of what receivers hold: where it has nothing to do with that, they have to ask for
    it. Their numbers go on, by two: one would look like the first message."""
    phases = range(s.view.topology.period)
    moved = {p for p in phases if algorithm.scheme.public(s.math, p) is not algorithm.scheme.public(math_, p)}
    if not moved:
        return s
    keys = [k for k in {*s.out, *out_keys(algorithm, s)} if k[1] in moved]
    broken = {k: changed(s.out_edge(k), session=0, position=s.out_edge(k).position + 2) for k in keys}
    return changed(s, out={**s.out, **broken})


def _claim(algorithm: Synchronous, s: State, sender: int, round: Round, model: Vec) -> Outcome:
    """A neighbour says that we are far behind; once half of them do, we take over the model of the last one."""
    name = s.view.members[sender]
    edges.squared_norm(name, model, algorithm.scheme.model(s.math))
    if round <= s.round + algorithm.ahead(s):
        return algorithm.proceed(s)
    s = changed(s, claims={**s.claims, sender: round})
    alive = _alive(algorithm, s)
    if 2 * sum(j in alive for j in s.claims) < len(alive):
        return algorithm.proceed(s)
    s, actions = skip_to(algorithm, s, round, model)
    return s, [Adopted(name, round), *actions]


def _alive(algorithm: Synchronous, s: State) -> tuple[int, ...]:
    """In-neighbours, in any round, that are up."""
    return edges.up(s.view, sorted({j for j, _ in in_keys(algorithm, s)}))
