"""Whole schedules: the same seed gives the same run, nothing is violated, and what is broken on purpose is found."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from edgegossip import frame as wire
from edgegossip import gossip
from edgegossip import recipe as recipes
from edgegossip.cli.sim import sim
from edgegossip.gossip.base import Action, Message
from edgegossip.sim import (
    Disk,
    Named,
    Node,
    Options,
    Schedule,
    campaign,
    checkers,
    command,
    draw,
    naming,
    run_schedule,
    shrink,
    trace,
)
from edgegossip.sim import schedule as schedules
from edgegossip.sim.from_recipe import fixed_by
from edgegossip.sim.node import Frame
from edgegossip.sim.schedule import every_algorithm
from edgegossip.types import ConfigError, LocalUpdate


@pytest.mark.parametrize("name", gossip.names())
def test_a_seed_gives_the_same_run_bit_for_bit(name: str) -> None:
    options = Options(algorithms=(Named(name),), nodes=4, rounds=6)
    schedule = draw(5, options)
    one, two, other = run_schedule(schedule), run_schedule(schedule), run_schedule(draw(6, options))
    assert one.digest == two.digest != other.digest
    assert not one.violations and not other.violations
    assert one.rounds >= 4 * 8 and one.events > one.rounds


def test_a_trace_changes_nothing_and_tells_what_happens() -> None:
    schedule = draw(7, Options(algorithms=(Named("sgp"),), faults="loss=0.3,crash,late-join,byzantine-nan", rounds=8))
    lines: list[str] = []
    assert run_schedule(schedule).digest == run_schedule(schedule, say=lines.append).digest
    text = "\n".join(lines)
    said_first = ("starts from", "steps in round", "->", "<-", "is done", "fault: crash", "hears that", "all is well")
    for said in (*said_first, ", lost (loss)", "end of fault: loss=0.3", "end of fault: late-join"):
        assert said in text


def traced(algorithm: str, faults: str) -> str:
    lines: list[str] = []
    options = Options(algorithms=(Named(algorithm),), topology=Named("ring"), nodes=4, rounds=8, faults=faults)
    assert not run_schedule(draw(7, options), say=lines.append).violations
    return "\n".join(lines)


def test_a_trace_says_what_faults_make_of_a_message() -> None:
    text = traced("choco-sgd", "split@1-3:0+3,duplication=0.6@0-5,reorder=0.6@0-5,crash@3-5:1,leave@4-5:2")
    for said in (", cut (split)", ", twice (duplication)", ", others overtake it (reorder)", "finds no process"):
        assert said in text
    assert "overtake it (reorder), twice (duplication)" in text
    assert text.index("fault: split@1-3:0+3 (") < text.index("    3.000   -  end of fault: split@1-3:0+3")
    assert "end of fault: leave" not in text


def test_ids_are_exact_and_nobody_is_nan_away() -> None:
    text = traced("choco-sgd", "split@0-4:0,loss=0.3@0-5")
    assert re.search(r"session=[0-9a-f]{9,12}\b", text) and "e+" not in text
    assert "no neighbour heard" in text and "nan" not in text


def test_a_small_campaign_over_everything_finds_nothing() -> None:
    result = campaign(range(16), Options(rounds=8))
    assert result.schedules == 16 and result.violations == 0 and result.replays == 1, result.failures
    assert len(result.faults) > 10 and len(result.algorithms) > 8


def test_everything_fixed_is_what_is_drawn_and_the_rest_stays() -> None:
    free = draw(11, Options())
    fixed = draw(11, Options(nodes=free.nodes, rounds=free.rounds, codec=free.codec))
    assert fixed == free
    assert draw(11, Options(workload="consensus", deadline_s=3.0)).deadline_s == 3.0
    assert {a.name.partition("+")[0] for a in every_algorithm()} == set(gossip.names())


@pytest.mark.parametrize("seed", range(12))
def test_the_command_of_a_schedule_gives_it_again(seed: int) -> None:
    schedule = draw(seed, Options(values=16 + seed % 2))
    words = shlex.split(schedule.command())
    assert words[:2] == ["edgegossip", "sim"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    asked = command.Asked(
        recipe=None,
        settings=(),
        seed=int(given["--seed"]),
        faults=given["--faults"],
        algorithms=(given["--algorithm"],),
        topology=given["--topology"],
        codec=given["--codec"],
        nodes=int(given["--nodes"]),
        rounds=int(given["--rounds"]),
        workload=given["--workload"],
        deadline_s=float(given["--deadline"]),
        values=int(given.get("--values", 16)),
        jobs=None,
    )
    assert draw(seed, command.options_of(asked)) == schedule


# -- what is broken on purpose -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """An algorithm with a fault; what it does not change is the inner one's."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class LosesMass(Broken):
    """Counts its own update twice."""

    def step(self, s: Any, local: LocalUpdate) -> tuple[Any, list[Action]]:
        return self.inner.step(s, replace(local, delta=2 * local.delta))


