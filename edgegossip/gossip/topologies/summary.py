"""A topology in a few figures: how fast its nodes agree, and what that costs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgegossip.gossip import weights as mixing
from edgegossip.gossip.topologies.graph import GraphTopology


@dataclass(frozen=True, slots=True)
class Summary:
    """What `edgegossip topology` shows."""

    name: str
    nodes: int
    directed: bool
    weights: str  # the scheme: "metropolis", "column", "uniform" or "given"
    doubly_stochastic: bool  # the rows of W sum to 1 as well as its columns, in every round
    period: int  # rounds after which it repeats
    fewest_messages: int  # that a node sends in a round, over all nodes and rounds
    most_messages: int
    spectral_gap: float  # 1 - |second largest eigenvalue| of W, or of the product over a period, per round


def summarise(topology: GraphTopology) -> Summary:
    rounds = range(topology.period)
    sent = [len(topology.neighbours(node, r).out) for r in rounds for node in range(topology.n)]
    return Summary(
        name=topology.name,
        nodes=topology.n,
        directed=topology.directed,
        weights=topology.weights,
        doubly_stochastic=all(mixing.is_doubly_stochastic(topology.matrix(r)) for r in rounds),
        period=topology.period,
        fewest_messages=min(sent),
        most_messages=max(sent),
        spectral_gap=topology.spectral_gap(),
    )


def table(summaries: Sequence[Summary]) -> list[str]:
    """Lines of a Markdown table, a row a summary."""
    return _aligned(
        ("topology", "nodes", "edges", "weights", "messages a round", "period", "spectral gap"),
        [
            (
                s.name,
                str(s.nodes),
                "directed" if s.directed else "both ways",
                s.weights + ("" if s.doubly_stochastic else ", not doubly stochastic"),
                f"{s.fewest_messages}" + (f" to {s.most_messages}" if s.most_messages > s.fewest_messages else ""),
                str(s.period),
                f"{s.spectral_gap:.3f}",
            )
            for s in summaries
        ],
    )


def gap_table(summaries: Sequence[Summary]) -> list[str]:
    """Lines of a Markdown table of spectral gaps: a row a number of nodes, a column a topology.
    Needs one summary of every pair of these."""
    gaps = {(s.nodes, s.name): s.spectral_gap for s in summaries}
    sizes, names = sorted({n for n, _ in gaps}), list(dict.fromkeys(s.name for s in summaries))
    return _aligned(("nodes", *names), [(str(n), *(f"{gaps[n, name]:.3f}" for name in names)) for n in sizes])


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    rule = " | ".join("-" * width for width in widths)
    return [f"| {line} |" for line in (lines[0], rule, *lines[1:])]
