"""gRPC's standard services beside our own: grpc.health.v1.Health (Check, Watch) and
grpc.reflection.v1.ServerReflection, also under its older name v1alpha, so that usual tools
(grpcurl, grpc_health_probe) know a board without our files.

Messages and reflection's answers are those of grpcio-health-checking and grpcio-reflection. Here is
what a board adds, since strangers talk to it: a rate for each caller, a bound on streams, an end to
those that keep silent, and messages that are checked before they are parsed. Health's package is
not used beyond its messages: its Watch does not end with the server, so a board that leaves would
wait for whoever watches it, and when one of several watchers goes it forgets the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import DecodeError as ProtobufDecodeError
from typing_extensions import override

from edgegossip.mesh import address as addresses
from edgegossip.mesh._grpc import GenericRpcHandler, grpc, health_pb2
from edgegossip.mesh.base import loop_s
from edgegossip.mesh.connections import Security, Tell
from edgegossip.security.limits import Decision, RateLimitedLog, RequestLimiter, network_of
from edgegossip.types import DecodeError
from edgegossip.untrusted import Refusal, printable

HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
CALLS_PER_S, CALL_BURST = 10.0, 100.0  # of one caller: a tool that looks around asks some dozens of questions at once
_MAX_REQUEST_BYTES = 4096
_MAX_STREAMS = 16  # Watch and reflection together
_SILENCE_S = 10.0  # a reflection stream that asks nothing ends


class StandardServices(GenericRpcHandler):
    """Serves health and reflection of a server with these services (full names). `tell` takes lines
    for the log. On the loop."""

    def __init__(
        self,
        services: Iterable[str],
        security: Security | None,
        tell: Tell,
    ) -> None:
        self._services = (*services, HEALTH, *REFLECTION)
        self._ended = asyncio.Event()
        self._streams = 0
        self._security, self._tell = security, tell
        self._questions, self._refusals = RequestLimiter(CALLS_PER_S, CALL_BURST), RateLimitedLog()

    @override
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
        """Say that the server is about to stop, and end the streams."""
        self._ended.set()

    # -- health

    async def _check(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self._admit(context)
        status = self._status((await _parsed(health_pb2.HealthCheckRequest, message, context)).service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _health_response(status)

    async def _watch(self, message: bytes, context: grpc.aio.ServicerContext) -> None:
        await self._admit(context)
        with await self._counted(context):
            status = self._status((await _parsed(health_pb2.HealthCheckRequest, message, context)).service)
            await context.write(_health_response(status))
            await self._ended.wait()
            if status == health_pb2.HealthCheckResponse.SERVING:
                await context.write(_health_response(health_pb2.HealthCheckResponse.NOT_SERVING))

    def _status(self, service: str) -> int:
        """Return a status of HealthCheckResponse. The empty name stands for the whole server."""
        if service and service not in self._services:
            return int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        response = health_pb2.HealthCheckResponse
        return int(response.NOT_SERVING if self._ended.is_set() else response.SERVING)

    # -- reflection

    async def _reflect(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        from grpc_reflection.v1alpha import reflection  # a megabyte, which most boards never need

        await self._admit(context)
        with await self._counted(context):
            servicer = reflection.aio.ReflectionServicer(self._services)
            async for answer in servicer.ServerReflectionInfo(self._asked(context), context):
                await context.write(answer.SerializeToString())

    async def _asked(self, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        """Yield the questions of one stream, until it ends, keeps silent, or the server ends."""
        from grpc_reflection.v1alpha import reflection_pb2

        while True:
            try:
                async with asyncio.timeout(_SILENCE_S):
                    message = await asyncio.shield(context.read())  # shielded: see inbound._read
            except TimeoutError:
                return
            if message is grpc.aio.EOF or self._ended.is_set():
                return
            await self._admit(context)
            yield await _parsed(reflection_pb2.ServerReflectionRequest, message, context)

    # -- who may ask

    async def _admit(self, context: grpc.aio.ServicerContext) -> None:
        """Count one question more. Ends the call when its caller asks too often, and with
        certificates keeps out who insists."""
        who = tuple(context.auth_context().get("x509_subject_alternative_name", ())) or network_of(
            addresses.of_caller(context.peer())
        )
        now_s = loop_s()
        decision = self._questions.take(who, now_s)
        if decision is Decision.ALLOWED:
            return
        reason = f"it asks for health and reflection more than {CALLS_PER_S:g} times a second"
        place = self._security.place(context) if self._security else addresses.of_caller(context.peer())
        if self._refusals.worth(who, now_s, who):
            self._tell(None, Refusal("", printable(place, 64), reason))
        if decision is Decision.ABUSIVE and self._security is not None:
            self._security.misbehaved(context, reason)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

    async def _counted(self, context: grpc.aio.ServicerContext) -> Any:
        """Count one stream more, for a `with` around its life. Ends the call when there are too
        many."""
        if self._streams >= _MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of this kind")
        return self._counting()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def parse(kind: Callable[[], Any], message: bytes) -> Any:
    """Return a request of this kind. Raises DecodeError; a question is short, so nothing long is
    parsed at all."""
    if len(message) > _MAX_REQUEST_BYTES:
        raise DecodeError(f"a request of {len(message)} bytes, the limit is {_MAX_REQUEST_BYTES}")
    request = kind()
    try:
        request.ParseFromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError("a request that is not valid protobuf") from error
    return request


async def _parsed(kind: Callable[[], Any], message: bytes, context: grpc.aio.ServicerContext) -> Any:
    """Return the same on a call, which ends with the reason when it is none."""
    try:
        return parse(kind, message)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _health_response(status: int) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
