"""Malformed messages against a live board: a handful of each kind."""

from __future__ import annotations

import threading
from random import Random

import grpc
import pytest

from edgegossip.agreement import Agreement
from edgegossip.mesh import GrpcTransport, MeshLimits
from edgegossip.mesh._proto import membership_pb2 as members_pb
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Received
from edgegossip.mesh.membership import wire as members_wire
from edgegossip.mesh.membership.agent import Agent
from edgegossip.mesh.membership.manifest import make
from edgegossip.mesh.wire import METHOD
from edgegossip.types import DecodeError
from tests.mesh.malformed import NO_AGREEMENTS, Maker, Target
from tests.mesh.support import RUN, connect_all, wait_for

MEMBERS = ("a", "b", "evil")
PATIENCE_S = 20.0


def target(address: str = "127.0.0.1:1", manifest: int = 5) -> Target:
    return Target("b", RUN, manifest, MEMBERS, "evil", address)


def test_what_is_made_follows_from_the_seed_and_is_refused() -> None:
    maker, again = Maker(target()), Maker(target())
    for seed in range(3):
        assert maker.stream(Random(seed)) == again.stream(Random(seed))
    for said in NO_AGREEMENTS:
        with pytest.raises(DecodeError, match="an agreement"):
            Agreement.from_json(said)
    reasons = set()
    for seed in range(300):
        try:
            members_wire.message_of(
                members_wire.parse(members_pb.ProbeRequest, maker.probe(Random(seed))), len(MEMBERS)
            )
        except DecodeError as error:
            reasons.add(str(error))
    assert len(reasons) >= 6, reasons  # the others have a wrong envelope


def test_a_board_stands_them_and_its_peers_go_on() -> None:
    notes: list[str] = []
    manifest = make(RUN, "b", MEMBERS, "0" * 64, "")
    box: list[GrpcTransport] = []
    agent = Agent(
        manifest, "b", lambda event: box[0].post(event), lambda kind, text, peer=None, **_: notes.append(text)
    )
    limits = MeshLimits(max_frame_bytes=1 << 16, hello_s=2.0)
    with (
        GrpcTransport("a", RUN, limits=limits) as a,
        GrpcTransport("b", RUN, limits=limits, services=[agent.service]) as b,
    ):
        box.append(b)
        b.submit(agent.start(b.address)).result(10.0)
        connect_all([a, b], ["a", "b"])
        b.connect({"evil": "127.0.0.1:1"})
        maker, tasks = Maker(target(b.address, manifest.hash)), b.tasks()
        got = threading.Thread(target=lambda: _take(b))
        got.start()
        with grpc.insecure_channel(b.address) as channel:
            for seed in range(50):
                rng = Random(seed)
                answers = _converse(channel, maker.stream(rng))
                assert answers or seed, "the first is answered"
                assert all(m.refusal.reason for m in answers if m.WhichOneof("kind") == "refusal")
                for method, message in (
                    ("/edgegossip.v1.Membership/Probe", maker.probe(rng)),
                    ("/edgegossip.v1.Membership/Join", maker.join(rng)),
                ):
                    _ask(channel, method, message)
        a.send("b", [b"still here"])
        got.join(PATIENCE_S)
        assert not got.is_alive()
        b.send("a", [b"so am I"])
        assert bytes(wait_for(a, Received).data) == b"so am I"
        assert b.tasks() <= tasks + 4 and notes
        b.submit(agent.stop()).result(10.0)


def _take(b: GrpcTransport) -> None:
    while bytes(wait_for(b, Received).data) != b"still here":
        pass


def _converse(channel: grpc.Channel, messages: list[bytes]) -> list[pb.ExchangeResponse]:
    call = channel.stream_stream(METHOD)(iter(messages), timeout=PATIENCE_S)
    return [pb.ExchangeResponse.FromString(data) for data in call]


def _ask(channel: grpc.Channel, method: str, message: bytes) -> None:
    """It has an answer."""
    call = channel.unary_unary(method).future(message, timeout=PATIENCE_S)
    assert call.code() is grpc.StatusCode.OK, call.details()
