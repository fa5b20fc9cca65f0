"""What a checkpoint costs: bytes, packing, summing, writing, and memory, beside a plain write and
fsync of the same bytes.

    python -m lab.results.checkpoint_cost [--values 11250000] [--folder DIR] [--repeats 5]

Medians, in milliseconds, taken in one run; `rival` is one `os.write` loop of the same bytes with
the same fsync, rename and fsync of the folder.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.checkpoint.files import OS_FILES
from edgegossip.checkpoint.format import pieces
from edgegossip.checkpoint.registry import RunContext
from edgegossip.checkpoint.store import Store
from edgegossip.gossip import topologies
from edgegossip.gossip.base import NodeView
from edgegossip.layout import Layout, TensorSpec
from edgegossip.types import LocalUpdate

TENSORS = 62  # as ResNet-18 has


def median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return 1e3 * statistics.median(times)


def state_of(algorithm: str, values: int) -> tuple[object, NodeView]:
    layout = Layout.of([TensorSpec(f"t{k}", (values // TENSORS,)) for k in range(TENSORS)])
    members = tuple(f"board-{k}" for k in range(4))
    view = NodeView("board-0", members, topologies.get("ring", 4), layout, codecs.get("minmax8"), b"c" * 16, 1, 60.0)
    chosen = gossip.get(algorithm)
    state, _ = chosen.start(chosen.init(np.ones(layout.size, np.float32), view))
    delta = np.random.default_rng(1).normal(size=layout.size).astype(np.float32)
    state, _ = chosen.step(state, LocalUpdate(delta, 0.1, 1.0, 1, 1))
    return chosen.tick(state, 60.0)[0], view  # the end of a round, where checkpoints are taken


def plain_write(folder: Path, data: list[bytes | memoryview]) -> None:
    file = OS_FILES.create(f"{folder}/.plain")
    for piece in data:
        OS_FILES.write(file, piece)
    OS_FILES.sync(file)
    OS_FILES.close(file)
    OS_FILES.rename(f"{folder}/.plain", f"{folder}/plain")
    OS_FILES.sync_folder(str(folder))


def row(algorithm: str, values: int, folder: Path, repeats: int) -> str:
    state, view = state_of(algorithm, values)
    value = {"state": state, "training": {"momentum": np.ones(values, np.float32)}}
    every = list(pieces({}, value))
    size = sum(len(p) for p in every)
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    build = median_ms(lambda: [None for _ in pieces({}, value)], repeats)
    crc = median_ms(lambda: [zlib.crc32(p) for p in every], repeats)
    store = Store(folder / algorithm, {}, keep=2)
    store.load(RunContext.of(view))
    save = median_ms(lambda: store.save(value, round=1), repeats)
    more_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    rival = median_ms(lambda: plain_write(folder, every), repeats)
    load = median_ms(lambda: store.load(RunContext.of(view)), repeats)
    store.close()
    return (
        f"| {algorithm} | {size / 1e6:.1f} | {build:.1f} | {crc:.1f} | {save:.0f} | {rival:.0f} | {save / rival:.2f} | "
        f"{load:.0f} | {more_mb:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, nargs="+", default=[10_000, 11_250_000])
    parser.add_argument("--algorithms", nargs="+", default=["dpsgd", "choco-sgd"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print(
        "| algorithm | MB | pack and sum, ms | of it CRC-32, ms | save, ms | rival, ms | ratio | load, ms | more RSS, MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for values in given.values:
        for algorithm in given.algorithms:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                print(row(algorithm, values, Path(folder), given.repeats), flush=True)


if __name__ == "__main__":
    os.nice(5)
    main()
