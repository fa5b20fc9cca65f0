"""Mutants of the boards' engine: joining, frames that come early, newcomers, neighbours that are
gone, the end of the run."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

ENGINE = "edgegossip.engine.node:NodeEngine."
PEERS = "edgegossip.engine.joining:PeerStatus."
PENDING = "edgegossip.engine.joining:PendingFrames."
RATES = "edgegossip.engine.rates:Rates."
LATE_TO_ALL = "test_one_neighbour_that_acknowledges_late_silences_a_board_towards_nobody"
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

FRAMED = {"mode": "shell", "topology": "star", "faults": "byzantine-framing=0.5@5-20:1"}

MUTANTS = (
    # -- joining
    Mutant(
        "others-that-train-not-heeded",
        "a board waits for a neighbour that was never there, though others train and wait for it",
        ROUNDS,
        (Edit(PEERS + "may_start", "BoolOp gone_for_s 0", "$1"),),
        {"topology": "ring", "faults": NEVER_COMES},
        unseen="It begins some rounds later: once the others are far ahead, nobody is waited for (`_is_late`).",
        seen_by=("tests/engine/test_joining.py::test_a_board_starts_when_nobody_is_missing_who_is_worth_waiting_for",),
    ),
    Mutant(
        "dead-awaited-at-the-start",
        "a board waits to begin for a neighbour that was there and died",
        ROUNDS,
        (Edit(PEERS + "may_start", "BinOp _seen", "set()"),),
        {"faults": NEVER_COMES},
    ),
    Mutant(
        "dead-neighbourhood-awaited",
        "a board that comes again waits without end when all its neighbours are gone and the run goes on elsewhere",
        ROUNDS,
        (Edit(PEERS + "may_start", "Compare gone_for_s", "$0 < 0.0"),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "run-taken-to-be-over",
        "a board that comes again ends when its neighbours have left, though the run goes on elsewhere",
        ROUNDS,
        (Edit(ENGINE + "_start_if_possible", "test restarted", "$0 and $1 and $2"),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "down-forgotten-at-the-start",
        "a board begins without a neighbour and waits for it in its rounds all the same",
        ROUNDS,
        (Edit(ENGINE + "_loaded", "BinOp neighbours", "frozenset()"),),
        {"faults": NEVER_COMES},
        unseen="It costs two deadlines in all, as every neighbour may that never sends; what is mixed is the same.",
        seen_by=("tests/engine/test_node.py::test_a_newcomer_takes_over_a_neighbours_model_before_it_trains",),
    ),
    Mutant(
        "joins-in-silence",
        "a board says once for whom it waits to begin, and then no more",
        ROUNDS,
        (Edit(ENGINE + "_announce", "stmt _restart_announce_timer 1", "pass"),),
        {"nodes": 2, "faults": "late-join@0-14:1"},
    ),
    Mutant(
        "one-word-begins-a-run",
        "a board begins without most of its neighbours because one says that it is far on",
        ROUNDS,
        (Edit(PEERS + "_is_late", "Compare len 0", "False"),),
        {"topology": "complete", "faults": NEVER_COMES},
        unseen="Liars run the algorithm: this one, too, waits for all to come before it sends anything.",
        seen_by=(
            "tests/engine/test_joining.py::"
            "test_a_round_far_ahead_is_believed_of_two_and_where_half_of_the_neighbours_are_there",
        ),
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
    Mutant(
        "room-without-bound",
        "early frames are kept however many they are",
        ROUNDS,
        (Edit(PENDING + "keep", "stmt 3", "pass"),),
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
        "gives-up-at-once",
        "a board that has nothing ends in the moment in which its last neighbour is started again",
        ROUNDS,
        (Edit(ENGINE + "_wait_alone", "BoolOp", "True"),),
        {"topology": "star", "faults": "empty-disk=2,crash=2"},
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
        "refused-peer-listened-to",
        "after a bad frame of a peer its next ones are taken in",
        ROUNDS,
        (Edit(ENGINE + "_receive", "test _refused", "False"),),
        {"faults": "byzantine-run=0.3@0-4:1"},
    ),
    # -- neighbours that train something else
    Mutant(
        "unfit-awaited",
        "a board waits to begin for a neighbour that trains something else",
        ROUNDS,
        (Edit(PEERS + "may_start", "BinOp incompatible", "$0"),),
        {"topology": "complete", "faults": "other-model@0-30:2"},
    ),
    Mutant(
        "fits-nobody-and-begins",
        "a board begins though all its neighbours train something else",
        ROUNDS,
        (Edit(PEERS + "all_incompatible", "BoolOp", "False"),),
        {"faults": ODD_ONE},
    ),
    Mutant(
        "one-unfit-neighbour-ends-it",
        "a board ends because one of its neighbours trains something else",
        ROUNDS,
        (
            Edit(PEERS + "all_incompatible", "Compare", "bool(self.incompatible)"),
            Edit(ENGINE + "_fail_if_incompatible", "GeneratorExp", "peers.incompatible.values()"),
        ),
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
        "both-halves-go-on",
        "of two halves that train different things both go on",
        ROUNDS,
        (Edit(ENGINE + "_fail_if_incompatible", "BoolOp members", "False"),),
        {"topology": "complete", "nodes": 4, "faults": "other-model@0-6:1+2"},
    ),
    Mutant(
        "the-half-without-the-first-goes-on",
        "of two halves the one goes on that has not the first board",
        ROUNDS,
        (Edit(ENGINE + "_fail_if_incompatible", "Compare members", "$0 != $1"),),
        {"topology": "complete", "nodes": 4, "faults": "other-model@0-6:1+2"},
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
    # -- the end of the run
    Mutant(
        "one-round-too-many",
        "a board plays one round more than the run has",
        ROUNDS,
        (Edit(ENGINE + "_begin_round", "test rounds", "$0 > $1"),),
    ),
    Mutant(
        "last-round-not-played",
        "a board ends before the last round",
        ROUNDS,
        (Edit(ENGINE + "_begin_round", "Attribute rounds", "$ - 1"),),
    ),
    Mutant(
        "last-round-not-told",
        "a board does not know that its last round is the last",
        ROUNDS,
        (Edit(ENGINE + "_round_ended", "Compare rounds", "$0 > $1"),),
    ),
    Mutant(
        "last-round-refused",
        "messages of the run's last round are refused",
        ROUNDS,
        (Edit(ENGINE + "_receive", "test rounds", "$0 >= $1 - 1"),),
    ),
    Mutant(
        "greeting-after-the-last-round-refused",
        "greetings and models of a board that has done the last round are refused",
        ROUNDS,
        (Edit(ENGINE + "_receive", "BinOp", "$0"),),
    ),
    # -- what only a witness sees
    Mutant(
        "hello-taken-for-a-model",
        "a board that has nothing takes a greeting for somebody's model, and trains alone",
        ("choco-sgd", "sgp"),
        (Edit(ENGINE + "_receive", "test body", "True"),),
        {"nodes": 2, "faults": "empty-disk=2,crash=3,loss=0.4"},
    ),
    Mutant(
        "refused-peer-counted",
        "a peer whose message was refused counts as there all the same",
        ROUNDS,
        (Edit(ENGINE + "_refuse", "stmt _set_down", "pass"),),
        {"faults": "byzantine-run=0.3@0-4:1"},
    ),
    Mutant(
        "left-out-peer-counted",
        "a peer whose values were out of all proportion counts as there all the same",
        ROUNDS,
        (Edit(ENGINE + "_leave_out", "stmt _set_down", "pass"),),
        {"faults": "byzantine-huge=0.3@0-4:1"},
    ),
    Mutant(
        "left-out-peer-listened-to",
        "after values out of all proportion a peer's next ones are taken in, in the same round",
        ROUNDS,
        (Edit(ENGINE + "_receive", "test _quarantine", "False"),),
        {"faults": "byzantine-huge=0.3@0-6:1,byzantine-flood=1@0-6:1"},
    ),
    Mutant(
        "refused-peer-back",
        "a peer whose message was refused counts as there once the transport says that it is back",
        ROUNDS,
        (Edit(ENGINE + "_peer_changed", "test _refused", "True"),),
        {"nodes": 3, "topology": "complete", "faults": "byzantine-run=0.5@0-6:1,flapping=0.5@0-6:0+1"},
    ),
    Mutant(
        "overlapping-frames-counted-twice",
        "a link's speed counts the time in which a frame waited for the one before it",
        ROUNDS,
        (Edit(RATES + "arrived", "Call until_s", "$1"),),
        {"codec": "auto", "faults": "slow-link=2,loss=0.2"},
    ),
    Mutant(
        "one-late-neighbour-silences-a-board",
        "a link that is far slower than the others makes what all neighbours get say nothing",
        ROUNDS,
        (Edit(RATES + "plan", "Call _useful", "0.0"),),
        {"codec": "auto", "faults": "slow-link=2"},
        unseen="It costs rounds to an accuracy, and models of a few values have no least message that says nothing.",
        seen_by=("tests/engine/test_rates.py::" + LATE_TO_ALL,),
    ),
    Mutant(
        "rounds-late-is-not-slow",
        "a link on which frames arrive a round late is not taken for slow by itself, and takes all others' bytes",
        ROUNDS,
        (Edit(RATES + "arrived", "stmt slow 4", "pass"),),
        {"codec": "auto", "faults": "slow-link=2"},
        unseen="As above.",
        seen_by=("tests/engine/test_rates.py::test_one_that_acknowledges_rounds_later_takes_nobody_elses_bytes",),
    ),
    Mutant(
        "the-only-one-waited-for-without-bound",
        "a neighbour that is the only one and sends byte by byte is waited for ten deadlines in each round",
        ROUNDS,
        (Edit("edgegossip.node.gossip_node:GossipNode._still_arriving", "Call afford", "True"),),
        unseen="In the simulator a message comes whole.",
        seen_by=(
            "tests/node/test_gossip_node.py::"
            "test_a_neighbour_that_sends_byte_by_byte_holds_up_few_rounds_where_others_are_in_time",
        ),
    ),
    # -- whole boards, one of whom says of others that they are gone
    Mutant(
        "deaths-believed-by-hearsay",
        "a board takes a member for dead as soon as another says so",
        ("dpsgd",),
        (Edit("edgegossip.mesh.membership.detector:Detector._with_hearsay", "Compare DEAD", "False"),),
        FRAMED,
    ),
    Mutant(
        "word-of-members-above-the-connection",
        "a neighbour counts as gone because members say so, though its connection lives",
        ("dpsgd",),
        (Edit("edgegossip.node.members:NeighbourStatus.take", "BoolOp _link _up", "False"),),
        FRAMED,
        unseen="Members say nothing false of who is there: what others say makes them ask it first.",
        seen_by=("tests/node/test_members.py::test_who_is_busy_keeps_its_connection_and_is_not_down",),
    ),
)
