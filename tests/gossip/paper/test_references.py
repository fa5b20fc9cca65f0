"""The comparison with the references: momentum rules are the usual ones, and a reference that is
wrong is told apart from the implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.gossip.paper import cases, references
from tests.gossip.paper.references import Point, Run

pytestmark = pytest.mark.no_cover

NODES, N = 8, 6


def wrong_key(run: Run) -> Iterator[Point]:
    return references.dpsgd(replace(run, c=lambda t, i, v: run.c(t, (i + 1) % len(run.x0), v)))


WRONG: dict[str, tuple[str, Callable[[Run], Iterator[Point]]]] = {
    "gradient after mixing": ("dpsgd", lambda run: references.deep_squeeze(run)),
    "adapt with combine": ("dpsgd, adapt then combine", references.dpsgd),
    "adapt then combine": ("choco-sgd, adapt with combine", references.choco_sgd),
    "another averaging rate": ("dpsgd", lambda run: references.dpsgd(replace(run, eta=run.eta * 0.999))),
    "another learning rate": ("dpsgd", lambda run: references.dpsgd(replace(run, lr=lambda t: 1.0001 * run.lr(t)))),
    "the columns for the rows": ("dpsgd", lambda run: references.dpsgd(replace(run, w=lambda t: run.w(t).T))),
    "a round late": ("dpsgd", lambda run: references.dpsgd(replace(run, w=lambda t: run.w(max(0, t - 1))))),
    "another node's message": ("dpsgd", wrong_key),
    "no memory": ("deep-squeeze", references.sgp),
    "memory of the model": ("sparse-push", references.quant_sgp),
    "as printed": ("quant-sgp", lambda run: references.quant_sgp(run, as_printed=True)),
    "no public copy": ("choco-sgd", references.deep_squeeze),
    "gradient at x": ("sgp", lambda run: references.deep_squeeze(run)),
    "one public copy for all rounds": ("quant-sgp", lambda run: references.quant_sgp(replace(run, period=1))),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_reference_does_not_pass(fault: str) -> None:
    name, reference = WRONG[fault]
    case = cases.CASES[name]
    graph = next(g for g in ("time-varying", "circulants", "undirected") if g in case.graphs)
    codec = ("topk", {"ratio": 0.3}, 0.2) if name not in ("dpsgd", "sgp") else ("fp32", {}, 1.0)
    with pytest.raises(AssertionError):
        cases.compare(name, graph, codec, nodes=7, seed=11, reference=reference)
