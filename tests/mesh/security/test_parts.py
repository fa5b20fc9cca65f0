"""The pure parts behind the door: rates, quarantine, tickets, knocks, and what a ClientHello says in the clear."""

from __future__ import annotations

import ssl
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.mesh.address import Address
from edgegossip.mesh.limits import MeshLimits
from edgegossip.mesh.security import client_hello, knock, tickets
from edgegossip.mesh.security.entrance import Crowd, network_of
from edgegossip.mesh.security.names import Subject, serial_name, subject_of, ticket_in
from edgegossip.mesh.security.quarantine import FORGET_S, LONGEST_S, Quarantine
from edgegossip.mesh.security.rates import Buckets, Teller
from edgegossip.types import DecodeError, PeerError


def test_a_bucket_lets_a_burst_through_and_then_a_rate():
    buckets = Buckets(rate=2.0, burst=3.0)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b", 0.0)  # others are not concerned
    assert [buckets.take("a", 1.0) for _ in range(3)] == [True, True, False]
    assert [buckets.take("a", 100.0) for _ in range(4)] == [True, True, True, False]


def test_buckets_of_many_strangers_take_bounded_memory():
    buckets = Buckets(1.0, 1.0)
    for k in range(10_000):
        buckets.take(k, 0.0)
    assert len(buckets._state) <= 1024


def strangers(*crowds: tuple[str, int], silent: bool = True) -> list[SimpleNamespace]:
    """Host and number; the {} in a host is counted up. Each came 10 ms after the one before it, the first at 0.01 s."""
    hosts = [host.format(k) for host, count in crowds for k in range(count)]
    limit_s = MeshLimits().handshake_s
    return [
        SimpleNamespace(address=str(Address(host, 1000)), deadline_s=limit_s + 0.01 * k, silent=silent)
        for k, host in enumerate(hosts, 1)
    ]


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize(
    "crowd",
    [
        (("10.0.0.9", 64),),
        (("10.0.0.66", 64), ("10.0.0.67", 64), ("10.0.0.68", 64), ("10.0.0.69", 59)),
        (("10.9.0.{}", 255),),
    ],
    ids=["its own address", "four addresses", "many addresses"],
)
def test_strangers_cannot_take_every_place(crowd, silent):
    """The newcomer may stay, and so may a board that came in time and is in the midst of its handshake."""
    honest = strangers(("10.0.0.1", 5), silent=False)
    theirs = strangers(*crowd, silent=silent)
    victim, reason = Crowd(MeshLimits()).who_makes_way("10.0.0.9", [*honest, *theirs], 3.0)
    assert any(victim is s for s in theirs) or (crowd == (("10.9.0.{}", 255),) and not silent)
    assert "have not finished the TLS handshake" in reason


def test_a_network_of_many_addresses_counts_as_one():
    crowd = [
        *strangers(("fd00:bad::{}", 250), silent=False),
        *strangers(("fd00:1::1", 3), ("10.0.0.7", 3), silent=False),
    ]
    victim, _ = Crowd(MeshLimits()).who_makes_way("fd00:1::9", crowd, 3.0)
    assert victim is crowd[0]  # the oldest
    crowd[7].silent = True
    victim, _ = Crowd(MeshLimits()).who_makes_way("fd00:1::9", crowd, 3.0)
    assert victim is crowd[7]  # one that hesitates
    assert network_of("::ffff:10.0.0.7") == network_of("10.0.0.7") != network_of("10.0.0.8")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")
    assert Crowd(MeshLimits()).who_makes_way("fd00:1::9", crowd[:255], 3.0) is None


def test_the_same_line_is_told_once_a_minute_and_few_altogether():
    teller = Teller()
    assert [teller.worth("x", t) for t in (0.0, 1.0, 59.0, 61.0)] == [True, False, False, True]
    assert sum(teller.worth(k, 100.0) for k in range(1000)) <= 64


def test_quarantine_grows_and_is_forgotten():
    quarantine, now_s, lengths = Quarantine(), 0.0, []
    for _ in range(10):
        lengths.append(quarantine.strike("c", "noise", now_s))
        assert quarantine.reason("c", now_s) == f"in quarantine for {lengths[-1]:g} s: noise"
        assert quarantine.reason("c", now_s + lengths[-1] / 2) == quarantine.reason(
            "c", now_s
        )  # the same line for a log
        assert quarantine.reason("a", now_s) == ""
        assert quarantine.strike("c", "more of it", now_s) == 0.0  # what was on its way counts no second time
        now_s += lengths[-1]
        assert quarantine.reason("c", now_s) == ""
    assert lengths[:3] == [5.0, 10.0, 20.0] and lengths[-1] == LONGEST_S
    assert quarantine.strike("c", "noise", now_s + 9 * FORGET_S) == 10.0  # once more after nine were forgotten
    assert quarantine.strike("c", "noise", now_s + 99 * FORGET_S) == 5.0


