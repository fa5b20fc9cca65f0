"""Opens and answers sessions: what both ends of an edge say to each other beside the messages of
rounds, HELLO and STATE (module `streams` tells why). What comes in over a session is the matter of
`rounds.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgegossip.frame import Aux, Frame, Kind
from edgegossip.gossip import messages
from edgegossip.gossip.base import Action, GossipAlgorithm, Send
from edgegossip.gossip.messages import MAX_ID, number_of
from edgegossip.gossip.scheme import Scheme
from edgegossip.gossip.state import Key, Outcome, State
from edgegossip.gossip.streams import STATES_A_ROUND, InEdge, OutEdge, challenge_of, session_id
from edgegossip.types import PeerError, Round, replace


@dataclass(frozen=True, slots=True)
class Sessions(GossipAlgorithm[State]):
    """Keeps the sessions of an algorithm that goes by rounds."""

    scheme: Scheme[Any]

    @abstractmethod
    def _ahead(self, s: State, bare: bool = False) -> int:
        """Return how many rounds ahead of us is far, or of one that came again with nothing."""

    # -- The receiver's end

    def in_keys(self, s: State) -> tuple[Key, ...]:
        """Return every edge, and phase if it matters, on which somebody sends to this node."""
        return _keys(s.view.topology, s.index, self.scheme.streams)[0]  # type: ignore[arg-type]

    def open_sessions(self, s: State, keys: Iterable[Key], challenge: float | None = None) -> Outcome:
        """Ask for a new session of each of these streams whose sender is up."""
        actions: list[Action] = []
        for key in keys:
            session = session_id(s.view, *key, s.sessions)
            edge = s.in_edge(key).opening_session(session, s.sessions + 1, s.round)
            s = s.with_in(key, edge, sessions=s.sessions + 1)
            actions += self._hello_for_session(s, key, challenge)
        return s, actions

    def _hello_for_session(self, s: State, key: Key, challenge: float | None = None) -> list[Action]:
        """Send a HELLO with the session that is being opened; with FRESH if nothing of this stream
        has ever come."""
        edge = s.in_edge(key)
        aux: dict[int, float] = {Aux.SESSION: edge.opening, Aux.INCARNATION: s.incarnation, Aux.EPOCH: s.epoch}
        if not edge.established:
            aux[Aux.FRESH] = self.scheme.fingerprint(s.math)
        if s.bare:
            aux[Aux.MODEL] = 1
        if challenge is not None:
            aux[Aux.CHALLENGE] = challenge
        return self._hello(s, key, aux, edge.number)

    def _hello(self, s: State, key: Key, aux: dict[int, float], number: int = 1) -> list[Action]:
        """Send a HELLO. It has this node's round too, so that one that is far behind is offered the
        receiver's model."""
        to, phase = s.view.members[key[0]], key[1]
        if to in s.view.down:
            return []
        if phase:
            aux = {**aux, Aux.PHASE: phase}
        return [Send(to, messages.control(s.view, Kind.HELLO, s.round, number, aux, None))]

    def _reminders(self, s: State) -> list[Action]:
        """Ask again, once a round, for what was asked for and did not come, and remind receivers of
        broken streams.

        Where all begin together those of whom nothing has come yet are not reminded: their HELLOs
        wait, unread while we trained, and come before anything else of theirs. Without streams it
        is asked whether we are far behind, of those whom we have not heard since we began."""
        actions: list[Action] = []
        for key in sorted([k for k, e in s.in_.items() if e.opening and e.asked < s.round]):
            actions += self._hello_for_session(s, key)  # in its round the sender's own reminder does
        begun = s.round > 0 or s.inbox.frames  # of later rounds: others began before us
        for key in self.out_keys(s) if self.scheme.streams else ():
            edge = s.out_edge(key)
            if not edge.session and (begun or edge.incarnations or s.in_edge(key).established):
                actions += self._hello(s, key, {})
        return actions

    # -- The sender's end

    def _send(self, s: State, to: Iterable[int], advance: bool) -> Outcome:
        """Send this round's message to those of `to` that are up and, for a stream, have opened it.
        The number is the edge's. `advance`: it is new on these edges."""
        assert s.stepped is not None
        stepped, streams, phase = s.stepped, self.scheme.streams, self._phase(s, s.round)
        frame, numbers, own = stepped.frame, stepped.published.numbers, stepped.published.own or {}
        sends: list[Action] = []
        sent: list[int] = []
        out = dict(s.out)
        for k in to:
            edge, name = s.out_edge((k, phase)), s.view.members[k]
            gets = name not in s.view.down and (edge.session or not streams)
            # A stream moves on with every round, sent or not: who missed it must see the gap.
            if advance if streams else gets:
                edge = edge.advanced()
            if gets:
                aux = {**numbers[k]} if k in numbers else {}
                if streams:
                    aux[Aux.SESSION], aux[Aux.EPOCH] = edge.session, s.epoch
                    if edge.position == 1:
                        aux[Aux.FRESH] = self.scheme.fingerprint(s.math)
                sends.append(Send(name, replace(frame, sequence=edge.position, aux=aux, body=own.get(k, frame.body))))
                sent.append(k)
            out[k, phase] = edge
        return replace(s, out=out, stepped=replace(stepped, sent=stepped.sent.union(sent))), sends

    def out_keys(self, s: State) -> tuple[Key, ...]:
        """Return every edge, and phase if it matters, on which this node sends."""
        return _keys(s.view.topology, s.index, self.scheme.streams)[1]  # type: ignore[arg-type]

    def _receive_hello(self, s: State, sender: int, frame: Frame) -> Outcome:
        """Open a stream of ours, as the other end wants, or ask it to open one of its."""
        name = s.view.members[sender]
        key = (sender, number_of(frame, Aux.PHASE, 0, s.view.topology.period - 1, default=0))
        if Aux.SESSION not in frame.aux:
            if key not in self.in_keys(s):
                raise PeerError(f"{name} sends nothing to {s.view.node}, and asked for a session")
            return self._ask(s, key, frame.aux.get(Aux.CHALLENGE))
        if key not in self.out_keys(s):
            raise PeerError(f"{name} opened a stream that {s.view.node} does not send")
        behind = frame.round + self._ahead(s, Aux.MODEL in frame.aux) < s.round
        session = number_of(frame, Aux.SESSION, 1, MAX_ID)
        if self.scheme.streams:
            return self._session_opened(s, key, frame, session, behind)
        return self._send_state(s, key, session, behind) if behind else (s, [])

    def _ask(self, s: State, key: Key, challenge: float | None = None) -> Outcome:
        """Ask for a new session of a stream, or again for the one that is being opened. Of that
        there must be nothing yet: it would be of a process that is gone, which may have sent
        something else."""
        edge = s.in_edge(key)
        kept = any(f.aux.get(Aux.SESSION) == edge.opening for f in s.inbox.of(key[0]))
        if not edge.opening or kept or edge.parts_of[0] == edge.opening:
            return self.open_sessions(s, [key], challenge)
        return s, self._hello_for_session(s, key, challenge)

    def _session_opened(self, s: State, key: Key, frame: Frame, session: int, behind: bool) -> Outcome:
        """Judge a receiver's HELLO with a session: believe it or not, note it, answer it."""
        edge, totals = s.out_edge(key), self.scheme.totals
        down = s.view.members[key[0]] in s.view.down
        incarnation = number_of(frame, Aux.INCARNATION, 1, MAX_ID)
        process = number_of(frame, Aux.EPOCH, 1, MAX_ID)

        # 1. One of an earlier session, or of an earlier incarnation that is known to be gone,
        #    changes nothing.
        if edge.is_late(process, frame.sequence) or (totals and edge.is_retired(incarnation)):
            return s, []

        # 2. A new incarnation makes the totals start at zero, for good. The HELLO may be late and
        #    of an old one that we never heard of, so the receiver has to show that it is there, by
        #    a number that only its answer can bring.
        if totals and edge.is_unknown(incarnation):
            if down:
                return s.with_out(key, edge.closed()), []
            challenge = challenge_of(s.view, *key, incarnation)
            if frame.aux.get(Aux.CHALLENGE) != challenge:
                # Noted as an answer: if it is lost with a connection, `_on_peers_down` has it asked
                # for again.
                s = s.with_out(key, replace(edge, answers=max(1, edge.answers)))
                return s, self._hello(s, key, {Aux.CHALLENGE: challenge})
            s = replace(s, math=self.scheme.forget(s.math, *key))

        # 3. The session is noted. One that counts as down is not answered: it has to ask again
        #    once it is up.
        known = edge.session == session
        edge = edge.opened(session, incarnation, process, frame.sequence)
        if down:
            return s.with_out(key, edge.closed()), []
        s = s.with_out(key, edge)

        # 4. One that started as this node did, and has missed nothing, begins with the first
        #    message, if there is one.
        alike = frame.aux.get(Aux.FRESH) == self.scheme.fingerprint(s.math)
        if alike and not behind and self._nothing_missed(s, key, edge):
            if edge.position == 0 or (known and s.stepped is not None and key[0] in s.stepped.sent):
                return s, []
            if edge.answers >= STATES_A_ROUND:
                return s.with_out(key, edge.deferred()), []
            return self._send(s.with_out(key, edge.answered()), [key[0]], advance=False)

        # 5. Everybody else gets the full state.
        return self._send_state(s, key, session, behind)

    def _nothing_missed(self, s: State, key: Key, edge: OutEdge) -> bool:
        """Tell whether one that has nothing yet can begin with the message of this round, or the
        next."""
        if edge.position == 0:
            return True
        # This round's message went to an incarnation that is gone, and push-sum has written it off.
        if len(edge.incarnations) > 1:
            return False
        this_round = s.stepped is not None and key[1] == s.ctx.phase and key[0] in s.ctx.neighbours.out
        return edge.position == 1 and this_round

    def _send_state(self, s: State, key: Key, session: int, behind: bool) -> Outcome:
        """Send the full state, in parts; to one that is far behind the model as the last."""
        edge, to = s.out_edge(key), s.view.members[key[0]]
        if to in s.view.down:
            return s, []
        # Who is far behind asks for itself again, and gets the model then.
        if edge.answers >= STATES_A_ROUND:
            return (s, []) if behind else (s.with_out(key, edge.deferred()), [])
        full = self.scheme.full(s.math, *key)
        vectors = [*full.vectors, self.scheme.model(s.math)] if behind else full.vectors
        # The first round that is not in it: the present one, unless its message is.
        next_round = s.round if s.stepped is None else s.round + 1
        aux = {
            **full.numbers,
            Aux.SESSION: session,
            Aux.INCARNATION: s.incarnation,
            Aux.PARTS: len(vectors),
            Aux.PHASE: key[1],
            Aux.EPOCH: s.epoch,
        }
        if behind:
            aux[Aux.MODEL] = 1
        sends: list[Action] = []
        for part, vec in enumerate(vectors):
            numbers = {**aux, Aux.PART: part}
            sends.append(Send(to, messages.control(s.view, Kind.STATE, next_round, edge.position + 1, numbers, vec)))
        return s.with_out(key, edge.answered()), sends

    def _send_owed_states(self, s: State, owed: Iterable[Key]) -> Outcome:
        """Send, at the start of a round, full states for those who opened a session in the last one
        after they had got as many as a round allows. Without its full state nothing that is said in
        that session can be used, and who opened it would wait for its deadline."""
        actions: list[Action] = []
        for key in owed:
            s, sends = self._send_state(s, key, s.out_edge(key).session, behind=False)
            actions += sends
        return s, actions

    def _on_peers_down(self, s: State, gone: set[int]) -> State:
        """Have those that went down ask for their streams again, once they are up: who is sent a
        full state may not have got it, and would wait for it."""
        lost = {key: edge.closed() for key, edge in s.out.items() if key[0] in gone and edge.answers}
        return replace(s, out={**s.out, **lost}) if lost else s

    def _on_peers_up(self, s: State, back: set[int]) -> Outcome:
        """Open the streams of those that are up again, if they were never established, and have
        them open anew those that they have not opened: their HELLO came while they counted as down,
        or went to a process that is gone."""
        keys = [k for k in self.in_keys(s) if k[0] in back and not s.in_edge(k).established]
        s, actions = self.open_sessions(s, keys if self.scheme.streams else [])
        for key in self.out_keys(s):
            if key[0] in back and not s.out_edge(key).session:
                actions += self._hello(s, key, {})
        return s, actions

    def _break_streams(self, s: State, math_: Any) -> State:
        """Have receivers ask for `math_` before it takes the place of what they hold, where it
        has nothing to do with that. The numbers go on: a stream of which nothing was said yet
        would begin with its first message."""
        phases = range(s.view.topology.period)
        moved = {p for p in phases if self.scheme.public(s.math, p) is not self.scheme.public(math_, p)}
        if not moved:
            return s
        keys = [k for k in {*s.out, *self.out_keys(s)} if k[1] in moved]
        return replace(s, out={**s.out, **{k: s.out_edge(k).closed().advanced() for k in keys}})

    def _take_back_begun(self, s: State) -> tuple[State, tuple[Key, ...]]:
        """Take back the sessions of which nothing was taken in yet: they begin at the model that
        this node gives up. Return them, to be opened anew."""
        begun = tuple(k for k in self.in_keys(s) if s.in_edge(k).established and not s.in_edge(k).position)
        return replace(s, in_={**s.in_, **{k: InEdge(round=s.in_edge(k).round) for k in begun}}), begun

    def _phase(self, s: State, round: Round) -> int:
        """Return the phase whose streams a round goes over: they are kept apart, since their
        receivers differ."""
        return round % s.view.topology.period if self.scheme.streams else 0


@lru_cache(maxsize=64)
def _keys(topology: Any, index: int, streams: bool) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """Return the keys of edges in and out, sorted: asked for several times a round, and the same
    all along."""
    rounds = [(r if streams else 0, topology.neighbours(index, r)) for r in range(topology.period)]
    into = {(j, phase) for phase, neighbours in rounds for j in neighbours.in_}
    out = {(k, phase) for phase, neighbours in rounds for k in neighbours.out}
    return tuple(sorted(into)), tuple(sorted(out))
