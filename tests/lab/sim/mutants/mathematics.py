"""Mutants of what is said and how it is mixed."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

SYMMETRIC = "edgegossip.gossip.symmetric:"
PUSH = "edgegossip.gossip.push:"
AROUND = "edgegossip.gossip.around:Around."
OUTER = "edgegossip.gossip.outer:WithOuter."
PUSH_SUM = ("sgp", "sparse-push", "quant-sgp")
TOPK = {"codec": "topk:ratio=0.25"}
EXACT = {"codec": "fp32"}

MUTANTS = (
    Mutant(
        "error-dropped",
        "what compression loses is not kept",
        ("deep-squeeze", "sparse-push"),
        (
            Edit(
                SYMMETRIC + "Compensated.publish",
                "ErrorMemory(codec, fragment.within(error, rest))",
                "ErrorMemory(codec, None)",
            ),
        ),
        TOPK,
    ),
    Mutant(
        "error-sign",
        "what compression loses is taken off the next message",
        ("deep-squeeze", "sparse-push"),
        (
            Edit(
                SYMMETRIC + "Compensated.publish",
                "part + fragment.of(memory.error)",
                "part - fragment.of(memory.error)",
            ),
        ),
        TOPK,
    ),
    Mutant(
        "public-copy-not-moved",
        "the sender's own public copy stays what it was",
        ("choco-sgd", "quant-sgp", "bagua-lp"),
        (
            Edit(
                SYMMETRIC + "Difference.publish",
                "{**memory.copies, ctx.phase: public}",
                "memory.copies",
            ),
        ),
    ),
    Mutant(
        "difference-to-nothing",
        "the vector itself is sent as the difference",
        ("choco-sgd", "quant-sgp"),
        (Edit(SYMMETRIC + "Difference.publish", "meant = part - fragment.of(copy)", "meant = part"),),
    ),
    Mutant(
        "adoption-keeps-public-copy",
        "a node that took over another model goes on from its old public copy",
        ("choco-sgd", "quant-sgp"),
        (
            Edit(
                SYMMETRIC + "Difference.reset",
                "PublicCopies(memory.codec, v, {})",
                "memory",
            ),
        ),
        {"faults": "all,empty-disk"},
        equivalent=(
            "The next difference leads from the old copy to the new model, at sender and receivers alike: only more values "
            "have to travel."
        ),
    ),
    Mutant(
        "replica-not-moved",
        "a receiver does not move its replica on",
        ("choco-sgd", "bagua-lp"),
        (
            Edit(
                SYMMETRIC + "Symmetric.take",
                "copy = moved(m.copies.get(key, m.start), frame.body, ctx, ctx.fragment_of(frame))",
                "copy = m.copies.get(key, m.start)",
            ),
        ),
    ),
    Mutant(
        "replica-moved-by-half",
        "a receiver moves its replica on with another weight than the sender",
        ("choco-sgd", "bagua-lp"),
        (
            Edit(
                SYMMETRIC + "Symmetric.take",
                "copy = moved(m.copies.get(key, m.start), frame.body, ctx, ctx.fragment_of(frame))",
                "copy = (m.copies.get(key, m.start) + moved(m.copies.get(key, m.start), frame.body, ctx)) / np.float32(2)",
            ),
        ),
    ),
    Mutant(
        "push-replica-not-moved",
        "a receiver of push-sum does not move its replica on",
        ("quant-sgp",),
        (Edit(PUSH + "Push.take", "moved(copies.get(key, m.start), frame.body, ctx)", "copies.get(key, m.start)"),),
    ),
    Mutant(
        "wrong-weight",
        "a message gets the weight that the node gives itself",
        ("dpsgd",),
        (Edit(SYMMETRIC + "Symmetric.take", "ctx.neighbours.weights[sender]", "ctx.neighbours.weights[ctx.index]"),),
        {"codec": "fp32", "topology": "star", "workload": "consensus", "faults": "delay=0.2"},
    ),
    Mutant(
        "wrong-replica-weight",
        "a replica is weighed by how many are fresh, not by the matrix",
        ("choco-sgd",),
        (
            Edit(
                SYMMETRIC + "_summed",
                "away *= row[j]",
                "away *= 1.0 / (1 + len(copies))",
            ),
        ),
        {"codec": "fp32", "topology": "star", "workload": "consensus", "faults": "delay=0.2"},
    ),
    Mutant(
        "dead-weight-not-given-back",
        "a node gives up the weight of neighbours that are missing, and keeps nothing for it",
        ("dpsgd", "choco-sgd"),
        (
            Edit(
                SYMMETRIC + "Symmetric.mix",
                "pull[:cut] *= np.float32(m.eta)",
                """pull -= np.float32(sum(w for j, w in ctx.neighbours.weights.items() if j not in (*fresh, ctx.index))) * m.x
