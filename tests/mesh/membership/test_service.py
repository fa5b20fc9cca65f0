"""How often one member may ask before it is refused, and before that is held against it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgegossip.mesh.membership import agent as service
from edgegossip.mesh.membership.agent import MembershipService, Misbehaviour
from edgegossip.types import PeerError


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


def test_who_asks_too_often_is_refused_long_before_it_is_blamed(now: list[float]) -> None:
    agent: Any = SimpleNamespace(on_revocations=None, security=SimpleNamespace(identify=lambda context: "c"))
    served = MembershipService(agent)
    outcomes = asks(served, 500)
    assert [outcomes.count(kind) for kind in (None, PeerError, Misbehaviour)] == [300, 100, 100]
    now[0] = 60.0
    for _ in range(600):  # for half a minute at nearly twice what is answered, as others may make a helper do
        now[0] += 0.052
        assert Misbehaviour not in asks(served, 2)
