"""Keeps who is in a server run, and which questions its boards have not answered.

Pure: it asks nobody.

A board is known by its name; the transport reaches it by an address, a number, and a process that
takes the place of another has an address of its own. Whoever has not said its name yet is a
stranger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TypeAlias

import numpy as np

from edgegossip.agreement import Agreement, Fact, difference, outvoted
from edgegossip.gossip.state import Reliance
from edgegossip.types import NodeId, PeerError, Round, RunError, replace

Address: TypeAlias = int  # the number by which the transport reaches one process of a board

SILENT_S = 6.0  # four missed heartbeats
STOCK_GONE = "it left, or has given no sign of life"


@dataclass(frozen=True, slots=True)
class BoardPresence:
    """Shows a board as the transport sees it at one moment."""

    address: Address
    silent_s: float  # since its last heartbeat
    beats_fast: bool = True  # whether silence of SILENT_S means something; a stock SuperNode beats every 20 s or so


@dataclass(slots=True)
class KnownBoard:
    """Holds what is known of a board that has said its name."""

    name: NodeId
    address: Address
    hello: int  # number of the question that it joined with
    up: bool = True
    busy: int = 0  # the question that it has not answered yet
    overdue: int = 0  # answers in a row that were given up


@dataclass(frozen=True, slots=True)
class Change:
    """Says that a board went down (with the reason) or came back."""

    name: NodeId
    up: bool
    reason: str = ""


class Boards:
    """Keeps the boards of one run, and knows whether they are enough.

    `expected`: the only names that may join, in the order in which boards are listed. `least` of
    them must be there. A board that fell silent may come back within `return_s`; one whose process
    is known to have ended does not, only another process of its name."""

    def __init__(self, expected: Iterable[NodeId], least: int = 1, return_s: float = 0.0) -> None:
        self.expected = tuple(expected)
        self.least, self.return_s = least, return_s
        self._members: dict[NodeId, KnownBoard] = {}
        self._ignored: set[Address] = set()  # of strangers that were refused, and those that a board no longer uses
        self.lost: dict[NodeId, str] = {}  # boards that are down, and why
        self._ended: set[NodeId] = set()  # those of them whose process is known to have ended
        self._reliance: dict[NodeId, Reliance] = {}  # on boards that let a deadline pass
        self._short_since_s: float | None = None

    # Who is there

    def observe(self, seen: Iterable[BoardPresence]) -> tuple[list[Change], list[Address]]:
        """Compare with all that the transport sees: return who went down or came back, and
        strangers' addresses."""
        present = {board.address: board for board in seen}
        changes = []
        for member in self._members.values():
            board = present.pop(member.address, None)
            silent_s = board.silent_s if board is not None and board.beats_fast else 0.0
            if member.up and board is None:
                changes.append(self._down(member, STOCK_GONE))
            elif member.up and silent_s > SILENT_S:
                changes.append(self._down(member, f"no sign of life for {silent_s:.0f} s"))
            elif member.up or board is None or member.address in self._ignored:
                continue  # nothing is new; a process that is known to have ended may have beaten a moment before
            elif silent_s < SILENT_S / 2:
                member.up = True
                self._back(member.name)
                changes.append(Change(member.name, up=True))
        strangers = [a for a, board in present.items() if a not in self._ignored and board.silent_s < SILENT_S]
        return changes, strangers

    def admit(self, address: Address, name: NodeId, hello: int) -> Address | None:
        """Take in a stranger that has said its name in answer to this hello. Of two processes of
        one board that is up the one that was asked later is the board: return the address of the
        other, which may be this one, if any.

        Raises PeerError on a name that is not expected."""
        if name not in self.expected:
            self._ignored.add(address)
            raise PeerError(f"no board of this run is named {name!r}; the names are {', '.join(self.expected)}")
        before = self._members.get(name)
        if before is not None and before.up and hello < before.hello:
            self._ignored.add(address)  # it was on its way for long: its process may be gone
            return address
        self._members[name] = KnownBoard(name, address, hello)
        self._back(name)
        if before is None or before.address == address:
            return None
        self._ignored.add(before.address)
        return before.address

    def refuse(self, address: Address) -> None:
        """Have nothing more to do with this stranger."""
        self._ignored.add(address)

    def absent_from_start(self, name: NodeId, reason: str) -> None:
        """Go on without a board that has never been there; it may still come."""
        self.lost[name] = reason

    def ended(self, name: NodeId, reason: str) -> bool:
        """Take note that this board's process has ended; return whether the board was not down
        already."""
        member = self._members.get(name)
        is_news = member is None or member.up
        if member is not None and member.up:
            self._ignored.add(member.address)
            self._down(member, reason)
        self.lost[name] = reason
        self._ended.add(name)
        return is_news

    def _down(self, member: KnownBoard, reason: str) -> Change:
        member.up, member.busy = False, 0
        self.lost[member.name] = reason
        return Change(member.name, up=False, reason=reason)

    def _back(self, name: NodeId) -> None:
        self.lost.pop(name, None)
        self._ended.discard(name)

    def by_name(self, name: NodeId) -> KnownBoard | None:
        """Return the board of this name, if it has joined."""
        return self._members.get(name)

    def by_address(self, address: Address) -> KnownBoard | None:
        """Return the board at this address, if it has joined."""
        return next((m for m in self._members.values() if m.address == address), None)

    def up(self) -> list[KnownBoard]:
        """Return boards that are up, in the order of `expected`."""
        return [m for name in self.expected if (m := self._members.get(name)) is not None and m.up]

    def idle(self) -> list[KnownBoard]:
        """Return those up that have answered everything."""
        return [m for m in self.up() if not m.busy]

    def busy_names(self) -> str:
        """Return the names of boards that are up and owe an answer, for words."""
        return ", ".join(m.name for m in self.up() if m.busy)

    def not_joined(self) -> list[NodeId]:
        """Return who is expected, has never been there, and has not been given up."""
        return [name for name in self.expected if name not in self._members and name not in self.lost]

    # Who is in time

    def relied_on(self, names: Iterable[NodeId]) -> frozenset[NodeId]:
        """Return for whom of those that are asked a round waits: who let deadlines pass has to
        answer first, be it late. All where it would be nobody."""
        all_ = frozenset(names)
        return frozenset(n for n in all_ if n not in self._reliance or self._reliance[n].holds) or all_

    def missed(self, names: Iterable[NodeId]) -> None:
        """Take note that a deadline has passed while these were waited for."""
        for name in names:
            self._reliance[name] = self._reliance.get(name, Reliance()).miss()

    def answered(self, name: NodeId) -> None:
        """Take note of an answer, in time or late."""
        if (reliance := self._reliance.get(name)) is not None:
            self._reliance[name] = replace(reliance, sent=reliance.sent + 1)

    # Whether they are enough

    @property
    def absent(self) -> list[NodeId]:
        """Boards that are down and may come back."""
        return [name for name in self.lost if name not in self._ended]

    @property
    def short(self) -> bool:
        """Whether too few boards are there at this moment."""
        return len(self.up()) < self.least

    def check(self, now_s: float, joining: int = 0) -> float:
        """Return until when too few boards may still become enough; inf when they are enough.

        `joining`: boards that have not been there yet, and may come. Raises RunError when it is
        hopeless, or has been waited for long enough."""
        up = len(self.up())
        if up + joining >= self.least:
            self._short_since_s = None
            return math.inf
        self._short_since_s = now_s if self._short_since_s is None else self._short_since_s
        until_s = self._short_since_s + self.return_s
        if up + joining + len(self.absent) >= self.least and now_s < until_s:
            return until_s
        why = "; ".join(f"{name}: {reason}" for name, reason in self.lost.items())
        raise RunError(f"{up + joining} of the {self.least} boards that server.min_nodes asks for are left ({why})")


