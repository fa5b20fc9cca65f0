"""What a board does before it takes part, at every boot: take the provisioning bundle from the boot
partition and become who it says.

    /boot/firmware/edgegossip.kit    put there by `edgegossip image configure` or by hand; gone
                                     after the first boot
    /etc/edgegossip/kit              the same, for root only: what everything else is made of
    /etc/edgegossip/                 identity (ca.pem identity.pem identity.key crl.pem), node.args,
                                     check-in, board.json
    /etc/edgegossip/applied          digest of the bundle whose parts are all in their places
    /etc/edgegossip/grown            there when the root file system fills the card

Every step can be said again, and the power may go at any moment: the next boot goes on. The bundle
is wiped from the boot partition (FAT knows no permissions) only when the copy for root is on the
disk. What goes wrong is said in the journal, and in /boot/firmware/edgegossip-firstboot.txt for who
puts the card into a laptop. A new bundle on the boot partition replaces the old one.

Standard library only. The bundle itself is checked by the release (`edgegossip.fleet.kitfile`),
which knows certificates."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from disk import Disk

CARD_BUNDLE = "/boot/firmware/edgegossip.kit"
CARD_CONFIG = "/boot/firmware/config.txt"  # on every boot partition of a Raspberry Pi
CARD_WORDS = "/boot/firmware/edgegossip-firstboot.txt"
HOME = "/etc/edgegossip"
BUNDLE, APPLIED, GROWN = f"{HOME}/kit", f"{HOME}/applied", f"{HOME}/grown"
SITE = "/opt/edgegossip/current/site"
MAX_BUNDLE_BYTES = 1 << 20  # as in edgegossip.fleet.kitfile
COMMAND_S = 600.0  # ssh host keys take minutes on a slow board
NETWORK_MANAGER = "/usr/sbin/NetworkManager"
WPA = "/etc/wpa_supplicant/wpa_supplicant-wlan0.conf"
WPA_UNIT = "wpa_supplicant@wlan0.service"


class Failed(Exception):
    """Raised with one sentence for people: what is wrong and what to do."""


class Machine:
    """Stands for what is not a file: the clock and other programs."""

    def now(self) -> float:
        return time.time()

    def set_clock(self, seconds: float) -> None:
        time.clock_settime(time.CLOCK_REALTIME, seconds)

    def run(self, command: Sequence[str], text: str = "") -> str:
        """Return what a program printed. Raises Failed with its last line."""
        try:
            done = subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                env={**os.environ, "LC_ALL": "C"},
            )
        except FileNotFoundError:
            raise Failed(f"{command[0]} is not in this image") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"{command[0]} did not end in {COMMAND_S:.0f} s") from None
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines() or [f"it ended with {done.returncode}"]
            raise Failed(f"{command[0]}: {words[-1]}")
        return done.stdout


def first_boot(disk: Disk, machine: Machine, say: Callable[[str], None]) -> bool:
    """Do everything, in order. Return whether this board knows who it is; raises Failed when its
    bundle cannot be used."""
    mount_card(disk, machine, say)
    take_bundle(disk, machine, say)
    data = disk.read(BUNDLE)
    if data is not None:
        apply_bundle(disk, machine, data, say)
    for step in (grow, host_keys):
        try:
            step(disk, machine, say)
        except (Failed, OSError) as error:  # a board with a small file system still trains
            say(f"{step.__name__}: {error}")
    if data is None:
        name = os.path.basename(CARD_BUNDLE)
        say(f"this card has no provisioning bundle: put one on its boot partition as {name} and start again")
    return data is not None


def mount_card(disk: Disk, machine: Machine, say: Callable[[str], None]) -> None:
    """Mount the boot partition, if it is not: systemd does it, but gives what reads /etc/fstab 90
    s, and on a machine that is slower than that it boots without. A bundle must not go unseen for
    that."""
    if disk.exists(CARD_CONFIG):
        return
    try:
        machine.run(["mount", os.path.dirname(CARD_BUNDLE)])
        say("the boot partition was not mounted: it is now")
    except Failed as error:
        say(f"the boot partition cannot be mounted: {error}")


def take_bundle(disk: Disk, machine: Machine, say: Callable[[str], None]) -> None:
    """Move the bundle from the boot partition to root's own folder, and wipe it there. Raises
    Failed."""
    data = disk.read(CARD_BUNDLE)
    if data is None:
        return
    present = disk.read(BUNDLE)
    if present is None or not is_rest(data, present):
        check(disk, machine, data)
        disk.make_folder(HOME)
        disk.replace(BUNDLE, data, 0o600)
    disk.overwrite(CARD_BUNDLE)
    disk.remove(CARD_BUNDLE)
    disk.remove(CARD_WORDS)
    say("the provisioning bundle is in /etc/edgegossip, and wiped from the boot partition")


def is_rest(data: bytes, bundle: bytes) -> bool:
    """Return whether this is what a wipe of the bundle leaves when it is cut short: zeros, and the
    bundle where there are none yet."""
    return len(data) <= len(bundle) and all(a in (0, b) for a, b in zip(data, bundle, strict=False))


def check(disk: Disk, machine: Machine, data: bytes) -> None:
    """Raises Failed unless the release says that the bundle on the card is of one piece, and signed
    by its fleet."""
    if len(data) > MAX_BUNDLE_BYTES or b"\0" in data or not data:
        raise Failed("edgegossip.kit on the boot partition is damaged: copy it there again")
    command = [sys.executable, "-s", "-m", "edgegossip.fleet.kitfile", disk.path(CARD_BUNDLE)]
    machine.run(["/usr/bin/env", f"PYTHONPATH={disk.path(SITE)}", "PYTHONDONTWRITEBYTECODE=1", *command])


def apply_bundle(disk: Disk, machine: Machine, data: bytes, say: Callable[[str], None]) -> None:
    """Put every part of the bundle in its place, if it is not yet the one that is there. Raises
    Failed."""
    try:
        bundle = json.loads(json.loads(data)["body"])
        floor_s = float(bundle["issued_s"])
    except (ValueError, KeyError, TypeError):
        raise Failed(
            f"{BUNDLE} is damaged: make a provisioning bundle again with `edgegossip fleet kit`, and put it on the card"
        ) from None
    if machine.now() < floor_s:
        machine.set_clock(floor_s)
        say("the clock was behind: set to the day on which the provisioning bundle was made")
    digest = hashlib.sha256(data).hexdigest().encode() + b"\n"
    if disk.read(APPLIED) == digest:
        return
    identity(disk, bundle)
    hostname(disk, bundle["name"])
    ssh_keys(disk, bundle["ssh_keys"])
    for command in (["hostname", bundle["name"]], *wifi(disk, bundle["wifi"])):
        try:
            machine.run(command)
        except Failed as error:  # the next boot has it from the files
            say(str(error))
    disk.replace(APPLIED, digest)
    say(f"this board is {bundle['name']} of fleet {bundle['fleet']} ({bundle['fleet_id']})")


def identity(disk: Disk, bundle: dict[str, Any]) -> None:
    """Write the folder that `edgegossip node` takes. board.json comes last: units wait for it."""
    for name, text in sorted(bundle["identity"].items()):
        if name == "crl.pem" and disk.read(f"{HOME}/{name}") is not None and not changed(disk, bundle):
            continue  # the board may know a newer one by now
        disk.replace(f"{HOME}/{os.path.basename(name)}", text.encode(), 0o600 if name.endswith(".key") else 0o644)
    arguments = [
        "# One argument of `edgegossip node` a line; a new bundle, or `edgegossip fleet set`, replaces this file.",
        *bundle["node"],
    ]
    disk.remove(f"{HOME}/order.json")  # what an operator said before, perhaps another fleet's
    disk.replace(f"{HOME}/node.args", ("\n".join(arguments) + "\n").encode())
    if bundle["check_in"]:  # its service is started only if this is there
        disk.replace(f"{HOME}/check-in", f"{bundle['check_in']}\n".encode())
    else:
        disk.remove(f"{HOME}/check-in")
    about = {key: bundle[key] for key in ("name", "board", "fleet", "fleet_id", "serial", "check_in", "issued_s")}
    about["number"] = bundle.get("number", 0)
    disk.replace(f"{HOME}/board.json", (json.dumps(about, indent=1) + "\n").encode())


def changed(disk: Disk, bundle: dict[str, Any]) -> bool:
    """Return whether the identity that is there is of another certificate than the bundle's."""
    try:
        return bool(json.loads(disk.read(f"{HOME}/board.json") or b"{}").get("serial") != bundle["serial"])
    except ValueError:
        return True


