"""Trouble of the board itself: no descriptors left, a defect of ours. The front end goes on, and
the log says what it was."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.base import Notice
from edgegossip.security import front_end
from edgegossip.security.certificates import certificate_from_pem
from edgegossip.security.identity import CERTIFICATE
from edgegossip.security.limits import endpoint
from edgegossip.types import HostError
from tests.mesh.security.support import LIMITS, admission_handshake, dial, ended, left, others
from tests.mesh.support import PATIENCE_S, RUN, connect_all, until, wait_for


class NoneLeft(socket.socket):
    """The first connections to our own gRPC server find no descriptor."""

    left = 0

    def __init__(self, family: int = -1, *more: object, **named: object) -> None:
        if family == socket.AF_UNIX and NoneLeft.left:
            NoneLeft.left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        super().__init__(family, *more, **named)  # type: ignore[arg-type]


def test_a_descriptor_too_few_costs_one_connection_and_not_the_port(fleet, monkeypatch):
    a, b = (GrpcTransport(name, RUN, limits=LIMITS, security=fleet.security(name)) for name in "ab")
    monkeypatch.setattr(front_end.socket, "socket", NoneLeft)
    monkeypatch.setattr(NoneLeft, "left", 1)
    with a, b:
        b.connect({"a": a.address})
        text = wait_for(a, Notice, lambda n: n.text.startswith("trouble of this board with the connection of b")).text
        assert text.endswith("too many open files")
        connect_all([a, b], ["a", "b"])
        assert NoneLeft.left == 0
        others(a, b)


def test_who_connects_while_the_board_starts_is_answered(fleet, monkeypatch):
    """The listener's backlog has it before the board has finished its front end."""
    right, answers = front_end.FrontEnd.__init__, []

    def slowly(self: front_end.FrontEnd, *arguments: object, **named: object) -> None:
        right(self, *arguments, **named)
        early.append(
            threading.Thread(
                target=lambda: answers.append(admission_handshake(fleet, fleet.of("c"), endpoint(*self.address)))
            )
        )
        early[0].start()
        early[0].join(0.5)  # as long as it would take a thread that answers already

    early: list[threading.Thread] = []
    monkeypatch.setattr(front_end.FrontEnd, "__init__", slowly)
    with GrpcTransport("b", RUN, limits=LIMITS, security=fleet.security("b")) as b:
        early[0].join(PATIENCE_S)
        assert [answer.welcome for answer in answers] == [True]
        assert not [e for e in left(b) if isinstance(e, Notice) and "trouble" in e.text]


def test_a_port_that_is_taken_at_the_last_moment_leaves_no_server_behind(fleet, monkeypatch):
    def servers() -> int:
        """How many of this process listen for a front end."""
        return Path("/proc/net/unix").read_text().count(f"@edgegossip-{os.getpid()}-")

    def taken(host: str, port: int) -> socket.socket:
        raise HostError("cannot listen")

    before = servers()
    monkeypatch.setattr(front_end, "listen", taken)
    with pytest.raises(HostError, match="cannot listen"):
        GrpcTransport("b", RUN, limits=LIMITS, security=fleet.security("b"))
    assert servers() <= before


@pytest.mark.parametrize("where", ["_step", "_expire", "_accept"])
def test_a_defect_of_ours_does_not_close_the_port(fleet, pair, clock, monkeypatch, where):
    _a, b = pair
    right, times = getattr(front_end.FrontEnd, where), [2]

    def wrong(self: front_end.FrontEnd, *arguments: object) -> None:
        if self is b._security._front_end and times[0]:
            times[0] -= 1
            raise ZeroDivisionError("a defect")
        right(self, *arguments)

    monkeypatch.setattr(front_end.FrontEnd, where, wrong)
    with dial(b.address) as s:
        wait_for(b, Notice, lambda n: n.text.startswith("trouble of this board") and "a defect" in n.text)
        if where != "_step":  # which has cost it its connection
            clock.too_late_for(s, b, "the TLS handshake")
        assert ended(s)
    with GrpcTransport("c", RUN, limits=LIMITS, security=fleet.security("c")) as c:
        connect_all([b, c], ["b", "c"])
    assert b._security._front_end.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_front_end_that_ended_is_told_of(fleet, monkeypatch):
    """Cannot be, as far as we know; a board that is deaf must not be silent about it."""
    monkeypatch.setattr("edgegossip.mesh.tls_security._LOOK_S", 0.05)
    with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a:

        def end() -> None:
            raise SystemExit

        a._security._front_end._do(end)
        wait_for(a, Notice, lambda n: n.text.startswith("the front end of this board does not work any more"))


def test_a_certificate_that_ends_during_a_run_is_told_of_once(fleet, monkeypatch):
    """Connections that stand are not looked at again."""
    monkeypatch.setattr("edgegossip.mesh.tls_security._LOOK_S", 0.05)
    with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a:
        certificate = fleet.folder("a") / CERTIFICATE
        end_s = certificate_from_pem(certificate.read_bytes()).valid[1]
        monkeypatch.setattr(a._security, "_clock", lambda: end_s + 1.0)
        wait_for(a, Notice, lambda n: n.text.startswith("our own certificate has expired by the clock here"))
        looks, look = [], a._security._look

        async def counted() -> None:
            looks.append(1)
            await look()

        monkeypatch.setattr(a._security, "_look", counted)
        until(lambda: len(looks) >= 3, "it has looked again")
        assert a.incoming(0.0) is None
