"""The Control API: how a run starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from edgegossip.flower._private.link import answered


def start_run(
    address: str,
    root_certificates: bytes | None,
    config: Mapping[str, str | int | float | bool],
    app: bytes = b"",
) -> int:
    """Start a run of the app whose app.py this is, with its `server` and `client`; by default one that has no code of its own
    (the server is RunLink in this process). The run's id."""
    from flwr.cli.build import build_fab_from_files  # drags in the whole command line; a board never needs it

    defaults = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    content, _ = build_fab_from_files({"pyproject.toml": _PYPROJECT.format(defaults=defaults).encode(), "app.py": app})
    client = ControlHttpClient.from_server_address(
        address,
        root_certificates is None,
        root_certificates,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
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
