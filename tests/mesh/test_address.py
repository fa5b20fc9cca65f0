"""Addresses: what is accepted, and what each refusal says."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from edgegossip.mesh import GrpcTransport, address
from edgegossip.types import ConfigError, HostError, PeerError, UsageError
from tests.mesh.support import RUN


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("pi-4.local:7200", "pi-4.local", 7200), ("[::1]:65535", "::1", 65535)],
)
def test_parse(text, host, port):
    parsed = address.parse(text, "x")
    assert (parsed.host, parsed.port, str(parsed)) == (host, port, text)


@pytest.mark.parametrize(
    ("text", "address_text"),
    [
        ("pi-4.local", "pi-4.local:7700"),
        ("pi-4.local:80", "pi-4.local:80"),
        ("::1", "[::1]:7700"),
        ("[::1]", "[::1]:7700"),
        ("[::1]:80", "[::1]:80"),
        ("10.0.0.1", "10.0.0.1:7700"),
    ],
)
def test_the_port_may_be_left_out(text, address_text):
    assert str(address.parse_host(text, "x", 7700)) == address_text


@pytest.mark.parametrize("text", ["", "a:b:c", "host:", "[::1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ConfigError, match="write"):
        address.parse_host(text, "x", 7700)


@pytest.mark.parametrize(
    "text",
    ["", "host", ":80", "host:x", "host:0", "host:65536", "::1:80", "a b:80", "http://h:80", "h:٣"],
)
def test_parse_refuses(text):
    with pytest.raises(ConfigError, match="write"):
        address.parse(text, "x")


def test_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as s:
        text = f"127.0.0.1:{s.getsockname()[1]}"
        with pytest.raises(HostError, match=f"cannot listen on {text}: address already in use; .*0 takes any free one"):
            GrpcTransport("a", RUN, text)


def test_port_in_use_by_another_transport():
    with GrpcTransport("a", RUN) as a, pytest.raises(HostError, match="in use"):
        GrpcTransport("b", RUN, a.address)


@pytest.mark.parametrize("text", ["192.0.2.1:0", "no-such-name.invalid:0"])
def test_an_address_that_is_not_here(text):
    with pytest.raises(HostError, match=f"cannot listen on {text}: .*;"):
        GrpcTransport("a", RUN, text, insecure=True)


def test_an_exposed_address_needs_a_word():
    with pytest.raises(UsageError, match="refusing to listen on 0.0.0.0:0 without TLS"):
        GrpcTransport("a", RUN, "0.0.0.0:0")
    with GrpcTransport("a", RUN, "0.0.0.0:0", insecure=True) as a:
        assert not a.address.endswith(":0")


def test_names_are_resolved():
    found = asyncio.run(address.resolve(address.Address("localhost", 7), attempt=0))
    assert found.is_loopback
    assert found.port == 7
    for name, why in (("no-such-name.invalid", "[a-z ]+"), (64 * "a" + ".example", ".*label.* too long")):
        with pytest.raises(PeerError, match=rf"does not resolve \({why}.*\)$"):
            asyncio.run(address.resolve(address.Address(name, 7), attempt=0))


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("127.0.0.1:80", True), ("127.1.2.3:80", True), ("[::1]:80", True), ("0.0.0.0:80", True), ("localhost:80", True),
        ("192.0.2.2:80", False), ("[2001:db8::1]:80", False), ("[fe80::1%1]:80", False), ("pi-4:80", False), ("me:80", True),
    ],
)  # fmt: skip
def test_what_only_this_machine_reaches(text, here, monkeypatch):
    def resolver(host, port, **_):
        if host == "pi-4":
            raise socket.gaierror("not now")
        return [(0, 0, 0, "", ("127.0.1.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    assert address.is_here(address.parse(text, "x")) is here


def test_ipv6_and_names_end_to_end():
    from edgegossip.mesh.base import PeerUp
    from tests.mesh.support import wait_for

    try:
        a = GrpcTransport("a", RUN, "[::1]:0")
    except HostError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with a, GrpcTransport("b", RUN, "localhost:0") as b:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        assert wait_for(a, PeerUp).peer == "b"
        assert wait_for(b, PeerUp).peer == "a"


def test_a_name_server_that_does_not_answer_holds_nobody_at_the_end(monkeypatch):
    asked, answers = [], threading.Event()

    def getaddrinfo(host, port, **_):
        asked.append(host)
        assert answers.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", port))]

    async def look() -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await address.resolve(address.Address("slow.example", 7700), 0)

    async def look_again() -> address.Address:
        asyncio.get_running_loop().call_later(0.02, answers.set)
        return await address.resolve(address.Address("slow.example", 7700), 0)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    asyncio.run(look())  # it waits for the threads of its executor
    assert asked == ["slow.example"] and not answers.is_set()
    assert asyncio.run(look_again()) == address.Address("10.0.0.9", 7700) and len(asked) == 1
