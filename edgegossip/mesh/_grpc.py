"""gRPC, imported so that its C core keeps quiet: what goes wrong is told once, in our own words.

The core reads these variables when it is first loaded. A user who sets them keeps what they set.
"""

from __future__ import annotations

import os

from edgegossip.mesh import poller

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # boards are started with exec; no warnings about fork then
os.environ.setdefault("GRPC_EXPERIMENTS", poller.experiments(poller.grpcio_version()))

import grpc
import grpc.aio

__all__ = ["grpc"]
