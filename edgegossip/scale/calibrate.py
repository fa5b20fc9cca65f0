"""Measures the machine that it runs on, in about a minute, and makes a profile of it: what
`edgegossip calibrate` writes.

Training rates are those of the recipe's own model and batch, through the same workload that a
board runs, on made-up examples: operations of a step as `cost` counts them, over the seconds
that it took. Codecs are timed on one million values of a gradient's distribution, one thread.
Memory is copied from one array into another, larger than caches.

Rates of one thread are by CPU time, which other processes do not lengthen much; those of all
cores are by the clock on the wall: leave the machine alone meanwhile. Training is the median of
several updates, as it goes on for long; the other figures are the best of several, as the
machine can do it."""

from __future__ import annotations

import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from edgegossip import codecs
from edgegossip.codecs.base import Ctx
from edgegossip.codecs.typical import in_layout
from edgegossip.fleet.link_test import LinkRate
from edgegossip.layout import Layout, TensorSpec
from edgegossip.recipe import Recipe, with_settings
from edgegossip.scale import cost
from edgegossip.scale.devices import DEFAULT, DeviceProfile
from edgegossip.scale.summary import spread_of
from edgegossip.telemetry.machine import board_name, cpu_name, power_mode
from edgegossip.telemetry.sensors import detect, powers
from edgegossip.training.data import DataSet, Description, describe
from edgegossip.training.data.base import Examples, InMemory
from edgegossip.training.workload import TorchWorkload

CODECS = (
    "fp32",
    "fp16",
    "minmax8",
    "4-bit-qsgd",
    "8-bit-qsgd",
    "4-bit-elastiquant",
    "8-bit-elastiquant",
    "e-elastiquant",
    "elasticl",
    "co3",
    "terngrad",
    "signsgd",
    "topk",
)
VALUES = 1 << 20
_BUDGET_S = 8.0  # of each training rate
_ROUNDS = 20
_COPIED_BYTES = 64 << 20
_EXAMPLES = 256

Note = Callable[[str], None]


def calibrate(
    name: str,
    recipe: Recipe,
    link: LinkRate | None = None,
    note: Note = lambda text: None,
    names: Sequence[str] = CODECS,
    codec_s: float = 1.0,
) -> DeviceProfile:
    """Measure this machine.

    Args:
        name: of the profile.
        recipe: whose model, batch and precision are trained.
        link: what a peer measured; without one the interface's nominal rate counts.
        note: gets a sentence before each part.
        names: of the codecs that are timed.
        codec_s: seconds that each of them takes, each way.

    Raises:
        ConfigError: for a recipe that cannot be built.
    """
    cores = len(os.sched_getaffinity(0))
    layout, step = cost.of_recipe(recipe)
    flops, rates, spread = cost.counted(recipe, step), {}, 0.0
    for precision in ("fp32", "int8"):
        for threads in dict.fromkeys((1, cores)):
            note(f"training, {precision}, {threads} threads")
            settings = {"training.precision": precision, "run.threads": threads, "run.nodes": 2}
            seconds = update_seconds(with_settings(recipe, settings), clock_of(threads))
            rates[precision, threads] = _four(flops * recipe.training.local_steps / statistics.median(seconds))
            spread = spread_of(seconds) if (precision, threads) == ("fp32", 1) else spread
    note("codecs")
    rates_of = codec_rates(names, codec_s)
    encode, decode = (
        {DEFAULT: min(r[k] for r in rates_of.values()), **{c: r[k] for c, r in rates_of.items()}} for k in (0, 1)
    )
    note("memory")
    memory = _memory_rate()
    bits, link_source = _link(link)
    mode = power_mode()
    how = f"measured: {datetime.now(UTC):%Y-%m-%d} on {_machine()}, torch {torch.__version__}, edgegossip calibrate"
    training = (
        f"{how}; {recipe.model.name} with {recipe.model.norm}, batch {recipe.training.batch_size}, {layout.size} values"
    )
    return DeviceProfile(
        name=name,
        title=_machine(),
        cores=cores,
        memory_bytes=psutil.virtual_memory().total,
        fp32_flops=max(rates["fp32", cores], rates["fp32", 1]),  # on a busy machine more threads may be slower
        int8_ops=max(rates["int8", cores], rates["int8", 1]),
        memory_bytes_per_s=memory,
        link_bits_per_s=bits,
        encode_bytes_per_s=encode,
        decode_bytes_per_s=decode,
        one_thread_flops=rates["fp32", 1],
        one_thread_int8_ops=rates["int8", 1],
        update_spread=spread,
        power_sensors=tuple(sensor.name for sensor in powers(detect())),
        power_mode=mode,
        sources={
            **({"power_mode": f"{how}, as nvpmodel says"} if mode else {}),
            **dict.fromkeys(("cores", "memory_bytes"), how),
            **dict.fromkeys(("fp32_flops", "int8_ops"), f"{training}, the better of {cores} threads and one"),
            **dict.fromkeys(("one_thread_flops", "one_thread_int8_ops"), f"{training}, one thread, CPU time"),
            "update_spread": f"{training}, fp32, one thread, CPU time, from the median deviation",
            "memory_bytes_per_s": f"{how}; {_COPIED_BYTES >> 20} MiB copied",
            **dict.fromkeys(
                ("encode_bytes_per_s", "decode_bytes_per_s"), f"{how}; {VALUES} values, one thread, CPU time"
            ),
            "link_bits_per_s": link_source,
        },
    )


