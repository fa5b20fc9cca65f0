"""Momentum around the algorithms: the papers' rules inside the papers' algorithms, 50 rounds, with a learning rate that
falls to a tenth half way."""

from __future__ import annotations

from typing import Any

import pytest

from edgegossip import gossip
from edgegossip.gossip.momentum import KINDS, with_momentum
from tests.gossip.paper.cases import CASES, compare
from tests.gossip.paper.momentum import HeavyBall, Momentum, Nesterov, Plain, QuasiGlobal

FACTOR = 0.9
HERE = [name for name in gossip.names() if name in CASES]


def rule(kind: str) -> Momentum:
    return {
        "none": Plain(),
        "heavy-ball": HeavyBall(FACTOR),
        "nesterov": Nesterov(FACTOR),
        "quasi-global": QuasiGlobal(FACTOR),
        "quasi-global-nesterov": QuasiGlobal(FACTOR, nesterov=True),
    }[kind]


@pytest.mark.parametrize("compressed", [False, True], ids=["fp32", "codec"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HERE)
def test_fifty_rounds_equal_the_paper(name: str, kind: str, compressed: bool) -> None:
    case, number = CASES[name], KINDS.index(kind)
    codec = case.codecs[-1 - number % 2] if compressed else case.codecs[0]
    graph = list(case.graphs)[number % len(case.graphs)]
    compare(
        name,
        graph,
        codec,
        nodes=6,
        seed=40 + number,
        lr=0.02,
        decay_at=25,
        wrap=lambda algorithm: with_momentum(algorithm, kind, FACTOR),
        momentum=rule(kind),
    )


WRONG: dict[str, tuple[str, Momentum]] = {
    "local for quasi-global": ("quasi-global", HeavyBall(FACTOR)),
    "heavy ball for nesterov": ("nesterov", HeavyBall(FACTOR)),
    "another factor": ("heavy-ball", HeavyBall(0.899)),
    "quasi-global without nesterov": ("quasi-global-nesterov", QuasiGlobal(FACTOR)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_rule_does_not_pass(fault: str) -> None:
    kind, momentum = WRONG[fault]

    def wrap(algorithm: Any) -> Any:
        return with_momentum(algorithm, kind, FACTOR)

    with pytest.raises(AssertionError):
        compare("dpsgd", "undirected", ("fp32", {}, 1.0), nodes=6, seed=2, wrap=wrap, momentum=momentum)
