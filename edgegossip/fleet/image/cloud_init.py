"""A stock Raspberry Pi OS card (Trixie, 64 bit) becomes a client by files on its boot partition
(cloud-init, NoCloud source).

    user-data network-config meta-data    what cloud-init reads at the first boot: YAML, written as
                                          JSON, which is YAML too
    edgegossip.kit                        what first boot (deploy/rootfs) takes, as on our own
                                          images, and wipes
    edgegossip/                           install.sh, the wheel, lock files, and deploy/rootfs as a
                                          tar file

The board then fetches its Python packages from the package index, each checked against the lock
file. Pure but for `prepare`."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgegossip.files import write_file
from edgegossip.fleet import kitfile
from edgegossip.fleet.image.boards import TRIXIE
from edgegossip.fleet.image.configure import BUNDLE
from edgegossip.fleet.kitfile import ProvisioningBundle, Wifi
from edgegossip.fleet.lock import refused_as
from edgegossip.types import DataError, HostError

FOLDER = "edgegossip"
_BOOT = "/boot/firmware"
UNIT_FILE = "/etc/systemd/system/edgegossip-install.service"
UNIT = f"""[Unit]
Description=edgegossip: install the client, until that has succeeded
RequiresMountsFor={_BOOT}
Wants=network-online.target
After=network-online.target cloud-final.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/bin/sh {_BOOT}/{FOLDER}/install.sh
Restart=on-failure
RestartSec=60

[Install]
WantedBy=multi-user.target
"""
# The boot partition need not be there yet, so the unit comes with user-data itself.
_BEGIN = (
    'printf %s "$2" >"$1.new" && mv "$1.new" "$1" && systemctl daemon-reload && '
    'systemctl enable "$(basename "$1")" && systemctl start --no-block "$(basename "$1")"'
)
_WHEEL = re.compile(r"edgegossip-[^-]+-cp312-abi3-\w*linux\w*_aarch64\.whl")  # as wheel.tag has it
_HEADER = "#cloud-config\n# Made by `edgegossip image configure --cloud-init`; JSON is YAML, too.\n"


def user_data(bundle: ProvisioningBundle) -> str:
    """Return cloud-config: the board's name, who may log in, and the unit that installs. `bootcmd`
    is what cloud-init does at every boot; everything else it does once, also when the power goes
    meanwhile or there is no network."""
    document: dict[str, Any] = {
        "hostname": bundle.name,
        "manage_etc_hosts": True,
        "ssh_pwauth": False,
        "bootcmd": [["sh", "-c", _BEGIN, "sh", UNIT_FILE, UNIT]],
    }
    if bundle.ssh_keys:
        document |= {"disable_root": False, "users": ["default", _root(bundle.ssh_keys)]}
        # Raspberry Pi OS has it off
        document["bootcmd"].append(["systemctl", "enable", "--now", "--no-block", "ssh.service"])
    return _HEADER + _text(document)


def network_config(networks: Sequence[Wifi]) -> str:
    """Return networking version 2 (netplan's): every wired interface by DHCP, and the Wi-Fi of the
    bundle. Its key, made of the password, stays on the card, as with Raspberry Pi's own imager:
    cloud-init reads it before anything of ours runs."""
    document: dict[str, Any] = {
        "version": 2,
        "ethernets": {"wired": {"match": {"name": "e*"}, "dhcp4": True, "optional": True}},
    }
    if networks:
        points = {w.ssid: {"password": w.psk, "hidden": True} for w in networks}
        wireless: dict[str, Any] = {"dhcp4": True, "optional": True, "access-points": points}
        if country := next((w.country for w in networks if w.country), ""):
            wireless["regulatory-domain"] = country
        document["wifis"] = {"wlan0": wireless}
    return _text(document)


def meta_data(bundle: ProvisioningBundle) -> str:
    """Return the instance: a new bundle is a new one to cloud-init, so that its first boot happens
    again."""
    return _text({"instance-id": f"edgegossip-{bundle.serial}", "local-hostname": bundle.name})


def files(bundle: ProvisioningBundle, bundle_bytes: bytes, wheel: Path, source: Path) -> Mapping[str, bytes]:
    """Return everything for the boot partition, by path. Raises DataError when the checkout lacks
    something."""
    locks = sorted((source / "deploy/locks").glob("*.txt"))
    installer = source / "deploy/cloud-init/install.sh"
    if not locks or not installer.is_file():
        raise DataError(
            f"{source} has no deploy/locks or deploy/cloud-init: name a checkout of edgegossip with --source"
        )
    return {
        "user-data": user_data(bundle).encode(),
        "network-config": network_config(bundle.wifi).encode(),
        "meta-data": meta_data(bundle).encode(),
        BUNDLE: bundle_bytes,
        f"{FOLDER}/install.sh": installer.read_bytes(),
        f"{FOLDER}/rootfs.tar": tar_of(source / "deploy/rootfs"),
        f"{FOLDER}/{wheel.name}": wheel.read_bytes(),
        **{f"{FOLDER}/{lock.name}": lock.read_bytes() for lock in locks},
    }


def prepare(folder: Path, bundle_file: Path, wheel: Path, source: Path) -> ProvisioningBundle:
    """Write all that into the mounted boot partition of a stock card. Raises EdgegossipError."""
    bundle = kitfile.read(bundle_file)
    if not (folder / "cmdline.txt").is_file():
        raise DataError(
            f"{folder} is not the boot partition of a Raspberry Pi OS card (it has no cmdline.txt): mount the card's first one"
        )
    _check_wheel(wheel)
    with refused_as(HostError, folder):
        for name, data in files(bundle, bundle_file.read_bytes(), wheel, source).items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, data, 0o600)
        for old in (folder / FOLDER).glob("*.whl"):
            if old.name != wheel.name:
                old.unlink()
    return bundle


def _check_wheel(wheel: Path) -> None:
    """Raise DataError unless it is ours, and for the Python and machine of such a card."""
    if not _WHEEL.fullmatch(wheel.name) or not zipfile.is_zipfile(wheel):
        raise DataError(
            f"{wheel} is no wheel of edgegossip for aarch64 and Python {TRIXIE.python}, which such a card has: "
            "make it with `edgegossip image wheel --board raspberry-pi-5`"
        )


def tar_of(folder: Path) -> bytes:
    """Pack a folder's files as root's, without times and other accidents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if "__pycache__" not in path.parts:
                archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_plain)
    return buffer.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _root(keys: Sequence[str]) -> dict[str, Any]:
    return {"name": "root", "ssh_authorized_keys": list(keys)}


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
