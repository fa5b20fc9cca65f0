"""The systemd units of an image, by systemd's own word, where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.board import ROOTFS

UNITS = ROOTFS / "etc/systemd/system"
OWN = sorted(f for f in UNITS.iterdir() if f.is_file())
SERVER = ROOTFS.parent / "server/edgegossip-fleet.service"
AT_MOST = {
    "edgegossip-node.service": 2.0,
    "edgegossip-checkin.service": 4.0,
    "edgegossip-guard.service": 5.0,
    SERVER.name: 2.0,
}
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd checks its units itself")


@needs_systemd
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for file in (*OWN, SERVER):  # not installed here, so paths of the image are this repository's
        text = file.read_text().replace("/usr/lib/edgegossip", str(ROOTFS / "usr/lib/edgegossip"))
        text = text.replace("/opt/edgegossip-fleet/bin/edgegossip", sys.executable)
        (tmp_path / file.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / f.name) for f in (*OWN, SERVER))],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    said = [line for line in done.stderr.splitlines() if "edgegossip" in line]
    assert (done.returncode, said) == (0, [])


@needs_systemd
@pytest.mark.parametrize("unit", [f for f in (*OWN, SERVER) if f.name in AT_MOST], ids=lambda f: f.name)
def test_services_may_do_no_more_than_they_need(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
    )
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    if found is None:
        pytest.skip("this systemd does not judge units that are not loaded")
    assert float(found[1]) <= AT_MOST[unit.name], done.stdout


def test_secrets_come_as_credentials_and_the_node_has_no_powers() -> None:
    text = (UNITS / "edgegossip-node.service").read_text()
    for line in (
        "DynamicUser=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@system-service",
    ):
        assert f"\n{line}\n" in text
    assert "LoadCredential=identity.key:/etc/edgegossip/identity.key\n" in text
    assert "Restart=always" in text and re.search(r"\nWatchdogSec=", text)


def test_a_server_does_not_start_beside_a_key_that_signs() -> None:
    text = SERVER.read_text()
    for name in ("ca.key", "operator", "boards"):
        assert f"\nAssertPathExists=!/var/lib/edgegossip-fleet/{name}\n" in text
    copied = re.findall(r"^COPY (\S+)", (SERVER.parent / "Containerfile").read_text(), re.MULTILINE)
    assert copied == ["${LOCK}", "dist/"], "the fleet's folder is mounted"


def test_what_is_to_run_is_enabled() -> None:
    wanted = [f for folder in UNITS.glob("*.wants") for f in folder.iterdir()]
    assert all(f.is_symlink() and f.resolve() in OWN for f in wanted)
    asked = {f.name for f in OWN if "[Install]" in f.read_text()}
    assert {f.name for f in wanted} == asked
