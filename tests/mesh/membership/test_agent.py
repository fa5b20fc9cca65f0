"""Members on real connections: certificates that are revoked, and addresses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgegossip.fleet.revocation import tell
from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Moved, TransportEvent
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.membership.agent import Agent
from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.protocol import (
    Ack,
    MemberEntry,
    Nack,
    Output,
    Ping,
    PingReq,
    Rows,
    Status,
    SwimSettings,
    View,
)
from edgegossip.types import PeerError
from tests.mesh.fleet import TestFleet
from tests.mesh.security.support import LIMITS
from tests.mesh.support import PATIENCE_S, RUN, until

MANIFEST = manifests.make(RUN, "a", ("a", "b", "c"), "", "")


# Members look at each other, and try those that are gone, five times as often as on boards; a
# suspect has as long as there.
QUICK = SwimSettings(interval_s=0.4, quiet_s=0.6, retry_s=0.6)


class Member:
    """One of three, without streams."""

    def __init__(
        self, name: str, fleet: TestFleet | None = None, known: Rows = (), manifest: manifests.Manifest = MANIFEST
    ) -> None:
        self.said: list[str] = []
        self.posted: list[TransportEvent] = []
        security = fleet.security(name) if fleet else None
        self.agent = Agent(
            manifest,
            name,
            self.posted.append,
            lambda kind, text, peer=None, **_: self.said.append(text),
            known=known,
            security=security,
            settings=QUICK,
        )
        self.transport = GrpcTransport(name, RUN, limits=LIMITS, security=security, services=[self.agent.service])

    def start(self) -> None:
        self.transport.submit(self.agent.start(self.transport.address)).result(PATIENCE_S)

    def status(self, of: str) -> Status:
        assert self.agent.detector is not None
        return self.agent.detector.table["abc".index(of)].status

    def rows(self) -> Rows:
        assert self.agent.detector is not None
        return tuple(enumerate(self.agent.detector.table))

    def close(self) -> None:
        self.transport.submit(self.agent.stop()).result(PATIENCE_S)
        self.transport.close()


@contextmanager
def three(fleet: TestFleet | None = None) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        members: list[Member] = []
        for name in "abc":
            member = Member(name, fleet, members[0].rows()[:1] if members else ())
            stack.callback(member.close)
            member.start()
            members.append(member)
        until(lambda: all(m.status(k) is Status.ALIVE for m in members for k in "abc"), "everybody knows everybody")
        yield members


@pytest.fixture
def fleet(tmp_path: Path) -> TestFleet:
    return TestFleet.make(tmp_path)


def test_a_revoked_member_is_cut_off_although_it_runs_on(fleet: TestFleet) -> None:
    with three(fleet) as (a, b, c):
        until(lambda: all("c" in m.agent._connections._connections for m in (a, b)), "both have a connection to it")
        new = fleet.fleet.revoke("c")
        for member in (a, b):
            tell(new, member.transport.address)
        until(lambda: a.status("c") is b.status("c") is Status.DEAD, "it is named")
        for member in (a, b):
            assert "c is dead: its certificate was revoked; 2 of 3 members are here" in member.said
            line = member.agent._connections._connections["c"]
            until(lambda line=line: line.channel is None, "its connection is closed")
        said = len(a.said), len(b.said)
        tried: Counter[str] = Counter()

        def counted(member: Member) -> None:
            ask = member.agent._ask

            async def ask_and_count(to: int, message: Any) -> None:
                await ask(to, message)
                tried[member.agent.name + "abc"[to]] += 1

            member.agent._ask = ask_and_count  # type: ignore[method-assign]

        for member in (a, b, c):
            counted(member)
        until(lambda: tried["ac"] and tried["bc"] and tried["ca"] + tried["cb"], "we try it again, and it probes us")
        assert a.status("c") is b.status("c") is Status.DEAD
        assert not any("c is" in text for text in a.said[said[0] :] + b.said[said[1] :])


def test_a_member_that_names_an_address_of_no_use_is_reached_where_it_answered() -> None:
    a, b = Member("a"), Member("b")
    with ExitStack() as stack:
        stack.callback(a.close)
        stack.callback(b.close)
        a.transport.submit(a.agent.start(b.transport.address)).result(PATIENCE_S)  # b would call itself
        b.agent.known, b.agent._seeds = a.rows()[:1], {0: a.transport.address}
        b.start()
        until(lambda: a.status("b") is Status.ALIVE, "it is asked where it answered")
        reached = f"a is reached at {a.transport.address}, and not at {b.transport.address}"
        until(lambda: reached in b.said, "it is said where it is reached")

        async def ask() -> None:
            b.agent.suspect("a")

        moved = Moved("a", a.transport.address)
        until(lambda: not b.agent._tasks, "all that it was asked is answered")
        times = b.posted.count(moved)
        b.transport.submit(ask()).result(PATIENCE_S)
        until(lambda: not b.agent._tasks, "it is asked again")
        assert b.posted.count(moved) == times > 0, "there, and nowhere else first"


def test_what_others_say_of_its_address_moves_nobody_who_answers() -> None:
    nowhere, tried, ask_at = "127.0.0.1:1", list[str](), Agent._ask_at

    async def ask_and_note(agent: Agent, to: int, address: str, message: Ping | PingReq) -> Ack | Nack:
        tried.append(address)
        return await ask_at(agent, to, address, message)

    with three() as (a, b, _):
        until(lambda: 0 in b.agent.events.places, "b has asked a")
        b.agent._ask_at = partial(ask_and_note, b.agent)  # type: ignore[method-assign]

        async def lie() -> None:
            def told(detector: Detector, now_s: float) -> list[Output]:
                entry = detector.table[0]
                moved = replace(entry, incarnation=entry.incarnation + 1, address=nowhere)
                return detector.receive(2, Ping(10**6, View(1, ((0, moved),))), now_s)

            b.agent.act(told)
            assert b.rows()[0][1].address == nowhere
            b.agent.suspect("a")

        b.transport.submit(lie()).result(PATIENCE_S)
        until(lambda: b.rows()[0][1].address == a.transport.address, "a hears of it, and says where it is")
        assert Moved("a", nowhere) not in b.posted and not any("a is dead" in text for text in b.said)
        assert a.transport.address in tried and nowhere not in tried


def test_who_really_moved_is_asked_where_it_says_that_it_is_now() -> None:
    with three() as (a, b, _):
        until(lambda: 0 in b.agent.events.places, "b has asked a")
        b.agent.events.places[0] = "127.0.0.1:1"  # where it was, and is no more

        async def ask() -> None:
            b.agent.suspect("a")

        b.transport.submit(ask()).result(PATIENCE_S)
        until(lambda: b.agent.events.places[0] == a.transport.address, "it answers there")
        assert b.status("a") is Status.ALIVE


def test_the_run_outlives_the_certificate_of_its_founder(fleet: TestFleet) -> None:
    signed = MANIFEST.signed_by(fleet.security("a").identity)
    b = Member("b", fleet, manifest=signed)
    try:
        b.start()
        tell(fleet.fleet.revoke("a"), b.transport.address)
        joiner = fleet.security("c").identity
        with pytest.raises(PeerError, match="signature of a, whose certificate was revoked"):
            signed.verify(joiner)
        until(lambda: b.agent.manifest.signature != signed.signature, "b signs in its place")
        assert b.agent.manifest.verify(joiner) == "b" and b.agent.manifest.hash == signed.hash
        assert b.agent.manifest.content == signed.content
    finally:
        b.close()


def test_messages_that_keep_coming_do_not_hold_the_detector_back() -> None:
    """A loop that is never idle, as on a small board with many members: the detector is called all
    the same."""
    a = Member("a")

    async def flood(seconds: float) -> int:
        """500 messages a second, by the loop's own clock, which goes on with them alone."""
        detector, called, loop = a.agent.detector, 0, asyncio.get_running_loop()
        assert detector is not None
        tick = detector.tick

        def counted(now_s: float) -> list[Output]:
            nonlocal called
            called += 1
            return tick(now_s)

        detector.tick = counted  # type: ignore[method-assign]
        now_s = loop.time()
        loop.time = lambda: now_s  # type: ignore[method-assign]
        detector.suspect(1, now_s)
        for number in range(round(500 * seconds)):
            a.agent.act(lambda d, now_s, n=number: d.receive(2, Ping(n, View(d.digest)), now_s))  # type: ignore[misc]
            now_s += 0.002
            await asyncio.sleep(0)
        ahead_s = now_s - time.monotonic()
        loop.time = lambda: time.monotonic() + ahead_s  # type: ignore[method-assign]
        return called

    try:
        known = tuple((k, MemberEntry(Status.ALIVE, 1, k, "127.0.0.1:9")) for k in (1, 2))
        a.agent.known = known
        a.start()
        assert a.transport.submit(flood(2 * QUICK.retry_s)).result(PATIENCE_S) > 3
    finally:
        a.close()
