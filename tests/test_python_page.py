"""What docs/python.md and the notebooks tell a user to type runs as it stands."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgegossip

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cell(source: str, names: dict[str, Any], where: str) -> None:
    """Run a cell as a notebook does."""
    exec(compile(source, where, "exec"), names)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for package in ("cloudpickle", "pandas"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    return {"__name__": "__main__"}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


PAGE = (ROOT / "docs" / "python.md").read_text()


@pytest.mark.slow  # its fleets and its study are of the kinds of test_notebook.py and test_research.py
@pytest.mark.timeout(500)
def test_the_page_runs_from_top_to_bottom(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for number, block in enumerate(blocks(PAGE)):
        cell(block, names, f"docs/python.md, block {number + 1}")
    fewer = names["result"].summary["sent_bytes"]["payload"] / names["small"].summary["sent_bytes"]["payload"]
    assert 7.5 < fewer < 10  # "about a ninth"
    assert names["losses"].shape == (40, 4) and names["page"].is_file()
    assert names["own"].state_dict()["weight"].shape == (1, 8)
    assert list(names["table"].columns) == ["case", "accuracy", "accuracy_std", "bits_per_value"]
    check_what_trains_nothing(names, capsys.readouterr().out)


def test_what_trains_nothing_runs(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """From "Plan" on, with what the blocks before it import, and what they show to be refused."""
    before, _, rest = PAGE.partition("\n## Plan\n")
    assert len(blocks(before)) >= 5 and len(blocks(rest)) >= 5
    for block in blocks(before):
        given = [one for one in ast.parse(block).body if isinstance(one, ast.Import | ast.ImportFrom | ast.Try)]
        exec(compile(ast.Module(given, []), "docs/python.md", "exec"), names)
    for block in blocks(rest):
        cell(block, names, "docs/python.md, from Plan on")
    check_what_trains_nothing(names, capsys.readouterr().out)


def check_what_trains_nothing(names: dict[str, Any], said: str) -> None:
    for line in re.findall(r"print\(\w+\)  # (there is no codec.*?|<Encoded.*)$", PAGE, re.MULTILINE):
        assert line.removesuffix(" ...") in said
    gradient, received = names["gradient"], names["received"]
    assert np.linalg.norm(received / 20 - gradient) < np.linalg.norm(gradient)
    assert np.array_equal(names["again"], names["decoded"])


@pytest.mark.slow  # the page, above, calls what they call
@pytest.mark.timeout(500)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, names: dict[str, Any]) -> None:
    for number, one in enumerate(json.loads(path.read_text())["cells"]):
        if one["cell_type"] == "code":
            cell("".join(one["source"]), names, f"{path.name}, cell {number + 1}")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["nbformat"] == 4 and len({one["id"] for one in document["cells"]}) == len(document["cells"])
    for one in document["cells"]:
        assert one["cell_type"] == "markdown" or (one["outputs"], one["execution_count"]) == ([], None)


def test_there_are_two_notebooks_and_the_page_names_them() -> None:
    assert len(NOTEBOOKS) == 2 and all(f"`{path.name}`" in PAGE for path in NOTEBOOKS)


def test_all_public_names_say_what_they_are() -> None:
    """With an example where a user would type one."""
    for name in edgegossip.__all__:
        found = getattr(edgegossip, name)
        assert name == "__version__" or found.__doc__, name
    typed = ("run", "resume", "local", "join", "study", "plan", "encode", "decode", "Result", "StudyResult", "Encoded")
    for name in typed:
        assert "Example" in getattr(edgegossip, name).__doc__, name
