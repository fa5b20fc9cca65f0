"""When a board may start: with everybody there, or without those who are known to be gone."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from edgegossip.mesh.base import PeerDown, PeerUp, Received, TransportEvent, Verdict
from edgegossip.node import early, gossip_node, presence
from edgegossip.node.far import Far
from edgegossip.node.gossip_node import join
from edgegossip.node.spec import NodeSpec
from edgegossip.recipe import Recipe
from edgegossip.types import RunError
from tests.node.fakes import ListSink, MemoryTransport

SPEC = NodeSpec(Recipe(), "a", ("a", "b", "c", "d"), bytes(16))  # a ring: b and d are neighbours of a
GONE = PeerDown("d", "its process was killed", closed=True)


@pytest.mark.parametrize(
    ("events", "down"),
    [
        ([PeerUp("b"), PeerUp("d")], set()),
        ([PeerUp("b"), GONE], {"d"}),
        ([PeerUp("d"), PeerDown("d", "lost"), PeerUp("b")], {"d"}),
        ([PeerUp("d"), PeerDown("d", "lost"), PeerUp("d"), PeerUp("b")], set()),
        ([PeerUp("b"), PeerDown("d", "never reached"), Received("b", b"frame")], {"d"}),
    ],
)
def test_starts(events: list[TransportEvent], down: set[str]) -> None:
    transport, sink = MemoryTransport("a"), ListSink()
    for event in events:
        transport.events.put(event)
    joined = join(SPEC, transport, sink)
    assert joined.down == down and sink.names() == ["peer-down"] * len(down) + ["joined"]
    frames = [event for event in events if isinstance(event, Received)]
    assert [joined.replay().incoming(0.0) for _ in frames] == frames


def test_a_board_that_comes_again_when_all_have_left_says_so_and_ends() -> None:
    transport = MemoryTransport("a")
    for peer in "bd":
        transport.events.put(PeerDown(peer, f"{peer} left", left=True))
    with pytest.raises(RunError, match="the run is over"):
        join(replace(SPEC, restarted=True), transport, ListSink())


def test_a_board_that_comes_again_waits_while_others_than_its_neighbours_are_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its neighbours are being restarted by their owner, as it was; the run goes on at c."""
    monkeypatch.setattr(gossip_node, "ANNOUNCE_S", 0.05)
    transport, sink, far = MemoryTransport("a"), ListSink(), Far({"c": True})
    failed: list[BaseException] = []

    def run() -> None:
        try:
            join(replace(SPEC, restarted=True), transport, sink, far)
        except RunError as error:
            failed.append(error)

    for peer in "bd":
        transport.events.put(PeerDown(peer, f"{peer} left", left=True))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and "the run goes on (c)" in sink.events[-1][2]
    far.note(Verdict("c", False, "c left", left=True))
    thread.join(10)
    assert "the run is over" in str(failed[0])


def test_who_of_the_others_trains() -> None:
    far = Far({"c": True, "e": True, "f": False})
    assert far.training == {"c", "e"}
    far.note(Verdict("e", True, "e was restarted", restarted=True))  # it may be waiting for us
    far.note(Verdict("g", True, "g is here"))
    assert far.training == {"c"} and not far.nobody
    far.note(Verdict("c", False, "we got no answer"))
    assert not far.training
    far.note(Verdict("c", True, "c is back"))
    assert far.training == {"c"}
    for peer in "ceg":
        far.note(Verdict(peer, False, f"{peer} left", left=True))
    assert not far.training and not far.nobody  # f died: it may come back
    far.note(Verdict("f", False, "f left", left=True))
    assert far.nobody


@pytest.mark.parametrize("events", [[PeerUp("b")], [PeerUp("b"), PeerDown("d", "never reached")], []])
def test_waits_for_who_was_never_there(events: list[TransportEvent]) -> None:
    transport, sink = MemoryTransport("a"), ListSink()
    for event in events:
        transport.events.put(event)
    thread = threading.Thread(target=join, args=(SPEC, transport, sink), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    for peer in "bd":
        transport.events.put(PeerUp(peer))
    thread.join(10)
    assert not thread.is_alive()


def test_what_comes_before_training_begins_is_bounded_however_small_the_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "EARLY_BYTES", 20_000)
    transport = MemoryTransport("a")
    for event in (PeerUp("b"), *[Received("b", b"x")] * 500, Received("d", b"heard"), PeerUp("d")):
        transport.events.put(event)
    joined = join(SPEC, transport, ListSink())
    assert len(joined.early) == 9 + 1 and joined.down == frozenset()  # half of the room is d's


