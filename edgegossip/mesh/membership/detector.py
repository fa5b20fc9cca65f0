"""The failure detector of one member: a state machine without I/O. Messages and the time go in,
messages and changes come out.

SWIM (Das, Gupta, Motivala, 2002): every interval one member is probed; without an answer through a
few others; then it is suspect, and dead when it does not refute that in time. Lifeguard (Dadgar,
Phillips, Currey, 2018): whoever is slow itself takes more time for everything; a suspect is told
first. Deviations:

- Whole tables travel instead of queues of updates, and only to those who are not known to have them
  (`protocol`). Idle members exchange a hash. News is told to a few members every `spread_s`, and
  not only by probes: while anybody is suspect until all are known to have it, else to our
  neighbours, who tell theirs.
- SWIM probes all members in shuffled rounds. So do we while anybody is suspect, and faster, since
  boards often fail together. In quiet times each member is watched by few others only, as in Rapid
  (Suresh et al., "Stable and consistent membership at scale with Rapid", 2018): the one before it
  and the one after it. So two watch each other, and one of them asking now and then is enough: who
  was heard of is not asked, and nobody is forgotten for longer than `quiet_s` and a little.
- Whatever comes from a member shows that it is there, not only the answer to a probe: the
  acknowledgement of a frame, too.
- A suspicion makes everybody who hears of it probe that member next: it is confirmed, or the
  suspect told, without delay. It gets shorter when our own probe fails, too, not with the number
  of those who say so, as in Lifeguard: one that lies could speak for all.
- What another takes for a death is a suspicion to us, which ends in its own time: who named it may
  be deaf, or come out of a split in which it heard nobody. So is what another says of a member that
  left, or one that lies could part honest boards at once: only its own word is believed at once.
- Being suspected counts as a sign of one's own slowness only when one's own probes go unanswered,
  too: it is hearsay.
- Timeouts follow measured round trips, and where a whole fleet is slow (long round trips, processes
  that are called late) a suspicion lasts longer, too. A refused connection does not wait for them.
- A process that did not run for a while (stopped, swapped out) does not blame the others: its
  waiting times begin anew.
- One message raises what is known of an incarnation by a bounded step only (`protocol.bounded`), or
  a member that lies could name others dead in a way that they cannot refute.
- Dead members are tried again without end, so that the halves of a split find each other; those
  that left ever more seldom: a board that founded the run and is started again with its own command
  knows nobody's address.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from edgegossip.mesh.membership.protocol import (
    Ack,
    Changed,
    Delay,
    LocalHealth,
    MemberEntry,
    Message,
    Nack,
    Output,
    Ping,
    PingReq,
    Refuted,
    Rival,
    Rows,
    SendMessage,
    Stalled,
    Status,
    SwimSettings,
    View,
    bounded,
    digest_of,
    merge,
    rows_of,
)

_RIVALRIES = 5
_SECOND = 1.125  # of two that watch each other one waits longer, and has mostly been asked by then
_FORGET_S = 30.0  # an answer that comes later says nothing about the round trip


@dataclass(slots=True)
class Probe:
    """Asks once whether a member is there, first asked directly, then through others."""

    target: int
    number: int  # of the direct ping
    direct_until_s: float
    timeout_s: float  # of the direct ping
    until_s: float = 0.0  # end of the indirect part; 0 until it has begun
    helpers: set[int] = field(default_factory=set)  # who have not said anything yet
    refused: bool = False  # the direct ping failed outright
    asked: int = 0  # helpers

    @property
    def due_s(self) -> float:
        """When its present part ends."""
        return self.until_s or self.direct_until_s

    def shift(self, by_s: float) -> None:
        """Let it end later, for we did not run for so long."""
        self.direct_until_s += by_s
        self.until_s += by_s if self.until_s else 0.0


@dataclass(frozen=True, slots=True)
class IndirectProbe:
    """Asks on behalf of somebody else whether a member answers us."""

    requester: int
    number: int  # the requester's
    until_s: float  # then a Nack is due


@dataclass(slots=True)
class SharedProbe:
    """Keeps the ping that we made to one member for those who asked: whoever asks within a moment
    shares it, so that nobody can make us ask a third one so often that it takes us for a
    nuisance."""

    number: int
    sent_s: float
    outcome: type[Ack | Nack] | None = None


class Disseminator:
    """Keeps the table and tells others of it: the dissemination half of SWIM. News goes to a few
    members at a time, until all are known to have it."""

    def __init__(self, members: int, me: int, random: Random, now_s: float, settings: SwimSettings) -> None:
        self.me, self.settings = me, settings
        self.table = [MemberEntry() for _ in range(members)]
        self._random = random
        self._numbers = 0
        self._pings: dict[int, tuple[int, float]] = {}  # every direct ping that may be answered: target, when
        self._theirs: dict[int, int] = {}  # digest that each last told
        self._told: dict[int, int] = {}  # how often each was told the present news
        self._digest: int | None = None  # of the table, when it is needed
        self._spread_s = now_s  # when news is told next
        self._rested_s = now_s  # not before: news that comes and comes is no reason to ask without end
        self._out: list[Output] = []

    def _update(self, member: int, entry: MemberEntry, now_s: float) -> bool:
        """Write a row; return whether that is news."""
        if entry == self.table[member]:
            return False
        self.table[member] = entry
        self._digest, self._told = None, {}
        self._spread_s = min(self._spread_s, max(now_s, self._rested_s))
        return True

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def digest(self) -> int:
        """The hash of the table, which is the same where the tables are."""
        if self._digest is None:
            self._digest = digest_of(self.table)
        return self._digest

    def _view(self, to: int) -> View:
        """Return what a message to this member carries. Whoever is not here may come again as a
        process that knows nothing, whatever it said last."""
        has_it = self.table[to].here and self._theirs.get(to) == self.digest
        return View(self.digest, () if has_it else rows_of(self.table))

    def _send(self, to: int, message: Callable[[View], Message]) -> None:
        self._out.append(SendMessage(to, message(self._view(to))))

    def _ping(self, to: int, now_s: float) -> int:
        number = self._next_number()
        self._pings[number] = (to, now_s)
        self._send(to, lambda view: Ping(number, view))
        return number

    def _spread(self, among: Iterable[int], now_s: float) -> None:
        """Tell a few of those that are not known to have our news."""
        behind = [
            k
            for k in among
            if self.table[k].here
            and k != self.me
            and self._theirs.get(k) != self.digest
            and self._told.get(k, 0) < self.settings.spread_repeats
        ]
        for k in self._random.sample(behind, min(len(behind), self.settings.spread_to)):
            self._told[k] = self._told.get(k, 0) + 1
            self._ping(k, now_s)
        self._rested_s = now_s + self.settings.spread_s
        self._spread_s = self._rested_s if behind else math.inf

    def _forget_pings(self, now_s: float) -> None:
        oldest_s = now_s - _FORGET_S
        for number in [n for n, (_, sent_s) in self._pings.items() if sent_s < oldest_s]:
            del self._pings[number]

    def _take_outputs(self) -> list[Output]:
        out, self._out = self._out, []
        return out


class Detector(Disseminator):
    """Detects failures as member `me` of `members`. `session` tells this process from earlier ones
    of the same member, `known` is what others say of the run so far (a newcomer comes back with a
    higher incarnation than theirs). Call `tick` at `wake_s` and not before."""

    def __init__(
        self,
        members: int,
        me: int,
        address: str,
        session: int,
        random: Random,
        now_s: float,
        settings: SwimSettings | None = None,
        known: Rows = (),
    ) -> None:
        super().__init__(members, me, random, now_s, settings or SwimSettings())
        self.health = LocalHealth(self.settings.health_max)
        self._order: list[int] = []  # whom to probe next, last one first
        self._prompted: dict[int, float] = {}  # whom to probe besides, and when: others suspect them
        self._probes: dict[int, Probe] = {}  # by number of each of its pings
        self._requests: dict[int, list[IndirectProbe]] = {}  # by the member that they are about
        self._shared: dict[int, SharedProbe] = {}
        self._suspected_s: dict[int, float] = {}
        self._unreached: dict[int, tuple[int, int]] = {}  # whom we probed in vain: session, incarnation
        self._lag = Delay(self.settings)  # by so much we are called too late
        self._round_trips = [Delay(self.settings) for _ in range(members)]
        self._rivalries = 0
        self._unanswered = False  # the last probe of ours that ended
        self._heard_s = [now_s] * members  # when each was last heard of, or asked
        self._asked_s = now_s  # when we last probed anybody
        self._left: dict[int, tuple[float, float]] = {}  # who left, and is tried again: when, and after what pause
        self._said_left: dict[int, int] = {}  # of whom others say so, and in which incarnation
        self._missed: set[int] = set()  # who is not here as far as we know ourselves
        # Members that are not to be believed any more, and the sessions that lost their right.
        self._evicted: dict[int, int] = {}
        for k, entry in known:
            entry = bounded(entry, self.table[k])
            if k == me:  # our earlier process: its suspicion ends with it
                self.table[k] = merge(self.table[k], entry)
                continue
            self.table[k] = self._with_hearsay(k, entry)
            if self.table[k].status is Status.SUSPECT:
                self._suspected_s[k] = now_s
                self._prompted[k] = now_s + random.uniform(0, self.settings.interval_s / 2)
        last = self.table[me].incarnation
        self.table[me] = MemberEntry(Status.ALIVE, last + 1, session, address)
        self._next_probe_s = now_s + random.uniform(0, self.settings.interval_s)
        self._next_retry_s = now_s + random.uniform(0, self.settings.retry_s)
        self.wake_s = max(now_s, self._due_s(now_s))  # when `tick` is due; infinite: nobody to ask and nothing to tell

    # -- what goes in

    def tick(self, now_s: float) -> list[Output]:
        """Do whatever is due."""
        self._notice_stall(now_s)
        # Probes whose time is over go on through others, or end in a suspicion; those that we made
        # for others, in a Nack.
        self._end_probes(now_s)
        for target in list(self._requests):
            self._answer_requests(target, Nack, now_s)
        # A suspect that did not refute it in time is dead, or has left as others say.
        for k in [k for k in self._suspected_s if self._suspicion_ends_s(k, now_s) <= now_s]:
            self._missed.add(k)
            left = self._said_left.get(k) == self.table[k].incarnation
            self._set(k, replace(self.table[k], status=Status.LEFT if left else Status.DEAD), now_s)
        # Whom others suspect is probed by us, too; beyond that everybody in turn while there is a
        # suspect, else our neighbours.
        for k in [k for k, due_s in self._prompted.items() if due_s <= now_s]:
            del self._prompted[k]
            self._probe(k, now_s)
        if self._next_probe_s <= now_s and self._suspected_s:
            self._next_probe_s = now_s + self.settings.interval_s * self.health.factor / self.settings.haste
            self._probe_next(now_s)
        elif not self._suspected_s:
            self._watch(now_s)
        # Those that are gone are tried again, and news is told, each at its own pace.
        if self._retry_s() <= now_s:
            self._next_retry_s = now_s + self.settings.retry_s * self._random.uniform(0.75, 1.25)
            self._retry_dead(now_s)
        # In quiet times from neighbour to neighbour, who have connections: a new one takes 12 kB.
        if self._spread_s <= now_s:
            self._spread(range(len(self.table)) if self._suspected_s else self._watched(), now_s)
        self._forget_pings(now_s)
        return self._turn_over(now_s)

    def receive(self, sender: int, message: Message, now_s: float) -> list[Output]:
        """Take in a message of another member, whose identity is certain."""
        self._notice_stall(now_s)
        self._evicted.pop(sender, None)
        self._learn(sender, message.view, now_s)
        self._hear(sender, now_s)
        match message:
            case Ping(number):
                self._send(sender, lambda view: Ack(number, view))
            case PingReq(number, target, timeout_s):
                until_s = now_s + min(timeout_s, self.settings.timeout_max_s)
                self._probe_for(target, IndirectProbe(sender, number, until_s), now_s)
            case Ack(number):
                self._answered(sender, number, now_s)
            case Nack(number):
                self._not_reached(sender, number)
        return self._turn_over(now_s)

    def failed(self, to: int, number: int, now_s: float) -> list[Output]:
        """Take in that this ping of ours, or request for one, could not even be delivered: the rest
        of its time is not waited for."""
        self._notice_stall(now_s)
        shared = self._shared.get(to)
        if shared is not None and shared.number == number:
            shared.outcome = Nack
            self._answer_requests(to, Nack)
        probe = self._probes.get(number)
        # A refused direct ping: others are asked at the next tick. A helper that cannot be reached:
        # one less to wait for.
        if probe is not None and probe.number == number and not probe.until_s:
            probe.refused, probe.direct_until_s = True, now_s
        elif probe is not None:
            probe.helpers.discard(to)
            self._hurry(probe)
        return self._turn_over(now_s)

    def suspect(self, member: int, now_s: float) -> list[Output]:
        """Take in a sign from elsewhere that a member may be gone: it is probed at once."""
        self._notice_stall(now_s)
        if member != self.me:
            self._probe(member, now_s)
        return self._turn_over(now_s)

    def evict(self, member: int, now_s: float) -> list[Output]:
        """Take in that a member lost its right to take part: it is dead without a probe,
        whatever others hear of this process of it, until it talks to us again (which takes a new
        certificate)."""
        self._notice_stall(now_s)
        entry = self.table[member]
        if entry.status not in (Status.ABSENT, Status.LEFT):
            self._evicted[member] = entry.session
            self._missed.add(member)
            self._set(member, entry, now_s)
        return self._turn_over(now_s)

    def note_heard(self, member: int, now_s: float) -> list[Output]:
        """Take in that a member answered elsewhere just now, so that it need not be asked. It says
        nothing of what is in its table, and takes back nothing."""
        self._notice_stall(now_s)
        self._hear(member, now_s)
        return self._turn_over(now_s)

    def _hear(self, member: int, now_s: float) -> None:
        """Take in that a member is there, whatever it says: a probe of it has its answer."""
        self._heard_s[member] = now_s
        self._unreached.pop(member, None)
        if any(probe.target == member for probe in self._probes.values()):
            self._drop_probes(member)
            self._reached()

    def mark_alive(self, member: int, now_s: float) -> list[Output]:
        """Take in a sign that a member is there, whatever the table says: tell it what we know, and
        hear what it does. It may be another process than the table has, which knows nobody."""
        self._notice_stall(now_s)
        self._theirs.pop(member, None)
        if self.table[member].address:
            self._ping(member, now_s)
        return self._turn_over(now_s)

    def leave(self, now_s: float) -> list[Output]:
        """Leave on purpose: tell a few members, who tell the others."""
        self._notice_stall(now_s)
        self._set(self.me, replace(self.table[self.me], status=Status.LEFT), now_s)
        others = [k for k, entry in enumerate(self.table) if entry.here]
        for k in self._random.sample(others, min(len(others), self.settings.spread_to)):
            self._ping(k, now_s)
        return self._turn_over(now_s)

    def move(self, address: str, now_s: float) -> list[Output]:
        """Take in that we can be reached at another address now."""
        self._notice_stall(now_s)
        own = self.table[self.me]
        if own.address != address:
            self._set(self.me, replace(own, incarnation=own.incarnation + 1, address=address), now_s)
        return self._turn_over(now_s)

    def _turn_over(self, now_s: float) -> list[Output]:
        """End a call. When we are to be called next is said here and kept: what a message changes
        (another neighbour, better health) may be overdue at once, which is not the same as having
        been called late."""
        self.wake_s = max(now_s, self._due_s(now_s))
        return self._take_outputs()

    def _due_s(self, now_s: float) -> float:
        times = [self._next_probe_s if self._suspected_s else self._look_s(), self._spread_s, self._retry_s()]
        times += [probe.due_s for probe in self._probes.values()]
        times += [request.until_s for requests in self._requests.values() for request in requests]
        times += [self._suspicion_ends_s(k, now_s) for k in self._suspected_s]
        times += self._prompted.values()
        return min(times)

    # -- what is known

    def _learn(self, sender: int, view: View, now_s: float) -> None:
        for k, told in view.rows:
            entry = bounded(told, self.table[k])
            if k == self.me:
                self._refute(sender, entry, now_s)
                continue
            self._set(k, merge(self.table[k], entry) if k == sender else self._with_hearsay(k, entry), now_s)
        self._theirs[sender] = view.digest

    def _with_hearsay(self, member: int, told: MemberEntry) -> MemberEntry:
        """Return what is known of a member once another has told this of it. Whoever says that it
        is dead, or has left, makes us ask it, unless we know ourselves that it is not here."""
        known, suspect = self.table[member], replace(told, status=Status.SUSPECT)
        if told.status is not Status.LEFT:
            unasked = known.here or known.status is Status.ABSENT
            return merge(known, suspect if told.status is Status.DEAD and unasked else told)
        if not known.here and (known.status is Status.LEFT or member in self._missed or not told.address):
            return merge(known, told)
        if told.incarnation < known.incarnation:
            return known
        self._said_left[member] = told.incarnation
        return merge(known, suspect) if known.here else suspect

    def _refute(self, sender: int, entry: MemberEntry, now_s: float) -> None:
        """Answer what others say of us, unless it is what we said last or before."""
        own = self.table[self.me]
        if own.status is Status.LEFT or entry.incarnation < own.incarnation or entry == own:
            return
        # They suspect this very process; or they know of another process in our name, which may be
        # our earlier one.
        if entry.status in (Status.SUSPECT, Status.DEAD) and entry.session == own.session:
            self.health.note(self._unanswered)  # or one that says so again and again could make us slow
            self._out.append(Refuted(sender, entry))
        elif entry.status is Status.ALIVE and entry.session != own.session:
            self._rivalries += 1
            if self._rivalries == _RIVALRIES:  # fewer are echoes of our earlier process
                self._out.append(Rival(entry.address))
        # A higher incarnation, which only we may claim, outdoes whatever was said.
        self._set(self.me, replace(own, incarnation=entry.incarnation + 1), now_s)

    def _set(self, member: int, after: MemberEntry, now_s: float) -> None:
        before = self.table[member]
        if after.status in (Status.ALIVE, Status.SUSPECT) and self._evicted.get(member) == after.session:
            after = replace(after, status=Status.DEAD)
        if not self._update(member, after, now_s) or member == self.me:
            return
        revoked = self._evicted.get(member) == after.session
        self._out.append(Changed(member, before, after, self._asked(member), revoked))
        if after.here:
            self._missed.discard(member)
        if after.status is not Status.LEFT:
            self._left.pop(member, None)
        elif member not in self._left and after.address:
            self._left[member] = now_s + self.settings.retry_s, self.settings.retry_s
        if after.status in (Status.DEAD, Status.LEFT) and self._next_retry_s <= now_s:
            self._next_retry_s = now_s + self._random.uniform(0, self.settings.retry_s)
        if after.status is not Status.SUSPECT:
            self._suspected_s.pop(member, None)
        elif before.status is not Status.SUSPECT or before.incarnation != after.incarnation:
            probe_s = now_s + self._random.uniform(0, self.settings.interval_s)
            self._next_probe_s = min(self._next_probe_s, probe_s) if self._suspected_s else probe_s
            self._suspected_s[member] = now_s
            if not self._asked(member):
                self._prompted[member] = now_s + self._random.uniform(0, self.settings.interval_s / 2)
        if after.status is not Status.SUSPECT:
            self._prompted.pop(member, None)
        if not after.here:
            self._drop_probes(member)

    def _suspicion_ends_s(self, member: int, now_s: float) -> float:
        here = sum(entry.here for entry in self.table)
        return self._suspected_s[member] + self._slowness(now_s) * self.settings.suspicion_time_s(
            here, self._asked(member)
        )

    def _asked(self, member: int) -> bool:
        """Say whether our own probe of a member as we know it now failed."""
        entry = self.table[member]
        return self._unreached.get(member) == (entry.session, entry.incarnation)

    def _slowness(self, now_s: float) -> float:
        """Say how many times slower than usual everything is: the fleet's round trips, and our own
        process."""
        trips = sorted(trip.mean_s(now_s) for trip in self._round_trips if trip.known(now_s))
        slow_s = self._lag.mean_s(now_s) + (trips[len(trips) // 2] if trips else 0.0)
        return min(self.settings.slowest, max(1.0, slow_s / self.settings.usual_s))

    def _retry_s(self) -> float:
        """Say when somebody who is gone is to be tried again."""
        if any(entry.status is Status.DEAD for entry in self.table):
            return self._next_retry_s
        return max(self._next_retry_s, min((due_s for due_s, _ in self._left.values()), default=math.inf))

    def _retry_dead(self, now_s: float) -> None:
        """Try again of the dead one each time; of those that left, whose time has come: after
        pauses that double."""
        gone = [k for k, entry in enumerate(self.table) if entry.status is Status.DEAD]
        due = [k for k, (due_s, _) in self._left.items() if due_s <= now_s]
        if not gone and not due:
            return
        target = self._random.choice(gone + due)
        if target in self._left:
            pause_s = min(2 * self._left[target][1], self.settings.left_s)
            self._left[target] = now_s + pause_s, pause_s
        self._ping(target, now_s)

    # -- probing

    def _probe_next(self, now_s: float) -> None:
        """Probe the next one of the round who is not suspected by us already."""
        for _ in range(2 * len(self.table)):
            if not self._order:
                self._order = [k for k in range(len(self.table)) if k != self.me]
                self._random.shuffle(self._order)
            target = self._order.pop()
            if not self._asked(target) and self._probe(target, now_s):
                return

    def _watch(self, now_s: float) -> None:
        """In quiet times: probe those of our neighbours that were silent for long enough. Who was
        slow itself asks one of them although it hears of both: only an answer shows that it is not
        any more."""
        watched = self._watched()
        silent = [k for k in watched if self._silent_until_s(k) <= now_s]
        if not silent and watched and self._slow_until_s() <= now_s:
            silent = [self._random.choice(watched)]
            self._asked_s = now_s  # also when it is being asked already
        for k in silent:
            self._heard_s[k] = now_s
            self._probe(k, now_s)

    def _look_s(self) -> float:
        """Say, for quiet times, when `_watch` has somebody to probe, unless we hear of them before.
        Nobody may be there."""
        silent_s = min((self._silent_until_s(k) for k in self._watched()), default=math.inf)
        return min(silent_s, self._slow_until_s()) if silent_s < math.inf else silent_s

    def _slow_until_s(self) -> float:
        """Say when we have taken ourselves for slow for long enough to ask somebody."""
        return self._asked_s + self.settings.quiet_s if self.health.score else math.inf

    def _silent_until_s(self, member: int) -> float:
        pause_s = self.settings.quiet_s * self.health.factor
        return self._heard_s[member] + (pause_s if self.me < member else pause_s * _SECOND)

    def _watched(self) -> list[int]:
        """Return the members next to us on both sides, as far as they are here."""
        n = len(self.table)
        here = [k for k in ((self.me + step) % n for step in range(1, n)) if self.table[k].here]
        after = (self.settings.watchers + 1) // 2
        return list(dict.fromkeys(here[:after] + here[::-1][: self.settings.watchers - after]))

    def _probe(self, target: int, now_s: float) -> bool:
        """Probe a member; return whether there was a reason to."""
        if not self.table[target].here or any(probe.target == target for probe in self._probes.values()):
            return False
        self._asked_s = now_s
        timeout_s = self._round_trips[target].timeout_s(now_s) * max(self.health.factor, self._slowness(now_s))
        number = self._ping(target, now_s)
        self._probes[number] = Probe(target, number, now_s + timeout_s, timeout_s)
        return True

    def _end_probes(self, now_s: float) -> None:
        for number, probe in list(self._probes.items()):
            if number not in self._probes or number != probe.number or probe.due_s > now_s:
                continue
            if not probe.until_s:
                self._ask_others(probe, now_s)
            if probe.until_s <= now_s:
                self._accuse(probe, now_s)

    def _ask_others(self, probe: Probe, now_s: float) -> None:
        others = [k for k, e in enumerate(self.table) if e.status is Status.ALIVE and k not in (self.me, probe.target)]
        helpers = self._random.sample(others, min(len(others), self.settings.indirect))
        probe.asked, probe.helpers = len(helpers), set(helpers)
        probe.until_s = now_s if not helpers else now_s + 1.5 * probe.timeout_s
        for helper in helpers:
            number = self._next_number()
            self._probes[number] = probe
            target, timeout_s = probe.target, probe.timeout_s
            self._send(
                helper,
                lambda view, n=number, target=target, t=timeout_s: PingReq(n, target, t, view),  # type: ignore[misc]
            )

    def _accuse(self, probe: Probe, now_s: float) -> None:
        """Accuse a member of which nobody got an answer. Helpers that did not even say so, and are
        not suspect themselves, are a sign that it is our own fault. Counted once a probe and not
        once a helper: in a split that would slow down everybody."""
        self._drop_probes(probe.target)
        self._unanswered = True
        silent = any(self.table[k].status is Status.ALIVE for k in probe.helpers)
        self.health.note(silent if probe.asked else not probe.refused)
        entry = self.table[probe.target]
        if entry.here:
            self._unreached[probe.target] = entry.session, entry.incarnation
            self._set(probe.target, replace(entry, status=Status.SUSPECT), now_s)

    def _answered(self, sender: int, number: int, now_s: float) -> None:
        target, sent_s = self._pings.pop(number, (-1, 0.0))
        if target == sender:
            self._round_trips[sender].note(now_s - sent_s, now_s)
        probe = self._probes.get(number)
        if probe is not None:
            self._drop_probes(probe.target)
            self._reached()
        if target == sender:
            if sender in self._shared:
                self._shared[sender].outcome = Ack
            self._answer_requests(sender, Ack)

    def _reached(self) -> None:
        """Take in that somebody whom we probed is there, so we are not too slow to hear of it."""
        self._unanswered = False
        self.health.note(-1)

    def _not_reached(self, helper: int, number: int) -> None:
        probe = self._probes.get(number)
        if probe is not None and probe.number != number:
            probe.helpers.discard(helper)
            self._hurry(probe)

    def _hurry(self, probe: Probe) -> None:
        """End a probe whose direct ping was refused and whose every helper said no: there is
        nothing left to wait for."""
        if probe.refused and not probe.helpers:
            probe.until_s = probe.direct_until_s

    def _probe_for(self, target: int, asked: IndirectProbe, now_s: float) -> None:
        """Ask `target` for somebody, unless we have just done so: that answer, or the ping under
        way, does for this one too."""
        shared = self._shared.get(target)
        if shared is None or not 0 <= now_s - shared.sent_s < self.settings.share_s:
            shared = self._shared[target] = SharedProbe(self._ping(target, now_s), now_s)
        self._requests.setdefault(target, []).append(asked)
        if shared.outcome is not None:
            self._answer_requests(target, shared.outcome)

    def _answer_requests(self, target: int, kind: type[Ack | Nack], due_s: float | None = None) -> None:
        """Say so to those who asked about `target`; with a time only to those who waited until
        then."""
        requests = self._requests.pop(target, [])
        later = [] if due_s is None else [r for r in requests if r.until_s > due_s]
        if later:
            self._requests[target] = later
        for request in requests:
            if request not in later:
                self._send(request.requester, lambda view, r=request: kind(r.number, view))  # type: ignore[misc]

    def _drop_probes(self, target: int) -> None:
        for number in [n for n, probe in self._probes.items() if probe.target == target]:
            del self._probes[number]

    # -- time

    def _notice_stall(self, now_s: float) -> None:
        """Begin waiting times anew when we should have been called long ago: nobody had a chance to
        answer us."""
        late_s = now_s - self.wake_s
        if late_s >= 0:  # called because it was time
            if not self._lag.known(now_s):
                self._lag.note(0.0, now_s)  # one delay is no habit
            self._lag.note(min(late_s, self.settings.stall_s), now_s)
        if late_s < self.settings.stall_s:
            return
        for probe in {id(p): p for p in self._probes.values()}.values():
            probe.shift(late_s)
        for target, requests in self._requests.items():
            self._requests[target] = [replace(r, until_s=r.until_s + late_s) for r in requests]
        for k in self._suspected_s:
            self._suspected_s[k] += late_s
        self._prompted = {k: due_s + late_s for k, due_s in self._prompted.items()}
        self._pings = {n: (k, sent_s + late_s) for n, (k, sent_s) in self._pings.items()}
        self._heard_s = [min(now_s, heard_s + late_s) for heard_s in self._heard_s]
        self.health.note(1)
        self._next_probe_s = max(self._next_probe_s, now_s)
        self._next_retry_s = max(self._next_retry_s, now_s)
        self._spread_s = max(self._spread_s, now_s)
        self._out.append(Stalled(late_s))
