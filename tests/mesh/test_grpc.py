"""The poller is chosen for versions of grpcio that know it, and the core has nothing to say about
it."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest

from edgegossip.mesh import _grpc


def test_the_installed_version_is_told_without_loading_it() -> None:
    assert _grpc._installed_version() == grpc.__version__


@pytest.mark.parametrize("users", ["", "-event_engine_client"])
def test_the_core_keeps_quiet_and_a_user_decides(users: str) -> None:
    code = (
        "import os; from edgegossip.mesh._grpc import grpc; grpc.insecure_channel('127.0.0.1:1').close(); "
        "print(os.environ['GRPC_EXPERIMENTS'])"
    )
    env = {"GRPC_EXPERIMENTS": users} if users else {}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    tried = grpc.__version__ in _grpc._TRIED
    assert done.stdout.strip() == (users or (_grpc._OLDER_POLLER if tried else ""))
    assert done.stderr == ""
