"""Which of gRPC's pollers the mesh asks for.

Its event engine wakes a pool of threads some ten times after each event, with pauses that get longer: of boards that wait, that
is most of what they take. The poller that it had before does not, and a frame takes a seventh fewer system calls with it. A core
that does not know the names of the experiments says so on standard error in every process, so only versions that were tried get
them; others do as they do.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_OLDER = "-event_engine_client,-event_engine_listener,-event_engine_callback_cq"
_TRIED = ("1.85.1",)


def experiments(version: str) -> str:
    """For GRPC_EXPERIMENTS, of this grpcio. Empty is what it has without."""
    return _OLDER if version in _TRIED else ""


def grpcio_version() -> str:
    """Of the installed grpcio, without loading it; empty when it does not say."""
    found = find_spec("grpc")
    try:
        text = (Path(found.origin or "").parent / "_grpcio_metadata.py").read_text("utf-8") if found else ""
    except OSError:
        return ""
    return text.partition("=")[2].strip(" \n\"'")