class Stalls(Broken):
    """Waits for ever for whoever is silent."""

    def tick(self, s: Any, now_s: float) -> tuple[Any, list[Action]]:
        return s, []


class Raises(Broken):
    def receive(self, s: Any, m: Message) -> tuple[Any, list[Action]]:
        raise LookupError("no such edge")


class GoesBack(Broken):
    def round(self, s: Any) -> int:
        return min(3, int(self.inner.round(s)))


class Infinite(Broken):
    def model(self, s: Any) -> Any:
        return self.inner.model(s) / np.float32(0.0)


@pytest.mark.parametrize(
    ("broken", "name", "faults", "rule"),
    [
        (LosesMass, "sgp", "none", "ledger"),
        (Stalls, "dpsgd", "loss=0.5", "progress"),
        (Raises, "dpsgd", "none", "crash"),
        (GoesBack, "dpsgd", "none", "rounds"),
        (Infinite, "dpsgd", "none", "finite"),
    ],
)
def test_a_broken_algorithm_is_found(broken: type[Broken], name: str, faults: str, rule: str) -> None:
    options = Options(algorithms=(Named(name),), nodes=4, rounds=8, faults=faults, workload="quadratic")
    result = campaign(range(4), options, algorithm=broken(gossip.get(name)), stop_at_first=True)
    assert result.rules[rule] > 0 and rule in checkers.RULES, result.rules


def test_a_disk_that_mixes_two_checkpoints_is_found() -> None:
    class Mixes(Disk):
        """Half of a state is of one checkpoint and half of the one before: a write that was not atomic."""

        def read(self) -> Any:
            whole = [f for f in self.files if f is not None]
            if len(whole) < 4:
                return super().read()
            state = whole[-1].state
            return replace(whole[-1], state=replace(state, math=replace(state.math, sent=whole[-3].state.math.sent)))

    options = Options(algorithms=(Named("sgp"),), nodes=4, rounds=10, faults="crash=3", codec=Named("fp32"))
    result = campaign(range(8), options, make_disk=Mixes)
    assert result.rules["ledger"] > 0


def test_a_driver_that_believes_every_frame_is_found() -> None:
    class Gullible(Node):
        def _receive(self, event: Frame) -> None:
            frame = replace(wire.parse(event.data, self.world.limits), run_id=self.view.run_id)
            outcome = self.algorithm.receive(self.state, Message(self.view.members[event.sender], frame))
            self.world.received(self, event, frame, outcome)
            self._advance(outcome)

    options = Options(algorithms=(Named("dpsgd"),), nodes=4, faults="byzantine-run=3", rounds=8)
    assert campaign(range(4), options, make_node=Gullible).rules["accepted"] > 0


