"""Malformed messages for every call of a board: honest ones, mutated, cut, spliced, out of order,
with huge numbers. Seeded and pure.

A message that would be taken for a good one is not made. What is wrong with a frame in a stream is
the engine's affair (tests/fuzz/test_mutated_frames.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from google.protobuf.message import Message

from edgegossip.mesh._proto import membership_pb2 as members_pb
from edgegossip.mesh._proto import mesh_pb2 as pb
from edgegossip.mesh.membership import wire as members_wire
from edgegossip.mesh.wire import chunk_message
from edgegossip.types import PeerError

HUGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
MAX_RANDOM_BYTES = 4096
NO_AGREEMENTS = (
    b"\xff\xfe\x00",
    b"{",
    b"[]",
    b"null",
    b"[" * 4000,
    b'{"task":' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"task":"' + b"x" * 1_000_000 + b'"}',
    b'{"values":NaN}',
    b'{"values":' + b"9" * 4000 + b"}",
    b'{"start":[1e999,-Infinity]}',
    b'{"start":[' + b"1," * 1000 + b"1]}",
    b'{"target":"\\ud800"}',
    b'{"target":"\\u001b[31m\\n"}',
    b'{"target":"9 classes","target":"8 classes"}',
    '{"target":"9 classes"}'.encode("utf-16"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """What an attacker of the fleet knows of the board, and who it is itself."""

    board: str
    run_id: bytes
    manifest: int
    members: tuple[str, ...]
    me: str
    address: str


def mutate(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """One to four changes that know nothing of what the bytes mean, apart from where lengths and
    tags may be."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(9):
            case 0 | 1 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 2 if out:
                out[at % len(out)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 3:
                del out[at : at + rng.choice((1, 2, 4, 8, 64))]
            case 4:
                out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
            case 5:
                del out[at:]
            case 6:  # a length or a number far too large
                out[at : at + 1] = b"\xff" * rng.randint(1, 10) + bytes((rng.randrange(128),))
            case 7:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                out[at:] = other[start : start + MAX_RANDOM_BYTES]
            case 8:
                out[at:at] = out[max(0, at - 16) : at]
    return bytes(out)


class Maker:
    """All from one seed and the number of the batch."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._messages = [m.SerializeToString() for m in _every_message(target)]

    # -- streams of the mesh

    def hello(self, rng: Random) -> pb.ExchangeRequest:
        t = self._target
        hello = pb.Hello(protocol_version=1, run_id=t.run_id, sender=t.me, receiver=t.board)
        hello.session = rng.getrandbits(63) + 1
        return pb.ExchangeRequest(hello=hello)

    def stream(self, rng: Random) -> list[bytes]:
        """A stream with one thing wrong in it, at its end."""
        hello = self.hello(rng).SerializeToString()
        first, second = (self._chunk(rng, 1, at, 64) for at in (0, 32))
        match rng.randrange(12):
            case 0:
                return [mutate(hello, rng, self._messages)]
            case 1:
                return [self._hello_changed(rng)]
            case 2:
                return [rng.choice((first, b"", pb.ExchangeRequest(goodbye=pb.Goodbye()).SerializeToString()))]
            case 3:
                return [rng.randbytes(rng.randrange(1, MAX_RANDOM_BYTES))]
            case 4:
                return [hello, rng.choice((hello, b"", rng.randbytes(40)))]
            case 5:
                return [hello, mutate(first, rng, self._messages)]
            case 6:
                return [hello, first, mutate(second, rng, self._messages)]
            case 7:
                return [
                    hello,
                    self._chunk(rng, rng.choice((0, *HUGE)), rng.choice((0, 1, *HUGE)), rng.choice((0, 1, 64, *HUGE))),
                ]
            case 8:
                return [hello, first, first]
            case 9:
                return [hello, first, self._chunk(rng, 2, 0, 64)]
            case 10:
                return [hello, _nested(rng)]
            case _:
                return [hello, mutate(rng.choice(self._messages), rng, self._messages)]

    def _chunk(self, rng: Random, transfer: int, offset: int, total: int) -> bytes:
        return chunk_message(transfer, offset, total, rng.randrange(2) == 1, [memoryview(rng.randbytes(32))])

    def _hello_changed(self, rng: Random) -> bytes:
        request, t = self.hello(rng), self._target
        match rng.randrange(6):
            case 5:
                request.hello.agreement = rng.choice(NO_AGREEMENTS)
            case 0:
                request.hello.protocol_version = rng.choice((0, 2, 2**32 - 1))
            case 1:
                request.hello.run_id = rng.randbytes(rng.choice((0, 15, 16, 17, 4096)))
            case 2:
                request.hello.sender = rng.choice(("", t.board, *t.members[:3], "x" * 5000, "\x1b[31m\n"))
            case 3:
                request.hello.receiver = rng.choice(("", t.me, "nobody", "y" * 5000))
            case _:
                request.hello.sender = rng.choice([m for m in t.members if m != t.me])
        return request.SerializeToString()

    # -- calls

    def probe(self, rng: Random) -> bytes:
        """A ProbeRequest that no member may send."""
        while True:
            request = _probe(self._target, rng)
            if rng.randrange(2):
                _twist(request, rng)
                data = request.SerializeToString()
            else:
                data = mutate(request.SerializeToString(), rng, self._messages)
            if not self._is_good_probe(data):
                return data

    def _is_good_probe(self, data: bytes) -> bool:
        t = self._target
        try:
            asked = members_wire.parse(members_pb.ProbeRequest, data)
            members_wire.message_of(asked, len(t.members))
        except PeerError:
            return False
        envelope = (asked.protocol_version, asked.run_id, asked.manifest, asked.sender, asked.receiver)
        return envelope == (1, t.run_id, t.manifest, t.me, t.board)

    def join(self, rng: Random) -> bytes:
        """A JoinRequest, mostly one that is none or of somebody else."""
        t = self._target
        request = members_pb.JoinRequest(protocol_version=1, name=t.me, reached=t.address, run_id=t.run_id)
        if rng.randrange(2):
            return mutate(request.SerializeToString(), rng, self._messages)
        match rng.randrange(4):
            case 0:
                request.name = rng.choice(("", t.board, "z" * 70000, "\n\x00", *t.members))
            case 1:
                request.protocol_version = rng.choice((0, 2, 2**32 - 1))
            case 2:
                request.run_id = rng.randbytes(rng.choice((1, 16, 4096)))
            case _:
                request.reached = rng.choice(("", "::::", "x" * 5000, "1.2.3.4:99999", "\n"))
        return request.SerializeToString()


def _every_message(t: Target) -> list[Message]:
    """An honest one of every message of the protocol."""
    rng = Random(1)
    probe = _probe(t, rng)
    return [
        pb.ExchangeRequest(
            hello=pb.Hello(protocol_version=1, run_id=t.run_id, sender=t.me, receiver=t.board, session=7)
        ),
        pb.ExchangeRequest(chunk=pb.Chunk(transfer=1, offset=0, total=4, acknowledge=True, data=b"data")),
        pb.ExchangeRequest(goodbye=pb.Goodbye()),
        pb.ExchangeResponse(welcome=pb.Welcome(session=7, completed=3, partial=4, partial_received=10)),
        pb.ExchangeResponse(refusal=pb.Refusal(code=pb.REFUSAL_CODE_RUN_ID, reason="no", transfer=3)),
        pb.ExchangeResponse(ack=pb.Ack(transfer=3, received=10, held_us=5)),
        members_pb.JoinRequest(protocol_version=1, name=t.me, reached=t.address, run_id=t.run_id),
        members_pb.JoinResponse(manifest=b"{}", signature=b"s", seen_as="10.0.0.1", rows=probe.rows, name=t.board),
        probe,
        members_pb.ProbeResponse(unreached=True, digest=5, rows=probe.rows),
    ]


def _probe(t: Target, rng: Random) -> members_pb.ProbeRequest:
    request = members_pb.ProbeRequest(
        protocol_version=1,
        run_id=t.run_id,
        manifest=t.manifest,
        sender=t.me,
        receiver=t.board,
        number=rng.getrandbits(32),
        digest=rng.getrandbits(64),
        rows=[
            members_pb.Row(
                member=k, status=members_pb.MEMBER_STATUS_ALIVE, incarnation=1, life=7, address="10.0.0.1:77"
            )
            for k in range(len(t.members))
        ],
    )
    if rng.randrange(2):
        request.ping_for.target = rng.randrange(len(t.members))
        request.ping_for.timeout_ms = rng.randrange(500)
    return request


def _twist(request: members_pb.ProbeRequest, rng: Random) -> None:
    """One field with a value that cannot be."""
    row = rng.choice(request.rows)
    changes: list[Callable[[], object]] = [
        lambda: setattr(row, "member", rng.choice((len(request.rows), 64, 2**32 - 1))),
        lambda: setattr(row, "status", rng.choice((0, 5, 99, -1))),
        lambda: setattr(row, "incarnation", rng.choice((0, 2**62, 2**64 - 1))),
        lambda: setattr(row, "address", rng.choice(("x" * 300, "no port", "\x00:1", "1.2.3.4:0", "[::1]:99999"))),
        lambda: request.rows.append(row),
        lambda: request.rows.extend([row] * rng.choice((64, 5000))),
        lambda: setattr(request, "manifest", rng.getrandbits(64)),
        lambda: setattr(request, "sender", rng.choice(("", "nobody", "s" * 70000))),
        lambda: setattr(request.ping_for, "target", rng.choice((64, 2**32 - 1))),
    ]
    rng.choice(changes)()


def _nested(rng: Random) -> bytes:
    """Groups inside groups, deeper than any parser follows."""
    return b"\x0b" * rng.choice((50, 99, 101, 5000, 60000))
