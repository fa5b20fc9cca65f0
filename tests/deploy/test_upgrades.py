"""Security updates of an image: which are taken, when, and how many wait."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.board import ROOTFS, program

upgrades = program("upgrades")
Disk = upgrades.Disk
CONF = ROOTFS / "etc/apt/apt.conf.d/60edgegossip"
# As Debian's package has it.
USUAL = """Unattended-Upgrade::Origins-Pattern {
        "origin=Debian,codename=${distro_codename},label=Debian";
        "origin=Debian,codename=${distro_codename},label=Debian-Security";
};
"""
NOW_S = 1.8e9
SIMULATED = """Inst libssl3 [3.0.15-1] (3.0.16-1 Debian-Security:12/oldstable-security [arm64])
Inst base-files [12.4] (12.4+deb12u11 Debian:12.11/oldstable [arm64])
Inst linux-image-6.1.0-37-arm64 (6.1.140-1 Debian-Security:12/oldstable-security, Debian:12.11/oldstable [arm64])
Conf libssl3 (3.0.16-1 Debian-Security:12/oldstable-security [arm64])
"""


def touch(root: Path, name: str, at_s: float) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at_s, at_s))


@pytest.mark.parametrize(
    ("training_s", "upgraded_s", "updated_s", "held"),
    [
        (None, None, None, False),  # no run
        (10.0, None, None, True),
        (10.0, 86_400.0, 10.0, True),
        (10.0, 8 * 86_400.0, 10.0, False),  # a run that has held them off for a week
        (10.0, None, 8 * 86_400.0, False),  # also on a card that never upgraded
        (3600.0, 86_400.0, 10.0, False),  # a mark of a process that is no more
    ],
)
def test_a_run_holds_them_off_for_a_week_at_most(tmp_path, training_s, upgraded_s, updated_s, held):
    names = {upgrades.TRAINING: training_s, upgrades.UPGRADED: upgraded_s, upgrades.UPDATED: updated_s}
    for name, ago_s in names.items():
        if ago_s is not None:
            touch(tmp_path, name, NOW_S - ago_s)
    assert upgrades.held_off(Disk(str(tmp_path)), NOW_S) is held


@pytest.mark.parametrize(("labels", "pending"), [("Debian\nDebian-Security\n", 2), ("Debian\n", None)])
def test_those_that_wait_are_counted(tmp_path, labels, pending):
    (tmp_path / "opt/edgegossip").mkdir(parents=True)
    upgrades.count(Disk(str(tmp_path)), lambda command: labels if "indextargets" in command else SIMULATED, NOW_S)
    assert json.loads((tmp_path / "opt/edgegossip/upgrades").read_text()) == {"pending": pending, "at_s": NOW_S}


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="apt reads its own configuration")
def test_nothing_but_security_updates_is_taken(tmp_path):
    (tmp_path / "50unattended-upgrades").write_text(USUAL)
    shutil.copy(CONF, tmp_path)
    (tmp_path / "apt.conf").write_text(f'Dir::Etc::parts "{tmp_path}";\n')
    done = subprocess.run(
        ["apt-config", "dump"], env={"APT_CONFIG": f"{tmp_path}/apt.conf"}, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if "Unattended-Upgrade::Origins-Pattern:: " in line]
    assert len(lines) == 1 and "codename=${distro_codename}-security,label=Debian-Security" in lines[0]
    assert 'Unattended-Upgrade::Automatic-Reboot "false";' in done.stdout


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or not Path("/lib/systemd/system/apt-daily.service").exists(),
    reason="systemd checks apt's units itself",
)
def test_apts_units_ask_first(tmp_path):
    units = ["apt-daily.service", "apt-daily-upgrade.service", "apt-daily-upgrade.timer"]
    for unit in units:
        shutil.copy(f"/lib/systemd/system/{unit}", tmp_path)
        text = (ROOTFS / "etc/systemd/system" / f"{unit}.d/edgegossip.conf").read_text()
        (tmp_path / f"{unit}.d").mkdir()
        (tmp_path / f"{unit}.d/edgegossip.conf").write_text(
            text.replace("/usr/lib/edgegossip", str(ROOTFS / "usr/lib/edgegossip"))
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit) for unit in units)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "edgegossip" in line]) == (0, [])
