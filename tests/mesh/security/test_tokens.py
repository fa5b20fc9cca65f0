"""What an admission handshake is worth."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from contextlib import suppress
from dataclasses import replace

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh import address as addresses
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Notice
from edgegossip.security.names import serial_name
from edgegossip.security.tls import H2
from tests.mesh.security.support import (
    LIMITS,
    admission_handshake,
    converse,
    dial,
    hello,
    in_quarantine,
    is_refused,
    left,
    told,
)
from tests.mesh.support import RUN, PeerProcess


def test_grpc_without_an_admission_handshake(fleet, pair):
    _, b = pair
    is_refused(fleet.client_context(fleet.of("c"), H2), b.address)
    assert "refused c at" in told(b, "it comes in without the admission handshake")


def test_grpc_that_comes_back_with_a_used_token_is_let_go_and_not_blamed(fleet, pair):
    """After a broken connection gRPC connects again by itself, before its board asks for a new
    token."""
    _, b = pair
    token = admission_handshake(fleet, fleet.of("c"), b.address).text
    [answer] = converse(fleet, "c", b.address, hello(run_id=b""), token=token)
    assert "it belongs to run" in answer.refusal.reason
    told(b, "it belongs to run")
    for used in (token, "0" * 32):
        is_refused(fleet.client_context(fleet.of("c"), H2), b.address, serial_name(7, fleet.ca.fleet_id, used))
    assert not any("refused" in event.text for event in left(b) if isinstance(event, Notice))
    is_refused(fleet.client_context(fleet.of("c"), H2), b.address)
    told(b, "it comes in without the admission handshake")


def test_a_token_of_somebody_else(fleet, pair):
    """c overheard the token of a, and was quicker."""
    _, b = pair
    token = admission_handshake(fleet, fleet.of("a"), b.address).text
    [answer] = converse(fleet, "c", b.address, hello(sender="a"), token=token)
    assert answer.refusal.code == pb.REFUSAL_CODE_IDENTITY
    told(b, "its certificate is not the one that a showed in the admission handshake")
    in_quarantine(b)  # c, and not a


def test_a_board_that_asks_for_tokens_without_end_pushes_out_nobody_elses_token(fleet, clock):
    """From many addresses, more often than the front end lets it: c is named, and the token of a is
    still good. All of it is at one moment of the front end's clock."""
    limits = replace(LIMITS, admission_burst=20, admissions_per_s=1.0)
    with GrpcTransport("b", RUN, limits=limits, security=fleet.security("b")) as b:
        b.connect({"a": "127.0.0.1:1"})
        token = admission_handshake(fleet, fleet.of("a"), b.address).text
        let_in = 0
        for k in range(40):
            with suppress(OSError):
                admission_handshake(fleet, fleet.of("c"), b.address, f"127.0.0.{2 + k % 16}")
                let_in += 1
        assert let_in == 20
        assert "refused c at" in told(b, "it makes more than 1 admission handshakes a second", "127.0.0.")
        [answer] = converse(fleet, "a", b.address, hello(sender="a", run_id=b""), token=token)
        assert "it belongs to run" in answer.refusal.reason


def test_tokens_of_a_peer_that_nobody_connects_to_are_few(fleet, pair):
    """However often it is looked whether it is there."""
    a, b = fleet.security("a"), pair[1]
    for _ in range(9):
        assert asyncio.run(a.check("b", addresses.parse(b.address, "target"))) == "b"
    names = [dict(a.channel_options("b"))["grpc.ssl_target_name_override"] for _ in range(9)]
    assert len(set(names)) == 4 + 1  # then it goes by its name, without a token


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_1"])
def test_a_downgrade_with_a_token(fleet, pair, version):
    """The server behind the front end would take it."""
    _, b = pair
    name = serial_name(7, fleet.ca.fleet_id, admission_handshake(fleet, fleet.of("c"), b.address).text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what it is about
        newest = {"maximum_version": ssl.TLSVersion[version], "ciphers": "ALL:@SECLEVEL=0"}
        context = fleet.client_context(fleet.of("c"), H2, minimum_version=ssl.TLSVersion.TLSv1, **newest)
    is_refused(context, b.address, name)
    told(b, "it does not speak TLS 1.3")


def test_a_board_whose_interpreter_is_busy_still_answers(fleet):
    """As it is while it imports torch: what holds Python's lock must not look like a dead board, so
    the question of a keepalive is answered meanwhile."""
    process = PeerProcess("b", identity=str(fleet.folder("b")))
    try:
        token = admission_handshake(fleet, fleet.of("a"), process.address).text
        name = serial_name(fleet.security("b").identity.certificate.serial, fleet.ca.fleet_id, token)
        with (
            dial(process.address) as plain,
            fleet.client_context(fleet.of("a"), H2).wrap_socket(plain, server_hostname=name) as s,
            s.makefile("rb") as answers,
        ):

            def answer() -> tuple[int, int, bytes]:
                """The next frame's type, flags and content (RFC 9113, 4.1)."""
                head = answers.read(9)
                return head[3], head[4], answers.read(int.from_bytes(head[:3], "big"))

            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            assert answer()[0] == 4  # its settings: it is through to gRPC
            process.hold()
            s.sendall(bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + b"awake? b")
            while (ping := answer())[0] != 6 or not ping[1]:
                pass
            assert ping[2] == b"awake? b"
            process.let_go()
    finally:
        process.kill()
