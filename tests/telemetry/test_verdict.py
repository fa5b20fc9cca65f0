"""What a run came to: on records whose story is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.gossip.robust import far_beyond
from edgegossip.report.progress import FleetLines
from edgegossip.report.table import run_table
from edgegossip.telemetry import evidence
from edgegossip.telemetry.evidence import Evidence, RunPlan
from edgegossip.telemetry.records import EventRecord, MetricsRecord
from edgegossip.telemetry.run_folder import RunFolder, read_run
from edgegossip.telemetry.summary import summarise, summarise_records
from edgegossip.untrusted import Refusal

BOARDS = ("a", "b", "c", "d")
RING = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
HEAD = {"run": "r", "mode": "gossip", "rounds_asked": 40}
RECIPE = {"training": {"lr": 0.1}, "gossip": {"algorithm": "dpsgd", "params": {}}, "codec": {"name": "fp32"}}
PARTITION = {"nodes": list(BOARDS), "classes": [str(k) for k in range(10)], "counts": [[10] * 10] * 4}
TOPOLOGY = {"members": list(BOARDS), "rounds": [{"edges": [list(e) for a, b in RING for e in ((a, b), (b, a))]}]}

Curve = Callable[[int], float]


def falls(step: int) -> float:
    return 2.3 * 0.9**step


def told(
    loss: Curve = falls,
    accuracy: Mapping[str, float] | float = 0.9,
    rounds: int = 40,
    test_loss: float | None = 0.3,
    links: Callable[[str, str, int], bool] = lambda a, b, step: True,
    mixed: Callable[[str, int], bool] = lambda node, step: True,
    events: Iterable[EventRecord] = (),
    recipe: Mapping[str, Any] = RECIPE,
    examples: int = 32,
    lost: Sequence[str] = (),
    r2: float | None = None,
    partition: Mapping[str, Any] | None = PARTITION,
    far: Callable[[str, int], Mapping[str, float]] = lambda node, step: {},
    codec_error: float = 0.0,
) -> list[tuple[str, bool, str]]:
    """Kind, ruin and sentence of what is said of such a run of four boards on a ring."""
    metrics = []
    for node in BOARDS:
        for step in range(rounds):
            values: dict[str, Any] = {"train/loss": loss(step), "train/examples": examples}
            values["codec/relative_error"] = codec_error
            values |= (
                {"gossip/consensus_distance": 0.1, "gossip/heard": 2} if mixed(node, step) else {"gossip/heard": 0}
            )
            values |= {f"far/{peer}": times for peer, times in far_beyond(far(node, step)).items()}
            for x, y in RING:
                for peer in {x, y} - {node} if node in (x, y) else ():
                    if links(node, peer, step):
                        values[f"link/{peer}_bytes"] = 100
            if step == rounds - 1:
                score = accuracy if isinstance(accuracy, float) else accuracy[node]
                scores = {"eval/accuracy": score} if r2 is None else {"eval/mae": 1.0, "eval/r2": r2}
                values |= {**scores, **({} if test_loss is None else {"eval/loss": test_loss, "eval/examples": 400})}
            metrics.append(MetricsRecord(node, step, float(step), values))
    ends = [EventRecord(n, 99.0, "lost" if n in lost else "finished", n) for n in BOARDS]
    document = summarise_records(HEAD, BOARDS, metrics, [*events, *ends], RunPlan.of(recipe, partition, TOPOLOGY))
    assert all(f["text"] and f["cure"] for f in document["verdict"])
    return [(f["kind"], f["ruin"], f"{f['text']}: {f['cure']}") for f in document["verdict"]]


def test_a_record_that_comes_late_is_no_round_more() -> None:
    """As that of an evaluation beside the rounds."""
    known = Evidence()
    for step, values in ((0, {"train/loss": 1.0}), (1, {"train/loss": 0.9}), (0, {"eval/accuracy": 0.5})):
        known.take(MetricsRecord("a", step, 1.0, values))
    assert known.boards["a"].rounds == 2


def test_nothing_is_said_of_a_run_that_trained() -> None:
    assert told() == []


def by_itself(**accuracy: float) -> list[EventRecord]:
    return [EventRecord(node, 98.0, "trained-alone", node, {"eval/accuracy": a}) for node, a in accuracy.items()]


def test_a_board_that_was_better_off_alone_is_named_with_both_scores() -> None:
    reached = {"a": 0.98, "b": 0.97, "c": 0.99, "d": 0.88}
    ((kind, ruin, text),) = told(accuracy=reached, events=by_itself(a=0.98, b=0.94, c=0.995, d=0.98))
    assert (kind, ruin) == ("worse", False)
    assert "1 of 4 boards" in text and "accuracy 88.00 % at d, 98.00 % by itself" in text and "model.keep" in text
    assert "it may be another board's data that harm these" in text
    assert told(accuracy=reached, events=by_itself(a=0.98, b=0.94, c=0.995, d=0.89)) == []  # a test set of 400


def test_boards_are_held_against_the_coordinators_model_where_they_have_no_test_set_of_their_own() -> None:
    metrics = [MetricsRecord("a", k, float(k), {"train/loss": falls(k)}) for k in range(40)]
    metrics.append(MetricsRecord("coordinator", 39, 40.0, {"eval/accuracy": 0.7, "eval/examples": 400}))
    events = [EventRecord("a", 99.0, "finished", "a"), *by_itself(a=0.9)]
    plan = RunPlan.of({"run": {"mode": "server"}}, PARTITION)
    document = summarise_records({**HEAD, "mode": "server"}, ("a",), metrics, events, plan)
    assert [f["kind"] for f in document["verdict"]] == ["worse"]


@pytest.mark.parametrize(("better", "kinds"), [("auto", []), ("lower", []), ("higher", ["worse"])])
def test_of_a_score_of_ones_own_the_recipe_says_what_is_worse(better: str, kinds: list[str]) -> None:
    metrics = [MetricsRecord("a", k, float(k), {"train/loss": falls(k), "eval/bleu": 10.0}) for k in range(40)]
    alone = EventRecord("a", 98.0, "trained-alone", "a", {"eval/bleu": 20.0})
    events = [EventRecord("a", 99.0, "finished", "a"), alone]
    plan = RunPlan.of({"run": {"mode": "gossip"}, "evaluation": {"better": better}})
    assert [f["kind"] for f in summarise_records(HEAD, ("a",), metrics, events, plan)["verdict"]] == kinds


@pytest.mark.parametrize(
    ("alone", "together", "kinds"),
    [(0.990, 0.956, ["worse"]), (0.990, 0.986, []), (0.9990, 0.9965, []), (0.5, 0.45, []), (0.5, 0.2, ["worse"])],
)
def test_an_r2_is_worse_by_what_it_leaves_unexplained(alone: float, together: float, kinds: list[str]) -> None:
    events = [EventRecord("a", 98.0, "trained-alone", "a", {"eval/r2": alone})]
    metrics = [MetricsRecord("a", k, float(k), {"train/loss": falls(k), "eval/r2": together}) for k in range(40)]
    events.append(EventRecord("a", 99.0, "finished", "a"))
    plan = RunPlan.of({"run": {"mode": "gossip"}})
    assert [f["kind"] for f in summarise_records(HEAD, ("a",), metrics, events, plan)["verdict"]] == kinds


@pytest.mark.parametrize(
    ("algorithm", "order", "named"),
    [("dpsgd", "adapt-with-combine", True), ("dpsgd", "auto", False), ("choco-sgd", "auto", False)],
)
def test_where_every_board_learnt_by_itself_the_exchange_is_blamed(algorithm: str, order: str, named: bool) -> None:
    """And neither the data nor the inputs' scale, with which it learnt."""
    recipe = RECIPE | {"run": {"script": "train.py"}, "gossip": {"algorithm": algorithm, "order": order}}
    events = by_itself(**dict.fromkeys(BOARDS, 0.9))
    for records in ({"loss": lambda k: 2.3 + 0.2 * k}, {"loss": lambda k: 2.3, "rounds": 12}):
        ruin, *_, worse = told(**records, accuracy=0.1, recipe=recipe, partition=None, events=events)
        assert ruin[1] and "each board learnt by itself: exchange after fewer steps" in ruin[2]
        assert worse[0] == "worse" and "4 of 4 boards were better off alone" in worse[2]
        for said in (ruin[2], worse[2]):
            assert ("gossip.order = adapt-then-combine" in said) is named
            assert "scale" not in said and "look at the data" not in said
    ruin, *_ = told(accuracy=0.1, recipe=recipe, partition=None, events=by_itself(a=0.9), r2=-0.1)
    assert "the inputs' scale" in ruin[2], "of one board nothing follows for all"


