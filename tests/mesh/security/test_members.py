"""The membership service behind the front end: who says what no member says is kept out, and named
in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh import address as addresses
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.base import CallerGone, Notice
from edgegossip.mesh.membership import client, wire
from edgegossip.mesh.membership.agent import Agent
from edgegossip.mesh.membership.manifest import make
from edgegossip.mesh.membership.protocol import MemberEntry, Ping, Status, View
from tests.mesh.fleet import TestFleet
from tests.mesh.security.support import LIMITS, admission_handshake, channel_to_b, hello, in_quarantine, left
from tests.mesh.support import PATIENCE_S, RUN, wait_for

PROBE, JOIN = "/edgegossip.v1.Membership/Probe", "/edgegossip.v1.Membership/Join"
MANIFEST = make(RUN, "b", ("a", "b", "c"), "0" * 64, "")


class Board:
    """Member b, its transport, and what it logs of the members."""

    def __init__(self, fleet: TestFleet) -> None:
        self.fleet, self.notes = fleet, list[str]()
        security = fleet.security("b")
        self.agent = Agent(
            MANIFEST,
            "b",
            lambda event: None,
            lambda kind, text, peer=None, **_: self.notes.append(text),
            security=security,
        )
        self.transport = GrpcTransport("b", RUN, limits=LIMITS, services=[self.agent.service], security=security)
        self.transport.connect({"c": "127.0.0.1:1"})
        self.transport.submit(self.agent.start(self.transport.address)).result(PATIENCE_S)

    def ask(self, method: str, *messages: bytes) -> list[bytes]:
        """What it answers to c."""
        with channel_to_b(self.fleet, self.fleet.of("c"), self.transport.address) as channel:
            call = channel.unary_unary(method)
            return [call(message, timeout=PATIENCE_S) for message in messages]

    def close(self) -> None:
        self.transport.submit(self.agent.stop()).result(PATIENCE_S)
        self.transport.close()


@pytest.fixture
def board(fleet: TestFleet) -> Iterator[Board]:
    board = Board(fleet)
    yield board
    board.close()


def probe(sender: str = "c", **changes: object) -> bytes:
    request = wire.parse(pb.ProbeRequest, wire.request(MANIFEST, sender, "b", Ping(1, View(1))))
    request.MergeFrom(pb.ProbeRequest(**changes))
    return request.SerializeToString()


BAD_ROW = wire.rows(((0, MemberEntry(Status.ALIVE, 2**63)),))


@pytest.mark.parametrize(
    ("method", "message", "words"),
    [
        (PROBE, b"\xff" * 50, "not valid protobuf"),
        (PROBE, probe("a"), "it says to be a, but its certificate is that of c"),
        (PROBE, probe(rows=BAD_ROW), "that cannot be"),
        (JOIN, b"\xff" * 50, "not valid protobuf"),
        (JOIN, pb.JoinRequest(protocol_version=1, name="a").SerializeToString(), "it says to be a"),
    ],
    ids=["garbage", "another's name", "a row that cannot be", "garbage to join", "another's name to join"],
)
def test_what_no_member_says_leads_to_quarantine(fleet, board, method, message, words):
    [answer] = board.ask(method, message)
    kind = pb.ProbeResponse if method == PROBE else pb.JoinResponse
    assert words in kind.FromString(answer).refusal
    in_quarantine(board.transport)
    assert not admission_handshake(fleet, fleet.of("c"), board.transport.address).welcome
    [line] = [text for text in board.notes if text.startswith("refused")]
    assert words in line and " at 127.0.0.1:" in line and line.split()[1] == "c"


def test_a_member_that_answers_under_anothers_name_is_known_by_its_certificate(fleet, board):
    board.agent.name = "a"
    assert client.request_join(addresses.parse(board.transport.address, "address"), "c", fleet.security("c")).by == "b"


def test_what_may_happen_to_an_honest_board_does_not(fleet, board):
    """Another run, an older version, a name that it was given by mistake."""
    answers = board.ask(PROBE, probe(), probe(run_id=b"z" * 16), probe(manifest=7), probe(protocol_version=9))
    refusals = [pb.ProbeResponse.FromString(answer).refusal for answer in answers]
    assert refusals[0] == "" and all(refusals[1:])
    assert admission_handshake(fleet, fleet.of("c"), board.transport.address).welcome
    assert not [e for e in left(board.transport) if "quarantine" in getattr(e, "text", "")]


def test_a_flood_of_questions(board):
    """Is refused, and the refusals lead to quarantine when it goes on all the same."""
    with suppress(grpc.RpcError):  # it is cut off in the midst of it
        answers = board.ask(PROBE, *[probe()] * 3000)
        assert any("more than 20 times a second" in pb.ProbeResponse.FromString(a).refusal for a in answers)
    in_quarantine(board.transport)


def test_what_comes_in_one_go_counts_once(board):
    """Not the second time, nor the eighth, after which it would be kept out for ten minutes."""
    board.ask(PROBE, *[b"\xff" * 50] * 10)
    text = wait_for(board.transport, Notice, lambda n: "c is in quarantine" in n.text).text
    assert "for 300 s" in text
    assert not [e for e in left(board.transport) if "c is in quarantine" in getattr(e, "text", "")]


def test_a_caller_whose_connection_has_ended_is_not_blamed(fleet, board, monkeypatch):
    """A busy board comes to a question when the caller has given up: no certificate can be seen any
    more."""

    def gone(_context: object) -> str:
        raise CallerGone("its connection has ended")

    monkeypatch.setattr(board.agent.security, "identify", gone)
    [answer] = board.ask(PROBE, probe())
    assert pb.ProbeResponse.FromString(answer).refusal == "its connection has ended"
    with channel_to_b(fleet, fleet.of("c"), board.transport.address) as channel:
        list(channel.stream_stream("/edgegossip.v1.Mesh/Exchange")(iter([hello()]), timeout=PATIENCE_S))
    assert admission_handshake(fleet, fleet.of("c"), board.transport.address).welcome
