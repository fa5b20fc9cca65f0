"""Who comes in: a bad certificate, an old TLS or none is refused, the reason is in the log, the
others go on undisturbed."""

from __future__ import annotations

import socket
import ssl
import threading
import warnings
from contextlib import suppress

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Notice
from edgegossip.security.tls import ADMISSION, H2
from tests.mesh.security.support import BAD, LIMITS, WORDS, dial, is_refused, told
from tests.mesh.support import RUN, wait_for


@pytest.mark.parametrize("what", ["none", *BAD])
def test_a_caller_with(fleet, pair, what):
    _, b = pair
    is_refused(fleet.client_context(fleet.files(what), ADMISSION), b.address)
    told(b, WORDS[what])


@pytest.mark.parametrize("what", [*BAD, "as b"])
def test_a_listener_with(fleet, what):
    """Board a looks for c and finds somebody else."""
    context = fleet.server_context(fleet.files(what), ADMISSION, H2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with suppress(OSError), context.wrap_socket(plain, server_side=True) as s:
                        s.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a:
            a.connect({"c": f"127.0.0.1:{server.getsockname()[1]}"})
            wait_for(a, Notice, lambda n: any(w in n.text for w in WORDS[what].split("|")))
        server.shutdown(socket.SHUT_RDWR)


def test_a_listener_without_tls(fleet):
    with (
        GrpcTransport("c", RUN, limits=LIMITS) as c,
        GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a,
    ):
        a.connect({"c": c.address})
        wait_for(a, Notice, lambda n: "it does not speak TLS" in n.text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"maximum_version": ssl.TLSVersion.TLSv1_2}, "it does not speak TLS 1.3"),
        (
            {
                "minimum_version": ssl.TLSVersion.TLSv1_1,
                "maximum_version": ssl.TLSVersion.TLSv1_1,
                "ciphers": "ALL:@SECLEVEL=0",
            },
            "it does not speak TLS 1.3",
        ),
    ],
)
def test_a_downgrade(fleet, pair, changes, words):
    _, b = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what it is about
        context = fleet.client_context(fleet.of("c"), H2, **changes)
    is_refused(context, b.address)
    told(b, words)


@pytest.mark.parametrize("hello", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", bytes(300)])
def test_plaintext(pair, hello):
    _, b = pair
    with dial(b.address) as s:
        s.sendall(hello)
        with suppress(OSError):
            while s.recv(4096):
                pass
    told(b, "it does not speak TLS")


def test_a_board_without_identity(pair):
    _, b = pair
    with GrpcTransport("c", RUN, limits=LIMITS) as c:
        c.connect({"b": b.address})
        told(b, "it does not speak TLS")
        wait_for(c, Notice)


def test_another_protocol_inside_tls(fleet, pair):
    _, b = pair
    is_refused(fleet.client_context(fleet.of("c"), "http/1.1"), b.address)
    told(b, "it speaks another kind of TLS")


def test_board_c_at_the_address_of_b(fleet, pair):
    """The wrong name: the certificate is good, but it is another board's."""
    _a, b = pair
    with GrpcTransport("c", RUN, limits=LIMITS, security=fleet.security("c")) as c:
        c.connect({"a": b.address})
        wait_for(c, Notice, lambda n: "its certificate is for another name" in n.text)
