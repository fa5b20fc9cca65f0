"""A board that updates itself without end, killed at random moments: `python -m
tests.update.kill_campaign FOLDER --kills 50 --seed 1`.

Each life is a process on a real file system that does what the agent and the guard do: puts the
next release beside the running one, switches, checks in or is given up. After each kill what
`current` names must be one release, whole and unmixed. Prints one JSON object."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

from edgegossip.update.bundle import Blob
from edgegossip.update.install import RELEASE, OsTree, install
from tests.deploy.board import program
from tests.update.support import release

disk_module, guard_module = program("disk"), program("guard")
UPDATE_S = 60.0
LARGE = Random(7).randbytes(300_000)
PACKAGES_EVERY = 3  # releases have the same packages: only the first of them that a board gets brings them


def packages_of(sequence: int) -> dict[str, bytes]:
    """The part of a release that is not ours."""
    number = sequence // PACKAGES_EVERY
    parts = {f"torch/part_{k}.py": f"packages {number}, part {k}\n".encode() * 100 for k in range(6)}
    return {
        "packages.lock": f"torch=={number}\n".encode(),
        "torch/lib.so": LARGE[number:],
        "numpy/lib.so": LARGE,
        **parts,
    }


def name_of(packages: dict[str, bytes]) -> str:
    return hashlib.sha256(packages["packages.lock"]).hexdigest()


def files_of(sequence: int) -> dict[str, bytes]:
    """Of a release: every file says whose it is."""
    own = {f"edgegossip/part_{k}.py": f"release {sequence}, part {k}\n".encode() * 400 for k in range(12)}
    return {"edgegossip/__init__.py": f"__version__ = '{sequence}'\n".encode(), **packages_of(sequence), **own}


def one_process(root: Path, rng: Random) -> None:
    """One process: whatever is next, until it is killed."""
    home = str(root / "opt/edgegossip")
    disk, uptime_s = disk_module.Disk(str(root)), 0.0
    while True:
        current = os.readlink(f"{home}/current").removeprefix("releases/")
        present = int(json.loads((Path(home) / "releases" / current / RELEASE).read_text())["sequence"])
        known = [int(k) for k in guard_module.document(disk, "/opt/edgegossip/failed")]
        sequence = max([present, *known]) + 1
        if not os.path.exists(f"{home}/trial"):
            files, packages = files_of(sequence), name_of(packages_of(sequence))
            if there := packages == name_of(packages_of(present)):
                files = {name: content for name, content in files.items() if name.startswith("edgegossip/")}
            manifest, blobs = release(files, str(sequence), sequence, packages=packages if there else "")
            digest = hashlib.sha256(manifest.pack()).hexdigest()

            def fetch(piece: Blob, blobs: bytes = blobs) -> bytes:
                return blobs[piece.at : piece.at + piece.stored_bytes]

            name = install(OsTree(), home, current, digest, manifest, fetch)
            disk.replace("/opt/edgegossip/wanted", json.dumps({"name": name, "sequence": sequence}).encode())
        guard_module.guard(disk, str(os.getpid()), uptime_s, lambda text: None)
        if rng.random() < 0.6:
            disk.replace(
                "/opt/edgegossip/checked-in", os.readlink(f"{home}/current").removeprefix("releases/").encode()
            )
        uptime_s += guard_module.TRIAL_S
        guard_module.guard(disk, str(os.getpid()), uptime_s, lambda text: None)


def seconds_to_update(root: Path, rng: Random) -> float:
    """Of a life from its start to the first switch to another release, here and now: a busy machine
    takes ten times as long."""
    current = root / "opt/edgegossip/current"
    before, start = os.readlink(current), time.monotonic()
    pid = os.fork()
    if pid == 0:
        one_process(root, rng)
    while not (switched := os.readlink(current) != before) and time.monotonic() < start + UPDATE_S:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)  # by now it may have given the release up, and gone back
    os.waitpid(pid, 0)
    assert switched, f"no update within {UPDATE_S:.0f} s"
    return time.monotonic() - start


def sequence_of(root: Path) -> int:
    """The release that would boot now. Raises AssertionError unless it is whole."""
    home = root / "opt/edgegossip"
    folder = home / os.readlink(home / "current")
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    sequence = int(json.loads(found.pop(RELEASE))["sequence"])
    found.pop(f"{RELEASE}.new", None)
    assert found == {f"site/{name}": content for name, content in files_of(sequence).items()}, (
        f"release {sequence} is mixed"
    )
    return sequence


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    root, rng = asked.folder, Random(asked.seed)
    home = root / "opt/edgegossip"
    home.mkdir(parents=True)
    manifest, blobs = release(files_of(1), "1", 1)
    name = install(OsTree(), str(home), "none", "0" * 64, manifest, lambda p: blobs[p.at : p.at + p.stored_bytes])
    (home / "current").symlink_to(f"releases/{name}")
    # One of so many brings packages, which takes longer: within what the others take it would never
    # end.
    longest_s = 2 * max(seconds_to_update(root, Random(asked.seed)) for _ in range(PACKAGES_EVERY))
    seen = {sequence_of(root)}
    for kill in range(asked.kills):
        pid = os.fork()
        if pid == 0:
            one_process(root, Random(f"{asked.seed} {kill}"))
        time.sleep(rng.uniform(0.001, longest_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen.add(sequence_of(root))
    print(json.dumps({"kills": asked.kills, "releases": len(seen), "last": max(seen)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
