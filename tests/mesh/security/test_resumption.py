"""What could go past the look at a certificate: a TLS session of earlier, and a connection of
before the revocation."""

from __future__ import annotations

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.base import Notice
from edgegossip.mesh.wire import METHOD
from edgegossip.security import handshake
from edgegossip.security.tls import ADMISSION
from tests.mesh.fleet import TestFleet
from tests.mesh.security.support import LIMITS, channel_to_b, dial, hello
from tests.mesh.support import PATIENCE_S, RUN, wait_for


def test_the_front_end_gives_no_session_that_could_be_resumed(fleet):
    """A resumed one would look neither at the certificate nor at the revocation list again."""
    context = fleet.client_context(fleet.of("c"), ADMISSION)
    session = None
    with GrpcTransport("b", RUN, limits=LIMITS, security=fleet.security("b")) as b:
        for _ in range(2):
            with dial(b.address) as plain, context.wrap_socket(plain, session=session) as s:
                s.sendall(handshake.hello(1))
                assert s.recv(4096)  # session tickets come before the first data (RFC 8446, 4.6.1)
                session = s.session
                assert not session.has_ticket
                assert not s.session_reused


def test_a_connection_that_outlives_its_revocation_calls_nothing(tmp_path):
    """The front end cuts it a moment after the list has come; nothing is answered in between."""
    own = TestFleet.make(tmp_path)
    with GrpcTransport("b", RUN, limits=LIMITS, security=own.security("b")) as b:
        b.connect({"c": "127.0.0.1:1"})
        with channel_to_b(own, own.of("c"), b.address) as channel:

            def asks() -> pb.ExchangeResponse:
                call = channel.stream_stream(METHOD)(iter([hello(run_id=b"")]), timeout=PATIENCE_S)
                return pb.ExchangeResponse.FromString(next(call))

            assert "it belongs to run" in asks().refusal.reason
            b._security._front_end.cut = lambda which, why: None  # that moment lasts
            own.fleet.revoke("c")
            b._security.look_at_file()
            wait_for(b, Notice, lambda n: "has revocation list 2" in n.text)
            assert asks().refusal.reason == "its certificate was revoked"
