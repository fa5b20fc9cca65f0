"""Which of the addresses that others name becomes our own."""

from __future__ import annotations

import pytest

from edgegossip.mesh.membership import client
from edgegossip.mesh.membership.client import OwnAddress

LAN, OTHER, AWAY, OURS = "10.0.0.1", "192.168.7.1", "10.0.0.9", "172.16.3.4"


@pytest.mark.parametrize(
    ("steps", "address"),
    [
        ([("127.0.0.1:7700", "127.0.0.1")], "127.0.0.1:7700"),
        ([("127.0.0.1:7700", "127.0.0.1"), (f"{LAN}:7700", AWAY)], f"{LAN}:7700"),  # the first joiner does not decide
        ([(f"{LAN}:7700", AWAY), ("127.0.0.1:7700", "127.0.0.1")], f"{LAN}:7700"),
        ([("127.0.0.1:7700", AWAY)], ""),  # it talks about itself, or about its end of a tunnel
        ([("localhost:7700", AWAY), ("[::1]:7700", AWAY)], ""),
        ([(f"{LAN}:7700", AWAY), (f"{OTHER}:7700", AWAY)], f"{LAN}:7700"),
        ([("nonsense", AWAY)], ""),
        (
            [("6.6.6.6:7700", AWAY), (f"{OURS}:7700", AWAY), ("6.6.6.6:7700", AWAY)],
            f"{OURS}:7700",
        ),  # a liar, or a tunnel
    ],
)
def test_a_better_guess_replaces_a_worse_one(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, str]], address: str
) -> None:
    monkeypatch.setattr(client, "_has_address", lambda host: host == OURS)
    where = OwnAddress("", certain=False)
    for at, caller in steps:
        before = where.address
        assert where.reached(at, caller) is (where.address != before)
    assert where.address == address


def test_an_address_that_the_user_gave_stays() -> None:
    where = OwnAddress("127.0.0.1:7700", certain=True)
    assert not where.reached(f"{LAN}:7700", AWAY)
