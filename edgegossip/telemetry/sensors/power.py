"""Power that a board takes, from current sensors in sysfs.

INA3221 of Jetson boards: three rails a chip. Kernels of JetPack 5 and later have it as a hwmon chip
(Documentation/hwmon/ ina3221.rst: in<n>_input in mV, curr<n>_input in mA, in<n>_label the rail),
those of JetPack 4 as an iio device of NVIDIA's driver ina3221x (rail_name_<n>, in_power<n>_input in
mW). INA219, INA226 and their like on I2C or USB: hwmon driver ina2xx
(Documentation/hwmon/ina2xx.rst: power1_input in uW). In what a board takes, a rail that feeds
others counts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgegossip.telemetry.sensors.base import found, number_of, text_of

POWER = "sys/power_w"
INPUT_RAILS = ("VDD_IN", "POM_5V_IN", "VIN", "5V_IN")  # feed all other rails of their board
_INA2XX = ("ina209", "ina219", "ina220", "ina226", "ina228", "ina230", "ina231", "ina233", "ina237", "ina238", "ina260")
_MAX_W = 1000.0  # a register that reads more is broken


@dataclass(frozen=True, slots=True)
class Rail:
    """One measured supply: a power file, or one of voltage and one of current whose product is
    taken."""

    label: str
    files: tuple[Path, ...]
    to_watts: float  # factor on the file's value, or on the product

    def watts(self) -> float | None:
        """None when it cannot be read, or makes no sense."""
        product = self.to_watts
        for file in self.files:
            value = number_of(file)
            if value is None:
                return None
            product *= value
        return product if abs(product) <= _MAX_W else None


@dataclass(frozen=True, slots=True)
class PowerRails:
    """All rails of one kind; the board takes what its input rail says, or the sum where there is
    none."""

    name: str
    rails: tuple[Rail, ...]

    def read(self) -> Mapping[str, float]:
        """sys/power_w. Empty when any rail that counts cannot be read: a sum that leaves one out is
        none."""
        values = [rail.watts() for rail in counted(self.rails)]
        known = [value for value in values if value is not None]
        return {POWER: sum(known)} if known and len(known) == len(values) else {}

    def rails_w(self) -> dict[str, float]:
        """Each rail that can be read, watts."""
        return {rail.label: watts for rail in self.rails if (watts := rail.watts()) is not None}


def counted(rails: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """The rails whose sum is what the board takes."""
    inputs = tuple(rail for rail in rails if rail.label.upper() in INPUT_RAILS)
    return inputs or rails


def find_ina3221(root: Path) -> PowerRails | None:
    """A Jetson's rails, from hwmon or from the older iio layout."""
    rails = _of_hwmon(root) or _of_iio(root)
    return PowerRails("ina3221", tuple(rails)) if rails else None


def find_ina2xx(root: Path) -> PowerRails | None:
    """A current sensor in the supply, one or several."""
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