@pytest.mark.parametrize(
    ("name", "alone", "together", "tested", "kinds"),
    [
        ("f1", 0.98, 0.935, 50, []),
        ("f1", 0.98, 0.90, 5000, ["worse"]),
        ("mae", 0.010, 0.011, 400, []),
        ("mae", 0.010, 0.020, 400, ["worse"]),
        ("loss", 0.05, 0.055, 400, []),
        ("perplexity", 20.0, 26.0, 1000, ["worse"]),
    ],
)
def test_a_score_is_worse_by_more_than_its_test_set_explains(
    name: str, alone: float, together: float, tested: int, kinds: list[str]
) -> None:
    scores = {f"eval/{name}": together, "eval/examples": tested}
    metrics = [MetricsRecord("a", k, float(k), {"train/loss": falls(k), **scores}) for k in range(40)]
    events = [EventRecord("a", 98.0, "trained-alone", "a", {f"eval/{name}": alone})]
    events.append(EventRecord("a", 99.0, "finished", "a"))
    better = "lower" if name == "perplexity" else "higher" if name == "f1" else "auto"
    plan = RunPlan.of({"run": {"mode": "gossip"}, "evaluation": {"better": better}})
    assert [f["kind"] for f in summarise_records(HEAD, ("a",), metrics, events, plan)["verdict"]] == kinds


def test_a_score_that_a_board_leaves_out_is_no_less_the_headline() -> None:
    rows = {"a": {"f1": 0.1}, "b": {"auc": 0.9, "f1": 0.2}, "c": {"f1": 0.3}, "d": {"loss": 0.5}}
    metrics = [MetricsRecord(n, 0, 1.0, {f"eval/{k}": v for k, v in row.items()}) for n, row in rows.items()]
    evidence, fleet = Evidence(), FleetLines(list(rows), 1)
    for record in metrics:
        evidence.take(record)
        fleet.update(record)
    document = summarise_records(HEAD, [*rows], metrics, [EventRecord(n, 2.0, "finished", n) for n in rows])
    assert evidence.score == fleet.score == document["score"] == "auc"
    for boards in (evidence.boards, fleet.boards):
        assert {name: board.score for name, board in boards.items()} == {"a": None, "b": 0.9, "c": None, "d": None}
    assert fleet.mean("score") == document["scores"]["auc"]["mean"] == 0.9


def test_boards_that_were_to_train_alone_are_not_told_that_they_did() -> None:
    recipe = {**RECIPE, "run": {"mode": "gossip"}, "gossip": {"algorithm": "dpsgd", "topology": "none", "params": {}}}
    away = [EventRecord(n, 97.0, "compared", n, {"distance": 3.0, "length": 1.0}) for n in BOARDS]
    never: dict[str, Any] = {"links": lambda a, b, step: False, "mixed": lambda node, step: False, "events": away}
    assert told(recipe=recipe, **never) == []
    assert [kind for kind, _, _ in told(**never)] == ["apart", "isolated"]
    assert [kind for kind, _, _ in told(lambda k: 2.3 + 0.2 * k, recipe=recipe, **never)] == ["diverged"]


def test_one_model_is_not_told_apart_by_the_boards_own_test_sets() -> None:
    def evaluated(node: str, accuracy: float) -> MetricsRecord:
        return MetricsRecord(node, 39, 41.0, {"eval/accuracy": accuracy, "eval/loss": 0.4, "eval/examples": 100})

    metrics = [MetricsRecord(n, k, float(k), {"train/loss": falls(k)}) for n in BOARDS for k in range(100)]
    metrics += [evaluated("a", 0.95), evaluated("b", 0.1), evaluated("coordinator", 0.8)]
    plan = RunPlan.of({**RECIPE, "run": {"mode": "server"}}, PARTITION)
    ends = [EventRecord(n, 199.0, "finished", n) for n in BOARDS]
    assert summarise_records({**HEAD, "mode": "server"}, BOARDS, metrics, ends, plan)["verdict"] == []


