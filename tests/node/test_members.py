"""Two words on every neighbour, the connection's and the members', make one sequence."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.agreement import Agreement
from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Moved, Notice, PeerDown, PeerUp, SendReceipt, Verdict
from edgegossip.mesh.membership.agent import EventDelegate
from edgegossip.mesh.membership.detector import Detector
from edgegossip.mesh.membership.protocol import Ping, Status, View
from edgegossip.node.members import HOLD_S, MemberTransport, NeighbourStatus
from tests.mesh.membership.world import World
from tests.mesh.support import QUICK, RUN

DEAD, HERE = Verdict("b", False, "a and c got no answer"), Verdict("b", True, "b is here")
LEFT = Verdict("b", False, "b left", left=True)
LATER = HOLD_S + 1.0
LOST = PeerDown("b", "connection refused")


def all_of(status: NeighbourStatus, *events: object) -> list:
    """A number is a time that has come."""
    now_s, out = 0.0, []
    for event in events:
        if isinstance(event, float):
            now_s = event
            out += status.tick(now_s)
        else:
            out += status.take(event, now_s)
    return out


def test_whichever_word_comes_first_counts_and_the_other_adds_nothing() -> None:
    died = PeerDown("b", DEAD.reason)
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), LOST, DEAD) == [PeerUp("b"), LOST]
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), DEAD, LATER, LOST) == [PeerUp("b"), died]
    assert all_of(NeighbourStatus({"b"}), DEAD, LOST) == [died]  # never reached, and not waited for


def test_who_is_busy_keeps_its_connection_and_is_not_down() -> None:
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), DEAD, HOLD_S - 1, HERE, LATER) == [PeerUp("b")]
    status = NeighbourStatus({"b"})
    all_of(status, PeerUp("b"), DEAD)
    assert status.due_s == HOLD_S


def test_a_neighbour_that_is_said_to_have_left_is_not_gone_while_its_connection_lives() -> None:
    left = Verdict("b", False, "b left", left=True)
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), left, HOLD_S - 1, HERE, LATER) == [PeerUp("b")]
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), left, LATER) == [PeerUp("b"), PeerDown("b", "b left", left=True)]
    goodbye = PeerDown("b", "b left", left=True)  # on its stream
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), left, goodbye) == [PeerUp("b"), goodbye]
    # Its connection bears it out.
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), left, LOST) == [PeerUp("b"), goodbye]


def test_a_neighbour_that_is_down_already_may_have_left() -> None:
    left = Verdict("b", False, "b left", left=True)
    gone = PeerDown("b", "b left", left=True)
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), LOST, left, left, DEAD) == [PeerUp("b"), LOST, gone]
    again = all_of(NeighbourStatus({"b"}), LOST, left, PeerUp("b"), LOST, left)
    assert again == [LOST, gone, PeerUp("b"), LOST, gone]


def test_a_neighbour_is_back_with_its_connection() -> None:
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), LOST, DEAD, HERE) == [PeerUp("b"), LOST]
    up = PeerUp("b")
    assert all_of(NeighbourStatus({"b"}), up, LOST, DEAD, HERE, up) == [up, LOST, up]
    # A fresh stream outdoes what was said.
    assert all_of(NeighbourStatus({"b"}), up, DEAD, LATER, up)[-1] == up


def test_a_neighbour_whose_connection_never_broke_is_back_when_it_objects() -> None:
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), DEAD, LATER, HERE)[-1] == PeerUp("b")


def test_whom_we_closed_stays_closed() -> None:
    closed = PeerDown("b", "sent nonsense", closed=True)
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), closed, HERE, PeerUp("b")) == [PeerUp("b"), closed]


@given(st.lists(st.sampled_from([PeerUp("b"), LOST, DEAD, LEFT, HERE])))
def test_ups_and_downs_take_turns(events: list) -> None:
    status = NeighbourStatus({"b"})
    out = all_of(status, *events)
    for a, b in itertools.pairwise(out):
        assert type(a) is not type(b) or (b.left and not a.left)  # who is down may be said to have left, once
    if events and isinstance(events[-1], PeerUp):
        assert isinstance(out[-1], PeerUp)
    if events and events[-1] is LOST:
        assert isinstance(out[-1], PeerDown)
    if events and events[-1] in (DEAD, LEFT):
        ended = [*out, *status.tick(LATER)]
        assert isinstance(ended[-1], PeerDown)


def test_one_that_disagrees_is_down_until_its_connection_is_there_whatever_members_say() -> None:
    unfit = PeerDown("b", "a and b do not fit together", disagrees=True)
    again = [unfit, HERE, DEAD, LEFT]
    assert all_of(NeighbourStatus({"b"}), *again) == [unfit]
    assert all_of(NeighbourStatus({"b"}), *again, PeerUp("b")) == [unfit, PeerUp("b")]
    assert all_of(NeighbourStatus({"b"}), PeerUp("b"), LEFT, unfit) == [PeerUp("b"), unfit]
    assert all_of(NeighbourStatus({"b"}), DEAD, unfit) == [PeerDown("b", DEAD.reason), unfit]


def started_again(world: World, status: Status) -> list[object]:
    """What the node of member 0 hears, which is started again and asks member 3 who is there."""
    world.kill(0)
    world.run(10.0)
    for k in (1, 2):
        world.nodes[3].table[k] = replace(world.nodes[3].table[k], status=status)
    world.start(0, seed_member=3)
    world.nodes.pop(3)  # it was taken over, and says no more
    heard: list[object] = []
    delegate = EventDelegate(["a", "b", "c", "d"], 0, heard.append, lambda *_, **__: None, lambda: world.clock.now)
    delegate.begin(world.nodes[0].table)
    done = len(world.outputs)
    world.run(8.0)
    for _, k, output in world.outputs[done:]:
        if k == 0:
            delegate.notify(output, world.nodes[0].table)
    return [event for event in heard if getattr(event, "peer", "") in ("b", "c")]


@pytest.mark.parametrize("status", [Status.LEFT, Status.DEAD])
def test_a_board_that_is_started_again_hears_of_nobody_that_it_left_who_answers(status: Status) -> None:
    heard = started_again(World(4, 1), status)
    assert {event.peer for event in heard if isinstance(event, Moved)} == {"b", "c"}
    assert {event.peer for event in heard if isinstance(event, Verdict) and event.here} == {"b", "c"}
    assert not [event for event in heard if isinstance(event, Verdict) and event.left]


def test_a_board_that_is_started_again_hears_of_those_that_left_once_they_did_not_answer() -> None:
    world = World(4, 1)
    for k in (1, 2):
        world.leave(k, 0.5)
    heard = started_again(world, Status.LEFT)
    assert [(event.here, event.left) for event in heard if isinstance(event, Verdict)] == [(False, True)] * 2


def test_who_is_named_dead_by_the_member_that_was_asked_has_not_left_because_it_says_so_next() -> None:
    world = World(4, 1)
    known = tuple((k, replace(e, status=Status.DEAD)) for k, e in enumerate(world.nodes[3].table) if k in (1, 2))
    node = Detector(4, 0, "10.0.0.9:1", 9, Random(1), 0.0, known=known)
    left = tuple((k, replace(e, status=Status.LEFT)) for k, e in known)
    node.receive(3, Ping(1, View(1, left)), 0.0)
    assert [node.table[k].status for k in (1, 2)] == [Status.SUSPECT] * 2
    while node.table[1].here or node.table[2].here:
        node.tick(node.wake_s)
    assert [node.table[k].status for k in (1, 2)] == [Status.LEFT] * 2 and node.wake_s < 8.0


class Members:
    """In place of an Agent: what is said to it of others."""

    service = SimpleNamespace(service=lambda details: None)

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    async def start(self, address: str, *, certain: bool) -> None:
        self.said.append(("start", address))

    async def stop(self) -> None:
        self.said.append(("stop", ""))

    def mark_alive(self, peer: str) -> None:
        self.said.append(("alive", peer))

    def suspect(self, peer: str) -> None:
        self.said.append(("suspect", peer))

    def note_heard(self, peer: str) -> None:
        self.said.append(("heard", peer))


def member(name: str, said: Members, neighbours: set[str]) -> MemberTransport:
    return MemberTransport(name, RUN, agent=said, neighbours=neighbours, limits=QUICK)  # type: ignore[arg-type]


def test_only_a_member_that_answered_is_there() -> None:
    said = Members()
    with member("a", said, {"b", "c"}) as a, GrpcTransport("b", bytes(16), limits=QUICK) as other:
        other.connect({"a": "127.0.0.1:1"})
        a.start(a.address)
        for peer, address, why in (("c", "127.0.0.1:1", "connection refused"), ("b", other.address, "belongs to run")):
            a.post(Moved(peer, address))
            event = a.incoming(30.0)
            assert isinstance(event, Notice) and event.text.startswith(f"cannot reach {peer}") and why in event.text
    assert said.said[1:-1] == [("alive", "b")]


def test_who_takes_in_a_frame_was_heard_by_the_members_when_it_did() -> None:
    agents = {"a": Members(), "b": Members()}
    with member("a", agents["a"], {"b"}) as a, member("b", agents["b"], {"a"}) as b:
        a.start(a.address)
        b.start(b.address)
        a.post(Moved("b", b.address))
        assert isinstance(a.incoming(30.0), PeerUp)
        a.send("b", [b"x"])
        assert isinstance(a.incoming(30.0), SendReceipt)
    assert agents["a"].said == [("start", a.address), ("alive", "b"), ("heard", "b"), ("stop", "")]


def test_a_member_that_disagrees_is_there_and_is_not_tried_again() -> None:
    agents = {"a": Members(), "b": Members()}
    with member("a", agents["a"], {"b"}) as a, member("b", agents["b"], {"a"}) as b:
        a.agree(Agreement({"target": "9 classes"}))
        b.agree(Agreement({"target": "8 classes"}))
        a.start(a.address)
        b.start(b.address)
        a.post(Moved("b", b.address))
        told = {}
        for name, transport in (("a", a), ("b", b)):  # b hears it though it does not know where a is
            event = transport.incoming(30.0)
            assert isinstance(event, PeerDown) and event.disagrees
            told[name] = event.reason
        assert told["a"] == told["b"]
        b.post(Moved("a", a.address))
        a.post(HERE)
        for transport in (a, b):
            transport.post(Notice(None, "the end"))
            assert transport.incoming(30.0) == Notice(None, "the end")
    for name, other in (("a", "b"), ("b", "a")):
        assert agents[name].said == [("start", {"a": a, "b": b}[name].address), ("alive", other), ("stop", "")]
