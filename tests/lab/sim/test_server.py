"""Server runs in the simulator: drawn, replayed, made small, and the same to the bit when a
coordinator is killed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from edgegossip import recipe as recipes
from edgegossip.types import ConfigError
from lab.sim import (
    RULES,
    SERVER_KINDS,
    SERVER_RULES,
    Named,
    Options,
    ServerSchedule,
    campaign,
    faults,
    run_server,
    schedule_of,
    server_schedule,
    shrink,
)
from lab.sim.__main__ import sim
from lab.sim.command import fixed_by
from lab.sim.mutants.catalogue import MUTANTS
from lab.sim.shell.run import SHELL_RULES


def invoke(*words: str) -> Any:
    return CliRunner().invoke(sim, list(words), standalone_mode=False, catch_exceptions=True)


def drawn(seed: int, spec: str = "all", server: str | None = None, **more: Any) -> ServerSchedule:
    return server_schedule.draw(seed, Options(mode="server", faults=spec, server=server, **more))


def test_schedules_break_nothing_and_go_the_same_way_again() -> None:
    for seed in range(40):
        first = run_server(drawn(seed))
        assert not first.violations, f"{first.schedule.command()}: {first.violations[0]}"
        if seed % 4 == 0:
            assert run_server(drawn(seed)).digest == first.digest


@pytest.mark.parametrize(
    "server", ["fraction=0.5", "quorum=2", "downlink=elastiquant", "downlink=minmax8,fraction=0.5"]
)
def test_control_variates_have_their_mean_whatever_happens(server: str) -> None:
    for seed in range(12):
        outcome = run_server(drawn(seed, server=f"combiner=scaffold,{server}"))
        assert not outcome.violations, f"{outcome.schedule.command()}: {outcome.violations[0]}"


def test_a_correction_beyond_what_16_bits_hold_breaks_no_promise() -> None:
    """A liar's huge update makes control variates that fp16 cuts off on their way down."""
    server, faults = "plain,downlink=fp16,quorum=1,combiner=scaffold", "byzantine-huge=0.56@0.26-1.32:3"
    words = f"--mode server --seed 50369 --codec fp32 --boards 4 --rounds 2 --server {server} --faults {faults}"
    assert invoke(*words.split()).exit_code == 0


def test_a_command_line_replays_exactly_its_schedule() -> None:
    for seed in range(8):
        schedule = drawn(seed)
        words = shlex.split(schedule.command())[3:]
        document = json.loads(invoke(*words, "--json").output)
        assert document["hash"] == run_server(schedule).digest and document["command"] == schedule.command()


def kills() -> Iterator[Any]:
    """Every codec with every server, killed one way or the other in turn; the rest is slow."""
    servers = (
        "combiner=momentum",
        "downlink=qsgd:bits=8",
        "weighting=uniform,downlink=fp16",
        "combiner=scaffold",
        "combiner=scaffold,downlink=elastiquant",
    )
    for a, codec in enumerate(("elasticl", "ef-signsgd", "qsgd")):
        for b, server in enumerate(servers):
            for c, kill in enumerate(("coordinator-kill", "coordinator-power-cut")):
                yield pytest.param(kill, server, codec, marks=pytest.mark.slow if (a + b + c) % 2 else ())


@pytest.mark.parametrize(("kill", "server", "codec"), [*kills()])
def test_a_killed_coordinator_changes_no_bit_of_the_final_model(kill: str, server: str, codec: str) -> None:
    """All boards are waited for, so the same updates come with and without the kill."""
    killed = 0
    for seed in range(3):
        plain = f"plain,deadline_s=60,{server}"
        schedule = drawn(seed, f"{kill}=2", plain, codec=Named(codec), nodes=4, rounds=6)
        calm, broken = run_server(replace(schedule, faults=())), run_server(schedule)
        assert not calm.violations and not broken.violations
        assert calm.model is not None and broken.model is not None
        assert calm.model.tobytes() == broken.model.tobytes()
        killed += broken.seen.get(kill, 0)
    assert killed >= 2, "nothing was interrupted"


def test_without_faults_every_update_is_used_and_the_model_learns() -> None:
    schedule = drawn(3, "none", "plain", codec=Named("fp32"), nodes=5, rounds=40)
    outcome = run_server(schedule)
    assert not outcome.violations and outcome.rounds == 5 * 40
    assert outcome.model is not None
    few = run_server(replace(schedule, rounds=2)).model
    many = run_server(replace(schedule, rounds=41)).model
    assert few is not None and many is not None
    assert np.linalg.norm(many - outcome.model) < 0.1 * np.linalg.norm(outcome.model - few)


def test_every_kind_of_fault_does_something() -> None:
    for name in SERVER_KINDS:
        assert any(name in run_server(drawn(seed, name, rounds=8)).seen for seed in range(12)), name