def test_nothing_is_said_while_boards_are_at_work() -> None:
    records = [MetricsRecord("a", k, float(k), {"train/loss": 2.0 + k}) for k in range(50)]
    assert summarise_records(HEAD, ("a",), records, [])["verdict"] == []
    ended = summarise_records(HEAD, ("a",), records, [EventRecord("a", 60.0, "finished", "a")])
    assert [f["kind"] for f in ended["verdict"]] == ["diverged"]


def test_who_was_lost_is_said_at_once_with_each_cause_once() -> None:
    why = {"a": "no file data/a-0", "b": "no file data/a-1", "c": "killed by SIGKILL"}
    events = [EventRecord(node, 1.0, "lost", f"lost {node}: {text}") for node, text in why.items()]
    for ends in ([], [EventRecord("d", 9.0, "finished", "d")], [EventRecord("d", 9.0, "lost", "lost d: killed")]):
        (finding,) = summarise_records(HEAD, BOARDS, [], [*events, *ends])["verdict"]
        assert (finding["kind"], finding["ruin"]) == ("lost", False)
        assert "of 4 boards were lost: a and b, such as at a: no file data/a-0; c: killed by SIGKILL" in finding["text"]
        assert ("of the others" in finding["cure"]) == all(e.name == "finished" for e in ends)


def test_a_number_that_boards_do_not_share_is_said_of_one_of_them() -> None:
    """In the order of their names, whoever was lost first."""
    why = {"b": "the loss became inf in round 2", "a": "the loss became nan in round 0"}
    events = [EventRecord(node, 1.0, "lost", f"lost {node}: {text}") for node, text in why.items()]
    (finding,) = summarise_records(HEAD, (), [], events)["verdict"]
    assert finding["text"].endswith("lost: a and b, such as at a: the loss became nan in round 0")
    (finding,) = summarise_records(HEAD, (), [], [events[0], EventRecord("c", 1.0, "lost", why["b"])])["verdict"]
    assert finding["text"].endswith("lost: b and c: the loss became inf in round 2")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda k: 2.3 + 0.2 * k, "rose from 2.4 at the start to 10"),
        (lambda k: 2.3 * 0.8**k if k < 20 else 1.8, "rose from"),
        (lambda k: math.nan if k > 30 else 1.0, "ended as no number"),
    ],
    ids=["above its start", "gave back what it had gained", "no number"],
)
def test_divergence_is_a_ruin_with_the_learning_rate_as_its_cure(loss: Curve, words: str) -> None:
    ((kind, ruin, text),) = told(loss)
    assert (kind, ruin) == ("diverged", True) and words in text and "training.lr = 0.1" in text


@pytest.mark.parametrize(
    "loss",
    [
        lambda k: 0.02 + 0.004 * (k % 5),  # fine-tuning
        lambda k: 2.3 * 0.9**k + (1.0 if k == 17 else 0.0),  # a spike that passes
        lambda k: 2.3 if k < 15 else 0.4 + 0.1 * (k % 2),
        lambda k: 0.3 + 2.0 * math.exp(-k / 0.4),
    ],
    ids=["noise about a small loss", "a spike", "late, and noisy", "all is learnt in two rounds"],
)
def test_curves_that_are_no_divergence(loss: Curve) -> None:
    assert told(loss) == []


@pytest.mark.parametrize(
    "loss",
    [lambda k: -5.0 - 0.1 * (k % 3), lambda k: -1.0 - 0.1 * k, lambda k: -5.0 + 0.012 * (20 - abs(k - 20))],
    ids=["noise", "falls", "noise in the middle"],
)
def test_a_loss_below_0_is_no_divergence(loss: Curve) -> None:
    assert told(loss) == []


def test_a_small_loss_that_rises_is_a_hint_where_the_model_is_right() -> None:
    rises = told(lambda k: 0.02 + 0.0035 * k, accuracy=0.96)
    assert [finding[:2] for finding in rises] == [("diverged", False)]
    assert told(lambda k: 0.02 + 0.0035 * k, accuracy=0.3)[0][:2] == ("diverged", True)


def test_a_loss_below_0_that_rises_is_one() -> None:
    assert told(lambda k: -1.0 + 0.1 * k)[0][:2] == ("diverged", True)
    assert told(lambda k: -1.0 - k if k < 20 else -8.0)[0][:2] == ("diverged", True)


def script(**records: Any) -> list[tuple[str, bool, str]]:
    """What is said of a script's run, of which no classes are known."""
    return told(recipe=RECIPE | {"run": {"script": "/home/ann/train.py"}}, partition=None, **records)


def test_a_script_has_a_learning_rate_of_its_own() -> None:
    ((kind, ruin, text),) = script(loss=lambda k: 2.3 + 0.2 * k)
    assert (kind, ruin) == ("diverged", True) and text.endswith("lower the learning rate in train.py")
    assert script() == []
    assert "the learning rate in train.py" in script(loss=lambda k: 2.3, accuracy=0.1)[0][2]


def test_a_script_that_learnt_nothing_is_a_ruin() -> None:
    guess: dict[str, Any] = {"loss": lambda k: 2.3 + 0.05 * (k == 0), "accuracy": 0.11, "rounds": 12}
    ((kind, ruin, text),) = script(**guess)
    assert (kind, ruin) == (
        "chance",
        True,
    ) and "is that of guessing or less: the training loss, 2.3, hardly fell" in text
    assert script(**guess, test_loss=None) == script(**guess), "an accuracy says enough"
    ((kind, ruin, text),) = script(loss=lambda k: 1.38 - 0.003 * k, accuracy=0.128)
    assert (kind, ruin) == ("chance", True), "labels that say nothing, of 4 classes"
    assert "12.8 %" in text and "guessing right in 28" in text
    assert script(**guess | {"rounds": 6}) == []
    assert script(**guess | {"accuracy": 0.2}) == [], "a guess would be right less often"
    assert script(**guess | {"loss": lambda k: 2.3 + 3.0 * (k == 0)}) == [], "it fell"


