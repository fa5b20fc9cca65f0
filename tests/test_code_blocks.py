"""The code in README.md and docs/ runs, or all that it names is there: Python, TOML, JSON and
shell. What was typed for docs/results stays as it was; docs/python.md has a test of its own."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w

from edgegossip import recipe
from edgegossip.lab.scale.devices import load_fleet
from edgegossip.lab.study.cases import read_file
from tests.test_documentation import CURRENT, ROOT
from tests.test_python_page import cell

# What a page leaves to its reader: names in its Python that no block of the page makes.
READERS = {
    "docs/checkpoints.md": "run_id codec_state momentum",
    "docs/data.md": "np y",
    "docs/int8.md": "F model x y example nn hidden batches",
    "docs/mesh.md": "run_id head body",
    "docs/models.md": "model inputs",
    "docs/scripts.md": "edgegossip torch model loss text train train_step module accuracy test test_loader loader "
    "loss_of batches Trainer TrainingArguments run",
    "docs/simulator.md": "my_variant MyDisk",
}
PAGES = [page for page in CURRENT if page != ROOT / "docs/reference.md"]
SHELL = re.compile(
    r"(\$ )?(edgegossip|sudo|make|python3?|pip|apt|scp|ssh|rsync|source|for|cd|cp|pkill|flwr|flower-\w+|jupyter|podman|"
    r"buildah|useradd|systemctl|docker|printf|/opt/\S+) "
)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> Iterator[str]:
    """Yield the code blocks of these languages; "" are those that name none."""
    for indent, language, code in re.findall(r"^( *)```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        if language in languages:
            yield re.sub(f"^{indent}", "", code, flags=re.MULTILINE)


def pages_with(*languages: str) -> list[Any]:
    return [
        pytest.param(page, id=name(page)) for page in PAGES if any(True for _ in blocks(page.read_text(), *languages))
    ]


# --- Python --------------------------------------------------------------------------------------


def bound(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def imported(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield what the imports of a block bind, and import it: of ours all, of others what is
    installed. The integrations load what they are for, so a look into their files does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if importlib.util.find_spec(alias.name.partition(".")[0]):
                    yield alias.asname or alias.name.partition(".")[0], importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("edgegossip.integrations."):
            made = {*bound(ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text()))}
            assert {alias.name for alias in node.names} <= made
        elif isinstance(node, ast.ImportFrom) and importlib.util.find_spec(module.partition(".")[0]):
            for alias in node.names:
                owner = importlib.import_module(module)
                if not hasattr(owner, alias.name):
                    importlib.import_module(f"{module}.{alias.name}")
                yield alias.asname or alias.name, getattr(owner, alias.name)


def resolve(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """What a dotted name of our own modules is; None where nobody can know.
    Raises AttributeError."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, known)
        if isinstance(owner, ModuleType) and owner.__name__.startswith("edgegossip"):
            return getattr(owner, node.attr)
    return None


