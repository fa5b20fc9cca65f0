"""A long run that nobody has to wait for, written through the product's own record writer. The
numbers follow simple laws of a ring of boards on one slow link, drawn from a seed; they are there
to be shown, and no measurement of anything."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from edgegossip.telemetry.records import PARTS, EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder

RECIPE = """[run]
name = "{name}"
mode = "gossip"
rounds = {rounds}
[gossip]
topology = "ring"
algorithm = "choco-sgd"
[codec]
name = "elastiquant4"
[data]
name = "cifar10"
[model]
name = "resnet20"
"""
START_UNIX_S = 1_790_000_000.0
AHEAD_S = 0.03  # each board starts so much later than the one before


def write_run(parent: Path, boards: int = 18, rounds: int = 10_000, seed: int = 1, *, lost: bool = True) -> Path:
    """The run folder. One board is lost half-way if `lost`."""
    name = f"synthetic-{boards}x{rounds}"
    folder = RunFolder.create(parent, name, RECIPE.format(name=name, rounds=rounds), {"cpu": "synthetic", "cores": 4})
    names = [f"pi-{k:02d}" for k in range(boards)]
    rng = np.random.default_rng(seed)
    counts = rng.integers(50, 500, (boards, 10))
    folder.write_partition(names, [str(c) for c in range(10)], counts)
    ways = (1, -1) if boards > 2 else (1,)
    edges = [[names[a], names[(a + d) % boards]] for a in range(boards) for d in ways]
    members = {"name": "ring", "members": names, "period": 1, "spectral_gap": 0.04, "rounds": [{"edges": edges}]}
    folder.write_topology(members)
    for k, node in enumerate(names):
        fields = {"unix_s": START_UNIX_S + AHEAD_S * k}
        folder.write(EventRecord(node, 0.02, "started", f"{node} trains 272474 values", fields))
    gone = boards // 3 if lost and boards > 2 else -1
    _rounds(folder, names, rounds, rng, gone)
    for k, node in enumerate(names):
        end = "lost" if k == gone else "finished"
        folder.write(
            EventRecord(node, rounds * 0.5, end, f"{end} {node}" + (": killed by signal 9" if k == gone else ""))
        )
    folder.close()
    return folder.path


def _rounds(folder: RunFolder, names: list[str], rounds: int, rng: np.random.Generator, gone: int) -> None:
    boards, t_s = len(names), 0.0
    speed = rng.uniform(0.8, 1.6, boards)
    for step in range(rounds):
        hot = 1 / (1 + math.exp(-(step / rounds - 0.6) * 12))
        compute = 0.16 * speed * (1 + 0.25 * hot * (speed > 1.3)) * rng.lognormal(0, 0.05, boards)
        encode, decode = 0.012 * speed * rng.lognormal(0, 0.1, boards), 0.009 * speed * rng.lognormal(0, 0.1, boards)
        transmit = 0.08 * rng.lognormal(0, 0.3, boards)
        other = np.full(boards, 0.002)
        round_s = float((compute + encode + transmit + decode + other).max())
        wait = round_s - compute - encode - transmit - decode - other
        t_s += round_s
        for k, node in enumerate(names):
            if k == gone and step > rounds // 2:
                continue
            parts = dict(zip(PARTS, (compute[k], encode[k], transmit[k], decode[k], wait[k], other[k]), strict=True))
            folder.write(
                MetricsRecord(
                    node,
                    step,
                    t_s + AHEAD_S * (len(names) - k),
                    _values(step, rounds, k, names, parts, rng, hot * (speed[k] > 1.3)),
                )
            )


def _values(step, rounds, k, names, parts, rng, hot) -> dict[str, float | str]:  # type: ignore[no-untyped-def]
    progress = step / rounds
    payload = 2 * 272_474 // 2 + int(rng.integers(-400, 400))
    values: dict[str, float | str] = {f"time/{part}_s": float(s) for part, s in parts.items()}
    values |= {
        "train/loss": 2.3 * math.exp(-4 * progress)
        + 0.12
        + float(rng.normal(0, 0.05 + 0.05 * math.exp(-3 * progress))),
        "train/lr": 0.1 if progress < 0.5 else 0.01,
        "train/examples": 32,
        "time/round_s": sum(values.values()),  # type: ignore[arg-type]
        "cpu/compute_s": float(parts["compute"] * 3.5),
        "cpu/encode_s": float(parts["encode"]),
        "cpu/decode_s": float(parts["decode"]),
        "time/forward_s": float(parts["compute"] * 0.3),
        "time/backward_s": float(parts["compute"] * 0.6),
        "time/optimiser_s": float(parts["compute"] * 0.06),
        "time/cpu_s": float(parts["compute"] * 3.6),
        "net/payload_bytes": payload,
        "net/overhead_bytes": 310,
        "net/sent_bytes": payload + 2_300 + int(rng.integers(0, 200)),
        "net/link_bytes": payload + 21_000 + int(rng.integers(0, 200)),
        "net/received_bytes": payload + 2_100,
        "codec/bits_per_value": 8 * payload / (2 * 272_474),
        "codec/relative_error": 0.18 + float(rng.normal(0, 0.004)),
        "gossip/consensus_distance": 0.6 * math.exp(-2 * progress) * float(rng.lognormal(0, 0.06)),
        "sys/cpu_percent": round(float(rng.normal(310, 9)), 1),
        "sys/rss_bytes": 310_000_000 + 4096 * int(rng.integers(0, 80)) + 1_000_000 * (step * 8 // rounds),
        "sys/temperature_c": round(52 + 30 * hot + 3 * math.sin(step / 200 + k) + float(rng.normal(0, 0.3)), 1),
        "sys/throttled": bool(hot > 0.9),
        "sys/power_w": round(3.4 + 1.1 * (parts["compute"] > 3 * parts["wait"]) + float(rng.normal(0, 0.05)), 2),
    }
    values["sys/energy_j"] = float(values["sys/power_w"]) * float(values["time/round_s"])
    if step % max(1, rounds // 50) == 0 or step == rounds - 1:
        values["eval/loss"] = 2.2 * math.exp(-3.5 * progress) + 0.3
        values["eval/accuracy"] = 0.905 - 0.8 * math.exp(-5 * progress) + float(rng.normal(0, 0.003))
    if step % 4 == 0:
        for peer in {names[k - 1], names[(k + 1) % len(names)]}:
            values[f"link/{peer}_bytes"] = 4 * (payload // 2 + 155)
            values[f"link/{peer}_s"] = 4 * float(parts["transmit"]) * (2.2 if {k, names.index(peer)} == {3, 4} else 1)
    for peer in {names[k - 1], names[(k + 1) % len(names)]}:
        slow = 0.1 if 0.3 < progress < 0.6 else 1.0
        values[f"rate/{peer}_bits"] = 4.0 * slow * float(rng.lognormal(0, 0.05))
        values[f"rate/{peer}_mbit"] = 8.0 * slow * float(rng.lognormal(0, 0.1))
    if step % max(1, rounds // 100) == 0:
        us = {part: round(1e6 * s) for part, s in parts.items()}
        sent = f"t{us['transmit'] // 3}w{us['wait'] // 2}t{us['transmit'] - us['transmit'] // 3}"
        values["time/spans"] = (
            f"c{us['compute']}e{us['encode']}{sent}d{us['decode'] // 2}w{us['wait'] - us['wait'] // 2}"
            f"d{us['decode'] - us['decode'] // 2}o{us['other']}"
        )
    return values
