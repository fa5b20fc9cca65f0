"""`edgegossip run` says what came of a run that failed its purpose, and nothing of one that did
not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import Running, edgegossip, free_port, in_this_process, unwrapped

RUIN = 8
SHORT = ("run.rounds=100", "evaluation.every=100")

# A whole run each: the rules are tests/telemetry/test_verdict.py's, and what is printed that of the
# quick one in test_forked.py.
pytestmark = pytest.mark.slow

Ran = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def ran(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Ran:
    return partial(run, tmp_path, capfd)


def run(
    runs: Path, capfd: pytest.CaptureFixture[str], *settings: str, recipe: str = "quickstart-gossip"
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, verdict and what was printed."""
    sets = [word for setting in ("network.tls=off", *settings) for word in ("--set", setting)]
    code, out, err = in_this_process(capfd, "run", recipe, "--no-plots", *sets, "--runs", str(runs))
    (folder,) = runs.iterdir()
    assert "Traceback" not in out + err
    verdict = json.loads((folder / "summary.json").read_text())["verdict"]
    printed = unwrapped(out)
    for finding in verdict:
        assert finding["text"] in printed and finding["cure"] in printed
    return code, verdict, printed


@pytest.mark.parametrize("recipe", ["quickstart-gossip", "quickstart-server"])
def test_the_quickstarts_as_they_are_have_none(recipe: str, ran: Ran) -> None:
    code, verdict, out = ran(recipe=recipe)
    assert (code, verdict) == (0, []) and "RUIN" not in out and "look:" not in out


@pytest.mark.parametrize("recipe", ["quickstart-gossip", "quickstart-server"])
def test_a_model_that_learnt_nothing_is_a_ruin(recipe: str, ran: Ran) -> None:
    code, verdict, out = ran(*SHORT, "training.lr=1e-7", recipe=recipe)
    assert code == RUIN and verdict[0]["kind"] == "chance" and "guessing among 10 classes" in out


def test_a_founder_says_who_was_refused_and_why(tmp_path: Path) -> None:
    """In its log at once, and in its table at the end."""
    where, sets = f"127.0.0.1:{free_port()}", ("--set", "run.rounds=12", "--set", "server.min_nodes=2")
    found = ("node", "quickstart-gossip", *sets, "--members", "pi-1,pi-2", "--name", "pi-1", "--listen", where)
    with edgegossip(*found, runs=tmp_path / "pi-1") as founder:
        founder.wait_until(lambda: "listening" in happened(founder))
        join = ("node", "--join", where, "--listen", "127.0.0.1:0", "--name")
        with edgegossip(*join, "pi-9", runs=tmp_path / "pi-9") as stranger:
            code, _, err = stranger.finish()
        assert code == 5 and "pi-9 is not a member of this run" in err
        founder.wait_until(lambda: "refused" in happened(founder))
        with edgegossip(*join, "pi-2", runs=tmp_path / "pi-2") as second:
            assert second.finish()[0] == 0
        code, out, err = founder.finish()
    assert code == 0 and "refused pi-9 at 127.0.0.1:" in err, (code, err)
    assert "server.min_nodes has no effect" in err
    (line,) = [line for line in unwrapped(out).splitlines() if line.startswith("look: ")]
    assert "took no part: pi-9 at 127.0.0.1:" in line and "pi-9 is not a member of this run" in line


def happened(running: Running) -> set[str]:
    """Names of a board's events so far."""
    files = running.runs.glob("*/events.jsonl") if running.runs.is_dir() else ()
    lines = [line for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    return {json.loads(line)["event"] for line in lines}
