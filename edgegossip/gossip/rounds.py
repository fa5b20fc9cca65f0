"""Runs the rounds of a synchronous algorithm: one protocol around the mathematics of a
`scheme.Scheme`.

A round of one node, when nothing is lost:

    step       the local update is there: the scheme publishes, every out-neighbour gets the message
    receive    the in-neighbours' messages of this round are taken in one by one, in any order
    _finish    when none is missing the scheme mixes: RoundDone, and the next round begins

What else may happen, and what becomes of it:

- A neighbour is down (`membership`): it is neither waited for nor counted.
- A neighbour is silent (`tick`): past the deadline the round goes on without it. With a quorum the
  rest gets only a little longer (`_linger`); with bounded staleness s, news that is at most s
  rounds old will do (`_silent`). Who was silent for two deadlines is waited for no more until it
  sends again (`Reliance`): its news counts when it comes, and costs nobody time.
- A message comes before its round, or before the first local update: it is kept, encoded, until
  then (`_keep`, `_enter`, `step`).
  Since an edge keeps its order, it also shows that this round's message was lost, and nobody waits
  for that any more (`_lost`).
- Messages are differences, or carry mass (`scheme.streams`): each must be taken in, in order. After
  a gap or a restart the receiver opens a new session and gets a full state (`streams.py`,
  `sessions.py`).
- This node was left behind: it goes on in the round of half of its in-neighbours, and if it said
  hello to them, for it has just started, with the model of one of them ("catching up").

State and input go in, the next state and a list of actions come out. States are values: a PeerError
half-way leaves the caller with the state that it had."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from typing_extensions import override

from edgegossip.choices import Range
from edgegossip.codecs.base import Codec
from edgegossip.frame import Aux, Frame, Kind, expect_codec
from edgegossip.gossip import messages
from edgegossip.gossip.base import (
    Action,
    Adopted,
    Audit,
    Checkpoint,
    Message,
    NodeView,
    RoundDone,
    Says,
    SetTimer,
    Suspect,
)
from edgegossip.gossip.fragments import fragment_at
from edgegossip.gossip.messages import MAX_ID, number_of
from edgegossip.gossip.scheme import RoundContext, Snapshot
from edgegossip.gossip.sessions import Sessions
from edgegossip.gossip.state import NO_IN_EDGE, Key, Outcome, Reach, Reliance, State, Stepped
from edgegossip.gossip.streams import (
    InEdge,
    PendingMessages,
    incarnation_of,
)
from edgegossip.gossip.traits import Traits
from edgegossip.types import LocalUpdate, NodeId, PeerError, Round, UsageError, Vec, replace


@dataclass(frozen=True, slots=True)
class Synchronous(Sessions):
    """The algorithm that goes by rounds, around the mathematics of `scheme`."""

    staleness: Annotated[int, Range(0, 1000, "rounds that a neighbour's news may be old")] = 0
    quorum: Annotated[float, Range(0, 1, "share of live neighbours; the rest gets linger_s", above=True)] = 1.0
    linger_s: Annotated[float, Range(0, 86_400, "seconds that the rest gets after the quorum", above=True)] = 1.0
    max_ahead: Annotated[int, Range(0, 2**32 - 1, "rounds that a neighbour may be ahead; 0: as honest ones may be")] = 0

    asynchronous = False

    @property
    @override
    def name(self) -> str:
        return self.scheme.name

    @property
    @override
    def traits(self) -> Traits:
        return self.scheme.traits

    @property
    @override
    def says(self) -> Says:
        return self.scheme.says

    @property
    @override
    def bodies(self) -> int:
        return self.scheme.bodies

    @override
    def rate(self, codec: Codec[Any]) -> float | None:
        return self.scheme.rate(codec)

    # -- What the caller does: GossipAlgorithm

    @override
    def init(self, x: Vec, view: NodeView) -> State:
        """Return the state before round 0; x is copied. Raises ConfigError on an unsuitable
        topology, UsageError when x does not fit the layout or is not finite."""
        index = messages.check_view(view)
        self.scheme.check(view)
        messages.check_vector(view, x)
        ctx = self._context(view, index, 0)
        # A node that begins with nothing begins a history: its incarnation is named after its first
        # process.
        math_, boot = self.scheme.init(x, ctx), incarnation_of(view)
        return State(view, index, 0, ctx, math_, boot, boot, bare=view.bare)

    @override
    def resume(self, s: State, view: NodeView) -> State:
        """Break the streams that this node sent, and have those that it received opened anew:
        nobody knows what was lost. An update that was not mixed yet counts."""
        messages.check_same_run(s.view, view)
        round, math_ = s.round, s.math
        # The message of a round in progress may have reached some neighbours: the round cannot be
        # done a second time.
        if s.stepped is not None:
            round, math_ = s.round + 1, self.scheme.abandon(s.math, None, self._context(view, s.index, s.round))
        return replace(
            s,
            view=view,
            round=round,
            ctx=self._context(view, s.index, round),
            math=math_,
            epoch=incarnation_of(view),  # the incarnation goes on, the process does not
            out={key: replace(edge, session=0, answers=0) for key, edge in s.out.items()},
            inbox=PendingMessages(),  # of an earlier release
            stepped=None,
            refused=frozenset(),
            lingering=False,
            sessions=0,
            claims={},
            reliance={},
        )

    @override
    def restorable(self, s: State) -> State:
        """Return the state without what a new process asks for again."""
        in_ = {key: edge.without_parts() if edge.parts else edge for key, edge in s.in_.items()}
        return replace(s, inbox=PendingMessages(), in_=in_)

    @override
    def start(self, s: State) -> Outcome:
        """Open the streams of the in-neighbours, and ask whether they are far ahead."""
        return self.open_sessions(s, self.in_keys(s))

    @override
    def step(self, s: State, local: LocalUpdate) -> Outcome:
        """Publish, and wait for the neighbours. Raises UsageError when called twice in a round, or
        when the update is not finite (names the tensor)."""
        if s.stepped is not None:
            raise UsageError(f"round {s.round} of {s.view.node} has its local update already")
        messages.check_vector(s.view, local.delta)
        out = s.ctx.neighbours.out
        math_, published = self.scheme.publish(s.math, local, s.ctx, s.view.up(out))
        frame = messages.make_frame(s.view, self.scheme.kind, s.round, s.ctx.key, published.body)
        # With nobody to rely on, and no wait at all, a node would run away from the others.
        waits_s = None if self._relied(s) else min(self.linger_s, s.view.deadline_s)
        stepped = Stepped(frame, published, waits_s)
        reliance = {j: replace(known, began=known.newest) for j, known in s.reliance.items()}
        s, sends = self._send(replace(s, math=math_, stepped=stepped, reliance=reliance), out, advance=True)
        s, refused = self._take_kept(s) if s.round == 0 else (s, [])
        reminders = [*refused, *self._reminders(s)]
        if self._missing(s):
            s, actions = self._linger(s)
            return s, [*reminders, *sends, SetTimer(s.view.deadline_s if waits_s is None else waits_s), *actions]
        # All that there will be was here before: neighbours were faster, are down, or it was lost.
        s, actions = self._finish(s)
        return s, [*reminders, *sends, *actions]

    @override
    def receive(self, s: State, m: Message) -> Outcome:
        """Take in a message. Late ones and duplicates are counted and dropped, by (round, sender)
        or by the stream's number."""
        sender, frame = messages.sender_of(s.view, m), m.frame
        if frame.kind == Kind.HELLO:
            return self._receive_hello(s, sender, frame)
        if frame.kind == Kind.STATE:
            return self._receive_state(s, sender, frame)
        messages.admit(s.view, s.index, sender, frame, self.scheme.kind)
        if frame.round <= s.round + self._ahead(s):
            if (can := s.reach.get(sender, Reach())).newest < frame.round:
                s = replace(s, reach={**s.reach, sender: can.heard(frame.round, s.round - s.left_out)})
            if (known := s.reliance.get(sender)) is not None and known.newest < frame.round:
                more = replace(known, sent=known.sent + 1, newest=frame.round)
                s = replace(s, reliance={**s.reliance, sender: more})
        return self._receive_next(s, sender, frame) if self.scheme.streams else self._receive_single(s, sender, frame)

    @override
    def tick(self, s: State, now_s: float) -> Outcome:
        """Go on without whoever is missing, as the deadline of the round has passed, and suspect
        them; not those whose message was lost, as a later one shows that they are there, and it may
        be we who were not."""
        missing = self._missing(s)
        if s.stepped is None or not missing:
            return s, []
        if s.stepped.waits_s is not None:  # they are suspected already
            return self._finish(s)
        cause, waited_s = ("quorum", self.linger_s) if s.lingering else ("deadline", s.view.deadline_s)
        reason = f"no message of round {s.round} within {waited_s:g} s" + " after the others" * s.lingering
        suspects = [Suspect(s.view.members[j], reason, cause, s.round, waited_s) for j in missing]
        if not s.lingering:
            costs = {j: self._reliance(s, j).cost(s.round) for j in missing}
            s = replace(s, reliance={**s.reliance, **costs})
        s, actions = self._finish(s)
        return s, [*suspects, *actions]

    @override
    def membership(self, s: State, view: NodeView) -> Outcome:
        """Take note of who is down, and is neither waited for nor sent to, and of who came back,
        and gets the message of the round in progress. A round that waited for one until it was
        gone has waited in vain, as with a deadline: it may come and go."""
        messages.check_same_run(s.view, view)
        back = {j for j, name in enumerate(view.members) if name in s.view.down - view.down}
        gone = {j for j, name in enumerate(view.members) if name in view.down - s.view.down}
        claims = {j: claim for j, claim in s.claims.items() if view.members[j] not in view.down | s.view.down}
        claimed = [key for key in self.in_keys(s) if key[0] in s.claims]
        costs = {j: self._reliance(s, j).miss() for j in gone.intersection(self._missing(s))}
        s = replace(
            s,
            view=view,
            ctx=self._context(view, s.index, s.round),
            claims=claims,
            reliance={**s.reliance, **costs} if costs else s.reliance,
        )
        s, hellos = self._on_peers_up(self._on_peers_down(s, gone), back)
        for key in claimed if gone or back else ():  # those that are left may be enough by now
            s, more = self._ask(s, key)
            hellos = [*hellos, *more]
        if s.stepped is None:
            return s, hellos
        sent = s.stepped.sent
        if s.stepped.waits_s is not None and self._relied(s):
            s = replace(s, stepped=replace(s.stepped, waits_s=None))
            hellos = [*hellos, SetTimer(view.deadline_s)]
        s, sends = self._send(s, [j for j in s.ctx.neighbours.out if j in back and j not in sent], advance=False)
        s, actions = self._proceed(s)
        return s, [*hellos, *sends, *actions]

    @override
    def model(self, s: State) -> Vec:
        return self.scheme.model(s.math)

    @override
    def weight(self, s: State) -> float:
        return self.scheme.weight(s.math)

    @override
    def correction(self, s: State) -> Vec | None:
        return self.scheme.correction(s.math)

    @override
    def round(self, s: State) -> Round:
        return s.round

    @override
    def waiting_for(self, s: State) -> tuple[NodeId, ...]:
        return tuple(s.view.members[j] for j in self._missing(s))

    @override
    def exchanged(self, s: State) -> slice:
        return fragment_at(s.view.layout, self.scheme.fragments, s.view.topology.period, s.round).span

    @override
    def audit(self, s: State) -> Audit:
        """Return what the scheme holds, with marks at public copies and replicas: how many messages
        they hold."""
        audit = self.scheme.audit(s.math, s.ctx)
        if not self.scheme.replicates:
            return audit
        sent = dict.fromkeys(audit.public, 0)  # by phase: what receivers should have by now
        for (_, phase), edge in s.out.items():
            if phase in sent:
                sent[phase] = max(sent[phase], edge.position)
        return replace(
            audit,
            public={phase: (sent[phase], vec) for phase, (_, vec) in audit.public.items()},
            replicas={key: (s.in_edge(key).position, vec) for key, (_, vec) in audit.replicas.items()},
        )

    # -- The round: whom it waits for, how it ends, how the next one begins

    def _context(self, view: NodeView, index: int, round: Round) -> RoundContext:
        return RoundContext.at(view, index, round, self.scheme.fragments)

    def _silent(self, s: State) -> Iterator[int]:
        """Yield in-neighbours that are up, of whom there is no news that is new enough, and no
        refused message either; of those that may cost a deadline, unless there was nobody to rely
        on when the round began to wait, which is not for as long."""
        assert s.stepped is not None
        oldest, in_, phase = s.round - self.staleness, s.in_, self._phase(s, s.round)
        for j in self._relied(s) if s.stepped.waits_s is None else s.ctx.awaited:
            if j not in s.refused and in_.get((j, phase), NO_IN_EDGE).round < oldest:
                yield j

    def _relied(self, s: State) -> tuple[int, ...]:
        """Return in-neighbours that are up and may cost a deadline."""
        if not s.reliance:
            return s.ctx.awaited
        return tuple([j for j in s.ctx.awaited if j not in s.reliance or s.reliance[j].holds])

    @staticmethod
    def _reliance(s: State, j: int) -> Reliance:
        """Return the account of a neighbour; a new one begins after what it has sent so far."""
        newest = s.reach.get(j, Reach()).newest
        return s.reliance.get(j, Reliance(newest=newest, began=newest))

    def _lost(self, s: State, j: int) -> bool:
        """Tell whether this round's message of j will not come, because one of a later round is
        here: an edge keeps its order. Of a stream it is on its way, in a full state; unless the
        sender left this round out."""
        if not self.scheme.streams:
            return s.inbox.newest(j) > s.round
        if j not in s.inbox.frames:
            return False
        edge = s.in_edge((j, s.ctx.phase))
        return any(f.round > s.round and edge.expects(f) for f in s.inbox.of(j))

    def _missing(self, s: State) -> tuple[int, ...]:
        """Return whom the round waits for; nobody before `step`."""
        return () if s.stepped is None else tuple([j for j in self._silent(s) if not self._lost(s, j)])

    def _proceed(self, s: State) -> Outcome:
        """End the round if nothing is missing any more. Called whenever something came or somebody
        went."""
        if s.stepped is None:
            return s, []
        if self._missing(s):
            return self._linger(s)
        s, actions = self._finish(s)
        return s, [SetTimer(None), *actions]

    def _linger(self, s: State) -> Outcome:
        """Shorten the wait once the quorum is there."""
        if s.lingering or self.quorum >= 1.0:
            return s, []
        awaited = len(self._relied(s))
        if awaited - len(self._missing(s)) < self.quorum * awaited:
            return s, []
        return replace(s, lingering=True), [SetTimer(min(self.linger_s, s.view.deadline_s))]

    def _finish(self, s: State) -> Outcome:
        """Mix with all of whom there is news, those that are down by now included, and begin the
        next round."""
        assert s.stepped is not None
        oldest, in_, phase = s.round - self.staleness, s.in_, self._phase(s, s.round)
        fresh = [
            j for j in s.ctx.neighbours.in_ if j not in s.refused and in_.get((j, phase), NO_IN_EDGE).round >= oldest
        ]
        math_, spread = self.scheme.mix(s.math, s.ctx, fresh)
        error = s.stepped.published.relative_error if s.stepped.sent else math.nan
        distances, directions = (
            {s.view.members[j]: value for j, value in of.items()} for of in (spread.by_neighbour, spread.directions)
        )
        done = RoundDone(s.round, spread.distance, error, distances, len(fresh), directions)
        s, actions = self._enter(s, s.round + 1, math_)
        return s, [Checkpoint(), done, *actions]

    def _enter(self, s: State, round: Round, math_: Any) -> Outcome:
        """Begin a round: take in what came before it, and answer what the last round had no answer
        left for. A sender of a body that cannot be used is suspected, and not waited for."""
        # Every receiver may be answered a few times again. Who opened a session after its last
        # answer is owed a full state.
        answered = {key: replace(edge, answers=0) for key, edge in s.out.items() if edge.answers}
        owed = [key for key in answered if s.out[key].owes]
        far = round + self._ahead(s, s.bare)
        s = replace(
            s,
            round=round,
            ctx=self._context(s.view, s.index, round),
            math=math_,
            out={**s.out, **answered} if answered else s.out,
            stepped=None,
            refused=frozenset(),
            lingering=False,
            claims={j: claim for j, claim in s.claims.items() if claim[0] > far},
        )
        s, actions = self._take_kept(s)
        if not self.scheme.streams:
            return s, actions
        s, states = self._send_owed_states(s, owed)
        return s, [*actions, *states]

    def _take_kept(self, s: State) -> Outcome:
        """Take in what was kept and is of this round."""
        actions: list[Action] = []
        if self.scheme.streams:
            for sender in sorted(s.inbox.frames):
                s, more = self._drain(s, sender)
                actions += more
            return s, actions
        frames, inbox = s.inbox.take(s.round - self.staleness, s.round)
        s = replace(s, inbox=inbox)
        for sender, frame in frames.items():
            s, more = self._take_pending(s, sender, frame)
            actions += more
        return s, actions

    def _is_early(self, s: State, frame: Frame) -> bool:
        """Tell whether a message is kept: its round has not come, or its values cannot be judged,
        for nothing was trained here that they could be held against."""
        return frame.round > s.round or (s.round == 0 and s.stepped is None)

    # -- Messages that come in: taken in, kept, dropped, or a reason for a new session

    def _receive_single(self, s: State, sender: int, frame: Frame) -> Outcome:
        """Take in a message that stands for itself."""
        edge = s.in_edge((sender, 0))
        if self._is_early(s, frame):
            return self._keep(s, sender, frame)
        # Late: the round is over, or there is newer news.
        if frame.round < max(s.round - self.staleness, edge.round):
            return replace(s, late=s.late + 1), []
        # A duplicate: of what was taken in, or of what was refused in this round.
        if frame.round == edge.round or (frame.round == s.round and sender in s.refused):
            return replace(s, duplicates=s.duplicates + 1), []
        math_ = self.scheme.take(s.math, sender, frame, s.ctx)
        return self._proceed(s.with_in((sender, 0), edge.received(frame.round), math=math_))

    def _receive_next(self, s: State, sender: int, frame: Frame) -> Outcome:
        """Take in a message of a stream: the next one, one before its round, one after a gap, or
        one of a session that is over."""
        session = number_of(frame, Aux.SESSION, 1, MAX_ID)
        epoch = number_of(frame, Aux.EPOCH, 1, MAX_ID)
        key = (sender, self._phase(s, frame.round))
        edge = s.in_edge(key)
        # The very first message of a sender that started from the same model establishes the
        # session asked for.
        if session == edge.opening and self._starts_alike(s, edge, frame):
            edge = edge.started(session, epoch)
            s = s.with_in(key, edge)
        if session == edge.session and epoch == edge.epoch:
            if frame.sequence <= edge.position:
                return replace(s, duplicates=s.duplicates + 1), []
            if frame.sequence == edge.position + 1 and not self._is_early(s, frame):
                # The next one. It may be what the pending ones waited for.
                math_ = self.scheme.take(s.math, sender, frame, s.ctx)
                s, refused = self._drain(s.with_in(key, edge.advanced(frame.round), math=math_), sender)
                s, actions = self._proceed(s)
                return s, [*refused, *actions]
            # One before its round, or one after a gap. The gap will not close by itself: only a new
            # session brings what is missing.
            kept, actions = self._keep(s, sender, frame)
            if kept.in_edge(key).opening or not self._gap_before(kept, key, frame):
                return kept, actions
            kept, hellos = self.open_sessions(kept, [key])
            return kept, [*hellos, *actions]
        if session == edge.opening:  # its full state is on the way, and this goes on where that ends
            return self._keep(s, sender, frame)
        # A session that is over, or a process that is gone. One that is being opened already needs
        # no other.
        s = replace(s, late=s.late + 1)
        return (s, []) if edge.opening else self.open_sessions(s, [key])

    def _starts_alike(self, s: State, edge: InEdge, frame: Frame) -> bool:
        """Tell whether this is the very first message of a sender that started from the same
        model."""
        fresh = not edge.established and frame.sequence == 1
        return fresh and frame.aux.get(Aux.FRESH) == self.scheme.fingerprint(s.math)

    def _gap_before(self, s: State, key: Key, frame: Frame) -> bool:
        """Tell whether a message between the last one taken in and this one is not among the
        pending ones either."""
        edge, (sender, phase) = s.in_edge(key), key
        kept = [f for f in s.inbox.of(sender) if f.aux[Aux.SESSION] == edge.session]
        numbers = {f.sequence for f in kept if self._phase(s, f.round) == phase}
        return any(number not in numbers for number in range(edge.position + 1, frame.sequence))

    def _keep(self, s: State, sender: int, frame: Frame) -> Outcome:
        """Keep a message until its round, and go on in the neighbours' round if this node was left
        behind."""
        inbox = s.inbox.put(sender, frame, self._ahead(s) + 1)
        if inbox is None:
            return replace(s, duplicates=s.duplicates + 1), []
        s = replace(s, inbox=inbox)
        target = self._left_behind(s)
        return self._proceed(s) if target is None else self._skip_to(s, target, None)

    def _drain(self, s: State, sender: int) -> Outcome:
        """Take in the pending messages of a sender's streams that are next and whose round has
        come; forget those that are of no use."""
        actions: list[Action] = []
        rest = []
        if sender not in s.inbox.frames:
            return s, actions
        for frame in s.inbox.of(sender):
            # What is of the established session and was passed, or is of a process that is gone, or
            # of neither session, is dropped. What is of the session being opened waits for its
            # full state.
            key = (sender, self._phase(s, frame.round))
            edge, session = s.in_edge(key), frame.aux[Aux.SESSION]
            over = session == edge.session and (frame.sequence <= edge.position or frame.aux[Aux.EPOCH] != edge.epoch)
            if over or session not in (edge.session, edge.opening):
                continue
            if edge.expects(frame) and not self._is_early(s, frame):
                s, refused = self._take_pending(s, sender, frame)
                actions += refused
                if refused:
                    s = s.with_in(key, s.in_edge(key).stuck())
            else:
                rest.append(frame)
        return replace(s, inbox=s.inbox.keep(sender, tuple(rest))), actions

    def _take_pending(self, s: State, sender: int, frame: Frame) -> Outcome:
        """Take in a message that was kept; a Suspect if it turns out to be bad, as nobody is there
        to be answered."""
        key = (sender, self._phase(s, frame.round))
        edge = s.in_edge(key)
        try:
            math_ = self.scheme.take(s.math, sender, frame, s.ctx)
        except PeerError as error:
            reason = f"message of round {frame.round} refused: {error}"
            return replace(s, refused=s.refused | {sender}), [
                Suspect(s.view.members[sender], reason, "refused", frame.round)
            ]
        edge = edge.advanced(frame.round) if self.scheme.streams else edge.received(frame.round)
        return s.with_in(key, edge, math=math_), []

    # -- Full states that come in

    def _receive_state(self, s: State, sender: int, frame: Frame) -> Outcome:
        """Take in a part of a full state.

        It is dropped where its session was not asked for, or is established already, or it is older
        than what is known. What it holds would otherwise come twice to one who waits for its round:
        pending messages hold it, too."""
        name = s.view.members[sender]
        key = (sender, number_of(frame, Aux.PHASE, 0, s.view.topology.period - 1))
        if key not in self.in_keys(s):
            raise PeerError(f"{name} sent a state of a stream that {s.view.node} does not get")
        session, position, edge = number_of(frame, Aux.SESSION, 1, MAX_ID), frame.sequence - 1, s.in_edge(key)
        if session != edge.opening or edge.is_behind(session, position, frame.aux.get(Aux.EPOCH)):
            return replace(s, late=s.late + 1), []
        of = (session, position, number_of(frame, Aux.EPOCH, 1, MAX_ID))
        number_of(frame, Aux.INCARNATION, 1, MAX_ID)
        # Parts of one full state only belong together; for one that is far behind, the sender's
        # model is the last. Each part says whether there is one, and two need not say the same: the
        # full state is whole when all that this one speaks of is here, and holds nothing else.
        wanted = self.scheme.parts + (Aux.MODEL in frame.aux)
        number_of(frame, Aux.PARTS, wanted, wanted)
        part = number_of(frame, Aux.PART, 0, wanted - 1)
        expect_codec(frame, messages.FP32, name)
        messages.FP32.check(frame.body, s.view.layout)
        parts = {**(edge.parts if edge.parts_of == of else {}), part: frame}
        if any(k not in parts for k in range(wanted)):
            return s.with_in(key, replace(edge, parts=parts, parts_of=of)), []
        vectors = [messages.FP32.decode(parts[k].body, s.view.layout) for k in range(wanted)]
        model = vectors.pop() if Aux.MODEL in frame.aux else None
        ahead = self._ahead(s)
        if self.scheme.totals and frame.round > s.round + ahead:
            # How much it may hand over goes by its round, which is its own word. Until enough of
            # them have led us there it is no more than a claim; it is asked again in our next.
            s = s.with_in(key, edge.without_parts())
            return (s, []) if model is None else self._claim(s, sender, frame.round, model)
        full = Snapshot(vectors, frame.aux, frame.round, min(edge.round, s.round - ahead))
        s, actions = self._take_full(s, key, of, full)
        s, more = self._proceed(s) if model is None else self._claim(s, sender, frame.round, model)
        return s, [*actions, *more]

    def _take_full(self, s: State, key: Key, of: tuple[int, int, int], full: Snapshot) -> Outcome:
        """Go on with the stream after what the full state holds, with the messages that came
        meanwhile."""
        if not self.scheme.streams:  # there was a model only
            return s.with_in(key, s.in_edge(key).without_parts()), []
        session, position, epoch = of
        math_ = self.scheme.adopt(s.math, *key, full, s.ctx)
        s = self._break_streams(s, math_)
        s = s.with_in(key, s.in_edge(key).restored(session, position, full.round - 1, epoch), math=math_)
        return self._drain(s, key[0])

    # -- Catching up: how a node that slept, or begins late, gets on a level with the others
    #
    # It goes on in the others' round when more than half of its in-neighbours that are up are far
    # ahead, and more than may lie. After a split heals a node of a ring has one neighbour on either
    # side of it, so half of them are enough where they can have come so far since they were heard
    # of: PACE rounds for each that we played. Any one of a ring could lead it to the end of the run
    # otherwise. It goes no further than two messages of different rounds, both of which can be
    # decoded, bear out.

    @override
    def _ahead(self, s: State, bare: bool = False) -> int:
        """Return how many rounds ahead of us is far. In a strongly connected graph without
        deadlines nobody can be more than n - 1 hops ahead; on each of them a node goes on for
        `staleness` rounds without news, and hears of it again after a period. Of what one with
        nothing would do in that time there is no use to others: a hop is a round."""
        topology = s.view.topology
        most = self.max_ahead or topology.n * (topology.period + self.staleness) + 1
        return min(most, topology.n + 1) if bare else most

    def _alive(self, s: State) -> tuple[int, ...]:
        """Return in-neighbours, in any round, that are up."""
        return s.view.up(sorted({j for j, _ in self.in_keys(s)}))

    def _left_behind(self, s: State) -> Round | None:
        """Return the round to go on in, when the pending messages of at least half of the
        in-neighbours that are up are far ahead."""
        limit = s.round + self._ahead(s)
        if all(s.inbox.newest(j) <= limit for j in s.inbox.frames):
            return None
        far = {j: r for j in self._alive(s) if (r := self._borne_out(s, j, limit)) is not None}
        return min(far.values()) if self._lead(s, far) else None

    def _lead(self, s: State, far: Mapping[int, Round]) -> bool:
        """Tell whether neighbours that are in rounds far ahead are believed."""
        alive = self._alive(s)
        count = sum(j in alive for j in far)
        if count <= self.scheme.malicious or 2 * count != len(alive):
            return count > self.scheme.malicious and 2 * count > len(alive)
        played = s.round - s.left_out
        return all(round <= s.reach.get(j, Reach()).most(played) for j, round in far.items())

    def _borne_out(self, s: State, j: int, limit: Round) -> Round | None:
        """Return the round before the last that j sent a message of, if the last is beyond `limit`
        and that one next to it."""
        by_round = {f.round: f for f in s.inbox.of(j)}
        if len(by_round) < 2:
            return None
        *_, before, last = sorted(by_round)
        if last <= limit or before <= limit - s.view.topology.period:
            return None
        return before if self._decodes(s, by_round[before]) and self._decodes(s, by_round[last]) else None

    def _decodes(self, s: State, frame: Frame) -> bool:
        layout = s.ctx.fragment_of(frame).layout
        try:
            for body in messages.bodies(frame, self.bodies):
                s.view.codec.decode(body, layout)
        except PeerError:
            return False
        return True

    def _claim(self, s: State, sender: int, round: Round, model: Vec) -> Outcome:
        """Take note that a neighbour finds us far behind; once enough of them do, take over the
        last one's model, unless it has come by far less or by far more than they. Where neighbours
        may lie, the nearest: it is no farther off than an honest one."""
        name = s.view.members[sender]
        messages.require_proportion(name, model, self.scheme.model(s.math), s.view.layout, s.ctx.ahead(round))
        if round <= s.round + self._ahead(s, s.bare):  # not any more
            return self._proceed(s)
        s = replace(s, claims={**s.claims, sender: (round, model if self.scheme.malicious else None)})
        claims = {j: s.claims[j] for j in self._alive(s) if j in s.claims}
        rounds = {j: round for j, (round, _) in claims.items()}
        # The latest round that enough of them say to be in or beyond, and those about as far.
        led = [r for r in rounds.values() if self._lead(s, {j: other for j, other in rounds.items() if other >= r})]
        if not led:
            return self._proceed(s)
        least, far = max(led), self._ahead(s)
        if self.scheme.malicious:
            own = self.scheme.model(s.math)
            near = [(j, *claim) for j, claim in claims.items() if least <= claim[0] <= least + far]
            sender, round, model = min(near, key=lambda claim: float(np.linalg.norm(claim[2] - own)))
        elif abs(round - least) > far:
            return self._proceed(s)
        s, actions = self._skip_to(s, round, model)
        return s, [Adopted(s.view.members[sender], round), *actions]

    def _skip_to(self, s: State, target: Round, model: Vec | None) -> Outcome:
        """Go on in round `target`; an update that waited to be mixed is kept, unmixed, unless there
        is another model."""
        stepped = s.stepped is not None
        math_ = self.scheme.abandon(s.math, model, s.ctx)
        s = replace(self._break_streams(s, math_), bare=s.bare and model is None)
        s = replace(s, left_out=s.left_out + target - s.round)
        s, begun = (s, ()) if model is None else self._take_back_begun(s)
        s, actions = self._enter(s, target, math_)
        s, hellos = self.open_sessions(s, begun)
        actions = [*hellos, *actions]
        if not stepped:
            return s, [Checkpoint(), *actions]
        return s, [SetTimer(None), Checkpoint(), RoundDone(target - 1, math.nan, math.nan), *actions]
