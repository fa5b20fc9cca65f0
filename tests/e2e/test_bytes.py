"""Bytes are real: what the table says was sent is what the kernel counted on an interface of our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import edgegossip

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2 to make a network namespace"
)


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"eg{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def interface_bytes(namespace: str, interface: str = "lo") -> int:
    command = ["ip", "-n", namespace, "-s", "-j", "link", "show", interface]
    (link,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return int(link["stats64"]["tx"]["bytes"])


@pytest.mark.parametrize("codec", ["fp32", "minmax8"])
def test_gossip_sent_bytes_are_what_the_interface_counted(namespace: str, codec: str, tmp_path: Path) -> None:
    """All traffic in the namespace is the boards' own: their socket figures must add up to the interface's counter."""
    before = interface_bytes(namespace)
    settings = ("--set", "run.rounds=40", "--set", f"codec.name={codec}", "--json", "--no-plots")
    prefix = ("ip", "netns", "exec", namespace)
    with edgegossip("run", "quickstart-gossip", *settings, runs=tmp_path, prefix=prefix) as running:
        code, out, err = running.finish()
    assert code == 0, err
    counted = interface_bytes(namespace) - before
    assert json.loads(out)["sent_bytes"]["socket"] == pytest.approx(counted, rel=0.03)
