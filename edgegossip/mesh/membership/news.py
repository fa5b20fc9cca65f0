"""What the detector finds out, as sentences for the log and events for the node.

The log hears of it at once, on the transport's loop: the node may be busy with a round, and a death
is to be told within seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edgegossip.mesh.address import without_port
from edgegossip.mesh.base import Moved, TransportEvent, Verdict
from edgegossip.mesh.membership.messages import Changed, Output, PartitionHealed, Refuted, Rival, Stalled
from edgegossip.mesh.membership.table import Entry, Status, bits
from edgegossip.security.limits import RateLimitedLog, TokenBuckets
from edgegossip.types import NodeId
from edgegossip.untrusted import Refusal, printable

_TROUBLE_S = 600.0  # between two lines about the same trouble with a member
_TELL_STALL_S = 5.0
# Lines about one member, whatever it does or others say of it. One that really comes and goes takes
# longer over it.
_COMES_S, _COMES_BURST = 4.0, 32.0
_MOVES_S, _MOVES_BURST = 60.0, 8.0


class Log(Protocol):
    """Where sentences go. Thread-safe."""

    def __call__(self, kind: str, text: str, peer: NodeId | None = None, **fields: str) -> None:
        """`kind`: member-here, member-dead, member-left, refused or notice; `fields`: see
        Refusal."""


class News:
    """`post` takes Verdict and Moved."""

    def __init__(
        self,
        members: Sequence[NodeId],
        me: int,
        post: Callable[[TransportEvent], None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members, self._me, self._post, self._log = members, me, post, log
        self._clock = clock
        self._refusals, self._troubles, self._words = RateLimitedLog(), RateLimitedLog(_TROUBLE_S), RateLimitedLog()
        self._comings, self._moves = TokenBuckets(1 / _COMES_S, _COMES_BURST), TokenBuckets(1 / _MOVES_S, _MOVES_BURST)
        self._split = False  # was said

    def begin(self, table: Sequence[Entry]) -> None:
        """What was known before we took part."""
        for k, entry in enumerate(table):
            if k != self._me and entry.status is not Status.ABSENT:
                self._changed(Changed(k, Entry(), entry), table)

    def trouble(self, member: int, address: str, why: str) -> None:
        """A member cannot be asked. The same is told every ten minutes."""
        if self._troubles.worth((member, why), self._clock(), member):
            where = address or "an unknown address"
            self._log("notice", f"cannot ask {self._members[member]} at {where}: {printable(why)}")

    def found(self, member: int, address: str) -> None:
        """A member does not answer where it says that it is, but here."""
        peer = self._members[member]
        if self._words.worth(("found", member), self._clock(), member):
            self._log("notice", f"{peer} is reached at {address}, where we joined through it", peer)
        self._post(Moved(peer, address))

    def refused(self, refusal: Refusal) -> None:
        """Somebody was refused. The same is told at most once a minute."""
        source = without_port(refusal.caller)
        if self._refusals.worth((source, refusal.why), self._clock(), source):
            self._log("refused", str(refusal), **refusal.fields)

    def tell(self, output: Output, table: Sequence[Entry]) -> None:
        match output:
            case Changed():
                self._changed(output, table)
            case PartitionHealed(member) if self._words.worth(("healed", member), self._clock(), member):
                peer = self._members[member]
                text = f"the run had been split: {peer} had named us dead, and we it; it is reached again"
                self._log("notice", text, peer)
            case Refuted(by, was) if was.status is Status.DEAD:
                if self._words.worth(("refuted", by), self._clock(), by):
                    self._log("notice", self._what_was_said_of_us(by, was))
            case Stalled(seconds) if seconds >= _TELL_STALL_S:
                text = f"this board did not run for {seconds:.0f} s: nobody is blamed for keeping silent meanwhile"
                self._log("notice", text)
            case Rival(address):
                own = self._members[self._me]
                self._log("notice", f"another process takes part as {own}, at {address}: give each board its own name")

    def _changed(self, change: Changed, table: Sequence[Entry]) -> None:
        peer, before, after = self._members[change.member], change.before, change.after
        if after.here and after.address and (after.address != before.address or not before.here):
            self._post(Moved(peer, after.address))
        if after.here and not before.here:
            known = "here" if before.status is Status.ABSENT else "back"
            self._say(change.member, "here", f"{peer} is {known}, at {after.address or 'an unknown address'}")
            again = before.status is not Status.ABSENT and before.session != after.session
            self._post(Verdict(peer, True, f"{peer} is {known}", restarted=again))
        elif after.here and (before.session, before.address) != (after.session, after.address):
            what = "was restarted" if before.session != after.session else "has moved"
            self._say(change.member, "here", f"{peer} {what}, at {after.address}", self._moves)
            if before.session != after.session:
                self._post(Verdict(peer, True, f"{peer} {what}", restarted=True))
        elif after.status is Status.DEAD and before.status not in (Status.DEAD, Status.LEFT):
            here = sum(entry.here for entry in table)
            why = f"{self._names(after.accusers)} got no answer" if after.accusers else "its certificate was revoked"
            reason = f"{why}; {here} of {len(table)} members are here"
            self._say(change.member, "dead", f"{peer} is dead: {reason}")
            self._post(Verdict(peer, False, reason))
        elif after.status is Status.LEFT and before.status is not Status.LEFT:
            self._say(change.member, "left", f"{peer} left")
            self._post(Verdict(peer, False, f"{peer} left", left=True))
        self._look_for_split(table)

    def _say(self, member: int, kind: str, text: str, limit: TokenBuckets | None = None) -> None:
        """A line about a member, unless there were too many. That the rest is left out is told once
        in ten minutes."""
        peer, now_s = self._members[member], self._clock()
        if (limit or self._comings).take(member, now_s):
            self._log(f"member-{kind}", text, peer)
        elif self._troubles.worth(("too much", member), now_s, member):
            what = "moves or is restarted" if limit else "comes and goes"
            self._log("notice", f"{peer} {what}, by its own or others' word, too often: not every time is told", peer)

    def _what_was_said_of_us(self, by: int, was: Entry) -> str:
        if not was.accusers:
            return f"{self._members[by]} says that our certificate was revoked"
        who = self._names(was.accusers)
        return f"{self._members[by]} says that we had been named dead ({who} got no answer from us): we are back"

    def _look_for_split(self, table: Sequence[Entry]) -> None:
        dead = [name for name, entry in zip(self._members, table, strict=True) if entry.status is Status.DEAD]
        split = len(dead) >= 2 and 3 * len(dead) >= len(table)
        if split and not self._split:
            text = f"the run may be split: {', '.join(dead)} are out of reach at once; they are tried on and on"
            self._log("notice", text)
        self._split = split or (self._split and bool(dead))

    def _names(self, mask: int) -> str:
        names = ["we" if k == self._me else self._members[k] for k in bits(mask)]
        names.sort(key=lambda name: name != "we")
        if len(names) > 4:
            names = [*names[:3], f"{len(names) - 3} others"]
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1] if names else "somebody"]))
