"""Debian for a board: where its packages come from, mmdebstrap's command, and what is put into the
tree that it leaves. The commands of Debian's own packages run under user-mode emulation; nothing is
mounted on this machine but what mmdebstrap itself mounts in its chroot."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.fleet.image.boards import Debian
from edgegossip.fleet.image.filesystems import BOOT_LABEL, ROOT_LABEL
from edgegossip.fleet.image.tools import run
from edgegossip.types import HostError

COMPONENTS = "main non-free-firmware"  # the latter: what a Raspberry Pi's boot loader and radio need
_FORMAT = "$(REPO_URI)|$(LABEL)"
PACKAGES = [
    "systemd", "systemd-sysv", "systemd-resolved", "systemd-timesyncd", "libnss-resolve", "udev",
    "dbus", "kmod", "iproute2", "iputils-ping", "netbase", "ca-certificates", "python3",
    "openssh-server", "wpasupplicant", "wireless-regdb", "firmware-brcm80211", "raspi-firmware",
    "linux-image-arm64", "initramfs-tools", "zstd", "fdisk", "dosfstools", "e2fsprogs",
    "unattended-upgrades",
]  # fmt: skip
SYSROOT_PACKAGES = ("libc6-dev", "libpython3-dev")
_HEADERS = ("--variant=extract", f"--include={','.join(SYSROOT_PACKAGES)}")
# What the root file system is on: SD cards and USB of Raspberry Pis, and the disks of emulators.
# Other modules come from it later. initramfs-tools' own choice, every module there is, takes
# minutes to copy under emulation.
MODULES = [
    "ext4", "crc32c_generic", "sdhci_iproc", "sdhci_brcmstb", "bcm2835", "fixed", "gpio_regulator",
    "reset_raspberrypi", "xhci_pci", "dwc2", "phy_generic", "usb_storage", "uas", "virtio_pci",
    "virtio_mmio", "virtio_blk",
]  # fmt: skip
UNITS = (
    "systemd-networkd", "systemd-networkd-wait-online", "systemd-resolved", "systemd-timesyncd", "ssh",
    "fstrim.timer",
)  # fmt: skip
# A board has no LVM, nobody at its keyboard, and a radio that another unit (wpa_supplicant@wlan0)
# looks after.
QUIET = ("e2scrub_all.timer", "e2scrub_reap.service", "wpa_supplicant.service")
_DPKG = ("path-exclude=/usr/share/man/*", "path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/info/*")
_DOCS = ("path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright")  # licences stay
# A shell reads it: Debian's raspi-firmware, which writes config.txt and cmdline.txt with each
# kernel.
_RASPI_FIRMWARE = f'ROOTPART="LABEL={ROOT_LABEL}"\nKERNEL="auto"\nINITRAMFS="auto"\nCONSOLES="ttyS1,115200 tty0"\n'
# A board whose boot partition is late or damaged still trains: without `nofail` it would wait at an
# emergency shell.
_BOOT_OPTIONS = "rw,umask=0077,nofail,x-systemd.device-timeout=10min"
_FSTAB = f"LABEL={ROOT_LABEL} / ext4 rw,noatime 0 1\nLABEL={BOOT_LABEL} /boot/firmware vfat {_BOOT_OPTIONS} 0 2\n"
_TIMEOUT_S = 5400.0
_HASH_BASED, _CHECK_SOURCE = 1, 2  # flags of a compiled file


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Holds the base addresses of Debian's archive and of its security updates (empty: none)."""

    archive: str
    security: str


def apt_mirrors() -> Mirrors:
    """Ask this machine's apt for its mirrors. Raises HostError when it knows none: not a Debian, or
    `apt-get update` never ran."""
    return index_mirrors(run(["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"], 60).splitlines())


def index_mirrors(lines: Iterable[str]) -> Mirrors:
    """Read lines URI|LABEL of `apt-get indextargets`. Raises HostError."""
    known: dict[str, str] = {}
    for line in lines:
        address, _, label = line.partition("|")
        known.setdefault(label, address)
    if "Debian" not in known:
        raise HostError(
            "apt on this machine knows no archive of Debian: name one with --mirror (or run `apt-get update`)"
        )
    return Mirrors(known["Debian"], known.get("Debian-Security", ""))


