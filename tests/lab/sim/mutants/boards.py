"""Mutants of the boards' engine: joining, frames that come early, newcomers, neighbours that are
gone, the end of the run."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

ENGINE = "edgegossip.engine.node:NodeEngine."
PEERS = "edgegossip.engine.joining:PeerStatus."
PENDING = "edgegossip.engine.joining:PendingFrames."
ROUNDS = ("dpsgd", "choco-sgd")  # that go by rounds: models, and streams of differences
NEVER_COMES = "late-join@0-3:2,leave@1-2:2"
FLOODED = "byzantine-flood=1@0-14:1,newcomer@1-9:2,loss=0.5@8-12"
FAR_BEHIND = (
    "leave@1-2:0,newcomer@1-9:2"  # its only sender does not wait for it; the other neighbour has to be given up
)
NO_MODEL = "leave@1-2:1,newcomer@1-9:2,loss=0.6@8-14"
ODD_ONE = "other-model@0-3:2"
ODD_LATER = "other-model@1.5-4:2"
ALL_LEAVE = "leave@1.5-2:0,empty-disk@1.8-2.4:1"  # of a star its centre; what is left is out of sight

MUTANTS = (
    Mutant(
        "dead-awaited-at-the-start",
        "a board waits to begin for a neighbour that was there and died",
        ROUNDS,
        (Edit(PEERS + "may_start", "BinOp _seen", "set()"),),
        {"faults": NEVER_COMES},
    ),
    Mutant(
        "run-taken-to-be-over",
        "a board that comes again ends when its neighbours have left, though the run goes on elsewhere",
        ROUNDS,
        (Edit(ENGINE + "_start_if_possible", "test restarted", "$0 and $1 and $2"),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "joins-in-silence",
        "a board says once for whom it waits to begin, and then no more",
        ROUNDS,
        (Edit(ENGINE + "_announce", "stmt _restart_announce_timer 1", "pass"),),
        {"nodes": 2, "faults": "late-join@0-14:1"},
    ),
    # -- frames that come early
    Mutant(
        "frames-before-the-model-lost",
        "what comes before a board's model is there is lost",
        ROUNDS,
        (Edit(ENGINE + "_hold_frame", "stmt _keep", "pass"),),
    ),
    Mutant(
        "frames-taken-in-twice",
        "what came before the model was there stays kept once it is taken in",
        ROUNDS,
        (Edit(ENGINE + "_loaded", "Call _receive", "($, self.pending.keep($1))"),),
    ),
    Mutant(
        "no-share-of-the-room",
        "one sender's early frames may take all the room",
        ROUNDS,
        (Edit(PENDING + "keep", "BoolOp share_bytes", "False"),),
        {"topology": "complete", "faults": FLOODED},
    ),
    # -- newcomers
    Mutant(
        "newcomer-led-on-without-a-model",
        "a newcomer takes messages of rounds far ahead in before anybody's model, and goes on there with its own",
        ("dpsgd", "sgp"),
        (Edit(ENGINE + "_receive", "test _is_far_ahead", "False"),),
        {"nodes": 3, "topology": "directed-ring", "faults": FAR_BEHIND},
    ),
    Mutant(
        "newcomer-waits-without-end",
        "a newcomer whose neighbour's model does not come waits for it for ever",
        ROUNDS,
        (Edit(ENGINE + "_begin_catch_up", "stmt _set_timer", "pass"),),
        {"nodes": 3, "topology": "complete", "faults": NO_MODEL},
    ),
    Mutant(
        "held-back-frames-lost",
        "what a newcomer held back is thrown away once its neighbour's model is there",
        ROUNDS,
        (Edit(ENGINE + "_end_catch_up", "stmt _receive", "pass"),),
        {"nodes": 3, "topology": "complete", "faults": "newcomer=2"},
    ),
    Mutant(
        "trains-alone-with-nothing",
        "a board that has nothing and nobody trains alone instead of waiting for a neighbour",
        ROUNDS,
        (Edit(ENGINE + "_begin_round", "BoolOp", "False"),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "gives-up-while-others-train",
        "a board that has nothing and nobody ends, though the run goes on elsewhere",
        ROUNDS,
        (Edit(ENGINE + "_wait_alone", "test all_left", "$1"),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "stale-update-used",
        "an update counts though its model was given up while it was computed",
        ("ad-psgd",),
        (Edit(ENGINE + "_step", "test _adopted", "False"),),
        {"nodes": 3, "topology": "complete", "faults": "newcomer=2"},
    ),
    # -- rounds and neighbours
    Mutant(
        "no-poll-between-rounds",
        "a board whose rounds end at once never looks whether anybody is back",
        ROUNDS,
        (Edit(ENGINE + "_round_ended", "Attribute _poll", "$0._begin_round"),),
        {"nodes": 3, "topology": "star", "faults": "split,crash=2"},
    ),
    Mutant(
        "deadline-not-heeded",
        "the deadline of a round passes and nothing happens",
        ROUNDS,
        (Edit(ENGINE + "_fired", "stmt algorithm", "pass"),),
        {"faults": "loss=0.5"},
    ),
    Mutant(
        "fits-nobody-and-begins",
        "a board begins though all its neighbours train something else",
        ROUNDS,
        (Edit(PEERS + "all_incompatible", "BoolOp", "False"),),
        {"faults": ODD_ONE},
    ),
    Mutant(
        "unfit-not-named",
        "a board gives a neighbour up that trains something else, and does not say so",
        ROUNDS,
        (Edit(ENGINE + "_log_if_incompatible", "stmt reason", "pass"),),
        {"faults": ODD_ONE},
    ),
    Mutant(
        "unfit-while-loading-forgotten",
        "a board begins though its last neighbour turned out to train something else while it loaded",
        ROUNDS,
        (Edit(ENGINE + "_polled", "test _fail_if_incompatible", "False"),),
        {"topology": "ring", "nodes": 3, "faults": "other-model@0.2-4:1+2"},
    ),
    Mutant(
        "fewer-go-on",
        "boards go on that are fewer than those that train something else",
        ROUNDS,
        (Edit(ENGINE + "_fail_if_incompatible", "test members", "$1"),),
        {"topology": "complete", "nodes": 5, "faults": "other-model@0-6:1+2"},
    ),
    Mutant(
        "unfit-stays-unfit",
        "a neighbour that comes again with what we train is not taken for one of ours",
        ROUNDS,
        (Edit(PEERS + "note", "stmt incompatible pop", "pass"),),
        {"topology": "ring", "nodes": 3, "faults": "other-model@0-0.2:1,other-model@0.3-6:2"},
    ),
    Mutant(
        "unfit-sent-to",
        "a board goes on sending to a neighbour that came again with something else",
        ROUNDS,
        (Edit(ENGINE + "_peer_changed", "BinOp down 0", "$0 - $1 if getattr(event, 'disagrees', False) else $"),),
        {"faults": ODD_LATER},
    ),
    Mutant(
        "refused-peer-counted",
        "a peer whose message was refused counts as there all the same",
        ROUNDS,
        (Edit(ENGINE + "_refuse", "stmt _set_down", "pass"),),
        {"faults": "byzantine-nan=0.3@0-4:1"},
    ),
    Mutant(
        "overlapping-frames-counted-twice",
        "a link's speed counts the time in which a frame waited for the one before it",
        ROUNDS,
        (Edit("edgegossip.engine.rates:Rates.arrived", "Call until_s", "$1"),),
        {"codec": "auto", "faults": "slow-link=2,loss=0.2"},
    ),
)