def test_the_guide_names_every_kind_with_its_range_and_every_rule() -> None:
    guide = (Path(__file__).parents[3] / "lab" / "sim" / "README.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    for kind in {**faults.KINDS, **SERVER_KINDS}.values():
        named = [row for row in rows if f"`{kind.name}`" in row]
        assert named, kind.name
        assert not kind.unit or any(f"{kind.low:g} to {kind.high:g}" in row for row in named), kind.name
    for chapter, rules in (("What is checked", RULES), ("Whole boards", SHELL_RULES), ("Server runs", SERVER_RULES)):
        text = guide.partition(f"## {chapter}")[2].partition("\n## ")[0]
        assert not {rule for rule in rules if f"`{rule}`" not in text}, chapter


def test_one_seed_in_four_is_a_server_run() -> None:
    both = Options(mode="both")
    assert [isinstance(schedule_of(seed, both), ServerSchedule) for seed in range(8)] == 2 * [False, False, False, True]
    result = campaign(range(8), Options(mode="both", nodes=3, rounds=3))
    assert (result.schedules, result.server, result.violations) == (8, 2, 0)
    assert result.to_json()["server"] == 2 and sum(result.codecs.values()) == 8


@pytest.mark.parametrize(
    ("options", "server"),
    [
        (Options(mode="both", algorithms=(Named("dpsgd"),)), False),
        (Options(mode="both", topology=Named("ring")), False),
        (Options(mode="both", workload="consensus"), False),
        (Options(mode="both", faults="clock-jump=2"), False),
        (Options(mode="both", faults="loss=0.1,coordinator-kill@1-2"), True),
        (Options(mode="both", server="quorum=2"), True),
    ],
)
def test_what_only_one_of_them_has_says_which_it_is(options: Options, server: bool) -> None:
    assert {isinstance(schedule_of(seed, options), ServerSchedule) for seed in range(8)} == {server}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--server", "quorums=2"), "unknown key 'quorums'"),
        (("--mode", "server", "--topology", "ring"), "no topology: leave --topology away, or --mode server"),
        (("--server", "quorum=2", "--algorithm", "sgp"), "no algorithm: leave --algorithm away, or --server"),
        (("quickstart-server", "--workload", "consensus"), "no workload: leave --workload away, or quickstart-server"),
        (("--mode", "gossip", "--faults", "hang=1"), "hang is a fault of server runs: --mode server"),
        (("--mode", "server", "--faults", "one-way-cut"), "one-way-cut is a fault of gossip runs: --mode gossip"),
        (("--mode", "gossip", "--faults", "power-cut"), "power-cut is a fault of whole boards: --mode shell"),
        (("--mode", "gossip", "quickstart-server"), "server recipe"),
        (("--mode", "shell", "--server", "quorum=2"), "no coordinator"),
        (("--mode", "server", "quickstart-gossip"), "gossip recipe"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_is_allowed(words: tuple[str, ...], said: str) -> None:
    done = invoke(*words)
    assert isinstance(done.exception, ConfigError) and said in str(done.exception)


def test_a_recipe_fixes_a_server_run() -> None:
    recipe = recipes.load("quickstart-server", ["server.quorum=3", "server.downlink=fp16", "server.fraction=0.5"])
    schedule = schedule_of(2, fixed_by(recipe, Options(mode="both", server="min_nodes=2")))
    assert isinstance(schedule, ServerSchedule)
    s = schedule.settings
    assert (s.quorum, s.downlink, s.fraction, s.min_nodes, s.deadline_s) == (3, "fp16", 0.5, 2, 60.0)
    assert schedule.nodes == 4 and not run_server(schedule).violations
    other = schedule_of(
        2, fixed_by(recipes.with_settings(recipe, {"server.strategy": "scaffold"}), Options(mode="both"))
    )
    assert isinstance(other, ServerSchedule) and other.settings == replace(s, combiner="scaffold", min_nodes=1)
    done = invoke("quickstart-server", "--rounds", "3", "--faults", "none")
    assert done.return_value == 0 and "updates used" in done.output and "round 2 ends with" in done.output


def test_a_failure_is_made_small_and_its_command_replays_it() -> None:
    schedule = drawn(0, "all", "quorum=3", nodes=4, rounds=8)

    def fails(candidate: ServerSchedule) -> str | None:
        violations = run_server(candidate).violations
        return violations[0].rule if violations else None

    with MUTANTS["server-quorum-off-by-one"].applied():
        small = shrink(schedule, fails)
        done = invoke(*shlex.split(small.command())[3:])
    assert fails(schedule) is None
    assert done.return_value == 6 and "VIOLATION of ends" in done.output
    assert len(small.faults) <= len(schedule.faults) and small.rounds < schedule.rounds
