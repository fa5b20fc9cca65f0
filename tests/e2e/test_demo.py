"""`edgegossip demo` as a newcomer types it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgegossip.cli.main import main
from edgegossip.fleet.launch import demo
from edgegossip.telemetry.run_folder import RunFolder
from edgegossip.types import EXIT_HOST, EXIT_RUIN, HostError
from tests.e2e.command import edgegossip
from tests.report.web.synthetic import write_run


@pytest.mark.slow
def test_it_trains_both_ways_and_says_what_to_try_next(tmp_path: Path) -> None:
    short = ("--set", "run.rounds=3", "--set", "network.tls=off", "--set", "run.nodes=2", "--no-plots")
    with edgegossip("demo", *short, "--set", "gossip.topology=complete", runs=tmp_path) as running:
        code, out, err = running.finish()
        assert running.nobody_left()
    assert code == 0, err
    end = out[out.index("peer to peer: ") :].splitlines()
    assert re.match(r"peer to peer: [\d.]+ % on digits it never saw, in .* s, with 231 kB sent; \d+ % of a", end[0])
    assert end[1].startswith("through a coordinator: ") and end[2].startswith("verdict: every board finished")
    gossip, server = sorted(tmp_path.iterdir(), key=lambda path: path.name.endswith("server"))
    assert gossip.name.endswith("quickstart-gossip") and f"edgegossip report {gossip} {server}" in out


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that are written instead of trained: those of the list, an error is raised."""
    runs: list[Any] = []

    @contextmanager
    def trained(recipe: Any, runs_dir: Path, *, quiet: bool) -> Iterator[Any]:
        if isinstance(run := runs.pop(0), Exception):
            raise run
        yield RunFolder.reopen(run)

    monkeypatch.setattr(demo, "trained", trained)
    return runs


def test_what_it_tells_to_try_can_be_typed(
    played: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played += [write_run(tmp_path / name, boards=3, rounds=8, lost=False) for name in ("a", "b")]
    code = demo.run_demo(tmp_path, (), plots=False)
    commands = re.findall(r"^  (edgegossip .*)$", capsys.readouterr().out, re.MULTILINE)
    assert code in (0, 8) and len(commands) == 3
    for line in commands:
        words = shlex.split(line)[1:]
        with pytest.raises(SystemExit) as end:
            main([*words, "--dry-run"] if words[0] == "run" else [*words, "--no-plots", "--json"])
        assert not end.value.code, line


def test_without_flower_the_other_way_is_shown_all_the_same(
    played: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played += [write_run(tmp_path, boards=3, rounds=8, lost=True), HostError("it needs Flower")]
    assert demo.run_demo(tmp_path, (), plots=False) == max(EXIT_HOST, EXIT_RUIN)
    short = capsys.readouterr().out.partition("peer to peer: ")[2].splitlines()
    assert re.search(r"sent; \d+ % of a round is \w+$", short[0])
    assert short[1] == "through a coordinator: it needs Flower" and short[2].startswith("RUIN: the fleet split")
