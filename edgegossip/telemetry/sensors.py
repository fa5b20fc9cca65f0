"""What a board's own sensors say: temperature, clock frequency, throttling, power, battery, memory.
From sysfs and /proc, without vcgencmd or tegrastats.

    sensors = detect()      those that are there
    sample(sensors)         one value of each metric

Files are looked for under a root folder, so that a recorded tree can stand in for "/"
(tests/telemetry/trees). A sensor that is not there is left out without a word, one that goes away
gives no value. To add one: its files and what they say, as another `Sensor` in `detect`.

*Processor.* Temperature and cooling devices: Linux, Documentation/driver-api/thermal/sysfs-api.rst.
Frequency: Documentation/admin-guide/pm/cpufreq.rst. `get_throttled`: the Raspberry Pi firmware's
bits, as raspberrypi/linux drivers/firmware/raspberrypi.c shows them: bit 0 under-voltage, 1
frequency capped, 2 throttled, 3 soft temperature limit, now; 16 to 19 the same at any time since
boot. `rpi_volt`: its supply's alarm (drivers/hwmon/raspberrypi-hwmon.c).

*Power.* INA3221 of Jetson boards: three rails a chip. Kernels of JetPack 5 and later have it as a
hwmon chip (Documentation/hwmon/ina3221.rst: in<n>_input in mV, curr<n>_input in mA, in<n>_label the
rail), those of JetPack 4 as an iio device of NVIDIA's driver ina3221x (rail_name_<n>,
in_power<n>_input in mW). INA219, INA226 and their like on I2C or USB: hwmon driver ina2xx
(Documentation/hwmon/ina2xx.rst: power1_input in uW). In what a board takes, a rail that feeds
others counts alone.

*Battery.* A laptop's, or a UPS whose fuel gauge has a driver: Documentation/ABI/testing/
sysfs-class-power. *Memory.* /proc/meminfo: Documentation/filesystems/proc.rst; MemAvailable is what
programs can have before the machine swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sensor:
    """Reads one source: metrics by their names in records.METRICS, in their units. Never raises for
    what the machine does: a value that cannot be read is left out."""

    name: str  # of its kind, such as "thermal-zones"
    read: Callable[[], Mapping[str, float]]


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
_HAVE_CHARGE = ("Battery", "UPS")  # types of power supplies
_DRAINS = ("Discharging", "Unknown", None)  # a gauge that does not see the charger says nothing
POWER = "sys/power_w"
INPUT_RAILS = ("VDD_IN", "POM_5V_IN", "VIN", "5V_IN")  # feed all other rails of their board
_INA2XX = ("ina209", "ina219", "ina220", "ina226", "ina228", "ina230", "ina231", "ina233", "ina237", "ina238", "ina260")
_MAX_W = 1000.0  # a register that reads more is broken


def detect(root: Path = Path("/")) -> tuple[Sensor, ...]:
    """Return the sensors that are there and answer."""
    chips = found(root, "sys/class/hwmon/hwmon*", "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*")
    clocks = found(root, "sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq")
    cooling = (d for d in found(root, "sys/class/thermal/cooling_device*") if _is(d, "type", *_CPU_COOLING))
    supplies = found(root, "sys/class/power_supply/*")
    own = [s for s in supplies if text_of(s / "type") in _HAVE_CHARGE and text_of(s / "scope") != "Device"]
    every = (
        Sensor("thermal-zones", partial(_heat, zones(root))),
        Sensor(
            "cpufreq",
            partial(_clock, clocks or found(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")),
        ),
        Sensor("get_throttled", partial(_firmware, found(root, *THROTTLED))),
        Sensor("rpi_volt", partial(_throttled, [c / "in0_lcrit_alarm" for c in chips if _is(c, "name", "rpi_volt")])),
        Sensor("cpu-cooling", partial(_throttled, [device / "cur_state" for device in cooling])),
        Sensor("battery", partial(_charge, own)),
        Sensor("memory", partial(_memory, root / "proc/meminfo")),
        Sensor("ina3221", partial(_power, _of_hwmon(chips) or _of_iio(root))),
        Sensor("ina2xx", partial(_power, _of_ina2xx(chips))),
    )
    return tuple(sensor for sensor in every if sensor.read())


def powers(sensors: Sequence[Sensor]) -> tuple[Sensor, ...]:
    """Return the one that measures power. A current sensor in the supply sees all that the board's
    own rails see and more."""
    rails = {sensor.name: sensor for sensor in sensors}
    return tuple(rails[name] for name in ("ina2xx", "ina3221") if name in rails)[:1]


def sample(sensors: Sequence[Sensor]) -> Mapping[str, float]:
    """Return one value of each metric. Where several say something, it is throttled as soon as one
    says so, and the hottest counts; else the first one does."""
    values: dict[str, float] = {}
    for sensor in sensors:
        for name, value in sensor.read().items():
            most = name in ("sys/throttled", "sys/temperature_c")
            values[name] = max(values[name], value) if most and name in values else values.get(name, value)
    return values


def zones(root: Path) -> list[Path]:
    """Return the temperatures of the machine's thermal zones."""
    every = found(root, "sys/class/thermal/thermal_zone*")
    return [z / "temp" for z in every if (text_of(z / "type") or "").lower() not in _FIXED_ZONES]


