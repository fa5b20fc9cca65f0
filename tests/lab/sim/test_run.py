"""Whole schedules: the same seed gives the same run, nothing is violated, and what is broken on
purpose is found."""

from __future__ import annotations

import re
import shlex

import pytest

from edgegossip import gossip
from lab.sim import (
    Named,
    Options,
    Schedule,
    campaign,
    command,
    draw,
    run_schedule,
    shrink,
)
from lab.sim.disk import StoredDisk
from lab.sim.schedule import every_algorithm, with_params


@pytest.mark.parametrize("name", gossip.names())
def test_a_seed_gives_the_same_run_bit_for_bit(name: str) -> None:
    options = Options(
        algorithms=(Named(name),), codec=Named("minmax8"), nodes=3, rounds=3, faults="loss=0.2,crash,delay"
    )
    schedule = draw(5, options)
    one, two = run_schedule(schedule), run_schedule(schedule)
    assert one.digest == two.digest and not one.violations
    assert one.rounds >= 3 * 3 and one.events > one.rounds


@pytest.mark.parametrize("seed", range(6))
def test_frames_as_bytes_and_as_they_are_go_the_same_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = draw(seed, Options(nodes=4, rounds=6))
    seen = []
    for every in (1, 10**9):
        monkeypatch.setattr("lab.sim.schedule.WIRE_EVERY", every)
        seen.append((schedule.by_wire, run_schedule(schedule).digest))
    assert [wire for wire, _ in seen] == [True, False] and seen[0][1] == seen[1][1]


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


def test_a_disk_that_is_full_or_slow_has_an_older_checkpoint_or_none() -> None:
    def start(faults: str) -> str:
        (found,) = re.findall(r"5\.\d+   1  starts from (.*), in round", traced("dpsgd", f"{faults}crash@4-5:1"))
        return str(found)

    assert start("full-disk@0-6:1,") == "nothing"
    usual, slow = (int(start(f).removeprefix("its checkpoint of round ")) for f in ("", "slow-disk=2@0-6:1,"))
    assert 0 < slow < usual


def test_a_deaf_board_hears_nothing_and_is_heard() -> None:
    text = traced("dpsgd", "deaf@1-4:1")
    heard = [float(line.split()[0]) for line in text.splitlines() if re.search(r"   1  <- \d", line)]
    assert ", lost (deaf)" in text and not [s for s in heard if 2.5 < s < 4.0]
    assert [s for s in re.findall(r"([\d.]+)   [02]  <- 1: model", text) if 1.1 < float(s) < 4.0]


def test_a_small_campaign_over_everything_finds_nothing() -> None:
    result = campaign(range(16), Options(rounds=8))
    assert result.schedules == 16 and result.violations == 0 and result.replays == 1, result.failures
    assert len(result.faults) > 10 and len(result.algorithms) > 8


STREAMING = (
    Named.of("dpsgd+outer-nesterov", {"outer_momentum": 0.4, "outer_overlap": True}),
    Named.of("dpsgd+outer-heavy-ball", {"outer_momentum": 0.3, "outer_overlap": True, "outer_fragments": 2}),
    Named.of("choco-sgd+outer-heavy-ball", {"outer_momentum": 0.3, "outer_overlap": True, "outer_fragments": 2}),
    Named.of("deep-squeeze+outer-nesterov", {"outer_momentum": 0.2, "outer_fragments": 2}),
)


@pytest.mark.parametrize("seeds", [3, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("algorithm", STREAMING, ids=str)
def test_fragments_and_overlap_bear_what_boards_and_links_do(algorithm: Named, seeds: int) -> None:
    """Kills, lost disks, old checkpoints, lost messages, liars: what each neighbour holds of the
    others stays the same, nobody stalls, and all end near each other."""
    result = campaign(range(seeds), Options(algorithms=(algorithm,), rounds=6))
    assert result.schedules == seeds and result.violations == 0, result.failures
    schedule = draw(3, Options(algorithms=(algorithm,), nodes=4, faults="crash=2,old-checkpoint,loss=0.1"))
    one, two = run_schedule(schedule), run_schedule(schedule, make_disk=StoredDisk)
    assert (one.digest, one.violations) == (two.digest, ()) and one.seen["crash"]


def test_everything_fixed_is_what_is_drawn_and_the_rest_stays() -> None:
    free = draw(11, Options())
    fixed = draw(11, Options(nodes=free.nodes, rounds=free.rounds, codec=free.codec))
    assert fixed == free
    assert draw(11, Options(workload="consensus", deadline_s=3.0)).deadline_s == 3.0
    assert {a.name.partition("+")[0] for a in every_algorithm()} == set(gossip.names())


def test_no_averaging_rate_is_drawn_above_the_default_for_the_codec() -> None:
    topk = Named.of("topk", {"ratio": 0.25})
    drawn = [with_params(seed, Named(name), topk).values for name in ("choco-sgd", "dpsgd") for seed in range(40)]
    assert {p["eta"] for p in drawn if "eta" in p} == {0.3, 0.375, 0.6}
    assert all(with_params(s, Named("quant-sgp"), topk).values.get("eta", 0.0) <= 0.375 for s in range(40))
    assert draw(460, Options(codec=topk)).algorithm == Named.of("quant-sgp", {"eta": 0.375})


@pytest.mark.parametrize("seed", range(4))
def test_the_command_of_a_schedule_gives_it_again(seed: int) -> None:
    schedule = draw(seed, Options(values=16 + seed % 2))
    words = shlex.split(schedule.command())
    assert words[:3] == ["python", "-m", "lab.sim"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    asked = command.Sim(
        seed=int(given["--seed"]),
        faults=given["--faults"],
        algorithms=(given["--algorithm"],),
        topology=given["--topology"],
        codec=given["--codec"],
        nodes=int(given["--boards"]),
        rounds=int(given["--rounds"]),
        workload=given["--workload"],
        deadline_s=float(given["--deadline"]),
        values=int(given.get("--values", 16)),
    )
    assert draw(seed, command.options_of(asked)) == schedule


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
