"""A fleet, and two boards of it that are connected; times that no busy machine is too late for."""

from collections.abc import Iterator

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.security import front_end
from edgegossip.security.admission import Quarantine
from tests.mesh.fleet import TestFleet
from tests.mesh.security import support


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> TestFleet:
    return TestFleet.make(tmp_path_factory.mktemp("security"))


@pytest.fixture(autouse=True)
def long_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quarantine, "FIRST_S", 300.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> support.Clock:
    """The clock of all front ends."""
    clock = support.Clock()
    monkeypatch.setattr(front_end, "time", clock)
    monkeypatch.setattr(front_end.FrontEnd, "_now", lambda self: clock.monotonic())
    return clock


@pytest.fixture
def pair(fleet: TestFleet) -> Iterator[tuple[GrpcTransport, GrpcTransport]]:
    yield from support.pair(fleet)
