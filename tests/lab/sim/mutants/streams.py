"""Mutants of the streams: sequence numbers, sessions, full states, incarnations, checkpoints."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

SYNCHRONOUS = "edgegossip.gossip.rounds:Synchronous."
PUSH = "edgegossip.gossip.push:Push."
PUSH_SUM = ("sgp", "sparse-push", "quant-sgp")
REPLICAS = ("choco-sgd", "quant-sgp", "bagua-lp")

MUTANTS = (
    Mutant(
        "stream-duplicate-accepted",
        "a message of a stream that comes twice is taken in twice",
        ("choco-sgd", "sgp", "parallel-sgd"),
        (
            Edit(SYNCHRONOUS + "_receive_next", "test position 0", "False"),
            Edit(SYNCHRONOUS + "_receive_next", "Compare position 1", "$0 <= $1"),
        ),
        {"faults": "all,duplication=0.5"},
    ),
    Mutant(
        "gap-unnoticed",
        "no new session is opened when a message is missing",
        ("choco-sgd", "sgp", "parallel-sgd"),
        (Edit(SYNCHRONOUS + "_gap_before", "Call any", "False and $"),),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "hello-not-repeated",
        "a session that was asked for once is not asked for again",
        ("choco-sgd", "sgp"),
        (Edit(SYNCHRONOUS + "_reminders", "test opening", "False"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "owed-state-forgotten",
        "a session that is opened after a round's last answer gets no full state in the next round either",
        PUSH_SUM,
        (Edit(SYNCHRONOUS + "_enter", "stmt _send_owed_states", "states = []"),),
        {"faults": "replay=0.3,duplication=0.6,empty-disk=3", "rounds": 4, "deadline_s": 4.0},
    ),
    Mutant(
        "full-state-ignored",
        "a full state moves the numbers on, and its vectors are not looked at",
        (*REPLICAS, "sgp"),
        (Edit(SYNCHRONOUS + "_take_full", "Call scheme", "$1"),),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "full-replica-added",
        "a full replica is added to the old one, as a difference",
        ("choco-sgd",),
        (Edit("edgegossip.gossip.symmetric:Symmetric.adopt", "Dict", "{**$1, $0: $2 + $1.get($0, 0)}"),),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "full-state-of-old-parts",
        "parts of full states of different positions are put together",
        ("sgp", "quant-sgp"),
        (Edit(SYNCHRONOUS + "_receive_state", "test parts_of", "True"),),
        {"faults": "all,reorder=0.6,loss=0.4"},
    ),
    Mutant(
        "low-part-dropped",
        "of a total in a full state only the upper float32 part is used",
        PUSH_SUM,
        (Edit(PUSH + "adopt", "BinOp float64", "$0"),),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "unlike-start-unnoticed",
        "a receiver that started from another model begins with its own start as the replica",
        ("choco-sgd", "quant-sgp"),
        (
            Edit(SYNCHRONOUS + "_starts_alike", "BoolOp fingerprint", "$0"),
            Edit(SYNCHRONOUS + "_session_opened", "Compare fingerprint", "True"),
        ),
    ),
    Mutant(
        "adoption-tells-nobody",
        "after another model was taken over, receivers are not asked to get the new public copy",
        ("choco-sgd", "quant-sgp"),
        (Edit(SYNCHRONOUS + "_break_streams", "UnaryOp", "True"),),
        {"faults": "all,empty-disk"},
    ),
    Mutant(
        "restart-keeps-sessions",
        "a sender that went back to an older checkpoint goes on in the old sessions",
        (*REPLICAS, "sgp"),
        (
            Edit(SYNCHRONOUS + "resume", "Call answers", "$1"),
            Edit(SYNCHRONOUS + "_receive_next", "test session", "$0"),
        ),
        {"faults": "all,old-checkpoint"},
    ),
    Mutant(
        "torn-checkpoint",
        "a checkpoint has the new mass and the totals of the checkpoint before",
        PUSH_SUM,
        (
            Edit(
                "lab.sim.disk:Disk.write",
                "stmt append",
                """import dataclasses
old = next((f for f in reversed(self.files) if f), saved).state.math
torn = dataclasses.replace(saved.state.math, sent=old.sent, seen=old.seen)
saved = Saved(dataclasses.replace(saved.state, math=torn), saved.round, saved.notes)
$""",
            ),
        ),
        {"faults": "all,crash"},
    ),
)
