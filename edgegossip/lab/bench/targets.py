"""The figures that a release has to reach, in one table, and the check of rows against them.

Speed is for one core; the ratios to memcpy are stated for machines with AVX-512 and are checked
with every instruction set but `portable`. Every figure is the worst among the rows that a line
speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One line: a figure of certain rows and its bound. `portable`: the bound for the portable
    build; None: none. `vbmi`: the bound is for AVX-512 VBMI alone. `tuned`: the same figure against
    the rival at its best, which is told and not judged."""

    text: str
    of: Callable[[Row], bool]
    figure: Callable[[Row], float | None]
    bound: float
    at_least: bool = True
    portable: float | None = None
    any_isa: bool = False  # the bound holds for the portable build too
    vbmi: bool = False
    tuned: Callable[[Row], float | None] = lambda row: None

    def bound_for(self, row: Row) -> float | None:
        if self.vbmi and row["isa"] != "avx512vbmi":
            return None
        return self.bound if self.any_isa or row["isa"] != "portable" else self.portable


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a line came to. `holds` None: no row that it speaks of was measured. `tuned`: that row's
    figure against tuned torch, where the line is against plain torch."""

    text: str
    bound: float
    at_least: bool
    figure: float | None
    row: str
    isa: str
    holds: bool | None
    tuned: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _field(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _four_bits(stage: str, *families: str) -> Callable[[Row], bool]:
    return lambda row: row["stage"] == stage and row["bits"] == 4 and row["family"] in families


def _coded(low: float, high: float) -> Callable[[Row], bool]:
    return lambda row: (
        row["stage"] in ("huffman", "auto") and row["entropy_bits"] is not None and low <= row["entropy_bits"] < high
    )


def _above_entropy(row: Row) -> float | None:
    """Percent that the body is larger than its symbols' entropy, heads and scales counted."""
    return 100 * (row["bits_per_value"] / row["entropy_bits"] - 1) if row["entropy_bits"] else None


def _sparse(row: Row) -> bool:
    return row["family"] in ("topk", "dgc")


_BOTH = ("qsgd", "elastiquant")


TARGETS = (
    Target("quantise and pack 4 bits, encoding to memcpy", _four_bits("raw", *_BOTH), _field("encode_vs_memcpy"), 0.5),
    Target(
        "quantise and pack 4 bits, qsgd to torch",
        _four_bits("raw", "qsgd"),
        _field("encode_vs_torch"),
        20.0,
        portable=6.0,
        tuned=_field("encode_vs_torch_tuned"),
    ),
    Target(
        "quantise and pack 4 bits, elastiquant to torch",
        _four_bits("raw", "elastiquant"),
        _field("encode_vs_torch"),
        70.0,
        portable=25.0,
        tuned=_field("encode_vs_torch_tuned"),
    ),
    Target("4 bits and Huffman, encoding to memcpy", _four_bits("huffman", *_BOTH), _field("encode_vs_memcpy"), 0.30),
    Target("4 bits and Huffman, decoding to memcpy", _four_bits("huffman", *_BOTH), _field("decode_vs_memcpy"), 0.65),
    Target("4 bits and ans, encoding to memcpy", _four_bits("ans", *_BOTH), _field("encode_vs_memcpy"), 0.3, vbmi=True),
    Target(
        "4 bits and ans, decoding to memcpy", _four_bits("ans", *_BOTH), _field("decode_vs_memcpy"), 0.65, vbmi=True
    ),
    Target("Elias, encoding to numpy", lambda r: r["stage"] == "elias", _field("encode_vs_numpy"), 5.0),
    Target("Elias, decoding to numpy", lambda r: r["stage"] == "elias", _field("decode_vs_numpy"), 5.0),
    Target(
        "Huffman or auto above an entropy from 1.5 bit, %",
        _coded(1.5, float("inf")),
        _above_entropy,
        3.5,
        at_least=False,
        any_isa=True,
    ),
    Target(
        "Huffman or auto above an entropy below 1 bit, %",
        _coded(0.0, 1.0),
        _above_entropy,
        12.0,
        at_least=False,
        any_isa=True,
    ),
    Target(
        "topk and dgc of 25 M values, selection to torch.topk",
        lambda r: _sparse(r) and r["n"] >= 25_000_000,
        _field("select_vs_torch"),
        3.0,
    ),
    # Not of synthetic values: the entropy of 1 % independent positions is 8.08 bits each, which no
    # code can beat.
    Target(
        "topk and dgc of gradients, bits an index",
        lambda r: _sparse(r) and r["input"] != "synthetic",
        _field("index_bits"),
        8.0,
        at_least=False,
        any_isa=True,
    ),
)


def check(rows: Sequence[Row], targets: Sequence[Target] = TARGETS) -> tuple[Verdict, ...]:
    """Every line with the worst figure among its rows."""
    return tuple(_check(target, rows) for target in targets)


def _check(target: Target, rows: Sequence[Row]) -> Verdict:
    judged = []
    for row in rows:
        bound = target.bound_for(row) if target.of(row) else None
        figure = target.figure(row) if bound is not None else None
        if bound is not None and figure is not None:
            margin = figure - bound if target.at_least else bound - figure
            judged.append((margin, figure, bound, row))
    if not judged:
        return Verdict(target.text, target.bound, target.at_least, None, "", "", None)
    margin, figure, bound, row = min(judged, key=lambda j: j[0])
    where = f"{row['codec']} {row['stage'] or ''}".strip() + f", {row['input']}, {row['n']}"
    return Verdict(target.text, bound, target.at_least, figure, where, row["isa"], margin >= 0, target.tuned(row))