def test_shrinking_keeps_the_rule_and_takes_away_what_it_can() -> None:
    schedule = draw(
        3, Options(algorithms=(Named.of("dpsgd+heavy-ball", {"staleness": 1}),), nodes=8, faults="all,crash=3")
    )

    def fails(candidate: Schedule) -> str | None:
        crashes = [f for f in candidate.faults if f.kind == "crash"]
        return "some-rule" if crashes and candidate.nodes >= 3 else None

    small = shrink(schedule, fails)
    assert [f.kind for f in small.faults] == ["crash"] and small.nodes == 3 and small.rounds == 2
    assert small.algorithm == Named("dpsgd") and small.codec == Named("fp32") and small.workload == "consensus"
    assert fails(small) == "some-rule"
    assert shrink(schedule, fails, most_tries=0) == schedule


def test_a_campaign_in_two_processes_finds_the_same() -> None:
    options = Options(nodes=2, rounds=2)
    one, two = campaign(range(20), options), campaign(range(20), options, jobs=2)
    assert one.faults == two.faults and one.events == two.events and two.schedules == 20


# -- the command -------------------------------------------------------------------------------------------------


def invoke(*words: str) -> Any:
    return CliRunner().invoke(sim, list(words), standalone_mode=False, catch_exceptions=True)


def test_replay_prints_a_trace_and_its_hash() -> None:
    done = invoke("--seed", "4", "--nodes", "3", "--rounds", "4", "--algorithm", "choco-sgd")
    assert done.return_value == 0 and "# hash " in done.output and "steps in round" in done.output
    assert "# 0 violations; in the end the models differ by at most" in done.output
    again = invoke("--seed", "4", "--nodes", "3", "--rounds", "4", "--algorithm", "choco-sgd", "--json")
    assert json.loads(again.output)["hash"] in done.output and json.loads(again.output)["spread"] >= 0


def test_a_campaign_as_json_has_the_promised_fields() -> None:
    done = invoke("--campaign", "6", "--jobs", "1", "--nodes", "3", "--rounds", "4", "--json")
    document = json.loads(done.output)
    assert {"schedules", "violations", "faults", "schedules_per_s", "first_failure_seed"} <= set(document)
    assert done.return_value == 0 and document["schedules"] == 6 and document["first_failure_seed"] is None
    assert document["first_failure"] is None


def test_a_campaign_prints_its_faults() -> None:
    done = invoke("--campaign", "3", "--jobs", "1", "--nodes", "3", "--rounds", "4", "--faults", "loss=0.5")
    assert "3 schedules, 0 violations, 1 run twice, with the same hash" in done.output and "loss" in done.output


def test_a_campaign_counts_algorithms_topologies_and_codecs() -> None:
    words = ("--campaign", "3", "--jobs", "1", "--nodes", "3", "--rounds", "2", "--faults", "none")
    fixed = ("--algorithm", "dpsgd+nesterov", "--topology", "ring", "--codec", "qsgd:bits=6")
    done = invoke(*words, *fixed)
    for line in ("algorithms: dpsgd 3", "momentum: nesterov 3", "topologies: ring 3", "codecs: qsgd:bits=6 3"):
        assert line in done.output.splitlines()
    document = json.loads(invoke(*words, *fixed, "--json").output)
    assert document["algorithms"] == {"dpsgd+nesterov": 3} and document["topologies"] == {"ring": 3}
    assert document["codecs"] == {"qsgd:bits=6": 3} and document["replays"] == 1


def test_running_one_again_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = ("--nodes", "3", "--rounds", "2", "--algorithm", "dpsgd", "--topology", "ring")
    with monkeypatch.context() as patched:
        patched.setattr(checkers, "ROW_TOLERANCE", -1.0)
        assert (
            "none run twice (the first and every 50th are, unless they fail)"
            in invoke("--campaign", "2", "--jobs", "1", *fixed).output
        )
    hashes = iter(range(100))
    monkeypatch.setattr(trace.Trace, "digest", lambda _: str(next(hashes)))
    done = invoke("--campaign", "2", "--jobs", "1", *fixed)
    assert "1 run twice, 1 of them with another hash" in done.output and done.return_value == 6


