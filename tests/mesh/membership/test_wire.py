"""Messages and manifests: what goes out comes in again, and nothing else is believed."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.membership import manifest as manifests
from edgegossip.mesh.membership import wire
from edgegossip.mesh.membership.protocol import Ack, MemberEntry, Nack, Ping, PingReq, Status, View
from edgegossip.types import DecodeError, PeerError

MEMBERS = 6
ENTRY = st.builds(
    MemberEntry,
    st.sampled_from([s for s in Status if s]),
    st.integers(1, 2**61),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["", "10.0.0.1:7700", "[fe80::1]:80", "pi-03.local:7700"]),
)
VIEW = st.builds(
    View,
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.integers(0, MEMBERS - 1), ENTRY).map(lambda rows: tuple(rows.items())),
)
MANIFEST = manifests.make(bytes(range(16)), "pi-01", ("pi-01", "pi-02"), "", "")


@given(
    st.one_of(
        st.builds(Ping, st.integers(0, 2**63), VIEW),
        st.builds(PingReq, st.integers(0, 2**63), st.integers(0, MEMBERS - 1), st.sampled_from([0.05, 0.4, 6.0]), VIEW),
    )
)
@settings(deadline=None)
def test_a_question_comes_in_as_it_went_out(message: Ping | PingReq) -> None:
    asked = wire.parse(pb.ProbeRequest, wire.request(MANIFEST, "pi-01", "pi-02", message))
    assert (asked.run_id, asked.manifest, asked.sender, asked.receiver) == (
        bytes(range(16)),
        MANIFEST.hash,
        "pi-01",
        "pi-02",
    )
    assert wire.message_of(asked, MEMBERS) == message


@given(st.builds(Ack, st.just(7), VIEW))
@settings(deadline=None)
def test_an_answer_comes_in_as_it_went_out(message: Ack) -> None:
    assert wire.parse_response(wire.response(message), 7, MEMBERS) == message
    nack = Nack(7, message.view)
    assert wire.parse_response(wire.response(nack), 7, MEMBERS) == nack


def test_a_refusal_comes_in_as_its_reason() -> None:
    assert wire.parse_response(wire.refusal("another run"), 7, MEMBERS) == "another run"


@pytest.mark.parametrize(
    "row",
    [
        {"member": MEMBERS},
        {"status": 0},
        {"status": 9},
        {"incarnation": 0},
        {"incarnation": 2**63},
        {"address": "nowhere"},
        {"address": "10.0.0.1:99999"},
        {"address": "x" * 300 + ":1"},
        {"address": "a\nb:1"},
        {"address": "[[1]]:1"},
        {"address": "[1]]:1"},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_refused(row: dict) -> None:
    good = {"member": 1, "status": 1, "incarnation": 1, "address": "10.0.0.1:7700"}
    assert len(wire.parse_rows([pb.Row(**good)], MEMBERS)) == 1
    with pytest.raises(DecodeError):
        wire.parse_rows([pb.Row(**{**good, **row})], MEMBERS)


@pytest.mark.parametrize(
    "address", ["[1]:1", "[a]:1", "a:00080", "[fd00::1]:80", "[fe80::1%eth0]:80", "pi-01.local:7700"]
)
def test_an_address_that_went_through_the_wire_is_one_for_good(address: str) -> None:
    row = pb.Row(member=1, status=1, incarnation=1, address=address)
    for _ in range(2):
        ((_, entry),) = wire.parse_rows([row], MEMBERS)
        first, row.address = row.address, entry.address
    assert first == entry.address


def test_two_rows_about_one_member_are_refused() -> None:
    row = pb.Row(member=1, status=1, incarnation=1, address="10.0.0.1:7700")
    with pytest.raises(DecodeError):
        wire.parse_rows([row, row], MEMBERS)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for parse in (
        lambda: wire.message_of(wire.parse(pb.ProbeRequest, data), MEMBERS),
        lambda: wire.parse_response(data, 1, MEMBERS),
        lambda: wire.parse(pb.JoinRequest, data),
        lambda: manifests.parse(data, b""),
    ):
        with contextlib.suppress(DecodeError):
            parse()


# -- the manifest


def manifest(**changes: object) -> manifests.Manifest:
    made = manifests.make(bytes(range(16)), "pi-01", ("pi-01", "pi-02"), "ab" * 32, "[run]\nnodes = 2\n")
    return manifests.parse(json.dumps({**json.loads(made.content), **changes}).encode(), b"") if changes else made


def test_two_founders_make_the_same_bytes_of_the_same_run() -> None:
    assert manifest().content == manifest().content and manifest().hash == manifest().hash
    assert manifest(version=2).hash != manifest().hash
    assert manifest().members == ("pi-01", "pi-02") and manifest().run_id == bytes(range(16))


def test_a_founder_that_draws_another_number_is_of_the_same_run() -> None:
    assert manifest().instance == "" and manifest(instance="ab12").instance == "ab12"
    assert manifest(instance="ab12").hash == manifest(instance="cd34").hash == manifest().hash


@pytest.mark.parametrize(
    "changes",
    [
        {"edgegossip": 2},
        {"version": 0},
        {"version": True},
        {"run_id": "zz"},
        {"run_id": "00"},
        {"founder": ""},
        {"members": ["a"]},
        {"members": ["a", "a"]},
        {"members": ["a", 3]},
        {"members": ["a", "b\n"]},
        {"members": [f"m{k}" for k in range(65)]},
        {"recipe": None},
        {"topology": 3},
        {"instance": "Z"},
        {"instance": "0" * 33},
        {"instance": None},
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_is_refused(changes: dict) -> None:
    with pytest.raises(DecodeError):
        manifest(**changes)


class Names:
    """A signer whose signatures are its name and what was signed."""

    def __init__(self, name: str, role: str = "board") -> None:
        self.name, self.role = name, role

    def sign(self, data: bytes) -> bytes:
        return f"{self.name} {self.role} ".encode() + data

    def verify(self, who: str, data: bytes, signature: bytes) -> str:
        name, role, signed = signature.split(b" ", 2)
        if signed != data or who not in (name.decode(), role.decode()):
            raise PeerError("a signature that does not fit")
        return name.decode()


def test_members_and_operators_may_sign_and_nobody_else() -> None:
    reader = Names("pi-02")
    assert manifest().signed_by(Names("pi-01")).verify(reader) == "pi-01"
    assert manifest().signed_by(Names("pi-02")).verify(reader) == "pi-02"  # the founder was revoked
    assert manifest().signed_by(Names("laptop", "operator")).verify(reader) == "laptop"
    with pytest.raises(PeerError, match="pi-03, who is no member"):
        manifest().signed_by(Names("pi-03")).verify(reader)
    signed = manifest().signed_by(Names("pi-01"))
    other = manifests.parse(manifest(version=2).content, signed.signature)
    with pytest.raises(PeerError, match="does not fit"):
        other.verify(reader)
