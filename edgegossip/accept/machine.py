"""What the probes read of a machine, in one place, so that a recorded tree and a clock of one's own
can stand in for it; and what kind of machine it is."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgegossip.fleet import link_test
from edgegossip.fleet.link_test import LinkRate
from edgegossip.telemetry.machine import board_name
from edgegossip.telemetry.sensors import text_of

Kind = Literal["board", "virtual machine", "emulated"]
_EMULATED_BOARDS = ("linux,dummy-virt",)  # QEMU's own machine for arm64
_QEMU = ("qemu", "bochs")  # in what firmware calls the machine
# Flags of /proc/cpuinfo without which the kernels of an instruction set would not run; the last two
# are of arm64.
FLAGS = {
    "avx2": ("avx2", "bmi2", "abm"),
    "avxvnni": ("avx2", "avx_vnni"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "avx512vnni": ("avx512f", "avx512_vnni"),
    "avx512vbmi": ("avx512_vnni", "avx512vbmi", "avx512_vbmi2"),
    "neon": ("asimd",),
    "dotprod": ("asimd", "asimddp"),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Is what probes read: files under `root`, a folder that they may write in, clocks, `fsync`,
    and how a link is measured."""

    root: Path = Path("/")
    folder: Path = Path(".")
    architecture: str = platform.machine()
    clock: Callable[[], float] = time.perf_counter
    unix_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    fsync: Callable[[int], None] = os.fsync
    link: Callable[[str, int], LinkRate] = link_test.measure

    def told_flags(self) -> frozenset[str]:
        """Return the processor's flags as /proc/cpuinfo has them: "flags" on x86-64, "Features" on
        arm64."""
        for line in self._cpuinfo():
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(words.split())
        return frozenset()

    def kind(self) -> Kind:
        """Tell a board from what imitates one, as far as the machine gives itself away: a kernel or
        a processor of another architecture (QEMU for one program), QEMU's own board, or a
        hypervisor. A whole imitated Raspberry Pi cannot be told: `accept --emulated` says so."""
        kernel = text_of(self.root / "proc/sys/kernel/arch")  # since Linux 6.1; no emulator feigns it
        foreign = kernel is not None and kernel != self.architecture
        arm = self.architecture == "aarch64"
        of_pc = any(line.startswith("vendor_id") for line in self._cpuinfo())
        firmware = " ".join(
            text_of(self.root / f"sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name")
        )
        if foreign or (arm and of_pc) or board_name(self.root / "proc/device-tree") in _EMULATED_BOARDS:
            return "emulated"
        if "hypervisor" in self.told_flags() or any(word in firmware.lower() for word in _QEMU):
            return "virtual machine"
        return "board"

    def _cpuinfo(self) -> list[str]:
        return (text_of(self.root / "proc/cpuinfo") or "").splitlines()
