"""The command: what it prints, what it refuses and how it ends; and the recipes and files that it
takes."""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgegossip import recipe as recipes
from edgegossip.types import ConfigError
from lab.sim import (
    Named,
    Options,
    Outcome,
    checkers,
    command,
    draw,
    naming,
    run_schedule,
    schedule_of,
    trace,
)
from lab.sim import schedule as schedules
from lab.sim.__main__ import sim
from lab.sim.campaign import Result
from lab.sim.command import fixed_by
from lab.sim.schedule import Schedule, fits


def invoke(*words: str) -> Any:
    return CliRunner().invoke(sim, list(words), standalone_mode=False, catch_exceptions=True)


def test_replay_prints_a_trace_and_its_hash() -> None:
    done = invoke("--seed", "4", "--boards", "3", "--rounds", "4", "--algorithm", "choco-sgd")
    assert done.return_value == 0 and "# hash " in done.output and "steps in round" in done.output
    assert "# 0 violations; in the end the models differ by at most" in done.output
    assert "# run twice, with the same hash" in done.output
    again = invoke("--seed", "4", "--boards", "3", "--rounds", "4", "--algorithm", "choco-sgd", "--json")
    assert json.loads(again.output)["hash"] in done.output and json.loads(again.output)["spread"] >= 0


def test_a_campaign_as_json_has_the_promised_fields() -> None:
    done = invoke("--campaign", "6", "--jobs", "1", "--boards", "3", "--rounds", "4", "--json")
    document = json.loads(done.output)
    assert {"schedules", "violations", "faults", "schedules_per_s", "first_failure_seed"} <= set(document)
    assert done.return_value == 0 and document["schedules"] == 6 and document["first_failure_seed"] is None
    assert document["first_failure"] is None
    assert gc.get_freeze_count()  # what tests/conftest.py has frozen stays so


def test_a_campaign_counts_algorithms_topologies_and_codecs() -> None:
    words = ("--campaign", "3", "--jobs", "1", "--boards", "3", "--rounds", "2", "--faults", "none")
    fixed = ("--algorithm", "dpsgd+nesterov", "--topology", "ring", "--codec", "qsgd:bits=6")
    done = invoke(*words, *fixed)
    for line in ("algorithms: dpsgd 3", "momentum: nesterov 3", "topologies: ring 3", "codecs: qsgd:bits=6 3"):
        assert line in done.output.splitlines()
    document = json.loads(invoke(*words, *fixed, "--json").output)
    assert document["algorithms"] == {"dpsgd+nesterov": 3} and document["topologies"] == {"ring": 3}
    assert document["codecs"] == {"qsgd:bits=6": 3} and document["replays"] == 1
    assert document["looked"]["consensus"] == 3 and "hull" not in document["looked"]
    assert "gossip:" in done.output and ", consensus 3, " in done.output and ", refused 0, " in done.output


@pytest.mark.parametrize(
    ("mode", "has", "has_not"),
    [
        ("gossip", ("loss", "flapping"), ("hang", "power-cut")),
        ("server", ("loss", "hang"), ("flapping", "power-cut")),
        ("both", ("flapping", "hang"), ("power-cut",)),
        ("shell", ("flapping", "power-cut"), ("hang", "byzantine-nan")),
    ],
)
def test_a_campaign_tells_of_the_faults_that_can_occur(
    mode: str, has: tuple[str, ...], has_not: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "campaign", lambda *_, **__: Result())
    told = {line.split()[0] for line in invoke("--campaign", "1", "--mode", mode).output.splitlines()}
    assert set(has) <= told and not set(has_not) & told


def test_the_trace_on_the_page_is_what_its_command_prints() -> None:
    page = (Path(command.__file__).parent / "README.md").read_text()
    asked, block = re.findall(r"`(python -m lab\.sim [^`]*)` prints,[^`]*```\n(.*?)```", page, re.DOTALL)[0]
    assert set(block.splitlines()) <= set(invoke(*asked.split()[3:]).output.splitlines())
    assert all(f"| `{word}`" in page for word in re.findall(r" (\w+)=", block))


