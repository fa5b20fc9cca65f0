"""scale-paper.json: the ElastiQuant paper's own Table 3 (Sudharsan et al., SAC 2022), and
the same table on the virtual clock.

    python -m lab.papers.table3 --data DIR
    python -m lab.results scale-paper

DIR holds CIFAR-10: frames are of gradients of the paper's networks on its images, because ImageNet
is not to be had freely.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgegossip import recipe as recipes
from edgegossip.scale import predict
from edgegossip.scale.devices import DeviceProfile, LinkProfile, load_device
from edgegossip.scale.plan import encode_message
from edgegossip.scale.predict import BoardWork, PredictedMessage
from edgegossip.telemetry.machine import result_source

MODELS = {"ResNet-34": "resnet34", "ResNet-50": "resnet50"}
DEVICE = "jetson-agx-xavier"
RESULTS = Path(__file__).parents[1] / "results" / "pages" / "scale-paper.json"
COUNTS = (2, 4, 7)
SCHEMES = {
    "SGD": "fp32",
    "8-bit-ElastiQuant": "8-bit-elastiquant",
    "4-bit-ElastiQuant": "4-bit-elastiquant",
    "E-ElastiQuant": "e-elastiquant",
}
VALUES = {"ResNet-34": 21_797_672, "ResNet-50": 25_557_032}  # parameters with 1000 classes
BASE = "4-bit-ElastiQuant"
_ROUNDS = 1000.0  # an epoch of one board; any number gives the same table
_MINUTE_S = 60.0
_NO_LIMIT_BPS = 1e15


class Printed(NamedTuple):
    """A cell as the paper prints it, minutes an epoch. T is not always the sum of its parts."""

    cp: float
    en: float
    tx: float
    t: float
    sp: float = nan  # T less that of the number of boards before; nan on 2


# For 2, 4 and 7 boards; SGD encodes nothing.
PAPER: Mapping[str, Mapping[str, tuple[Printed, ...]]] = {
    "ResNet-34": {
        "SGD": (
            Printed(16.06, 0.0, 17.93, 33.99),
            Printed(10.47, 0.0, 20.62, 31.09, -2.9),
            Printed(15.34, 0.0, 26.84, 42.18, 11.09),
        ),
        "8-bit-ElastiQuant": (
            Printed(14.61, 4.15, 16.16, 34.92),
            Printed(7.98, 4.04, 11.92, 23.94, -10.98),
            Printed(10.05, 4.04, 10.26, 25.35, 1.41),
        ),
        "4-bit-ElastiQuant": (
            Printed(15.75, 0.93, 15.55, 32.23),
            Printed(11.19, 1.25, 9.32, 21.76, -10.47),
            Printed(9.64, 1.34, 7.47, 18.45, -3.31),
        ),
        "E-ElastiQuant": (
            Printed(14.72, 1.34, 15.24, 31.3),
            Printed(10.57, 1.55, 8.29, 20.41, -10.89),
            Printed(8.91, 1.35, 6.01, 16.27, -4.14),
        ),
    },
    "ResNet-50": {
        "SGD": (
            Printed(177.23, 0.0, 222.53, 399.76),
            Printed(167.9, 0.0, 265.17, 433.07, 33.31),
            Printed(85.28, 0.0, 465.06, 550.34, 117.27),
        ),
        "8-bit-ElastiQuant": (
            Printed(179.21, 38.65, 190.55, 409.09),
            Printed(145.25, 39.97, 145.25, 330.49, -78.62),
            Printed(99.94, 38.64, 183.89, 322.47, -8.02),
        ),
        "4-bit-ElastiQuant": (
            Printed(179.89, 9.33, 183.89, 373.11),
            Printed(142.58, 8.12, 118.59, 269.17, -103.94),
            Printed(110.6, 6.66, 126.59, 243.85, -25.32),
        ),
        "E-ElastiQuant": (
            Printed(169.23, 21.32, 171.9, 362.45),
            Printed(126.59, 18.66, 103.93, 249.18, -113.27),
            Printed(119.93, 19.99, 78.62, 218.54, -30.64),
        ),
    },
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Minutes an epoch of one board would take for each; see lab/results/pages/scale-paper.md."""

    batch_min: float  # c
    peer_min: float  # d
    round_min: float  # a
    gradient_min: float  # b
    message_min: float  # e


@dataclass(frozen=True, slots=True)
class Line:
    """One cell beside the paper's; minutes an epoch."""

    network: str
    scheme: str
    devices: int
    cp: float
    en: float  # encoding and decoding
    tx: float  # transmitting and waiting
    paper: Printed

    @property
    def t(self) -> float:
        return self.cp + self.en + self.tx


