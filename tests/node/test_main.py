"""What a board refuses before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgegossip.node.main import NodeOptions, check_coordinator
from edgegossip.types import ConfigError


def _options(identity: Path | None = None, *, insecure: bool = False) -> NodeOptions:
    return NodeOptions("pi-01", "", (), "", insecure, identity, Path("runs"), False, None, (), b"", None)


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000"])
def test_plaintext_to_a_coordinator_on_the_same_machine(address: str) -> None:
    check_coordinator(address, _options())


@pytest.mark.parametrize("address", ["10.0.0.1:8000", "coordinator.local:8000", "[fe80::1]:8000"])
def test_plaintext_to_one_elsewhere_has_to_be_asked_for(address: str) -> None:
    with pytest.raises(ConfigError, match=r"anybody on that network can read.*--identity DIR\), or say --insecure"):
        check_coordinator(address, _options())
    check_coordinator(address, _options(insecure=True))
    check_coordinator(address, _options(Path("kit")))


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--coordinator '10.0.0.1' is not an address: write host:port"):
        check_coordinator("10.0.0.1", _options(insecure=True))
