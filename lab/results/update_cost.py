"""What an update costs a board: bytes fetched, beside the whole bundle, when a release with
packages comes, and then one of our package alone with one changed file.

    python -m lab.results.update_cost

A release of this environment's own packages (all that a gossip board needs but torch), a real
check-in over TLS on loopback."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import edgegossip
from edgegossip.fleet import orders, releases
from edgegossip.fleet.checkins import Server, open_check_ins
from edgegossip.fleet.releases import Site
from edgegossip.fleet.store import Fleet, coordinator_of
from edgegossip.update import agent
from edgegossip.update.bundle import LOCK
from edgegossip.update.client import Client

PACKAGES = ("numpy", "numpy.libs", "grpc", "google", "psutil", "click", "tomli_w", "zstandard")


class Counting(Client):
    """A client that knows what it was sent."""

    fetched = 0

    def _ask(self, *arguments, **options):
        found = super()._ask(*arguments, **options)
        Counting.fetched += len(found)
        return found


class Machine(agent.ThisBoard):
    """Services and the clock of this machine are left alone."""

    def synchronised(self):
        return True

    def node(self):
        return {}

    def start_guard(self):
        pass


def only_ours(site: Path, folder: Path) -> Path:
    """What `edgegossip image release` leaves where boards have the packages."""
    shutil.copytree(site / "edgegossip", folder / "edgegossip")
    shutil.copyfile(site / LOCK, folder / LOCK)
    return folder


def main() -> None:
    with mock.patch.object(agent, "Client", Counting), tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        site, home, kit = root / "site", root / "board", root / "kit"
        for name in PACKAGES:
            source = Path(sysconfig.get_path("platlib")) / name
            if source.exists():
                shutil.copytree(source, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        (site / LOCK).write_text("# those of this environment\n")
        own = Path(edgegossip.__file__).parent
        shutil.copytree(own, site / "edgegossip", ignore=shutil.ignore_patterns("__pycache__", "src"))
        fleet = Fleet.create(root / "fleet", "home", 1).add("pi-01", "board", 1)
        server = Server(open_check_ins(fleet.folder, coordinator_of(fleet.folder), lambda text: None), "127.0.0.1:0")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shutil.copytree(fleet.folder / "boards/pi-01", kit)
        (kit / "board.json").write_text(json.dumps({"check_in": server.address}))
        current = home / "releases/factory/site/edgegossip/__init__.py"
        current.parent.mkdir(parents=True)
        current.touch()
        print("| release | files | MB | bundle MB | fetched MB | of the bundle | wall s | CPU s, both ends |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for version in ("first", "one-file-changed"):
            if version != "first":
                with open(site / "edgegossip/frame.py", "a") as file:
                    file.write("\n# changed\n")
            bundle = root / version
            python, first = "{}.{}".format(*sys.version_info), version == "first"
            folder = site if first else only_ours(site, root / "ours")
            packages = hashlib.sha256((site / LOCK).read_bytes()).hexdigest()
            made = releases.build(fleet, Site(folder, version, platform.machine(), python, packages, first), bundle)
            orders.push(fleet, bundle, [])
            Counting.fetched, began, cpu = 0, time.monotonic(), time.process_time()
            agent.check_in(Machine(), agent.Places(kit, home, str(current)), lambda text: None)
            wall, cpu = time.monotonic() - began, time.process_time() - cpu
            current = (
                home / "releases" / json.loads((home / "wanted").read_text())["name"] / "site/edgegossip/__init__.py"
            )
            size, total = bundle.stat().st_size, sum(e.size_bytes for e in made.entries)
            numbers = (
                f"{total / 1e6:.1f} | {size / 1e6:.2f} | {Counting.fetched / 1e6:.3f} | {Counting.fetched / size:.2%}"
            )
            print(f"| {version} | {len(made.entries)} | {numbers} | {wall:.1f} | {cpu:.1f} |", flush=True)
        server.shutdown()


if __name__ == "__main__":
    main()
