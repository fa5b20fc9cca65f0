"""The command line is light: help and bad usage load no heavy package, and every command explains
itself."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgegossip import gossip, recipe
from edgegossip.cli.main import COMMANDS, cli
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
NAMES = {name: entry for section in COMMANDS.values() for name, entry in section.items()}
HEAVY = ("torch", "grpc", "flwr", "matplotlib", "rich")
EACH = """
import sys
from edgegossip.cli.main import main
for line in sys.argv[1:]:
    print("\\f" + line)
    try:
        main(line.split())
    except SystemExit as end:
        print("EXIT", end.code, [m for m in {heavy!r} if m in sys.modules])
"""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """What a process prints for one command line after the other, and what it has loaded then."""
    lines = ["--help", "--version", "recipe list", "recipe keys", "nonsense", *(f"{name} --help" for name in NAMES)]
    words = [sys.executable, "-c", EACH.replace("{heavy!r}", repr(HEAVY)), *lines]
    _, *found = subprocess.run(words, capture_output=True, text=True).stdout.split("\f")
    return dict(page.split("\n", 1) for page in found)


def test_loads_nothing_heavy(pages: dict[str, str]) -> None:
    ended = {line: page.splitlines()[-1] for line, page in pages.items()}
    assert ended == {line: f"EXIT {2 if line == 'nonsense' else 0} []" for line in pages}


def test_every_command_has_help(pages: dict[str, str]) -> None:
    for command, entry in NAMES.items():
        assert pages[f"{command} --help"].startswith(f"Usage: edgegossip {command}"), command
        assert bool(entry.help) == bool(re.search(rf"^  {command} +\S", pages["--help"], re.MULTILINE)), command


def test_the_list_of_commands_is_in_groups_of_whole_lines(pages: dict[str, str]) -> None:
    listed = pages["--help"].partition("EXIT ")[0]
    assert re.findall(r"^(\w+):$", listed, re.MULTILINE) == ["Options", "Train", "Look", "Boards", "Research"]
    assert "..." not in listed.partition("Train:")[2] and max(map(len, listed.splitlines())) <= 80
    assert all(re.search(rf"\b{code}\b", listed.partition("Ends with")[2]) for code in (0, 2, 3, 4, 5, 6, 7, 8, 130))


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [(["runn"], "run"), (["reprot"], "report"), (["codec", "lst"], "list"), (["run", "--bords", "3"], "--boards")],
)
def test_a_mistyped_command_or_option_gets_the_nearest_one(
    arguments: list[str], nearest: str, command: Command
) -> None:
    code, _, err = command(*arguments)
    assert code == 2 and re.search(rf"(?i)did you mean .*{nearest}", err), err


def test_usage_errors_exit_with_2_and_no_traceback(command: Command) -> None:
    for arguments in (["run"], ["nonsense"], ["run", "x", "--nonsense"], ["report", "/nonexistent"]):
        code, _, err = command(*arguments)
        assert code == 2 and "Traceback" not in err, err


def test_recipe_commands(command: Command) -> None:
    assert json.loads(command("recipe", "list", "--json")[1]) == recipe.names()
    shown = command("recipe", "show", "quickstart-gossip", "--set", "training.lr=0.5")[1]
    assert "lr = 0.5" in shown and 'mode = "gossip"' in shown
    assert any(row["key"] == "gossip.topology" for row in json.loads(command("recipe", "keys", "--json")[1]))


def test_what_a_recipe_may_name_is_listed(command: Command) -> None:
    algorithms = {row["name"]: row for row in json.loads(command("algorithm", "list", "--json")[1])}
    assert set(algorithms) == set(gossip.names()) and all(row["help"] for row in algorithms.values())
    assert "momentum" in {param["name"] for param in algorithms["motef"]["params"]}
    models = {row["name"]: row for row in json.loads(command("model", "list", "--json")[1])}
    assert "hidden" in models["mlp"]["params"] and all(row["help"] for row in models.values())
    assert "resnet20" in command("model", "list")[1] and "choco-sgd" in command("algorithm", "list")[1]


def flags(command: click.Command, above: click.Context | None = None) -> Iterator[str]:
    """Yield what a command and those below it take and show."""
    context = click.Context(command, parent=above)
    for parameter in command.get_params(context):
        if not getattr(parameter, "hidden", False):
            yield from [*parameter.opts, *parameter.secondary_opts]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            yield from flags(inner, context)


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a module may say to people: its strings of more than a word, docstrings left
    out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and " " in text.strip():
                yield node.lineno, text


def test_every_option_that_messages_name_is_there() -> None:
    """But for arguments of other programs."""
    known, named = {*flags(cli)}, set()
    flag_in = re.compile(r"(?<!^)(?<!wipefs )(?<!systemctl start )(?<!tensorboard )(?<![\w-])--[a-z][a-z0-9-]*")
    for path in sorted((ROOT / "edgegossip").rglob("*.py")):
        if not re.search("--[a-z]", path.read_text(encoding="utf-8")):
            continue
        for line, text in sentences(path):
            for flag in flag_in.findall(text):
                named.add(flag)
                assert flag in known, f"{path.relative_to(ROOT)}, line {line}: there is no {flag}: {text}"
    assert {"--output", "--set", "--resume"} <= named


def test_plan_names_the_fleets_that_it_knows(pages: dict[str, str]) -> None:
    from edgegossip.scale.devices import fleet_names

    shown = pages["plan --help"]
    assert [name for name in fleet_names() if name not in shown] == []


def test_completion_knows_the_commands(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    for name, value in {
        "_EDGEGOSSIP_COMPLETE": "bash_complete",
        "COMP_WORDS": "edgegossip re",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert command()[1].split() == ["plain,recipe", "plain,report"]


def test_a_board_s_folder_has_the_same_name_wherever_it_is_shown() -> None:
    """What the scp line makes is what --identity takes, so that lines may be copied from any
    page."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "edgegossip/cli").glob("*.py")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    made = {name for text in texts for name in re.findall(r"scp -r fleet/boards/pi-\d+ pi-\d+:(\S+?)[`\s]", text)}
    taken = {name for text in texts for name in re.findall(r"edgegossip node .*--identity ([a-z][a-z0-9-]*)", text)}
    assert made == taken == {"identity"}
