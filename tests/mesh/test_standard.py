"""gRPC's health and reflection services: what they answer, and that they end with the board."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.mesh import GrpcTransport
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.standard import HEALTH, REFLECTION, StandardServices, fields
from edgegossip.types import DecodeError
from tests.mesh.support import PATIENCE_S, QUICK, RUN

MESH = "edgegossip.v1.Mesh"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
FILE = mesh_pb2.DESCRIPTOR.name


def asked(name: str, number: int = 1) -> bytes:
    return bytes([number << 3 | 2, len(name)]) + name.encode()


def messages() -> dict:
    """The reflection messages as protobuf classes, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="reflection.proto", package="r", syntax="proto3")

    def add(name: str, *members: tuple[str, int, int, int, str]) -> None:
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in members:
            message.field.add(name=field, number=number, type=kind, label=label, type_name=f".r.{of}" if of else None)

    text, data, nested, number = 9, 12, 11, 5
    add(
        "Request",
        ("host", 1, text, 1, ""),
        ("file", 3, text, 1, ""),
        ("symbol", 4, text, 1, ""),
        ("services", 7, text, 1, ""),
    )
    add("Files", ("file", 1, data, 3, ""))
    add("Service", ("name", 1, text, 1, ""))
    add("Services", ("service", 1, nested, 3, "Service"))
    add("Error", ("code", 1, number, 1, ""), ("text", 2, text, 1, ""))
    add(
        "Response",
        ("original", 2, nested, 1, "Request"), ("files", 4, nested, 1, "Files"), ("services", 6, nested, 1, "Services"),
        ("error", 7, nested, 1, "Error"),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"r.{n}")) for n in ("Request", "Response")}


@pytest.fixture
def board():
    with GrpcTransport("b", RUN, limits=QUICK) as transport:
        yield transport


@pytest.fixture
def channel(board):
    with grpc.insecure_channel(board.address) as made:
        yield made


@pytest.mark.parametrize("name", ["", MESH, HEALTH])
def test_a_board_is_healthy(channel, name):
    assert channel.unary_unary(f"/{HEALTH}/Check")(asked(name), timeout=PATIENCE_S) == SERVING


def test_health_as_the_reference_package_asks(channel):
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    check = channel.unary_unary(
        f"/{HEALTH}/Check",
        request_serializer=health.HealthCheckRequest.SerializeToString,
        response_deserializer=health.HealthCheckResponse.FromString,
    )
    assert (
        check(health.HealthCheckRequest(service=MESH), timeout=PATIENCE_S).status == health.HealthCheckResponse.SERVING
    )


@pytest.mark.parametrize(
    ("request_", "code"),
    [(asked("nobody"), grpc.StatusCode.NOT_FOUND), (b"\x0a\x7f", grpc.StatusCode.INVALID_ARGUMENT)],
)
def test_health_of_what_is_not_there(channel, request_, code):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{HEALTH}/Check")(request_, timeout=PATIENCE_S)
    assert caught.value.code() is code


def test_who_watches_hears_the_end(board, channel):
    watched, heard = channel.unary_stream(f"/{HEALTH}/Watch")(asked(""), timeout=PATIENCE_S), []
    assert next(watched) == SERVING
    assert next(channel.unary_stream(f"/{HEALTH}/Watch")(asked("nobody"), timeout=PATIENCE_S)) == UNKNOWN
    reader = threading.Thread(target=lambda: heard.extend(watched))
    reader.start()
    board.close()
    reader.join(PATIENCE_S)
    assert heard == [NOT_SERVING]


@pytest.mark.parametrize("service", REFLECTION)
def test_reflection_over_a_stream(channel, service):
    made = messages()
    requests = [made["Request"](services=""), made["Request"](file=FILE), made["Request"](symbol=f"{MESH}.Exchange")]
    raw = [asked("", 7), *(r.SerializeToString() for r in requests[1:])]  # an empty field of a oneof is written out
    call = channel.stream_stream(f"/{service}/ServerReflectionInfo")(iter(raw), timeout=PATIENCE_S)
    listed, by_file, by_symbol = (made["Response"].FromString(data) for data in call)
    assert {s.name for s in listed.services.service} == {MESH, HEALTH, *REFLECTION}
    for answer in (by_file, by_symbol):
        [carried] = answer.files.file
        assert carried == mesh_pb2.DESCRIPTOR.serialized_pb
    assert by_symbol.original.symbol == f"{MESH}.Exchange"


@pytest.mark.parametrize(
    ("request_", "code"),
    [(asked("nobody", 4), 5), (asked("x.proto", 3), 5), (asked("x", 6), 12), (b"", 12), (b"\xff", 3)],
)
def test_reflection_of_what_is_not_there(request_, code):
    services = StandardServices([MESH], [mesh_pb2.DESCRIPTOR])
    assert messages()["Response"].FromString(services.answer(request_)).error.code == code


def test_who_asks_too_often_is_refused_then_kept_out():
    """With a certificate; the log hears of it once."""
    lines, struck = [], []
    guard: Any = SimpleNamespace(
        place=lambda context: "10.0.0.3:5", misbehaved=lambda context, reason: struck.append(reason)
    )
    services = StandardServices([MESH], [mesh_pb2.DESCRIPTOR], guard, lambda peer, text: lines.append(text))

    class Context:
        def auth_context(self) -> dict:
            return {"x509_subject_alternative_name": [b"c"]}

        def peer(self) -> str:
            return "unix-abstract:x"

        async def abort(self, code: grpc.StatusCode, text: str) -> None:
            raise PermissionError(code)

    async def check(times: int) -> int:
        refused = 0
        for _ in range(times):
            try:
                assert await services._check(b"", Context()) == SERVING
            except PermissionError as error:
                assert error.args == (grpc.StatusCode.RESOURCE_EXHAUSTED,)
                refused += 1
        return refused

    assert asyncio.run(check(100)) == 0
    assert asyncio.run(check(60)) >= 50 and not struck
    asyncio.run(check(500))
    assert struck and lines == ["refused 10.0.0.3:5: it asks for health and reflection more than 10 times a second"]


def test_too_many_watchers_are_sent_away(channel):
    calls = [channel.unary_stream(f"/{HEALTH}/Watch")(b"", timeout=PATIENCE_S) for _ in range(16)]
    assert [next(call) for call in calls] == [SERVING] * 16
    with pytest.raises(grpc.RpcError) as caught:
        next(channel.unary_stream(f"/{HEALTH}/Watch")(b"", timeout=PATIENCE_S))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in calls:
        call.cancel()


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_an_error(message):
    try:
        found = list(fields(message))
    except DecodeError:
        return
    assert sum(len(data) for _, data in found) <= len(message)
