"""docs/results/scale-paper.json: the ElastiQuant paper's own Table 3 (Sudharsan et al., SAC 2022),
and the same table on the virtual clock.

    python scripts/paper_table3.py --data DIR
    python scripts/results.py scale-paper

DIR holds CIFAR-10: frames are of gradients of the paper's networks on its images, because ImageNet
is not to be had freely.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgegossip import recipe as recipes
from edgegossip.lab.scale import predict
from edgegossip.lab.scale.devices import DeviceProfile, LinkProfile, load_device
from edgegossip.lab.scale.model import codec_frames, measure_update
from edgegossip.lab.scale.predict import BoardWork, Message
from edgegossip.telemetry.machine import result_source

MODELS = {"ResNet-34": "resnet34", "ResNet-50": "resnet50"}
DEVICE = "jetson-agx-xavier"
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "scale-paper.json"
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

# (Cp, En, Tx) in minutes, for 2, 4 and 7 boards; SGD encodes nothing.
PAPER: Mapping[str, Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "ResNet-34": {
        "SGD": ((16.06, 0.0, 17.93), (10.47, 0.0, 20.62), (15.34, 0.0, 26.84)),
        "8-bit-ElastiQuant": ((14.61, 4.15, 16.16), (7.98, 4.04, 11.92), (10.05, 4.04, 10.26)),
        "4-bit-ElastiQuant": ((15.75, 0.93, 15.55), (11.19, 1.25, 9.32), (9.64, 1.34, 7.47)),
        "E-ElastiQuant": ((14.72, 1.34, 15.24), (10.57, 1.55, 8.29), (8.91, 1.35, 6.01)),
    },
    "ResNet-50": {
        "SGD": ((177.23, 0.0, 222.53), (167.9, 0.0, 265.17), (85.28, 0.0, 465.06)),
        "8-bit-ElastiQuant": ((179.21, 38.65, 190.55), (145.25, 39.97, 145.25), (99.94, 38.64, 183.89)),
        "4-bit-ElastiQuant": ((179.89, 9.33, 183.89), (142.58, 8.12, 118.59), (110.6, 6.66, 126.59)),
        "E-ElastiQuant": ((169.23, 21.32, 171.9), (126.59, 18.66, 103.93), (119.93, 19.99, 78.62)),
    },
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Minutes an epoch of one board would take for each; see docs/results/scale-paper.md."""

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
    paper: tuple[float, float, float]

    @property
    def t(self) -> float:
        return self.cp + self.en + self.tx

    @property
    def paper_t(self) -> float:
        return sum(self.paper)


def fit(network: str) -> Calibration:
    """The five numbers of one network."""
    table = PAPER[network]
    counts = np.array(COUNTS, float)
    every = [(k, cells[i][0]) for cells in table.values() for i, k in enumerate(COUNTS)]
    batch, peer = _fit([[1 / k, 1.0] for k, _ in every], [cp for _, cp in every])
    fixed, gradient = _fit([[1 / k, k - 1] for k in counts], [tx for _, _, tx in table["SGD"]])
    message = float(np.mean([en for _, en, _ in table[BASE]]))
    return Calibration(batch, peer, fixed, gradient, message)


def _fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, float]:
    (first, second), *_ = np.linalg.lstsq(np.array(rows, float), np.array(values, float), rcond=None)
    return float(first), float(second)


def table(network: str, bits: Mapping[str, float], device: DeviceProfile) -> list[Line]:
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
    messages = [Message(a, b, size_bytes) for a in range(count) for b in range(count) if a != b]
    parts = predict.gossip_round([work] * count, lambda _: messages, link)
    epoch = _ROUNDS / count / _MINUTE_S / count  # of a sum over boards
    cp = sum(p.compute_s for p in parts) * epoch
    en = sum(p.encode_s + p.decode_s for p in parts) * epoch
    tx = sum(p.transmit_s + p.wait_s for p in parts) * epoch
    return Line(network, scheme, count, cp, en, tx, PAPER[network][scheme][COUNTS.index(count)])


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
    update = measure_update(base)
    found = {}
    for scheme, codec in SCHEMES.items():
        recipe = recipes.with_settings(base, {"codec.name": codec})
        *_, size_bytes = codec_frames(recipe, update.layout, update.local.delta)
        found[scheme] = 8 * size_bytes / update.layout.size
    return found


def rows(lines: list[Line]) -> Iterator[str]:
    before: Line | None = None
    for line in lines:
        ours, theirs, same = "", "", ""
        if before is not None and before.scheme == line.scheme:
            step, paper_step = line.t - before.t, line.paper_t - before.paper_t
            ours, theirs = f"{step:+.2f}", f"{paper_step:+.2f}"
            same = "yes" if (step < 0) == (paper_step < 0) else "**no**"
        pairs = zip((line.cp, line.en, line.tx, line.t), (*line.paper, line.paper_t), strict=True)
        cells = [
            line.scheme,
            str(line.devices),
            *(f"{a:.2f} / {b:.2f}" for a, b in pairs),
            f"{ours} / {theirs}" if ours else "",
            same,
        ]
        yield f"| {' | '.join(cells)} |"
        before = line


def report(network: str, bits: Mapping[str, float], device: DeviceProfile) -> Iterator[str]:
    fitted, lines = fit(network), table(network, bits, device)
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
    errors = [abs(line.t / line.paper_t - 1) for line in lines]
    yield f"T is off by {100 * sum(errors) / len(errors):.1f} % in the mean and {100 * max(errors):.1f} % at most."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, metavar="DIR")
    folder = parser.parse_args().data
    device = load_device(DEVICE)
    output = ["\n".join(report(network, bits_of(model, folder), device)) for network, model in MODELS.items()]
    document = {"source": result_source(), "output": output}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