class Agreements:
    """Compares what the boards of one run claim, of what all must have alike. What most of those
    state that are there when the run begins counts (who is first may lie), and for those who come
    later what most have stated before; `coordinator` comes before all."""

    def __init__(self, coordinator: Agreement) -> None:
        self._firm = {"at the coordinator": coordinator}
        self._said: dict[str, Agreement] = {}  # on boards
        self._settled = False

    @property
    def common(self) -> Agreement:
        """What everybody has alike, as far as anybody stated it. Of sums, which are alike within
        bounds, the middle: no board can move it to where the others are not alike any more."""
        stated: dict[str, list[Fact]] = {}
        for said in self._said.values():
            for name, fact in said.facts.items():
                stated.setdefault(name, []).append(fact)
        common = {name: _middle(facts) for name, facts in stated.items()}
        for firm in reversed(self._firm.values()):
            common |= firm.facts
        return Agreement(common)

    def resume(self, common: Agreement) -> None:
        """Go on from what an earlier process had as `common`."""
        self._firm["in this run so far"] = common

    def take(self, board: NodeId, text: str) -> None:
        """Take in a board's facts, as JSON; "": nothing. What it stated before does not count.

        Raises PeerError for what is no agreement, and where it differs from what others stated."""
        if not text:
            return
        theirs, place = Agreement.from_json(text), f"on {board}"
        for where, firm in self._firm.items():
            if differs := difference(theirs, firm, place, where):
                raise PeerError(differs)
        others = {where: said for where, said in self._said.items() if where != place}
        if self._settled and (differs := outvoted(others | {place: theirs}).get(place, "")):
            raise PeerError(differs)
        self._said[place] = theirs

    def settle(self, boards: Iterable[NodeId]) -> dict[NodeId, str]:
        """Begin the run; return whom of `boards`, in the order of the run, it goes on without, and
        why."""
        said = {place: self._said[place] for name in boards if (place := f"on {name}") in self._said}
        found = outvoted(said)
        self._said = {place: facts for place, facts in said.items() if place not in found}
        self._settled = True
        return {place.removeprefix("on "): why for place, why in found.items()}


