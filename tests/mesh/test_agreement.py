"""What boards must have alike is compared at the join: who differs is refused by name, on both
sides, and is not tried again until another process of it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from edgegossip.agreement import MAX_BYTES, Agreement
from edgegossip.mesh import GrpcTransport
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received, SendFailed, TransportEvent
from edgegossip.types import UsageError
from tests.mesh.support import QUICK, RUN, wait_for
from tests.mesh.test_refusals import converse, hello, still_works

NINE, EIGHT = Agreement({"target": "9 classes"}), Agreement({"target": "8 classes"})


@pytest.fixture
def start() -> Iterator[object]:
    with ExitStack() as stack:

        def start(name: str, agreement: Agreement | None, listen: str = "127.0.0.1:0") -> GrpcTransport:
            transport = stack.enter_context(GrpcTransport(name, RUN, listen, limits=QUICK))
            if agreement is not None:
                transport.agree(agreement)
            return transport

        yield start


def drain(transport: GrpcTransport) -> list[TransportEvent]:
    return list(iter(lambda: transport.incoming(0.0), None))


def test_who_differs_is_refused_by_name_on_both_sides_and_the_others_go_on(start) -> None:
    boards = {"a": start("a", NINE), "b": start("b", NINE), "c": start("c", EIGHT)}
    addresses = {name: t.address for name, t in boards.items()}
    for name, transport in boards.items():
        transport.connect({peer: at for peer, at in addresses.items() if peer != name})
    for name, others in {"a": "c", "b": "c", "c": "ab"}.items():
        seen: list[TransportEvent] = []
        downs = {e.peer: e for _ in others if (e := wait_for(boards[name], PeerDown, seen=seen))}
        for other in others:
            down = downs[other]
            assert down.disagrees and not down.closed and not down.left
            assert f"{name} " in down.reason and f"{other} " in down.reason
            assert "9 classes on " in down.reason and "8 classes on c" in down.reason
            assert "set data.classes = 9 on every board" in down.reason
            assert PeerUp(other) not in seen
    still_works(boards["a"], boards["b"])
    frame_id = boards["a"].send("c", [b"for nobody"])
    assert wait_for(boards["a"], SendFailed).frame_id == frame_id


def test_who_was_given_up_is_tried_again_when_another_process_of_it_agrees(start) -> None:
    a, wrong = start("a", NINE), start("b", EIGHT)
    address = wrong.address
    a.connect({"b": address})
    wrong.connect({"a": a.address})
    assert wait_for(a, PeerDown).disagrees and wait_for(wrong, PeerDown).disagrees
    wrong.close()
    right = start("b", NINE, address)
    right.connect({"a": a.address})
    wait_for(a, PeerUp)
    wait_for(right, PeerUp)
    still_works(a, right)
    right.send("a", [b"and back"])
    assert bytes(wait_for(a, Received).data) == b"and back"


def test_one_that_comes_again_and_still_differs_leaves_a_line(start) -> None:
    a = start("a", NINE)
    a.connect({"b": "127.0.0.1:1"})
    for _ in range(2):
        [answer] = converse(a.address, hello(sender="b", receiver="a", agreement=EIGHT.to_json().encode()))
        assert answer.refusal.code == pb.REFUSAL_CODE_AGREEMENT
    assert wait_for(a, PeerDown).reason == answer.refusal.reason
    assert answer.refusal.reason in wait_for(a, Notice, lambda n: "refused b" in n.text).text


def test_one_that_agrees_before_its_address_is_known_is_tried(start) -> None:
    """Though an earlier process of it did not."""
    a, b = start("a", NINE), start("b", NINE)
    a.expect(["b"])
    a.connect({})
    converse(a.address, hello(sender="b", receiver="a", agreement=EIGHT.to_json().encode()))
    assert wait_for(a, PeerDown).disagrees
    b.connect({"a": a.address})
    wait_for(b, PeerUp)
    a.connect({"b": b.address})
    wait_for(a, PeerUp)


def test_one_whose_address_is_not_known_yet_is_given_up_all_the_same(start) -> None:
    a = start("a", NINE)
    a.expect(["b"])
    a.connect({})
    said = hello(sender="b", receiver="a", agreement=EIGHT.to_json().encode())
    converse(a.address, said)
    assert wait_for(a, PeerDown).disagrees
    a.connect({"b": "127.0.0.1:1"})  # where nobody is: a try would leave a line
    converse(a.address, said)
    events = drain(a)
    assert [e.text.split(":")[0] for e in events if isinstance(e, Notice)] == ["refused b at 127.0.0.1"]
    assert not any(isinstance(e, PeerDown) for e in events)


@pytest.mark.parametrize("mine", [NINE, None], ids=["we say it", "we say nothing"])
@pytest.mark.parametrize("theirs", [NINE, None], ids=["they say it", "they say nothing"])
def test_a_peer_of_an_earlier_version_says_nothing_and_fits(start, mine, theirs) -> None:
    a = start("a", mine)
    a.connect({"b": "127.0.0.1:1"})
    more = {} if theirs is None else {"agreement": theirs.to_json().encode()}
    goodbye = pb.ExchangeRequest(goodbye=pb.Goodbye()).SerializeToString()
    answers = converse(a.address, hello(sender="b", receiver="a", **more), goodbye)
    assert [m.WhichOneof("kind") for m in answers] == ["welcome"]


def test_without_a_word_on_it_hello_is_what_it_was() -> None:
    said = pb.ExchangeRequest.FromString(hello())
    assert not said.hello.agreement and b"\x32" not in hello()  # tag of field 6
    newer = hello(agreement=NINE.to_json().encode()) + b""
    known = pb.ExchangeRequest.FromString(newer).hello
    assert Agreement.from_json(known.agreement) == NINE


@pytest.mark.parametrize(
    "said",
    [b"\xff\xfe", b'{"task":' + b"[" * 2000 + b"]" * 2000 + b"}", json.dumps({"task": "x" * MAX_BYTES}).encode()],
    ids=["no text", "nested", "long"],
)
@pytest.mark.parametrize("mine", [NINE, None], ids=["we say it", "we say nothing"])
def test_what_is_no_agreement_is_malformed(start, mine, said) -> None:
    b = start("b", mine)
    b.connect({"a": "127.0.0.1:1"})
    [answer] = converse(b.address, hello(agreement=said))
    assert answer.refusal.code == pb.REFUSAL_CODE_MALFORMED and "agreement" in answer.refusal.reason
    assert not any(isinstance(e, PeerDown) for e in drain(b))


def test_what_is_agreed_is_said_before_anybody_is_called(start) -> None:
    a = start("a", None)
    with pytest.raises(UsageError, match="at most 4096"):
        a.agree(Agreement(dict.fromkeys(("task", "input", "target"), "é" * 400)))
    a.connect({})
    with pytest.raises(UsageError, match="before it connects"):
        a.agree(NINE)
