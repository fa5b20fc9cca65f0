"""The machine of a process: what it is, for env.json; its load and memory; its sensors, as values
of metrics records.

Versions are read from the names of the installed packages' metadata folders: nothing is imported
for it, not even importlib.metadata, whose 2.5 MiB a board that waits would keep. Sensors are looked
for at the first sample, so that such a board has none of them in memory either, and read at most
once a second; energy is exact from sample to sample.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from edgegossip import native

if TYPE_CHECKING:
    from edgegossip.telemetry.sensors import Sensor

PACKAGES = ("edgegossip", "numpy", "torch", "grpcio", "protobuf", "psutil", "click", "flwr")


_CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_S = 10.0  # longest time that git may take


def environment(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the machine and the software as a JSON document; `argv` is the command line, `isa` the
    native kernels' choice, `commit` and `dirty` are those of `source_state`."""
    commit, dirty = source_state()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv if argv is None else argv),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "board": board_name(),
        "power_mode": power_mode(),
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "isa": native.isa(),
        "commit": commit,
        "dirty": dirty,
        "packages": {name: package_version(name, sys.path) for name in PACKAGES},
    }


def result_source() -> dict[str, Any]:
    """Return what a result names: `machine`, `isa`, `commit` and `dirty`."""
    made = environment()
    return {"machine": made["cpu"] or made["machine"], **{key: made[key] for key in ("isa", "commit", "dirty")}}


def source_state(checkout: Path = _CHECKOUT) -> tuple[str | None, bool | None]:
    """Return the commit that the package's files are of, and whether some of them differ from it.
    (None, None) where it does not run from a checkout of its own, or git does not tell."""
    if not (checkout / ".git").exists():
        return None, None
    git = ["git", "--no-optional-locks", "-C", str(checkout)]
    try:
        commit, changed = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True, timeout=_GIT_S).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, bool(changed)


def board_name(device_tree: Path = Path("/proc/device-tree")) -> str | None:
    """Return the board's model as its device tree has it, such as "Raspberry Pi 4 Model B Rev 1.4";
    None on a PC."""
    try:
        return (device_tree / "model").read_text(errors="replace").strip("\0 \n") or None
    except OSError:
        return None


def power_mode(root: Path = Path("/")) -> str | None:
    """Return the name of a Jetson's power mode, such as "MAXN_SUPER", or its number where it has no
    name; None on other machines. Both are in what NVIDIA's `nvpmodel` leaves behind for everybody
    to read: the number in its status, names in its configuration."""
    try:
        number = re.search(r"pmode:(\d+)", (root / "var/lib/nvpmodel/status").read_text(errors="replace"))
    except OSError:
        return None
    if number is None:
        return None
    modes = power_modes(root)
    return next((name for mode, name in modes if mode == int(number[1])), str(int(number[1])))


def power_modes(root: Path = Path("/")) -> tuple[tuple[int, str], ...]:
    """Return number and name of each power mode that a Jetson has; () on other machines."""
    try:
        text = (root / "etc/nvpmodel.conf").read_text(errors="replace")
    except OSError:
        return ()
    found = re.findall(r"^\s*<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=([\w.+-]+)", text, re.MULTILINE)
    return tuple((int(number), name) for number, name in found)


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the CPU's name from Linux, or what Python knows of it; None when neither does (most
    arm64 kernels name none)."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or None


def package_version(package: str, search: Sequence[str]) -> str | None:
    """Return the version in `NAME-VERSION.dist-info` (the standard "Recording installed projects"),
    in the first folder of `search` that has one; None when the package is not installed."""
    for folder in search:
        for found in Path(folder or ".").glob(f"{package}-*.dist-info"):
            return found.name.removesuffix(".dist-info").removeprefix(f"{package}-")
    return None


