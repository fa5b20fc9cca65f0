"""How the two ends of a stream find together: HELLO with a session opens one, HELLO without asks for that.

A HELLO also tells the receiver's round, so that one that is far behind is offered the sender's model.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edgegossip.frame import Frame
from edgegossip.gossip import kinds, sending, tags
from edgegossip.gossip.base import Action, Send
from edgegossip.gossip.changed import changed
from edgegossip.gossip.state import NO_OUT_EDGE
from edgegossip.gossip.streams import ANSWERS_A_ROUND, MAX_ID, OutEdge, challenge_of, control, number_of, session_id
from edgegossip.types import PeerError

if TYPE_CHECKING:
    from edgegossip.gossip.state import Key, Outcome, State
    from edgegossip.gossip.synchronous import Synchronous


def in_keys(algorithm: Synchronous, s: State) -> tuple[Key, ...]:
    """Every edge, and phase if it matters, on which somebody sends to this node."""
    return _keys(s.view.topology, s.index, algorithm.scheme.streams)[0]  # type: ignore[arg-type]


def out_keys(algorithm: Synchronous, s: State) -> tuple[Key, ...]:
    """Every edge, and phase if it matters, on which this node sends."""
    return _keys(s.view.topology, s.index, algorithm.scheme.streams)[1]  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _keys(topology: Any, index: int, streams: bool) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """In and out, sorted: asked for several times a round, and the same all along."""
    rounds = [(r if streams else 0, topology.neighbours(index, r)) for r in range(topology.period)]
    into = {(j, phase) for phase, around in rounds for j in around.in_}
    return tuple(sorted(into)), tuple(sorted({(k, phase) for phase, around in rounds for k in around.out}))


def greet(algorithm: Synchronous, s: State, keys: Iterable[Key], challenge: float | None = None) -> Outcome:
    """Opens a new session of each of these streams whose sender is up."""
    actions: list[Action] = []
    for key in keys:
        j, phase = key
        session = session_id(s.view, j, phase, s.sessions)
        edge = changed(s.in_edge(key), opening=session, number=s.sessions + 1, asked=s.round)
        s = s.with_in(key, edge, sessions=s.sessions + 1)
        actions += _ask(algorithm, s, key, challenge)
    return s, actions


def remind(algorithm: Synchronous, s: State) -> Outcome:
    """Once a round: what was asked for and did not come is asked for again, and so are receivers of broken streams. Where all
    begin together those of whom nothing has come yet are not: their greetings wait, unread while we trained, and come before
    anything else of theirs. Without streams it is asked whether we are far behind, of those whom we have not heard since we
    began."""
    actions: list[Action] = []
    for key in sorted([k for k, e in s.in_.items() if e.opening and e.asked < s.round]):
        actions += _ask(algorithm, s, key)  # in its round the sender's own reminder does
    out, begun = s.out, s.round > 0 or s.inbox.frames  # of later rounds: others began before us
    for key in out_keys(algorithm, s) if algorithm.scheme.streams else ():
        edge = out.get(key, NO_OUT_EDGE)
        if not edge.session and (begun or edge.lives or s.in_edge(key).established):
            actions += _send(s, key, {})
    return s, actions


def part(s: State, gone: set[int]) -> State:
    """Who went down may not have got the full state that was on its way, and would wait for it: has it ask again, once it
    is up."""
    lost = {key: changed(edge, session=0) for key, edge in s.out.items() if key[0] in gone and edge.answers}
    return changed(s, out={**s.out, **lost}) if lost else s


def welcome(algorithm: Synchronous, s: State, back: set[int]) -> Outcome:
    """To who is up again: we open the streams that were never established, and have it ask anew for those that it has not
    opened. Its greeting came while it counted as down, or went to a process that is gone."""
    keys = [k for k in in_keys(algorithm, s) if k[0] in back and not s.in_edge(k).established]
    s, actions = greet(algorithm, s, keys if algorithm.scheme.streams else [])
    for key in out_keys(algorithm, s):
        if key[0] in back and not s.out_edge(key).session:
            actions += _send(s, key, {})
    return s, actions


def hello(algorithm: Synchronous, s: State, sender: int, frame: Frame) -> Outcome:
    """The other end wants to open a stream of ours, or wants us to open one of its."""
    phase = number_of(frame, tags.PHASE, 0, s.view.topology.period - 1, default=0)
    key = (sender, phase)
    if tags.SESSION not in frame.aux:
        if key not in in_keys(algorithm, s):
            raise PeerError(f"{s.view.members[sender]} sends nothing to {s.view.node}, and asked for a session")
        challenge = frame.aux.get(tags.CHALLENGE)
        return greet(algorithm, s, [key], challenge) if _must_open(s, key) else (s, _ask(algorithm, s, key, challenge))
    if key not in out_keys(algorithm, s):
        raise PeerError(f"{s.view.members[sender]} opened a stream that {s.view.node} does not send")
    behind = frame.round + algorithm.ahead(s) < s.round
    session = number_of(frame, tags.SESSION, 1, MAX_ID)
    if algorithm.scheme.streams:
        return _opened(algorithm, s, key, frame, session, behind)
    return _answer(algorithm, s, key, session, behind) if behind else (s, [])


def _must_open(s: State, key: Key) -> bool:
    """Whether a sender that knows of no session needs a new one, or only to hear again of the one that is being opened. Of
    that there must be nothing yet: it would be of a process that is gone, which may have said something else."""
    edge = s.in_edge(key)
    kept = any(f.aux.get(tags.SESSION) == edge.opening for f in s.inbox.of(key[0]))
    return not edge.opening or kept or edge.parts_of[0] == edge.opening


def _opened(algorithm: Synchronous, s: State, key: Key, frame: Frame, session: int, behind: bool) -> Outcome:
    edge = s.out_edge(key)
    life = number_of(frame, tags.LIFE, 1, MAX_ID)
    process = number_of(frame, tags.EPOCH, 1, MAX_ID)
    totals = algorithm.scheme.totals
    if edge.is_late(process, frame.sequence) or totals and edge.is_retired(life):
        return s, []
    if totals and edge.lives and edge.lives[-1] != life:
        if s.view.members[key[0]] in s.view.down:
            return s.with_out(key, changed(edge, session=0)), []
        challenge = challenge_of(s.view, *key, life)
        if frame.aux.get(tags.CHALLENGE) != challenge:
            # Noted as an answer: if it is lost with a connection, `part` has it asked for again.
            s = s.with_out(key, changed(edge, answers=max(1, edge.answers)))
            return s, _send(s, key, {tags.CHALLENGE: challenge})
        s = changed(s, math=algorithm.scheme.forget(s.math, *key))
    known = edge.session == session
    edge = edge.opened(session, life, process, frame.sequence)
    if s.view.members[key[0]] in s.view.down:  # heard, and not to be answered: it is told to ask again once it is up
        return s.with_out(key, changed(edge, session=0)), []
    s = s.with_out(key, edge)
    alike = frame.aux.get(tags.FRESH) == algorithm.scheme.fingerprint(s.math)
    if alike and not behind and _nothing_missed(s, key, edge):
        if edge.position == 0 or known and s.stepped is not None and key[0] in s.stepped.sent:
            return s, []
        if edge.answers >= ANSWERS_A_ROUND:
            return s.with_out(key, edge.owing()), []
        s = s.with_out(key, changed(edge, answers=edge.answers + 1))
        return sending.tell(algorithm, s, [key[0]], advance=False)
    return _answer(algorithm, s, key, session, behind)


def _nothing_missed(s: State, key: Key, edge: OutEdge) -> bool:
    """Whether one that has nothing yet can begin with the message of this round, or the next."""
    if edge.position == 0:
        return True
    if len(edge.lives) > 1:  # this round's message went to a life that is gone, and push-sum has written it off
        return False
    return edge.position == 1 and s.stepped is not None and key[1] == s.here.phase and key[0] in s.here.around.out


def _answer(algorithm: Synchronous, s: State, key: Key, session: int, behind: bool) -> Outcome:
    """The full state, in parts; for one that is far behind the model as the last."""
    edge = s.out_edge(key)
    if s.view.members[key[0]] in s.view.down:
        return s, []
    if edge.answers >= ANSWERS_A_ROUND:  # who is far behind asks for itself again, and gets the model then
        return (s, []) if behind else (s.with_out(key, edge.owing()), [])
    full = algorithm.scheme.full(s.math, *key)
    vectors = [*full.vectors, algorithm.scheme.model(s.math)] if behind else list(full.vectors)
    next_round = s.round if s.stepped is None else s.round + 1
    aux = {**full.numbers, tags.SESSION: session, tags.LIFE: s.life, tags.PARTS: len(vectors), tags.PHASE: key[1]}
    aux[tags.EPOCH] = s.epoch
    if behind:
        aux[tags.MODEL] = 1
    sends: list[Action] = [
        Send(
            s.view.members[key[0]],
            control(s.view, kinds.STATE, next_round, edge.position + 1, {**aux, tags.PART: part}, vector),
        )
        for part, vector in enumerate(vectors)
    ]
    return s.with_out(key, changed(edge, answers=edge.answers + 1)), sends


def pay(algorithm: Synchronous, s: State, owed: Iterable[Key]) -> Outcome:
    """At the start of a round: full states for those who opened a session in the last one after they had got as many as a
    round allows. Without its full state nothing that is said in that session can be used, and who opened it would wait for
    its deadline."""
    actions: list[Action] = []
    for key in owed:
        s, sends = _answer(algorithm, s, key, s.out_edge(key).session, behind=False)
        actions += sends
    return s, actions


def _ask(algorithm: Synchronous, s: State, key: Key, challenge: float | None = None) -> list[Action]:
    edge = s.in_edge(key)
    aux: dict[int, float] = {tags.SESSION: edge.opening, tags.LIFE: s.life, tags.EPOCH: s.epoch}
    if not edge.established:
        aux[tags.FRESH] = algorithm.scheme.fingerprint(s.math)
    if challenge is not None:
        aux[tags.CHALLENGE] = challenge
    return _send(s, key, aux, edge.number)


def _send(s: State, key: Key, aux: dict[int, float], number: int = 1) -> list[Action]:
    to = s.view.members[key[0]]
    if to in s.view.down:
        return []
    if key[1]:
        aux = {**aux, tags.PHASE: key[1]}
    return [Send(to, control(s.view, kinds.HELLO, s.round, number, aux, None))]