def fit(network: str) -> Calibration:
    """The five numbers of one network."""
    table = PAPER[network]
    counts = np.array(COUNTS, float)
    every = [(k, cells[i].cp) for cells in table.values() for i, k in enumerate(COUNTS)]
    batch, peer = _fit([[1 / k, 1.0] for k, _ in every], [cp for _, cp in every])
    fixed, gradient = _fit([[1 / k, k - 1] for k in counts], [cell.tx for cell in table["SGD"]])
    message = float(np.mean([cell.en for cell in table[BASE]]))
    return Calibration(batch, peer, fixed, gradient, message)


def _fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, float]:
    (first, second), *_ = np.linalg.lstsq(np.array(rows, float), np.array(values, float), rcond=None)
    return float(first), float(second)


def lines_of(network: str, bits: Mapping[str, float], device: DeviceProfile) -> list[Line]:
    """The network's twelve cells. `bits`: a value, of real frames of each scheme; `device`: whose
    encoding rates."""
    fitted = fit(network)
    return [_line(network, scheme, count, bits, device, fitted) for scheme in SCHEMES for count in COUNTS]


def _line(
    network: str, scheme: str, count: int, bits: Mapping[str, float], device: DeviceProfile, fitted: Calibration
) -> Line:
    per_round = _MINUTE_S / _ROUNDS
    cost = 0.0
    if scheme != "SGD":
        cost = fitted.message_min * device.encode_rate(SCHEMES[BASE]) / device.encode_rate(SCHEMES[scheme])
    work = BoardWork(
        compute_s=(fitted.batch_min + fitted.peer_min * count) * per_round,
        encode_s=cost * per_round,
        decode_s=cost * per_round,
        link_bits_per_s=_NO_LIMIT_BPS,
    )
    full_bits = 32.0 * VALUES[network]
    link = LinkProfile(full_bits / (fitted.gradient_min * per_round), 1, fitted.round_min * per_round)
    size_bytes = round(bits[scheme] * VALUES[network] / 8)
    messages = [PredictedMessage(a, b, size_bytes) for a in range(count) for b in range(count) if a != b]
    parts = predict.gossip_round([work] * count, lambda _: messages, link)
    epoch = _ROUNDS / count / _MINUTE_S / count  # of a sum over boards
    cp = sum(p.compute_s for p in parts) * epoch
    en = sum(p.encode_s + p.decode_s for p in parts) * epoch
    tx = sum(p.transmit_s + p.wait_s for p in parts) * epoch
    return Line(network, scheme, count, cp, en, tx, PAPER[network][scheme][COUNTS.index(count)])


def kept_lines(document: Any, network: str) -> list[Line]:
    """The network's cells as scale-paper.json has them."""
    return [
        Line(network, scheme, count, cp, en, tx, PAPER[network][scheme][COUNTS.index(count)])
        for scheme, count, cp, en, tx in document["cells"][network]
    ]


def bits_of(model: str, folder: str) -> dict[str, float]:
    """Bits a value of real frames, scheme by scheme, of one gradient."""
    sets = [
        f"model.name={model}",
        f"data.dir={folder}",
        "training.batch_size=8",
        "run.nodes=2",
        "data.train_examples=64",
    ]
    base = recipes.load("table3", sets)
    from edgegossip.training.workload import TorchWorkload

    workload = TorchWorkload.build(base, 0)
    delta = np.array(workload.local_update(workload.initial(base.run.seed), 0).delta)
    return {
        scheme: encode_message(codec, {}, workload.layout, delta).bits_per_value for scheme, codec in SCHEMES.items()
    }


def speedups(lines: Sequence[Line]) -> Iterator[tuple[Line, float]]:
    """Yield every cell that has fewer boards before it, and how T changed from there."""
    for before, line in pairwise(lines):
        if before.scheme == line.scheme:
            yield line, line.t - before.t


def rows(lines: Sequence[Line]) -> Iterator[str]:
    ours = dict(speedups(lines))
    for line in lines:
        pairs = zip((line.cp, line.en, line.tx, line.t), line.paper[:4], strict=True)
        cells = [line.scheme, str(line.devices), *(f"{a:.2f} / {b:.2f}" for a, b in pairs)]
        if line in ours:
            same = (ours[line] < 0) == (line.paper.sp < 0)
            cells += [f"{ours[line]:+.2f} / {line.paper.sp:+.2f}", "yes" if same else "**no**"]
        else:
            cells += ["", ""]
        yield f"| {' | '.join(cells)} |"