class ProcessSampler:
    """Samples CPU load and memory of one process, cheap enough to ask for in every round.

    The kernel counts CPU time in ticks of about 10 ms, so a load over a few milliseconds would be
    noise: between two samples `min_interval_s` pass, and until then the last one is returned again.
    """

    def __init__(
        self, pid: int | None = None, min_interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process = psutil.Process(pid)
        self._min_interval_s = min_interval_s
        self._clock = clock
        self._process.cpu_percent(None)  # the first calls only set the reference points
        psutil.cpu_percent(None)
        self._sampled_s = clock()
        self._last: dict[str, float | int | None] = {
            "sys/cpu_percent": None,
            "sys/machine_percent": None,
            **self._held(),
        }

    def sample(self) -> dict[str, float | int | None]:
        """Return {"sys/cpu_percent": 100 for one core busy all the time, or None before the first
        interval is over, "sys/machine_percent": load of the whole machine, 100 for all cores busy,
        "sys/rss_bytes": resident bytes, "sys/peak_rss_bytes": the most that they ever were,
        "sys/threads": its threads, those of libraries too, "sys/descriptors": its open file
        descriptors}, None for what the system does not tell. Returns the last sample when the
        process is gone."""
        now_s = self._clock()
        if now_s - self._sampled_s >= self._min_interval_s:
            try:
                loads = {
                    "sys/cpu_percent": self._process.cpu_percent(None),
                    "sys/machine_percent": psutil.cpu_percent(None),
                }
                self._last = {**loads, **self._held()}
            except psutil.Error:
                pass  # a process that ended has no load any more; what is known of it stays
            self._sampled_s = now_s
        return dict(self._last)

    def _held(self) -> dict[str, int | None]:
        """What a leak would make grow."""
        with self._process.oneshot():
            descriptors = self._process.num_fds() if hasattr(self._process, "num_fds") else None
            return {
                "sys/rss_bytes": int(self._process.memory_info().rss),
                "sys/peak_rss_bytes": peak_rss_bytes(self._process.pid),
                "sys/threads": int(self._process.num_threads()),
                "sys/descriptors": descriptors,
            }


def peak_rss_bytes(pid: int) -> int | None:
    """Return the most that the process ever had resident (VmHWM of proc(5)). Not `getrusage`: what
    that says is handed down from the process that started this one, which may have been larger.
    None where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    at = status.find(b"VmHWM:")
    words = status[at:].split(None, 2) if at >= 0 else []
    return 1024 * int(words[1]) if len(words) > 1 and words[1].isdigit() else None


# Joules are the integral of samples of power by the trapezoid rule. Its error goes with the square
# of the time between samples; a step of power is wrong by half of it times the time between the two
# samples around it at most, which is why there are twenty a second, and one more at each end of a
# round.
POWER_EVERY_S = 0.05


class Energy:
    """Is the integral of power over time. Samples come in the order of their times. Pure."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self._broken = False  # a sample was missing since the last `take`

    def add(self, now_s: float, watts: float | None) -> None:
        """Take in a sample; None when it could not be read: what comes between the samples around
        it is not known."""
        if watts is None:
            self._last, self._broken = None, True
            return
        if self._last is not None:
            before_s, before_w = self._last
            self._joules += (watts + before_w) / 2 * max(0.0, now_s - before_s)
        self._last = now_s, watts

    def take(self) -> float | None:
        """Return the joules between the last samples of this call and the call before; None when
        they are not all known."""
        joules, whole = self._joules, not self._broken
        self._joules, self._broken = 0.0, self._last is None
        return joules if whole and self._last is not None else None


class EnergyMeter:
    """Samples power on a thread of its own, which ends with the process. Thread-safe."""

    def __init__(
        self,
        watts: Callable[[], float | None],
        every_s: float = POWER_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watts, self._every_s, self._clock = watts, every_s, clock
        self._energy, self._lock, self._stop = Energy(), threading.Lock(), threading.Event()
        self._last_w: float | None = None
        self._sample()
        threading.Thread(target=self._run, daemon=True, name="power").start()

    def take(self) -> tuple[float | None, float | None]:
        """Return watts at this moment, and joules since the last call; None for what is not
        known."""
        with self._lock:
            self._sample()
            return self._last_w, self._energy.take()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._stop.set()

    def _sample(self) -> None:
        before_s = self._clock()
        self._last_w = self._watts()
        self._energy.add((before_s + self._clock()) / 2, self._last_w)  # a chip on I2C takes its time to answer

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            with self._lock:
                self._sample()


SENSORS_EVERY_S = 1.0  # temperature and clock change no faster than matters


class MachineSampler:
    """`sample` gives what the sensors of sensors.py say, and sys/energy_j, as far as there are any.
    Not thread-safe."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._slow: tuple[Sensor, ...] | None = None  # None: not looked for yet
        self._energy: EnergyMeter | None = None
        self._last: Mapping[str, float] = {}
        self._sampled_s = -math.inf

    def begin(self) -> None:
        """Look for sensors, and count energy from now on. Idempotent."""
        if self._slow is not None:
            return
        from edgegossip.telemetry.sensors import POWER, detect, powers

        sensors = detect(self._root)
        self._slow = tuple(s for s in sensors if s.name not in ("ina2xx", "ina3221"))
        if power := powers(sensors):
            read = power[0].read
            self._energy = EnergyMeter(lambda: read().get(POWER), clock=self._clock)

    def sample(self) -> dict[str, float]:
        """Return what there are sensors for; energy is of the time since the last call, or
        `begin`."""
        values = dict(self.readings())
        if self._energy is not None:
            watts, joules = self._energy.take()
            found = {"sys/power_w": watts, "sys/energy_j": joules}
            values |= {name: value for name, value in found.items() if value is not None}
        return values

    def readings(self) -> Mapping[str, float]:
        """Return the same without power and energy, which go on being counted. They are at most
        SENSORS_EVERY_S old."""
        from edgegossip.telemetry.sensors import sample

        self.begin()
        now_s = self._clock()
        if now_s - self._sampled_s >= SENSORS_EVERY_S:
            self._sampled_s, self._last = now_s, sample(self._slow or ())
        return self._last

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._energy is not None:
            self._energy.close()