def parse_mirrors(mirror: str) -> Mirrors:
    """Read what the user names: MIRROR, or MIRROR,SECURITY. Raises HostError."""
    archive, _, security = mirror.partition(",")
    if not all(part.startswith(("http://", "https://", "file:", "copy:")) for part in (archive, security or archive)):
        raise HostError(
            f"--mirror {mirror}: write ADDRESS or ADDRESS,SECURITY_ADDRESS, each with http://, https:// or file:"
        )
    return Mirrors(archive, security)


def deb_lines(mirrors: Mirrors, debian: Debian) -> tuple[str, ...]:
    """Return the sources that mmdebstrap takes: the release, its point updates, and security
    updates where they are to be had."""
    suites = [(mirrors.archive, debian.suite), (mirrors.archive, f"{debian.suite}-updates")]
    if mirrors.security:
        suites.append((mirrors.security, f"{debian.suite}-security"))
    return tuple(f"deb {address} {suite} {COMPONENTS}" for address, suite in suites)


def files_before_packages() -> dict[str, str]:
    """Return what packages read while they configure themselves, by path."""
    return {
        "etc/initramfs-tools/conf.d/edgegossip": "MODULES=list\nCOMPRESS=zstd\n",
        "etc/initramfs-tools/modules": "".join(f"{name}\n" for name in MODULES),
        "etc/default/raspi-firmware": _RASPI_FIRMWARE,
        "boot/firmware/.keep": "",
    }


def inputs(debian: Debian, mirrors: Mirrors, epoch: int) -> dict[str, Any]:
    """Return all that the tree depends on, but for what the mirrors hold on the day."""
    command = _command(_system(Path("BEFORE")), debian, deb_lines(mirrors, debian), Path("TAR"))
    return {"command": [str(word) for word in command], "files": files_before_packages(), "epoch": epoch}


def sysroot_inputs(debian: Debian, mirrors: Mirrors, epoch: int) -> dict[str, Any]:
    """Return all that the headers depend on."""
    command = _command(_HEADERS, debian, deb_lines(mirrors, debian)[:1], Path("TAR"))
    return {"command": [str(word) for word in command], "epoch": epoch}


def bootstrap(debian: Debian, mirrors: Mirrors, epoch: int, folder: Path) -> None:
    """Make rootfs.tar in `folder`: all packages, configured. Raises HostError."""
    overlay = folder / "before"
    write_files(overlay, files_before_packages())
    lines = deb_lines(mirrors, debian)
    _mmdebstrap(_system(overlay), debian, lines, folder / "rootfs.tar", epoch, folder / "mmdebstrap.log")
    shutil.rmtree(overlay)


def _system(overlay: Path) -> tuple[str, ...]:
    """Return mmdebstrap's options for a board's system, with the files of `overlay` before any
    package."""
    return (
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        "--dpkgopt=force-confold",
        *(f"--dpkgopt={line}" for line in (*_DPKG, *_DOCS)),
        f'--extract-hook=cp -r "{overlay}/." "$1"',
        '--customize-hook=rm "$1/boot/firmware/.keep"',
        f'--customize-hook=chroot "$1" systemctl enable {" ".join(UNITS)}',
    )


def sysroot(debian: Debian, mirrors: Mirrors, epoch: int, folder: Path) -> None:
    """Fetch headers and C library to compile against into `folder`; nothing of it runs. Raises
    HostError."""
    tar = folder / "sysroot.tar"
    _mmdebstrap(_HEADERS, debian, deb_lines(mirrors, debian)[:1], tar, epoch, folder / "mmdebstrap.log")
    extract_headers(tar, folder)
    tar.unlink()


def extract_headers(tar: Path, folder: Path) -> None:
    """Unpack what a compiler needs of a tree. Raises HostError."""
    run(["tar", "--extract", "--file", tar, "--directory", folder, "--exclude=./dev/*"], 300)
    if not (folder / "lib").exists():  # from Debian 13 on base-files brings that link, which is none of these packages
        (folder / "lib").symlink_to("usr/lib")


