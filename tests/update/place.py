"""A fleet whose machine serves over real sockets, and a board of it that checks in."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from edgegossip.fleet import orders, releases
from edgegossip.fleet.checkins import Server, open_check_ins
from edgegossip.fleet.releases import examine
from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.security.identity import Identity
from edgegossip.update import agent
from tests.update.support import site_of

LOCK = "# no packages\n"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Place:
    """A fleet whose machine serves, and a board of it."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet.create(folder / "fleet", "home", 20).add_all(("pi-01", "pi-02"), "board", 20)
        self.said: list[str] = []
        self.folder, self.board = folder, folder / "board"
        self.server = Server(
            open_check_ins(self.fleet.folder, coordinator_of(self.fleet.folder), self.said.append), "127.0.0.1:0"
        )
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        shutil.copytree(self.fleet.folder / "boards/pi-01", self.board / "etc")
        self.home, self.config = self.board / "opt", self.board / "etc"
        site = self.home / "releases/factory/site"
        (site / "edgegossip").mkdir(parents=True)
        (site / "edgegossip/__init__.py").touch()
        (site / "packages.lock").write_text(LOCK)
        (site / "dependency.py").write_text("works = True\n")
        (self.home / "current").symlink_to("releases/factory")
        self.names(self.server.address)

    def names(self, where: str) -> None:
        (self.config / "board.json").write_text(json.dumps({"name": "pi-01", "check_in": where}))

    def identity(self, name: str = "pi-01") -> Identity:
        return Identity.load(self.fleet.folder / "boards" / name)

    def check_in(self, machine: Machine | None = None) -> Machine:
        machine = machine or Machine()
        module = (self.home / "current/site/edgegossip/__init__.py").resolve()
        agent.check_in(machine, agent.Places(self.config, self.home, str(module), self.board), machine.said.append)
        return machine

    def push(
        self, version: str, *boards: str, machine: str = "", python: str = PYTHON, lock: str = LOCK, **files: bytes
    ) -> None:
        """A release of our package, with `files` one with packages."""
        site = site_of(self.folder / f"site-{version}", version, files, lock=lock)
        found = replace(examine(site), machine=machine or platform.machine(), python=python)
        out = self.folder / f"{version}.bundle"
        releases.build(self.fleet, found, out)
        orders.push(self.fleet, out, boards)


class Machine:
    """A board's clock and services, as the test wants them."""

    def __init__(self, behind_s: float = 0.0, synchronised: bool = False) -> None:
        self.behind_s, self.ntp, self.said, self.guards, self.restarts = behind_s, synchronised, [], 0, 0
        self.service = {
            "ActiveState": "active",
            "NRestarts": "0",
            "StatusText": "round 3",
            "ActiveEnterTimestampMonotonic": "1",
        }

    def now(self) -> float:
        return time.time() - self.behind_s

    def set_clock(self, seconds: float) -> None:
        self.behind_s = time.time() - seconds

    def synchronised(self) -> bool:
        return self.ntp

    def node(self) -> dict[str, str]:
        return self.service

    def start_guard(self) -> None:
        self.guards += 1

    def restart_node(self) -> None:
        self.restarts += 1
