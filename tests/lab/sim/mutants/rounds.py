"""Mutants of the rounds: whom a round waits for, what it takes in, how a node gets on a level with
the others."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

SYNCHRONOUS = "edgegossip.gossip.rounds:Synchronous."
EARLY_MESSAGES = "edgegossip.gossip.streams:PendingMessages."

MUTANTS = (
    Mutant(
        "duplicate-accepted",
        "a message that comes twice is mixed twice",
        ("dpsgd", "deep-squeeze"),
        (
            Edit(
                SYNCHRONOUS + "_receive_single",
                "if frame.round == edge.round or (frame.round == s.round and sender in s.refused):",
                "if frame.round == s.round and sender in s.refused:",
            ),
        ),
        {"codec": "fp32", "faults": "duplication=0.5,delay=0.3"},
    ),
    Mutant(
        "late-message-mixed",
        "a message of a round that is over is mixed into the present one",
        ("dpsgd", "deep-squeeze"),
        (
            Edit(
                SYNCHRONOUS + "_receive_single",
                "if frame.round < max(s.round - self.staleness, edge.round):",
                "if frame.round < edge.round:",
            ),
        ),
        {"faults": "all,delay=3", "codec": "fp32"},
    ),
    Mutant(
        "early-message-mixed",
        "a message of a later round is mixed into the present one",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "_receive_single", "if frame.round > s.round:", "if False:"),),
    ),
    Mutant(
        "dead-neighbour-awaited",
        "a round waits for neighbours that are down",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit("edgegossip.gossip.scheme:RoundContext.at", "view.up(neighbours.in_)", "neighbours.in_"),),
        {"faults": "all,leave"},
    ),
    Mutant(
        "deadline-ignored",
        "the deadline of a round passes and nothing happens",
        ("dpsgd", "sgp"),
        (Edit(SYNCHRONOUS + "tick", "if not missing:", "if True:"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "deadline-not-set",
        "a round that has to wait sets no timer",
        ("dpsgd", "choco-sgd"),
        (Edit(SYNCHRONOUS + "step", "SetTimer(s.view.deadline_s), *actions]", "*actions]"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "linger-for-ever",
        "once the quorum is there, no shorter wait is set, and the long one is called off",
        ("dpsgd:quorum=0.5", "choco-sgd:quorum=0.5"),
        (Edit(SYNCHRONOUS + "_linger", "SetTimer(min(self.linger_s, s.view.deadline_s))", "SetTimer(None)"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "news-never-old",
        "with bounded staleness, news of any age is good enough and nobody is waited for",
        ("dpsgd:staleness=1",),
        (
            Edit(
                SYNCHRONOUS + "_silent",
                "in_.get((j, phase), NO_IN_EDGE).round < oldest",
                "in_.get((j, phase), NO_IN_EDGE).round < 0",
            ),
        ),
    ),
    Mutant(
        "left-behind-unnoticed",
        "early messages of neighbours that are far ahead do not lead a node on",
        ("dpsgd", "sgp"),
        (Edit(SYNCHRONOUS + "_left_behind", "return min(far) if", "return None if"),),
        {"faults": "all,split"},
        equivalent=(
            "A node far behind is offered the neighbours' model when it says hello, or plays its rounds one by one, faster than "
            "those who wait for it."
        ),
    ),
    Mutant(
        "left-behind-for-good",
        "a node that was left behind is neither led on by early messages nor by claims",
        ("dpsgd", "choco-sgd"),
        (
            Edit(SYNCHRONOUS + "_left_behind", "return min(far) if", "return None if"),
            Edit(SYNCHRONOUS + "_claim", "if 2 * sum(j in alive for j in s.claims) < len(alive):", "if True:"),
        ),
        {"faults": "all,empty-disk,pause"},
        equivalent=(
            "It plays its rounds one by one, for later messages tell that theirs were lost, while the others wait "
            "a deadline for it in each: it gets there, later."
        ),
    ),
    Mutant(
        "round-goes-back",
        "a neighbour's model is taken over whatever its round",
        ("dpsgd:max_ahead=1", "choco-sgd:max_ahead=1", "sgp:max_ahead=1"),
        (
            Edit(SYNCHRONOUS + "_claim", "if round <= s.round + self._ahead(s):", "if False:"),
            Edit(SYNCHRONOUS + "_skip_to", "target, math_)", "min(target, s.round), math_)"),
        ),
        {"faults": "all,empty-disk=2,delay=3", "rounds": 16},
    ),
    Mutant(
        "late-claim-believed",
        "a model that was far ahead when it was sent is taken over, though the node has caught up meanwhile",
        ("dpsgd:max_ahead=1", "choco-sgd:max_ahead=1"),
        (Edit(SYNCHRONOUS + "_claim", "if round <= s.round + self._ahead(s):", "if False:"),),
        {"faults": "all,empty-disk=2,delay=3", "rounds": 16},
    ),
    Mutant(
        "returning-node-not-told",
        "a neighbour that came back does not get the message of the round in progress",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "membership", "if j in back and j not in sent]", "if False]"),),
        {"faults": "all,flapping"},
        equivalent=(
            "It costs the one that came back a deadline, and no more: a neighbour that is up and silent is left out as always."
        ),
    ),
    Mutant(
        "membership-does-not-proceed",
        "a round whose last missing neighbour goes down is not ended",
        ("dpsgd", "choco-sgd"),
        (Edit(SYNCHRONOUS + "membership", "s, actions = self._proceed(s)", "actions = []"),),
        {"faults": "all,crash"},
    ),
    Mutant(
        "loss-not-noticed",
        "a message of a later round does not tell that this round's was lost",
        ("dpsgd", "choco-sgd"),
        (Edit(SYNCHRONOUS + "_all_lost", "if not self._lost(s, j):", "if True:"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "one-witness-leads",
        "one message of a far round is enough to go on there",
        ("dpsgd", "choco-sgd", "sgp"),
        (
            Edit(
                SYNCHRONOUS + "_borne_out",
                " or before <= limit - s.view.topology.period:\n        return None\n"
                "    return before if self._decodes(s, by_round[before]) and",
                ":\n    return None\nreturn last if",
            ),
        ),
        {"faults": "all,-byzantine-mutation,byzantine-far=1", "topology": "ring"},
    ),
    Mutant(
        "update-lost-on-catching-up",
        "an update that waits to be mixed is dropped when the node goes on in a later round",
        ("dpsgd", "choco-sgd"),
        (
            Edit(
                "edgegossip.gossip.symmetric:Symmetric.abandon",
                "x=m.x if m.base is None else m.base",
                "x=m.x",
            ),
        ),
        {"faults": "all,crash,split"},
        equivalent=(
            "One update of one node, in a round in which others left it out: no sum is known there that it would change."
        ),
    ),
    Mutant(
        "other-run-accepted",
        "messages of another run are taken in",
        ("dpsgd", "quant-sgp", "ad-psgd"),
        (Edit("edgegossip.frame:expect", "if message.run_id != run_id:", "if False:"),),
        {"faults": "all,byzantine-run"},
    ),
    Mutant(
        "implausible-values-accepted",
        "values a million times too large are averaged",
        ("dpsgd", "choco-sgd", "sgp", "ad-psgd"),
        (Edit("edgegossip.gossip.messages:disproportion", "squares(part) <= (limit / margin) ** 2:", "True:"),),
        {"faults": "all,byzantine-huge", "codec": "fp32"},
    ),
    Mutant(
        "nan-accepted",
        "values that are not numbers are averaged",
        ("dpsgd", "choco-sgd", "sgp", "ad-psgd"),
        (
            Edit(
                "edgegossip.codecs.floats:Float.decode",
                "if not half.decode(self.name, data, values, weight):",
                "if not half.decode(self.name, data, values, weight):\n    values[:] = np.nan\nif False:",
            ),
            Edit(
                "edgegossip.gossip.messages:disproportion",
                "not squares(part) <= (limit / margin) ** 2:",
                "squares(part) > (limit / margin) ** 2:",
            ),
        ),
        {"faults": "all,byzantine-nan=2", "codec": "fp32"},
    ),
    Mutant(
        "early-messages-unbounded",
        "all early messages of a sender are kept, not the newest few",
        ("dpsgd", "choco-sgd", "sgp", "parallel-sgd"),
        (Edit(EARLY_MESSAGES + "put", "[-max_frames:]", ""),),
        {"faults": "all,byzantine-flood"},
    ),
    Mutant(
        "early-bytes-unbounded",
        "early messages are kept whatever bytes they take",
        ("dpsgd:early_bytes=8000", "choco-sgd:early_bytes=8000"),
        (Edit("edgegossip.gossip.streams:_bytes_of", "sum(memoryview(f.body).nbytes for f in frames)", "0"),),
        {"faults": "byzantine-flood", "nodes": 2},
    ),
    Mutant(
        "deadline-doubled",
        "a round waits twice as long as it should",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "step", "SetTimer(s.view.deadline_s)", "SetTimer(2 * s.view.deadline_s)"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "deadline-halved",
        "a neighbour is given up before its time is over",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "step", "SetTimer(s.view.deadline_s)", "SetTimer(s.view.deadline_s / 2)"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "claims-of-an-earlier-round",
        "who offered its model in an earlier round counts among those who do now",
        ("dpsgd", "choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "_enter", "claims={},", "claims=s.claims,"),),
        {"topology": "complete", "faults": "newcomer=2,loss=0.5@8-16", "nodes": 5},
    ),
    Mutant(
        "another-neighbour-blamed",
        "all neighbours are said to be silent, those that were heard as well",
        ("dpsgd", "deep-squeeze"),
        (Edit(SYNCHRONOUS + "tick", "self._finish(s, missing,", "self._finish(s, s.ctx.awaited,"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "never-heard",
        "a neighbour is left out of every mixing, once the quorum is there without it",
        ("dpsgd:quorum=0.5",),
        (Edit(SYNCHRONOUS + "_finish", "if j not in s.refused and in_", "if j != min(s.ctx.neighbours.in_) and in_"),),
        {"topology": "complete"},
    ),
)
