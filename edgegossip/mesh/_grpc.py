"""gRPC, imported so that its C core keeps quiet and waits cheaply. Import it from here only.

The core reads these variables when it is first loaded. A user who sets them keeps what they set.

Its event engine wakes a pool of threads some ten times after each event, with pauses that get
longer: of boards that wait, that is most of what they take (docs/mesh.md, "Poller"). The poller
that it had before does not, and a frame takes a seventh fewer system calls with it. A core that
does not know the names of the experiments says so on standard error in every process, so only
versions that were tried get them; others do as they do.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

_OLDER_POLLER = "-event_engine_client,-event_engine_listener,-event_engine_callback_cq"
_TRIED = ("1.85.1",)


def _installed_version() -> str:
    """Return the version of grpcio, without loading it; empty when it does not say.
    importlib.metadata would tell it too, and would stay in the memory of every board with its
    parser of e-mail."""
    found = find_spec("grpc")
    try:
        text = (Path(found.origin or "").parent / "_grpcio_metadata.py").read_text("utf-8") if found else ""
    except OSError:
        return ""
    return text.partition("=")[2].strip(" \n\"'")


os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is told once, in our own words
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # boards are started with exec; no warnings about fork then
os.environ.setdefault("GRPC_EXPERIMENTS", _OLDER_POLLER if _installed_version() in _TRIED else "")

import grpc  # noqa: E402
import grpc.aio  # noqa: E402

if TYPE_CHECKING:  # grpc has no types, and what is Any cannot be a base class

    class GenericRpcHandler:
        """Serves methods of one or more services (grpc.GenericRpcHandler)."""

        def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            """Return what handles a method; None for one that is not served here."""
else:
    GenericRpcHandler = grpc.GenericRpcHandler

__all__ = ["GenericRpcHandler", "grpc"]
