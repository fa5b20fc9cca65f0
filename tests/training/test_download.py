"""Downloads against a web server on the loopback interface."""

import hashlib
import io
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgegossip.training.data.download import SOURCES, Source, download
from edgegossip.types import ConfigError, DataError, HostError


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(site, name, content, **keys):
    folder, base = site
    (folder / name).write_bytes(content)
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Source(**{"url": f"{base}/{name}", "checksum": checksum, "folder": "set", **keys})


def archive(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.linkname = tarfile.SYMTYPE, str(content)
                tar.addfile(entry)
    return buffer.getvalue()


def everything_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def test_plain_file_with_progress(site, tmp_path):
    content = b"x" * 700_000
    source = publish(site, "labels.gz", content)
    seen = []
    root = download("tiny", str(tmp_path / "home"), lambda *step: seen.append(step), {"tiny": (source,)})
    assert root == tmp_path / "home"
    assert (root / "set/labels.gz").read_bytes() == content
    assert everything_in(root) == ["set/labels.gz"]
    assert seen[-1] == ("labels.gz", 700_000, 700_000)
    assert [s[1] for s in seen] == sorted(s[1] for s in seen)


def test_what_is_there_is_not_fetched_again(site, tmp_path):
    source = publish(site, "labels.gz", b"abc")
    download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    (site[0] / "labels.gz").unlink()
    download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    assert (tmp_path / "home/set/labels.gz").read_bytes() == b"abc"


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_wrong_checksum_leaves_nothing(site, tmp_path, algorithm):
    wrong = f"{algorithm}:{hashlib.new(algorithm, b'other').hexdigest()}"
    source = publish(site, "labels.gz", b"abc", checksum=wrong)
    with pytest.raises(DataError, match=rf"labels\.gz: expected {algorithm} .* nothing was kept"):
        download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    assert everything_in(tmp_path / "home") == []


def test_archive_members(site, tmp_path, monkeypatch):
    """Whole, and on the disk before it gets its final name."""
    synced, named, fsync, replace = set(), [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    monkeypatch.setattr(Path, "replace", lambda path, to: named.append(str(path) in synced) or replace(path, to))
    content = archive([("set/a.bin", b"A"), ("set/extra", b"E"), ("./set/b.bin", b"B")])
    source = publish(site, "set.tar.gz", content, members=("a.bin", "b.bin"))
    download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    assert everything_in(tmp_path / "home") == ["set/a.bin", "set/b.bin"]
    assert (tmp_path / "home/set/b.bin").read_bytes() == b"B" and named == [True, True]


def test_archive_cannot_write_elsewhere(site, tmp_path):
    content = archive([("../../evil", b"E"), ("/tmp/evil", b"E"), ("set/../../evil", b"E"), ("set/a.bin", b"A")])
    source = publish(site, "set.tar.gz", content, members=("a.bin",))
    download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    assert everything_in(tmp_path / "home") == ["set/a.bin"]
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive([("set/a.bin", "/etc/hostname")]), "is not a plain file"),
        (archive([("set/b.bin", b"B")]), r"expected set/a\.bin in the archive"),
        (archive([("set/a.bin", b"A" * 5000)]), "of a reasonable size"),
        (b"no archive", "expected a tar archive, found damage"),
        (archive([("set/a.bin", b"A" * 900)])[:60], "found damage"),
    ],
    ids=["link", "missing", "too-large", "not-tar", "truncated"],
)
def test_bad_archives_leave_nothing(site, tmp_path, content, message):
    source = publish(site, "set.tar.gz", content, members=("a.bin",), size_limit=4000)
    with pytest.raises(DataError, match=message):
        download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    assert everything_in(tmp_path / "home") == []


def test_more_bytes_than_allowed(site, tmp_path):
    source = publish(site, "labels.gz", b"x" * 5000, size_limit=4000)
    with pytest.raises(DataError, match="expected at most 4000 bytes"):
        download("tiny", str(tmp_path / "home"), sources={"tiny": (source,)})
    assert everything_in(tmp_path / "home") == []


def test_server_errors(site, tmp_path):
    folder, base = site
    gone = Source(f"{base}/nothing", "md5:0", "set")
    with pytest.raises(HostError, match=r"/nothing cannot be fetched: the server answered 404"):
        download("tiny", str(tmp_path / "home"), sources={"tiny": (gone,)})
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HostError, match="cannot be written"):
        download("tiny", str(tmp_path / "file"), sources={"tiny": (gone,)})
    with pytest.raises(ConfigError, match="did you mean cifar10"):
        download("cifar", str(folder))


def test_nobody_listens(tmp_path):
    refused = Source("http://127.0.0.1:9/x", "md5:0", "set")
    with pytest.raises(HostError, match="cannot be fetched"):
        download("tiny", str(tmp_path), sources={"tiny": (refused,)})


def test_official_sources_name_every_file_the_readers_need():
    assert set(SOURCES) == {"cifar10", "mnist", "fashion-mnist"}
    assert len(SOURCES["mnist"]) == len(SOURCES["fashion-mnist"]) == 4
    for sources in SOURCES.values():
        assert all(s.checksum.startswith("md5:") and len(s.checksum) == 36 for s in sources)
    assert {"data_batch_1.bin", "test_batch.bin"} < set(SOURCES["cifar10"][0].members)
