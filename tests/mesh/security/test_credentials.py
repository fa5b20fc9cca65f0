"""What gRPC is given of a board's certificate, and how often."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from threading import current_thread

import pytest

from edgegossip.mesh import GrpcTransport, tls_security
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import Unreachable
from edgegossip.mesh.tls_security import Credentials, TlsSecurity
from edgegossip.security import certificates
from edgegossip.security.front_end import FrontEnd
from edgegossip.security.identity import CERTIFICATE, KEY, Identity
from tests.mesh.fleet import DAY, NOW, TestFleet
from tests.mesh.security.support import LIMITS, others
from tests.mesh.support import PATIENCE_S, RUN, connect_all


@pytest.fixture
def own(tmp_path) -> TestFleet:
    return TestFleet.make(tmp_path)


def test_grpc_is_given_a_certificate_once(own, monkeypatch):
    given: list = []
    monkeypatch.setattr(
        tls_security.grpc, "dynamic_ssl_server_credentials", lambda *arguments, **_: given.extend(arguments)
    )
    security = own.security("a")
    security.start(LIMITS, lambda _peer, _text: None, lambda: None, lambda *_: None)
    security.server_credentials()
    first, newer = given
    assert [newer(), newer()] == [None, None]
    own.fleet.revoke("c")
    security.look_at_file()
    assert security.identity.revocations.present.number == 2
    security._offer()
    assert newer() is None
    renew(own, "a")
    security._look_at_credentials()
    assert newer() is None  # there may be handshakes now
    security._offer()
    second = newer()
    assert second is not None and second is not first
    assert newer() is None


def renew(own: TestFleet, name: str) -> None:
    own.fleet.revoke(name)
    own.fleet.add(name, "board", 20)


def test_a_running_board_takes_a_new_certificate_over_while_nobody_is_let_in(own, monkeypatch):
    at_work: list = []
    offer, hand_on = TlsSecurity._offer, FrontEnd._hand_on
    monkeypatch.setattr(TlsSecurity, "_offer", lambda self: (at_work.append((self, current_thread())), offer(self)))
    monkeypatch.setattr(
        FrontEnd, "_hand_on", lambda self, *of: (at_work.append((self, current_thread())), hand_on(self, *of))
    )
    a, b = (GrpcTransport(name, RUN, limits=LIMITS, security=own.security(name)) for name in "ab")
    with a:
        security = a._security
        before = security._in_use
        renew(own, "a")  # its folder is the fleet's own here
        until_s = time.monotonic() + PATIENCE_S
        while security._in_use is before and time.monotonic() < until_s:  # nobody connects
            time.sleep(0.01)
        assert security._in_use is security._files.server is not before
        with b:
            connect_all([a, b], ["a", "b"])
            others(a, b)
        front_end = security._front_end
        assert {thread for who, thread in at_work if who in (security, front_end)} == {front_end._thread}
        assert {who for who, _ in at_work} >= {security, front_end}


def test_who_waits_to_be_let_in_takes_a_new_certificate_over(own):
    security = own.security("a")  # of a board that looks for its run: nothing listens yet
    before = security._files.server
    issued = certificates.issue(own.ca, "a", "board", not_after=NOW + DAY)
    replaced(own.folder("a") / KEY, certificates.key_pem(issued.key))
    replaced(own.folder("a") / CERTIFICATE, certificates.certificate_pem(issued.certificate))
    with pytest.raises(Unreachable):
        asyncio.run(security.check("b", Address("127.0.0.1", 9)))
    security.server_credentials()
    assert security._in_use is security._files.server is not before


def test_another_revocation_list_is_another_context_for_our_own_tls_alone(own):
    files = Credentials(Identity.load(own.folder("a")))
    before = files.server, files.channel, files.server_context
    files.look(again=True)
    assert (files.server, files.channel) == before[:2]
    assert files.server_context is not before[2]


def test_files_that_are_replaced_one_after_the_other_are_no_complaint_until_they_stay_so(own):
    folder = own.folder("a")
    files = Credentials(Identity.load(folder))
    before = files.server
    old = {name: (folder / name).read_bytes() for name in (CERTIFICATE, KEY)}
    own.fleet.revoke("a")
    own.fleet.add("a", "board", 20)
    new = {name: (folder / name).read_bytes() for name in (CERTIFICATE, KEY)}
    replaced(folder / KEY, old[KEY])
    assert files.look() == ""  # the key is the old one still
    replaced(folder / CERTIFICATE, old[CERTIFICATE])
    assert files.look() == ""
    replaced(folder / KEY, new[KEY])
    looks = [files.look() for _ in range(4)]
    assert "copy the board's folder again" in looks[1]
    assert looks[0] == looks[2] == looks[3] == ""
    assert files.server is before
    replaced(folder / CERTIFICATE, new[CERTIFICATE])
    assert files.look() == "" and not files.stale
    assert files.server is not before


def replaced(file: Path, data: bytes) -> None:
    file.with_suffix(".new").write_bytes(data)
    file.with_suffix(".new").chmod(0o600)
    file.with_suffix(".new").replace(file)
