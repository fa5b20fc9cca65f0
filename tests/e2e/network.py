"""Machines on one network: a namespace each, joined by a switch that can be split."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from edgegossip.types import HostError
from lab.netns.network import Namespaces, ip

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2 to make network namespaces"
)


def first_namespace(spaces: Namespaces, name: str) -> str:
    """Make it, or skip the test on a machine that allows none; its full name."""
    try:
        return spaces.add(name)
    except HostError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


class Network(Namespaces):
    """Machines 1 to `size`; machine k is 10.78.0.k."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self._names = [self.named(f"m{k}") for k in range(1, size + 1)]

    def open(self) -> None:
        self._switch = first_namespace(self, "switch")
        for bridge in ("left", "right"):
            ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
            ip("-n", self._switch, "link", "set", bridge, "up")
        for k, name in enumerate(self._names, 1):
            self.add(f"m{k}")
            ip("link", "add", "wire", "netns", name, "type", "veth", "peer", "name", f"port{k}", "netns", self._switch)
            ip("-n", name, "address", "add", f"{self.address(k)}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", self._switch, "link", "set", f"port{k}", "master", "left")
            ip("-n", self._switch, "link", "set", f"port{k}", "up")

    def address(self, machine: int) -> str:
        return f"10.78.0.{machine}"

    def inside(self, machine: int) -> tuple[str, ...]:
        """What comes before a command that is to run on this machine."""
        return ("ip", "netns", "exec", self._names[machine - 1])

    def split(self, machines: Sequence[int]) -> None:
        """Put these machines on a switch of their own."""
        for k in machines:
            ip("-n", self._switch, "link", "set", f"port{k}", "master", "right")

    def heal(self) -> None:
        for k in range(1, self.size + 1):
            ip("-n", self._switch, "link", "set", f"port{k}", "master", "left")


@contextmanager
def network(size: int) -> Iterator[Network]:
    net = Network(size)
    try:
        net.open()
        yield net
    finally:
        net.close()
