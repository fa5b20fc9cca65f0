"""What a board's own sensors say: temperature, clock frequency, throttling, power, battery, memory.
From sysfs and /proc, without vcgencmd.

    sensors = detect()      those that are there
    sample(sensors)         one value of each metric

Every sensor is a reader over a root folder, so that a recorded tree can stand in for "/"
(tests/telemetry/trees). One that is not there is left out without a word, one that goes away gives
no value. To add one: a reader with `find(root)`, and its line in `FINDERS`.

*Processor.* Temperature and cooling devices: Linux, Documentation/driver-api/thermal/sysfs-api.rst.
Frequency: Documentation/admin-guide/pm/cpufreq.rst. `get_throttled`: the Raspberry Pi firmware's
bits, as raspberrypi/linux drivers/firmware/raspberrypi.c shows them: bit 0 under-voltage, 1
frequency capped, 2 throttled, 3 soft temperature limit, now; 16 to 19 the same at any time since
boot.

*Power.* INA3221 of Jetson boards: three rails a chip. Kernels of JetPack 5 and later have it as a
hwmon chip (Documentation/hwmon/ina3221.rst: in<n>_input in mV, curr<n>_input in mA, in<n>_label the
rail), those of JetPack 4 as an iio device of NVIDIA's driver ina3221x (rail_name_<n>,
in_power<n>_input in mW). INA219, INA226 and their like on I2C or USB: hwmon driver ina2xx
(Documentation/hwmon/ina2xx.rst: power1_input in uW). In what a board takes, a rail that feeds
others counts alone.

*Battery.* A laptop's, or a UPS whose fuel gauge has a driver: Documentation/ABI/testing/
sysfs-class-power. *Memory.* /proc/meminfo: Documentation/filesystems/proc.rst; MemAvailable is what
programs can have before the machine swaps.

*NVIDIA's `tegrastats`*, for a Jetson whose current sensors cannot be read from here, as in most
containers, writes one line a second, such as (JetPack 4, then 5; shortened)

    RAM 1903/3964MB CPU [12%@1428,5%@1428,off,off] PMIC@100C GPU@39.5C POM_5V_IN 2546/2546
    RAM 2100/6854MB CPU [3%@1510,0%@1510] GR3D_FREQ 0% cpu@48.5C tj@48.5C VDD_IN 4880mW/4880mW

Each rail has what it takes now and its mean, in mW.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class Sensor(Protocol):
    """Reads one source. Never raises for what the machine does: a value that cannot be read is left
    out."""

    @property
    def name(self) -> str:
        """Of the kind of sensor, such as "thermal-zones"."""

    def read(self) -> Mapping[str, float]:
        """Metrics by their names in records.METRICS, in their units."""


def text_of(path: Path) -> str | None:
    """Return the file without white space around it; None when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \t\r\n")
    except OSError:  # gone, not ours to read, or the device does not answer
        return None


def number_of(path: Path) -> float | None:
    """Return a decimal number, of which sysfs has one a file; None for anything else."""
    text = text_of(path)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def numbers_of(paths: Iterable[Path]) -> list[float]:
    """Return those that can be read."""
    return [value for path in paths if (value := number_of(path)) is not None]


def found(root: Path, *patterns: str) -> list[Path]:
    """Return files and folders under `root` that match any of the patterns, in the order of the
    patterns, each once."""
    every = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return list(dict.fromkeys(every))


# A Pi's firmware node lies at another place from kernel to kernel and model to model.
THROTTLED = (
    "sys/devices/platform/soc/soc:firmware/get_throttled",
    "sys/devices/platform/soc*/soc*firmware/get_throttled",
    "sys/devices/platform/*firmware/get_throttled",
    "sys/devices/platform/*/*firmware*/get_throttled",
)
_NOW = 0b1111
_PLAUSIBLE_C = (-40.0, 150.0)
_FIXED_ZONES = ("pmic-die",)  # of a Jetson: says 100 degrees, always
_CPU_COOLING = ("cpu", "processor")  # parts of their names: cpufreq-cpu0, cpu-balanced, Processor