def test_models_that_have_nothing_in_common_are_told_of_in_a_short_run_too() -> None:
    away = [EventRecord(n, 97.0, "compared", n, {"distance": 2.0, "length": 1.0}) for n in BOARDS]
    ((kind, ruin, text),) = told(rounds=6, events=away)
    assert (kind, ruin) == ("apart", False) and "up to 2 of a model's length" in text
    assert (
        told(
            rounds=6, events=[EventRecord(e.node, 97.0, e.name, e.text, {"distance": 0.9, "length": 1.0}) for e in away]
        )
        == []
    )


def test_noise_about_a_loss_that_fell_in_the_first_rounds_is_no_divergence() -> None:
    """The median of the first twentieth, 6 rounds here, is as small as that noise."""
    assert told(lambda k: max(0.9 * 0.1**k, 0.004 if k > 110 else 0.0014), rounds=120) == []


def test_accuracy_of_guessing_is_a_ruin() -> None:
    ((kind, ruin, text),) = told(lambda k: 2.3, accuracy=0.11, test_loss=2.3)
    assert (kind, ruin) == ("chance", True) and "guessing among 10 classes (10 %)" in text


def test_what_the_data_say_comes_before_the_learning_rate() -> None:
    why = "every value is 255, and nothing can be told apart by them"
    said = [EventRecord(node, 0.1, "doubt", f"{node}'s data: {why}", {"why": why}) for node in BOARDS]
    for loss in (lambda k: 2.3, lambda k: 2.3 * 1.2**k):
        text = told(loss, accuracy=0.11, test_loss=2.3, events=said)[0][2]
        assert f"look at the data first: at a, b, c and d {why}" in text and "training.lr" not in text
    assert "training.lr" in told(lambda k: 2.3, accuracy=0.11, test_loss=2.3, events=said[:1])[0][2]
    assert told(events=said) == [], "a run that trained"


def test_inputs_of_one_board_in_other_units_come_first() -> None:
    def holds(**sizes: float) -> list[EventRecord]:
        said = {node: {"sizes": json.dumps({"column p": size})} for node, size in sizes.items()}
        return [EventRecord(node, 0.1, "holds", node, fields) for node, fields in said.items()]

    for said in (holds(a=1.0, b=2.0, c=1000.0, d=1.0), holds(a=1.0, b=0.7, c=1e3), holds(a=1.0, c=1000.0)):
        text = told(lambda k: 2.3, accuracy=0.11, test_loss=2.3, events=said)[0][2]
        assert "look at the data first: column p is about 1000 times as large on c as on others: give all" in text
        assert told(events=said) == [], "a run that trained"
    far = [EventRecord(n, 97.0, "compared", n, {"distance": 3.0, "length": 1.0}) for n in BOARDS]
    ((kind, _, text),) = told(events=[*holds(a=1.0, b=2.0, c=1000.0, d=1.0), *far])
    assert kind == "apart" and "column p is about 1000 times" in text and "topology" not in text
    for alone in ({"d": 0.99}, dict.fromkeys(BOARDS, 0.99)):  # and not who suffers from it
        ((kind, _, text),) = told(accuracy=0.8, events=[*holds(a=1.0, b=2.0, c=1000.0, d=1.0), *by_itself(**alone)])
        assert kind == "worse" and "by itself: look at the data first: column p is about 1000 times" in text
    odd = [EventRecord("a", 0.1, "holds", "a", {"sizes": text}) for text in ("[1]", "{", '{"p": [1], "q": "x"}', "1")]
    for said in (holds(a=1.0, b=9.0, c=0.0, d=3.0), holds(a=1e3), odd):
        assert "training.lr" in told(lambda k: 2.3, accuracy=0.11, test_loss=2.3, events=said)[0][2]


def test_accuracy_of_the_one_class_that_nearly_all_have_is_no_matter_of_the_learning_rate() -> None:
    one = {"nodes": list(BOARDS), "classes": ["ok", "worn"], "counts": [[95, 5]] * 4}
    ((kind, ruin, text),) = told(lambda k: 0.2, accuracy=0.95, test_loss=0.2, partition=one)
    assert (kind, ruin) == ("chance", True) and "training.lr" not in text
    assert "95 % of the training examples are of one class" in text
    one["counts"] = [[100, 0]] * 4
    assert "all of the training examples are of one class" in told(accuracy=1.0, test_loss=0.0, partition=one)[0][2]


def test_a_regression_that_predicts_no_better_than_the_mean_is_a_ruin() -> None:
    [(kind, ruin, text)] = told(r2=-0.25)
    assert kind == "chance" and ruin and "r2, -0.25, is not better than that of always predicting the mean" in text
    assert told(r2=0.3) == []


def test_near_guessing_is_a_ruin_only_where_the_test_loss_is_that_of_a_guess_too() -> None:
    assert told(lambda k: 2.3 * 0.97**k, accuracy=0.18, test_loss=2.0) == []
    assert told(accuracy=0.18, test_loss=12.0)[0][:2] == ("chance", True)


def test_short_runs_are_not_told_what_they_have_not_learnt() -> None:
    assert told(lambda k: 2.3, accuracy=0.1, rounds=6) == []
    assert told(lambda k: 2.3, accuracy=0.1, rounds=40, examples=1) == [], "less than one pass over the data"


def compared(far: float, **averaged: float) -> list[EventRecord]:
    events = [EventRecord(n, 98.0, "compared", n, {"distance": 10 * far, "length": 10.0}) for n in BOARDS]
    scores = {f"eval/{name}": value for name, value in averaged.items()}
    return events + [EventRecord("a", 98.5, "averaged", "a", scores)] * bool(averaged)


def test_boards_that_hold_different_models() -> None:
    ((kind, ruin, text),) = told(accuracy=0.9, events=compared(0.4, loss=0.1, accuracy=0.96))
    assert (kind, ruin) == ("apart", False) and "0.4 of a model's length" in text
    ((kind, ruin, text),) = told(accuracy=0.2, events=compared(0.4, loss=0.1, accuracy=0.96), test_loss=1.0)
    assert (kind, ruin) == ("apart", True) and "accuracy 20 %, of their average 96 %" in text
    ((kind, ruin, text),) = told(accuracy=0.7, events=compared(0.4, loss=0.1, accuracy=0.96))
    assert (kind, ruin) == ("apart", True) and "accuracy 70 %, of their average 96 %" in text
    ((kind, ruin, text),) = told(accuracy=0.9, events=compared(0.9, loss=3.0, accuracy=0.2))
    assert (kind, ruin) == ("apart", True) and "accuracy 90 %, of their average 20 %" in text
    assert told(events=compared(1.5))[0][:2] == ("apart", True)


