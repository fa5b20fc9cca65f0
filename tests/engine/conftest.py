"""What tests of a coordinator's parts share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edgegossip.engine.server_records import Value
from edgegossip.types import NodeId, Round


class Written:
    """Records that have been written."""

    def __init__(self) -> None:
        self.all: list[tuple[NodeId, Round, Mapping[str, Value]]] = []

    def __call__(self, node: NodeId, round: Round, values: Mapping[str, Value]) -> None:
        self.all.append((node, round, values))


@pytest.fixture
def written() -> Written:
    return Written()
