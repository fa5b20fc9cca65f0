"""The sections of a report. Each is a function of `Machine` that returns plain values for JSON."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from edgegossip import codecs, native
from edgegossip.accept import bits
from edgegossip.accept.int8_step import CLASSES, INPUT, large_convolution, section_of, training_of
from edgegossip.accept.machine import FLAGS, Machine
from edgegossip.fleet.doctor.facts import Facts, gather
from edgegossip.scale.calibrate import best
from edgegossip.telemetry.machine import MachineSampler
from edgegossip.telemetry.sensors import detect, sample
from edgegossip.training import models
from edgegossip.verify import verify

Section = dict[str, Any]

_BLOCK = 1 << 20
_WRITTEN_BYTES, _WRITTEN_S = 64 << 20, 20.0  # at most
_SYNCS, _SYNCED_BYTES = 20, 4096
_VERIFIED, _DRAWS = 16_384, 8
_KERNEL_BATCH, _KERNEL_S = 16, 0.05
IDLE_S, LOAD_S = 3.0, 60.0
_CHUNK_S = 1.0  # of the load, between samples


def instruction_sets(machine: Machine, asked: str | None) -> Section:
    """Say what the processor's flags promise, what the kernels found and what they use; `asked`:
    EDGEGOSSIP_ISA."""
    flags = machine.told_flags()
    told = [name for name in native.compiled_isas() if name in FLAGS and flags.issuperset(FLAGS[name])]
    return {
        "machine": machine.architecture,
        "told": told if flags else None,
        "compiled": native.compiled_isas(),
        "available": native.available_isas(),
        "used": native.isa(),
        "asked": asked or None,
    }


def facts(machine: Machine) -> Facts:
    """Return what `doctor` knows of the machine."""
    return replace(gather(machine.root, machine.folder), unix_s=machine.unix_s(), machine=machine.architecture)


def facts_section(known: Facts) -> Section:
    """Return facts for a report that is shown to others: without names of interfaces, which may
    hold a serial number."""
    section = {key: value for key, value in asdict(known).items() if key != "interfaces"}
    section["python"] = ".".join(map(str, known.python))
    section["interfaces"] = [{"mtu": i.mtu, "wireless_dbm": i.wireless_dbm} for i in known.interfaces]
    return section


def sensors(machine: Machine) -> Section:
    """Name the sensors that answer, and what they say."""
    found = detect(machine.root)
    return {"names": [sensor.name for sensor in found], "values": dict(sample(found))}


def right_bits() -> Section:
    """Run every codec and int8 kernel on every instruction set, and compare with what must come
    out."""
    rows = list(bits.faults())
    wrong = [{"what": what, "isa": isa, "fault": fault} for what, isa, fault in rows if fault]
    return {"checked": len(rows), "wrong": wrong}


def claims() -> Section:
    """Hold every codec to its claims, as `codec verify` does."""
    faults = []
    for name in codecs.names():
        report = verify(codecs.get(name), name, size=_VERIFIED, draws=_DRAWS, rebuild=codecs.from_wire)
        faults += [f"{name}: {check.name} {check.note}".strip() for check in report.checks if check.passed is False]
    return {"checked": len(codecs.names()), "broken": faults}


def kernel_rates(machine: Machine) -> Section:
    """Return values a second that go into every int8 kernel, one thread, by instruction set."""
    rates: dict[str, dict[str, float]] = {}
    for kernel in bits.kernels(_KERNEL_BATCH):
        for isa in native.available_isas() if kernel.by_isa else [bits.ANY]:
            run = partial(kernel.call, None if isa == bits.ANY else isa)
            seconds = best(run, machine.clock, _KERNEL_S)
            rates.setdefault(kernel.name, {})[isa] = float(f"{kernel.values / seconds:.4g}")
    return {"values_per_s": rates}


def against_torch() -> Section:
    """Compare the gradient of one int8 step with torch's in float32: the same network, weights and
    batch."""
    ours = training_of("int8", "cnn", 16, 16)
    twin = models.build(section_of("cnn", "int8"), INPUT, CLASSES)
    twin.load_state_dict(ours.model.state_dict())
    loss, reference = ours.loss(), F.cross_entropy(twin(ours.inputs), ours.labels)
    torch.autograd.backward(loss)
    torch.autograd.backward(reference)
    a, b = (
        torch.cat([p.grad.flatten() for _, p in sorted(net.named_parameters()) if p.grad is not None])
        for net in (ours.model, twin)
    )
    cosine = float(F.cosine_similarity(a, b, dim=0))
    return {"cosine": cosine, "loss": float(loss.detach()), "torch_loss": float(reference.detach())}


def storage(machine: Machine) -> Section:
    """Write as a checkpoint does, to a file in the machine's folder: bytes a second with `fsync`,
    seconds of an `fsync` after a few bytes, and bytes a second read back past the cache."""
    size = min(_WRITTEN_BYTES, free_bytes(machine.folder) // 4) // _BLOCK * _BLOCK
    block, path = secrets.token_bytes(_BLOCK), machine.folder / f".accept.{secrets.token_hex(6)}"
    try:
        with path.open("x+b", buffering=0) as file:
            start, written = machine.clock(), 0
            while written < size and machine.clock() - start < _WRITTEN_S:
                written += file.write(block)
            machine.fsync(file.fileno())
            write_s = machine.clock() - start
            syncs = []
            for _ in range(_SYNCS):
                before = machine.clock()
                file.write(block[:_SYNCED_BYTES])
                machine.fsync(file.fileno())
                syncs.append(machine.clock() - before)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            start, read = machine.clock(), 0
            while part := len(file.read(_BLOCK)):
                read += part
            read_s = machine.clock() - start
    finally:
        path.unlink(missing_ok=True)
    return {
        "written_bytes": written,
        "write_bytes_per_s": _rate(written, write_s),
        "read_bytes_per_s": _rate(read, read_s),
        "fsync_s": median(syncs),
        "fsync_worst_s": max(syncs),
    }


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def free_bytes(folder: Path) -> int:
    """Return what may be written to files in `folder`."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def load(machine: Machine, threads: int, seconds: float = LOAD_S) -> Section:
    """Let all cores compute for a minute, one large integer convolution after the other, and sample
    rate and sensors each second; power before that and meanwhile."""
    work, products = large_convolution(threads)
    work()
    meter = MachineSampler(machine.root, machine.clock)
    try:
        meter.begin()
        meter.sample()
        machine.sleep(IDLE_S)
        idle = meter.sample()
        start = machine.clock()
        samples: list[dict[str, float]] = []
        joules: list[float | None] = []
        while (now := machine.clock()) - start < seconds:
            done = 0
            while (took := machine.clock() - now) < _CHUNK_S:
                work()
                done += 1
            values = dict(meter.sample())
            joules.append(values.pop("sys/energy_j", None))
            samples.append({"s": now - start, "products_per_s": done * products / took, **_short(values)})
    finally:
        meter.close()
    whole_s = machine.clock() - start
    spent = [j for j in joules if j is not None]
    return {
        "threads": threads,
        "idle_w": idle.get("sys/power_w"),
        "load_w": sum(spent) / whole_s if spent and len(spent) == len(joules) else None,
        "samples": samples,
    }


def _short(values: Mapping[str, float]) -> dict[str, float]:
    return {key.removeprefix("sys/"): value for key, value in values.items()}


def link(machine: Machine, host: str, port: int) -> Section:
    """Measure the link to a machine on which `calibrate --serve` runs. Its name is not kept."""
    rate = asdict(machine.link(host, port))
    return {key: rate[key] for key in ("up_bits_per_s", "down_bits_per_s", "round_trip_s", "ahead_s", "mtu")}


def _rate(size: int, seconds: float) -> float | None:
    return size / seconds if size and seconds > 0 else None