@dataclass(frozen=True, slots=True)
class ThermalZones:
    """Reads the hottest of the machine's thermal zones."""

    zones: tuple[Path, ...]
    name: str = "thermal-zones"

    @classmethod
    def find(cls, root: Path) -> ThermalZones | None:
        """Look for the zones that can be read; None without any."""
        every = found(root, "sys/class/thermal/thermal_zone*")
        zones = [z for z in every if (text_of(z / "type") or "").lower() not in _FIXED_ZONES]
        readable = tuple(z / "temp" for z in zones if number_of(z / "temp") is not None)
        return cls(readable) if readable else None

    def read(self) -> Mapping[str, float]:
        """sys/temperature_c, degrees Celsius; sysfs has thousandths."""
        low, high = _PLAUSIBLE_C
        degrees = [d for milli in numbers_of(self.zones) if low <= (d := milli / 1000) <= high]
        return {"sys/temperature_c": max(degrees)} if degrees else {}


@dataclass(frozen=True, slots=True)
class Cpufreq:
    """Reads the mean clock frequency of the cores that are on."""

    policies: tuple[Path, ...]
    name: str = "cpufreq"

    @classmethod
    def find(cls, root: Path) -> Cpufreq | None:
        """Look for the cores' clocks; None without any."""
        files = found(root, "sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq")
        files = files or found(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
        readable = tuple(f for f in files if number_of(f) is not None)
        return cls(readable) if readable else None

    def read(self) -> Mapping[str, float]:
        """sys/frequency_hz; sysfs has kHz, one value a policy."""
        khz = numbers_of(self.policies)
        return {"sys/frequency_hz": 1000 * sum(khz) / len(khz)} if khz else {}


@dataclass(frozen=True, slots=True)
class PiThrottled:
    """Reads what a Raspberry Pi's firmware says of its supply and its temperature."""

    file: Path
    name: str = "get_throttled"

    @classmethod
    def find(cls, root: Path) -> PiThrottled | None:
        """Look for a Raspberry Pi's firmware; None without any."""
        return next((cls(f) for f in found(root, *THROTTLED) if throttled_bits(f) is not None), None)

    def read(self) -> Mapping[str, float]:
        """sys/throttled: 1 when any of the reasons holds now."""
        bits = throttled_bits(self.file)
        return {} if bits is None else {"sys/throttled": float(bool(bits & _NOW))}


def throttled_bits(file: Path) -> int | None:
    """Return the firmware's word, hexadecimal with or without 0x; None when it cannot be read."""
    text = text_of(file)
    try:
        return None if text is None else int(text, 16)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class UnderVoltage:
    """Reads from hwmon `rpi_volt` whether a Raspberry Pi's supply is too low
    (drivers/hwmon/raspberrypi-hwmon.c)."""

    files: tuple[Path, ...]
    name: str = "rpi_volt"

    @classmethod
    def find(cls, root: Path) -> UnderVoltage | None:
        """Look for the alarm of a Raspberry Pi's supply; None without any."""
        chips = found(root, "sys/class/hwmon/hwmon*")
        files = (chip / "in0_lcrit_alarm" for chip in chips if text_of(chip / "name") == "rpi_volt")
        readable = tuple(f for f in files if number_of(f) is not None)
        return cls(readable) if readable else None

    def read(self) -> Mapping[str, float]:
        """sys/throttled: 1 while the alarm is on."""
        alarms = numbers_of(self.files)
        return {"sys/throttled": float(any(alarms))} if alarms else {}


@dataclass(frozen=True, slots=True)
class CpuCooling:
    """Reads the cooling devices that hold the processor's clock down: how a Jetson and most other
    boards throttle."""

    files: tuple[Path, ...]
    name: str = "cpu-cooling"

    @classmethod
    def find(cls, root: Path) -> CpuCooling | None:
        """Look for the cooling devices of the processor; None without any."""
        devices = found(root, "sys/class/thermal/cooling_device*")
        files = (
            d / "cur_state" for d in devices if any(w in (text_of(d / "type") or "").lower() for w in _CPU_COOLING)
        )
        readable = tuple(f for f in files if number_of(f) is not None)
        return cls(readable) if readable else None

    def read(self) -> Mapping[str, float]:
        """sys/throttled: 1 while any of them is at work."""
        states = numbers_of(self.files)
        return {"sys/throttled": float(any(state > 0 for state in states))} if states else {}


_HAVE_CHARGE = ("Battery", "UPS")  # types of power supplies
_DRAINS = ("Discharging", "Unknown", None)  # a gauge that does not see the charger says nothing


@dataclass(frozen=True, slots=True)
class Batteries:
    """Reads the charge of the machine's batteries, or of its UPS; those of its mouse do not
    count."""

    supplies: tuple[Path, ...]
    name: str = "battery"

    @classmethod
    def find(cls, root: Path) -> Batteries | None:
        """Look for supplies that say their charge; None without any."""
        every = found(root, "sys/class/power_supply/*")
        own = [s for s in every if text_of(s / "type") in _HAVE_CHARGE and text_of(s / "scope") != "Device"]
        readable = tuple(s for s in own if number_of(s / "capacity") is not None)
        return cls(readable) if readable else None

    def read(self) -> Mapping[str, float]:
        """sys/battery_percent, of the emptiest; sys/on_battery, 1 while one of them drains."""
        known = [(p, text_of(s / "status")) for s in self.supplies if (p := number_of(s / "capacity")) is not None]
        percents = [percent for percent, _ in known if 0.0 <= percent <= 100.0]
        if not percents:
            return {}
        return {"sys/battery_percent": min(percents), "sys/on_battery": float(any(s in _DRAINS for _, s in known))}


@dataclass(frozen=True, slots=True)
class Memory:
    """Reads how much memory is left, and how much was swapped out."""

    file: Path
    name: str = "memory"

    @classmethod
    def find(cls, root: Path) -> Memory | None:
        """Look for the kernel's figures; None where they are not those of Linux."""
        sensor = cls(root / "proc/meminfo")
        return sensor if sensor.read() else None

    def read(self) -> Mapping[str, float]:
        """sys/available_bytes; sys/swap_bytes, where there is swap."""
        lines = (line.split() for line in (text_of(self.file) or "").splitlines())
        sizes = {words[0]: 1024.0 * int(words[1]) for words in lines if len(words) == 3 and words[1].isdigit()}
        values = {"sys/available_bytes": sizes["MemAvailable:"]} if "MemAvailable:" in sizes else {}
        if sizes.get("SwapTotal:") and "SwapFree:" in sizes:
            values["sys/swap_bytes"] = max(0.0, sizes["SwapTotal:"] - sizes["SwapFree:"])
        return values


POWER = "sys/power_w"
INPUT_RAILS = ("VDD_IN", "POM_5V_IN", "VIN", "5V_IN")  # feed all other rails of their board
_INA2XX = ("ina209", "ina219", "ina220", "ina226", "ina228", "ina230", "ina231", "ina233", "ina237", "ina238", "ina260")
_MAX_W = 1000.0  # a register that reads more is broken


@dataclass(frozen=True, slots=True)
class Rail:
    """Is one measured supply: a power file, or one of voltage and one of current whose product is
    taken."""

    label: str
    files: tuple[Path, ...]
    to_watts: float  # factor on the file's value, or on the product

    def watts(self) -> float | None:
        """Return the power in W; None when it cannot be read, or makes no sense."""
        product = self.to_watts
        for file in self.files:
            value = number_of(file)
            if value is None:
                return None
            product *= value
        return product if abs(product) <= _MAX_W else None


@dataclass(frozen=True, slots=True)
class PowerRails:
    """Reads all rails of one kind; the board takes what its input rail says, or the sum where there
    is none."""

    name: str
    rails: tuple[Rail, ...]

    def read(self) -> Mapping[str, float]:
        """sys/power_w. Empty when any rail that counts cannot be read: a sum that leaves one out is
        none."""
        values = [rail.watts() for rail in counted(self.rails)]
        known = [value for value in values if value is not None]
        return {POWER: sum(known)} if known and len(known) == len(values) else {}


def counted(rails: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Return the rails whose sum is what the board takes."""
    inputs = tuple(rail for rail in rails if rail.label.upper() in INPUT_RAILS)
    return inputs or rails


def find_ina3221(root: Path) -> PowerRails | None:
    """Look for a Jetson's rails, from hwmon or from the older iio layout."""
    rails = _of_hwmon(root) or _of_iio(root)
    return PowerRails("ina3221", tuple(rails)) if rails else None


def find_ina2xx(root: Path) -> PowerRails | None:
    """Look for a current sensor in the supply, one or several."""
    rails = [
        rail
        for chip in found(root, "sys/class/hwmon/hwmon*")
        if (name := text_of(chip / "name")) in _INA2XX
        if (rail := _of_ina2xx(chip, str(name))) is not None
    ]
    return PowerRails("ina2xx", tuple(rails)) if rails else None


def _of_hwmon(root: Path) -> list[Rail]:
    chips = found(root, "sys/class/hwmon/hwmon*", "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*")
    rails = []
    for chip in _once(chip for chip in chips if text_of(chip / "name") == "ina3221"):
        for n in (1, 2, 3):
            label = text_of(chip / f"in{n}_label") or f"rail {n}"
            rail = Rail(label, (chip / f"in{n}_input", chip / f"curr{n}_input"), 1e-6)  # mV * mA
            if text_of(chip / f"in{n}_enable") != "0" and label.upper() != "NC" and rail.watts() is not None:
                rails.append(rail)
    return rails


def _of_iio(root: Path) -> list[Rail]:
    chips = found(root, "sys/bus/i2c/drivers/ina3221x/*/iio:device*", "sys/bus/iio/devices/iio:device*")
    rails = []
    for chip in _once(chip for chip in chips if text_of(chip / "rail_name_0") is not None):
        for n in (0, 1, 2):
            label = text_of(chip / f"rail_name_{n}")
            power = Rail(label or "", (chip / f"in_power{n}_input",), 1e-3)  # mW
            if label and label.upper() != "NC" and power.watts() is not None:
                rails.append(power)
    return rails


def _of_ina2xx(chip: Path, name: str) -> Rail | None:
    power = Rail(name, (chip / "power1_input",), 1e-6)  # uW
    product = Rail(name, (chip / "in1_input", chip / "curr1_input"), 1e-6)  # mV * mA
    return next((rail for rail in (power, product) if rail.watts() is not None), None)


def _once(chips: Iterable[Path]) -> list[Path]:
    """Each device once, whichever of its several paths in sysfs led to it."""
    return list({chip.resolve(): chip for chip in chips}.values())


_RAIL = re.compile(r"\b([A-Z][A-Z0-9_]+) (\d+)(?:mW)?/\d+(?:mW)?(?=\s|$)")  # memory says MB or kB
_HEAT = re.compile(r"\b([A-Za-z][\w-]*)@(-?\d+(?:\.\d+)?)C\b")
_CORES = re.compile(r"CPU \[([^\]]*)\]")
_CLOCK = re.compile(r"%@(\d+)")
_FIXED = ("pmic",)  # says 100 degrees, always
_MAX_LINE_BYTES = 65_536


def parse_line(line: str) -> dict[str, float]:
    """Return the metrics of one line: sys/power_w, sys/temperature_c (the hottest),
    sys/frequency_hz (the mean of the cores that are on). What it does not say is left out."""
    values: dict[str, float] = {}
    rails = {name: int(now) for name, now in _RAIL.findall(line)}
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
    """Is the program at work, and the last whole line that it wrote. It ends when nobody reads it
    any more. Thread-safe."""

    process: subprocess.Popen[bytes]
    name: str = "tegrastats"
    _rest: bytes = field(default=b"")
    _last: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def find(cls, root: Path) -> Tegrastats | None:
        """Start the program; None where there is none."""
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


ROOT = Path("/")
FINDERS: tuple[Callable[[Path], Sensor | None], ...] = (
    ThermalZones.find,
    Cpufreq.find,
    PiThrottled.find,
    UnderVoltage.find,
    CpuCooling.find,
    Batteries.find,
    Memory.find,
    find_ina3221,
    find_ina2xx,
)


def detect(root: Path = ROOT) -> tuple[Sensor, ...]:
    """Return the sensors that are there and answer. `tegrastats` is started only on a board that
    has it and shows no power otherwise."""
    sensors = [sensor for find in FINDERS if (sensor := find(root)) is not None]
    if not powers(sensors) and (tegrastats := Tegrastats.find(root)) is not None:
        sensors.append(tegrastats)
    return tuple(sensors)


def powers(sensors: Sequence[Sensor]) -> tuple[Sensor, ...]:
    """Return those that measure power. A current sensor in the supply sees all that the board's own
    rails see and more."""
    rails = {sensor.name: sensor for sensor in sensors if sensor.name in ("ina2xx", "ina3221", "tegrastats")}
    best = next((rails[name] for name in ("ina2xx", "ina3221", "tegrastats") if name in rails), None)
    return () if best is None else (best,)


def sample(sensors: Sequence[Sensor]) -> Mapping[str, float]:
    """Return one value of each metric. Where several say something, it is throttled as soon as one
    says so, and the hottest counts; else the first one does."""
    values: dict[str, float] = {}
    for sensor in sensors:
        for name, value in sensor.read().items():
            most = name in ("sys/throttled", "sys/temperature_c")
            values[name] = max(values[name], value) if most and name in values else values.get(name, value)
    return values


def watts_of(sensor: Sensor) -> Callable[[], float | None]:
    """Return a function that reads its power."""
    return lambda: sensor.read().get(POWER)
