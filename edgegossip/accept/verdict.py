"""Findings from a report, and from the profile that predicted it. Pure.

A number is held to its profile as far as the profile knows it: one that was measured on such a
board within a fifth, a vendor's within 30 %, a predicted one within a factor of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgegossip.accept.page import EDGES, edge_rates
from edgegossip.fleet.doctor.checks import CLOCK_S, DoctorFinding
from edgegossip.scale.devices import DEFAULT, DeviceProfile, FleetProfile, LinkProfile

Sections = Mapping[str, Any]

WITHIN = {"measured": 0.8, "vendor": 0.7, "predicted": 0.5}  # at least, of what a profile says
SLOW_WRITE = 10e6  # bytes/s; the least that a card of speed class 10 writes (SD Association, Physical Layer 3.01)
SLOW_SYNC_S = 0.1  # a board syncs a few times a round
SLOWER_UNDER_LOAD = 0.9  # share of its first rate that a cooled board keeps
SAME_DIRECTION = 0.95  # cosine of an int8 and a float32 gradient of the same batch
_SYNCED_EVERY = "checkpoint.every = 10 writes less"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Is what a profile says of a board, and of the link that it is on."""

    device: DeviceProfile
    fleet: FleetProfile | None = None

    @property
    def link_kind(self) -> str:
        """Return how that is known, as `DeviceProfile.kind` does."""
        shared = None if self.fleet is None else self.fleet.sources.get("link.shared_bits_per_s")
        return self.device.kind("link_bits_per_s") if shared is None else shared.partition(":")[0]

    @property
    def link_bits_per_s(self) -> float:
        """Return what one board can send alone."""
        link = LinkProfile() if self.fleet is None else self.fleet.link
        shared = link.shared_bits_per_s
        return (
            self.device.link_bits_per_s if shared is None else min(self.device.link_bits_per_s, shared / link.crossings)
        )


def judge(sections: Sections, measured: DeviceProfile | None, predicted: Prediction | None) -> list[DoctorFinding]:
    """Return what the sections of a report say, and how `measured` stands beside `predicted`. What
    was not measured is judged by nobody."""
    found = [finding for name, check in _CHECKS.items() if name in sections for finding in check(sections[name])]
    if predicted is not None:
        found += list(_memory(sections, predicted.device))
        found += list(_power_sensors(sections, predicted.device))
        found += list(_power_mode(sections, predicted.device))
        found += list(_link_beside(sections, predicted))
        if measured is not None:
            found += list(beside(measured, predicted.device))
    return found


def _instruction_sets(section: Sections) -> Iterator[DoctorFinding]:
    available, told, used = section["available"], section["told"], section["used"]
    best = available[-1]
    if used != best:
        text = f"EDGEGOSSIP_ISA = {section['asked']} holds the kernels at {used}, and this machine has {best}: unset it"
        yield DoctorFinding("warning", "isa", text)
    if told is None:
        return
    believed = [name for name in available if name != "portable" and name not in told]
    if believed:
        text = (
            f"the kernels use {', '.join(believed)}, which /proc/cpuinfo does not name: an emulator or a hypervisor hides "
            f"it; if a run ends with an illegal instruction, set EDGEGOSSIP_ISA = {_last(told, 'portable')}"
        )
        yield DoctorFinding("warning", "isa", text)
    if missing := [name for name in told if name not in available]:
        text = f"the processor has {', '.join(missing)}, and the kernels do not find it: this build is broken, install it again"
        yield DoctorFinding("bad", "isa", text)
    if used == best and not believed and not missing:
        yield DoctorFinding("good", "isa", f"the kernels use {used}, the best that the processor has")


def _last(names: Sequence[str], otherwise: str) -> str:
    return names[-1] if names else otherwise


def _bits(section: Sections) -> Iterator[DoctorFinding]:
    for row in section["wrong"]:
        text = (
            f"{row['what']} on {row['isa']} computes something else than other boards: {row['fault']}; do not train with "
            "this board, and report it"
        )
        yield DoctorFinding("bad", "bits", text)
    if not section["wrong"]:
        yield DoctorFinding("good", "bits", f"{section['checked']} codecs and kernels compute the right bits")


