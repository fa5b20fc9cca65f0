"""Mutants of the rounds: whom a round waits for, what it takes in, how a node gets on a level with
the others."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

SYNCHRONOUS = "edgegossip.gossip.rounds:Synchronous."
EARLY_MESSAGES = "edgegossip.gossip.streams:PendingMessages."

MUTANTS = (
    Mutant(
        "late-message-mixed",
        "a message of a round that is over is mixed into the present one",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "_receive_single", "Call staleness", "$2"),),
        {"faults": "all,delay=3", "codec": "fp32"},
    ),
    Mutant(
        "dead-neighbour-awaited",
        "a round waits for neighbours that are down",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit("edgegossip.gossip.scheme:RoundContext.at", "Call in_", "$1"),),
        {"faults": "all,leave"},
    ),
    Mutant(
        "deadline-ignored",
        "the deadline of a round passes and nothing happens",
        ("dpsgd", "sgp"),
        (Edit(SYNCHRONOUS + "tick", "UnaryOp 0", "True"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "deadline-not-set",
        "a round that has to wait sets no timer",
        ("dpsgd", "choco-sgd"),
        (Edit(SYNCHRONOUS + "step", "List SetTimer", "[$0, $1, $3]"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "linger-for-ever",
        "once the quorum is there, no shorter wait is set, and the long one is called off",
        ("dpsgd:quorum=0.5", "choco-sgd:quorum=0.5"),
        (Edit(SYNCHRONOUS + "_linger", "Call deadline_s", "None"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "news-never-old",
        "with bounded staleness, news of any age is good enough and nobody is waited for",
        ("dpsgd:staleness=1",),
        (Edit(SYNCHRONOUS + "_silent", "Compare NO_IN_EDGE", "$0 < 0"),),
    ),
    Mutant(
        "round-goes-back",
        "a neighbour's model is taken over whatever its round",
        ("dpsgd:max_ahead=1", "choco-sgd:max_ahead=1", "sgp:max_ahead=1"),
        (
            Edit(SYNCHRONOUS + "_claim", "test _ahead", "False"),
            Edit(SYNCHRONOUS + "_skip_to", "Call _enter", "$0($1, min($2, s.round), $3)"),
        ),
        {"faults": "all,empty-disk=2,delay=3", "rounds": 16},
    ),
    Mutant(
        "membership-does-not-proceed",
        "a round whose last missing neighbour goes down is not ended",
        ("dpsgd", "choco-sgd"),
        (Edit(SYNCHRONOUS + "membership", "stmt _proceed", "actions = []"),),
        {"faults": "all,crash"},
    ),
    Mutant(
        "loss-not-noticed",
        "a message of a later round does not tell that this round's was lost",
        ("dpsgd", "choco-sgd"),
        (Edit(SYNCHRONOUS + "_missing", "UnaryOp _lost", "True"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "one-witness-leads",
        "one message of a far round is enough to go on there",
        ("dpsgd", "choco-sgd", "sgp"),
        (
            Edit(SYNCHRONOUS + "_borne_out", "test topology", "$0"),
            Edit(SYNCHRONOUS + "_borne_out", "IfExp", "last if self._decodes(s, by_round[last]) else None"),
        ),
        {"faults": "all,-byzantine-mutation,byzantine-far=1", "topology": "ring"},
    ),
    Mutant(
        "other-run-accepted",
        "messages of another run are taken in",
        ("dpsgd", "quant-sgp", "ad-psgd"),
        (Edit("edgegossip.frame:expect", "test run_id", "False"),),
        {"faults": "all,byzantine-run"},
    ),
    Mutant(
        "implausible-values-accepted",
        "values a million times too large are averaged",
        ("dpsgd", "choco-sgd", "sgp", "ad-psgd"),
        (Edit("edgegossip.gossip.messages:disproportion", "UnaryOp", "not True"),),
        {"faults": "all,byzantine-huge", "codec": "fp32"},
    ),
    Mutant(
        "nan-accepted",
        "values that are not numbers are averaged",
        ("dpsgd", "choco-sgd", "sgp", "ad-psgd"),
        (
            Edit(
                "edgegossip.codecs.floats:Float.decode",
                "stmt decode",
                "if $0:\n    values[:] = np.nan\nif False:\n    raise self._not_finite()",
            ),
            Edit("edgegossip.gossip.messages:disproportion", "UnaryOp", "squares(part) > (limit / margin) ** 2"),
        ),
        {"faults": "all,byzantine-nan=2", "codec": "fp32"},
    ),
    Mutant(
        "early-messages-unbounded",
        "all early messages of a sender are kept, not the newest few",
        ("dpsgd", "choco-sgd", "sgp", "parallel-sgd"),
        (Edit(EARLY_MESSAGES + "put", "Subscript sorted", "$0"),),
        {"faults": "all,byzantine-flood"},
    ),
    Mutant(
        "never-heard",
        "a neighbour is left out of every mixing, once the quorum is there without it",
        ("dpsgd:quorum=0.5",),
        (Edit(SYNCHRONOUS + "_finish", "Compare refused", "$0 != min(s.ctx.neighbours.in_)"),),
        {"topology": "complete"},
    ),
)
