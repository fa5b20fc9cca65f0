"""`edgegossip run` says what came of a run that failed its purpose, and nothing of one that did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import edgegossip

RUIN = 8
SHORT = ("run.rounds=100", "evaluation.every=100")


def ran(tmp_path: Path, *settings: str, recipe: str = "quickstart-gossip") -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, verdict and what was printed."""
    sets = [word for setting in settings for word in ("--set", setting)]
    with edgegossip("run", recipe, "--no-plots", *sets, runs=tmp_path) as running:
        code, out, err = running.finish()
        folder = running.folder()
    assert "Traceback" not in out + err
    verdict = json.loads((folder / "summary.json").read_text())["verdict"]
    for finding in verdict:
        assert finding["text"] in out and finding["cure"] in out
    return code, verdict, out


@pytest.mark.parametrize("recipe", ["quickstart-gossip", "quickstart-server"])
def test_the_quickstarts_as_they_are_have_none(recipe: str, tmp_path: Path) -> None:
    code, verdict, out = ran(tmp_path, recipe=recipe)
    assert (code, verdict) == (0, []) and "RUIN" not in out and "look:" not in out


@pytest.mark.parametrize(
    "settings",
    [
        ("data.partition=sorted",),
        ("gossip.algorithm=deep-squeeze", "codec.name=4-bit-elastiquant"),
        ("gossip.algorithm=sparse-push", "gossip.topology=directed-ring", "codec.name=signsgd"),
        ("gossip.algorithm=ad-psgd",),
        ("model.name=resnet8", "model.norm=batchnorm", "gossip.algorithm=deep-squeeze", "codec.name=4-bit-elastiquant"),
    ],
    ids=["sorted", "4 bits", "signs", "asynchronous", "batch norm"],
)
def test_runs_that_train_have_none(settings: tuple[str, ...], tmp_path: Path) -> None:
    assert ran(tmp_path, *SHORT, *settings)[:2] == (0, [])


def test_a_run_of_two_rounds_has_none(tmp_path: Path) -> None:
    assert ran(tmp_path, "run.rounds=2")[:2] == (0, [])


def test_an_averaging_rate_that_is_too_large_for_the_codec_is_a_ruin(tmp_path: Path) -> None:
    coarse = ("gossip.algorithm=deep-squeeze", "codec.name=signsgd", "gossip.params.eta=0.9")
    code, verdict, out = ran(tmp_path, *SHORT, *coarse)
    assert code == RUIN and [f["kind"] for f in verdict if f["ruin"]] == ["apart"]
    assert "leave gossip.params.eta = 0.9 out" in verdict[0]["cure"] and "RUIN: the boards hold different models" in out


def test_a_rate_with_which_boards_merely_stray_is_a_hint(tmp_path: Path) -> None:
    """What was the default of deep-squeeze with this codec once."""
    coarse = ("gossip.algorithm=deep-squeeze", "codec.name=4-bit-elastiquant", "gossip.params.eta=0.83")
    code, verdict, out = ran(tmp_path, *SHORT, *coarse)
    assert code == 0 and [(f["kind"], f["ruin"]) for f in verdict] == [("apart", False)] and "look: " in out


def test_a_learning_rate_beyond_all_measure_is_a_ruin(tmp_path: Path) -> None:
    code, verdict, _ = ran(tmp_path, *SHORT, "training.lr=50")
    assert code == RUIN and verdict[0]["kind"] in ("diverged", "chance") and "training.lr = 50" in verdict[0]["cure"]


@pytest.mark.parametrize("recipe", ["quickstart-gossip", "quickstart-server"])
def test_a_model_that_learnt_nothing_is_a_ruin(recipe: str, tmp_path: Path) -> None:
    code, verdict, out = ran(tmp_path, *SHORT, "training.lr=1e-7", recipe=recipe)
    assert code == RUIN and verdict[0]["kind"] == "chance" and "guessing among 10 classes" in out