def replaced(known: DeviceProfile, measured: DeviceProfile) -> DeviceProfile:
    """Return the profile `known` with all that was measured in the place of what it said, under the
    new one's name. What no measurement has (a GPU's rate, codecs that were not timed) stays, and
    says what it said; so does its link where only the interface's nominal rate is known."""
    values = {f.name: getattr(measured, f.name) for f in fields(measured)}
    sources = {**known.sources, **measured.sources}
    if measured.power_mode is None:  # nobody told in which one this was
        sources.pop("power_mode", None)
    for key in ("encode_bytes_per_s", "decode_bytes_per_s"):
        values[key] = {**getattr(known, key), **values[key]}
        if more := sorted(getattr(known, key).keys() - getattr(measured, key).keys()):
            sources[key] += f"; {', '.join(more)} as before, {known.sources[key]}"
    if measured.kind("link_bits_per_s") != "measured":
        values["link_bits_per_s"], sources["link_bits_per_s"] = known.link_bits_per_s, known.sources["link_bits_per_s"]
    kept = {"title": known.title, "accelerator_flops": known.accelerator_flops, "sources": sources}
    sensors = tuple(dict.fromkeys((*measured.power_sensors, *known.power_sensors)))
    return DeviceProfile(**{**values, **kept, "power_sensors": sensors})


def _machine() -> str:
    return board_name() or cpu_name() or platform.machine()


def made_up(about: Description, count: int = _EXAMPLES) -> DataSet:
    """Return random examples in the shape of a data set."""
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, 256, (count, *about.shape), dtype=np.uint8)
    labels = (np.arange(count) % about.classes).astype(np.int64)
    part = Examples(labels, InMemory(inputs))
    return DataSet("made-up", about, part, part)


def clock_of(threads: int) -> Callable[[], float]:
    """Return a clock of CPU time for one thread, and of the wall for several."""
    return time.process_time if threads == 1 else time.perf_counter


def update_seconds(recipe: Recipe, clock: Callable[[], float]) -> list[float]:
    """Return what local updates take, one after another. Raises ConfigError for a recipe that
    cannot be built."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = max(_EXAMPLES, recipe.training.batch_size)  # whole batches: their operations are counted
            share = np.arange(count, dtype=np.int64)
            workload = TorchWorkload(recipe, 0, made_up(describe(recipe.data), count), share)
            x = workload.initial(recipe.run.seed)
        return _timed(lambda: workload.local_update(x, 0), clock, _BUDGET_S)
    finally:
        torch.set_num_threads(threads)


def _four(value: float) -> float:
    """Four digits: more would be noise."""
    return float(f"{value:.4g}")


def best(work: Callable[[], Any], clock: Callable[[], float], budget_s: float) -> float:
    """Return the seconds of the shortest of some runs, of which one more warms up."""
    return min(_timed(work, clock, budget_s))


def _timed(work: Callable[[], Any], clock: Callable[[], float], budget_s: float) -> list[float]:
    """Seconds of some runs, after one that warms up; no more once the budget is spent."""
    start = time.perf_counter()
    work()
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < _ROUNDS and time.perf_counter() - start < budget_s):
        before = clock()
        work()
        seconds.append(max(clock() - before, 1e-9))
    return seconds


def codec_rates(names: Sequence[str], budget_s: float = 1.0) -> dict[str, tuple[float, float]]:
    """Return float32 bytes/s into and out of each of these codecs, one thread; each way takes about
    `budget_s` seconds."""
    layout = Layout.of([TensorSpec("w", (1024, VALUES // 1024))])
    x, ctx = in_layout(layout, 1), Ctx(key=1, round=0, loss=1.0, lr=0.1)
    rates: dict[str, tuple[float, float]] = {}
    for name in names:
        codec = codecs.get(name)
        state = codec.init(layout)
        body, _ = codec.encode(x, state, ctx)
        encode_s = best(partial(codec.encode, x, state, ctx), time.process_time, budget_s)
        decode_s = best(partial(codec.decode, body, layout), time.process_time, budget_s)
        rates[name] = _four(x.nbytes / encode_s), _four(x.nbytes / decode_s)
    return rates


def _memory_rate() -> float:
    size = min(_COPIED_BYTES, psutil.virtual_memory().available // 4) // 4 * 4
    source, target = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
    return _four(source.nbytes / best(lambda: np.copyto(target, source), time.process_time, 2.0))


def _is_hardware(interface: str) -> bool:
    """Not a bridge, a tunnel or one end of a container's cable, which name rates that nothing
    has."""
    return (Path("/sys/class/net") / interface / "device").exists()


def _link(link: LinkRate | None) -> tuple[float, str]:
    """Bits/s of this machine's network, and where that comes from."""
    if link is not None:
        bits = min(link.up_bits_per_s, link.down_bits_per_s)
        both = f"{link.up_bits_per_s / 1e6:.1f} Mbit/s there, {link.down_bits_per_s / 1e6:.1f} back"
        return (
            bits,
            f"measured: TCP to a peer, {both}, round trip {1000 * link.round_trip_s:.2f} ms, edgegossip calibrate",
        )
    stats = psutil.net_if_stats()
    speeds = [s.speed for name, s in stats.items() if s.isup and s.speed > 0 and _is_hardware(name)]
    if speeds:
        return max(
            speeds
        ) * 1e6 * 0.941, "predicted: nominal rate of the interface * 0.941; measure it with --peer HOST:PORT"
    return 100e6, "predicted: the interface names no rate; measure it with --peer HOST:PORT"
