"""A revocation reaches every board and cuts at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from edgegossip.fleet.revocation import tell
from edgegossip.mesh import GrpcTransport
from edgegossip.mesh.address import Address
from edgegossip.mesh.base import Notice, PeerDown, PeerUp, Received
from edgegossip.security import certificates
from edgegossip.security.admission import Caller
from edgegossip.security.certificates import RevocationList
from edgegossip.security.names import Subject
from edgegossip.security.tls import H2
from edgegossip.types import PeerError
from tests.mesh.fleet import DAY, NOW, TestFleet
from tests.mesh.security.support import LIMITS, is_refused, others, told
from tests.mesh.support import RUN, connect_all, wait_for


@pytest.fixture
def own(tmp_path) -> TestFleet:
    return TestFleet.make(tmp_path)


def test_a_revocation_spreads_and_cuts_at_once(own):
    """Board a is told; b hears it from a and drops c, which is connected; c itself hears why it is
    refused."""
    a, b, c = (GrpcTransport(name, RUN, limits=LIMITS, security=own.security(name)) for name in "abc")
    with a, b, c:
        connect_all([a, b, c], ["a", "b", "c"])
        kept = own.folder("b") / "crl.pem"
        before = kept.read_bytes()
        with hidden(own.fleet.folder / "boards"):  # the boards' folders are elsewhere
            fleet = own.fleet.revoke("c")
        assert kept.read_bytes() == before
        assert tell(fleet, a.address) == ("a", 2)
        wait_for(a, Notice, lambda n: n.text == "the-operator brought revocation list 2: 1 certificates are revoked")
        wait_for(b, Notice, lambda n: n.text.endswith("brought revocation list 2: 1 certificates are revoked"))
        for t in (a, b):
            assert wait_for(t, PeerDown).peer == "c"
        assert "it says that our certificate was revoked" in wait_for(c, Notice, lambda n: "revoked" in n.text).text
        others(a, b)
        assert kept.read_bytes() != before  # for its next start
        assert tell(fleet, b.address) == ("b", 2)


@contextmanager
def hidden(folder: Path) -> Iterator[None]:
    folder.rename(folder.with_name("elsewhere"))
    yield
    folder.with_name("elsewhere").rename(folder)


def test_a_revoked_caller_and_a_revoked_listener(own):
    """c was revoked before anybody met it: a refuses it in TLS, and does not connect to c."""
    old = own.of("c")
    own.fleet.revoke("c")
    with GrpcTransport("a", RUN, limits=LIMITS, security=own.security("a")) as a:
        is_refused(own.client_context(old, H2), a.address)
        told(a, "its certificate was revoked")
        with GrpcTransport("c", RUN, limits=LIMITS, security=own.security("c")) as c:
            a.connect({"c": c.address})
            wait_for(a, Notice, lambda n: "cannot reach c" in n.text and "its certificate was revoked" in n.text)


def test_a_list_copied_into_the_folder_of_a_running_board(own):
    with GrpcTransport("a", RUN, limits=LIMITS, security=own.security("a")) as a:
        own.fleet.revoke("c")  # its folder is the fleet's own here, so it gets the list
        assert wait_for(a, Notice).text == "the folder has revocation list 2: 1 certificates are revoked"


@pytest.mark.parametrize("damage", ["missing", "half copied"])
def test_a_list_counts_when_the_folders_certificate_cannot_be_used_at_the_moment(own, damage):
    """c is cut, the others are told, and the files are taken again once they are whole."""
    a, b, c = (GrpcTransport(name, RUN, limits=LIMITS, security=own.security(name)) for name in "abc")
    with a, b, c:
        connect_all([a, b, c], ["a", "b", "c"])
        file = own.folder("a") / "identity.pem"
        good = file.read_bytes()
        if damage == "missing":
            file.rename(file.with_suffix(".away"))
        else:
            file.write_bytes(good[:300])
        with hidden(own.fleet.folder / "boards"):
            fleet = own.fleet.revoke("c")
        (own.folder("a") / "crl.pem").write_bytes((fleet.folder / "crl.pem").read_bytes())
        a._security.look_at_file()
        seen: list = []
        wait_for(a, Notice, lambda n: "this board goes on with the certificate that it has" in n.text, seen)
        assert any(isinstance(e, Notice) and "has revocation list 2" in e.text for e in seen), seen
        wait_for(b, Notice, lambda n: n.text.startswith("a brought revocation list 2"))
        if not any(isinstance(e, PeerDown) for e in seen):
            assert wait_for(a, PeerDown).peer == "c"
        assert [caller.subject.name for caller in a._security._front_end._callers.values()] == ["b"]
        others(a, b)
        assert a._security._files.stale
        file.write_bytes(good)
        a._security._look_at_credentials()
        assert not a._security._files.stale


def test_a_board_that_was_given_a_new_certificate_is_let_in_again(own):
    """Without a restart: its folder is replaced, and it is tried again."""
    a, c = (GrpcTransport(name, RUN, limits=LIMITS, security=own.security(name)) for name in "ac")
    with a, c:
        connect_all([a, c], ["a", "c"])
        with hidden(own.fleet.folder / "boards"):
            fleet = own.fleet.revoke("c")
        tell(fleet, a.address)
        assert wait_for(a, PeerDown).peer == "c"
        fleet.add("c", "board", 20)
        assert wait_for(a, PeerUp).peer == "c"
        wait_for(c, PeerUp)
        a.send("c", [b"again"])
        assert bytes(wait_for(c, Received).data) == b"again"


def test_who_is_told_has_to_be_a_board_of_the_fleet(fleet, own):
    with GrpcTransport("a", RUN, limits=LIMITS, security=fleet.security("a")) as a:
        with pytest.raises(PeerError, match="of another fleet"):
            tell(own.fleet, a.address)
        told(a, "it says that our certificate is of another fleet")
    with pytest.raises(PeerError, match="connection refused"):
        tell(own.fleet, a.address)


def forged(number: int, entries: int = 0) -> bytes:
    """A revocation list that another authority signed."""
    other = certificates.new_authority("other", NOW + DAY)
    made = certificates.revocation_list(other, number, range(1, entries + 1))
    return made.public_bytes(Encoding.DER)


def test_a_lists_entries_are_read_only_when_it_is_new_and_signed(fleet, monkeypatch):
    """Thousands of them take a while, on the front end's thread."""
    revocations = fleet.security("b").identity.revocations
    monkeypatch.setattr(RevocationList, "serials", property(lambda self: pytest.fail("they were read")))
    with pytest.raises(PeerError, match="did not sign"):
        revocations.offer(forged(100, 10_000))
    assert revocations.offer(forged(0, 10_000)) is False


