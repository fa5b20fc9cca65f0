"""What the documentation says can be typed exists, and what it links to is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgegossip import recipe
from edgegossip.cli.main import cli
from edgegossip.types import EdgegossipError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CURRENT = [page for page in PAGES if (ROOT / "docs/results") not in page.parents]  # results say what was typed then


def commands(text: str) -> Iterator[str]:
    """Yield the lines of code blocks that call edgegossip, continued lines joined."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:\$ )?(?:sudo )?(?:\$\(which edgegossip\)|edgegossip) (.+)", line.strip()):
                yield found[1]


def unknown(line: str) -> str:
    """Name what is wrong with a call, as the command line itself would: a command, an option, a
    value, a recipe key. Empty where nothing is. Paths need not be there."""
    words = shlex.split(re.split(r" (?:&&|\||>|;) ", line)[0], comments=True)
    command: click.Command = cli
    context = click.Context(command, info_name="edgegossip")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None and command is not cli:  # a word for the command's default, such as a run folder
            return ""
        if inner is None:
            return f"command {words[0]}"
        command, words = inner, words[1:]
        context = click.Context(command, info_name=context.info_name, parent=context)
    if "-h" in words or "--help" in words or isinstance(command, click.Group):
        return ""
    is_whole = words[-1:] != ["..."]
    words = words if is_whole else words[:-1]
    try:
        context = command.make_context(command.name, words, resilient_parsing=not is_whole)
        settings = context.params.get("settings")
        if settings and any("--set" in param.opts for param in command.params):
            named = str(context.params.get("recipe"))
            recipe.load(named if named in recipe.names() else "quickstart-gossip", settings)
    except (click.UsageError, EdgegossipError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: Path(value))
    wrong = {line: fault for line in commands(page.read_text()) if (fault := unknown(line))}
    assert not wrong


def test_the_check_finds_what_is_not_there() -> None:
    assert unknown("runn quickstart-gossip") == "command runn" and "--bords" in unknown("run x --bords 3")
    assert "run.nods" in unknown("run x --set run.nods=3") and "four" in unknown("run x --boards four")
    assert not unknown("run train.py --boards 4 -- --data data/{board}")
    assert list(commands("```\n$ edgegossip run a \\\n    --boards 3\nls\n```\n")) == ["run a      --boards 3"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found |= {plain.replace(" ", "-"), re.sub(r"[-\s]+", "-", plain).strip("-")}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
            dead.append(target)
    assert not dead


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in CURRENT if page.name != "README.md"}
    assert {page for page in pages if not page.startswith("decisions/")} == {p for p in listed if "results/" not in p}
    assert all((ROOT / "docs" / page).is_file() for page in listed)
