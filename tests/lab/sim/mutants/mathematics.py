"""Mutants of what is said and how it is mixed."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

SYMMETRIC = "edgegossip.gossip.symmetric:"
PUBLISH = "edgegossip.gossip.publish:"
PUSH = "edgegossip.gossip.push:"
OUTER = "edgegossip.gossip.outer:WithOuter."
PUSH_SUM = ("sgp", "sparse-push", "quant-sgp")
TOPK = {"codec": "topk:ratio=0.25"}
EXACT = {"codec": "fp32"}

MUTANTS = (
    Mutant(
        "error-dropped",
        "what compression loses is not kept",
        ("deep-squeeze", "sparse-push"),
        (Edit(PUBLISH + "Compensated.publish", "Call ErrorMemory", "$0($1, None)"),),
        TOPK,
    ),
    Mutant(
        "public-copy-not-moved",
        "the sender's own public copy stays what it was",
        ("choco-sgd", "quant-sgp", "bagua-lp"),
        (Edit(PUBLISH + "Difference.publish", "Dict", "$1"),),
    ),
    Mutant(
        "push-replica-not-moved",
        "a receiver of push-sum does not move its replica on",
        ("quant-sgp",),
        (Edit(PUSH + "Push.take", "Call moved", "$1"),),
    ),
    Mutant(
        "wrong-weight",
        "a message gets the weight that the node gives itself",
        ("dpsgd",),
        (Edit(SYMMETRIC + "Symmetric.take", "Subscript", "$0[ctx.index]"),),
        {"codec": "fp32", "topology": "star", "workload": "consensus", "faults": "delay=0.2"},
    ),
    Mutant(
        "wrong-replica-weight",
        "a replica is weighed by how many are fresh, not by the matrix",
        ("choco-sgd",),
        (Edit(SYMMETRIC + "_summed", "Subscript 2", "1.0 / (1 + len(copies))"),),
        {"codec": "fp32", "topology": "star", "workload": "consensus", "faults": "delay=0.2"},
    ),
    Mutant(
        "dead-weight-not-given-back",
        "a node gives up the weight of neighbours that are missing, and keeps nothing for it",
        ("dpsgd", "choco-sgd"),
        (
            Edit(
                SYMMETRIC + "Symmetric.mix",
                "stmt float32 eta",
                "lost = sum(w for j, w in ctx.neighbours.weights.items() if j not in (*fresh, ctx.index))\n"
                "pull -= np.float32(lost) * m.x\n$",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "own-row-off",
        "the weights that a mixing used do not sum to 1 in its books",
        ("dpsgd", "choco-sgd"),
        (Edit(SYMMETRIC + "Symmetric.pulled", "Dict", "{**$1, $0: ctx.neighbours.weights[$0]}"),),
        {"faults": "all,crash"},
    ),
    Mutant(
        "share-kept",
        "what a node hands over is not taken off its own mass",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "stmt mass 3", "pass"),),
    ),
    Mutant(
        "not-debiased",
        "the model is the mass, not mass over weight",
        PUSH_SUM,
        (Edit(PUSH + "_debiased", "BinOp 2", "$0"),),
    ),
    Mutant(
        "only-the-last-counts",
        "of several neighbours only the last one's mass is added",
        PUSH_SUM,
        (Edit(PUSH + "_gain", "IfExp", "$1"),),
    ),
    Mutant(
        "non-positive-weight-accepted",
        "a push-sum weight that shrinks is believed",
        PUSH_SUM,
        (
            Edit(PUSH + "_numbers", "test HEAVY", "False"),
            Edit(PUSH + "Push.adopt", "test any", "False"),
        ),
        {"faults": "all,byzantine-weight"},
    ),
    Mutant(
        "d2-wrong-sign",
        "d2 takes off what mixing has added so far",
        ("d2",),
        (Edit("edgegossip.gossip.symmetric:extrapolate", "BinOp delta", "$0 - $1"),),
        EXACT,
    ),
    Mutant(
        "direction-replica-not-moved",
        "a receiver does not move its replica of a direction on",
        ("motef",),
        (Edit("edgegossip.gossip.tracking:Tracking.take", "Call direction", "$1"),),
    ),
    Mutant(
        "tracking-wrong-sign",
        "corrections drive the boards' directions apart",
        ("gt-dsgd",),
        (Edit("edgegossip.gossip.tracking:Tracking.mix", "BinOp direction", "$1 - $0"),),
        {"codec": "fp32", "workload": "quadratic"},
    ),
    Mutant(
        "parallel-momentum-lost",
        "a full state of parallel-sgd brings no momentum",
        ("parallel-sgd:momentum=0.9",),
        (
            Edit(
                "edgegossip.gossip.parallel:Parallel.adopt",
                "Call _stream 1",
                "Stream($1[0], $1[1], m.zero.momentum, $2)",
            ),
        ),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "count-beyond-what-others-take",
        "a node of parallel-sgd that was told the most of itself counts on",
        ("parallel-sgd",),
        (Edit("edgegossip.gossip.parallel:Parallel._on", "Call MOST_MESSAGES", "$1"),),
        {"faults": "byzantine-state=1.0,crash=2", "nodes": 4, "rounds": 8},
    ),
    Mutant(
        "outer-lead-turned-round",
        "training is shown a model that is behind by what it should be ahead",
        ("dpsgd+outer-nesterov", "deep-squeeze+outer-heavy-ball"),
        (Edit(OUTER + "_ahead", "BinOp 1", "$0 - $1"),),
        {"codec": "fp32", "topology": "ring", "faults": "delay=0.2"},
    ),
    Mutant(
        "adopted-without-its-weight",
        "a model that is taken over is taken for the mass, whatever the weight is",
        PUSH_SUM,
        (Edit(PUSH + "Push.abandon", "BinOp float64", "$1"),),
        {"faults": "all,newcomer", "nodes": 4},
    ),
    Mutant(
        "outer-step-from-the-old-model",
        "after a restart the outer optimiser takes the way of two rounds for that of one",
        ("dpsgd+outer-nesterov:outer_overlap=true", "choco-sgd+outer-nesterov:outer_overlap=true"),
        (Edit(OUTER + "resume", "Call model replace", "$1"),),
        {"faults": "crash=3", "workload": "quadratic"},
    ),
)
