"""How often one member may ask before it is refused, and before that is held against it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.membership import agent as service
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.agent import MembershipService, Misbehaviour
from edgegossip.types import PeerError
from edgegossip.untrusted import Refusal
from tests.mesh.support import RUN


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(service, "loop_s", lambda: clock[0])
    return clock


def asks(served: MembershipService, times: int) -> list[type[PeerError] | None]:
    outcomes: list[type[PeerError] | None] = []
    for _ in range(times):
        try:
            served._certified(SimpleNamespace(), 1.0)  # type: ignore[arg-type]
            outcomes.append(None)
        except PeerError as error:
            outcomes.append(type(error))
    return outcomes


@pytest.mark.parametrize("method", [wire.PROBE, wire.JOIN])
def test_who_calls_before_a_board_has_started_is_sent_away_and_not_blamed(method: str) -> None:
    class Aborted(Exception):
        pass

    async def abort(code: grpc.StatusCode, words: str) -> None:
        raise Aborted(code, words)

    said: list[Refusal] = []
    manifest = manifests.make(RUN, "a", ("a", "b"), "", "")
    agent: Any = SimpleNamespace(
        on_revocations=None, security=None, name="a", manifest=manifest, detector=None,
        events=SimpleNamespace(refused=said.append),
    )  # fmt: skip
    ours = {"protocol_version": wire.PROTOCOL_VERSION, "run_id": RUN}
    asked = {
        wire.PROBE: pb.ProbeRequest(sender="b", receiver="a", manifest=manifest.hash, **ours),
        wire.JOIN: pb.JoinRequest(name="b", **ours),
    }[method]
    context = SimpleNamespace(abort=abort, peer=lambda: "ipv4:127.0.0.1:9")
    served: Any = MembershipService(agent).service(SimpleNamespace(method=method))
    with pytest.raises(Aborted, match="a is only starting"):
        asyncio.run(served.unary_unary(asked.SerializeToString(), context))
    assert said == []


def test_who_asks_too_often_is_refused_long_before_it_is_blamed(now: list[float]) -> None:
    agent: Any = SimpleNamespace(on_revocations=None, security=SimpleNamespace(identify=lambda context: "c"))
    served = MembershipService(agent)
    outcomes = asks(served, 500)
    assert [outcomes.count(kind) for kind in (None, PeerError, Misbehaviour)] == [300, 100, 100]
    now[0] = 60.0
    for _ in range(600):  # for half a minute at nearly twice what is answered, as others may make a helper do
        now[0] += 0.052
        assert Misbehaviour not in asks(served, 2)
