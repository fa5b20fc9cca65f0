"""gRPC's standard services beside our own: grpc.health.v1.Health (Check, Watch) and grpc.reflection.v1.ServerReflection, also
under its older name v1alpha, so that usual tools (grpcurl, grpc_health_probe) know a board without our files.

Their few messages are read and written here, without generated code: packages that bring such code register the same names, and
two registrations of one name do not go together in a process. Tests hold the bytes against the reference packages.
Sources: grpc/grpc-proto, grpc/health/v1/health.proto and grpc/reflection/v1/reflection.proto.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from google.protobuf.descriptor import FileDescriptor

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import grpc
from edgegossip.mesh.channels import Security, Tell
from edgegossip.mesh.patient import Patient
from edgegossip.mesh.text import printable
from edgegossip.security.limits import RateLimitedLog, RequestLimiter, Verdict
from edgegossip.types import DecodeError

HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3  # HealthCheckResponse.ServingStatus
_NOT_FOUND, _UNIMPLEMENTED, _INVALID = 5, 12, 3  # google.rpc codes in a reflection error
_MAX_REQUEST_BYTES = 4096
_MAX_STREAMS = 16  # Watch and reflection together
CALLS_PER_S, CALL_BURST = 10.0, 100.0  # of one caller: a tool that looks around asks some dozens of questions at once
_SILENCE_S = 10.0  # a reflection stream that asks nothing ends

# Field numbers of ServerReflectionRequest and of ServerReflectionResponse.
_BY_FILENAME, _BY_SYMBOL, _LIST_SERVICES = 3, 4, 7
_ORIGINAL, _FILES, _SERVICES, _ERROR = 2, 4, 6, 7


class StandardServices(grpc.GenericRpcHandler):
    """Of a server with these services (full names) that are defined in these files, dependencies first. `tell` takes lines for
    the log."""

    def __init__(
        self,
        services: Iterable[str],
        files: Sequence[FileDescriptor],
        security: Security | None = None,
        tell: Tell = lambda _peer, _text: None,
    ) -> None:
        self._services = (*services, HEALTH, *REFLECTION)
        self._files = tuple(files)
        self._serving = True
        self._ended = asyncio.Event()
        self._streams = 0
        self._security, self._tell = security, tell
        self._questions, self._teller = RequestLimiter(CALLS_PER_S, CALL_BURST), RateLimitedLog()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        if method == f"/{HEALTH}/Check":
            return grpc.unary_unary_rpc_method_handler(self._check)
        if method == f"/{HEALTH}/Watch":
            return grpc.unary_stream_rpc_method_handler(self._watch)
        if method in [f"/{name}/ServerReflectionInfo" for name in REFLECTION]:
            return grpc.stream_stream_rpc_method_handler(self._reflect)
        return None

    def end(self) -> None:
        """The server is about to stop: say so, and end the streams."""
        self._serving = False
        self._ended.set()

    async def _admit(self, context: grpc.aio.ServicerContext) -> None:
        """One question more. Ends the call when its caller asks too often, and with certificates keeps out who insists."""
        who = tuple(context.auth_context().get("x509_subject_alternative_name", ())) or addresses.without_port(
            addresses.of_caller(context.peer())
        )
        now_s = time.monotonic()
        verdict = self._questions.take(who, now_s)
        if verdict is Verdict.ALLOWED:
            return
        reason = f"it asks for health and reflection more than {CALLS_PER_S:g} times a second"
        place = self._security.place(context) if self._security else addresses.of_caller(context.peer())
        if self._teller.worth(who, now_s, who):
            self._tell(None, f"refused {printable(place, 64)}: {reason}")
        if verdict is Verdict.INSISTS and self._security is not None:
            self._security.misbehaved(context, reason)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

    # -- health ----------------------------------------------------------------------------------------------

    async def _check(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self._admit(context)
        status = await self._status(request, context)
        if status == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _number(1, status)

    async def _watch(self, request: bytes, context: grpc.aio.ServicerContext) -> None:
        with await self._stream(context):
            status = await self._status(request, context)
            await context.write(_number(1, status))
            await self._ended.wait()
            if status == SERVING:
                await context.write(_number(1, NOT_SERVING))

    async def _status(self, request: bytes, context: grpc.aio.ServicerContext) -> int:
        try:
            asked = next((data.decode() for number, data in fields(request) if number == 1), "")
        except (DecodeError, UnicodeDecodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        if asked and asked not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._serving else NOT_SERVING

    # -- reflection ------------------------------------------------------------------------------------------

    async def _reflect(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        with await self._stream(context), suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    request = await Patient(context.read())
                if request is grpc.aio.EOF or not self._serving:
                    return
                await self._admit(context)
                await context.write(_bytes(_ORIGINAL, request) + self.answer(request))

    def answer(self, request: bytes) -> bytes:
        """The part of a ServerReflectionResponse that answers a ServerReflectionRequest."""
        try:
            asked = [(number, data.decode()) for number, data in fields(request) if number != 1]  # 1: host, not needed
        except (DecodeError, UnicodeDecodeError):
            return _failure(_INVALID, "not a ServerReflectionRequest")
        number, name = asked[-1] if asked else (0, "")
        if number == _LIST_SERVICES:
            return _bytes(_SERVICES, b"".join(_bytes(1, _bytes(1, name.encode())) for name in self._services))
        if number not in (_BY_FILENAME, _BY_SYMBOL):
            return _failure(_UNIMPLEMENTED, "there are no extensions")
        for i, file in enumerate(self._files):
            if name == file.name if number == _BY_FILENAME else name in symbols(file):
                return _bytes(_FILES, b"".join(_bytes(1, f.serialized_pb) for f in reversed(self._files[: i + 1])))
        return _failure(_NOT_FOUND, "not found")

    async def _stream(self, context: grpc.aio.ServicerContext) -> _Counted:
        await self._admit(context)
        if self._streams >= _MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of this kind")
        return _Counted(self)


class _Counted:
    """One of the streams, while it is open."""

    def __init__(self, services: StandardServices) -> None:
        self._of = services

    def __enter__(self) -> None:
        self._of._streams += 1

    def __exit__(self, *_error: object) -> None:
        self._of._streams -= 1


def symbols(file: FileDescriptor) -> frozenset[str]:
    """Full names of what a file defines: messages, enumerations, services and their methods."""
    names = {m.full_name for m in file.message_types_by_name.values()}
    names |= {e.full_name for e in file.enum_types_by_name.values()}
    for service in file.services_by_name.values():
        names |= {service.full_name, *(method.full_name for method in service.methods)}
    return frozenset(names)


# -- the protobuf encoding, as far as it is needed here -----------------------------------------------------------


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of the length-delimited fields; others are passed over. Raises DecodeError."""
    if len(message) > _MAX_REQUEST_BYTES:
        raise DecodeError(f"a request of {len(message)} bytes, the limit is {_MAX_REQUEST_BYTES}")
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        size, kind = 0, tag & 7
        if kind in (0, 2):
            size, at = _read_varint(message, at)
        if kind == 0:
            continue
        if kind != 2:
            size = {1: 8, 5: 4}.get(kind, len(message))
        if at + size > len(message):
            raise DecodeError("a request that ends in the middle of a field")
        if kind == 2:
            yield tag >> 3, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DecodeError("a number without an end")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _failure(code: int, text: str) -> bytes:
    return _bytes(_ERROR, _number(1, code) + _bytes(2, text.encode()))