pull[:cut] *= np.float32(m.eta)""",
            ),
        ),
        EXACT,
    ),
    Mutant(
        "own-row-off",
        "the weights that a mixing used do not sum to 1 in its books",
        ("dpsgd", "choco-sgd"),
        (Edit(SYMMETRIC + "Symmetric.pulled", "1.0 - sum(row.values())", "ctx.neighbours.weights[ctx.index]"),),
        {"faults": "all,crash"},
    ),
    Mutant(
        "eta-ignored",
        "differences are averaged at full rate however coarse the codec is",
        ("choco-sgd",),
        (Edit(SYMMETRIC + "Symmetric.mix", "pull[:cut] *= np.float32(m.eta)", "pass"),),
        TOPK,
    ),
    Mutant(
        "own-public-forgotten",
        "neighbours' public copies are compared with the model instead of with the own public copy",
        ("deep-squeeze",),
        (Edit(SYMMETRIC + "Symmetric.mix", "of(total), x, public)", "of(total), x, x)"),),
        {"codec": "fp32", "workload": "quadratic", "faults": "delay=0.2"},
    ),
    Mutant(
        "share-kept",
        "what a node hands over is not taken off its own mass",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "x -= mass - total.mass", "pass"),),
    ),
    Mutant(
        "share-taken-twice",
        "what a node hands over is taken off its own mass twice",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "x -= mass - total.mass", "x -= 2 * (mass - total.mass)"),),
    ),
    Mutant(
        "dead-share-handed-over",
        "the share of a neighbour that is down is taken off as well, and booked nowhere",
        ("sgp", "quant-sgp"),
        (
            Edit(
                PUSH + "Push.publish",
                "sent[key] = total",
                """if not share:
    x = x - m.eta * float(ctx.view.topology.matrix(ctx.round)[k, ctx.index]) * announced.public
