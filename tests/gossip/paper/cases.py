"""Which reference belongs to which algorithm, on which graphs and with which codecs; and both run
side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from edgegossip import codecs, gossip
from edgegossip.gossip.order import THEN, WITH, with_order
from edgegossip.gossip.robust import with_robust_mixing
from tests.gossip.paper import graphs, references
from tests.gossip.paper.compression import Compression
from tests.gossip.paper.fleet import Fleet
from tests.gossip.paper.graphs import Graph
from tests.gossip.paper.momentum import Momentum, Plain
from tests.gossip.paper.problem import Problem
from tests.gossip.paper.references import Point, Run

ROUNDS = 5
MANY = 50  # rounds of the slow tests
N = 10  # values of a model
TOLERANCE = 1e-6  # times the largest value of the round where that is above 1
HALF_ULP = 2.0**-24  # of float32, relative

LOSSLESS = (("fp32", {}, 1.0), ("fp32", {}, 0.6))
# With eta small enough for what the codec loses: otherwise the models grow without end, in the
# papers as here.
FINE = (("minmax8", {}, 1.0), ("8-bit-qsgd", {}, 0.7))
SPARSE = (("topk", {"ratio": 0.3}, 0.2), ("topk", {"ratio": 0.3, "values": "fp16"}, 0.1))
COARSE = (("4-bit-qsgd", {}, 0.2), ("signsgd", {}, 0.05))


@dataclass(frozen=True)
class Case:
    """How one algorithm is tested. `codecs`: (name, parameters, eta)."""

    algorithm: str  # in the registry
    reference: Callable[[Run], Iterator[Point]]
    graphs: Mapping[str, Graph]
    codecs: tuple[tuple[str, Mapping[str, Any], float], ...]
    params: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    takes_eta: bool = True
    alike: bool = False  # all nodes start with the same model
    smallest: int = 2  # nodes
    public_copies: bool = False  # which start at zero as in the paper, or at the initial model
    lr: float = 0.05
    rounding: float = TOLERANCE  # tolerance with a codec that rounds
    malicious: int = 0
    rule: str = "nearest"  # that bears them
    repeats: bool = False  # a round's rounding comes again in every later round
    steps: int = 1  # local steps of a round
    order: str = "auto"  # of step and mixing


ALL = (*LOSSLESS, *FINE, *SPARSE, *COARSE)
BAGUA = (("fp32", {}, 1.0), ("minmax8", {}, 1.0), ("8-bit-qsgd", {}, 1.0))
GRADIENTS = (("fp32", {}, 1.0), ("4-bit-elastiquant", {}, 1.0), ("8-bit-qsgd", {}, 1.0), ("topk", {"ratio": 0.3}, 1.0))


def all_to_all(mu: float, nesterov: bool) -> Case:
    return Case(
        "parallel-sgd",
        partial(references.parallel_sgd, mu=mu, nesterov=nesterov),
        graphs.COMPLETE,
        GRADIENTS,
        params={"momentum": mu, "nesterov": nesterov},
        takes_eta=False,
        alike=True,
        lr=0.05 * (1 - mu),
    )


TRACKED = (*LOSSLESS, ("fp16", {}, 1.0), *FINE)
SMALL = (("fp32", {}, 0.6), ("minmax8", {}, 0.6), ("8-bit-qsgd", {}, 0.5), *SPARSE)


def tracking(algorithm: str, reference: Callable[..., Iterator[Point]], codecs_: Any, **more: Any) -> Case:
    """Corrections, as what D2 remembers, keep the rounding of every round."""
    return Case(algorithm, reference, graphs.SYMMETRIC, codecs_, repeats=True, rounding=2e-5, **more)


def robust(reference: Callable[..., Iterator[Point]], rule: str, malicious: int, case: Case) -> Case:
    """The same with what each neighbour adds bounded, which knows of no codec: the first and the
    last of them will do."""
    mix = {"nearest": references.nearest_neighbours, "clip": references.clipped_gossip}[rule]
    return replace(
        case,
        reference=partial(reference, mix=partial(mix, malicious=malicious)),
        graphs=graphs.DENSE,
        smallest=2 * malicious + 3,
        codecs=case.codecs[:: len(case.codecs) - 1],
        malicious=malicious,
        rule=rule,
    )


PLAIN: Mapping[str, Case] = {
    "dpsgd": Case("dpsgd", references.dpsgd, graphs.DOUBLY, (*LOSSLESS, *FINE)),
    "deep-squeeze": Case("deep-squeeze", references.deep_squeeze, graphs.DOUBLY, ALL),
    "choco-sgd": Case("choco-sgd", references.choco_sgd, graphs.SYMMETRIC, ALL, public_copies=True),
    "dpsgd, adapt then combine": Case(
        "dpsgd", references.dpsgd_after_the_step, graphs.DOUBLY, (*LOSSLESS, *FINE), order=THEN
    ),
    "choco-sgd, adapt with combine": Case(
        "choco-sgd", references.parallel_choco, graphs.SYMMETRIC, ALL, public_copies=True, order=WITH
    ),
    "sgp": Case("sgp", references.sgp, graphs.COLUMN, (*LOSSLESS, *FINE)),
    "sparse-push": Case("sparse-push", references.sparse_push, graphs.COLUMN, ALL),
    "quant-sgp": Case("quant-sgp", references.quant_sgp, graphs.COLUMN, ALL, public_copies=True),
    "bagua-lp": Case("bagua-lp", references.bagua_lp, graphs.RING, BAGUA, alike=True, smallest=3),
    "bagua-lp on any graph": Case("bagua-lp", references.dcd_psgd, graphs.SYMMETRIC, (*LOSSLESS, *FINE)),
    "parallel-sgd": all_to_all(0.0, False),
    "parallel-sgd, heavy ball": all_to_all(0.9, False),
    "parallel-sgd, nesterov": all_to_all(0.9, True),
    # D2 repeats in every later round what one round got wrong, and quantised messages do not tell
    # of it.
    "d2": Case("d2", references.d2, graphs.EXACT, (*LOSSLESS, ("fp16", {}, 1.0), FINE[1]), rounding=2e-5, repeats=True),
    "gt-dsgd": tracking("gt-dsgd", references.gradient_tracking, TRACKED),
    "k-gt, one step": tracking("k-gt", references.gradient_tracking, TRACKED),
    "k-gt, three steps": tracking("k-gt", partial(references.k_gt, steps=3), TRACKED, steps=3, lr=0.02),
    "motef": tracking("motef", partial(references.motef, momentum=0.8), SMALL, params={"momentum": 0.8}),
    "beer": tracking("motef", partial(references.motef, momentum=0.0), SMALL, params={"momentum": 0.0}),
}
CASES: Mapping[str, Case] = {
    **PLAIN,
    "dpsgd, adapt then combine, nearest": robust(
        references.dpsgd_after_the_step, "nearest", 1, PLAIN["dpsgd, adapt then combine"]
    ),
    "choco-sgd, adapt with combine, clipped": robust(
        references.parallel_choco, "clip", 1, PLAIN["choco-sgd, adapt with combine"]
    ),
    "dpsgd, clipped": robust(references.dpsgd, "clip", 1, PLAIN["dpsgd"]),
    "deep-squeeze, clipped": robust(references.deep_squeeze, "clip", 1, PLAIN["deep-squeeze"]),
    "choco-sgd, clipped": robust(references.choco_sgd, "clip", 1, PLAIN["choco-sgd"]),
    "bagua-lp, clipped": robust(references.dcd_psgd, "clip", 1, PLAIN["bagua-lp on any graph"]),
    "dpsgd, nearest": robust(references.dpsgd, "nearest", 1, PLAIN["dpsgd"]),
    "deep-squeeze, nearest": robust(references.deep_squeeze, "nearest", 1, PLAIN["deep-squeeze"]),
    "choco-sgd, nearest": robust(references.choco_sgd, "nearest", 1, PLAIN["choco-sgd"]),
    "bagua-lp, nearest": robust(references.dcd_psgd, "nearest", 1, PLAIN["bagua-lp on any graph"]),
}


@dataclass(frozen=True)
class Outcome:
    """Both trajectories of `compare`, for tests that look closer."""

    fleet: Fleet
    points: tuple[Point, ...]  # after each round
    compression: Compression


def compare(
    name: str,
    graph: str,
    codec: tuple[str, Mapping[str, Any], float],
    *,
    nodes: int,
    seed: int,
    rounds: int = ROUNDS,
    lr: float | None = None,
    decay_at: int | None = None,
    zero_start: bool = True,
    wrap: Callable[[Any], Any] = lambda algorithm: algorithm,
    momentum: Momentum | None = None,
    tolerance: float | None = None,
) -> Outcome:
    """Drive the algorithm, run its reference, and assert that they agree after every round; up to a
    tie, which is raised if it comes in the first one."""
    case, (codec_name, codec_params, eta) = CASES[name], codec
    rng = np.random.default_rng([seed, nodes])
    topology = case.graphs[graph](nodes, rng)
    x0 = rng.uniform(-1.0, 1.0, size=(nodes, N)).astype(np.float32)
    if case.alike:
        x0 = np.broadcast_to(x0[0], x0.shape).copy()
    params = {
        **({"eta": eta} if case.takes_eta else {}),
        **({"zero_start": zero_start} if case.public_copies else {}),
        **case.params,
    }
    algorithm = with_order(gossip.get(case.algorithm, **params), case.order)
    algorithm = with_robust_mixing(algorithm, case.malicious, case.rule)
    problem = Problem.of(nodes, N, seed, case.lr if lr is None else lr, decay_at)
    fleet = Fleet(wrap(algorithm), topology, codecs.get(codec_name, **codec_params), x0, seed, steps=case.steps)
    fleet.learn(rounds, problem, rng)
    compression = Compression(fleet.codec, fleet.layout, fleet.view(0), fleet.bodies)
    run = Run(
        topology.matrix,
        x0.astype(np.float64),
        problem.gradient,
        problem.rate,
        eta,
        compression,
        rounds,
        topology.period,
        Plain() if momentum is None else momentum,
        zero_start,
        lambda copies: copies.astype(np.float32).astype(np.float64),
    )
    tolerance = tolerance or (TOLERANCE if compression.exact else case.rounding)
    # What is rounded in round s is added t - s times by round t: sums of t random steps, t^1.5 in
    # all.
    growth = HALF_ULP if case.repeats and compression.exact else 0.0
    points = list[Point]()
    try:
        points.extend(case.reference(run))
    except references.Tie:
        if not points:
            raise
    for t, point in enumerate(points):
        size = max(1.0, float(np.abs(point.z).max()))
        assert size < 100, "the reference itself diverges; the case has too large an eta"
        np.testing.assert_allclose(
            fleet.models[t + 1] / size,
            point.z / size,
            rtol=0,
            atol=tolerance + growth * t**1.5,
            err_msg=f"after round {t}",
        )
    return Outcome(fleet, tuple(points), compression)
