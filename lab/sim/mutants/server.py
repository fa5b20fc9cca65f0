"""Mutants of server runs: rounds and their ends, who is there, what is believed, resume, the way
down."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

ENGINE = "edgegossip.engine.server:ServerEngine."
TRAINING = "edgegossip.engine.server_training:Training."
AGREEMENTS = "edgegossip.engine.server_boards:Agreements."
BOARDS = "edgegossip.engine.server_boards:Boards."
PLAUSIBLE = "edgegossip.engine.plausible:"
MEAN = "edgegossip.engine.combine:Mean."
CONTROL = "edgegossip.engine.combine:WithControl."
CONTROLS = "edgegossip.engine.scaffold:ControlVariates."
FRAMES = "edgegossip.engine.server_frames:"
EVALUATIONS = "edgegossip.engine.server_evaluations:"
RECORDS = "edgegossip.engine.server_records:"
GOSSIP = ()  # algorithms that these concern: none


def options(faults: str = "all", server: str = "", **more: object) -> dict[str, object]:
    """Return where a mutant is looked for."""
    return {"mode": "server", "faults": faults, **({"server": server} if server else {}), **more}


MUTANTS = (
    Mutant(
        "server-late-answer-used",
        "an answer whose round is over is taken for one of this round",
        GOSSIP,
        (Edit(ENGINE + "_answered", "test numbers", "$0"),),
        options("slow,slow", "deadline_s=2"),
    ),
    Mutant(
        "server-answer-stays-open",
        "an answer does not close its question, so that it counts again when it comes twice",
        GOSSIP,
        (Edit(ENGINE + "_answered", "stmt close", "pass"),),
        options("duplication=0.5"),
    ),
    Mutant(
        "server-update-counts-twice",
        "the last update of a round is part of the mean twice",
        GOSSIP,
        (Edit(TRAINING + "_combine", "Call _combiner", "$0($1, $2, [*$3, $3[-1]])"),),
        options("none"),
    ),
    Mutant(
        "server-model-overflows",
        "the model of a round is more than float32 holds",
        GOSSIP,
        (Edit(TRAINING + "_combine", "stmt model _empty_rounds", "$\nself.model = self.model * float('inf')"),),
        options("none"),
    ),
    Mutant(
        "server-quorum-off-by-one",
        "a round ends with one answer fewer than the quorum",
        GOSSIP,
        (Edit(ENGINE + "_waiting_for_answers", "Compare answers", "$0 >= $1 - 1"),),
        options("all", "quorum=3"),
    ),
    Mutant(
        "server-quorum-one-too-many",
        "a round waits for one answer more than the quorum",
        GOSSIP,
        (Edit(ENGINE + "_waiting_for_answers", "Compare answers", "$0 > $1"),),
        options("all", "quorum=2"),
    ),
    Mutant(
        "server-deadline-never-passes",
        "a round waits for boards that hang",
        GOSSIP,
        (Edit(ENGINE + "_waiting_for_answers", "test since_s", "False"),),
        options("hang=2"),
    ),
    Mutant(
        "server-lateness-costs-nothing",
        "who lets one deadline after the other pass is waited for as ever",
        GOSSIP,
        (Edit(BOARDS + "missed", "stmt miss", "pass"),),
        options("hang=3", "deadline_s=1", rounds=12),
    ),
    Mutant(
        "server-late-once-late-for-ever",
        "who let deadlines pass is not waited for again, though it is in time",
        GOSSIP,
        (Edit(BOARDS + "answered", "stmt pop", "pass"),),
        options("hang=3", "deadline_s=1", rounds=12),
    ),
    Mutant(
        "server-first-late-answer-ends-it",
        "where nobody was in time, the round ends with the first answer and the others have no deadline more",
        GOSSIP,
        (Edit(ENGINE + "_waiting_for_answers", "stmt deadline_s _waited_s", "return asking.then()"),),
        options("slow=4", "deadline_s=0.3", nodes=3),
    ),
    Mutant(
        "server-min-nodes-ignored",
        "a round begins with one board, however many there must be",
        GOSSIP,
        (Edit(ENGINE + "_waiting_for_boards", "Attribute least", "1"),),
        options("crash=2,pause", "min_nodes=4,return_s=120"),
    ),
    Mutant(
        "server-busy-boards-asked",
        "boards that owe an answer are asked for the next round as well",
        GOSSIP,
        (Edit(BOARDS + "idle", "test", "m.up"),),
        options("hang=2,slow"),
    ),
    Mutant(
        "server-lost-board-waited-for",
        "questions to a board that is gone stay open",
        GOSSIP,
        (Edit(ENGINE + "_down", "stmt _forget", "pass"),),
        options("crash=3"),
    ),
    Mutant(
        "server-silence-unnoticed",
        "a board that gives no sign of life is not taken for gone",
        GOSSIP,
        (Edit(BOARDS + "observe", "Name SILENT_S 0", "99 * $"),),
        options("crash=2,pause,split", "notices=silence"),
    ),
    Mutant(
        "server-process-end-forgotten",
        "a board whose process has ended is taken for back while the transport still sees it",
        GOSSIP,
        (Edit(BOARDS + "ended", "stmt _ignored", "pass"),),
        options("crash=3", "notices=launcher"),
    ),
    Mutant(
        "server-replaced-process-waited-for",
        "what the process before was asked stays open when another takes its place",
        GOSSIP,
        (Edit(ENGINE + "_joined", "stmt address", "pass"),),
        options("crash=4", "notices=silence"),
    ),
    Mutant(
        "server-greeted-once",
        "a greeting that is lost is not made again",
        GOSSIP,
        (Edit("edgegossip.engine.server:_next_hello_s", "IfExp", "math.inf if $0 else $2"),),
        options("loss=0.4", "min_nodes=4,return_s=120"),
    ),
    Mutant(
        "server-strangers-kept",
        "greetings of strangers that went away without an answer stay open",
        GOSSIP,
        (Edit(ENGINE + "_see", "BoolOp", "False"),),
        options("crash=3,loss=0.4", "notices=leave"),
    ),
    Mutant(
        "server-late-joiner-not-told",
        "a board that joins while the run ends hears nothing of it",
        GOSSIP,
        (Edit(ENGINE + "_joined", "test leaving", "False"),),
        options("stop,delay=2,late-join"),
    ),
    Mutant(
        "server-waits-for-all-to-join",
        "boards that never come are waited for",
        GOSSIP,
        (Edit(ENGINE + "_gathering", "UnaryOp", "True"),),
        options("leave", "join_s=3"),
    ),
    Mutant(
        "server-certificates-not-compared",
        "a board may join by the name of another",
        GOSSIP,
        (Edit(ENGINE + "_joined", "test certified", "False"),),
        options("byzantine-name", "certified=true"),
    ),
    Mutant(
        "server-goodbye-to-one",
        "only the first board hears that the run is over",
        GOSSIP,
        (Edit(ENGINE + "_say_goodbye", "Call _boards", "$[:1]"),),
        options("none"),
    ),
    Mutant(
        "server-never-gives-up",
        "an answer that never comes keeps its board busy for ever",
        GOSSIP,
        (Edit(ENGINE + "_give_up", "test _passed", "False"),),
        options("hang=3", "deadline_s=2,min_nodes=4"),
    ),
    Mutant(
        "server-repeats-a-round",
        "a coordinator that goes on plays the round before once more",
        GOSSIP,
        (Edit(TRAINING + "resume", "Attribute round 1", "max(0, $ - 1)"),),
        options("coordinator-kill=2"),
    ),
    Mutant(
        "server-resumes-without-momentum",
        "a coordinator that goes on has forgotten what its combiner knew",
        GOSSIP,
        (Edit(TRAINING + "resume", "stmt _combiner", "pass"),),
        options("coordinator-kill=2", "combiner=momentum"),
    ),
    Mutant(
        "server-control-by-one-rate",
        "all control variates of a round are made with one learning rate and number of steps",
        GOSSIP,
        (Edit(CONTROL + "combine", "IfExp 2", "median_high(rates) if $0 else 0.0"),),
        options("none", "combiner=scaffold"),
    ),
    Mutant(
        "server-control-of-the-refused",
        "an update that was refused moves its board's control variate all the same",
        GOSSIP,
        (Edit(CONTROL + "combine", "Call refused", "list($1)"),),
        options("byzantine-huge=3", "combiner=scaffold", codec="fp32"),
    ),
    Mutant(
        "server-correction-of-anybody",
        "every board is sent the mean control variate, with its own in it",
        GOSSIP,
        (Edit(TRAINING + "_frames", "Call correction", "$0('')"),),
        options("none", "combiner=scaffold"),
    ),
    Mutant(
        "server-correction-as-meant",
        "a control variate is made with the correction that was meant, not with what the way down left of it",
        GOSSIP,
        (Edit(TRAINING + "_checked", "Call get", "None"),),
        options("none", "combiner=scaffold,downlink=elastiquant"),
    ),
    Mutant(
        "server-resumes-without-control",
        "a coordinator that goes on takes the mean of all control variates for zero",
        GOSSIP,
        (Edit(CONTROLS + "restore", "stmt _average", "pass"),),
        options("coordinator-kill=2", "combiner=scaffold"),
    ),
    Mutant(
        "server-resumes-without-levels",
        "a coordinator that goes on asks for as many levels as at the beginning",
        GOSSIP,
        (Edit(TRAINING + "resume", "stmt _levels", "pass"),),
        options("coordinator-kill=2", codec="elasticl"),
    ),
    Mutant(
        "server-resumes-without-reference",
        "a coordinator that goes on sends its own model in place of what boards were sent before",
        GOSSIP,
        (Edit(TRAINING + "resume", "stmt corrections", "pass"),),
        options("coordinator-kill=3", "downlink=qsgd:bits=8"),
    ),
    Mutant(
        "server-difference-to-anybody",
        "boards get the difference whether they hold the model before it or not",
        GOSSIP,
        (Edit(TRAINING + "_frames", "test _holds", "$0"),),
        options("crash=2,slow", "downlink=qsgd:bits=8"),
    ),
    Mutant(
        "server-difference-to-another-process",
        "a new process of a board is taken to hold what the one before held",
        GOSSIP,
        (Edit(TRAINING + "_frames", "Compare _holds", "self._holds.get(name, (0, -9))[1] == self.round - 1"),),
        options("crash=4,pause", "downlink=qsgd:bits=8,deadline_s=8"),
    ),
    Mutant(
        "server-reference-is-the-model",
        "the coordinator goes on from its own model, not from what boards made of the difference",
        GOSSIP,
        (
            Edit(
                FRAMES + "Downlink.publish", "stmt reference 5", "$0 = x.copy()\nself._round = round\nreturn difference"
            ),
        ),
        options("none", "downlink=fp16"),
    ),
    Mutant(
        "server-levels-of-one-board",
        "the first board alone decides on the number of levels",
        GOSSIP,
        (Edit(TRAINING + "_combine", "ListComp frame", "[$0 for share in shares[:1]]"),),
        options("none", codec="elasticl"),
    ),
    Mutant(
        "server-levels-a-round-late",
        "boards are asked for the levels of the round before",
        GOSSIP,
        (Edit(TRAINING + "_combine", "Call _levels", "self._levels if self.round % 2 else $"),),
        options("none", codec="elasticl"),
    ),
    Mutant(
        "server-update-of-any-round",
        "nobody looks of which round an update is",
        GOSSIP,
        (Edit(FRAMES + "Channel.check", "BoolOp", "False"),),
        options("byzantine-stale"),
    ),
    Mutant(
        "server-claims-believed",
        "nobody looks whether claims of examples, losses and rates make sense",
        GOSSIP,
        (Edit(PLAUSIBLE + "require_reported", "stmt check_reported", "pass"),),
        options("byzantine-claim", "weighting=uniform"),
    ),
    Mutant(
        "server-examples-unbounded",
        "a claim of examples counts, however large",
        GOSSIP,
        (Edit(PLAUSIBLE + "ExampleClaims.refused", "test 2", "False"),),
        options("byzantine-examples", "weighting=examples"),
    ),
    Mutant(
        "server-length-unbounded",
        "an update counts, however long",
        GOSSIP,
        (Edit(PLAUSIBLE + "NormFilter.refused", "BinOp LENGTH_RATIO", "1e+30"),),
        options("byzantine-huge", codec="fp32"),
    ),
    Mutant(
        "server-weight-of-the-refused",
        "the weight of an update that cannot be decoded is missing in the mean",
        GOSSIP,
        (Edit(MEAN + "_mean", "Compare", "False"),),
        options("byzantine-nan", "combiner=mean", codec="fp32"),
    ),
    Mutant(
        "server-uniform-by-examples",
        "updates are weighted by examples where all should count the same",
        GOSSIP,
        (Edit(MEAN + "_mean", "IfExp", "$2"),),
        options("none", "weighting=uniform"),
    ),
    Mutant(
        "server-quarantine-never-ends",
        "a board that was left out once is left out for good",
        GOSSIP,
        (Edit(PLAUSIBLE + "RoundQuarantine.reason", "Compare until", "not $0"),),
        options("byzantine-run=2", "min_nodes=1", rounds=12),
    ),
    Mutant(
        "server-quarantine-never-begins",
        "a board is asked however often it was refused",
        GOSSIP,
        (Edit(PLAUSIBLE + "RoundQuarantine.refused", "test", "False"),),
        options("byzantine-run=2", "min_nodes=1"),
    ),
    Mutant(
        "server-evaluation-believed",
        "an evaluation counts, however wild",
        GOSSIP,
        (Edit(EVALUATIONS + "Evaluations.checked", "test makes_sense", "False"),),
        options("byzantine-evaluation", "every=1,evaluates=boards"),
    ),
    Mutant(
        "server-no-final-evaluation",
        "nobody evaluates the final model, and nothing is said of it",
        GOSSIP,
        (Edit(ENGINE + "_handing_over", "stmt 4", "return self._complete()\n$"),),
        options("none"),
    ),
    Mutant(
        "server-round-not-saved",
        "a round is not saved when it ends",
        GOSSIP,
        (Edit(ENGINE + "_round_answered", "stmt agreement", "pass"),),
        options("none"),
    ),
    Mutant(
        "server-refused-said-to-be-used",
        "boards whose update could not be decoded are said to be part of the model",
        GOSSIP,
        (Edit(TRAINING + "_combine", "ListComp refused", "list(shares)"),),
        options("byzantine-nan", codec="fp32"),
    ),
    Mutant(
        "server-answer-of-nobody",
        "an answer that comes twice is looked up as if it were the first",
        GOSSIP,
        (Edit(ENGINE + "_answered", "test 0", "number < 0"),),
        options("duplication=0.5"),
    ),
    Mutant(
        "server-fails-at-once",
        "boards that are away for a moment are not waited for",
        GOSSIP,
        (Edit(BOARDS + "check", "Name 23", "0"),),
        options("pause=2,split", "min_nodes=4,return_s=120,notices=silence"),
    ),
    Mutant(
        "server-record-lost",
        "the record of a board that waits for a profile is dropped when the next one comes",
        GOSSIP,
        (Edit(RECORDS + "BoardRecords.used", "stmt _write", "pass"),),
        options("all", "records=true"),
    ),
    Mutant(
        "server-agreements-not-compared",
        "a board joins whatever it has, as long as the coordinator does not know better",
        GOSSIP,
        (Edit(ENGINE + "_disagreement", "stmt _agreements", "pass"),),
        options("other-labels@1-6:1"),
    ),
    Mutant(
        "server-own-word-counts",
        "a board that comes again with the right data is refused for what it said before",
        GOSSIP,
        (Edit(AGREEMENTS + "take", "BoolOp", "$1"),),
        options("other-labels@0-2:1,late-join@0-4:0", nodes=2),
    ),
    Mutant(
        "server-unfit-not-told",
        "a board that is refused for its data hears nothing of it",
        GOSSIP,
        (Edit(ENGINE + "_joined", "stmt failed 2", "pass"),),
        options("other-labels@1-6:1"),
    ),
    Mutant(
        "server-agreement-forgotten",
        "a coordinator that goes on does not know any more what its boards had alike",
        GOSSIP,
        (Edit(AGREEMENTS + "resume", "stmt _said", "pass"),),
        options("other-labels@1-30:1,coordinator-kill=3"),
    ),
    Mutant(
        "server-problem-overlooked",
        "a board joins that has said why it cannot take part",
        GOSSIP,
        (Edit(ENGINE + "_joined", "test problem", "False"),),
        options("other-layout@1-6:1"),
    ),
    Mutant(
        "server-greets-without-end",
        "a board that does not answer is greeted as often as ever",
        GOSSIP,
        (Edit("edgegossip.engine.server:_next_hello_s", "BinOp HELLO_S", "$0"),),
        options("loss=0.9@0-150", "min_nodes=4,return_s=120,join_s=120", rounds=6),
    ),
    Mutant(
        "server-gives-up-as-soon-again",
        "a board whose answer was given up gets no more time for the next one",
        GOSSIP,
        (Edit(ENGINE + "_give_up", "BinOp MOST_OVERDUE", "1"),),
        options("hang=3,hang=1@0-200:0", "deadline_s=1,quorum=1", rounds=12),
    ),
    Mutant(
        "server-back-off-ends",
        "a board whose answers were given up twice gets no more time for the next ones",
        GOSSIP,
        (Edit(ENGINE + "_give_up", "BinOp MOST_OVERDUE", "$0 ** min($1, 1)"),),
        options("hang=1@0-200:0", "deadline_s=0.3,quorum=1", rounds=60),
    ),
    Mutant(
        "server-asks-the-first",
        "of the boards that are idle always the first are asked",
        GOSSIP,
        (Edit("edgegossip.engine.server_boards:sample", "Call sorted", "range(count)"),),
        options("none", "fraction=0.5", nodes=10, rounds=10),
    ),
    Mutant(
        "server-asks-the-middle",
        "of the boards that are idle always those in the middle are asked",
        GOSSIP,
        (Edit("edgegossip.engine.server_boards:sample", "Call sorted", "range(count // 2, count // 2 + count)"),),
        options("none", "fraction=0.5", nodes=10, rounds=10),
    ),
    Mutant(
        "server-first-board-evaluates",
        "always the first board of a round is asked to evaluate",
        GOSSIP,
        (Edit(EVALUATIONS + "Evaluations.next_board", "BinOp len", "0"),),
        options("none", "every=1,evaluates=boards", nodes=8, rounds=30),
    ),
)
