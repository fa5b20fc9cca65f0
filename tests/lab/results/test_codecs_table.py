"""The table of docs/codecs.md is that of the results which the page links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.results import codecs_table

ROOT = Path(__file__).parents[3]

PAGE = (ROOT / "docs" / "codecs.md").read_text(encoding="utf-8")


def row(codec, stage, source="synthetic", n=100, **figures):
    measured = {"bits_per_value": 4.031, "relative_error": 0.97663}
    return {"codec": codec, "stage": stage, "input": source, "n": n, **measured, **figures}


DOCUMENT = {
    "rows": [
        row("qsgd", "raw", n=10),
        row("fp32", None, relative_error=0.0),
        row("qsgd", "raw"),
        row("qsgd", "huffman", bits_per_value=2.1),
        row("qsgd", "raw", "gradient"),
    ]
}


def test_the_page_s_table_is_of_the_results_that_it_links():
    name = codecs_table.linked(PAGE)
    document = json.loads((ROOT / "lab" / "results" / "pages" / f"{name}.json").read_text(encoding="utf-8"))
    again = "python -m lab.results.codecs_table lab/results/pages/... --write docs/codecs.md"
    assert codecs_table.table(document) in PAGE, again
    assert codecs_table.written(PAGE, document, name) == PAGE, again


def test_a_codec_has_a_row_of_synthetic_values_of_the_largest_size():
    assert codecs_table.table(DOCUMENT).splitlines()[2:] == [
        "| fp32 | 0 | 4.03 |  |",
        "| qsgd | 0.977 | 4.03 | 2.10 |",
    ]


def test_writing_changes_table_and_link_alone(tmp_path):
    page, results = tmp_path / "page.md", tmp_path / "codecs-new.json"
    page.write_text(PAGE, encoding="utf-8")
    results.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    codecs_table.main([str(results), "--write", str(page)])
    changed = page.read_text(encoding="utf-8")
    assert codecs_table.linked(changed) == "codecs-new" and codecs_table.table(DOCUMENT) in changed
    kept = {line for line in PAGE.splitlines() if not line.startswith("| ") and "](../lab/results/" not in line}
    assert kept <= set(changed.splitlines())
    codecs_table.main([str(results), "--write", str(page)])
    assert page.read_text(encoding="utf-8") == changed


def test_printing(tmp_path, capsys):
    results = tmp_path / "codecs.json"
    results.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    codecs_table.main([str(results)])
    assert capsys.readouterr().out == codecs_table.table(DOCUMENT)


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="0 places for"):
        codecs_table.written("no table", DOCUMENT, "codecs-new")
    with pytest.raises(ValueError, match="looked for"):
        codecs_table.linked("no link")
