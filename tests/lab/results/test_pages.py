"""Every page of lab/results/pages is what `lab/results/` makes of the JSON and the prose beside
it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.results import write as results

PAGES = sorted(path.stem for path in results.RESULTS.glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_results_make_of_it(name: str) -> None:
    """And names machine, instruction set and commit."""
    page = results.page(name)
    assert (results.RESULTS / f"{name}.md").read_text(encoding="utf-8") == page, f"run python -m lab.results {name}"
    head = " ".join(page.splitlines()[:8])
    assert re.search(r"Machine: ", head) and re.search(r"instruction set: |isa ", head)
    assert re.search(r"commit ([0-9a-f]{7,40} \((clean|dirty|not recorded whether clean)\)|not recorded)", head)


def test_the_list_of_pages_names_each() -> None:
    text = results.RESULTS.with_name("README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(pages/([\w-]+)\.md\)", text)) == PAGES


def test_prose_has_no_tables_of_its_own_and_no_results_are_without_a_page() -> None:
    templates = {path.name.removesuffix(".md.in"): path.read_text() for path in results.RESULTS.glob("*.md.in")}
    assert sorted(templates) == PAGES
    assert not [name for name, text in templates.items() if re.search(r"^\|[ :|-]+\|$", text, re.M)]
    shown = {word.replace("_", "-") for text in templates.values() for word in re.findall(r"\$\{study_(\w+)\}", text)}
    papers = {"papers-figures"} if (results.RESULTS / "papers").is_dir() else set()  # its JSON is a folder
    assert {path.stem for path in results.RESULTS.glob("*.json")} == set(PAGES) - papers | shown


def test_what_the_json_says_is_what_the_page_shows(tmp_path: Path) -> None:
    source = {"machine": "a Pi", "isa": "neon", "commit": "0123456789ab", "dirty": True}
    figures = {"head": ["case", "s"], "right": [False, True], "rows": [["a", "1.5"], ["b", "2"]]}
    (tmp_path / "a.md.in").write_text("# A\n\n${source}\n\n${count_1} cases for $$ 1:\n\n${table_1}\n")
    (tmp_path / "a.json").write_text(json.dumps({"source": source, "tables": [figures]}))
    assert results.page("a", tmp_path) == (
        "# A\n\nMachine: a Pi; instruction set: neon; commit 0123456789ab (dirty).\n\n2 cases for $ 1:\n\n"
        "| case | s |\n| --- | ---: |\n| a | 1.5 |\n| b | 2 |\n"
    )
    (tmp_path / "a.md.in").write_text("${no_such}")
    with pytest.raises(KeyError, match="no_such"):
        results.page("a", tmp_path)
