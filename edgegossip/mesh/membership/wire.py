"""The members' messages as protobuf. Nothing from the wire is believed before it is checked
here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message as ProtobufMessage

from edgegossip.mesh import address as addresses
from edgegossip.mesh._proto import membership_pb2 as pb
from edgegossip.mesh.membership.manifest import Manifest
from edgegossip.mesh.membership.protocol import (
    MAX_INCARNATION,
    Ack,
    MemberEntry,
    Nack,
    Ping,
    PingReq,
    Rows,
    Status,
    View,
)
from edgegossip.types import ConfigError, DecodeError, NodeId

M = TypeVar("M", bound=ProtobufMessage)

SERVICE = "edgegossip.v1.Membership"
PROBE, JOIN = f"/{SERVICE}/Probe", f"/{SERVICE}/Join"
PROTOCOL_VERSION = 2
MAX_MESSAGE_BYTES = 1 << 20
_MAX_ADDRESS = 261  # [name of 253 characters]:65535


def request(manifest: Manifest, sender: NodeId, receiver: NodeId, message: Ping | PingReq) -> bytes:
    """Serialise a question about the run of this manifest: a ProbeRequest."""
    out = pb.ProbeRequest(
        protocol_version=PROTOCOL_VERSION,
        run_id=manifest.run_id,
        manifest=manifest.hash,
        sender=sender,
        receiver=receiver,
        number=message.number,
        digest=message.view.digest,
        rows=rows(message.view.rows),
    )
    if isinstance(message, PingReq):
        out.ping_for.target = message.target
        out.ping_for.timeout_ms = round(message.timeout_s * 1000)
    return out.SerializeToString()


def message_of(asked: pb.ProbeRequest, members: int) -> Ping | PingReq:
    """Return the detector's message in a question, in a run of so many members. Raises
    DecodeError."""
    view = View(asked.digest, parse_rows(asked.rows, members))
    if not asked.HasField("ping_for"):
        return Ping(asked.number, view)
    if asked.ping_for.target >= members:
        raise DecodeError("it asks for a member that the run does not have")
    return PingReq(asked.number, asked.ping_for.target, max(0.05, asked.ping_for.timeout_ms / 1000), view)


def response(message: Ack | Nack) -> bytes:
    """Serialise an answer: a ProbeResponse."""
    told = rows(message.view.rows)
    unreached = isinstance(message, Nack)
    return pb.ProbeResponse(unreached=unreached, digest=message.view.digest, rows=told).SerializeToString()


def refusal(reason: str) -> bytes:
    """Serialise the answer that a question is refused."""
    return pb.ProbeResponse(refusal=reason).SerializeToString()


def parse_response(data: bytes, number: int, members: int) -> Ack | Nack | str:
    """Parse the answer to our question `number`, or the reason why it was refused. Raises
    DecodeError."""
    told = parse(pb.ProbeResponse, data)
    if told.refusal:
        return told.refusal
    view = View(told.digest, parse_rows(told.rows, members))
    return Nack(number, view) if told.unreached else Ack(number, view)


def rows(table: Rows) -> list[pb.Row]:
    """Return a table in protobuf."""
    return [
        pb.Row(
            member=k,
            status=entry.status.value,  # type: ignore[arg-type]  # an enum's number
            incarnation=entry.incarnation,
            life=entry.session,
            address=entry.address,
        )
        for k, entry in table
    ]


def parse_rows(told: Iterable[pb.Row], members: int) -> Rows:
    """Check and read a table of so many members, with at most one row each. Raises DecodeError."""
    found: dict[int, MemberEntry] = {}
    for row in told:
        if row.member >= members or row.member in found:
            raise DecodeError("a membership table with a row about nobody, or two about one")
        if not Status.ABSENT < row.status <= Status.LEFT or not 0 < row.incarnation < MAX_INCARNATION:
            raise DecodeError("a membership table with a status or incarnation that cannot be")
        found[row.member] = MemberEntry(Status(row.status), row.incarnation, row.life, _address(row.address))
    return tuple(found.items())


def _address(text: str) -> str:
    if not text:  # a founder that listens everywhere and was not reached yet
        return text
    try:
        if len(text) > _MAX_ADDRESS or not text.isprintable():
            raise DecodeError("a membership table with an address that is none")
        found = addresses.parse(text, "a member's address")
        if set("[]") & set(found.host):  # or it would be another one each time that it is told on
            raise DecodeError("a membership table with an address that is none")
        return str(found)
    except ConfigError as error:
        raise DecodeError(str(error)) from error


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message of this kind. What is inside a question is checked by `message_of`, once
    sender and run are known to be right. Raises DecodeError."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise DecodeError(f"a membership message of {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return kind.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError("a membership message is not valid protobuf") from error
