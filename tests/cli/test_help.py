"""The command line is light: help and bad usage load no heavy package, and every command explains itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgegossip import recipe
from edgegossip.cli.main import COMMANDS

HEAVY = ("torch", "grpc", "flwr", "matplotlib", "rich")
PROBE = """
import sys
from edgegossip.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("LOADED", [m for m in {heavy!r} if m in sys.modules], file=sys.stderr)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    probe = PROBE.replace("{heavy!r}", repr(HEAVY))
    return subprocess.run([sys.executable, "-c", probe, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["recipe", "list"], ["recipe", "keys"], ["nonsense"]])
def test_loads_nothing_heavy(arguments: list[str]) -> None:
    done = run(*arguments)
    assert "LOADED []" in done.stderr, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0 and "Usage: edgegossip" in done.stdout and "LOADED []" in done.stderr
    assert command in run("--help").stdout


def test_usage_errors_exit_with_2_and_no_traceback() -> None:
    for arguments in (["run"], ["nonsense"], ["run", "x", "--nonsense"], ["report", "/nonexistent"]):
        done = run(*arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_recipe_commands() -> None:
    assert json.loads(run("recipe", "list", "--json").stdout) == recipe.names()
    shown = run("recipe", "show", "quickstart-gossip", "--set", "training.lr=0.5").stdout
    assert "lr = 0.5" in shown and 'mode = "gossip"' in shown
    assert any(row["key"] == "gossip.topology" for row in json.loads(run("recipe", "keys", "--json").stdout))


def test_a_board_s_folder_has_the_same_name_wherever_it_is_shown() -> None:
    """What the scp line makes is what --identity takes, so that lines may be copied from any page."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "edgegossip/cli").glob("*.py")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    made = {name for text in texts for name in re.findall(r"scp -r fleet/boards/pi-\d+ pi-\d+:(\S+?)[`\s]", text)}
    taken = {name for text in texts for name in re.findall(r"edgegossip node .*--identity ([a-z][a-z0-9-]*)", text)}
    assert made == taken == {"identity"}