def faults(tree: ast.AST, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the code uses of our modules and is not there: names, and keywords of calls."""
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Attribute):
                resolve(node, known)
            called = resolve(node.func, known) if isinstance(node, ast.Call) else None
        except AttributeError as error:
            yield str(error)
            continue
        if (
            isinstance(node, ast.Call)
            and callable(called)
            and getattr(called, "__module__", "").startswith("edgegossip")
        ):
            takes = inspect.signature(called).parameters.values()
            if not any(one.kind is one.VAR_KEYWORD for one in takes):
                yield from (
                    f"{called.__name__} takes no {keyword.arg}"
                    for keyword in node.keywords
                    if keyword.arg and keyword.arg not in {one.name for one in takes}
                )


def of_page(text: str, readers: str) -> list[str]:
    """Return what is wrong with the Python of a page."""
    given, known, wrong, used = {*dir(builtins), *readers.split()}, {}, [], set()
    for block in blocks(text, "python"):
        tree = ast.parse(block)
        known |= dict(imported(tree))
        given |= {*bound(tree)}
        loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= loaded
        wrong += [f"nobody makes {unknown}" for unknown in sorted(loaded - given)]
        wrong += faults(tree, known)
    return wrong + [f"the page does without {word}" for word in readers.split() if word not in used]


@pytest.mark.parametrize("page", pages_with("python"))
def test_what_python_blocks_use_is_there(page: Path) -> None:
    assert not of_page(page.read_text(), READERS.get(name(page), ""))


def test_the_check_of_python_finds_what_is_not_there() -> None:
    page = "```python\nimport edgegossip\nedgegossip.encode(x, 'fp32')\nedgegossip.rum()\nedgegossip.decode(1, lik=2)\n```\n"
    wrong = of_page(page, "")
    assert wrong[0] == "nobody makes x" and "rum" in wrong[1] and wrong[2] == "decode takes no lik"


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs a script as `python FILE` does, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--rounds", "8"])

    def run(source: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, "train.py", "exec"), names)
        return names

    return run


def test_the_script_of_the_readme_trains(alone: Callable[[str], dict[str, Any]]) -> None:
    import torch

    [script] = blocks((ROOT / "README.md").read_text(), "python")
    assert len([line for line in script.splitlines() if line.strip()]) <= 14
    names = alone(script.replace("state=[optimizer])", "state=[optimizer], rounds=60)"))
    assert torch.allclose(names["model"].weight, torch.ones(1, 8), atol=0.2)


def test_the_scripts_of_the_tutorial_train(alone: Callable[[str], dict[str, Any]]) -> None:
    data, script, _ = blocks((ROOT / "docs/tutorials/own-model.md").read_text(), "python")
    alone(data)
    assert {path.stem for path in Path("data").iterdir()} == {*(f"board-{k}" for k in range(4)), "test"}
    names = alone(script)
    assert names["test"]()["accuracy"] > 0.8


def test_the_page_of_codecs_runs_from_top_to_bottom() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks((ROOT / "docs/codecs.md").read_text(), "python")):
        cell(block, names, f"docs/codecs.md, block {number + 1}")
    assert names["Mine"]().claims(None, None).unbiased


# --- TOML and JSON -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages_with("toml"))
def test_toml_blocks_load(page: Path, tmp_path: Path) -> None:
    """As recipes; as a fleet's profile where they name boards; as a study's sweep where they name
    cases."""
    for block in blocks(page.read_text(), "toml"):
        document = tomllib.loads(block)
        file = tmp_path / "file.toml"
        if "boards" in document:
            document["boards"] = [
                ["raspberry-pi-4", count] for _, count in document["boards"]
            ]  # no file of the reader's
            file.write_text(tomli_w.dumps(document))
            load_fleet(str(file))
        else:
            file.write_text(block)
            (read_file if "case" in document else recipe.load)(str(file))


@pytest.mark.parametrize("page", pages_with("json"))
def test_json_blocks_load(page: Path) -> None:
    for block in blocks(page.read_text(), "json"):
        for line in block.splitlines():
            json.loads(line)


# --- the shell -----------------------------------------------------------------------------------


def scripts(text: str) -> Iterator[str]:
    """Yield what a reader types into a shell: lines after "$ ", or blocks that begin with a
    command."""
    for block in blocks(text, "", "sh"):
        if "\n$ " in f"\n{block}":
            yield "\n".join(line[2:] for line in block.splitlines() if line.startswith("$ "))
        elif SHELL.match(re.sub(r"^(#.*\n|\s)*", "", block)):
            yield block


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in PAGES if [*scripts(page.read_text())]])
def test_shell_blocks_parse_and_name_files_that_are_there(page: Path) -> None:
    """A placeholder such as <folder> would redirect something."""
    script = "\n".join(scripts(page.read_text()))
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30)
    assert not done.returncode, done.stderr
    assert not re.findall(r"<[a-z]+>", script)
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    assert {*re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)} <= targets
    named = re.findall(r"\b(?:scripts|examples|locks|deploy)/[\w./-]+\.(?:py|txt|toml|service|sh)", script)
    modules = [
        f"{module.replace('.', '/')}.py" for module in re.findall(r"python -m ((?:tests|edgegossip)[\w.]+)", script)
    ]
    assert not [path for path in (*named, *modules) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in PAGES])
def test_extras_that_are_to_be_installed_exist(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = re.findall(
        r"'(?:\.|edgegossip)\[([\w,]+)\]'", re.sub(r"```python.*?```", "", page.read_text(), flags=re.DOTALL)
    )
    assert {extra for one in said for extra in one.split(",")} <= {*project["optional-dependencies"]}