sent[key] = total""",
            ),
        ),
        {"faults": "all,crash"},
    ),
    Mutant(
        "float32-mass",
        "the mass is kept in float32",
        PUSH_SUM,
        (
            Edit(
                PUSH + "Push.publish",
                "* local.delta",
                "* local.delta\nx = x.astype(np.float32).astype(np.float64)",
            ),
        ),
    ),
    Mutant(
        "light-update-in-full",
        "a local update counts in full however small the push-sum weight is",
        PUSH_SUM,
        (Edit(PUSH + "Push.publish", "min(1.0, max(m.u, 0.0) / FULL)", "1.0"),),
    ),
    Mutant(
        "weight-not-pushed",
        "mass is handed over without its weight",
        PUSH_SUM,
        (
            Edit(PUSH + "Push.publish", "u -= share * m.u", "pass"),
            Edit(PUSH + "Push.publish", "total.weight + share * m.u)", "total.weight)"),
        ),
        EXACT,
    ),
    Mutant(
        "not-debiased",
        "the model is the mass, not mass over weight",
        PUSH_SUM,
        (Edit(PUSH + "_debiased", "(x / u).astype(np.float32)", "x.astype(np.float32)"),),
    ),
    Mutant(
        "only-the-last-counts",
        "of several neighbours only the last one's mass is added",
        PUSH_SUM,
        (Edit(PUSH + "_gain", "incoming = part if m.incoming is None else m.incoming + part", "incoming = part"),),
    ),
    Mutant(
        "non-positive-weight-accepted",
        "a push-sum weight that shrinks is believed",
        PUSH_SUM,
        (
            Edit(PUSH + "_numbers", "if not 0.5 * LIGHT * share <= gained <= HEAVY * nodes * share:", "if False:"),
            Edit(PUSH + "Push.adopt", "if not 0.0 <= weight <= most or (weight == 0.0 and total.any()):", "if False:"),
        ),
        {"faults": "all,byzantine-weight"},
    ),
    Mutant(
        "bagua-mixes-present-replicas",
        "bagua-lp mixes with what neighbours said in this round already",
        ("bagua-lp",),
        (Edit("edgegossip.gossip.symmetric:Bagua.publish", "m.past.get(", "m.copies.get("),),
        {"codec": "fp32", "workload": "quadratic", "faults": "slow-link=2"},
        equivalent=(
            "Only a neighbour that is a round ahead makes a difference, and then the mean moves; after full states, with which "
            "runs begin, no checker knows the mean of models that are trained. The paper's matrices show it (tests/gossip)."
        ),
    ),
    Mutant(
        "d2-forgets",
        "d2 keeps only what the last mixing added",
        ("d2",),
        (Edit("edgegossip.gossip.symmetric:D2.pulled", "m.past + pull", "pull"),),
        EXACT,
        equivalent=(
            "Another algorithm, which averages and keeps the mean as well; that it is not D2 only the comparison with the "
            "paper's matrices shows (tests/gossip)."
        ),
    ),
    Mutant(
        "d2-wrong-sign",
        "d2 takes off what mixing has added so far",
        ("d2",),
        (Edit("edgegossip.gossip.symmetric:extrapolate", "local.delta + m.past", "local.delta - m.past"),),
        EXACT,
    ),
    Mutant(
        "direction-replica-not-moved",
        "a receiver does not move its replica of a direction on",
        ("motef",),
        (Edit("edgegossip.gossip.tracking:Tracking.take", "moved(known.direction, second, ctx)", "known.direction"),),
    ),
    Mutant(
        "tracking-wrong-sign",
        "corrections drive the boards' directions apart",
        ("gt-dsgd",),
        (
            Edit(
                "edgegossip.gossip.tracking:Tracking.mix",
                "(heard.direction - direction)",
                "(direction - heard.direction)",
            ),
        ),
        {"codec": "fp32", "workload": "quadratic"},
    ),
    Mutant(
        "parallel-momentum-lost",
        "a full state of parallel-sgd brings no momentum",
        ("parallel-sgd:momentum=0.9",),
        (
            Edit(
                "edgegossip.gossip.parallel:Parallel.adopt",
                "self._stream(own, count)",
                "Stream(own[0], own[1], m.zero.momentum, count)",
            ),
        ),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "count-beyond-what-others-take",
        "a node of parallel-sgd that was told the most of itself counts on",
        ("parallel-sgd",),
        (
            Edit(
                "edgegossip.gossip.parallel:Parallel._on",
                "min(stream.count + 1, MOST_MESSAGES)",
                "stream.count + 1",
            ),
        ),
        {"faults": "byzantine-state=1.0,crash=2", "nodes": 4, "rounds": 8},
    ),
    Mutant(
        "momentum-outlives-the-model",
        "the momentum is not given up when another model is taken over",
        ("dpsgd+quasi-global", "choco-sgd+heavy-ball"),
        (
            Edit(
                AROUND + "follow",
                "if adopted or round(inner) - round(s.inner) != done:",
                "if False:",
            ),
        ),
        {"faults": "all,empty-disk", "codec": "fp32", "workload": "quadratic"},
        equivalent=(
            "The step towards another's model gives the momentum a push of at most (1 - f) f of that way, which dies out by f a "
            "round: less than what training does. tests/gossip look at the momentum itself."
        ),
    ),
    Mutant(
        "outer-lead-turned-round",
        "training is shown a model that is behind by what it should be ahead",
        ("dpsgd+outer-nesterov", "deep-squeeze+outer-heavy-ball"),
        (Edit(OUTER + "_ahead", "x + lead", "x - lead"),),
        {"codec": "fp32", "topology": "ring", "faults": "delay=0.2"},
    ),
    Mutant(
        "outer-lead-lost",
        "what a model is ahead never gets to the algorithm inside",
        ("dpsgd+outer-nesterov", "choco-sgd+outer-heavy-ball"),
        (Edit(OUTER + "_from_inside", "delta += s.lead", "pass"),),
        {"codec": "fp32", "topology": "ring", "faults": "delay=0.2"},
        equivalent=(
            "Boards then train from a model that is ahead of the one that they step from, which ends at the same point, only "
            "later. tests/gossip compare the models with DiLoCo's."
        ),
    ),
    Mutant(
        "adopted-without-its-weight",
        "a model that is taken over is taken for the mass, whatever the weight is",
        PUSH_SUM,
        (Edit(PUSH + "Push.abandon", "m.u * model.astype(np.float64)", "model.astype(np.float64)"),),
        {"faults": "all,newcomer", "nodes": 4},
    ),
    Mutant(
        "outer-step-from-the-old-model",
        "after a restart the outer optimiser takes the way of two rounds for that of one",
        ("dpsgd+outer-nesterov", "choco-sgd+outer-heavy-ball"),
        (Edit(OUTER + "resume", "return replace(s, x=_with(s.x, span, self.model(s)[span]))", "return s"),),
        {"faults": "crash=3", "workload": "quadratic"},
    ),
)
