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
    # -- joining
    Mutant(
        "others-that-train-not-heeded",
        "a board waits for a neighbour that was never there, though others train and wait for it",
        ROUNDS,
        (Edit(PEERS + "may_start", "run_is_on = others_train or (", "run_is_on = ("),),
        {"topology": "ring", "faults": NEVER_COMES},
    ),
    Mutant(
        "dead-awaited-at-the-start",
        "a board waits to begin for a neighbour that was there and died",
        ROUNDS,
        (Edit(PEERS + "may_start", "else self.down.keys() & self._seen", "else set()"),),
        {"faults": NEVER_COMES},
    ),
    Mutant(
        "dead-neighbourhood-awaited",
        "a board that comes again waits without end when all its neighbours are gone and the run goes on elsewhere",
        ROUNDS,
        (Edit(PEERS + "may_start", ">= self._patience.gone_s", "< 0.0"),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "run-taken-to-be-over",
        "a board that comes again ends when its neighbours have left, though the run goes on elsewhere",
        ROUNDS,
        (Edit(ENGINE + "_start_if_possible", " and self._remote.nobody", ""),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "down-forgotten-at-the-start",
        "a board begins without a neighbour and waits for it in its rounds all the same",
        ROUNDS,
        (Edit(ENGINE + "_loaded", "with_down(self.config.neighbours - self._peers.up)", "with_down(frozenset())"),),
        {"faults": NEVER_COMES},
    ),
    Mutant(
        "joins-in-silence",
        "a board says once for whom it waits to begin, and then no more",
        ROUNDS,
        (
            Edit(
                ENGINE + "_announce",
                "self._peers.who_is_missing(self._remote.training, self._now_s))\n        self._restart_announce_timer()",
                "self._peers.who_is_missing(self._remote.training, self._now_s))",
            ),
        ),
        {"nodes": 2, "faults": "late-join@0-14:1"},
    ),
    # -- frames that come early
    Mutant(
        "frames-before-the-model-lost",
        "what comes before a board's model is there is lost",
        ROUNDS,
        (Edit(ENGINE + "_hold_frame", "self._keep(event)", "pass"),),
    ),
    Mutant(
        "frames-taken-in-twice",
        "what came before the model was there stays kept once it is taken in",
        ROUNDS,
        (Edit(ENGINE + "_loaded", "self._receive(frame)", "self._receive(frame), self.pending.keep(frame)"),),
    ),
    Mutant(
        "no-share-of-the-room",
        "one sender's early frames may take all the room",
        ROUNDS,
        (Edit(PENDING + "keep", "(mine and mine + size > self.share_bytes)", "False"),),
        {"topology": "complete", "faults": FLOODED},
    ),
    Mutant(
        "room-without-bound",
        "early frames are kept however many they are",
        ROUNDS,
        (Edit(PENDING + "keep", "return False", "pass"),),
        {"topology": "complete", "faults": FLOODED},
    ),
    # -- newcomers
    Mutant(
        "newcomer-led-on-without-a-model",
        "a newcomer takes messages of rounds far ahead in before anybody's model, and goes on there with its own",
        ("dpsgd", "sgp"),
        (Edit(ENGINE + "_receive", "if self._catching_up and self._is_far_ahead(frame):", "if False:"),),
        {"nodes": 3, "topology": "directed-ring", "faults": FAR_BEHIND},
    ),
    Mutant(
        "newcomer-waits-without-end",
        "a newcomer whose neighbour's model does not come waits for it for ever",
        ROUNDS,
        (Edit(ENGINE + "_begin_catch_up", "self._set_timer(Timer.CATCH_UP, self._patience.catch_up_s)", "pass"),),
        {"nodes": 3, "topology": "complete", "faults": NO_MODEL},
    ),
    Mutant(
        "held-back-frames-lost",
        "what a newcomer held back is thrown away once its neighbour's model is there",
        ROUNDS,
        (Edit(ENGINE + "_end_catch_up", "self._receive(frame)", "pass"),),
        {"nodes": 3, "topology": "complete", "faults": "newcomer=2"},
    ),
    Mutant(
        "trains-alone-with-nothing",
        "a board that has nothing and nobody trains alone instead of waiting for a neighbour",
        ROUNDS,
        (
            Edit(
                ENGINE + "_begin_round",
                "elif self._needs_model and self.config.neighbours <= self.down:",
                "elif False:",
            ),
        ),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "gives-up-while-others-train",
        "a board that has nothing and nobody ends, though the run goes on elsewhere",
        ROUNDS,
        (Edit(ENGINE + "_wait_alone", "if not others and (", "if ("),),
        {"topology": "star", "faults": ALL_LEAVE},
    ),
    Mutant(
        "gives-up-at-once",
        "a board that has nothing ends in the moment in which its last neighbour is started again",
        ROUNDS,
        (Edit(ENGINE + "_wait_alone", "self._peers.all_left or left_s <= 0.0", "True"),),
        {"topology": "star", "faults": "empty-disk=2,crash=2"},
    ),
    Mutant(
        "stale-update-used",
        "an update counts though its model was given up while it was computed",
        ("ad-psgd",),
        (Edit(ENGINE + "_step", "if self._adopted:", "if False:"),),
        {"nodes": 3, "topology": "complete", "faults": "newcomer=2"},
    ),
    # -- rounds and neighbours
    Mutant(
        "no-poll-between-rounds",
        "a board whose rounds end at once never looks whether anybody is back",
        ROUNDS,
        (Edit(ENGINE + "_round_ended", "self._poll()", "self._begin_round()"),),
        {"nodes": 3, "topology": "star", "faults": "split,crash=2"},
    ),
    Mutant(
        "deadline-not-heeded",
        "the deadline of a round passes and nothing happens",
        ROUNDS,
        (Edit(ENGINE + "_fired", "self._advance(self.algorithm.tick(self.state, self._now_s))", "pass"),),
        {"faults": "loss=0.5"},
    ),
    Mutant(
        "refused-peer-listened-to",
        "after a bad frame of a peer its next ones are taken in",
        ROUNDS,
        (Edit(ENGINE + "_receive", "if sender in self._refused:", "if False:"),),
        {"faults": "byzantine-nan=0.3@0-4:1"},
    ),
    # -- neighbours that train something else
    Mutant(
        "unfit-awaited",
        "a board waits to begin for a neighbour that trains something else",
        ROUNDS,
        (Edit(PEERS + "may_start", "given_up | self.incompatible.keys()", "given_up"),),
        {"topology": "complete", "faults": "other-model@0-30:2"},
    ),
    Mutant(
        "fits-nobody-and-begins",
        "a board begins though all its neighbours train something else",
        ROUNDS,
        (Edit(PEERS + "all_incompatible", "bool(self._wanted) and self._wanted <= self.incompatible.keys()", "False"),),
        {"faults": ODD_ONE},
    ),
    Mutant(
        "one-unfit-neighbour-ends-it",
        "a board ends because one of its neighbours trains something else",
        ROUNDS,
        (
            Edit(PEERS + "all_incompatible", "self._wanted <= self.incompatible.keys()", "bool(self.incompatible)"),
            Edit(
                ENGINE + "_fail_if_incompatible",
                "peers.incompatible[peer] for peer in sorted(config.neighbours)",
                "peers.incompatible.values()",
            ),
        ),
        {"faults": ODD_ONE},
    ),
    Mutant(
        "unfit-not-named",
        "a board gives a neighbour up that trains something else, and does not say so",
        ROUNDS,
        (Edit(ENGINE + "_log_if_incompatible", 'self._log("disagrees", event.reason, peer=event.peer)', "pass"),),
        {"faults": ODD_ONE},
    ),
    Mutant(
        "unfit-while-loading-forgotten",
        "a board begins though its last neighbour turned out to train something else while it loaded",
        ROUNDS,
        (Edit(ENGINE + "_polled", "if self._peers.incompatible and self._fail_if_incompatible():", "if False:"),),
        {"topology": "ring", "nodes": 3, "faults": "other-model@0.2-4:1+2"},
    ),
    Mutant(
        "fewer-go-on",
        "boards go on that are fewer than those that train something else",
        ROUNDS,
        (Edit(ENGINE + "_fail_if_incompatible", "elif more > 0 or (", "elif ("),),
        {"topology": "complete", "nodes": 5, "faults": "other-model@0-6:1+2"},
    ),
    Mutant(
        "both-halves-go-on",
        "of two halves that train different things both go on",
        ROUNDS,
        (Edit(ENGINE + "_fail_if_incompatible", "more == 0 and others[0] == config.members[0]", "False"),),
        {"topology": "complete", "nodes": 4, "faults": "other-model@0-6:1+2"},
    ),
    Mutant(
        "the-half-without-the-first-goes-on",
        "of two halves the one goes on that has not the first board",
        ROUNDS,
        (Edit(ENGINE + "_fail_if_incompatible", "others[0] == config.members[0]", "others[0] != config.members[0]"),),
        {"topology": "complete", "nodes": 4, "faults": "other-model@0-6:1+2"},
    ),
    Mutant(
        "unfit-stays-unfit",
        "a neighbour that comes again with what we train is not taken for one of ours",
        ROUNDS,
        (Edit(PEERS + "note", "self.incompatible.pop(peer, None)", "pass"),),
        {"topology": "ring", "nodes": 3, "faults": "other-model@0-0.2:1,other-model@0.3-6:2"},
    ),
    Mutant(
        "unfit-sent-to",
        "a board goes on sending to a neighbour that came again with something else",
        ROUNDS,
        (
            Edit(
                ENGINE + "_peer_changed",
                "self._set_down(self.down | {peer})",
                "self._set_down(self.down - {peer} if getattr(event, 'disagrees', False) else self.down | {peer})",
            ),
        ),
        {"faults": ODD_LATER},
    ),
    # -- the end of the run
    Mutant(
        "one-round-too-many",
        "a board plays one round more than the run has",
        ROUNDS,
        (Edit(ENGINE + "_begin_round", "if self.round >= self.rounds:", "if self.round > self.rounds:"),),
    ),
    Mutant(
        "last-round-not-played",
        "a board ends before the last round",
        ROUNDS,
        (Edit(ENGINE + "_begin_round", "if self.round >= self.rounds:", "if self.round >= self.rounds - 1:"),),
    ),
    Mutant(
        "last-round-not-told",
        "a board does not know that its last round is the last",
        ROUNDS,
        (Edit(ENGINE + "_round_ended", "self.round >= self.rounds", "self.round > self.rounds"),),
    ),
    Mutant(
        "last-round-refused",
        "messages of the run's last round are refused",
        ROUNDS,
        (Edit(ENGINE + "_receive", ">= self.rounds:", ">= self.rounds - 1:"),),
    ),
    Mutant(
        "greeting-after-the-last-round-refused",
        "greetings and models of a board that has done the last round are refused",
        ROUNDS,
        (Edit(ENGINE + "_receive", "frame.round - tells_next >=", "frame.round >="),),
    ),
    # -- what only a witness sees
    Mutant(
        "hello-taken-for-a-model",
        "a board that has nothing takes a greeting for somebody's model, and trains alone",
        ("choco-sgd", "sgp"),
        (Edit(ENGINE + "_receive", "if len(frame.body):", "if True:"),),
        {"nodes": 2, "faults": "empty-disk=2,crash=3,loss=0.4"},
    ),
    Mutant(
        "refused-peer-counted",
        "a peer whose message was refused counts as there all the same",
        ROUNDS,
        (Edit(ENGINE + "_refuse", "self._set_down(self.down | {sender})", "pass"),),
        {"faults": "byzantine-nan=0.3@0-4:1"},
    ),
    Mutant(
        "refused-peer-back",
        "a peer whose message was refused counts as there once the transport says that it is back",
        ROUNDS,
        (Edit(ENGINE + "_peer_changed", "elif peer not in self._refused:", "else:"),),
        {"nodes": 3, "topology": "complete", "faults": "byzantine-nan=0.5@0-6:1,flapping=0.5@0-6:0+1"},
    ),
)