def test_a_ticket_is_good_once_and_not_for_long():
    box = tickets.Tickets[str](str)
    one, two = box.give("a", 0.0), box.give("b", 0.0)
    assert one != two
    assert box.take(one, 1.0) == "a"
    assert box.take(one, 1.0) is None
    assert box.take(two, tickets.VALID_S) is None
    assert box.take("", 0.0) is None
    for k in range(1000):
        box.give(str(k), k)
    assert len(box) == tickets.VALID_S
    assert len(box._owned) == len(box)


def test_who_knocks_without_end_pushes_out_its_own_tickets_alone():
    box = tickets.Tickets[tuple[int, str]](lambda holder: holder[0])
    honest = [box.give((1, "a"), 0.0) for _ in range(tickets.EACH)]
    theirs = [box.give((2, f"10.0.0.{k % 16}"), 1.0) for k in range(1000)]
    assert len(box) == 2 * tickets.EACH
    assert [box.take(t, 2.0) for t in honest] == [(1, "a")] * tickets.EACH
    good = [t for t in theirs if box.take(t, 2.0) is not None]
    assert good == theirs[-tickets.EACH :]
    assert not box._owned


def test_tickets_of_one_holder_can_be_taken_back():
    box = tickets.Tickets[str](str)
    mine, more, others = box.give("a", 0.0), box.give("a", 0.0), box.give("b", 0.0)
    box.drop("a".__eq__)
    assert [box.take(t, 1.0) for t in (mine, more, others)] == [None, None, "b"]


def test_names():
    a = Subject("pi-01", "board", "0" * 16)
    assert subject_of((a.dns_name, serial_name(7, "0" * 16)), "0" * 16) == a
    assert ticket_in(serial_name(7, "0" * 16, "ab")) == "ab"
    assert ticket_in(a.dns_name) == ticket_in("a.b.c.d.e") == ""
    b = Subject("pi-02", "board", "0" * 16)
    for names in (
        (),
        (a.dns_name, b.dns_name),
        ("pi-01.king." + "0" * 16 + ".edgegossip",),
        ("x" + a.dns_name + ".de",),
    ):
        with pytest.raises(PeerError):
            subject_of(names, "0" * 16)
    with pytest.raises(PeerError, match="of fleet"):
        subject_of((a.dns_name,), "1" * 16)


@given(st.booleans(), st.integers(0, 2**64 - 1), st.text(max_size=50), st.binary(max_size=50), st.data())
def test_knocks_there_and_back_and_in_pieces(welcome, number, text, crl, data):
    said = knock.Answer(welcome, number, text, crl)
    message = knock.answer(said)
    assert knock.parse_answer(message) == said
    assert knock.parse_answer(message[: data.draw(st.integers(0, len(message) - 1))]) is None
    with pytest.raises(DecodeError):
        knock.parse_answer(message + b"x")
    assert knock.parse_hello(knock.hello(number)) == number
    assert knock.parse_blob(knock.blob(crl)) == crl


@given(st.binary(max_size=60))
def test_rubbish_for_a_knock(data):
    for read in (knock.parse_answer, knock.parse_blob, knock.parse_hello):
        with suppress(DecodeError):
            read(data)
    with pytest.raises(DecodeError):
        knock.parse_blob(b"\xff" * 4 + data)


def hello_of(name: str, *protocols: str, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, newest
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Pythons differ in what they begin with
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name or None).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("name", "protocols"), [("pi-01.x.y", ("h2",)), ("a" * 60, ("h2", "x")), ("", ()), ("A.b", ())]
)
def test_reads_what_openssl_says(name, protocols):
    data = hello_of(name, *protocols)
    assert client_hello.needed_bytes(data[:5]) == len(data)
    assert client_hello.parse(data) == client_hello.ClientHello(name.lower(), (0x0304, 0x0303))
    assert client_hello.parse(data + b"more") == client_hello.parse(data)
    for cut in (0, 1, 5, 40, len(data) - 1):
        assert client_hello.parse(data[:cut]) is None


def test_an_older_tls_names_no_versions():
    hello = client_hello.parse(hello_of("pi-01.x.y", "h2", newest=ssl.TLSVersion.TLSv1_2))
    assert hello == client_hello.ClientHello("pi-01.x.y", ())


GOOD = hello_of("pi-01.x.y", "h2")


@settings(max_examples=200)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.binary(max_size=80))
def test_rubbish_for_a_hello(at, byte, noise):
    for data in (GOOD[:at] + bytes([byte]) + GOOD[at + 1 :], noise, b"\x16\x03\x01\x00\x40" + noise, GOOD[:at] + noise):
        assert client_hello.needed_bytes(data) <= client_hello.MAX_BYTES
        client_hello.parse(data)