def _claims(section: Sections) -> Iterator[DoctorFinding]:
    for fault in section["broken"]:
        yield DoctorFinding("bad", "codecs", f"{fault}: the codec breaks its claims here; report it")
    if not section["broken"]:
        yield DoctorFinding("good", "codecs", f"{section['checked']} codecs keep their claims")


def _against_torch(section: Sections) -> Iterator[DoctorFinding]:
    cosine = section["cosine"]
    if cosine >= SAME_DIRECTION:
        yield DoctorFinding("good", "training", f"a gradient in int8 points where torch's does (cosine {cosine:.3f})")
    else:
        text = (
            f"a gradient in int8 does not point where torch's does (cosine {cosine:.3f}): train in fp32, and report it"
        )
        yield DoctorFinding("bad", "training", text)


def _sensors(section: Sections) -> Iterator[DoctorFinding]:
    if "sys/temperature_c" in section["values"]:
        yield DoctorFinding("good", "sensors", f"these answer: {', '.join(section['names'])}")
    elif section["needed"]:
        text = (
            "no thermal sensor answers, so nobody will see the board heat up: look for /sys/class/thermal in its image"
        )
        yield DoctorFinding("warning", "sensors", text)
    else:
        yield DoctorFinding("good", "sensors", "no thermal sensor, as in most virtual machines")


def _load(section: Sections) -> Iterator[DoctorFinding]:
    samples = section["samples"]
    if any(sample.get("throttled") for sample in samples):
        yield DoctorFinding(
            "bad", "throttling", "the board is throttled under load: give it a heat sink or a fan, and a good supply"
        )
    hottest = max((s["temperature_c"] for s in samples if "temperature_c" in s), default=None)
    heat = "" if hottest is None else f", at most {hottest:.0f} C"
    if len(samples) < 2 * EDGES:
        return
    first, last = edge_rates(samples)
    if last < SLOWER_UNDER_LOAD * first:
        text = (
            f"after {samples[-1]['s']:.0f} s of load it computes at {last / first:.0%} of its first rate{heat}: it throttles, or "
            "something else began to run"
        )
        yield DoctorFinding("warning", "throttling", text)
    else:
        yield DoctorFinding("good", "throttling", f"it keeps its rate for {samples[-1]['s']:.0f} s of load{heat}")


def _storage(section: Sections) -> Iterator[DoctorFinding]:
    rate, sync_s = section["write_bytes_per_s"], section["fsync_s"]
    slow = rate is not None and rate < SLOW_WRITE
    if rate is not None and slow:
        text = f"it writes {rate / 1e6:.1f} MB/s, less than a card of class 10: take another card, or a disk on USB"
        yield DoctorFinding("warning", "storage", text)
    if sync_s > SLOW_SYNC_S:
        text = f"an fsync takes {1e3 * sync_s:.0f} ms: a slow card; {_SYNCED_EVERY}"
        yield DoctorFinding("warning", "storage", text)
    elif rate is not None and not slow:
        yield DoctorFinding("good", "storage", f"it writes {rate / 1e6:.0f} MB/s, an fsync takes {1e3 * sync_s:.1f} ms")


def _link(section: Sections) -> Iterator[DoctorFinding]:
    up, down = section["up_bits_per_s"] / 1e6, section["down_bits_per_s"] / 1e6
    text = f"{up:.1f} Mbit/s to the peer, {down:.1f} back, round trip {1e3 * section['round_trip_s']:.1f} ms"
    yield DoctorFinding("good", "link", text)
    if abs(section["ahead_s"]) > CLOCK_S + section["round_trip_s"]:
        text = (
            f"the peer's clock is {section['ahead_s']:+.1f} s off ours: let `chrony` or `systemd-timesyncd` keep both"
        )
        yield DoctorFinding("warning", "clock", text)


_CHECKS = {
    "isa": _instruction_sets,
    "bits": _bits,
    "claims": _claims,
    "torch": _against_torch,
    "sensors": _sensors,
    "load": _load,
    "storage": _storage,
    "link": _link,
}


# Beside a profile.


