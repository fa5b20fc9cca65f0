"""Malformed messages against a live board: a handful of each kind in the suite, all together in
`python -m tests.mesh.malformed`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random

import grpc
import pytest

from edgegossip.agreement import Agreement
from edgegossip.layout import Layout, TensorSpec
from edgegossip.mesh import GrpcTransport, MeshLimits, services
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Received
from edgegossip.mesh.membership import wire as members_wire
from edgegossip.mesh.membership.agent import Agent
from edgegossip.mesh.membership.manifest import make
from edgegossip.mesh.wire import METHOD
from edgegossip.types import DecodeError
from tests.mesh.malformed import verdicts
from tests.mesh.malformed.__main__ import Batches, session
from tests.mesh.malformed.attack import BATCH
from tests.mesh.malformed.messages import NO_AGREEMENTS, Maker, Target
from tests.mesh.support import RUN, connect_all, wait_for

LAYOUT = Layout.of([TensorSpec("fc.weight", (8, 16)), TensorSpec("fc.bias", (16,))])
MEMBERS = ("a", "b", "evil")
PATIENCE_S = 20.0


def target(address: str = "127.0.0.1:1", manifest: int = 5) -> Target:
    return Target("b", RUN, manifest, MEMBERS, LAYOUT, "evil", address)


def test_what_is_made_follows_from_the_seed_and_is_refused() -> None:
    maker, again = Maker(target()), Maker(target())
    for seed in range(3):
        frames = maker.frames(Random(seed), 50)
        assert frames == again.frames(Random(seed), 50) and not any(map(maker._is_good, frames))
        assert maker.stream(Random(seed)) == again.stream(Random(seed))
    for said in NO_AGREEMENTS:
        with pytest.raises(DecodeError, match="an agreement"):
            Agreement.from_json(said)
    reasons = set()
    for seed in range(300):
        try:
            members_wire.message_of(members_wire.parse_request(maker.probe(Random(seed))), len(MEMBERS))
        except DecodeError as error:
            reasons.add(str(error))
    assert len(reasons) >= 6, reasons  # the others have a wrong envelope


def test_a_board_stands_them_and_its_peers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "CALL_BURST", 1e6)  # more questions about its health than anybody may ask
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
                _converse(channel, maker.framed(rng, maker.frames(rng, 4)))
                for method, message in (
                    ("/edgegossip.v1.Membership/Probe", maker.probe(rng)),
                    ("/edgegossip.v1.Membership/Join", maker.join(rng)),
                    ("/grpc.health.v1.Health/Check", maker.standard(rng)),
                    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", maker.standard(rng)),
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
    """Its answer, or an error that the board itself gave."""
    call = channel.unary_unary(method).future(message, timeout=PATIENCE_S)
    # INTERNAL: a stream answered more or less than once, says our own end
    codes = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL)
    assert call.code() in codes, call.details()


def test_batches_are_done_once_and_resumed_behind_the_last_of_a_row() -> None:
    batches = Batches(3, 8)
    numbers = iter(batches)
    assert [next(numbers) for _ in range(4)] == [3, 4, 5, 6]
    for number in (4, 6, 3):
        batches.finish(number)
    assert batches.done == 5 and list(numbers) == [7]


def test_the_verdict_can_fail() -> None:
    def sample(t: float, rss: float, round: int) -> dict:
        held = {"rss_bytes": rss, "anonymous_bytes": rss, "threads": 13, "descriptors": 40, "tasks": 19, "round": round}
        more = {"delivered": {"frames": int(t)}, "lost": {}, "answers": {}, "load": 1.0}
        counts = {"reached": {"frame": int(t)}, "refused": {}, "reasons": {"frame: a reason": int(t)}}
        return {"t_s": t, "boards": {"pi-1": held}, "counts": counts, **more}

    start = {"session": "now", "seed": 1}
    good = [start, *(sample(3.0 * k, 3e8, k) for k in range(60))]
    assert verdicts.judge(good)[1] == []
    leak = [start, *(sample(3.0 * k, 3e8 + 2e5 * k, k) for k in range(60))]
    assert any("rss_bytes grew" in text for text in verdicts.judge(leak)[1])
    stuck = [start, *(sample(3.0 * k, 3e8, min(k, 30)) for k in range(60))]
    assert verdicts.judge(stuck)[1] == ["pi-1 ended no round for 87 s"]
    silent = json.loads(json.dumps(good))
    silent[-1]["counts"]["reasons"]["stream: NO REASON"] = 1
    assert verdicts.judge(silent)[1] == ["1 refusals stream: NO REASON"]
    assert verdicts.judge([start])[1] == ["a session without a sample"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_live_board_of_a_fleet(tmp_path: Path) -> None:
    out = tmp_path / "malformed.jsonl"
    session(5000, 7, out)
    document, wrong = verdicts.judge(verdicts.read(out))
    assert not wrong
    assert sum(document["delivered"].values()) + sum(document["lost"].values()) == 5000 // BATCH * BATCH
    assert document["reached"]["frame"] > 3000
