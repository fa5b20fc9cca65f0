"""NVIDIA's `tegrastats`, for a Jetson whose current sensors cannot be read from here, as in most
containers.

One line a second, such as (JetPack 4, then 5)

    RAM 1903/3964MB (lfb 4x4MB) CPU [12%@1428,5%@1428,off,off] PMIC@100C GPU@39.5C AO@46C POM_5V_IN 2546/2546 POM_5V_CPU 480/499
    RAM 2100/6854MB CPU [3%@1510,0%@1510] GR3D_FREQ 0% cpu@48.5C soc0@47.1C tj@48.5C VDD_IN 4880mW/4880mW VDD_SOC 1410mW/1410mW

Each rail has what it takes now and its mean, in mW.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgegossip.telemetry.sensors.power import INPUT_RAILS, POWER

_RAIL = re.compile(r"\b([A-Z][A-Z0-9_]+) (\d+)(?:mW)?/\d+(?:mW)?(?=\s|$)")
_HEAT = re.compile(r"\b([A-Za-z][\w-]*)@(-?\d+(?:\.\d+)?)C\b")
_CORES = re.compile(r"CPU \[([^\]]*)\]")
_CLOCK = re.compile(r"%@(\d+)")
_FIXED = ("pmic",)  # says 100 degrees, always
_MAX_LINE_BYTES = 65_536


def parse_line(line: str) -> dict[str, float]:
    """Metrics of one line: sys/power_w, sys/temperature_c (the hottest), sys/frequency_hz (the mean
    of the cores that are on). What it does not say is left out."""
    values: dict[str, float] = {}
    rails = {name: int(now) for name, now in _RAIL.findall(line) if name not in ("RAM", "SWAP", "IRAM")}
    if rails:
        inputs = {name: mw for name, mw in rails.items() if name in INPUT_RAILS}
        values[POWER] = sum((inputs or rails).values()) / 1000
    heat = [float(c) for name, c in _HEAT.findall(line) if name.lower() not in _FIXED]
    if heat:
        values["sys/temperature_c"] = max(heat)
    cores = _CORES.search(line)
    mhz = [int(clock) for clock in _CLOCK.findall(cores[1])] if cores else []
    if mhz:
        values["sys/frequency_hz"] = 1e6 * sum(mhz) / len(mhz)
    return values


@dataclass(slots=True)
class Tegrastats:
    """The program at work, and the last whole line that it wrote. It ends when nobody reads it any
    more. Thread-safe."""

    process: subprocess.Popen[bytes]
    name: str = "tegrastats"
    _rest: bytes = field(default=b"")
    _last: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def find(cls, root: Path) -> Tegrastats | None:
        program = root / "usr/bin/tegrastats"
        if not os.access(program, os.X_OK):
            return None
        try:
            process = subprocess.Popen(
                [str(program), "--interval", "200"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return cls(process)

    def read(self) -> Mapping[str, float]:
        """Of the last line; empty before the first one and once the program has ended."""
        with self._lock:
            self._take()
            return dict(self._last)

    def _take(self) -> None:
        assert self.process.stdout is not None
        try:
            new = os.read(self.process.stdout.fileno(), _MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            new = b""
        if not new:
            self._last = {}
            self.process.poll()
            return
        *lines, self._rest = (self._rest + new).split(b"\n")
        self._rest = self._rest[-_MAX_LINE_BYTES:]
        if lines:
            self._last = parse_line(lines[-1].decode("utf-8", "replace"))

    def close(self) -> None:
        """End the program. Idempotent."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
