"""The processor's temperature, clock frequency and throttling.

Temperature and cooling devices: Linux, Documentation/driver-api/thermal/sysfs-api.rst. Frequency:
Documentation/admin-guide/pm/ cpufreq.rst. `get_throttled`: the Raspberry Pi firmware's bits, as
raspberrypi/linux drivers/firmware/raspberrypi.c shows them: bit 0 under-voltage, 1 frequency
capped, 2 throttled, 3 soft temperature limit, now; 16 to 19 the same at any time since boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgegossip.telemetry.sensors.base import found, number_of, numbers_of, text_of

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
    """The hottest of the machine's thermal zones."""

    zones: tuple[Path, ...]
    name: str = "thermal-zones"

    @classmethod
    def find(cls, root: Path) -> ThermalZones | None:
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
    """The mean clock frequency of the cores that are on."""

    policies: tuple[Path, ...]
    name: str = "cpufreq"

    @classmethod
    def find(cls, root: Path) -> Cpufreq | None:
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
    """What a Raspberry Pi's firmware says of its supply and its temperature."""

    file: Path
    name: str = "get_throttled"

    @classmethod
    def find(cls, root: Path) -> PiThrottled | None:
        return next((cls(f) for f in found(root, *THROTTLED) if throttled_bits(f) is not None), None)

    def read(self) -> Mapping[str, float]:
        """sys/throttled: 1 when any of the reasons holds now."""
        bits = throttled_bits(self.file)
        return {} if bits is None else {"sys/throttled": float(bool(bits & _NOW))}


def throttled_bits(file: Path) -> int | None:
    """The firmware's word, hexadecimal with or without 0x; None when it cannot be read."""
    text = text_of(file)
    try:
        return None if text is None else int(text, 16)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class UnderVoltage:
    """hwmon `rpi_volt` (drivers/hwmon/raspberrypi-hwmon.c): a Raspberry Pi's supply is too low."""

    files: tuple[Path, ...]
    name: str = "rpi_volt"

    @classmethod
    def find(cls, root: Path) -> UnderVoltage | None:
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
    """Cooling devices that hold the processor's clock down: how a Jetson and most other boards
    throttle."""

    files: tuple[Path, ...]
    name: str = "cpu-cooling"

    @classmethod
    def find(cls, root: Path) -> CpuCooling | None:
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
