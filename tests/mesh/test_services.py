"""gRPC's health and reflection services: what they answer, and that they end with the board."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.mesh import GrpcTransport, services
from edgegossip.mesh._proto import mesh_pb2
from edgegossip.mesh.services import HEALTH, REFLECTION, StandardServices, parse
from edgegossip.types import DecodeError
from tests.mesh.support import PATIENCE_S, QUICK, RUN

MESH = "edgegossip.v1.Mesh"
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
FILE = mesh_pb2.DESCRIPTOR.name


def asked(name: str, number: int = 1) -> bytes:
    return bytes([number << 3 | 2, len(name)]) + name.encode()


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


@pytest.fixture
def reflect(channel):
    """Answers of one stream to these requests, as the standard's own messages or as bytes."""

    def ask(*requests: Any, service: str = REFLECTION[0]) -> list[Any]:
        raw = [r if isinstance(r, bytes) else r.SerializeToString() for r in requests]
        call = channel.stream_stream(f"/{service}/ServerReflectionInfo")(iter(raw), timeout=PATIENCE_S)
        return [reflection_pb2.ServerReflectionResponse.FromString(data) for data in call]

    return ask


@pytest.mark.parametrize("service", REFLECTION)
def test_reflection_over_a_stream(reflect, service):
    request = reflection_pb2.ServerReflectionRequest
    by_symbol = request(file_containing_symbol=MESH)
    listed, *files = reflect(request(list_services=""), request(file_by_filename=FILE), by_symbol, service=service)
    assert {s.name for s in listed.list_services_response.service} == {MESH, HEALTH, *REFLECTION}
    for answer in files:
        [carried] = answer.file_descriptor_response.file_descriptor_proto
        assert carried == mesh_pb2.DESCRIPTOR.serialized_pb
    assert files[1].original_request == by_symbol


@pytest.mark.parametrize(
    ("request_", "code"),
    [(asked("nobody", 4), 5), (asked("x.proto", 3), 5), (asked("x", 6), 5), (b"", 3)],
)
def test_reflection_of_what_is_not_there(reflect, request_, code):
    [answer] = reflect(request_)
    assert answer.error_response.error_code == code


@pytest.mark.parametrize("request_", [b"\xff", asked("x" * 100, 4) * 50])
def test_what_is_no_question_ends_the_stream(reflect, request_):
    with pytest.raises(grpc.RpcError) as caught:
        reflect(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_stream_that_asks_nothing_ends(channel, monkeypatch):
    monkeypatch.setattr(services, "_SILENCE_S", 0.05)
    silent = threading.Event()
    requests = iter(lambda: silent.wait(PATIENCE_S) or None, None)
    call = channel.stream_stream(f"/{REFLECTION[0]}/ServerReflectionInfo")(requests, timeout=PATIENCE_S)
    assert list(call) == [] and call.code() is grpc.StatusCode.OK
    silent.set()


def test_who_asks_too_often_is_refused_then_kept_out():
    """With a certificate; the log hears of it once."""
    lines, struck = [], []
    security: Any = SimpleNamespace(
        place=lambda context: "10.0.0.3:5", misbehaved=lambda context, reason: struck.append(reason)
    )
    standard = StandardServices([MESH], security, lambda peer, said: lines.append(str(said)))

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
                answer = await standard._check(b"", Context())
            except PermissionError as error:
                answer = error.args[0]
            assert answer in (SERVING, grpc.StatusCode.RESOURCE_EXHAUSTED)
            refused += answer != SERVING
        return refused

    assert asyncio.run(check(100)) == 0
    assert asyncio.run(check(60)) >= 50 and not struck
    asyncio.run(check(500))
    assert struck and lines == ["refused 10.0.0.3:5: it asks for health and reflection more than 10 times a second"]


def test_without_certificates_a_network_of_many_addresses_asks_no_more_than_one():
    standard = StandardServices([MESH], None, lambda peer, said: None)

    class Context:
        def __init__(self, number: int) -> None:
            self.number = number

        def auth_context(self) -> dict:
            return {}

        def peer(self) -> str:
            return f"ipv6:%5Bfd00:bad::{self.number:x}%5D:7700"

        async def abort(self, code: grpc.StatusCode, text: str) -> None:
            raise PermissionError(code)

    async def refused(number: int) -> bool:
        try:
            return await standard._check(b"", Context(number)) != SERVING
        except PermissionError:
            return True

    assert sum(asyncio.run(refused(number)) for number in range(500)) >= 350


def test_too_many_watchers_are_sent_away(channel, board):
    alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection has 8 calls at a time
    with grpc.insecure_channel(board.address, alone) as one, grpc.insecure_channel(board.address, alone) as other:
        calls = [c.unary_stream(f"/{HEALTH}/Watch")(b"", timeout=PATIENCE_S) for c in (one, other) for _ in range(8)]
        assert [next(call) for call in calls] == [SERVING] * 16
        with pytest.raises(grpc.RpcError) as caught:
            next(channel.unary_stream(f"/{HEALTH}/Watch")(b"", timeout=PATIENCE_S))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(message):
    why = ""
    try:
        parse(reflection_pb2.ServerReflectionRequest, message)
    except DecodeError as error:
        why = str(error)
    assert not why or "not valid protobuf" in why
