"""Boards of two versions in one run: what makes a process one of another version, and the rule
`version`. Who speaks another version is refused by name, with both versions, and is not taken in;
nobody else is said to."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from edgegossip.agreement import Agreement
from edgegossip.mesh import inbound, transport, wire
from edgegossip.mesh.membership import wire as membership
from edgegossip.types import NodeId
from lab.sim.faults import OTHER_VERSION

RIGHT, MEMBERSHIP, MESH, CODEC = range(4)  # what a process has otherwise
OURS = {MEMBERSHIP: membership.PROTOCOL_VERSION, MESH: wire.PROTOCOL_VERSION, CODEC: 1}  # another is one more
WHERE = {MEMBERSHIP: (membership,), MESH: (inbound, transport)}  # who goes by PROTOCOL_VERSION there
PROTOCOLS = {MEMBERSHIP: "membership", MESH: "mesh"}
LATELY_S = 15.0  # for which a word about a version that is gone may be on its way
SAYS_S = 6.0  # until it is said, where nothing else hits the two: both try the other every second


def constants_of(other: int) -> dict[tuple[ModuleType, str], int]:
    """Return what the program of such a process has otherwise."""
    return {(module, "PROTOCOL_VERSION"): _version(other, other) for module in WHERE.get(other, ())}


def agreement_of(other: int) -> Agreement:
    """Return what such a process says in its Hello of a codec that is another package's."""
    return Agreement({"plugins": f"codec-x {_version(other, CODEC)}"})


def _version(other: int, of: int) -> int:
    return OURS[of] + (other == of)


def _words(here: NodeId, a: int, there: NodeId, b: int) -> Iterator[tuple[str, ...]]:
    """Yield what one of two may say of the other, by what their processes have otherwise: words
    that are all in its sentence."""
    for what, protocol in PROTOCOLS.items():
        mine, theirs = _version(a, what), _version(b, what)
        if mine != theirs:
            yield there, f"it speaks {protocol} protocol {theirs}, {here} speaks {mine}"
            yield there, f"it speaks {protocol} protocol {mine}, {there} speaks {theirs}"
    if _version(a, CODEC) != _version(b, CODEC):
        ours, other = (f"codec-x {_version(each, CODEC)} on {name}" for each, name in ((a, here), (b, there)))
        yield "what other packages add", f"{ours} and {other}"
        yield "what other packages add", f"{other} and {ours}"


class VersionRule:
    """Hears what boards say of versions, and looks whether they do."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._spoke: list[dict[int, float]] = [{} for _ in world.members]  # by board: what, and until when
        self._told: set[tuple[int, int]] = set()  # (who, of whom)
        self._faults = [f for f in world.schedule.faults if f.kind == OTHER_VERSION.name]

    def booted(self, board: Any) -> None:
        """A process comes, with the version that its board has now."""
        spoke, now = self._spoke[board.index], self._world.clock.now
        spoke.update({what: min(until_s, now) for what, until_s in spoke.items()})
        spoke[board.other] = float("inf")

    def true(self, i: int, text: str) -> set[int]:
        """Return of whom a board says rightly that they are of two versions."""
        names, now = self._world.members, self._world.clock.now
        lately = [[what for what, until_s in spoke.items() if until_s > now - LATELY_S] for spoke in self._spoke]
        return {
            j
            for j in range(len(names))
            for a in lately[i]
            for b in lately[j]
            if j != i and any(all(word in text for word in words) for words in _words(names[i], a, names[j], b))
        }

    def said(self, board: Any, name: str, text: str) -> None:
        """A board has said something."""
        i, world = board.index, self._world
        if "speaks" in text or "what other packages add" in text:
            world.looked.add("version")
            true = self.true(i, text)
            self._told |= {(i, j) for j in true}
            if not true:
                world.violate("version", i, f"no two processes are of these versions: {text}")

    def taken_in(self, i: int, j: int, what: tuple[int, ...], since_s: float) -> None:
        """One of two has let the other in; both are what they are since then. They must have these
        alike."""
        world = self._world
        mine, theirs = world.nodes[i].other, world.nodes[j].other
        if {mine, theirs} & set(what):
            world.looked.add("version")
            if mine != theirs and world.clock.now - since_s > SAYS_S:
                world.violate("version", i, f"takes in {world.members[j]}, which is of another version")

    def look(self) -> None:
        """Who meets another version has said so."""
        world, now = self._world, self._world.clock.now
        for fault in self._faults:
            other = world.nodes[fault.nodes[0]]
            if not fault.start < now < fault.end or not other.up or other.paused:
                continue
            for i in self._meet(other):
                board = world.nodes[i]
                least_s = min(now - world.booted_s[other.index], now - world.began_s[i])
                if not board.begun or board.paused or min(least_s, world.unhurt_s(i, other.index, [fault])) < SAYS_S:
                    continue
                world.looked.add("version")
                if (i, other.index) not in self._told:
                    world.violate("version", i, f"has not said that {other.name} is of another version")

    def _meet(self, other: Any) -> list[int]:
        """Return who hears what a process speaks: all whom it asks to join; or neighbours."""
        if other.other == MEMBERSHIP:
            return [i for i in range(len(self._world.members)) if i != other.index] if other.index else []
        known = () if other.node is None else other.node.engine.config.neighbours
        return sorted(map(self._world.members.index, known))
