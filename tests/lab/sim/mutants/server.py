"""Mutants of server runs: rounds and their ends, who is there, what is believed, resume, the way
down."""

from __future__ import annotations

from tests.lab.sim.mutants.mutant import Edit, Mutant

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
        "server-update-counts-twice",
        "the last update of a round is part of the mean twice",
        GOSSIP,
        (Edit(TRAINING + "_combine", "Call _combiner", "$0($1, $2, [*$3, $3[-1]])"),),
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
        "server-control-by-one-rate",
        "all control variates of a round are made with one learning rate and number of steps",
        GOSSIP,
        (Edit(CONTROL + "combine", "IfExp 2", "median_high(rates) if $0 else 0.0"),),
        options("none", "combiner=scaffold"),
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
        "server-agreement-forgotten",
        "a coordinator that goes on does not know any more what its boards had alike",
        GOSSIP,
        (Edit(AGREEMENTS + "resume", "stmt _said", "pass"),),
        options("other-labels@1-30:1,coordinator-kill=3"),
    ),
    Mutant(
        "server-greets-without-end",
        "a board that does not answer is greeted as often as ever",
        GOSSIP,
        (Edit("edgegossip.engine.server:_next_hello_s", "BinOp HELLO_S", "$0"),),
        options("loss=0.9@0-150", "min_nodes=4,return_s=120,join_s=120", rounds=6),
    ),
    Mutant(
        "server-asks-the-first",
        "of the boards that are idle always the first are asked",
        GOSSIP,
        (Edit("edgegossip.engine.server_boards:sample", "Call sorted", "range(count)"),),
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