def _middle(stated: Sequence[Fact]) -> Fact:
    """Return what all state; of numbers, which may differ a little, the median of each."""
    return np.median(np.array(stated), axis=0).tolist() if isinstance(stated[0], list) else stated[0]


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """Holds a question that has not been answered."""

    number: int
    address: Address
    name: NodeId  # "" for a board that has not said its name
    what: str  # "hello", "bye", or what it is for
    at_s: float


class OpenQuestions:
    """Keeps questions under way, by number, and how long answers take.

    A board that answers is not busy any more."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._open: dict[int, OpenQuestion] = {}
        self._last = 0
        self._longest_s: dict[NodeId, float] = {}  # that an answer of each board took

    @property
    def typical_s(self) -> float:
        """How long the longest answer of the median board took; 0 before any came. One that takes
        its time on purpose makes nobody wait longer for it."""
        return median_low(self._longest_s.values()) if self._longest_s else 0.0

    def took(self, board: NodeId, seconds: float) -> None:
        """Take note of how long an answer took."""
        self._longest_s[board] = max(self._longest_s.get(board, 0.0), seconds)

    def send(self, address: Address, what: str, now_s: float) -> OpenQuestion:
        """Note a question to a board."""
        self._last += 1
        member = self._boards.by_address(address)
        sent = OpenQuestion(self._last, address, member.name if member else "", what, now_s)
        self._open[self._last] = sent
        if member is not None:
            member.busy = self._last
        return sent

    def get(self, number: int) -> OpenQuestion | None:
        """Return the question of this number, if somebody waits for its answer."""
        return self._open.get(number)

    def unanswered_hellos(self) -> dict[Address, list[float]]:
        """Return when strangers got a hello that they have not answered."""
        found: dict[Address, list[float]] = {}
        for sent in self._open.values():
            if sent.what == "hello":
                found.setdefault(sent.address, []).append(sent.at_s)
        return found

    def waited_for(self, numbers: Iterable[int]) -> list[NodeId]:
        """Return the boards that have not answered these, by name."""
        return sorted(self._open[i].name for i in numbers if i in self._open)

    def close(self, number: int) -> OpenQuestion | None:
        """Take a question off the list; None when nobody waits for it (any more)."""
        sent = self._open.pop(number, None)
        member = None if sent is None else self._boards.by_address(sent.address)
        if member is not None and member.busy == number:
            member.busy = 0
        return sent

    def drop(self, which: Callable[[OpenQuestion], bool]) -> list[OpenQuestion]:
        """Take all of these off the list, and return them."""
        dropped = [sent for sent in self._open.values() if which(sent)]
        for sent in dropped:
            del self._open[sent.number]
        return dropped


def wanted(fraction: float, min_nodes: int, boards: int) -> int:
    """Return how many of the run's `boards` a round asks where enough are idle: ceil(fraction *
    boards), at least min_nodes."""
    return max(math.ceil(fraction * boards - 1e-9), min_nodes)


def sample(idle: Sequence[int], count: int, seed: int, round: Round) -> list[int]:
    """Draw `count` of the idle boards, in their order; all when that is more than there are.

    The same seed and round choose the same of the same boards."""
    if count >= len(idle):
        return list(idle)
    chosen = np.random.default_rng((seed, round, 0x5A3)).choice(len(idle), count, replace=False)
    return [idle[k] for k in sorted(chosen)]
