"""What becomes of a message: taken in now, kept for its round, dropped, or a reason to open the stream anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgegossip.frame import Frame
from edgegossip.gossip import catching_up, handshake, tags
from edgegossip.gossip.base import Action, Suspect
from edgegossip.gossip.changed import changed
from edgegossip.gossip.streams import MAX_ID, InEdge, number_of
from edgegossip.types import PeerError

if TYPE_CHECKING:
    from edgegossip.gossip.state import Key, Outcome, State
    from edgegossip.gossip.synchronous import Synchronous


def single(algorithm: Synchronous, s: State, sender: int, frame: Frame) -> Outcome:
    """A message that stands for itself."""
    edge = s.in_edge((sender, 0))
    if frame.round > s.round:
        return _keep(algorithm, s, sender, frame)
    if frame.round < max(s.round - algorithm.staleness, edge.round):
        return changed(s, late=s.late + 1), []
    if frame.round == edge.round or frame.round == s.round and sender in s.refused:
        return changed(s, duplicates=s.duplicates + 1), []
    math_ = algorithm.scheme.take(s.math, sender, frame, s.here)  # so it is not far ahead, and need not answer any more
    return algorithm.proceed(s.with_in((sender, 0), changed(edge, round=frame.round, opening=0), math=math_))


def next_of_stream(algorithm: Synchronous, s: State, sender: int, frame: Frame) -> Outcome:
    """A message of a stream: the next one, an early one, one after a gap, or one of a session that is over."""
    session = number_of(frame, tags.SESSION, 1, MAX_ID)
    key = algorithm.key(sender, frame.round % s.view.topology.period)
    edge = s.in_edge(key)
    epoch = number_of(frame, tags.EPOCH, 1, MAX_ID)
    if session == edge.opening and _starts_alike(algorithm, s, edge, frame):
        edge = InEdge(session, round=edge.round, epoch=epoch)
        s = s.with_in(key, edge)
    if session == edge.session and epoch == edge.epoch:
        if frame.sequence <= edge.position:
            return changed(s, duplicates=s.duplicates + 1), []
        if frame.sequence == edge.position + 1 and frame.round <= s.round:
            math_ = algorithm.scheme.take(s.math, sender, frame, s.here)
            s, refused = drain(algorithm, s.with_in(key, edge.took(frame.round), math=math_), sender)
            s, actions = algorithm.proceed(s)
            return s, [*refused, *actions]
        kept, actions = _keep(algorithm, s, sender, frame)
        if kept.in_edge(key).opening or not _gap_before(algorithm, kept, sender, key, frame):
            return kept, actions
        kept, greetings = handshake.greet(algorithm, kept, [key])
        return kept, [*greetings, *actions]
    if session == edge.opening:
        return _keep(algorithm, s, sender, frame)
    s = changed(s, late=s.late + 1)
    return (s, []) if edge.opening else handshake.greet(algorithm, s, [key])


def _gap_before(algorithm: Synchronous, s: State, sender: int, key: Key, frame: Frame) -> bool:
    """Whether a message between the last one taken in and this one is not among the early ones either."""
    edge, period = s.in_edge(key), s.view.topology.period
    kept = s.inbox.of(sender)
    ours = {f.sequence for f in kept if f.aux[tags.SESSION] == edge.session and f.round % period == key[1]}
    return any(number not in ours for number in range(edge.position + 1, frame.sequence))


def _starts_alike(algorithm: Synchronous, s: State, edge: InEdge, frame: Frame) -> bool:
    fresh = not edge.established and frame.sequence == 1
    return fresh and frame.aux.get(tags.FRESH) == algorithm.scheme.fingerprint(s.math)


def _keep(algorithm: Synchronous, s: State, sender: int, frame: Frame) -> Outcome:
    """Keeps an early message, and goes on in the neighbours' round if this node was left behind."""
    ahead = algorithm.ahead(s)
    try:
        inbox = s.inbox.put(sender, frame, ahead + 1, _early_limit(algorithm, s, ahead))
    except PeerError as error:
        raise PeerError(f"{s.view.members[sender]}: {error}") from None
    if inbox is None:
        return changed(s, duplicates=s.duplicates + 1), []
    s = changed(s, inbox=inbox)
    target = catching_up.left_behind(algorithm, s)
    return algorithm.proceed(s) if target is None else catching_up.skip_to(algorithm, s, target, None)


def _early_limit(algorithm: Synchronous, s: State, ahead: int) -> int:
    """As many messages as `ahead` allows of everybody who sends to this node in some round, at fp32's size."""
    senders = len({j for j, _ in handshake.in_keys(algorithm, s)})
    return algorithm.early_bytes or max((ahead + 1) * senders * (4 * s.view.layout.size + 2**16), 256 * 2**20)


def drain(algorithm: Synchronous, s: State, sender: int) -> Outcome:
    """Takes in the kept messages of a sender's streams that are next and not early."""
    actions: list[Action] = []
    rest = []
    if sender not in s.inbox.frames:
        return s, actions
    for frame in s.inbox.of(sender):
        edge = s.in_edge(key := algorithm.key(sender, frame.round % s.view.topology.period))
        session = frame.aux[tags.SESSION]
        over = session == edge.session and (frame.sequence <= edge.position or frame.aux[tags.EPOCH] != edge.epoch)
        if over or session not in (edge.session, edge.opening):
            continue
        if session == edge.session and frame.sequence == edge.position + 1 and frame.round <= s.round:
            s, more = use(algorithm, s, sender, frame)
            actions += more
            if more:  # refused: the stream cannot go on over it. No message is of process 0; what is held stays known
                s = s.with_in(key, changed(s.in_edge(key), epoch=0))
        else:
            rest.append(frame)
    return changed(s, inbox=s.inbox.keep(sender, tuple(rest))), actions


def use(algorithm: Synchronous, s: State, sender: int, frame: Frame) -> Outcome:
    """Takes in a message that was kept; a Suspect if it turns out to be bad."""
    key = algorithm.key(sender, frame.round % s.view.topology.period)
    edge = s.in_edge(key)
    try:
        math_ = algorithm.scheme.take(s.math, sender, frame, s.here)
    except PeerError as error:
        reason = f"message of round {frame.round} refused: {error}"
        return changed(s, refused=s.refused | {sender}), [Suspect(s.view.members[sender], reason)]
    edge = edge.took(frame.round) if algorithm.scheme.streams else changed(edge, round=frame.round, opening=0)
    return s.with_in(key, edge, math=math_), []
