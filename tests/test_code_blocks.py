"""The code in README.md and docs/ runs, page by page and from top to bottom, in an empty folder.

Python is executed, one namespace a page. TOML and JSON are read by those who read a user's. Of the
shell, every `edgegossip` command is parsed with its recipe keys, and those that end at once are
run; `run` and `report` are spared what takes long. A page may say, in a comment before a block:

    <!-- not run: why -->      parsed, and no more
    <!-- slow: why -->         run by `make test-slow` alone
    <!-- given: code -->       what a reader has by then: Python or commands, run before the block

What was typed for lab/results/pages stays as it was; docs/python.md has tests/test_python_page.py.
"""

from __future__ import annotations

import glob
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from edgegossip import recipe
from edgegossip.cli.main import cli
from edgegossip.scale.devices import load_fleet
from edgegossip.studies.cases import StudyPlan, make_cases, of_recipe, parse_sweep, product, read_file
from edgegossip.types import EdgegossipError
from tests.e2e.played import played
from tests.test_documentation import CURRENT, ROOT

# What ends at once and changes nothing outside its folder.
AT_ONCE = re.compile(
    r"(report|model (list|save)|runs|topology|sim|recipe|doctor|algorithm|codec (list|verify \w+ -)|"
    r"fleet (init|add|kit|list|set|revoke|status))\b(?!.*--(campaign|identity|recipe)\b)"
)
SHELL = re.compile(
    r"(\$ )?(edgegossip|sudo|make|python3?|pip|apt|scp|ssh|rsync|source|for|cd|cp|flwr|flower-\w+|jupyter|podman|"
    r"buildah|useradd|systemctl|docker|printf|xz|/opt/\S+) "
)
TOKEN = re.compile(r"^<!-- (not run|slow|given):\s(.*?)-->$|^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "sh", "python", "toml", "json", "diff", "hex"}


class Block(NamedTuple):
    """A block of code; `notes` are the comments before it: kind -> text."""

    line: int
    language: str
    code: str
    notes: dict[str, str]


def blocks(text: str) -> Iterator[Block]:
    notes: dict[str, str] = {}
    end = 0
    for token in TOKEN.finditer(text):
        kind, note, indent, language, code = token.groups()
        if text[end : token.start()].strip():
            assert not notes, f"a comment with no block after it: {notes}"
        end = token.end()
        if kind:
            notes[kind] = note
            continue
        line = text[: token.start()].count("\n") + 2
        yield Block(line, language, re.sub(f"^{indent}", "", code, flags=re.MULTILINE), notes)
        notes = {}
    assert not notes, f"a comment with no block after it: {notes}"


def typed(block: Block) -> str:
    """What a reader types of a block: its lines after "$ ", or all of one that begins with a
    command."""
    if block.language not in ("", "sh"):
        return ""
    if "\n$ " in f"\n{block.code}":
        return "\n".join(line[2:] for line in block.code.splitlines() if line.startswith("$ "))
    return block.code if SHELL.match(re.sub(r"^(#.*\n|\s)*", "", block.code)) else ""


def commands(script: str) -> Iterator[str]:
    """Yield the calls of edgegossip, without the program's name; continued lines are joined."""
    for line in script.replace("\\\n", " ").splitlines():
        for part in re.split(r" (?:&&|\||>|;) ", line):
            if found := re.match(r"(?:sudo )?(?:\$\(which edgegossip\)|edgegossip) (.+)", part.strip()):
                yield found[1]


def unknown(line: str) -> str:
    """Name what is wrong with a call, as the command line itself would: a command, an option, a
    value, a recipe key. Empty where nothing is. Paths need not be there."""
    words = shlex.split(line, comments=True)
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
    try:
        context = command.make_context(command.name, words if is_whole else words[:-1], resilient_parsing=not is_whole)
        named = str(context.params.get("recipe"))
        known = named if named in recipe.names() else "quickstart-gossip"
        if any("--set" in param.opts for param in command.params):
            settings, is_study = context.params.get("settings") or (), "sweeps" in context.params
            chosen = recipe.load(known, of_recipe(settings) if is_study else settings)
            if is_study:
                file = context.params["sweep_file"]
                plan = read_file(file) if file and not file.endswith(".toml") else StudyPlan()
                plan = plan.below(dict(map(recipe.parse_setting, settings)))
                make_cases(chosen, plan, product(map(parse_sweep, context.params["sweeps"])))
    except (click.UsageError, EdgegossipError) as error:
        return str(error)
    return ""


def call(line: str, is_slow: bool) -> None:
    """Run a command of edgegossip here, if it is one of those that end at once; `run` only where
    that may be slow, and else, as runs that a reader is to kill, with `--dry-run`."""
    words = shlex.split(line, comments=True)
    if words[0] == "run" and "--resume" not in words:
        is_killed = "run.rounds=3000" in words
        if not words[1].startswith("quickstart") and (not is_slow or words[1] != "train.py"):
            return  # scripts and others want data
        words[1:1] = ["--dry-run"] if is_killed or not is_slow else []
    elif not AT_ONCE.match(line):
        return
    if "--tell" in words:  # nobody listens
        at = words.index("--tell")
        del words[at : at + 2]
    if words[0] == "report" and not is_slow:
        words.append("--no-plots")
    if any("*" in word and not glob.glob(word) for word in words):  # folders fetched from boards
        return
    words = [one for word in words for one in sorted(glob.glob(word)) or [word]]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, f"edgegossip {line}: {done.output}{done.exception or ''}"


def read(block: Block, folder: Path) -> None:
    """TOML is a recipe; a fleet's profile where it names boards; a study's sweep where it names
    cases."""
    if block.language == "json":
        for line in block.code.splitlines():
            json.loads(line)
        return
    document = tomllib.loads(block.code)
    file = folder / "file.toml"
    file.write_text(block.code)
    reader = load_fleet if "boards" in document else read_file if "case" in document else recipe.load
    for name, _ in document.get("boards", ()):
        if name.endswith(".toml"):  # a board of the reader's
            shutil.copy(ROOT / "devices/raspberry-pi-4.toml", folder / name)
    reader(str(file))


def play(page: Path, folder: Path, is_slow: bool) -> dict[str, Any]:
    """Run all blocks of a page, and return what its Python made."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text()):
        where = f"{page.name}, line {block.line}"
        assert block.language in LANGUAGES, f"{where}: who runs {block.language}?"
        if given := [*commands(block.notes.get("given", ""))]:
            for line in given:
                call(line, is_slow)
        elif "given" in block.notes:
            exec(compile(block.notes["given"], f"{where}, given", "exec"), names)
        is_run = not block.notes.keys() & ({"not run"} if is_slow else {"not run", "slow"})
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
            if is_run:
                exec(code, names)
                if "edgegossip.join(" in block.code:
                    (folder / "train.py").write_text(block.code)
        elif block.language in ("toml", "json"):
            read(block, folder)
        else:
            for line in commands(typed(block)):
                assert not (fault := unknown(line)), f"{where}: {line}: {fault}"
                if is_run:
                    call(line, is_slow)
    return names


PAGES = {
    page.relative_to(ROOT).as_posix(): page
    for page in CURRENT
    if [*blocks(page.read_text())] and page.name not in ("reference.md", "python.md")
}
SLOW = [name for name, page in PAGES.items() if any("slow" in block.notes for block in blocks(page.read_text()))]
TUTORIALS = [name for name in PAGES if "tutorials/" in name]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run that has ended."""
    return played("gossip", tmp_path_factory).folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: Path(value))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("EDGEGOSSIP_WIFI_PASSWORD", "of the garden")
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def with_runs(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    """Put the runs that a page names where it has them."""
    code = "".join(block.code for block in blocks(page.read_text()))
    for run in re.findall(r"runs/(\d{8}-\d{6}-[\w-]+)", code.replace("runs/*-", "runs/20260102-030405-")):
        shutil.copytree(request.getfixturevalue("finished"), folder / "runs" / run, dirs_exist_ok=True)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_from_top_to_bottom(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    with_runs(PAGES[name], folder, request)
    names = play(PAGES[name], folder, is_slow=False)
    if name == "README.md":
        assert (names["loss"] < 20) and names["run"].round > 1
    if name == "docs/tutorials/own-model.md":
        assert names["test"]()["accuracy"] > 0.8
    if name == "docs/codecs.md":
        assert names["Mine"]().claims(None, None).unbiased


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted({*SLOW, *TUTORIALS}))
def test_a_page_runs_with_all_that_it_trains(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    with_runs(PAGES[name], folder, request)
    play(PAGES[name], folder, is_slow=True)


@pytest.mark.parametrize("name", PAGES)
def test_scripts_parse_and_name_files_that_are_there(name: str) -> None:
    """A placeholder such as <folder> would redirect something."""
    script = "\n".join(typed(block) for block in blocks(PAGES[name].read_text()))
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert not re.findall(r"<[a-z]+>", script)
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    assert {*re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)} <= targets
    paths = re.findall(r"\b(?:scripts|examples|locks|deploy)/[\w./-]+\.(?:py|txt|toml|service|sh)", script)
    modules = re.findall(r"python -m ((?:tests|edgegossip)[\w.]+)", script)
    paths += [f"{module.replace('.', '/')}.py" for module in modules]
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_all_code_is_fenced() -> None:
    """What is only indented nobody would run."""
    for page in CURRENT:
        prose = re.sub(r"^( *)```.*?^ *```$|^<!--.*?-->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"\n\n    .*", prose), page


def test_extras_that_are_to_be_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in CURRENT:
        text = re.sub(r"```python.*?```", "", page.read_text(), flags=re.DOTALL)
        said = re.findall(r"'(?:\.|edgegossip)\[([\w,]+)\]'", text)
        assert {extra for one in said for extra in one.split(",")} <= extras.keys(), page


# --- that the check can fail ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```python\nimport edgegossip\nedgegossip.rum()\n```\n", "rum"),
        ("```\nedgegossip runn quickstart-gossip\n```\n", "command runn"),
        ("```\nedgegossip runs && edgegossip run x --bords 3\n```\n", "--bords"),
        ("```\n$ edgegossip node x --set run.nods=3\n```\n", "run.nods"),
        ("```\nedgegossip run x --boards \\\n    four\n```\n", "four"),
        ("```\nedgegossip study quickstart-gossip --sweep codec.nam=fp32\n```\n", "codec.nam"),
        ("```\nedgegossip topology file --params path=nowhere.txt\n```\n", "nowhere.txt"),
        ("```toml\n[data]\nnam = 'csv'\n```\n", "data.nam"),
        ("```yaml\na: 1\n```\n", "yaml"),
        ("<!-- not run: why -->\n\nProse.\n\n```\nmake\n```\n", "no block after it"),
    ],
)
def test_the_check_finds_what_is_not_there(page: str, fault: str, folder: Path) -> None:
    file = folder / "page.md"
    file.write_text(page)
    with pytest.raises((AssertionError, AttributeError, EdgegossipError), match=re.escape(fault)):
        play(file, folder, is_slow=False)


def test_comments_belong_to_the_block_after_them() -> None:
    text = "<!-- given:\na = 1\n-->\n<!-- slow: it trains -->\n\n```python\nb = a\n```\n\n  ```\n  $ ls\n  out\n  ```\n"
    first, second = blocks(text)
    assert first.line == 7 and first.notes == {"given": "a = 1\n", "slow": "it trains "}
    assert not second.notes and second.code == "$ ls\nout\n" and typed(second) == "ls"
