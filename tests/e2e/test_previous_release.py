"""Boards of the previous build and of this one train together: one mesh of both, a coordinator of
either with boards of the other; and each keeps the fleet of the other. The previous build is a
commit whose frames are of the same version as today's; once that version changes, this file goes.

The wheel of that commit is built once, which takes minutes, into an environment of its own below
build/. All other packages are those of the environment that runs this test."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="an extra: pip install '.[torch]'")

from edgegossip.telemetry.run_folder import RunData, read_run
from tests.e2e.command import Running, edgegossip
from tests.e2e.test_tls import free_port
from tests.update.support import site_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COMMIT = "5a8008e"
ROOT = Path(__file__).parents[2]
ROUNDS = 12
BOARDS = ("old-1", "new-1", "old-2", "new-2")  # around a ring: every edge is one between the builds


@pytest.fixture(scope="module")
def old() -> Path:
    """The Python of an environment in which `edgegossip` is the previous build."""
    made = ROOT / "build" / "previous" / f"{COMMIT}-{sysconfig.get_config_var('SOABI')}"
    python = made / "bin" / "python"
    if not (made / "whole").exists():
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], capture_output=True)
        if archive.returncode:
            pytest.skip(f"needs the history of the repository, with commit {COMMIT}: {archive.stderr.decode().strip()}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(made)], check=True)
        source = made / "source"
        source.mkdir()
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        (site,) = made.glob("lib/python*/site-packages")
        # A path in a .pth file shares what is installed there, but not its own .pth files: no
        # editable install comes along.
        (site / "shared.pth").write_text(sysconfig.get_path("platlib") + "\n")
        how = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        build = [sys.executable, "-m", "pip", "install", *how, "--target", str(site), str(source)]
        subprocess.run(build, check=True, env={**os.environ, "PATH": path})
        (made / "whole").touch()
    where = subprocess.run(
        [python, "-c", "import edgegossip; print(edgegossip.__file__)"], cwd=made, capture_output=True, text=True
    )
    assert Path(where.stdout).is_relative_to(made), where
    return python


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "fleet"
    for arguments in (("init", str(folder)), ("add", *BOARDS, "--fleet", str(folder))):
        subprocess.run([sys.executable, "-m", "edgegossip", "fleet", *arguments], check=True, timeout=60)
    return folder


@pytest.mark.parametrize("secure", [False, True], ids=["insecure", "identities"])
@pytest.mark.parametrize("founder", ["old", "new"])
@pytest.mark.parametrize(
    "settings",
    [
        ("gossip.algorithm=dpsgd", "codec.name=minmax8"),
        ("gossip.algorithm=choco-sgd", "codec.name=4-bit-elastiquant"),
        ("gossip.algorithm=ad-psgd", "codec.name=fp32"),
    ],
    ids=["dpsgd", "choco-sgd", "ad-psgd"],
)
def test_one_mesh_of_both(
    settings: Sequence[str], founder: str, secure: bool, old: Path, fleet: Path, tmp_path: Path
) -> None:
    ring = [f"{founder}-1", f"{other(founder)}-1", f"{founder}-2", f"{other(founder)}-2"]
    sets = (f"run.rounds={ROUNDS}", "run.nodes=4", "gossip.topology=ring", "evaluation.every=4", *settings)
    at = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        boards = {}
        for name in ring:
            how = ("--identity", str(fleet / "boards" / name)) if secure else ()
            if name == ring[0]:
                what = ("quickstart-gossip", *options(sets), "--members", ",".join(ring), "--listen", at)
            else:
                what = ("--join", at)
            boards[name] = stack.enter_context(
                program(name, old, tmp_path, "node", *what, "--name", name, *how, folder=name)
            )
        for name, board in boards.items():
            code, out, err = board.finish()
            assert code == 0, (name, out, err)
    runs = {name: read_run(board.folder()) for name, board in boards.items()}
    sent = {name: bytes_by_link(run) for name, run in runs.items()}
    for k, name in enumerate(ring):
        around = {ring[k - 1], ring[(k + 1) % 4]}
        assert {peer for peer, total in sent[name].items() if total} == around
        assert not {e.name for e in runs[name].events()} & {"refused", "suspect", "lost", "error"}
        rows = own_rows(runs[name], name)
        assert [r.step for r in rows] == list(range(ROUNDS))
        if "ad-psgd" not in settings[0]:
            # Both ends of an edge count the same frames, and what one sent the other's socket took
            # in.
            for peer in around:
                assert sent[name][peer] == pytest.approx(sent[peer][name], rel=0.02)
        received = sum(r.number("net/received_bytes") or 0 for r in rows)
        assert received >= 0.9 * sum(sent[peer][name] for peer in around)
        assert last(rows, "eval/accuracy") > 0.6
    models = [flat_model(board.folder() / "checkpoint" / f"{name}.npz") for name, board in boards.items()]
    mean = np.mean(models, axis=0)
    apart = [float(np.linalg.norm(x - mean) / np.linalg.norm(mean)) for x in models]
    assert max(apart) < 0.25, apart


@pytest.mark.parametrize("secure", [False, True], ids=["insecure", "identities"])
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_coordinator_of_one_and_boards_of_the_other(
    server: str, secure: bool, old: Path, fleet: Path, tmp_path: Path
) -> None:
    pytest.importorskip("flwr", reason="server mode is an extra: pip install '.[server]'")
    names = [f"{other(server)}-1", f"{other(server)}-2"]
    port = str(free_port())
    sets = (f"run.rounds={ROUNDS}", "run.nodes=2", "codec.name=8-bit-elastiquant")
    serve = ("coordinator", "quickstart-server", *options(sets), "--boards", ",".join(names), "--port", port)
    how = ("--fleet", str(fleet)) if secure else ("--insecure",)
    with ExitStack() as stack:
        serving = program(server, old, tmp_path, *serve, *how, "--no-plots", folder="coordinator")
        coordinator = stack.enter_context(serving)
        boards = {}
        for name in names:
            mine = ("--identity", str(fleet / "boards" / name)) if secure else ("--insecure",)
            what = ("node", "--coordinator", f"127.0.0.1:{port}", "--name", name, *mine)
            boards[name] = stack.enter_context(program(name, old, tmp_path, *what, folder=name))
        for name, running in {**boards, "coordinator": coordinator}.items():
            code, out, err = running.finish()
            assert code == 0, (name, out, err)
    data = read_run(coordinator.folder())
    rows = own_rows(data, "coordinator")
    assert {r.step: r.values["server/used"] for r in rows if "server/used" in r.values} == dict.fromkeys(
        range(ROUNDS), 2
    )
    assert last(rows, "eval/accuracy") > 0.6
    assert not {e.name for e in data.events()} & {"refused", "suspect", "lost", "error"}
    for name in names:
        own = own_rows(read_run(boards[name].folder()), name)
        assert [r.step for r in own] == list(range(ROUNDS))
        assert all((r.number("net/payload_bytes") or 0) > 0 for r in own)
    with np.load(coordinator.folder() / "checkpoint" / "model.npz") as model:
        assert all(np.isfinite(model[key]).all() for key in model.files if model[key].dtype.kind == "f")


# Read with the classes of whichever build runs this: kit, bundle, folder of pi-01, file to verify,
# its signature.
READS = """
import sys
from pathlib import Path
from edgegossip.fleet import kitfile, releases
try:
    from edgegossip.security import Identity