def hostname(disk: Disk, name: str) -> None:
    disk.replace("/etc/hostname", f"{name}\n".encode())
    lines = (disk.read("/etc/hosts") or b"127.0.0.1\tlocalhost\n::1\tlocalhost\n").decode(errors="replace").splitlines()
    others = [line for line in lines if not line.startswith("127.0.1.1")]
    disk.replace("/etc/hosts", "\n".join([*others, f"127.0.1.1\t{name}", ""]).encode())


def ssh_keys(disk: Disk, keys: Sequence[str]) -> None:
    """Write down who may come in as root, with a key only. No keys: nobody, and nothing is
    changed."""
    if keys:
        disk.make_folder("/root/.ssh", 0o700)
        disk.replace("/root/.ssh/authorized_keys", ("\n".join(keys) + "\n").encode(), 0o600)


def wifi(disk: Disk, networks: Sequence[dict[str, str]]) -> list[list[str]]:
    """Write the networks for NetworkManager where the image has it (Raspberry Pi OS), else for
    wpa_supplicant and systemd-networkd (our images). Return the commands that make it count at
    once."""
    if not networks:
        return []
    if disk.exists(NETWORK_MANAGER):
        for number, network in enumerate(networks):
            name = f"edgegossip-{number}"
            path = f"/etc/NetworkManager/system-connections/{name}.nmconnection"
            disk.replace(path, network_manager(name, network).encode(), 0o600)
        return [["systemctl", "try-restart", "--no-block", "NetworkManager.service"]]
    disk.make_folder(os.path.dirname(WPA))
    disk.replace(WPA, wpa_supplicant(networks).encode(), 0o600)
    wants = "/etc/systemd/system/multi-user.target.wants"
    disk.make_folder(wants)
    disk.point(f"{wants}/{WPA_UNIT}", "/lib/systemd/system/wpa_supplicant@.service")
    return [["systemctl", "daemon-reload"], ["systemctl", "restart", "--no-block", WPA_UNIT]]


