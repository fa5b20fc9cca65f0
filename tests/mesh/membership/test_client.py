"""Which of the addresses that others name becomes our own, and how members are called."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.base import MeshLimits
from edgegossip.mesh.connections import MeshMachine
from edgegossip.mesh.membership import client
from edgegossip.mesh.membership.client import Connections, OwnAddress

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


GONE = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "reset")


def calls(*channels: list[Any]) -> list[bytes | str]:
    """What three calls come to, over channels that answer so, one after the other."""
    left = list(channels)

    def opened(_target: str, options: object) -> Any:
        answers = left.pop(0)

        async def method(_request: bytes) -> bytes:
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return bytes(answer)

        return SimpleNamespace(unary_unary=lambda _: method, close=lambda: asyncio.sleep(0))

    async def play() -> list[bytes | str]:
        machine = MeshMachine(aio=SimpleNamespace(insecure_channel=opened))
        connections, told = Connections(MeshLimits(), None, machine), list[bytes | str]()
        for _ in range(3):
            try:
                told.append(await connections.call("b", "127.0.0.1:7700", b""))
            except grpc.aio.AioRpcError:
                told.append("failed")
        return told

    return asyncio.run(play())


def test_a_connection_that_ended_since_it_was_used_says_nothing_of_who_is_there_now() -> None:
    assert calls([b"1", GONE], [b"2", b"3"]) == [b"1", b"2", b"3"]


def test_a_new_connection_that_fails_says_that_nobody_is_there() -> None:
    assert calls([b"1", GONE], [GONE], [b"3"]) == [b"1", "failed", b"3"]
