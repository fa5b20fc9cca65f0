"""Who is in a run: boards by name, what Flower calls them, and whether they are alive. Pure: it is told everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgegossip.flower._private import NodeSeen
from edgegossip.types import NodeId, PeerError

SILENT_S = 6.0  # four missed signs of life
STOCK_GONE = "it left, or has given no sign of life"


@dataclass(slots=True)
class Member:
    """A board that has said its name."""

    name: NodeId
    node_id: int
    up: bool = True
    busy: str = ""  # id of the message that it has not answered yet
    overdue: int = 0  # answers in a row that were given up


@dataclass(frozen=True, slots=True)
class Change:
    """A board that went down (with the reason) or came back."""

    name: NodeId
    up: bool
    reason: str = ""


class Roster:
    """Not thread-safe. `expected`: the only names that may join, in the order in which boards are listed."""

    def __init__(self, expected: Iterable[NodeId], silent_s: float = SILENT_S) -> None:
        self.expected = tuple(expected)
        self._silent_s = silent_s
        self._members: dict[NodeId, Member] = {}
        self._ignored: set[int] = set()  # boards that were refused, and ids that a board no longer uses

    def admit(self, node_id: int, name: NodeId) -> int | None:
        """A board said its name. The id of a board of that name before it, if any: it has been replaced.

        Raises PeerError on a name that is not expected."""
        if name not in self.expected:
            self._ignored.add(node_id)
            raise PeerError(f"no board of this run is named {name!r}; the names are {', '.join(self.expected)}")
        before = self._members.get(name)
        self._members[name] = Member(name, node_id)
        if before is None or before.node_id == node_id:
            return None
        self._ignored.add(before.node_id)
        return before.node_id

    def refuse(self, node_id: int) -> None:
        """Have nothing to do with a board that has no name yet."""
        self._ignored.add(node_id)

    def observe(self, seen: Iterable[NodeSeen]) -> tuple[list[Change], list[int]]:
        """What the SuperLink sees: boards that went down or came back, and ids that have not been greeted yet."""
        nodes = {n.node_id: n for n in seen}
        changes = []
        for member in self._members.values():
            node = nodes.pop(member.node_id, None)
            silent_s = node.silent_s if node is not None and node.beats_fast else 0.0
            if member.up and node is None:
                changes.append(self._down(member, STOCK_GONE))
            elif member.up and silent_s > self._silent_s:
                changes.append(self._down(member, f"no sign of life for {silent_s:.0f} s"))
            elif not member.up and self._beats_again(member, node, silent_s):
                member.up = True
                changes.append(Change(member.name, up=True))
        strangers = [i for i, n in nodes.items() if i not in self._ignored and n.silent_s < self._silent_s]
        return changes, strangers

    def _beats_again(self, member: Member, node: NodeSeen | None, silent_s: float) -> bool:
        """A board whose process is known to have ended may have beaten a moment before."""
        return node is not None and silent_s < self._silent_s / 2 and member.node_id not in self._ignored

    def lose(self, name: NodeId, reason: str) -> Change | None:
        """Somebody knows that this board's process has ended: only a new one of its name can bring it back. None when that
        was known already."""
        member = self._members.get(name)
        if member is None or not member.up:
            return None
        self._ignored.add(member.node_id)
        return self._down(member, reason)

    def _down(self, member: Member, reason: str) -> Change:
        member.up, member.busy = False, ""
        return Change(member.name, up=False, reason=reason)

    def by_name(self, name: NodeId) -> Member | None:
        return self._members.get(name)

    def by_id(self, node_id: int) -> Member | None:
        return next((m for m in self._members.values() if m.node_id == node_id), None)

    def up(self) -> list[Member]:
        """In the order of `expected`."""
        return [m for name in self.expected if (m := self._members.get(name)) is not None and m.up]

    def idle(self) -> list[Member]:
        """Those up that have answered everything."""
        return [m for m in self.up() if not m.busy]

    def missing(self) -> list[NodeId]:
        """Expected, and never seen."""
        return [name for name in self.expected if name not in self._members]
