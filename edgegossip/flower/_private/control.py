"""The Control API: how a run starts."""

from __future__ import annotations

import hashlib
import json
import ssl
from collections.abc import Mapping

from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from edgegossip.flower._private.link import TokenInterceptor, answered, connect
from edgegossip.types import NodeId


def _control(address: str, context: ssl.SSLContext | None, token: str) -> ControlHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    return connect(ControlHttpClient, address, context, [version, TokenInterceptor(token)])


def register_key(address: str, context: ssl.SSLContext | None, token: str, key: bytes, name: NodeId) -> int:
    """Let a board with this public key (PEM) in; its id in Flower. Raises LinkError."""
    client = _control(address, context, token)
    try:
        with answered(address):
            return int(client.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)
    finally:
        client.close()


def start_run(
    address: str,
    context: ssl.SSLContext | None,
    config: Mapping[str, str | int | float | bool],
    app: bytes = b"",
    token: str = "",
) -> int:
    """Start a run of the app whose app.py this is, with its `server` and `client`; by default one that has no code of its own
    (the server is RunLink in this process). The run's id."""
    from flwr.cli.build import build_fab_from_files  # drags in the whole command line; a board never needs it

    defaults = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    content, _ = build_fab_from_files({"pyproject.toml": _PYPROJECT.format(defaults=defaults).encode(), "app.py": app})
    client = _control(address, context, token)
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
    try:
        with answered(address):
            answer = client.StartRun(StartRunRequest(fab=fab, override_config=user_config_to_proto({})))
    finally:
        client.close()
    return int(answer.run_id)


_PYPROJECT = """\
[project]
name = "edgegossip-run"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "edgegossip"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
{defaults}
"""