def wpa_supplicant(networks: Sequence[dict[str, str]]) -> str:
    """Return a wpa_supplicant.conf(5). The network's name goes in as hexadecimal digits, so nothing
    in it needs quotes."""
    country = next((n["country"] for n in networks if n["country"]), "")
    lines = ["ctrl_interface=DIR=/run/wpa_supplicant", "update_config=0", *([f"country={country}"] if country else [])]
    for network in networks:
        lines += ["network={", f"\tssid={network['ssid'].encode().hex()}", "\tkey_mgmt=WPA-PSK WPA-PSK-SHA256"]
        lines += [f"\tpsk={network['psk']}", "\tscan_ssid=1", "}"]
    return "\n".join(lines) + "\n"


def network_manager(name: str, network: dict[str, str]) -> str:
    """Return an nm-settings-keyfile(5). The network's name goes in as a list of bytes."""
    ssid = "".join(f"{byte};" for byte in network["ssid"].encode())
    return (
        f"[connection]\nid={name}\ntype=wifi\nautoconnect=true\n\n[wifi]\nmode=infrastructure\nssid={ssid}\nhidden=true\n\n"
        f"[wifi-security]\nkey-mgmt=wpa-psk\npsk={network['psk']}\n\n[ipv4]\nmethod=auto\n\n[ipv6]\nmethod=auto\n"
    )


def grow(disk: Disk, machine: Machine, say: Callable[[str], None]) -> None:
    """Grow the root partition to the end of the card, and its file system with it. Raises
    Failed."""
    if disk.exists(GROWN):
        return
    device = machine.run(["findmnt", "--noheadings", "--output", "SOURCE", "/"]).strip()
    number, whole = partition(disk, device)
    machine.run(["sfdisk", "--no-reread", "--force", "--quiet", "-N", number, whole], ", +\n")
    machine.run(["partx", "--update", "--nr", number, whole])
    machine.run(["resize2fs", device])
    disk.make_folder(HOME)
    disk.replace(GROWN, b"yes\n")
    say(f"{device} fills the card")


def partition(disk: Disk, device: str) -> tuple[str, str]:
    """Return of /dev/mmcblk0p2 ("2", "/dev/mmcblk0"), as sysfs has it. Raises Failed."""
    name = os.path.basename(device)
    number = disk.read(f"/sys/class/block/{name}/partition")
    if number is None:
        raise Failed(f"{device} is no partition: the root file system keeps its size")
    whole = os.path.basename(os.path.dirname(disk.real(f"/sys/class/block/{name}")))
    return number.decode().strip(), f"/dev/{whole}"


def host_keys(disk: Disk, machine: Machine, say: Callable[[str], None]) -> None:
    """Give each card its own keys. ssh-keygen makes those that are missing, each whole or not at
    all."""
    if disk.exists("/usr/bin/ssh-keygen"):
        machine.run(["ssh-keygen", "-A"])


def main(disk: Disk, machine: Machine) -> int:
    """Do everything; what goes wrong is said on the card, too. Returns the exit code."""
    try:
        first_boot(disk, machine, lambda text: print(text, flush=True))
        return 0
    except (Failed, OSError) as error:
        print(f"<3>{error}", file=sys.stderr, flush=True)  # <3>: an error, for the journal
        with suppress(OSError):  # a boot partition that is full or not there
            disk.replace(CARD_WORDS, f"{error}\n".encode())
        return 1


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(Disk(), Machine()))