def test_a_neighbour_that_sends_is_not_down_whatever_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that joins takes over a table in which both of its neighbours are dead, by a mistake that is being put right."""
    stale = [PeerDown(peer, "pi-7 got no answer") for peer in "bd"]
    transport, sink = MemoryTransport("a"), ListSink()
    for event in (*stale, Received("b", b"frame"), PeerUp("b")):
        transport.events.put(event)
    joined = join(replace(SPEC, restarted=True), transport, sink)
    assert joined.down == {"d"}
    monkeypatch.setattr(presence, "RETURN_S", 0.05)
    monkeypatch.setattr(gossip_node, "ANNOUNCE_S", 0.1)
    for event in (*stale, Received("b", b"frame")):  # it cannot be reached: it is not waited for without end
        transport.events.put(event)
    assert join(replace(SPEC, restarted=True), transport, sink).down == {"b", "d"}


def test_a_board_that_comes_again_does_not_wait_for_the_dead() -> None:
    """The others finished while it was starting; only one that came back as it did is there."""
    transport = MemoryTransport("a")
    for event in (PeerDown("d", "we got no answer"), PeerUp("b")):
        transport.events.put(event)
    assert join(replace(SPEC, restarted=True), transport, ListSink()).down == {"d"}


def test_a_board_that_comes_again_and_finds_all_dead_waits_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "GONE_S", 0.6)
    monkeypatch.setattr(gossip_node, "ANNOUNCE_S", 0.1)
    transport, sink = MemoryTransport("a"), ListSink()
    thread = threading.Thread(target=join, args=(replace(SPEC, restarted=True), transport, sink), daemon=True)
    thread.start()
    transport.events.put(PeerDown("b", "we got no answer"))
    thread.join(0.8)
    assert thread.is_alive()  # d was never heard of: it may still come
    transport.events.put(PeerDown("d", "we got no answer"))
    thread.join(0.4)
    assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive() and sink.names()[-1] == "joined"


def test_a_late_board_whose_time_is_over_and_whom_nobody_reaches_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, now, waits = MemoryTransport("a"), [0.0], []

    def incoming(timeout_s: float | None) -> TransportEvent | None:
        if not waits:
            waits.append(0.0)
            return Received("b", b"frame of a round far on")
        assert timeout_s is not None
        waits.append(timeout_s)
        now[0] += timeout_s + 1e-3
        return PeerUp("b") if now[0] > 600 else None

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(gossip_node, "_round_of", lambda data: 100)
    monkeypatch.setattr(transport, "incoming", incoming)
    assert join(SPEC, transport, ListSink()).down == {"d"}
    assert len(waits) < 200  # one in ANNOUNCE_S


def test_who_is_missing_is_said_with_the_reason_and_what_becomes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seen = presence.Presence(frozenset("bd"), restarted=True)
    seen.note(PeerUp("d"))
    seen.note(PeerDown("b", "we got no answer; 2 of 3 members are here"))
    assert seen.who_is_missing() == "waiting 1/2: missing b (down: we got no answer; 2 of 3 members are here)"
    seen.note(PeerDown("d", "lost d at 10.0.0.4:7700: connection refused; out of reach for 5 s"))
    assert not seen.may_start(others_train=False, late=False)
    now[0] += 20
    text = seen.who_is_missing()
    assert "d (last seen 20 s ago: at 10.0.0.4:7700: connection refused; out of reach for 5 s)" in text
    assert text.endswith(
        "no neighbour is left: in 100 s this board goes on from its checkpoint, or ends if it has none"
    )
    now[0] += 100
    assert seen.may_start(others_train=False, late=False)
