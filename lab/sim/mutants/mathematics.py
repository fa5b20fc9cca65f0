"""Mutants of what is said and how it is mixed."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

SYMMETRIC = "edgegossip.gossip.symmetric:"
PUBLISH = "edgegossip.gossip.publish:"
PUSH = "edgegossip.gossip.push:"
AROUND = "edgegossip.gossip.around:Around."
OUTER = "edgegossip.gossip.outer:WithOuter."
MOMENTUM = "edgegossip.gossip.momentum:WithMomentum."
PUSH_SUM = ("sgp", "sparse-push", "quant-sgp")
TOPK = {"codec": "topk:ratio=0.25"}
EXACT = {"codec": "fp32"}
ROBUST_MIXING = (
    "dpsgd:malicious_nodes=1",
    "choco-sgd+nesterov:malicious_nodes=1,malicious_rule=clip",
    "deep-squeeze:malicious_nodes=1,malicious_rule=clip",
)
LIAR = {"nodes": 5, "topology": "complete", "codec": "fp32", "faults": "byzantine-round=1@1-14:1"}

MUTANTS = (
    Mutant(
        "error-dropped",
        "what compression loses is not kept",
        ("deep-squeeze", "sparse-push"),
        (Edit(PUBLISH + "Compensated.publish", "Call ErrorMemory", "$0($1, None)"),),
        TOPK,
    ),
    Mutant(
        "error-sign",
        "what compression loses is taken off the next message",
        ("deep-squeeze", "sparse-push"),
        (Edit(PUBLISH + "Compensated.publish", "BinOp error", "$0 - $1"),),
        TOPK,
    ),
    Mutant(
        "public-copy-not-moved",
        "the sender's own public copy stays what it was",
        ("choco-sgd", "quant-sgp", "bagua-lp"),
        (Edit(PUBLISH + "Difference.publish", "Dict", "$1"),),
    ),
    Mutant(
        "difference-to-nothing",
        "the vector itself is sent as the difference",
        ("choco-sgd", "quant-sgp"),
        (Edit(PUBLISH + "Difference.publish", "BinOp", "$0"),),
    ),
    Mutant(
        "adoption-keeps-public-copy",
        "a node that took over another model goes on from its old public copy",
        ("choco-sgd", "quant-sgp"),
        (Edit(PUBLISH + "Difference.reset", "Call", "memory"),),
        {"faults": "all,empty-disk"},
        unseen=(
            "The next difference leads from the old copy to the new model, at sender and receivers alike: only more values "
            "have to travel."
        ),
        seen_by=(
            "tests/gossip/test_restart.py::test_with_the_model_of_another_a_board_publishes_as_one_that_begins_with_it",
        ),
    ),
    Mutant(
        "replica-not-moved",
        "a receiver does not move its replica on",
        ("choco-sgd", "bagua-lp"),
        (Edit(SYMMETRIC + "Symmetric.take", "Call moved", "$1"),),
    ),
    Mutant(
        "replica-moved-by-half",
        "a receiver moves its replica on with another weight than the sender",
        ("choco-sgd", "bagua-lp"),
        (Edit(SYMMETRIC + "Symmetric.take", "Call moved", "($1 + $0($1, $2, $3)) / np.float32(2)"),),
    ),
    Mutant(
        "push-replica-not-moved",
        "a receiver of push-sum does not move its replica on",
        ("quant-sgp",),
        (Edit(PUSH + "Push.take", "Call moved", "$1"),),
    ),
    Mutant(
        "mixed-three-times",
        "a mixing goes three times as far as its weights say",
        ("dpsgd",),
        (Edit(SYMMETRIC + "Symmetric.mix", "stmt float32 eta", "pull *= np.float32(3)\n$"),),
        {"codec": "fp32", "workload": "consensus", "faults": "delay=0.2"},
    ),
    Mutant(
        "mixing-overflows",
        "a mixing adds more than float32 holds",
        ("dpsgd",),
        (Edit(SYMMETRIC + "Symmetric.mix", "stmt float32 eta", "pull[0] = np.inf\n$"),),
        {"faults": "none"},
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
        "eta-ignored",
        "differences are averaged at full rate however coarse the codec is",
        ("choco-sgd",),
        (Edit(SYMMETRIC + "Symmetric.mix", "stmt float32 eta", "pass"),),
        TOPK,
    ),
    Mutant(
        "own-public-forgotten",
        "neighbours' public copies are compared with the model instead of with the own public copy",
        ("deep-squeeze",),
        (Edit(SYMMETRIC + "Symmetric.mix", "Call pull", "$0($1, $1, $3)"),),
        {"codec": "fp32", "workload": "quadratic", "faults": "delay=0.2"},
    ),
    Mutant(
        "share-kept",
        "what a node hands over is not taken off its own mass",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "stmt mass 3", "pass"),),
    ),
    Mutant(
        "share-taken-twice",
        "what a node hands over is taken off its own mass twice",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "BinOp mass", "2 * $"),),
    ),
    Mutant(
        "dead-share-handed-over",
        "the share of a neighbour that is down is taken off as well, and booked nowhere",
        ("sgp", "quant-sgp"),
        (
            Edit(
                PUSH + "Push.publish",
                "stmt SHARE",
                "if not share:\n"
                "    x = x - m.eta * float(ctx.view.topology.matrix(ctx.round)[k, ctx.index]) * announced.public\n$",
            ),
        ),
        {"faults": "all,crash"},
    ),
    Mutant(
        "float32-mass",
        "the mass is kept in float32",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "stmt publisher", "x = x.astype(np.float32).astype(np.float64)\n$"),),
    ),
    Mutant(
        "light-update-in-full",
        "a local update counts in full however small the push-sum weight is",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "Call min", "1.0"),),
    ),
    Mutant(
        "weight-not-pushed",
        "mass is handed over without its weight",
        PUSH_SUM,
        (
            Edit(PUSH + "Push.publish", "stmt u 4", "pass"),
            Edit(PUSH + "Push.publish", "BinOp weight", "$0"),
        ),
        EXACT,
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
        "bagua-mixes-present-replicas",
        "bagua-lp mixes with what neighbours said in this round already",
        ("bagua-lp",),
        (Edit("edgegossip.gossip.symmetric:Bagua.publish", "Attribute past", "$0.copies"),),
        {"codec": "fp32", "workload": "quadratic", "faults": "slow-link=2"},
    ),
    Mutant(
        "d2-forgets",
        "d2 keeps only what the last mixing added",
        ("d2",),
        (Edit("edgegossip.gossip.symmetric:D2.pulled", "BinOp", "$1"),),
        EXACT,
        unseen=(
            "Another algorithm, which averages and keeps the mean as well; that it is not D2 only the comparison with the "
            "paper's matrices shows (tests/gossip)."
        ),
        seen_by=("tests/gossip/paper/test_momentum.py::test_rounds_equal_the_paper",),
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
        "correction-never-asked",
        "no local step follows the correction, which is added at their end",
        ("k-gt",),
        (Edit("edgegossip.gossip.tracking:Tracking.correction", "IfExp", "None"),),
        {"codec": "fp32", "workload": "quadratic"},
    ),
    Mutant(
        "correction-turned-round",
        "local steps are corrected towards the board's own data",
        ("k-gt",),
        (Edit("edgegossip.gossip.tracking:Tracking.correction", "Call _sum", "None if $ is None else -$"),),
        {"codec": "fp32", "workload": "quadratic"},
    ),
    Mutant(
        "corrected-twice",
        "a correction that local steps followed is added again at their end",
        ("k-gt",),
        (Edit("edgegossip.gossip.tracking:Tracking._step", "UnaryOp corrected", "True"),),
        {"codec": "fp32", "workload": "quadratic"},
    ),
    Mutant(
        "robust-takes-everything",
        "mixing that bears a liar takes all that it hears",
        ROBUST_MIXING,
        (Edit("edgegossip.gossip.robust:bounded", "DictComp", "dict(row)"),),
        LIAR,
    ),
    Mutant(
        "robust-leaves-nobody-out",
        "the farthest neighbour's distance is the limit, a liar's too",
        ROBUST_MIXING,
        (Edit("edgegossip.gossip.robust:radius", "IfExp", "max(distances, default=0.0)"),),
        LIAR,
    ),
    Mutant(
        "robust-by-weights-alone",
        "a neighbour's weight is not lowered by what the rule leaves of it",
        ROBUST_MIXING,
        (Edit("edgegossip.gossip.robust:bounded", "BinOp", "$0"),),
        LIAR,
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
        "momentum-outlives-the-model",
        "the momentum is not given up when another model is taken over",
        ("sgp+quasi-global", "quant-sgp+heavy-ball"),
        (Edit(AROUND + "follow", "BoolOp", "False"),),
        {"faults": "all,newcomer", "codec": "fp32", "workload": "quadratic"},
    ),
    Mutant(
        "momentum-ignored",
        "the algorithm inside steps without the momentum",
        ("sgp+heavy-ball", "sparse-push+nesterov", "quant-sgp+quasi-global"),
        (Edit(MOMENTUM + "step", "Call _with_momentum", "$2"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "momentum-ignored-by-averages",
        "the same, where only the mean of the models tells",
        ("dpsgd+heavy-ball", "choco-sgd+nesterov", "ad-psgd+quasi-global"),
        (Edit(MOMENTUM + "step", "Call _with_momentum", "$2"),),
        {"workload": "quadratic", "codec": "fp32", "faults": "delay=0.2"},
    ),
    Mutant(
        "momentum-turned-round",
        "the momentum goes against the gradients that it was made of",
        ("sgp+heavy-ball", "sparse-push+nesterov", "quant-sgp+quasi-global"),
        (Edit(MOMENTUM + "_delta", "stmt lr momentum", "$0 += $1"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "momentum-lost-with-the-process",
        "a process that goes on from a checkpoint begins without momentum",
        ("sgp+heavy-ball", "sparse-push+nesterov", "quant-sgp+quasi-global"),
        (Edit(MOMENTUM + "resume", "Call State", "$0($1, $2, np.zeros_like($3), $4)"),),
        {"workload": "quadratic", "faults": "crash=3"},
    ),
    Mutant(
        "momentum-doubled",
        "the momentum counts twice in the next round",
        ("sgp+heavy-ball", "sparse-push+nesterov", "quant-sgp+quasi-global"),
        (Edit(MOMENTUM + "done", "Call State", "$0($1, $2, 2 * $3, $4)"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "momentum-of-the-models-too-large",
        "quasi-global momentum takes in the way of the models by its factor",
        ("sgp+quasi-global", "sparse-push+quasi-global-nesterov"),
        (Edit(MOMENTUM + "done", "BinOp factor", "$1"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "momentum-without-looking-ahead",
        "Nesterov's step goes by the momentum of the round before",
        ("sgp+nesterov", "sparse-push+quasi-global-nesterov"),
        (Edit(MOMENTUM + "_delta", "BinOp 0", "self.factor"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "outer-lead-turned-round",
        "training is shown a model that is behind by what it should be ahead",
        ("dpsgd+outer-nesterov", "deep-squeeze+outer-heavy-ball"),
        (Edit(OUTER + "_ahead", "BinOp 1", "$0 - $1"),),
        {"codec": "fp32", "topology": "ring", "faults": "delay=0.2"},
    ),
    Mutant(
        "outer-lead-lost",
        "what a model is ahead never gets to the algorithm inside",
        ("dpsgd+outer-nesterov", "choco-sgd+outer-heavy-ball"),
        (Edit(OUTER + "_from_inside", "stmt lead 3", "pass"),),
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
