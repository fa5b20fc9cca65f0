"""The parts behind the front end, each by itself: limits, quarantine, one-time tokens, the
handshake's messages, names, and what a ClientHello says in the clear."""

from __future__ import annotations

import ssl
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.mesh.address import Address
from edgegossip.mesh.base import MeshLimits
from edgegossip.security import handshake
from edgegossip.security.front_end import server_name_of
from edgegossip.security.limits import (
    ConnectionLimiter,
    ProcessorShare,
    RateLimitedLog,
    SharedRateLimiter,
    TokenBuckets,
    network_of,
)
from edgegossip.security.names import Subject, serial_name, subject_of, token_in
from edgegossip.types import DecodeError, PeerError


def test_buckets_of_many_strangers_take_bounded_memory():
    buckets = TokenBuckets(1.0, 1.0)
    for k in range(10_000):
        buckets.take(k, 0.0)
    assert len(buckets._state) <= 1024


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 30)), max_size=30), st.sampled_from([0.02, 1.0]))
def test_work_rests_until_its_share_is_kept(work: list[tuple[float, float]], share: float) -> None:
    limiter, now_s, total_s = ProcessorShare(share, burst_s=0.25), 0.0, 0.0
    for spent_s, idle_s in work:
        now_s += spent_s + idle_s
        total_s += spent_s
        now_s += limiter.rest_s(spent_s, now_s)
        assert total_s <= 0.25 + share * now_s + 1e-6
    assert limiter.rest_s(0.0, now_s) <= 1e-6


def limiter() -> ConnectionLimiter:
    limits = MeshLimits()
    return ConnectionLimiter(
        limits.connections_per_s,
        limits.connection_burst,
        limits.max_pending_handshakes,
        limits.max_pending_handshakes_per_address,
    )


def strangers(*connections: tuple[str, int], silent: bool = True) -> list[SimpleNamespace]:
    """Host and number; the {} in a host is counted up. Each came 10 ms after the one before it, the
    first at 0.01 s."""
    hosts = [host.format(k) for host, count in connections for k in range(count)]
    return [
        SimpleNamespace(address=str(Address(host, 1000)), since_s=0.01 * k, silent=silent)
        for k, host in enumerate(hosts, 1)
    ]


@pytest.mark.parametrize(
    "places",
    [
        ("10.0.0.7", "10.0.0.7:7700", "::ffff:10.0.0.7", "[::ffff:10.0.0.7]:7700"),
        ("fd00:bad::1", "[fd00:bad::2]:7700", "[fd00:bad:0:0:ffff::]:1", "fd00:bad::/64"),
        ("fe80::1%eth0", "[fe80::2%eth0]:7700", "fe80::/64"),
        ("somebody", "somebody:0"),
    ],
)
def test_what_a_place_counts_as(places):
    assert len({network_of(place) for place in places if "/" not in place}) == 1
    assert network_of(places[0]) == places["/" in places[-1] and -1]
    others = ("10.0.0.8", "fd00:bad:0:1::1", "[fe81::1]:7700", "", ":0", "::1:7700", "[fd00", "a:b:c", "\0:", "é:1")
    assert network_of(places[0]) not in {network_of(other) for other in others}


def test_all_addresses_of_a_network_share_what_one_may_do():
    """As one machine may have 2**64 of them: it may connect and ask no more often than with one,
    holds no more places, and writes no more lines."""
    addresses, limits = [f"fd00:bad::{k:x}" for k in range(1000)], limiter()
    assert sum(not limits.why_not(host, 0.0) for host in addresses) == MeshLimits().connection_burst
    assert not limits.why_not("fd00:bad:0:1::1", 0.0)  # others are not concerned
    theirs = strangers(("fd00:bad::{}", MeshLimits().max_pending_handshakes_per_address), silent=False)
    victim, reason = limits.to_evict("fd00:bad::fff", theirs, 3.0)
    assert victim is theirs[0] and "of its connections" in reason
    assert limits.to_evict("fd00:bad:0:1::1", theirs, 3.0) is None

    shared = SharedRateLimiter()
    shared.refused("fd00:bad::1", 0.0)
    assert sum(shared.allows(host, 0.0) for host in addresses) == shared.STRANGERS_BURST
    with ExitStack() as stack:
        for host in addresses[: shared.MAX_OPEN + 1]:
            stack.enter_context(shared.asking(host))
        late_s = 2 * shared.STRANGE_S
        assert sum(shared.allows(host, late_s) for host in addresses) == shared.STRANGERS_BURST
        assert shared.allows("fd00:bad:0:1::1", late_s)


