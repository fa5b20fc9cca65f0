"""The command line is light: help and bad usage load no heavy package, and every command explains
itself."""

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
EVERY_HELP = """
import sys
from edgegossip.cli.main import main
for command in sys.argv[1:]:
    print("\\f" + command)
    try:
        main([command, "--help"])
    except SystemExit as end:
        print("EXIT", end.code, [m for m in {heavy!r} if m in sys.modules])
"""


def run(*arguments: str, probe: str = PROBE) -> subprocess.CompletedProcess[str]:
    probe = probe.replace("{heavy!r}", repr(HEAVY))
    return subprocess.run([sys.executable, "-c", probe, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["recipe", "list"], ["recipe", "keys"], ["nonsense"]])
def test_loads_nothing_heavy(arguments: list[str]) -> None:
    done = run(*arguments)
    assert "LOADED []" in done.stderr, done.stderr


def test_every_command_has_help() -> None:
    """And none loads anything heavy to show it, whichever came before."""
    listed = run("--help").stdout
    _, *pages = run(*COMMANDS, probe=EVERY_HELP).stdout.split("\f")
    for command, page in zip(COMMANDS, pages, strict=True):
        assert page.startswith(f"{command}\nUsage: edgegossip {command}") and page.endswith("EXIT 0 []\n"), page
        assert command in listed


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
    """What the scp line makes is what --identity takes, so that lines may be copied from any
    page."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "edgegossip/cli").glob("*.py")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    made = {name for text in texts for name in re.findall(r"scp -r fleet/boards/pi-\d+ pi-\d+:(\S+?)[`\s]", text)}
    taken = {name for text in texts for name in re.findall(r"edgegossip node .*--identity ([a-z][a-z0-9-]*)", text)}
    assert made == taken == {"identity"}
