"""What gRPC is given of a board's certificate, and how often."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgegossip.mesh.security import guard as guards
from edgegossip.mesh.security.credentials import Credentials
from edgegossip.mesh.security.identity import Identity
from tests.mesh.fleet import TestFleet


@pytest.fixture
def own(tmp_path) -> TestFleet:
    return TestFleet.make(tmp_path)


def test_grpc_is_given_a_certificate_once(own, monkeypatch):
    given: list = []
    monkeypatch.setattr(guards.grpc, "dynamic_ssl_server_credentials", lambda *arguments, **_: given.extend(arguments))
    guard = own.guard("a")
    guard.server_credentials()
    first, newer = given
    assert [newer(), newer()] == [None, None]
    own.fleet.revoke("c")
    guard.look_at_file()
    assert guard.identity.revocations.present.number == 2
    assert newer() is None
    own.fleet.revoke("a")
    own.fleet.add("a", "board", 20)
    guard._look_at_credentials()
    second = newer()
    assert second is not None and second is not first
    assert newer() is None


def test_another_revocation_list_is_another_context_for_our_own_tls_alone(own):
    files = Credentials(Identity.load(own.folder("a")))
    before = files.server, files.channel, files.server_context
    files.look(again=True)
    assert (files.server, files.channel) == before[:2]
    assert files.server_context is not before[2]


def test_a_crowd_at_the_tls_handshake_does_not_end_the_process(own):
    """gRPC's core faults within seconds when it is handed the same certificate for every connection (its issue 36693)."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.mesh.security.crowd", str(own.folder("a")), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 500