def test_a_recipe_fixes_its_parts() -> None:
    recipe = recipes.load("quickstart-gossip")
    options = fixed_by(recipe, Options(rounds=4))
    schedule = draw(1, options)
    assert (schedule.nodes, schedule.topology, schedule.algorithm) == (4, Named("ring"), Named("dpsgd"))
    assert schedule.deadline_s == recipe.gossip.deadline_s
    sets = ["gossip.momentum=nesterov", "training.momentum=0", "gossip.momentum_factor=0.5"]
    named = (fixed_by(recipes.load("quickstart-gossip", sets), Options()).algorithms or ())[0]
    assert str(named) == "dpsgd+nesterov:momentum_factor=0.5"
    with pytest.raises(ConfigError, match="server recipe"):
        fixed_by(recipes.load("quickstart-server"), Options())
    done = invoke("quickstart-gossip", "--rounds", "3", "--json", "--faults", "none", "--deadline", "2")
    assert done.return_value == 0 and json.loads(done.output)["violations"] == []


def test_a_failure_ends_with_6_and_a_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkers, "ROW_TOLERANCE", -1.0)  # no row is right any more
    fixed = ("--nodes", "3", "--rounds", "3", "--algorithm", "dpsgd", "--topology", "ring")
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
    "words", [["--algorithm", "dpsdg"], ["--faults", "los"], ["--topology", "d2"], ["--codec", "x"]]
)
def test_mistakes_are_config_errors(words: list[str]) -> None:
    for more in ([], ["--campaign", "3"]):
        assert isinstance(invoke(*words, *more).exception, ConfigError)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--algorithm choco", "unknown algorithm 'choco'; did you mean choco-sgd?"),
        ("--algorithm dpsgd --algorithm choco", "unknown algorithm 'choco'; did you mean choco-sgd?"),
        ("--algorithm choco-sgd+nestrov", "unknown momentum 'nestrov'; did you mean nesterov?"),
        ("--algorithm choco-sgd:etta=1", "unknown parameter of algorithm 'choco-sgd' 'etta'; did you mean eta?"),
        ("--algorithm choco-sgd:eta=2", "eta of choco-sgd = 2 must be"),
        ("--codec topk:rati=0.1", "did you mean ratio?"),
        ("--topology rng", "unknown topology 'rng'; did you mean ring?"),
        ("--topology ring:degree=3", "unknown parameter of topology 'ring' 'degree'"),
        ("--topology file", "needs its path"),
        ("--workload consensu", "unknown workload 'consensu'; did you mean consensus?"),
        ("--algorithm choco-sgd --topology directed-ring", "choco-sgd needs symmetric weights"),
        ("--algorithm dpsgd --algorithm choco-sgd --topology directed-ring", "choco-sgd needs symmetric weights"),
        ("--topology random-regular:degree=9", "degree"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--campaign", "3")])
def test_mistakes_are_told_in_one_sentence_before_anything_is_printed(
    words: str, says: str, more: tuple[str, ...]
) -> None:
    done = invoke("--seed", "1", *words.split(), *more)
    assert isinstance(done.exception, ConfigError) and says in str(done.exception) and done.output == ""


@pytest.mark.parametrize("topology", ["directed-ring", "torus", "exponential"])
def test_what_is_drawn_goes_with_a_fixed_topology(topology: str) -> None:
    drawn = [draw(seed, Options(topology=Named(topology))) for seed in range(40)]
    assert len({s.algorithm.name for s in drawn}) > 5 and len({s.nodes for s in drawn}) > 1


def test_nothing_suits_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "unfit", lambda *_: "not today")
    with pytest.raises(ConfigError, match="no topology of 3 nodes suits dpsgd with fp32; ring: not today"):
        draw(1, Options(algorithms=(Named("dpsgd"),), nodes=3, codec=Named("fp32")))
    with pytest.raises(ConfigError, match="^not today$"):
        draw(1, Options(topology=Named("ring")))


def test_a_schedule_that_does_not_go_together_is_not_run() -> None:
    schedule = draw(1, Options(algorithms=(Named("choco-sgd"),), faults="none"))
    with pytest.raises(ConfigError, match="symmetric weights"):
        run_schedule(replace(schedule, topology=Named("directed-ring")))