except ImportError:
    from edgegossip.mesh.security.identity import Identity
from edgegossip.update.bundle import content_of
kit, bundle, folder, text, signature = map(Path, sys.argv[1:])
print(kitfile.read(kit).name, *kitfile.read(kit).node)
identity = Identity.load(folder)
head, begin = releases.read_head(bundle)
manifest, blobs = head.manifest(identity), bundle.read_bytes()[begin:]
contents = [content_of(b, blobs[b.at : b.at + b.stored_bytes]) for b in manifest.blobs]
print(manifest.version, manifest.sequence, b"a = 1\\n" * 500 in contents)
try:
    print(identity.verify("board", text.read_bytes(), signature.read_bytes()), identity.revocations.number)
except Exception as error:
    print(error)
"""
SIGNS = """
import sys
from pathlib import Path
try:
    from edgegossip.security import Identity
except ImportError:
    from edgegossip.mesh.security.identity import Identity
folder, text, signature = map(Path, sys.argv[1:])
signature.write_bytes(Identity.load(folder).sign(text.read_bytes()))
"""


@pytest.mark.parametrize("maker", ["old", "new"])
def test_a_fleet_of_one_is_kept_by_the_other(maker: str, old: Path, tmp_path: Path) -> None:
    """Each of them adds a board, makes a kit and a release, signs and revokes in the same folder;
    each reads it all."""
    fleet, text, site = tmp_path / "fleet", tmp_path / "text", tmp_path / "site"
    text.write_bytes(b"what is signed")
    site_of(site, "9.9", {"edgegossip/a.py": b"a = 1\n" * 500})

    def python(build: str, *arguments: str | Path) -> str:
        command = [str(old) if build == "old" else sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (build, arguments, done.stderr)
        return done.stdout

    def manage(build: str, *arguments: str | Path) -> str:
        return python(build, "-m", "edgegossip", "fleet", *arguments)

    manage(maker, "init", fleet)
    for number, build in enumerate((maker, other(maker)), 1):
        card = ("--board", "raspberry-pi-4", "--coordinator", "10.0.0.9:8000")
        manage(build, "add", f"pi-{number}", f"spare-{number}", *card, "--fleet", fleet)
        kit, bundle, signature = (tmp_path / f"{build}.{kind}" for kind in ("kit", "bundle", "signature"))
        manage(build, "kit", f"pi-{number}", "--fleet", fleet, "-o", kit)
        manage(build, "release", "build", site, "-o", bundle, "--fleet", fleet)
        manage(build, "release", "push", bundle, f"pi-{number}", "--fleet", fleet)
        manage(build, "revoke", f"spare-{number}", "--fleet", fleet)
        python(build, "-c", SIGNS, fleet / "boards" / f"pi-{number}", text, signature)
        copy(fleet / "crl.pem", fleet / "boards" / "pi-1")
        for reader in ("old", "new"):
            kit_line, release_line, signer = python(
                reader, "-c", READS, kit, bundle, fleet / "boards" / "pi-1", text, signature
            ).splitlines()
            assert kit_line == f"pi-{number} --coordinator 10.0.0.9:8000"
            assert release_line == f"9.9 {number} True"
            assert signer == f"pi-{number} {number + 1}"
    listed = {build: manage(build, "list", "--fleet", fleet) for build in ("old", "new")}
    assert listed["old"] == listed["new"]
    assert listed["new"].count("revoked") == 2 and listed["new"].count("valid") == 3
    manage(maker, "revoke", "pi-2", "--fleet", fleet)
    copy(fleet / "crl.pem", fleet / "boards" / "pi-1")
    for reader in ("old", "new"):
        signer = python(reader, "-c", READS, kit, bundle, fleet / "boards" / "pi-1", text, signature).splitlines()[2]
        assert signer == "a signature of pi-2, whose certificate was revoked"


def other(build: str) -> str:
    return "new" if build == "old" else "old"


def options(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def program(name: str, old: Path, at: Path, *arguments: str, folder: str) -> AbstractContextManager[Running]:
    """`edgegossip` of the build that the name begins with, in a folder without sources: Python
    looks there first."""
    python = str(old) if name.startswith("old") else sys.executable
    return edgegossip(*arguments, runs=at / folder, python=python, cwd=at)


def own_rows(run: RunData, name: str) -> list[Any]:
    return [r for r in run.metrics() if r.node == name]


def last(rows: list[Any], key: str) -> float:
    found = [r.number(key) for r in rows if r.number(key) is not None]
    assert found, key
    return float(found[-1])


def bytes_by_link(run: RunData) -> dict[str, float]:
    """Acknowledged bytes to each peer, of all rounds."""
    totals: dict[str, float] = {}
    for record in run.metrics():
        for key, value in record.values.items():
            if key.startswith("link/") and key.endswith("_bytes"):
                peer = key.removeprefix("link/").removesuffix("_bytes")
                totals[peer] = totals.get(peer, 0.0) + float(value or 0)
    return totals


def flat_model(path: Path) -> Any:
    with np.load(path) as model:
        return np.concatenate([model[key].ravel() for key in sorted(model.files) if model[key].dtype.kind == "f"])
