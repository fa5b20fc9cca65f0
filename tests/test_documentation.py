"""What the documentation says can be typed exists, and what it links to is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgegossip.cli.main import cli

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
    """Name what the line calls and does not exist; empty where all does."""
    words = shlex.split(re.split(r" (?:&&|\||>|;) ", line)[0], comments=True)
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None and command is not cli:  # a word for the command's default, such as a run folder
            break
        if inner is None:
            return f"command {words[0]}"
        command, words = inner, words[1:]
    if "--" in words:
        words = words[: words.index("--")]
    known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return ", ".join(flag for flag in flags if flag not in known and not isinstance(command, click.Group))


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    wrong = {line: fault for line in commands(page.read_text()) if (fault := unknown(line))}
    assert not wrong


def test_the_check_finds_what_is_not_there() -> None:
    assert unknown("runn quickstart-gossip") == "command runn" and unknown("run x --bords 3") == "--bords"
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
