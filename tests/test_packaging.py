"""The package: what a wheel carries, and that it runs where there is no compiler."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.match(r"[\w-]+", r).group().lower() for r in requirements}


def test_a_gossip_board_needs_twelve_packages():
    board = {
        "numpy",
        "grpcio",
        "grpcio-health-checking",
        "grpcio-reflection",
        "protobuf",
        "psutil",
        "click",
        "cryptography",
        "tomli-w",
        "typing-extensions",  # as grpcio does
        "zstandard",
        "setproctitle",
    }
    assert names(PROJECT["dependencies"]) == board


def test_everything_installed_is_pinned():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(line.count("==") == 1 for line in pins)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]:
        assert names(group) <= pinned


def without_tools(venv):
    """An environment that knows the virtual environment and the system, but no compiler, no cmake
    and no source tree."""
    bare = venv.parent / "bin"
    bare.mkdir()
    for tool in ("sh", "env", "uname", "ip", "ss"):
        for folder in ("/bin", "/usr/bin", "/sbin", "/usr/sbin"):
            if Path(folder, tool).exists() and not (bare / tool).exists():
                (bare / tool).symlink_to(Path(folder, tool))
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "LANG", "LC_", "SSL_", "HOME"))}
    return kept | {"PATH": f"{venv}/bin:{bare}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", f"-Cbuild-dir={folder}/build", "--outdir"]
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*build, folder, ROOT], capture_output=True, text=True, env=os.environ | path)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("edgegossip-*.whl")
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_carries_everything_but_sources(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(["git", "ls-files", "edgegossip"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    wanted = {name for name in listed.stdout.split() if "/native/src/" not in name and (ROOT / name).exists()}
    assert wanted <= held, wanted - held
    assert {"edgegossip/py.typed"} <= held
    assert any(n.startswith("edgegossip/native/_native") and n.endswith(".so") for n in held)
    assert any(n.startswith("edgegossip/recipes/") and n.endswith(".toml") for n in held)
    assert {f"edgegossip/{p.relative_to(ROOT)}" for p in (ROOT / "devices").rglob("*.toml")} <= held
    assert not [n for n in held if n.endswith((".cpp", ".hpp", ".inc", ".pyc"))]
    assert {n.split("/")[0].split("-")[0] for n in held} == {"edgegossip"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_trains_in_an_empty_environment_without_compiler(wheel, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    env = without_tools(venv)
    install = [venv / "bin/python", "-m", "pip", "install", "--only-binary", ":all:", "-c", ROOT / "constraints.txt"]
    done = subprocess.run([*install, wheel, "torch"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = [venv / "bin/edgegossip", "run", "quickstart-gossip", "--json"]
    done = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failed_nodes": []' in done.stdout or '"failed_nodes":[]' in done.stdout
    assert list((tmp_path / "runs").glob("*quickstart-gossip*/summary.json"))
