"""Which of the addresses that others name becomes our own."""

from __future__ import annotations

import pytest

from edgegossip.mesh.membership.client import OwnAddress, has_address

LAN, OTHER, AWAY = "10.0.0.1", "192.168.7.1", "10.0.0.9"
OURS = {LAN, OTHER}.__contains__


@pytest.mark.parametrize(
    ("steps", "address"),
    [
        ([("127.0.0.1:7700", "127.0.0.1")], "127.0.0.1:7700"),
        ([("127.0.0.1:7700", "127.0.0.1"), (f"{LAN}:7700", AWAY)], f"{LAN}:7700"),  # the first joiner does not decide
        ([(f"{LAN}:7700", AWAY), ("127.0.0.1:7700", "127.0.0.1")], f"{LAN}:7700"),
        ([("127.0.0.1:7700", AWAY)], ""),  # it talks about itself, or about its end of a tunnel
        ([("localhost:7700", AWAY), ("[::1]:7700", AWAY)], ""),
        ([("pi-01.local:7700", AWAY), (f"{LAN}:7700", AWAY)], f"{LAN}:7700"),
        ([("203.0.113.5:9000", AWAY), (f"{LAN}:7700", AWAY)], f"{LAN}:7700"),  # a forwarded port, of use to some only
        ([(f"{LAN}:9000", AWAY), (f"{LAN}:7700", AWAY)], f"{LAN}:7700"),
        ([(f"{LAN}:7700", AWAY), (f"{OTHER}:7700", AWAY)], f"{LAN}:7700"),
        ([("nonsense", AWAY)], ""),
    ],
)
def test_a_better_guess_replaces_a_worse_one(steps: list[tuple[str, str]], address: str) -> None:
    where = OwnAddress("", 7700, OURS)
    for at, caller in steps:
        before = where.address
        assert where.reached(at, caller) is (where.address != before)
    assert where.address == address


def test_who_is_on_the_same_machine_has_the_same_host() -> None:
    where = OwnAddress("127.0.0.1:7701", 7701, OURS)
    assert not where.beside(["127.0.0.1:7700", f"{AWAY}:7700", "", "nonsense"])
    assert where.beside([f"{AWAY}:7700", f"{LAN}:7700"]) and where.address == f"{LAN}:7701"
    assert not where.beside([f"{OTHER}:7700"])


def test_an_address_that_the_user_gave_stays() -> None:
    where = OwnAddress("127.0.0.1:7700", None, OURS)
    assert not where.reached(f"{LAN}:7700", AWAY) and not where.beside([f"{LAN}:7700"])


def test_what_this_machine_has() -> None:
    assert has_address("127.0.0.1") and not has_address("203.0.113.5") and not has_address("fe80::1234")