def test_the_same_line_is_told_once_a_minute_and_few_altogether():
    log = RateLimitedLog()
    assert [log.worth("x", t) for t in (0.0, 1.0, 59.0, 61.0)] == [True, False, False, True]
    assert sum(log.worth(k, 100.0) for k in range(1000)) <= 64


def test_who_asks_without_end_keeps_nobody_out():
    limiter = SharedRateLimiter()
    assert sum(limiter.allows("10.0.0.2", 0.0) for _ in range(1000)) == limiter.BOARDS_BURST
    for second in range(10, 70):
        for k in range(100):
            limiter.allows("10.0.0.2", second + k / 100)
        assert limiter.allows("10.0.0.1", second + 0.99), second


def test_the_address_refused_longest_ago_is_forgotten_first():
    limiter = SharedRateLimiter()
    limiter.refused("10.0.0.1", 0.0)
    limiter.refused("10.0.0.2", 0.0)
    limiter.refused("10.0.0.1", 1.0)
    for k in range(limiter.MAX_REFUSED - 1):
        limiter.refused(f"host {k}", 1.0)
    while limiter.allows("10.0.0.3", 2.0):  # what boards share is used up
        pass
    assert limiter.allows("10.0.0.1", 2.0)  # a stranger's: it is remembered
    assert not limiter.allows("10.0.0.2", 2.0)


def test_a_token_is_good_once_and_not_for_long():
    box = handshake.OneTimeTokens[str](str)
    one, two = box.issue("a", 0.0), box.issue("b", 0.0)
    assert one != two
    assert box.redeem(one, 1.0) == "a"
    assert box.redeem(one, 1.0) is None
    assert box.redeem(two, handshake.OneTimeTokens.VALID_S) is None
    assert box.redeem("", 0.0) is None
    for k in range(1000):
        box.issue(str(k), k)
    assert len(box) == handshake.OneTimeTokens.VALID_S
    assert len(box._owned) == len(box)


def test_names():
    a = Subject("pi-01", "board", "0" * 16)
    assert subject_of((a.dns_name, serial_name(7, "0" * 16)), "0" * 16) == a
    assert token_in(serial_name(7, "0" * 16, "ab")) == "ab"
    assert token_in(a.dns_name) == token_in("a.b.c.d.e") == ""
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
def test_admission_handshakes_there_and_back_and_in_pieces(admitted, number, text, crl, data):
    said = handshake.Answer(admitted, number, text, crl)
    message = handshake.answer(said)
    assert handshake.parse_answer(message) == said
    assert handshake.parse_answer(message[: data.draw(st.integers(0, len(message) - 1))]) is None
    with pytest.raises(DecodeError):
        handshake.parse_answer(message + b"x")
    assert handshake.parse_hello(handshake.hello(number)) == number
    assert handshake.parse_blob(handshake.blob(crl)) == crl


@given(st.binary(max_size=60))
def test_rubbish_for_an_admission_handshake(data):
    for read in (handshake.parse_answer, handshake.parse_blob, handshake.parse_hello):
        with suppress(DecodeError):
            read(data)
    with pytest.raises(DecodeError):
        handshake.parse_blob(b"\xff" * 4 + data)


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
def test_reads_the_name_that_openssl_asks_for(name, protocols):
    data = hello_of(name, *protocols)
    assert server_name_of(data) == server_name_of(data + b"more") == name.lower()
    for cut in (0, 1, 5, 40, len(data) - 1):
        assert server_name_of(data[:cut]) == ""


def test_an_older_tls_has_no_name():
    assert server_name_of(hello_of("pi-01.x.y", "h2", newest=ssl.TLSVersion.TLSv1_2)) == ""


GOOD = hello_of("pi-01.x.y", "h2")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a name that is not ASCII
@settings(max_examples=200)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.binary(max_size=80))
def test_rubbish_for_a_hello(at, byte, noise):
    for data in (GOOD[:at] + bytes([byte]) + GOOD[at + 1 :], noise, b"\x16\x03\x01\x00\x40" + noise, GOOD[:at] + noise):
        assert isinstance(server_name_of(data), str)