def errors(lines: Sequence[Line]) -> dict[str, list[float]]:
    """How far cells are from the paper's, by what was fitted to them and what was not."""
    coded = [line for line in lines if line.scheme != "SGD"]
    return {
        "predicted, Tx of the quantised schemes": [_off(line.tx, line.paper.tx) for line in coded],
        "predicted, En of the other two schemes": [
            _off(line.en, line.paper.en) for line in coded if line.scheme != BASE
        ],
        "fitted, Cp": [_off(line.cp, line.paper.cp) for line in lines],
        "fitted, Tx of SGD": [_off(line.tx, line.paper.tx) for line in lines if line.scheme == "SGD"],
        f"fitted, En of {BASE}": [_off(line.en, line.paper.en) for line in lines if line.scheme == BASE],
        "of both, T": [_off(line.t, line.paper.t) for line in lines],
    }


def _off(ours: float, theirs: float) -> float:
    return abs(ours / theirs - 1.0)


def findings(network: str, lines: Sequence[Line]) -> Iterator[str]:
    """What the numbers say, each sentence made of them."""
    steps = list(speedups(lines))
    other = [line for line, ours in steps if (ours < 0) != (line.paper.sp < 0)]
    names = " and ".join(f"{line.scheme} on {line.devices}" for line in other) or "none"
    yield f"The sign of Sp is the paper's in {len(steps) - len(other)} of {len(steps)} steps; not of: {names}."
    for line, ours in steps:
        if line in other:
            share, paper = ours / (line.t - ours), line.paper.sp / (line.paper.t - line.paper.sp)
            yield f"{line.scheme} on {line.devices}: T changes by {share:+.1%} here, by {paper:+.1%} in the paper."
    for count in COUNTS:
        cells = [line for line in lines if line.devices == count]
        ours = [line.scheme for line in sorted(cells, key=lambda line: -line.t)]
        theirs = [line.scheme for line in sorted(cells, key=lambda line: -line.paper.t)]
        verdict = "as in the paper" if ours == theirs else f"in the paper {', '.join(theirs)}"
        spread = max(line.t for line in cells) / min(line.t for line in cells) - 1.0
        yield f"On {count} boards, slowest first: {', '.join(ours)} ({spread:.0%} apart); {verdict}."
    share = fit(network).round_min / COUNTS[0]
    yield (
        f"On {COUNTS[0]} boards {share:.2f} of SGD's {PAPER[network]['SGD'][0].tx:.2f} minutes of Tx are a / K, "
        "which no codec changes."
    )
    parts = [line for line in lines if abs(line.paper.t - sum(line.paper[:3])) > 0.03]
    if parts:
        sums = [f"{p.scheme} on {p.devices} {p.paper.t:.2f}, parts {sum(p.paper[:3]):.2f}" for p in parts]
        yield f"The paper's T is not the sum of its parts for: {'; '.join(sums)}."


def report(network: str, bits: Mapping[str, float], lines: Sequence[Line]) -> Iterator[str]:
    fitted = fit(network)
    yield f"## {network}"
    yield ""
    yield (
        f"Fitted, minutes an epoch of one board: computing c = {fitted.batch_min:.2f} and d = {fitted.peer_min:.2f}, "
        f"exchange "
        f"a = {fitted.round_min:.2f} and b = {fitted.gradient_min:.2f}, a message's coding e = {fitted.message_min:.2f}. "
        f"Bits a value of real frames: {', '.join(f'{name} {value:.2f}' for name, value in bits.items())}."
    )
    yield ""
    yield "| scheme | boards | Cp | En | Tx | T | Sp | same sign |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | :---: |"
    yield from rows(lines)
    yield ""
    yield "| what is compared | cells | off in the mean | at most |"
    yield "| --- | ---: | ---: | ---: |"
    for what, off in errors(lines).items():
        yield f"| {what} | {len(off)} | {sum(off) / len(off):.1%} | {max(off):.1%} |"
    yield ""
    for sentence in findings(network, lines):
        yield f"- {sentence}"


def table(document: Any) -> str:
    """Return both networks' part of the page (`lab/results/`)."""
    return "\n\n".join(
        "\n".join(report(network, bits, kept_lines(document, network))) for network, bits in document["bits"].items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, metavar="DIR")
    folder = parser.parse_args().data
    bits = {network: bits_of(model, folder) for network, model in MODELS.items()}
    device = load_device(DEVICE)
    cells = {
        network: [
            [line.scheme, line.devices, line.cp, line.en, line.tx] for line in lines_of(network, bits[network], device)
        ]
        for network in MODELS
    }
    document = {"source": result_source(), "bits": bits, "cells": cells}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
