"""Fetching data sets: `edgegossip data download NAME`.

Every file is checked against the checksum that its authors publish before it is used, unpacked
beside its destination and put in place with a rename, so an interrupted download leaves nothing
that looks complete. Archive members are never trusted with a path: only the expected names are
written, each as a plain file.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgegossip.training.data.folders import data_root
from edgegossip.training.names import unknown
from edgegossip.types import DataError, HostError

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all if known

_CHUNK = 1 << 18  # bytes
_TIMEOUT_S = 30.0  # without a single byte


@dataclass(frozen=True, slots=True)
class Source:
    """Names one file of a data set. `members` says what is taken out of a tar archive; empty: the
    file is kept as it is."""

    url: str
    checksum: str  # "md5:..." or "sha256:..." of the file as it comes
    folder: str  # below the data home
    members: tuple[str, ...] = ()
    size_limit: int = 400 * 2**20  # bytes, of the file and of what it unpacks to

    @property
    def name(self) -> str:
        """The file's own name, the last part of its address."""
        return self.url.rsplit("/", 1)[-1]


def _idx(base: str, folder: str, sums: Mapping[str, str]) -> tuple[Source, ...]:
    return tuple(Source(f"{base}/{name}-ubyte.gz", f"md5:{md5}", folder) for name, md5 in sums.items())


_CIFAR_FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin", "batches.meta.txt")

# MNIST's own site no longer serves the files; the mirror is one that others use too, with the same
# checksums.
SOURCES: Mapping[str, tuple[Source, ...]] = {
    "cifar10": (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-batches-bin",
            _CIFAR_FILES,
        ),
    ),
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "mnist",
        {
            "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "fashion-mnist",
        {
            "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
}


def download(
    name: str,
    dir: str = "",
    progress: Progress | None = None,
    sources: Mapping[str, tuple[Source, ...]] = SOURCES,
) -> Path:
    """Fetch data set `name` into `dir` ("": the data home); returns that folder. Files already
    there are kept.

    Raises ConfigError for an unknown name, HostError when a file cannot be fetched or written,
    DataError when what came is not what its checksum says."""
    if name not in sources:
        raise unknown("data set", name, sources)
    root = data_root(dir)
    report = progress or (lambda *_: None)
    try:
        for source in sources[name]:
            _fetch(source, root / source.folder, report)
    except OSError as error:
        raise HostError(f"data set {name} cannot be written to {root}: {error.strerror or error}") from error
    return root


def _fetch(source: Source, folder: Path, progress: Progress) -> None:
    if all((folder / member).is_file() for member in source.members or (source.name,)):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as temporary:
        file = Path(temporary) / source.name
        _receive(source, file, progress)
        if source.members:
            unpacked = Path(temporary) / "unpacked"
            unpacked.mkdir()
            _unpack(source, file, unpacked)
            files = [unpacked / member for member in source.members]
        else:
            files = [file]
        for ready in files:
            _sync(ready)
            ready.replace(folder / ready.name)


def _receive(source: Source, file: Path, progress: Progress) -> None:
    """Write the file, hashing on the way. Raises HostError when the network fails, DataError for a
    wrong checksum."""
    algorithm, _, expected = source.checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with urllib.request.urlopen(source.url, timeout=_TIMEOUT_S) as reply:
            length, received = reply.headers.get("Content-Length", ""), 0
            with file.open("wb") as out:
                while chunk := reply.read(_CHUNK):
                    received += len(chunk)
                    if received > source.size_limit:
                        raise DataError(
                            f"{source.url}: expected at most {source.size_limit} bytes, found more; nothing was kept"
                        )
                    out.write(chunk)
                    digest.update(chunk)
                    progress(source.name, received, int(length) if length.isdigit() else None)
    except urllib.error.HTTPError as error:
        raise HostError(f"{source.url} cannot be fetched: the server answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise HostError(f"{source.url} cannot be fetched: {getattr(error, 'reason', error)}") from error
    if digest.hexdigest() != expected:
        raise DataError(f"{source.url}: expected {algorithm} {expected}, found {digest.hexdigest()}; nothing was kept")


def _unpack(source: Source, archive: Path, into: Path) -> None:
    """Write `source.members`, found by base name in the archive's `source.folder`, as plain files
    into `into`."""
    wanted = {f"{source.folder}/{member}": member for member in source.members}
    room = source.size_limit
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                member = wanted.get(entry.name.removeprefix("./"))
                if member is None:
                    continue
                content = tar.extractfile(entry) if entry.isreg() else None
                room -= entry.size
                if content is None or room < 0:
                    raise DataError(f"{archive.name}: {entry.name} is not a plain file of a reasonable size")
                with content, (into / member).open("wb") as out:
                    shutil.copyfileobj(content, out, _CHUNK)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive.name}: expected a tar archive, found damage: {error}") from error
    if missing := [member for member in source.members if not (into / member).is_file()]:
        raise DataError(f"{archive.name}: expected {source.folder}/{missing[0]} in the archive, found no such file")


def _sync(file: Path) -> None:
    """Force a file to disk before it gets its final name."""
    with contextlib.suppress(OSError), file.open("rb") as stream:  # some file systems cannot
        os.fsync(stream.fileno())
