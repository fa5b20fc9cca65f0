"""Connections that are closed while others are opened, and what of troubles gets into the log."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

from edgegossip.mesh.base import MeshLimits, Moved, Verdict
from edgegossip.mesh.membership.agent import EventDelegate
from edgegossip.mesh.membership.client import Connections
from edgegossip.mesh.membership.protocol import Changed, MemberEntry, Refuted, Status
from edgegossip.untrusted import Refusal


class Channel:
    def unary_unary(self, _method: str) -> Any:
        async def call(request: bytes) -> bytes:
            return request

        return call

    async def close(self) -> None:
        await asyncio.sleep(0.01)  # others go on meanwhile


class ChannelFactory:
    async def check(self, *_who: object) -> None:
        pass

    def open(self, *_who: object) -> Channel:
        return Channel()


def test_members_are_called_while_an_idle_connection_is_closed() -> None:
    async def run() -> None:
        connections = Connections(MeshLimits(), None)
        connections._channels = ChannelFactory()  # type: ignore[assignment]
        for _ in range(2):
            await connections.call("a", "127.0.0.1:1", b"")
            connections._connections["a"].used_s -= 60
            names = [f"{k}" for k in range(8)]
            assert await asyncio.gather(*(connections.call(n, "127.0.0.1:1", n.encode()) for n in names)) == [
                n.encode() for n in names
            ]
            connections._connections = {"a": connections._connections["a"]}
        await asyncio.gather(connections.close(), connections.call("b", "127.0.0.1:1", b""))

    asyncio.run(run())


def delegate(now_s: list[float]) -> tuple[EventDelegate, list[str]]:
    log: list[str] = []
    return EventDelegate(
        ["pi-01", "pi-02"], 0, lambda event: None, lambda *said, **_: log.append(said[1]), lambda: now_s[0]
    ), log


def test_the_node_hears_who_is_here_moved_was_restarted_died_and_left() -> None:
    posted: list[object] = []
    told = EventDelegate(["pi-01", "pi-02"], 0, posted.append, lambda *_, **__: None, lambda: 0.0)
    here = MemberEntry(Status.ALIVE, 1, 7, "10.0.0.2:1")
    again, away = replace(here, session=8), replace(here, status=Status.DEAD)
    steps = [
        MemberEntry(),
        here,
        replace(here, address="10.0.0.2:2"),
        here,
        again,
        away,
        again,
        replace(here, status=Status.LEFT),
    ]
    for before, after in itertools.pairwise(steps):
        told.notify(Changed(1, before, after), [here, after])
    verdicts = [(v.here, v.restarted, v.left) for v in posted if isinstance(v, Verdict)]
    restarted, dead, left = (True, True, False), (False, False, False), (False, False, True)
    assert verdicts == [(True, False, False), restarted, dead, restarted, left]
    assert [m.address[-1] for m in posted if isinstance(m, Moved)] == ["1", "2", "1", "1"]


def test_who_was_gone_is_told_of_at_its_new_address_wherever_it_answered_before() -> None:
    posted: list[object] = []
    told = EventDelegate(["pi-01", "pi-02"], 0, posted.append, lambda *_, **__: None, lambda: 0.0)
    here = MemberEntry(Status.ALIVE, 1, 7, "10.0.0.2:1")
    dead, moved = replace(here, status=Status.DEAD), replace(here, address="10.0.0.2:2", session=8)
    told.notify(Changed(1, MemberEntry(), here), [here, here])
    told.answered(1, here.address)
    for before, after in itertools.pairwise((here, dead, moved)):
        told.notify(Changed(1, before, after), [here, after])
    assert [event.address for event in posted if isinstance(event, Moved)] == [here.address, moved.address]


def test_a_death_says_whether_we_found_it_out_ourselves() -> None:
    told, log = delegate([0.0])
    here = MemberEntry(Status.ALIVE, 1, 7, "10.0.0.2:1")
    dead = replace(here, status=Status.DEAD)
    for change in (Changed(1, here, dead), Changed(1, here, dead, asked=True), Changed(1, here, dead, revoked=True)):
        told.notify(change, [here, dead])
    assert [text.partition(": ")[2].partition(";")[0] for text in log] == [
        "others say so",
        "we got no answer",
        "its certificate was revoked",
    ]


def test_who_is_refused_again_and_again_hides_nobody_else() -> None:
    now_s = [0.0]
    told, log = delegate(now_s)
    for port in range(40_000, 40_200):
        told.refused(Refusal("pi-09", f"10.0.0.9:{port}", "it belongs to run ff, pi-01 to run aa"))
    told.refused(Refusal("evil", "10.0.0.66:1", "its certificate was revoked"))
    assert log == [
        "refused pi-09 at 10.0.0.9:40000: it belongs to run ff, pi-01 to run aa",
        "refused evil at 10.0.0.66:1: its certificate was revoked",
    ]
    now_s[0] = 61.0
    told.refused(Refusal("pi-09", "10.0.0.9:40200", "it belongs to run ff, pi-01 to run aa"))
    assert len(log) == 3  # once a minute, and not for ever silent


def test_a_stranger_with_many_reasons_does_not_fill_the_log() -> None:
    told, log = delegate([0.0])
    for k in range(1000):
        told.refused(Refusal("evil", "10.0.0.66:1", f"it looks for {k}, but this is pi-01"))
    told.refused(Refusal("", "[fe80::7]:1", "its certificate was revoked"))
    assert len(log) <= 17 and log[-1] == "refused [fe80::7]:1: its certificate was revoked"


def test_the_same_trouble_with_a_member_is_told_every_ten_minutes() -> None:
    now_s = [0.0]
    told, log = delegate(now_s)
    for now_s[0] in (0.0, 3.0, 500.0, 601.0):
        told.trouble(1, f"10.0.0.2:{7700 + now_s[0]:.0f}", "it refuses us")
    assert log == [
        "cannot ask pi-02 at 10.0.0.2:7700: it refuses us",
        "cannot ask pi-02 at 10.0.0.2:8301: it refuses us",
    ]


def test_a_member_cannot_fill_the_log_whatever_is_said_of_it() -> None:
    """By itself (it moves with every message) or by one that lies (it dies and comes back)."""
    now_s = [0.0]
    told, log = delegate(now_s)
    here = MemberEntry(Status.ALIVE, 1, 7, "10.0.0.2:1")
    told.notify(Changed(1, MemberEntry(), here), [here, here])
    for k in range(1000):
        now_s[0] += 0.05
        there = replace(here, address=f"10.0.0.2:{k + 2}")
        told.notify(Changed(1, here, there), [here, there])
        here = there
    assert len(log) <= 50  # 32, and one more in 4 s
    dead = replace(here, status=Status.DEAD)
    for before, after in [(here, dead), (dead, here)] * 500:
        now_s[0] += 0.05
        told.notify(Changed(1, before, after), [here, after])
        told.notify(Refuted(1, dead), [here, after])
    assert len(log) <= 70
    now_s[0] += 60.0
    told.notify(Changed(1, here, dead, asked=True), [here, dead])
    assert log[-1].startswith("pi-02 is dead: we got no answer")  # a true one is told all the same


def test_a_board_that_was_named_dead_says_who_told_it() -> None:
    told, log = delegate([0.0])
    told.notify(Refuted(1, MemberEntry(Status.DEAD, 3, 7, "10.0.0.2:1")), [MemberEntry(), MemberEntry()])
    assert log == ["pi-02 says that we had been named dead: we are here"]
