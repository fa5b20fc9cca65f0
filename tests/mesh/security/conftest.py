"""A fleet, and two boards of it that are connected."""

from collections.abc import Iterator

import pytest

from edgegossip.mesh import GrpcTransport
from tests.mesh.fleet import TestFleet
from tests.mesh.security import support


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> TestFleet:
    return TestFleet.make(tmp_path_factory.mktemp("security"))


@pytest.fixture
def pair(fleet: TestFleet) -> Iterator[tuple[GrpcTransport, GrpcTransport]]:
    yield from support.pair(fleet)
