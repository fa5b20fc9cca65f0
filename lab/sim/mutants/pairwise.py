"""Mutants of the pairwise exchanges of ad-psgd."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

ADPSGD = "edgegossip.gossip.adpsgd:"

MUTANTS = (
    Mutant(
        "another-peer-blamed",
        "who is said not to answer is another than was asked",
        ("ad-psgd",),
        (
            Edit(
                ADPSGD + "AdPsgd.tick",
                "Call Suspect",
                "$0(s.view.members[(s.waiting + 1) % len(s.view.members)], $2, $3, $4, $5)",
            ),
        ),
        {"faults": "all,loss=0.3,crash=2"},
    ),
    Mutant(
        "kept-message-refused",
        "a message that came early is refused once its round has come",
        ("dpsgd", "choco-sgd"),
        (Edit("edgegossip.gossip.rounds:Synchronous._take_pending", "stmt take", "raise PeerError('no')"),),
        {"faults": "all,slow=2"},
    ),
    Mutant(
        "request-averaged-twice",
        "a request that comes again is averaged again",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._asked", "test sequence 1", "False"),),
        {"faults": "duplication=0.5,loss=0.2,delay=2"},
    ),
    Mutant(
        "answer-applied-twice",
        "an exchange stays open after its answer, and a second answer counts again",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._answered", "test 2", "True"),),
        {"faults": "duplication=0.5,loss=0.2,delay=2"},
    ),
    Mutant(
        "old-request-answered",
        "a request that is older than the last one is averaged",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._asked", "test sequence 0", "False"),),
        {"faults": "duplication=0.5,loss=0.2,delay=2,reorder=0.5"},
    ),
    Mutant(
        "half-not-taken-back",
        "what was added for an exchange that the other gave up stays",
        ("ad-psgd",),
        (Edit(ADPSGD + "_take_back", "test", "False"),),
        {"faults": "loss=0.5,delay=3"},
    ),
    Mutant(
        "settled-half-taken-back",
        "what was added for an exchange that both have done is taken back",
        ("ad-psgd",),
        (Edit(ADPSGD + "_take_back", "Compare sequence", "$0 >= $1"),),
        {"faults": "loss=0.5"},
    ),
    Mutant(
        "whole-instead-of-half",
        "the initiator goes all the way to the peer's model",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._answered", "BinOp eta", "$0"),),
    ),
    Mutant(
        "wrong-exchange-answered",
        "an answer of an earlier exchange ends the present one",
        ("ad-psgd",),
        (Edit(ADPSGD + "Begun.is_meant", "BoolOp", "$0"),),
        {"faults": "loss=0.3,delay=3,duplication=0.5"},
    ),
    Mutant(
        "both-ask-both-swap",
        "two that ask each other both take part in the other's exchange",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._take", "test waiting", "False"),),
        {"nodes": 2, "codec": "fp32"},
        unseen=(
            "Two that swap keep the sum, and average in their other exchanges; only in lockstep would they swap for ever, and "
            "the simulator's nodes do not compute at the same speed."
        ),
        seen_by=("tests/gossip/test_adpsgd.py::test_two_that_ask_each_other_average_once",),
    ),
    Mutant(
        "never-gives-up",
        "an exchange without answer is asked for again for ever",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd.tick", "test repeats", "True"),),
        {"faults": "loss=1", "rounds": 30, "deadline_s": 2.0},
    ),
    Mutant(
        "dead-peer-awaited",
        "an exchange with a peer that went down is waited for",
        ("ad-psgd",),
        (
            Edit(ADPSGD + "AdPsgd.membership", "test down", "True"),
            Edit(ADPSGD + "AdPsgd.tick", "test repeats", "True"),
        ),
        {"faults": "all,leave,crash"},
    ),
    Mutant(
        "update-lost-in-exchange",
        "the local update is made at the model as it was before the exchange",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd.step", "BinOp", "$0"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "answer-to-another-process",
        "an answer to an exchange of an earlier process ends one of this one's",
        ("ad-psgd",),
        (Edit(ADPSGD + "Begun.is_meant", "BoolOp", "$1"),),
        {"faults": "old-checkpoint=3,delay=3,replay=0.3", "nodes": 3},
    ),
    Mutant(
        "session-of-a-request-not-compared",
        "a request of another process is taken for the one that was answered",
        ("ad-psgd",),
        (Edit(ADPSGD + "_find", "test", "True"),),
        {"faults": "empty-disk=3,crash=2", "nodes": 3},
    ),
    Mutant(
        "the-first-is-asked",
        "always the first of those who are up is asked, not one at random",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._begin", "BinOp derive_key", "0"),),
        {"topology": "complete"},
    ),
    Mutant(
        "the-middle-is-asked",
        "always the one in the middle of those who are up is asked",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._begin", "BinOp derive_key", "$1 // 2"),),
        {"topology": "complete"},
    ),
)
