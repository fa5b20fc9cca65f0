"""The SuperLink's own process, without what is of no use here."""

from __future__ import annotations

import asyncio.constants
import asyncio.sslproto
import importlib
import ssl
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from starlette.middleware import Middleware

from edgegossip.flower import admission
from edgegossip.profiling.sockets import BoardSockets

HANDSHAKE_S = 10.0  # slow boards on slow links
IDLE_MIDDLEWARE = (
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "ControlEventLogMiddleware",
    "FleetEventLogMiddleware",
    "RuntimeTracingMiddleware",
)


def flower_superlink() -> None:
    """Be the `flower-superlink` command: reads sys.argv and serves until a signal ends it.

    Middlewares of features that are off here (event logs, licences, traces of a paid service) cost every request half of
    its time and are left out; those that check signatures, tokens and accounts stay. The middleware stands before all of them.
    """
    from flwr.superlink import main as app

    cli: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    descriptor, token, secure = admission.inherited()
    line = admission.Line(descriptor)
    every = app._get_middleware

    def middleware() -> list[Middleware]:
        needed = [m for m in every() if getattr(m.cls, "__name__", "") not in IDLE_MIDDLEWARE]
        return [Middleware(_middleware, line, token, secure), *needed]

    app._get_middleware = middleware
    if secure:
        _report_handshakes(line)
        cli.uvicorn = SimpleNamespace(run=_serve_tls)
    cli.flower_superlink()


def _middleware(app: admission.App, line: admission.Line, token: str, secure: bool) -> admission.AdmissionMiddleware:
    from edgegossip.flower._private.batching import Batching  # half of Flower; of use in the SuperLink's process only

    made = admission.AdmissionMiddleware(app, line, token, secure, FLEET_HTTP_PUBLIC_KEY_HEADER, Batching(line.news))
    line.measure = BoardSockets(made.own).sample
    return made


def _serve_tls(app: Any, **options: Any) -> None:
    """`uvicorn.run` with TLS 1.3 only, on Python's own loop, whose handshakes can be watched."""
    import uvicorn

    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE_S
    config = uvicorn.Config(app, **(options | {"loop": "asyncio"}))
    config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    with suppress(KeyboardInterrupt):  # as `uvicorn.run` does
        uvicorn.Server(config).run()


def _report_handshakes(line: admission.Line) -> None:
    """asyncio drops what went wrong in a handshake. Its one function that knows is wrapped."""
    protocol: Any = asyncio.sslproto.SSLProtocol
    complete = protocol._on_handshake_complete

    def watched(self: Any, error: BaseException | None) -> None:
        if error is not None:
            where = self._transport.get_extra_info("peername") if self._transport is not None else None
            address = f"{where[0]}:{where[1]}" if where else "somebody:0"
            line.complain(_reason(error), address)
        complete(self, error)

    protocol._on_handshake_complete = watched


def _reason(error: BaseException) -> str:
    return (error.reason or str(error)) if isinstance(error, ssl.SSLError) else "EOF"
