"""Mutants of the pairwise exchanges of ad-psgd."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

ADPSGD = "edgegossip.gossip.adpsgd:"

MUTANTS = (
    Mutant(
        "request-averaged-twice",
        "a request that comes again is averaged again",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._asked", "if before is not None and frame.sequence == before.sequence:", "if False:"),),
        {"faults": "duplication=0.5,loss=0.2,delay=2"},
    ),
    Mutant(
        "answer-applied-twice",
        "an exchange stays open after its answer, and a second answer counts again",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._answered", "if k != j}", "if True}"),),
        {"faults": "duplication=0.5,loss=0.2,delay=2"},
    ),
    Mutant(
        "old-request-answered",
        "a request that is older than the last one is averaged",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._asked", "if before is not None and frame.sequence < before.sequence:", "if False:"),),
        {"faults": "duplication=0.5,loss=0.2,delay=2,reorder=0.5"},
    ),
    Mutant(
        "half-not-taken-back",
        "what was added for an exchange that the other gave up stays",
        ("ad-psgd",),
        (Edit(ADPSGD + "_take_back", "if t.change is not None and t.sequence > settled:", "if False:"),),
        {"faults": "loss=0.5,delay=3"},
    ),
    Mutant(
        "settled-half-taken-back",
        "what was added for an exchange that both have done is taken back",
        ("ad-psgd",),
        (Edit(ADPSGD + "_take_back", "t.sequence > settled", "t.sequence >= settled"),),
        {"faults": "loss=0.5"},
    ),
    Mutant(
        "whole-instead-of-half",
        "the initiator goes all the way to the peer's model",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._answered", "np.float32(self.eta / 2)", "np.float32(self.eta)"),),
    ),
    Mutant(
        "wrong-exchange-answered",
        "an answer of an earlier exchange ends the present one",
        ("ad-psgd",),
        (Edit(ADPSGD + "Begun.is_meant", "and frame.sequence == self.frame.sequence", ""),),
        {"faults": "loss=0.3,delay=3,duplication=0.5"},
    ),
    Mutant(
        "both-ask-both-swap",
        "two that ask each other both take part in the other's exchange",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._take", "if s.waiting == j and s.index < j:", "if False:"),),
        {"nodes": 2, "codec": "fp32"},
        equivalent=(
            "Two that swap keep the sum, and average in their other exchanges; only in lockstep would they swap for ever, and "
            "the simulator's nodes do not compute at the same speed."
        ),
    ),
    Mutant(
        "never-gives-up",
        "an exchange without answer is asked for again for ever",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd.tick", "if s.repeats < self.repeats:", "if True:"),),
        {"faults": "loss=1", "rounds": 30, "deadline_s": 2.0},
    ),
    Mutant(
        "dead-peer-awaited",
        "an exchange with a peer that went down is waited for",
        ("ad-psgd",),
        (
            Edit(
                ADPSGD + "AdPsgd.membership",
                "if s.waiting is None or view.members[s.waiting] not in view.down:",
                "if True:",
            ),
            Edit(ADPSGD + "AdPsgd.tick", "if s.repeats < self.repeats:", "if True:"),
        ),
        {"faults": "all,leave,crash"},
    ),
    Mutant(
        "update-lost-in-exchange",
        "the local update is made at the model as it was before the exchange",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd.step", "x=s.x + local.delta,", "x=s.x,"),),
        {"workload": "quadratic"},
    ),
    Mutant(
        "answer-to-another-process",
        "an answer to an exchange of an earlier process ends one of this one's",
        ("ad-psgd",),
        (Edit(ADPSGD + "Begun.is_meant", "return same_process and", "return"),),
        {"faults": "old-checkpoint=3,delay=3,replay=0.3", "nodes": 3},
    ),
    Mutant(
        "session-of-a-request-not-compared",
        "a request of another process is taken for the one that was answered",
        ("ad-psgd",),
        (Edit(ADPSGD + "_find", "if t.session == session", "if True"),),
        {"faults": "empty-disk=3,crash=2", "nodes": 3},
    ),
    Mutant(
        "the-first-is-asked",
        "always the first of those who are up is asked, not one at random",
        ("ad-psgd",),
        (Edit(ADPSGD + "AdPsgd._begin", "derive_key(s.view.seed, s.index, s.round, _PEER) % len(peers)", "0"),),
        {"topology": "complete"},
    ),
)