@pytest.mark.parametrize(
    ("accuracy", "average", "ruin"),
    [((0.83,) * 4, 0.646, True), ((0.83,) * 4, 0.80, False), ((0.86, 0.87, 0.5, 0.87), 0.85, True)],
)
def test_boards_hold_different_models_where_most_examples_are_of_one_class(
    accuracy: Sequence[float], average: float, ruin: bool
) -> None:
    uneven = {**PARTITION, "classes": ["ok", "worn"], "counts": [[67, 33]] * 4}
    events = compared(0.2, accuracy=average)
    found = told(accuracy=one_below(*accuracy), events=events, partition=uneven, test_loss=0.5)
    assert [finding[:2] for finding in found] == [("apart", True)] * ruin


def test_boards_close_to_each_other_are_no_news() -> None:
    assert told(events=compared(0.05)) == [] == told(events=compared(0.2, loss=0.3, accuracy=0.89))


def test_one_board_that_learnt_nothing() -> None:
    ((kind, ruin, text),) = told(accuracy={"a": 0.9, "b": 0.88, "c": 0.19, "d": 0.87}, test_loss=0.8)
    assert (kind, ruin) == ("apart", True) and "accuracy 19 % at c, up to 90 % elsewhere" in text
    assert told(accuracy={"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.87}) == []


def one_below(*accuracy: float) -> dict[str, float]:
    return dict(zip(BOARDS, accuracy, strict=True))


def test_the_cure_for_different_models_names_what_was_set() -> None:
    events = compared(0.4)
    squeezed = {**RECIPE, "gossip": {"algorithm": "deep-squeeze", "params": {"eta": 0.83}}}
    assert "leave gossip.params.eta = 0.83 out" in told(events=events, recipe=squeezed)[0][2]
    coarse = {**RECIPE, "codec": {"name": "signsgd"}}
    assert "a finer codec than signsgd" in told(events=events, recipe=coarse)[0][2]
    assert "denser topology" in told(events=events)[0][2] and "adapt-then-combine" in told(events=events)[0][2]
    choco = RECIPE | {"gossip": {"algorithm": "choco-sgd"}}
    assert "adapt-then-combine" not in told(events=events, recipe=choco)[0][2], "it does so already"


@pytest.mark.parametrize(
    ("gossip", "codec", "cure", "never"),
    [
        ("choco-sgd", {"name": "signsgd"}, "take a finer codec than signsgd, such as 8-bit-elastiquant", "choco"),
        ("quant-sgp", {"name": "deadzone", "params": {"error": 0.95}}, "lower codec.params.error = 0.95", "sgp"),
        (
            "sgp",
            {"name": "topk", "params": {"ratio": 0.01}},
            "raise codec.params.ratio = 0.01, or take quant-sgp",
            "choco",
        ),
        ("dpsgd", {"name": "8-bit-elastiquant"}, "such as fp16, or take choco-sgd", "as 8-bit"),
    ],
)
def test_the_cure_for_different_models_is_nothing_that_is_so_already(
    gossip: str, codec: dict[str, Any], cure: str, never: str
) -> None:
    recipe = {**RECIPE, "gossip": {"algorithm": gossip, "params": {}}, "codec": codec}
    found = told(events=compared(0.4), recipe=recipe)[0][2].split(": ", 1)[1]
    assert cure in found and never not in found


@pytest.mark.parametrize(
    ("mode", "gossip", "error", "first"),
    [
        ("gossip", "dpsgd", 5.9, True),
        ("gossip", "dpsgd", 0.1, False),
        ("gossip", "choco-sgd", 0.6, False),
        ("gossip", "choco-sgd", 1.0, True),
        ("server", "dpsgd", 1.5, False),  # of four boards
        ("server", "dpsgd", 4.0, True),
    ],
)
def test_a_codec_that_loses_too_much_comes_before_the_learning_rate(
    mode: str, gossip: str, error: float, first: bool
) -> None:
    codec = {"name": "dither", "params": {"bytes": 300}}
    recipe = {**RECIPE, "run": {"mode": mode}, "gossip": {"algorithm": gossip, "params": {}}, "codec": codec}
    (kind, _, text), *_ = told(lambda k: 2.3 + 0.2 * k, recipe=recipe, codec_error=error)
    assert kind == "diverged" and "training.lr = 0.1: try a tenth" in text
    assert first == ("raise codec.params.bytes = 300" in text.split("training.lr")[0])


def test_a_fleet_that_split_is_told_with_both_sides() -> None:
    halves = {"a": 0, "b": 0, "c": 1, "d": 1}
    ((kind, ruin, text),) = told(links=lambda a, b, k: halves[a] == halves[b] or k < 10)
    assert (kind, ruin) == ("split", True)
    assert "nothing was exchanged since round 10 between a and b; c and d" in text
    ((kind, _, text),) = told(links=lambda a, b, k: halves[a] == halves[b])
    assert kind == "split" and "at any time" in text


def test_one_edge_that_rests_is_no_split() -> None:
    assert told(links=lambda a, b, k: {a, b} != {"a", "b"}) == []
    assert told(links=lambda a, b, k: {a, b} != {"a", "b"} or k < 10) == []


def test_a_lost_board_is_no_side_of_a_split() -> None:
    found = told(links=lambda a, b, k: "c" not in (a, b) or k < 10, lost=["c"])
    assert [kind for kind, _, _ in found] == ["lost"]


def test_boards_that_train_alone() -> None:
    ((kind, ruin, text),) = told(mixed=lambda node, k: node != "c")
    assert (kind, ruin) == ("alone", False) and text.startswith("c mixed with no neighbour")
    ((kind, ruin, _),) = told(mixed=lambda node, k: k < 10)
    assert (kind, ruin) == ("split", True)


def test_a_board_of_which_nobody_took_anything_is_named() -> None:
    """It was always left behind, and mixed with the others all the same."""
    ((kind, ruin, text),) = told(links=lambda a, b, k: a != "c")
    assert (kind, ruin) == ("alone", False) and text.startswith("nothing of what c trained reached the others")
    assert told(links=lambda a, b, k: a != "c" or k == 30) == [] == told(links=lambda a, b, k: a != "c", rounds=1)
    assert told(links=lambda a, b, k: False) == [], "records without what went to each"


def event(text: str, name: str = "refused", **fields: str) -> EventRecord:
    return EventRecord("a", 1.0, name, text, fields)


def refused(who: str, address: str, why: str, **fields: str) -> EventRecord:
    refusal = Refusal(who, address, why)
    return event(str(refusal), **refusal.fields, **fields)


def test_who_was_refused_is_told_with_the_reason() -> None:
    stranger = refused("pi-9", "10.0.0.6:40000", "pi-9 is not a member of this run")
    ((kind, ruin, text),) = told(events=[stranger, stranger])
    assert (kind, ruin) == ("refused", False)
    assert text.count("pi-9 at 10.0.0.6:40000: pi-9 is not a member of this run") == 1
    ((_, _, text),) = told(events=[refused("", "10.0.0.6", "it does not speak TLS")])
    assert "took no part: 10.0.0.6: it does not speak TLS: " in text


@pytest.mark.parametrize(
    "text",
    ["refused a message from the coordinator: it is torn", "the coordinator did not take an answer of a: late"],
)
def test_a_message_that_was_refused_is_no_board(text: str) -> None:
    assert told(events=[event(text)]) == []


def test_a_board_that_came_in_later_is_not_told() -> None:
    early = refused("b", "127.0.0.1:5000", "a does not know its peers yet", peer="b")
    assert told(events=[early]) == []
    other = refused("pi-9", "10.0.0.6:40000", "not yet", peer="pi-9")
    assert told(events=[other, event("pi-9 is here", "member-here", peer="pi-9")]) == []


def test_a_board_left_out_of_rounds_until_the_end_is_told() -> None:
    out = event("board c is left out for 3 rounds", "quarantine", peer="c")
    assert told(events=[out])[0][0] == "refused"
    assert told(events=[out, event("c is back", "peer-up", peer="c")])[0][0] == "refused"  # and out all the same
    assert told(events=[out, event("c takes part again", "readmitted", peer="c")]) == []


def test_ruins_come_first() -> None:
    stranger = refused("pi-9", "10.0.0.6:40000", "no member")
    assert [kind for kind, _, _ in told(lambda k: 2.3 + k, events=[stranger])] == ["diverged", "refused"]


@given(st.lists(st.tuples(st.integers(0, 2**62), st.floats(allow_nan=True)), max_size=60))
def test_any_records_give_a_verdict(rounds: list[tuple[int, float]]) -> None:
    """Steps beyond all measure take no memory, numbers that are none no exception."""
    records = [MetricsRecord("a", step, 0.0, {"train/loss": loss, "eval/loss": loss}) for step, loss in rounds]
    document = summarise_records(HEAD, ("a",), records, [EventRecord("a", 1.0, "finished", "a")])
    assert {f["kind"] for f in document["verdict"]} <= {"diverged"}


def test_a_run_folder_has_all_that_it_takes(tmp_path) -> None:
    recipe = '[training]\nlr = 0.5\n[gossip]\nalgorithm = "dpsgd"\n'
    folder = RunFolder.create(tmp_path, "r", recipe, {})
    folder.write_partition(("a", "b"), ("0", "1"), [[50, 50], [50, 50]])
    for node in ("a", "b"):
        for step in range(40):
            last = {"eval/loss": 0.7, "eval/accuracy": 0.5, "eval/examples": 100} if step == 39 else {}
            folder.metrics(node, step, {"train/loss": 0.69, "train/examples": 32, **last})
        folder.event(node, "finished", "done")
    folder.close()
    (finding,) = summarise(read_run(folder.path))["verdict"]
    assert finding["kind"] == "chance" and finding["ruin"] and "training.lr = 0.5" in finding["cure"]


def complete(*liars: str, times: float = 4.1, until: int = 38) -> dict[str, Any]:
    """Distances on a complete graph, where some boards' models lie so many times as far off."""

    def far(node: str, step: int) -> dict[str, float]:
        return {p: times if p in liars and step < until else 1.0 + ord(p) / 1000 for p in BOARDS if p != node}

    return {"far": far}


def said_of(**distances: Any) -> list[str]:
    return [text for kind, ruin, text in told(**distances) if kind == "outlier" and not ruin]


def test_the_board_whose_model_lay_far_off_is_named() -> None:
    (text,) = said_of(**complete("c"))
    assert text.startswith(
        "c's model lay far from its neighbours' in 38 of 40 rounds (3.7 times the median distance): "
    )


@pytest.mark.parametrize("distances", [complete(), complete("c", times=1.9), complete("c", until=15)])
def test_nobody_is_named_who_is_not_far_beyond_the_others(distances: dict[str, Any]) -> None:
    assert said_of(**distances) == []


@pytest.mark.parametrize(("saying", "named"), [("a", False), ("ab", False), ("abc", True)])
def test_an_outlier_is_who_most_of_four_neighbours_say_is_one(saying: str, named: bool) -> None:
    exchanged = {"train/loss": 1.0, "gossip/consensus_distance": 0.1, "gossip/heard": 4}
    far = {node: {"far/e": 99.0} if node in saying else {} for node in "abcde"}
    records = [MetricsRecord(node, k, float(k), exchanged | far[node]) for node in far for k in range(15)]
    ends = [EventRecord(node, 99.0, "finished", node) for node in far]
    verdict = summarise_records(HEAD, tuple(far), records, ends)["verdict"]
    assert [f["text"][0] for f in verdict if f["kind"] == "outlier"] == ["e"] * named


@pytest.mark.parametrize(
    ("saying", "recorded", "rounds", "named"),
    [
        ("a", "abd", 15, False),
        ("bd", "abcd", 15, True),
        ("bd", "abcd", 9, False),
        ("b", "b", 15, True),
        ("", "b", 15, False),
    ],
)
def test_whose_direction_was_out_of_line_is_named(saying: str, recorded: str, rounds: int, named: bool) -> None:
    """On a ring, by both neighbours; in a board's own folder, by that board."""
    exchanged = {"train/loss": 1.0, "gossip/consensus_distance": 0.1, "gossip/heard": 2}
    sent = {"b": ("a", "c"), "d": ("c", "a"), "a": ("b", "d"), "c": ("b", "d")}
    values = {
        node: exchanged | {f"link/{peer}_bytes": 9 for peer in sent[node]} | ({"long/c": 3.0} if node in saying else {})
        for node in recorded
    }
    records = [MetricsRecord(node, k, float(k), values[node]) for node in recorded for k in range(rounds)]
    plan = RunPlan.of({"run": {"mode": "gossip"}, "gossip": {"algorithm": "gt-dsgd", "params": {}, "order": "auto"}})
    ends = [EventRecord(node, 99.0, "finished", node) for node in recorded]
    verdict = summarise_records(HEAD, tuple(recorded), records, ends, plan)["verdict"]
    found = [(f["text"], f["cure"]) for f in verdict if f["kind"] == "outlier"]
    assert [text for text, _ in found] == [
        "c's direction was out of line with others' in 15 of 15 rounds (3 times the median length)"
    ] * named
    assert all(cure.endswith("or bagua-lp with gossip.malicious_nodes bounds what it can do") for _, cure in found)


def test_of_two_neighbours_none_is_the_outlier() -> None:
    assert far_beyond({"b": 1.0, "d": 100.0}) == {} == far_beyond({"b": 0.0, "c": 0.0, "d": 1.0})
    assert far_beyond({"b": 0.5, "c": 0.5, "d": 1.0, "e": 0.99}) == {"d": 2.0}


@pytest.mark.parametrize(("far", "named"), [(15, False), (30, True)])
def test_a_coordinator_names_whose_update_was_turned_against_the_others(far: int, named: bool) -> None:
    values = [{"server/used": 4, "train/loss": falls(k), **({"far/c": 4.0} if k < far else {})} for k in range(40)]
    records = [MetricsRecord("coordinator", k, float(k), v) for k, v in enumerate(values)]
    ends = [EventRecord(n, 99.0, "finished", n) for n in (*BOARDS, "coordinator")]
    plan = RunPlan.of({**RECIPE, "run": {"mode": "server"}})
    verdict = summarise_records({**HEAD, "mode": "server"}, BOARDS, records, ends, plan)["verdict"]
    expected = ["c's update was turned against most others' in 30 of 40 rounds (4 times the median turn)"]
    found = [f for f in verdict if f["kind"] == "outlier"]
    assert [f["text"] for f in found] == (expected if named else [])
    assert all("no server.strategy holds against every lie" in f["cure"] for f in found)  # as was measured


def untrained(node: str, unchanged: int, elsewhere: int, undone: int = 0) -> EventRecord:
    counts = {"rounds": 40, "unchanged": unchanged, "elsewhere": elsewhere, "undone": undone}
    return EventRecord(node, 98.0, "unchanged", node, counts)


def test_a_run_whose_training_went_into_other_models_failed() -> None:
    script = {**RECIPE, "run": {"script": "/home/u/train.py"}}
    ((kind, ruin, text),) = told(recipe=script, events=[untrained(n, 40, 40) for n in BOARDS])
    assert (kind, ruin) == ("untrained", True)
    assert "what train.py trained at a, b, c and d is not the model that join was given" in text
    assert told(recipe=script, events=[untrained(n, 0, 39) for n in BOARDS])[0][:2] == ("untrained", True)
    ((kind, ruin, text),) = told(recipe=script, events=[untrained("b", 0, 40)])
    assert (kind, ruin) == ("untrained", False) and "trained at b is not" in text


def test_a_run_in_which_nothing_of_the_model_changed_on_any_board_failed() -> None:
    """As where a script trains a functional copy, without an optimiser of torch."""
    ((kind, ruin, text),) = told(events=[untrained(n, 40, 0) for n in BOARDS])
    assert (kind, ruin) == ("untrained", True)
    assert "training changed nothing of the model that join was given at a, b, c and d" in text
    mixed = [untrained(n, 40, 40 * (n == "a")) for n in BOARDS]
    assert told(events=mixed)[0][:2] == ("untrained", True)


def test_some_boards_that_changed_nothing_are_a_hint_and_one_round_of_it_is_none() -> None:
    """They may be there to evaluate."""
    ((kind, ruin, text),) = told(events=[untrained(n, 40, 0) for n in "abc"])
    assert (kind, ruin) == ("untrained", False) and "training changed nothing of the model" in text
    assert told(events=[EventRecord("a", 1.0, "unchanged", "in round 0 nothing of the model changed")]) == []
    own = [MetricsRecord("a", k, float(k), {"train/loss": falls(k)}) for k in range(40)]
    events = [untrained("a", 40, 0), EventRecord("a", 99.0, "finished", "a")]
    (found,) = summarise_records(HEAD, ("a",), own, events)["verdict"]
    assert (found["kind"], found["ruin"]) == ("untrained", False), "others' records are elsewhere"


@pytest.mark.parametrize(("unchanged", "elsewhere", "most"), [(36, 0, 36), (0, 24, 24), (10, 10, 10)])
def test_a_board_whose_training_went_nowhere_in_many_rounds_is_named(unchanged: int, elsewhere: int, most: int) -> None:
    ((kind, ruin, text),) = told(events=[untrained("b", unchanged, elsewhere)])
    assert (kind, ruin) == ("untrained", False) and f"in {most} of 40 rounds at b: " in text
    assert told(events=[untrained("b", 9, 9)]) == [], "a warm-up, and steps that a GradScaler left out"
    everybody = [untrained(n, unchanged, elsewhere) for n in BOARDS]
    found = told(lambda k: 2.3, accuracy=0.1, test_loss=2.3, events=everybody)
    assert [(kind, ruin) for kind, ruin, _ in found] == [("chance", True), ("untrained", False)], "none hides the ruin"


@pytest.mark.parametrize(
    ("undone", "boards", "rounds", "ruin"),
    [(39, "abcd", "every round", True), (39, "b", "every round", False), (12, "abcd", "many rounds", False)],
)
def test_rounds_that_threw_away_what_was_mixed_are_told(undone: int, boards: str, rounds: str, ruin: bool) -> None:
    ((kind, ruined, text),) = told(events=[untrained(n, 0, 0, undone) for n in boards])
    assert (kind, ruined) == ("undone", ruin) and text.startswith(rounds) and "load weights before the join" in text
    assert told(events=[untrained(n, 0, 0, 1) for n in boards]) == []


def test_of_one_boards_own_folder_it_is_not_known_what_the_others_threw_away() -> None:
    metrics = [MetricsRecord("a", k, float(k), {"train/loss": falls(k)}) for k in range(40)]
    events = [EventRecord("a", 99.0, "finished", "a"), untrained("a", 0, 0, 39)]
    verdict = summarise_records(HEAD, ("a",), metrics, events, RunPlan.of(RECIPE))["verdict"]
    assert [(f["kind"], f["ruin"]) for f in verdict] == [("undone", False)]


def test_a_frozen_base_that_changed_is_a_hint() -> None:
    events = [EventRecord(n, 1.0, "drifted", "", {"tensors": "base.weight and 1 more"}) for n in "ab"]
    ((kind, ruin, text),) = told(events=events)
    assert (kind, ruin) == ("drifted", False)
    assert text.startswith("base.weight and 1 more, frozen at the join, changed at a and b")


def test_records_that_are_missing_and_boards_that_stood_still_are_told() -> None:
    gone = [EventRecord("a", 5.0 * k, "records-lost", "", {"records": 100}) for k in (1, 2)]
    ((kind, ruin, text),) = told(events=gone)
    assert (kind, ruin) == ("records", False) and text.startswith("200 records are missing in the run folder")
    slept = [EventRecord("b", 5.0 * k, "starved", "", {"seconds": 6.0}) for k in (1, 2)]
    ((kind, ruin, text),) = told(events=slept)
    assert (kind, ruin) == ("starved", False) and text.startswith("b stood still for 12 s")
    assert told(events=slept[:1]) == []


def counted(heard: Callable[[str, int], int], rounds: int = 3, mode: str = "gossip", **more: Any) -> Any:
    """What is said of a short run whose records say of how many neighbours there was news."""
    metrics = []
    for node in BOARDS:
        for step in range(rounds):
            values = {"train/loss": falls(step), "gossip/heard": heard(node, step)} if mode == "gossip" else {}
            values |= {f"link/{b}_bytes": 100 for a, b in RING if a == node} if mode == "gossip" else {}
            metrics.append(MetricsRecord(node, step, float(step), values))
    if mode == "server":
        metrics += [
            MetricsRecord("coordinator", k, float(k), {"server/used": heard("coordinator", k)}) for k in range(rounds)
        ]
    ends = [EventRecord(n, 99.0, "finished", n) for n in BOARDS]
    recipe, topology = {**RECIPE, "run": {"mode": mode}}, more.pop("topology", TOPOLOGY)
    plan = RunPlan.of({**recipe, **more.pop("recipe", {})}, PARTITION, topology)
    return summarise_records(HEAD, BOARDS, metrics, [*more.pop("events", ()), *ends], plan)


@pytest.mark.parametrize("rounds", [1, 3, 40])
@pytest.mark.parametrize("algorithm", ["dpsgd", "parallel-sgd", "ad-psgd"])
def test_a_run_that_exchanged_nothing_is_no_success_however_short(rounds: int, algorithm: str) -> None:
    """Bytes were acknowledged all the same: what was refused has arrived."""
    gossip = {"gossip": {"algorithm": algorithm, "deadline_s": 0.5}}
    document = counted(lambda node, k: 0, rounds, recipe=gossip)
    first = document["verdict"][0]
    assert (first["kind"], first["ruin"]) == ("isolated", True) and "gossip.deadline_s (now 0.5)" in first["cure"]
    assert run_table(document).splitlines()[0].endswith("| nothing was exchanged")
    assert counted(lambda node, k: 2, rounds, recipe=gossip)["verdict"] == []


def test_boards_that_were_to_exchange_nothing_are_not_blamed_for_it() -> None:
    nobody = {"members": list(BOARDS), "rounds": [{"edges": []}]}
    assert counted(lambda node, k: 0, topology=nobody)["verdict"] == []


def test_a_board_that_heard_nobody_in_a_short_run_is_named() -> None:
    (found,) = counted(lambda node, k: int(node != "c"))["verdict"]
    assert (found["kind"], found["ruin"]) == ("alone", False) and found["text"].startswith("c mixed with no neighbour")


def test_a_coordinator_that_used_no_update_is_no_success() -> None:
    (found,) = counted(lambda node, k: 0, mode="server")["verdict"]
    assert (found["kind"], found["ruin"]) == ("isolated", True) and "no update of any board" in found["text"]


def test_a_board_none_of_whose_updates_was_used_is_named() -> None:
    unused = event("no update of c was ever used", "unused", peer="c")
    (found,) = counted(lambda node, k: 3, mode="server", events=[unused])["verdict"]
    assert (found["kind"], found["ruin"]) == ("alone", False) and found["text"].startswith("no update of c was ever")


def test_a_board_whose_neighbours_were_all_lost_is_not_told_to_look_at_its_network() -> None:
    pair = {"members": ["a", "b"], "rounds": [{"edges": [["a", "b"], ["b", "a"]]}]}
    heard = [{"gossip/consensus_distance": 0.1, "gossip/heard": 1} if k < 5 else {"gossip/heard": 0} for k in range(40)]
    metrics = [MetricsRecord("a", k, float(k), {"train/loss": falls(k), **heard[k]}) for k in range(40)]
    for ends in ("lost", "finished"):
        events = [
            EventRecord("a", 99.0, "finished", "a"),
            EventRecord("b", 3.0, ends, "b: its script raised TypeError"),
        ]
        plan = RunPlan.of(RECIPE, None, pair)
        beside = [MetricsRecord("b", k, float(k), {"train/loss": falls(k), **heard[k]}) for k in range(40)]
        verdict = summarise_records(HEAD, ("a", "b"), [*metrics, *beside[: 6 if ends == "lost" else 40]], events, plan)[
            "verdict"
        ]
        assert {f["kind"] for f in verdict} == ({"lost"} if ends == "lost" else {"split"})


def test_a_curve_is_the_same_in_whatever_order_boards_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence.Curve, "POINTS", 4)
    losses = [(step, 1.0 / (1 + step + board)) for step in range(37) for board in range(2)]
    one, other = evidence.Curve(), evidence.Curve()
    for step, loss in losses:
        one.add(step, loss)
    for step, loss in reversed(losses):
        other.add(step, loss)
    assert one.rounds == other.rounds == 37 and one._means() == pytest.approx(other._means())