def hottest(zones: Iterable[Path]) -> float | None:
    """Return degrees Celsius; sysfs has thousandths."""
    low, high = _PLAUSIBLE_C
    return max((d for milli in numbers_of(zones) if low <= (d := milli / 1000) <= high), default=None)


def throttled_bits(files: Iterable[Path]) -> int | None:
    """Return the firmware's word, hexadecimal with or without 0x; None when it cannot be read."""
    for file in files:
        try:
            return int(text_of(file) or "", 16)
        except ValueError:
            continue
    return None


def _is(device: Path, file: str, *words: str) -> bool:
    return any(word in (text_of(device / file) or "").lower() for word in words)


def _heat(zones: Sequence[Path]) -> dict[str, float]:
    degrees = hottest(zones)
    return {} if degrees is None else {"sys/temperature_c": degrees}


def _clock(clocks: Sequence[Path]) -> dict[str, float]:
    """The mean of the cores that are on; sysfs has kHz, one value a policy."""
    khz = numbers_of(clocks)
    return {"sys/frequency_hz": 1000 * sum(khz) / len(khz)} if khz else {}


def _firmware(files: Sequence[Path]) -> dict[str, float]:
    bits = throttled_bits(files)
    return {} if bits is None else {"sys/throttled": float(bool(bits & _NOW))}


def _throttled(files: Sequence[Path]) -> dict[str, float]:
    """An alarm that is on, or a cooling device at work: how most boards hold the clock down."""
    states = numbers_of(files)
    return {"sys/throttled": float(any(state > 0 for state in states))} if states else {}


def _charge(supplies: Sequence[Path]) -> dict[str, float]:
    """Of the emptiest one; whether one of them drains."""
    known = [(p, text_of(s / "status")) for s in supplies if (p := number_of(s / "capacity")) is not None]
    percents = [percent for percent, _ in known if 0.0 <= percent <= 100.0]
    if not percents:
        return {}
    return {"sys/battery_percent": min(percents), "sys/on_battery": float(any(s in _DRAINS for _, s in known))}


def memory_of(file: Path) -> dict[str, int]:
    """Read /proc/meminfo: bytes by name."""
    lines = (line.split() for line in (text_of(file) or "").splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if len(words) == 3 and words[1].isdigit()}


def _memory(file: Path) -> dict[str, float]:
    sizes = memory_of(file)
    values = {"sys/available_bytes": float(sizes["MemAvailable"])} if "MemAvailable" in sizes else {}
    if sizes.get("SwapTotal") and "SwapFree" in sizes:
        values["sys/swap_bytes"] = max(0.0, float(sizes["SwapTotal"] - sizes["SwapFree"]))
    return values


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


def _power(rails: Sequence[Rail]) -> dict[str, float]:
    """What the board takes: what its input rail says, or the sum where there is none. Nothing when
    any rail that counts cannot be read: a sum that leaves one out is none."""
    inputs = [rail for rail in rails if rail.label.upper() in INPUT_RAILS]
    values = [rail.watts() for rail in inputs or rails]
    known = [value for value in values if value is not None]
    return {POWER: sum(known)} if known and len(known) == len(values) else {}


def _of_hwmon(chips: Sequence[Path]) -> list[Rail]:
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


def _of_ina2xx(chips: Sequence[Path]) -> list[Rail]:
    rails = []
    for chip in chips:
        if (name := text_of(chip / "name")) in _INA2XX:
            power = Rail(name, (chip / "power1_input",), 1e-6)  # uW
            product = Rail(name, (chip / "in1_input", chip / "curr1_input"), 1e-6)  # mV * mA
            rails += [rail for rail in (power, product) if rail.watts() is not None][:1]
    return rails


def _once(chips: Iterable[Path]) -> list[Path]:
    """Each device once, whichever of its several paths in sysfs led to it."""
    return list({chip.resolve(): chip for chip in chips}.values())
