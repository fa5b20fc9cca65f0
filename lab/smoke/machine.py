"""An emulated board: its card, its console, and the mains plug."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgegossip.fleet.image import configure, disk
from edgegossip.fleet.image.filesystems import put_in_fat
from edgegossip.fleet.image.tools import run

GUEST = "10.0.2.15"  # what qemu's own DHCP gives
CARD_BYTES = 4 << 30  # raspi3b wants a power of two; and there is something to grow into
_CORES = min(4, os.cpu_count() or 1)  # a Raspberry Pi 4 has four
_RELAY = Path(__file__).with_name("relay.py")


class Stopped(Exception):
    """A stage did not get to where it should: one sentence."""


@dataclass
class Board:
    """`reaches` are (address, port) of this machine that the board may connect to; `listens` is a
    port of the board that is at GUEST here; `command` is run in place of what the image's services
    do, and the board switches itself off after it."""

    folder: Path
    card: Path
    reaches: Sequence[tuple[str, int]] = ()
    listens: int = 0
    machine: str = "virt"
    command: str = ""
    boots: int = 0
    spent_s: float = 0.0  # of the CPU by emulators that are off
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def console(self) -> Path:
        return self.folder / f"console-{self.card.stem}-{self.boots}.log"

    def insert_bundle(self, bundle: Path) -> None:
        """Into the boot partition, as one would with the card in a laptop."""
        boot, _ = configure.layout(self.card)
        named = self.folder / configure.BUNDLE
        named.write_bytes(bundle.read_bytes())
        put_in_fat(self.card, boot.start, [named], int(time.time()))
        named.unlink()

    def plug_in(self) -> None:
        self.boots += 1
        self.console.unlink(missing_ok=True)  # of an earlier call: what it shows would count as shown now
        with open(self.console.with_suffix(".qemu"), "wb") as log:
            self.process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def unplug(self) -> None:
        """The power is gone: nothing is synced, nobody is told."""
        if self.process is not None:
            self.spent_s, started = self.cpu_s, self.process
            self.process = None
            started.send_signal(signal.SIGKILL)
            started.wait()

    def wait_for_end(self, timeout_s: float) -> None:
        """Until the board has switched itself off."""
        assert self.process is not None
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Stopped(f"still on after {timeout_s:.0f} s; the console's last line: {self._last()}") from None

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this board's emulator: wall seconds on a shared machine say little."""
        try:
            fields = (
                Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split() if self.process else []
            )
        except OSError:
            return self.spent_s
        return self.spent_s + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def wait_for(self, pattern: str, timeout_s: float) -> str:
        """Until the console shows it. Raises Stopped with the console's last line."""

        def look() -> str:
            found = re.search(pattern, self._said())
            return found[0] if found else ""

        return self.wait_until(look, f"{pattern!r} on the console", timeout_s)

    def wait_until(self, look: Callable[[], str], what: str, timeout_s: float) -> str:
        until = time.monotonic() + timeout_s
        while not (found := look()):
            if self.process is None or self.process.poll() is not None:
                words = self.console.with_suffix(".qemu").read_text(errors="replace").strip()
                raise Stopped(f"the emulator ended while waiting for {what}: {words or self._last()}")
            if time.monotonic() > until:
                raise Stopped(f"no {what} within {timeout_s:.0f} s; the console's last line: {self._last()}")
            time.sleep(0.5)
        return found

    def largest(self, pattern: str) -> int:
        """Of the numbers that the console shows in the pattern's group since the last boot; 0 for
        none."""
        return max(map(int, re.findall(pattern, self._said())), default=0)

    def _said(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def _last(self) -> str:
        return ([line for line in self._said().splitlines() if line.strip()] or ["(nothing)"])[-1][-300:]

    def _command(self) -> list[str]:
        boot = boot_files(self.card, self.folder / "boot")
        words = f"root=LABEL=RASPIROOT rw rootwait net.ifnames=0 panic=-1 {_LOUD}"
        if self.command:
            off = "systemd.run_success_action=poweroff systemd.run_failure_action=poweroff"
            words += f' systemd.run="{self.command}" {off}'
        forwards = [
            f"guestfwd=tcp:{a}:{p}-cmd:{sys.executable} -S -E {_RELAY} {a} {p} {GUEST}" for a, p in self.reaches
        ]
        if self.listens:
            forwards.append(f"hostfwd=tcp:{GUEST}:{self.listens}-{GUEST}:{self.listens}")
        network = ",".join(["user,id=n0,net=10.0.2.0/24,restrict=on", *forwards])
        common = [
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-reboot",
            "-kernel",
            str(boot / "kernel"),
            "-initrd",
            str(boot / "initrd"),
        ]
        if self.machine == "raspi3b":  # a Pi's console is its second UART; Bluetooth has the first
            return [
                *("qemu-system-aarch64", "-M", "raspi3b", *common, "-dtb", str(boot / "bcm2837-rpi-3-b.dtb")),
                *("-serial", f"file:{self.console.with_suffix('.uart0')}", "-serial", f"file:{self.console}"),
                *("-append", f"console=ttyAMA0,115200 console=ttyS1,115200 earlycon=pl011,0x3f201000 {words}"),
                *("-drive", f"if=sd,format=raw,file={self.card}", "-netdev", network, "-device", "usb-net,netdev=n0"),
            ]
        return [
            *(
                "qemu-system-aarch64",
                "-M",
                "virt",
                "-cpu",
                "cortex-a72",
                "-smp",
                str(_CORES),
                "-m",
                "1536",
                "-accel",
                "tcg,thread=multi,tb-size=512",
                *common,
            ),
            *("-serial", f"file:{self.console}", "-append", f"console=ttyAMA0,115200 {words}"),
            *("-drive", f"if=none,id=card,format=raw,file={self.card}", "-device", "virtio-blk-pci,drive=card"),
            *("-netdev", network, "-device", "virtio-net-pci,netdev=n0,romfile=", "-device", "virtio-rng-pci"),
        ]


# What happens goes to the console; an emulated machine on a busy one is slower than systemd's
# patience with a board; and with a random address the kernel isolates its page tables, which costs
# an emulator dearly and a Cortex-A72 does not need.
_LOUD = (
    "nokaslr "
    "systemd.journald.forward_to_console=1 systemd.journald.max_level_console=info systemd.show_status=0 "
    "systemd.default_timeout_start_sec=1800 systemd.default_device_timeout_sec=1800"
)


def new_card(image: Path, card: Path) -> None:
    """A card of CARD_BYTES with the image on it."""
    card.unlink(missing_ok=True)
    disk.copy_sparse(image, card)
    with open(card, "r+b") as stream:
        stream.truncate(CARD_BYTES)


def boot_files(card: Path, folder: Path) -> Path:
    """Kernel, initrd and device tree out of the card's boot partition, since no emulator runs a
    Raspberry Pi's boot loader. Those that config.txt names."""
    boot, _ = configure.layout(card)
    folder.mkdir(exist_ok=True)
    config = run(["mtype", "-i", f"{card}@@{boot.start}", "::/config.txt"], 120)
    kernel, initrd = (re.search(p, config, re.MULTILINE) for p in (r"^kernel=(\S+)", r"^initramfs\s+(\S+)"))
    if kernel is None or initrd is None:
        raise Stopped("config.txt on the boot partition names no kernel and initramfs")
    for name, target in ((kernel[1], "kernel"), (initrd[1], "initrd"), ("bcm2837-rpi-3-b.dtb", "bcm2837-rpi-3-b.dtb")):
        run(["mcopy", "-o", "-n", "-i", f"{card}@@{boot.start}", f"::/{name}", folder / target], 120)
    return folder
