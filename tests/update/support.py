"""Small releases, signed by a real fleet."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random

from edgegossip.update.bundle import PIECE_BYTES, Blob, BundleEntry, ReleaseManifest
from lab.sim.disk import FakeDisk

HOME = "/opt/edgegossip"


def release(
    files: Mapping[str, bytes], version: str = "2", sequence: int = 2, fleet: str = "f" * 16, packages: str = ""
) -> tuple[ReleaseManifest, bytes]:
    """Manifest and blobs of these files, with site/ before each name."""
    entries, blobs, known = [], b"", {}
    for name, content in files.items():
        pieces = []
        for at in range(0, len(content), PIECE_BYTES):
            part = content[at : at + PIECE_BYTES]
            if part not in known:
                stored = zlib.compress(part)
                known[part] = Blob(hashlib.sha256(part).hexdigest(), len(part), len(blobs), len(stored))
                blobs += stored
            pieces.append(known[part])
        entries.append(BundleEntry(f"site/{name}", False, hashlib.sha256(content).hexdigest(), tuple(pieces)))
    return ReleaseManifest(fleet, version, sequence, "aarch64", "3.11", tuple(entries), packages), blobs


def site_of(
    folder: Path,
    version: str,
    files: Mapping[str, bytes],
    machine: str = "aarch64",
    python: str = "3.11",
    lock: str = "",
) -> Path:
    """A folder as `edgegossip image release` makes it, with these files besides."""
    code = {"aarch64": 183, "x86_64": 62}[machine]
    own = {
        "edgegossip/__init__.py": f'__version__ = "{version}"\n'.encode(),
        f"edgegossip/__pycache__/__init__.cpython-{python.replace('.', '')}.pyc": b"compiled",
        "edgegossip/native/_native.abi3.so": b"\x7fELF" + bytes(14) + code.to_bytes(2, "little"),
        "packages.lock": lock.encode(),
    }
    for name, content in {**own, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


class FakeTree(FakeDisk):
    """A board's /opt on a disk that loses power. Files are never opened again for writing."""

    def create(self, path: str):
        assert path not in self._now, f"{path} is there: writing into it would change what another release has"
        return super().create(path)

    def read(self, path: str) -> bytes | None:
        return bytes(self._now[path].content) if path in self._now else None

    def digest(self, path: str) -> str:
        content = self.read(path)
        return "" if content is None else hashlib.sha256(content).hexdigest()

    def link(self, old: str, new: str) -> None:
        assert new not in self._now
        self._begin("link", new)
        self._in_folder(new)
        self._put(new, self._now[old])

    def make_executable(self, path: str) -> None:
        """Modes are not kept here."""

    def remove_tree(self, path: str) -> None:
        for name in sorted(p for p in self._now if p.startswith(f"{path}/")):
            self.remove(name)

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def files(self, folder: str) -> list[str]:
        return sorted(p[len(folder) + 1 :] for p in self._now if p.startswith(f"{folder}/"))

    def names(self, folder: str) -> list[str]:
        inside = [*self._now, *self._folders]
        return sorted({p[len(folder) + 1 :].split("/")[0] for p in inside if p.startswith(f"{folder}/")})

    def after_power_cut(self, rng: Random) -> FakeTree:
        found = super().after_power_cut(rng)
        tree = FakeTree()
        tree.__dict__ |= found.__dict__
        return tree

    def files_of(self, name: str) -> dict[str, bytes]:
        """Of a release."""
        start = f"{HOME}/releases/{name}/"
        return {p[len(start) :]: bytes(i.content) for p, i in self._now.items() if p.startswith(start)}
