"""Mutants of the rounds: whom a round waits for, what it takes in, how a node gets on a level with
the others."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

SYNCHRONOUS = "edgegossip.gossip.rounds:Synchronous."
RELIANCE = "edgegossip.gossip.rounds:Reliance."
EARLY_MESSAGES = "edgegossip.gossip.streams:PendingMessages."

MUTANTS = (
    Mutant(
        "duplicate-accepted",
        "a message that comes twice is mixed twice",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "_receive_single", "test refused", "$1"),),
        {"codec": "fp32", "faults": "duplication=0.5,delay=0.3"},
    ),
    Mutant(
        "late-message-mixed",
        "a message of a round that is over is mixed into the present one",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "_receive_single", "Call staleness", "$2"),),
        {"faults": "all,delay=3", "codec": "fp32"},
    ),
    Mutant(
        "early-message-mixed",
        "a message of a later round is mixed into the present one",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "_receive_single", "test round 0", "False"),),
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
        "silence-costs-a-deadline-for-ever",
        "a round waits for a neighbour that never sends, each time anew",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(RELIANCE + "holds", "BoolOp", "True"),),
        {"faults": "byzantine-silent=1@0-14:1"},
    ),
    Mutant(
        "never-relied-on-again",
        "who let two deadlines pass is waited for no more, whatever it sends",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(RELIANCE + "holds", "BoolOp", "$0"),),
        {"faults": "pause=2,slow=2"},
    ),
    Mutant(
        "catches-up-and-comes-no-nearer",
        "who sends in each deadline costs as many in a row as who comes nearer, though it stays behind",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(RELIANCE + "catches_up", "Compare behind", "True"),),
        {"faults": "slow=2.5@0-60:1", "rounds": 24, "deadline_s": 1.0},
    ),
    Mutant(
        "comes-nearer-for-ever",
        "who comes nearer in each deadline costs one in each round, however far behind it is",
        ("dpsgd:staleness=3",),
        (Edit(RELIANCE + "catches_up", "Compare missed", "$1 >= $2"),),
        {"faults": "pause@4-14:6", "nodes": 8, "rounds": 22, "deadline_s": 1.5, "topology": "ring"},
    ),
    Mutant(
        "gone-costs-though-heard",
        "who goes away in a round has cost a deadline, though its message was there",
        ("dpsgd",),
        (Edit(SYNCHRONOUS + "membership", "Call intersection", "gone"),),
        {"faults": "crash=2,pause=2"},
    ),
    Mutant(
        "twice-as-much-is-asked-for",
        "who let deadlines pass has to send twice as much as is said before it is waited for",
        ("dpsgd", "gt-dsgd"),
        (Edit(RELIANCE + "holds", "Compare sent", "$0 >= 2 * $1"),),
        {"faults": "pause=2,slow=2"},
    ),
    Mutant(
        "who-catches-up-pays-all-the-same",
        "a board that comes nearer costs a deadline all the same",
        ("dpsgd", "gt-dsgd"),
        (Edit(RELIANCE + "catches_up", "Compare missed", "False"),),
        {"faults": "slow=2.5@0-20:1", "rounds": 24, "deadline_s": 1.0},
    ),
    Mutant(
        "old-rounds-count-as-sent",
        "messages of rounds that are over make a neighbour reliable again",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "receive", "BoolOp newest", "$0"),),
        {"faults": "byzantine-round=1@0-14:1", "rounds": 16},
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
        "left-behind-unnoticed",
        "early messages of neighbours that are far ahead do not lead a node on",
        ("dpsgd", "sgp"),
        (Edit(SYNCHRONOUS + "_left_behind", "Call min", "None"),),
        {"faults": "all,split"},
        unseen=(
            "A node far behind is offered the neighbours' model when it says hello, or plays its rounds one by one, faster than "
            "those who wait for it."
        ),
        seen_by=("tests/gossip/test_dpsgd_membership.py::test_a_node_left_behind_goes_on_in_its_neighbours_round",),
    ),
    Mutant(
        "left-behind-for-good",
        "a node that was left behind is neither led on by early messages nor by claims",
        ("dpsgd", "choco-sgd"),
        (
            Edit(SYNCHRONOUS + "_left_behind", "Call min", "None"),
            Edit(SYNCHRONOUS + "_claim", "test _lead", "True"),
        ),
        {"faults": "all,empty-disk,pause"},
    ),
    Mutant(
        "round-goes-back",
        "a neighbour's model is taken over whatever its round",
        ("dpsgd:max_ahead=1", "choco-sgd:max_ahead=1", "sgp:max_ahead=1"),
        (
            Edit(SYNCHRONOUS + "_claim", "test _ahead", "False"),
            Edit(SYNCHRONOUS + "_skip_to", "Call _enter", "$0($1, min($2, $1.round - 1), $3)"),
        ),
        {"faults": "all,empty-disk=2,delay=3", "rounds": 16},
    ),
    Mutant(
        "late-claim-believed",
        "a model that was far ahead when it was sent is taken over, though the node has caught up meanwhile",
        ("dpsgd:max_ahead=1", "choco-sgd:max_ahead=1"),
        (Edit(SYNCHRONOUS + "_claim", "test _ahead", "False"),),
        {"faults": "all,empty-disk=2,delay=3", "rounds": 16},
    ),
    Mutant(
        "returning-node-not-told",
        "a neighbour that came back does not get the message of the round in progress",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "membership", "Call _send", "($1, [])"),),
        {"faults": "all,flapping"},
        unseen=(
            "It costs the one that came back a deadline, and no more: a neighbour that is up and silent is left out as always."
        ),
        seen_by=(
            "tests/gossip/test_dpsgd_membership.py::test_who_comes_back_gets_the_message_of_the_round_and_is_waited_for",
        ),
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
        "update-lost-on-catching-up",
        "an update that waits to be mixed is dropped when the node goes on in a later round",
        ("dpsgd", "choco-sgd"),
        (Edit("edgegossip.gossip.symmetric:Symmetric.abandon", "IfExp", "$1"),),
        {"faults": "all,crash,split"},
        unseen=(
            "One update of one node, in a round in which others left it out: no sum is known there that it would change."
        ),
        seen_by=("tests/gossip/test_dpsgd_membership.py::test_a_node_left_behind_goes_on_in_its_neighbours_round",),
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
        "deadline-doubled",
        "a round waits twice as long as it should",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "step", "Call SetTimer", "$0(2 * $1)"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "deadline-halved",
        "a neighbour is given up before its time is over",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "step", "Call SetTimer", "$0($1 / 2)"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "claims-forgotten",
        "who offered its model in an earlier round has to offer it again, which nobody asks it for",
        ("dpsgd", "sgp", "dpsgd+heavy-ball"),
        (Edit(SYNCHRONOUS + "_enter", "DictComp claims", "{}"),),
        {"topology": "ring", "nodes": 6, "rounds": 40, "deadline_s": 30.0, "faults": "crash@5-20:1"},
    ),
    Mutant(
        "led-as-with-nothing",
        "a node with a model is led as soon as one with nothing",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "_ahead", "IfExp", "$1"),),
        {"faults": "all,pause"},
    ),
    Mutant(
        "claims-of-an-earlier-round",
        "who offered its model in an earlier round counts, however near it is by now",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "_enter", "Compare", "True"),),
        {"topology": "complete", "faults": "newcomer=2,loss=0.5@8-16", "nodes": 5},
    ),
    Mutant(
        "another-neighbour-blamed",
        "all neighbours are said to be silent, those that were heard as well",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "tick", "ListComp Suspect", "[$0 for j in s.ctx.awaited]"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "never-heard",
        "a neighbour is left out of every mixing, once the quorum is there without it",
        ("dpsgd:quorum=0.5",),
        (Edit(SYNCHRONOUS + "_finish", "Compare refused", "$0 != min(s.ctx.neighbours.in_)"),),
        {"topology": "complete"},
    ),
)