def _memory(sections: Sections, device: DeviceProfile) -> Iterator[DoctorFinding]:
    """The kernel and a GPU keep some of what the data sheet says."""
    total = sections.get("facts", {}).get("memory_bytes")
    if total is not None and total < WITHIN["measured"] * device.memory_bytes:
        text = (
            f"it has {total / 1e9:.1f} GB of memory, and {device.name} {device.memory_bytes / 1e9:.1f} GB: name the profile of "
            "this board, or write one with `edgegossip calibrate`"
        )
        yield DoctorFinding("warning", "memory", text)


def _power_sensors(sections: Sections, device: DeviceProfile) -> Iterator[DoctorFinding]:
    names = sections.get("sensors", {}).get("names")
    if names is not None and (missing := [name for name in device.power_sensors if name not in names]):
        text = f"{', '.join(missing)}, which {device.name} has, does not answer: joules will be missing; look at its driver"
        yield DoctorFinding("warning", "sensors", text)


def _power_mode(sections: Sections, device: DeviceProfile) -> Iterator[DoctorFinding]:
    """A Jetson's modes differ in cores and clocks, so its profile holds in one of them."""
    mode = sections.get("facts", {}).get("power_mode")
    if mode is not None and device.power_mode not in (None, mode):
        text = (
            f"it is in the power mode {mode}, and the numbers of {device.name} are of {device.power_mode}: choose that by "
            "`sudo nvpmodel -m NUMBER`, or write a profile with `edgegossip calibrate`"
        )
        yield DoctorFinding("warning", "power", text)


def _link_beside(sections: Sections, predicted: Prediction) -> Iterator[DoctorFinding]:
    if "link" not in sections:
        return
    rate = min(sections["link"]["up_bits_per_s"], sections["link"]["down_bits_per_s"])
    yield from _held("link", "the link carries", rate, predicted.link_bits_per_s, predicted.link_kind, "Mbit/s", 1e6)


_RATES = (
    ("fp32_flops", "training", "training in fp32 does", "GFLOP/s", 1e9),
    ("int8_ops", "training", "training in int8 does", "GOP/s", 1e9),
    ("memory_bytes_per_s", "memory", "memory is copied at", "GB/s", 1e9),
)


def beside(measured: DeviceProfile, predicted: DeviceProfile) -> Iterator[DoctorFinding]:
    """Yield how the numbers of a measured profile stand beside a predicted one's."""
    if measured.cores < predicted.cores:
        text = f"{measured.cores} of the {predicted.cores} cores of {predicted.name} may be used: look at taskset and isolcpus"
        yield DoctorFinding("warning", "cores", text)
    for key, about, words, unit, scale in _RATES:
        values = getattr(measured, key), getattr(predicted, key)
        yield from _held(about, words, *values, predicted.kind(key), unit, scale)
    for way in ("encode", "decode"):
        key = f"{way}_bytes_per_s"
        ours, theirs, kind = getattr(measured, key), getattr(predicted, key), predicted.kind(key)
        named = [name for name in theirs if name != DEFAULT and name in ours]
        slow = [name for name in named if ours[name] < WITHIN[kind] * theirs[name]]
        if slow:
            worst = min(slow, key=lambda name: ours[name] / theirs[name])
            share = f"{worst} has {ours[worst] / theirs[worst]:.0%} of its {kind} rate"
            text = f"{len(slow)} of {len(named)} codecs {way} slower than {predicted.name} says, {share}: plan with `calibrate`"
            yield DoctorFinding("warning", "codecs", text)
        elif named:
            yield DoctorFinding(
                "good", "codecs", f"{len(named)} codecs {way} as fast as {predicted.name} says, or faster"
            )


def _held(
    about: str, words: str, value: float, said: float, kind: str, unit: str, scale: float
) -> Iterator[DoctorFinding]:
    share = f"{words} {value / scale:.3g} {unit}, {value / said:.0%} of what the profile says ({kind})"
    if value < WITHIN[kind] * said:
        text = f"{share}: find out why, or plan with a profile of `edgegossip calibrate`"
        yield DoctorFinding("warning", about, text)
    elif value > said / WITHIN[kind]:
        yield DoctorFinding(
            "good", about, f"{share}: the profile knows too little, `edgegossip calibrate` writes a better one"
        )
    else:
        yield DoctorFinding("good", about, share)
