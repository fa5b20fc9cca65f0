"""Mutants of the streams: sequence numbers, sessions, full states, incarnations, checkpoints."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

SYNCHRONOUS = "edgegossip.gossip.rounds:Synchronous."
SESSIONS = "edgegossip.gossip.sessions:Sessions."
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
        "stale-session-accepted",
        "messages of a session that is over count",
        ("choco-sgd", "sgp", "quant-sgp"),
        (Edit(SYNCHRONOUS + "_receive_next", "test session", "edge.session"),),
        {"faults": "all,old-checkpoint,crash"},
    ),
    Mutant(
        "gap-ignored",
        "a message after a gap is taken in as if nothing was missing",
        ("choco-sgd", "sgp", "quant-sgp"),
        (Edit(SYNCHRONOUS + "_receive_next", "BoolOp position", "$1"),),
        {"faults": "all,loss=0.2"},
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
        (Edit(SESSIONS + "_reminders", "test opening", "False"),),
        {"faults": "all,loss=0.3"},
    ),
    Mutant(
        "owed-state-forgotten",
        "a session that is opened after a round's last answer gets no full state in the next round either",
        PUSH_SUM,
        (Edit(SYNCHRONOUS + "_enter", "stmt _send_owed_states", "states = []"),),
        {"faults": "replay=0.3,duplication=0.6,empty-disk=3,reorder=0.3", "rounds": 6, "deadline_s": 4.0},
    ),
    Mutant(
        "any-weight-of-a-full-state-believed",
        "a full state of push-sum may bring any weight",
        ("sgp", "sparse-push", "quant-sgp"),
        (Edit("edgegossip.gossip.push:Push.adopt", "test any", "False"),),
        {"faults": "all,byzantine-state=1,loss=0.3"},
    ),
    Mutant(
        "broken-stream-kept-quiet",
        "a sender whose streams broke neither asks its receivers to open them anew",
        ("choco-sgd", "sgp"),
        (Edit(SESSIONS + "_reminders", "test incarnations", "False"),),
        {"faults": "all,crash"},
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
        "full-total-added",
        "a full total is added whole, not what is new in it",
        PUSH_SUM,
        (Edit(PUSH + "adopt", "BinOp mass", "$0"),),
        {"faults": "all,loss=0.2"},
    ),
    Mutant(
        "full-state-twice",
        "a full state is taken in though its session is not asked for, or established already",
        ("choco-sgd", "sgp", "quant-sgp"),
        (Edit(SYNCHRONOUS + "_receive_state", "BoolOp is_behind", "False"),),
        {"faults": "all,duplication=0.5,reorder=0.5,loss=0.2"},
        unseen=(
            "Of a total only what is new is taken in, so twice is once; an older replica goes with its older number, so the next "
            "message shows a gap and the replica is asked for anew."
        ),
        seen_by=("tests/gossip/test_streams.py::test_a_full_state_that_comes_twice_or_late_counts_once",),
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
            Edit(SESSIONS + "_session_opened", "Compare fingerprint", "True"),
        ),
    ),
    Mutant(
        "adoption-tells-nobody",
        "after another model was taken over, receivers are not asked to get the new public copy",
        ("choco-sgd", "quant-sgp"),
        (Edit(SESSIONS + "_break_streams", "UnaryOp", "True"),),
        {"faults": "all,empty-disk"},
    ),
    Mutant(
        "numbers-go-on-by-one",
        "a stream that is broken before its first message looks as if that were still to come",
        ("bagua-lp:max_ahead=1",),
        (Edit(SESSIONS + "_break_streams", "Call advanced", "s.out_edge(k).closed()"),),
        {"faults": "late-join,delay=2", "rounds": 16},
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
        "session-numbers-repeat",
        "a process opens sessions with the numbers that the one before used",
        ("choco-sgd", "sgp"),
        (Edit("edgegossip.gossip.streams:session_id", "Attribute boot", "0"),),
        {"faults": "all,old-checkpoint,crash,delay=3"},
        unseen=(
            "A sender's messages go on in number and say its process: what is late of an earlier session of that number is "
            "older than the full state with which the present one began."
        ),
        seen_by=("tests/gossip/test_streams.py::test_a_message_of_a_session_that_is_over_changes_nothing",),
    ),
    Mutant(
        "retired-life-believed",
        "a late word of a process whose disk is gone counts",
        PUSH_SUM,
        (Edit(SESSIONS + "_session_opened", "test is_retired", "$0"),),
        {"faults": "all,empty-disk,delay=3,reorder=0.5"},
        unseen="A hello of the lost process must come after one of its successor; 150 schedules did not bring that about.",
        seen_by=("tests/gossip/test_streams.py::test_a_late_hello_of_a_life_that_is_over_is_not_believed",),
    ),
    Mutant(
        "seen-not-reset",
        "what came in of a neighbour's earlier life is set off against its new one",
        PUSH_SUM,
        (Edit(PUSH + "adopt", "test incarnation", "$0"),),
        {"faults": "all,empty-disk"},
        unseen=(
            "The books balance either way: what the lost life handed over is taken back instead of staying. A weight may be "
            "below zero for a while, as it may after every restart."
        ),
        seen_by=(
            "tests/gossip/test_streams.py::test_who_lost_its_disk_has_a_new_account_with_those_before_and_after_it",
        ),
    ),
    Mutant(
        "sent-not-reset",
        "what was handed to a neighbour's earlier life is handed to its new one as well",
        PUSH_SUM,
        (Edit(PUSH + "forget", "test", "True"),),
        {"faults": "all,empty-disk"},
        unseen=(
            "The books balance either way: the new life gets what the lost one had been handed, instead of nobody."
        ),
        seen_by=(
            "tests/gossip/test_streams.py::test_who_lost_its_disk_has_a_new_account_with_those_before_and_after_it",
        ),
    ),
    Mutant(
        "totals-lost-on-restart",
        "a restart forgets what was handed over",
        PUSH_SUM,
        (Edit(SYNCHRONOUS + "resume", "stmt check_same_run", "s = replace(s, math=replace(s.math, sent={}))"),),
        {"faults": "all,crash"},
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
    Mutant(
        "checkpoint-without-replicas",
        "a checkpoint has no replicas of the neighbours, and the numbers of those that it had",
        ("choco-sgd", "quant-sgp"),
        (Edit(SYNCHRONOUS + "resume", "stmt check_same_run", "s = replace(s, math=replace(s.math, copies={}))"),),
        {"faults": "all,crash"},
        unseen=("A process that starts opens all its streams anew, and the full states bring every replica."),
        seen_by=("tests/gossip/test_restart.py::test_a_clean_restart_changes_nothing",),
    ),
    Mutant(
        "checkpoint-without-error",
        "a checkpoint has no error memory",
        ("deep-squeeze", "sparse-push"),
        (
            Edit(
                SYNCHRONOUS + "resume",
                "stmt check_same_run",
                "s = replace(s, math=replace(s.math, memory=self.scheme.publisher.reset(s.math.memory, None)))",
            ),
        ),
        {"faults": "all,crash", "codec": "topk:ratio=0.25"},
        unseen=(
            "What is lost once is bounded, as the error is: means over time see it by e / T. Only the resumed state itself tells."
        ),
        seen_by=("tests/gossip/test_restart.py::test_a_clean_restart_changes_nothing",),
    ),
    Mutant(
        "own-stream-not-recovered",
        "a node of parallel-sgd that lost its disk does not take back what it said itself",
        ("parallel-sgd",),
        (Edit("edgegossip.gossip.parallel:Parallel.adopt", "Compare index", "True"),),
        {"faults": "empty-disk=2", "rounds": 12},
        unseen=(
            "Its neighbours then forget with it what it had said: all models agree, without updates that were on the lost disk. "
            "After such a loss no checker knows what the mean should be."
        ),
        seen_by=(
            "tests/gossip/test_streams_counts.py::test_a_board_that_a_liar_has_told_the_most_of_itself_is_not_refused",
        ),
    ),
)
