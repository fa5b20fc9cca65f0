"""Momentum around the algorithms: the papers' rules inside the papers' algorithms, with a learning
rate that falls to a tenth half way."""

from __future__ import annotations

import pytest

from edgegossip.gossip.momentum import KINDS, with_momentum
from tests.gossip.paper.cases import CASES, MANY, ROUNDS, TOLERANCE, compare
from tests.gossip.paper.momentum import rule

FACTOR = 0.8
NAMES = [name for name, case in CASES.items() if "momentum" not in case.params and case.steps == 1]


ROTATING = [(name, KINDS[1 + k % 4], k % 2 == 0) for k, name in enumerate(NAMES)]


@pytest.mark.parametrize(
    ("name", "kind", "compressed"),
    [*ROTATING, *((name, "quasi-global", False) for name in NAMES if not CASES[name].malicious)],
)
def test_rounds_equal_the_paper(name: str, kind: str, compressed: bool) -> None:
    check(name, kind, compressed, ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True], ids=["fp32", "codec"])
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_around_every_algorithm(name: str, kind: str, compressed: bool) -> None:
    check(name, kind, compressed, MANY)


def check(name: str, kind: str, compressed: bool, rounds: int) -> None:
    """To 1e-6 without a codec; momentum makes 1 / (1 - f) of every rounding, and with a codec that
    rounds nothing mends it. D2 mends it in neither case."""
    case, number = CASES[name], KINDS.index(kind)
    tolerance = max(case.rounding, TOLERANCE / (1 - FACTOR) if compressed else TOLERANCE)
    codec = case.codecs[-1 - number % 2] if compressed else case.codecs[0]
    graph = list(case.graphs)[number % len(case.graphs)]
    compare(
        name,
        graph,
        codec,
        nodes=6,
        seed=40 + number,
        rounds=rounds,
        lr=0.02,
        decay_at=rounds // 2,
        wrap=lambda algorithm: with_momentum(algorithm, kind, FACTOR),
        momentum=rule(kind, FACTOR),
        tolerance=tolerance,
    )
