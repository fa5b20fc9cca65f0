"""Mutants of the pairwise exchanges of ad-psgd."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

ADPSGD = "edgegossip.gossip.adpsgd:"

MUTANTS = (
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
        "half-not-taken-back",
        "what was added for an exchange that the other gave up stays",
        ("ad-psgd",),
        (Edit(ADPSGD + "_take_back", "test", "False"),),
        {"faults": "loss=0.5,delay=3"},
    ),
    Mutant(
        "wrong-exchange-answered",
        "an answer of an earlier exchange ends the present one",
        ("ad-psgd",),
        (Edit(ADPSGD + "Begun.is_meant", "BoolOp", "$0"),),
        {"faults": "loss=0.3,delay=3,duplication=0.5"},
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
            Edit(ADPSGD + "AdPsgd.membership", "test", "True"),
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
)