def _mmdebstrap(options: Sequence[str], debian: Debian, lines: Sequence[str], tar: Path, epoch: int, log: Path) -> None:
    run(_command(options, debian, lines, tar), _TIMEOUT_S, env={"SOURCE_DATE_EPOCH": str(epoch)}, log=log)


def _command(options: Sequence[str], debian: Debian, lines: Sequence[str], tar: Path) -> tuple[str | Path, ...]:
    fixed = ("mmdebstrap", "--mode=root", "--arch=arm64", "--verbose", '--aptopt=Acquire::Languages "none"')
    return (*fixed, '--aptopt=APT::Install-Recommends "false"', *options, debian.suite, tar, *lines)


def extract(tar: Path, root: Path) -> None:
    """Unpack a tree with owners, modes and capabilities as they are. Raises HostError."""
    root.mkdir()
    run(["tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*",
         "--file", tar, "--directory", root], 900)  # fmt: skip


def settle(root: Path, boot: Path) -> None:
    """Make the tree one that any card can be made of: nothing of this machine, no keys, no names.
    What is for the boot partition goes to `boot`."""
    boot.mkdir()
    for path in sorted((root / "boot/firmware").iterdir()):
        shutil.move(path, boot / path.name)
    write_files(root, {"etc/fstab": _FSTAB, "etc/hostname": "edgegossip\n", "etc/machine-id": ""})
    write_files(root, {"etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"})
    for pattern in ("etc/ssh/ssh_host_*", "var/lib/dbus/machine-id", "var/log/*.log", "var/log/apt/*", "var/cache/ldconfig/*",
                    "var/lib/systemd/random-seed", "root/.ssh", "var/cache/debconf/*-old", "var/lib/dpkg/*-old"):  # fmt: skip
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    trust_compiled(root / "usr/lib")
    for unit in QUIET:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    resolver.symlink_to("../run/systemd/resolve/stub-resolv.conf")
    sources = root / "etc/apt/sources.list"
    if sources.exists():  # a private mirror's password stays here
        sources.write_text(re.sub(r"://[^/@\s]+@", "://", sources.read_text()))


def trust_compiled(folder: Path) -> None:
    """Let compiled files be believed: Python's own modules were compiled with SOURCE_DATE_EPOCH
    set, and so they say: hash the source at each import (PEP 552). A card is slow, and only apt
    changes them, which compiles them anew."""
    for path in folder.glob("python3*/**/*.pyc"):
        with open(path, "r+b") as file:
            head = file.read(8)
            if int.from_bytes(head[4:], "little") == _HASH_BASED | _CHECK_SOURCE:
                file.seek(4)
                file.write(_HASH_BASED.to_bytes(4, "little"))


def overlay(files: Path, root: Path) -> list[str]:
    """Copy a tree of ours over it, for root and readable by all. Returns its units that are
    switched on (links in *.wants)."""
    for path in sorted(files.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        target = root / path.relative_to(files)
        if path.is_symlink():
            target.unlink(missing_ok=True)
            target.symlink_to(os.readlink(path))
        elif path.is_dir():
            make_folder(target)
        else:
            target.write_bytes(path.read_bytes())
            target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    return sorted(path.name for path in files.glob("etc/systemd/system/*.wants/*"))


def packages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and version of every Debian package in the tree."""
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        found = dict(re.findall(r"^(Package|Version|Status): (.*)$", paragraph, re.MULTILINE))
        if found.get("Status", "").endswith(" installed"):
            yield found["Package"], found["Version"]


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write files for root and readable by all, whatever this machine's umask."""
    for name, text in files.items():
        path = root / name
        make_folder(path.parent)
        path.unlink(missing_ok=True)  # it may be a link to elsewhere
        path.write_text(text)
        path.chmod(0o644)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, as files of `write_files`; one that is there stays as it
    is."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def say_what_it_is(root: Path, about: Mapping[str, Any]) -> None:
    """Write /usr/lib/edgegossip/image.json: board, versions and inputs of this image."""
    write_files(root, {"usr/lib/edgegossip/image.json": json.dumps(about, indent=1, sort_keys=True) + "\n"})
