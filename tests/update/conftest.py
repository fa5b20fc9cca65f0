"""Fixtures of updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.update.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    from tests.update.place import Place  # which needs the library that makes identities

    found = Place(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()
