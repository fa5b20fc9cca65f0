"""The papers' page: what it says of ours is computed from JSON, intervals and verdicts too, and
what is typed is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lab.papers import claims
from lab.papers import page as papers
from lab.papers.claims import Interval, Kept, Sample, difference, interval, judge, paired


def test_every_figure_of_ours_is_in_its_json() -> None:
    assert not list(papers.faults())


def test_a_page_that_says_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    for name in (page.name, f"{page.name}.in"):
        shutil.copy(papers.PAGE.with_name(name), tmp_path)
    page.write_text(page.read_text().replace("cannot be told |", "agrees |", 1))
    monkeypatch.setattr(papers, "PAGE", page)
    assert any("not what its JSON says" in fault for fault in papers.faults())


def test_other_json_is_another_row_and_another_verdict(tmp_path: Path) -> None:
    row = next(row for row in papers.ROWS["low-precision"] if row.run and row.run.data == "int8-fashion")
    document = json.loads((claims.RESULTS / "int8-fashion.json").read_text())
    (tmp_path / "int8-fashion.json").write_text(json.dumps(document))
    assert row.state(Kept(tmp_path)) == "agrees"
    document["rows"][1]["accuracy"] -= 0.05
    (tmp_path / "int8-fashion.json").write_text(json.dumps(document))
    assert row.state(Kept(tmp_path)) == "does not agree" and "-5.08" in str(row.find(Kept(tmp_path)))


def test_one_pair_says_as_much_as_single_runs_are_known_to() -> None:
    pair = {1: 80.0}, {1: 77.0}
    known = claims.compared_by_seed(*pair, 0.0, alone=2.0)
    assert known.verdict == "agrees" and str(known) == "80.00 against 77.00 %: +3.00 ± 2.00 points, one seed"
    unknown = claims.compared_by_seed(*pair, 0.0, alone=claims.CHANCE)
    assert unknown.verdict == "cannot be told" and str(unknown) == "80.00 against 77.00 %: +3.00 points, one seed"


def test_what_is_typed_is_found() -> None:
    assert papers.typed("87.8 % of it, 3 points below, 4 times less") == ["87.8", "3 points", "4 times"]
    assert papers.typed("{:.2f} % on ResNet-20 with `--dw 16 %`, 4-bit-ElastiQuant, [a](b-1.5.json)") == []


def test_a_size_is_that_of_its_json() -> None:
    run = next(row.run for row in papers.ROWS["bagua"] if row.run and row.run.data == "papers/fashion")
    assert "600 rounds, three seeds" in run.size and not list(papers.wrong_sizes(run, Kept()))
    for said, found in (("three seeds", "ninety seeds"), ("three seeds", "one seed"), ("600 rounds", "60,000 rounds")):
        other = run._replace(size=run.size.replace(said, found))
        assert len(list(papers.wrong_sizes(other, Kept()))) == 1


def test_rows_that_count_say_what_was_run_or_why_not() -> None:
    kept = Kept()
    for paper, rows in papers.ROWS.items():
        for row in rows:
            assert row.state(kept) in (*papers.STATES, "nothing to repeat"), (paper, row.figure)
            assert (row.find is None) == (row.run is None), (paper, row.figure)
    counted = papers.counts(kept).splitlines()[-1].split("|")[2]
    assert int(counted) == sum(row.state(kept) in papers.STATES for rows in papers.ROWS.values() for row in rows)


def test_intervals_are_student_s_and_welch_s() -> None:
    """Worked by hand, and with the t of any table."""
    found = interval(Sample.of([1.0, 2.0, 3.0]))
    assert found.mean == 2.0 and found.reach == pytest.approx(4.303 / 3**0.5)
    a, b = Sample(10.0, 1.0, 3), Sample(9.0, 1.0, 3)  # 4 degrees of freedom
    assert difference(a, b).reach == pytest.approx(2.776 * (2 / 3) ** 0.5)
    uneven = difference(Sample(10.0, 1.0, 3), Sample(9.0, 0.0, 3))  # 2
    assert uneven.reach == pytest.approx(4.303 * (1 / 3) ** 0.5)
    assert paired([1.0, 2.0, 3.0], [0.5, 1.5, 2.5]) == Interval(0.5, 0.0)


def test_one_run_is_as_uncertain_as_one_says() -> None:
    assert interval(Sample.of([5.0])).reach == float("inf")
    assert difference(Sample.of([5.0]), Sample(4.0, 0.1, 3), alone=2.0) == Interval(1.0, 2.0)


def test_single_runs_lie_as_far_apart_as_seeds_do(tmp_path: Path) -> None:
    """1.96 sqrt(2) times the pooled deviation; cases of one run say nothing."""
    shared = {"failed": 0, "accuracy": 0.5}
    rows = [{**shared, "case": "a", "seeds": [1, 2, 3], "accuracy_std": 0.01}]
    rows += [{**shared, "case": "b", "seeds": [1, 2, 3], "accuracy_std": 0.03}]
    rows += [{**shared, "case": "c", "seeds": [1], "accuracy_std": None}]
    (tmp_path / "study.json").write_text(json.dumps(rows))
    assert claims.apart(Kept(tmp_path), "study") == pytest.approx(1.96 * (2 * (1 + 9) / 2) ** 0.5)


def test_a_verdict_of_one_seed_is_counted_as_such() -> None:
    kept = Kept()
    rows = [row for rows in papers.ROWS.values() for row in rows if row.of_one_seed(kept)]
    assert rows and all(row.state(kept) in ("agrees", "does not agree") for row in rows)
    assert int(papers.counts(kept).splitlines()[-1].split("|")[-2]) == len(rows)


def test_where_one_seed_tells_nothing_no_interval_is_given() -> None:
    found = claims.compared(Sample(50.0, 0.0, 1), Sample(40.0, 0.0, 1), least=0.0, alone=claims.CHANCE)
    assert found.verdict == "cannot be told" and str(found) == "50.00 against 40.00 %: +10.00 points, one seed"


def test_a_row_names_the_commits_of_its_parts_and_that_there_were_changes(tmp_path: Path) -> None:
    sources = [{"part": "a", "commit": "aaa", "dirty": True}, {"part": "b", "commit": "bbb", "dirty": False}]
    (tmp_path / "two.json").write_text(json.dumps({"sources": sources, "rows": []}))
    assert Kept(tmp_path).commits("two") == "aaa with changes, bbb"
    assert Kept(tmp_path).commits("two", ("b",)) == "bbb"


def test_tables_and_figures_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = claims.Row
    rows = (row("Table 1, a", "", why="too long"), row("Table 1, b", "", why="too long"), row("Table 2", "names"))
    done = next(row for row in papers.ROWS["low-precision"] if row.run and row.figure.startswith("Figure 3"))
    monkeypatch.setattr(papers, "ROWS", {"one": rows, "another": (done, row("Section 2", "", why="too long"))})
    assert papers.figures() == (2, 1)


@pytest.mark.parametrize(
    ("mean", "reach", "verdict"),
    [(0.0, 0.5, "agrees"), (-0.8, 0.5, "cannot be told"), (-2.0, 0.5, "does not agree"), (2.0, 0.5, "does not agree")],
)
def test_a_verdict_goes_by_the_whole_interval(mean: float, reach: float, verdict: str) -> None:
    assert judge(Interval(mean, reach), -1.0, 1.0) == verdict


def test_a_study_is_kept_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"machine": "a Pi", "isa": "neon", "commit": "0123456789ab", "dirty": False}
    run = {"name": "a", "seed": 1, "state": "done", "reason": "", "rounds": 2, "train_loss": 1.0, "source": source}
    run |= {"bits_per_value": 8.0}
    run |= {"accuracy": {"averaged": 0.5, "mean": 0.4}, "curve": [{"round": 0, "accuracy": 0.1}]}
    run |= {"consensus_distance": [[0, 1.5]]}
    failed = run | {"seed": 2, "state": "failed", "reason": "too large", "accuracy": None, "curve": []}
    (tmp_path / "study.jsonl").write_text(f"{json.dumps(run)}\n{json.dumps(failed)}\n")
    (tmp_path / "papers").mkdir()
    monkeypatch.setattr(papers, "RESULTS", tmp_path)
    papers.keep("mine", tmp_path)
    kept = Kept(tmp_path)
    assert claims.by_seed(kept, "papers/mine", "a") == {1: 50.0}
    assert [row["state"] for row in kept.rows("papers/mine")] == ["done", "failed"]
    assert kept.rows("papers/mine", seed=1)[0]["curve"] == [[1, 0.1]]
    assert kept.commits("papers/mine") == "0123456789ab"
    with pytest.raises(KeyError, match="no row"):
        kept.rows("papers/mine", seed=3)