def test_a_damaged_list_is_refused(fleet):
    revocations = fleet.security("b").identity.revocations
    good = forged(100)
    for data in (good[:-1], good + b"x", b"", b"\x30\x03" + good, bytes((1 << 20) + 1)):
        with pytest.raises(PeerError, match="a revocation list that is damaged$"):  # one line of a log for all
            revocations.offer(data)


@pytest.mark.parametrize("what", ["forged", "the one that we have", "older"])
def test_who_gives_a_list_for_nothing_is_cut_off_and_kept_out(fleet, monkeypatch, what):
    security, lines, cuts = fleet.security("b"), [], []
    present = security.identity.revocations.present
    security.start(LIMITS, lambda peer, text: lines.append((peer, text)), lambda: None, lambda *_: None)
    security.listen(Address("127.0.0.1", 0))
    monkeypatch.setattr(security._front_end, "cut", lambda which, why: cuts.append(which))
    c = Caller(Subject("c", "board", security.identity.fleet), 7, "127.0.0.1:1")
    data = {"forged": forged(100), "the one that we have": present.der, "older": forged(0)}[what]
    with pytest.raises(PeerError):
        security._front_end.take_list(c, data, present.number)
    [(peer, line)] = lines
    assert peer == "c" and line.startswith("c is in quarantine for 300 s: ")
    assert [which(c) for which in cuts] == [True]
    with pytest.raises(PeerError, match="in quarantine"):
        security._front_end.take_list(c, data, present.number)
    security.close()