def test_what_goes_another_way_when_run_again_is_made_small_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a run differs from the last one wherever a node pauses: the pause must stay, and what is
    printed must show it. Two nodes do not go together with the rest."""
    hashes = itertools.count()

    def run(schedule: Schedule, **more: Any) -> Outcome:
        if schedule.nodes == 2:
            raise ConfigError("not with two")
        outcome = run_schedule(schedule, **more)
        paused = any(f.kind == "pause" for f in schedule.faults)
        return replace(outcome, digest=f"{outcome.digest}{next(hashes)}") if paused else outcome

    campaigns = importlib.import_module("lab.sim.campaign")  # the package has a function of this name
    for module in (campaigns, command):
        monkeypatch.setattr(module, "run", run)
    done = invoke("--campaign", "1", "--jobs", "1", "--boards", "4", "--faults", "loss=0.2,pause,delay,crash")
    assert done.return_value == 6 and "made small" in done.output
    printed = shlex.split(done.output.splitlines()[-1])[3:]
    kinds = printed[printed.index("--faults") + 1]
    assert kinds.startswith("pause@") and "," not in kinds
    assert printed[printed.index("--boards") + 1] == "3" and printed[printed.index("--rounds") + 1] == "2"
    again = invoke(*printed)
    assert again.return_value == 6 and "VIOLATION of replay at" in again.output
    assert json.loads(invoke(*printed, "--json").output)["violations"][0]["rule"] == "replay"


def test_a_failure_that_does_not_come_again_is_not_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter(["one", "two"])
    monkeypatch.setattr(trace.Trace, "digest", lambda _: next(hashes, "the same"))
    done = invoke("--campaign", "1", "--jobs", "1", "--boards", "4", "--seed", "3")
    assert "which did not come again when it was looked for once more:" in done.output
    assert schedule_of(3, Options(nodes=4, mode="both")).command() in done.output


def test_a_recipe_fixes_its_parts() -> None:
    recipe = recipes.load("quickstart-gossip")
    options = fixed_by(recipe, Options(rounds=4))
    schedule = draw(1, options)
    assert (schedule.nodes, schedule.topology, schedule.algorithm) == (4, Named("ring"), Named("dpsgd"))
    assert schedule.deadline_s == recipe.gossip.deadline_s
    sets = ["gossip.momentum=nesterov", "training.momentum=0", "gossip.momentum_factor=0.5"]
    named = (fixed_by(recipes.load("quickstart-gossip", sets), Options()).algorithms or ())[0]
    assert str(named) == "dpsgd+nesterov:momentum_factor=0.5"
    sets = ["gossip.order=adapt-then-combine", "run.nodes=3", "gossip.deadline_s=2"]
    schedule = draw(1, fixed_by(recipes.load("quickstart-gossip", sets), Options(rounds=6)))
    assert str(schedule.algorithm) == "dpsgd:order=adapt-then-combine"
    assert not run_schedule(schedule).violations
    with pytest.raises(ConfigError, match="server recipe"):
        fixed_by(recipes.load("quickstart-server"), Options())
    done = invoke("quickstart-gossip", "--rounds", "3", "--json", "--faults", "none", "--deadline", "2")
    assert done.return_value == 0 and json.loads(done.output)["violations"] == []


def test_a_failure_ends_with_6_and_a_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkers, "ROW_TOLERANCE", -1.0)  # no row is right any more
    fixed = ("--boards", "3", "--rounds", "3", "--algorithm", "dpsgd", "--topology", "ring")
    done = invoke("--campaign", "2", "--jobs", "1", *fixed)
    assert done.return_value == 6 and "made small" in done.output and "weights" in done.output
    replayed = invoke("--seed", "1", *fixed)
    assert replayed.return_value == 6 and "VIOLATION of weights" in replayed.output


def test_a_topology_file(tmp_path: Path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("board-0 board-1\nboard-1 board-2\n")
    sets = ["run.nodes=3", "gossip.topology=file", f"gossip.topology_file={edges}", "gossip.deadline_s=2"]
    schedule = draw(1, fixed_by(recipes.load("quickstart-gossip", sets), Options(rounds=3, faults="none")))
    assert not run_schedule(schedule).violations
    with pytest.raises(ConfigError, match="weights only"):
        naming.topology_of(Named.of("file", {"path": str(edges), "degree": 3}), 3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--algorithm dpsgd --algorithm choco", "unknown algorithm 'choco'; did you mean choco-sgd?"),
        ("--algorithm choco-sgd+nestrov", "unknown momentum 'nestrov'; did you mean nesterov?"),
        ("--algorithm choco-sgd:etta=1", "unknown parameter of algorithm 'choco-sgd' 'etta'; did you mean eta?"),
        ("--topology file", "needs its path"),
        ("--algorithm dpsgd --algorithm choco-sgd --topology directed-ring", "choco-sgd needs symmetric weights"),
        ("--topology random-regular:degree=18", "degree"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--campaign", "3")])
def test_mistakes_are_told_in_one_sentence_before_anything_is_printed(
    words: str, says: str, more: tuple[str, ...]
) -> None:
    done = invoke("--seed", "1", *words.split(), *more)
    assert isinstance(done.exception, ConfigError) and says in str(done.exception) and done.output == ""


@pytest.mark.parametrize(
    ("recipe", "key"),
    [("server", "evaluation.patience=2"), ("server", "checkpoint.best=true"), ("gossip", "checkpoint.best=true")],
)
def test_what_the_simulator_does_not_do_is_refused(recipe: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key.split('=')[0]} = .*: the simulator "):
        fixed_by(recipes.load(f"quickstart-{recipe}", [key]), Options())


@pytest.mark.parametrize("topology", ["directed-ring", "torus", "exponential"])
def test_what_is_drawn_goes_with_a_fixed_topology(topology: str) -> None:
    drawn = [draw(seed, Options(topology=Named(topology))) for seed in range(8)]
    assert len({s.algorithm.name for s in drawn}) > 2 and len({s.nodes for s in drawn}) > 1


@pytest.mark.parametrize(
    ("seed", "options", "otherwise"),
    [
        (2, Options(codec=Named("auto")), "motef:eta=0.3"),
        (28, Options(values=1), "deep-squeeze+outer-heavy-ball:eta=0.3,outer_fragments=2,outer_momentum=0.3"),
    ],
)
def test_what_is_drawn_goes_with_a_fixed_codec_and_model(seed: int, options: Options, otherwise: str) -> None:
    drawn = draw(seed, options)
    assert str(draw(seed, Options()).algorithm) == otherwise != str(drawn.algorithm)
    assert fits(drawn.algorithm, drawn.topology, drawn.codec, drawn.nodes, drawn.values)


def test_nothing_suits_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "unfit", lambda *_: "not today")
    with pytest.raises(ConfigError, match="no topology of 3 nodes suits dpsgd with fp32; ring: not today"):
        draw(1, Options(algorithms=(Named("dpsgd"),), nodes=3, codec=Named("fp32")))
    with pytest.raises(ConfigError, match="^not today$"):
        draw(1, Options(topology=Named("ring")))
