"""All probes of a machine in order and in time, and the report that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgegossip import codecs
from edgegossip.accept import probes
from edgegossip.accept.machine import Machine
from edgegossip.accept.verdict import Prediction, judge
from edgegossip.fleet.doctor.checks import DoctorFinding, examine, ordered
from edgegossip.recipe import Recipe
from edgegossip.scale.calibrate import calibrate
from edgegossip.scale.devices import DeviceProfile, devices_of, fleet_names, load_device, load_fleet
from edgegossip.sweep.results import plain
from edgegossip.telemetry.machine import environment
from edgegossip.types import ConfigError, EdgegossipError

FORMAT = 1
BUDGET_S = 600.0
_CODEC_S = 0.2

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """Is what is to be done: on which sections, beside which profile, with which peer; `emulated`
    says of a machine that it is, where it does not give itself away."""

    recipe: Recipe
    profile: str | None = None
    peer: tuple[str, int] | None = None
    only: Sequence[str] = ()
    emulated: bool = False
    isa: str | None = None  # EDGEGOSSIP_ISA


def prediction_of(name: str) -> Prediction:
    """Read what a profile predicts: a board's, or a fleet's whose boards are all alike. Raises
    ConfigError."""
    if name not in fleet_names() and not _is_fleet_file(name):
        return Prediction(load_device(name))
    fleet = load_fleet(name)
    kinds = {device.name: device for device in devices_of(fleet)}
    if len(kinds) > 1:
        raise ConfigError(f"--profile {name}: its boards differ; name one of {', '.join(sorted(kinds))}")
    return Prediction(next(iter(kinds.values())), fleet)


def _is_fleet_file(name: str) -> bool:
    path = Path(name)
    try:
        return path.suffix == ".toml" and any(
            line.startswith("boards") for line in path.read_text("utf-8").splitlines()
        )
    except (OSError, UnicodeDecodeError):
        return False  # `load_device` says what is wrong with it


def accept(machine: Machine, options: Options, note: Note = lambda text: None) -> dict[str, Any]:
    """Probe a machine, and return its report. A section that fails is a finding, and so is one for
    which ten minutes were not enough; the others go on. Raises ConfigError for an unknown
    profile."""
    predicted = None if options.profile is None else prediction_of(options.profile)
    start = machine.clock()
    known = probes.facts(machine)
    kind = "emulated" if options.emulated else machine.kind()
    measured: list[DeviceProfile] = []

    def rates() -> probes.Section:
        measured.append(calibrate("measured", options.recipe, None, note, codecs.names(), _CODEC_S))
        return asdict(measured[0])

    def sensors() -> probes.Section:
        return {**probes.sensors(machine), "needed": kind == "board"}

    work: dict[str, Callable[[], probes.Section]] = {
        "isa": lambda: probes.instruction_sets(machine, options.isa),
        "facts": lambda: probes.facts_section(known),
        "sensors": sensors,
        "bits": probes.right_bits,
        "storage": lambda: probes.storage(machine),
        "claims": probes.claims,
        "int8": lambda: probes.kernel_rates(machine),
        "torch": probes.against_torch,
        "load": lambda: probes.load(machine, probes.cores()),
        "rates": rates,
    }
    if (peer := options.peer) is not None:
        work["link"] = lambda: probes.link(machine, *peer)
    sections: dict[str, probes.Section] = {}
    found: list[DoctorFinding] = []
    for name, probe in work.items():
        if options.only and name not in options.only:
            continue
        if machine.clock() - start > BUDGET_S:
            found.append(
                DoctorFinding("warning", name, f"{name} was left out: ten minutes were over; run --only {name}")
            )
            continue
        note(name)
        try:
            sections[name] = probe()
        except (EdgegossipError, OSError, ValueError, ArithmeticError, RuntimeError, MemoryError, ImportError) as error:
            found.append(DoctorFinding("bad", name, f"{name} could not be measured: {type(error).__name__}: {error}"))
    if not options.only or "facts" in options.only:
        found += examine(known)
    found = ordered([*found, *judge(sections, measured[0] if measured else None, predicted)])
    environs = environment()
    document = {
        "format": FORMAT,
        "made": datetime.fromtimestamp(known.unix_s, UTC).isoformat(timespec="seconds"),
        "kind": kind,
        "board": known.board or environs["cpu"] or known.machine,
        "profile": options.profile,
        "seconds": round(machine.clock() - start, 1),
        "software": {key: environs[key] for key in ("python", "system", "commit", "dirty", "packages")},
        "sections": sections,
        "findings": [asdict(finding) for finding in found],
        "bad": sum(finding.level == "bad" for finding in found),
        "warnings": sum(finding.level == "warning" for finding in found),
    }
    made: dict[str, Any] = plain(document)
    return made


def measured_profile(document: Mapping[str, Any], name: str) -> DeviceProfile | None:
    """Return the profile that a report measured; None where it left that out."""
    values = document["sections"].get("rates")
    return (
        None
        if values is None
        else DeviceProfile(**{**values, "name": name, "power_sensors": tuple(values["power_sensors"])})
    )
