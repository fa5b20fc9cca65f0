"""The command as a whole: the folder, resuming after kill -9, several processes, invalid cases, the
table."""

import csv
import json
import pickle
from types import SimpleNamespace

import pytest

from edgegossip.cli.main import main
from edgegossip.recipe import load
from edgegossip.report.style import Figures
from edgegossip.studies.campaign import Study, StudyOptions, run
from edgegossip.studies.cases import parse_seeds, parse_sweep
from edgegossip.sweep import campaign
from edgegossip.sweep.results import ResultStore, read_results
from edgegossip.types import ConfigError, HostError

FILE = Study.FILE

SMALL = ("data.train_examples=400", "data.test_examples=100", "model.params.hidden=[8]", "training.batch_size=8")
SETS = tuple(word for setting in SMALL for word in ("--set", setting))


def asked(out, settings=(*SMALL, "run.rounds=3"), sweeps=("codec.name=fp32,minmax8",), seeds="1,2", **more):
    recipe, points = load("quickstart-gossip", settings), [parse_sweep(text) for text in sweeps]
    return StudyOptions(recipe, points, seeds=parse_seeds(seeds), out=out, figures=Figures(plots=False), **more)


def quiet(text):
    pass


def results_without_time(folder):
    return {
        key: {k: v for k, v in r.items() if not k.endswith("seconds")} for key, r in read_results(folder / FILE).items()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that has ended: its folder, its document, its exit code and what was said."""
    folder, said = tmp_path_factory.mktemp("whole"), []
    return folder, *run(asked(folder), said.append, quiet), said


def test_the_folder_holds_every_result_and_the_table(whole):
    tmp_path, document, code, said = whole
    assert code == 0 and document["failed"] == [] and document["runs"] == 4
    assert [row["case"] for row in document["rows"]] == ["fp32", "minmax8"]
    row = document["rows"][1]
    assert row["seeds"] == [1, 2] and 8 < row["bits_per_value"] < 9 and row["accuracy_std"] is not None
    accuracies = [r["accuracy"]["averaged"] for r in read_results(tmp_path / FILE).values() if r["name"] == "minmax8"]
    assert row["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert row["accuracy_std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == document["rows"]
    with (tmp_path / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["codec.name"] for line in lines] == ["fp32", "minmax8"]
    assert float(lines[1]["accuracy"]) == row["accuracy"]
    markdown = (tmp_path / "table.md").read_text()
    assert markdown.startswith("| case | seeds | accuracy % |") and f"{100 * row['accuracy']:.2f} ±" in markdown
    assert any(line.startswith("[4/4] minmax8, seed 2: accuracy") for line in said)


def test_what_is_there_is_not_run_again_and_more_can_be_asked_for(tmp_path):
    run(asked(tmp_path, seeds="1"), quiet, quiet)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"key": "torn", "state": "do')
    lines = (tmp_path / FILE).read_bytes()
    said = []
    document, _ = run(asked(tmp_path, seeds="1,2", sweeps=("codec.name=fp32,bf16",)), said.append, quiet)
    assert "4 runs" in said[0] and "1 done, 3 to go" in said[0]
    assert (tmp_path / FILE).read_bytes().startswith(lines)
    assert [row["case"] for row in document["rows"]] == ["fp32", "bf16"]
    assert len(read_results(tmp_path / FILE)) == 5


def test_two_processes_give_what_one_gives(whole, tmp_path, monkeypatch):
    """What goes to them is pickled; tests/sweep has the processes."""

    def apart(cases, jobs, runner, on_progress):
        assert jobs == 2
        runner = pickle.loads(pickle.dumps(runner))
        for case in cases:
            yield case, runner(pickle.loads(pickle.dumps(case)), quiet)

    monkeypatch.setattr(campaign, "_on_workers", apart)
    run(asked(tmp_path, jobs=2), quiet, quiet)
    assert results_without_time(tmp_path) == results_without_time(whole[0])


def test_progress_is_told_once_a_second(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def runner(case, report):
        for round in range(1, 13):
            now[0] += 0.25
            report(round)
        return {}

    assert list(campaign.run_cases(["x"], 1, runner, lambda case, round: told.append(round))) == [("x", {})]
    assert told == [4, 8, 12]


def test_interrupted_it_says_what_is_kept(tmp_path):
    said = []

    def say(text):
        if text.startswith("[2/4]"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked(tmp_path), say, said.append)
    assert said == [f"stopped: 2 of 4 runs are kept in {tmp_path}; the same command goes on from there"]
    assert len(read_results(tmp_path / FILE)) == 2


def test_the_command_prints_one_document(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "study",
                "quickstart-gossip",
                *SETS,
                "--output",
                str(tmp_path),
                *["--set", "run.rounds=2", "--no-plots", "--json"],
            ]
        )
    out, err = capsys.readouterr()
    assert ended.value.code == 0 and json.loads(out) == json.loads((tmp_path / "table.json").read_text()) | {
        "wall_s": json.loads(out)["wall_s"]
    }
    assert "[1/1] the recipe as it is, seed 1: accuracy" in err


def test_keys_of_a_study_may_be_set_for_all_cases(capsys):
    with pytest.raises(SystemExit):
        main(["study", "quickstart-gossip", "--set", "attack.kind=sign-flip", "--set", "attack.boards=9"])
    assert "attack.boards = 9: one of the boards is honest; the nearest is 3" in capsys.readouterr().err


def test_a_folder_takes_one_study_at_a_time(tmp_path):
    with ResultStore(tmp_path / FILE, "study"), pytest.raises(HostError, match="another study is at work"):
        run(asked(tmp_path), quiet, quiet)


def test_lines_that_are_no_results_are_passed_over(tmp_path):
    whole = {"key": "a", "state": "done"}
    lines = [
        b"garbage",
        b"[" * 100_000,
        b"3",
        b'{"key": 3, "state": "done"}',
        b'{"key": "b"}',
        json.dumps(whole).encode(),
    ]
    (tmp_path / FILE).write_bytes(b"\n".join(lines))
    assert read_results(tmp_path / FILE) == {"a": whole}
    with ResultStore(tmp_path / FILE, "study") as results:
        results.add({"key": "c", "state": "failed"})
    assert set(read_results(tmp_path / FILE)) == {"a", "c"}


def test_a_combination_that_cannot_run_stops_the_study_or_is_left_out(tmp_path):
    sweeps = ("codec.name=fp32,topk", "codec.params.ratio=0.1")
    with pytest.raises(ConfigError, match=r"ratio.*case fp32, ratio=0.1; --skip-invalid"):
        run(asked(tmp_path, sweeps=sweeps, seeds="1"), quiet, quiet)
    warned = []
    document, _code = run(asked(tmp_path, sweeps=sweeps, seeds="1", skip_invalid=True), quiet, warned.append)
    assert [row["case"] for row in document["rows"]] == ["topk, ratio=0.1"] and "left out fp32" in warned[0]
    with pytest.raises(ConfigError, match="no case of the sweep can run"):
        run(asked(tmp_path, sweeps=("codec.params.ratio=0.1",), skip_invalid=True), quiet, quiet)


def test_a_run_that_diverges_is_in_the_table_and_in_the_exit_code(tmp_path):
    warned = []
    document, code = run(
        asked(tmp_path, sweeps=("training.lr=0.1,1000",), settings=(*SMALL, "run.rounds=60"), seeds="1"),
        quiet,
        warned.append,
    )
    assert code == 7 and len(document["failed"]) == 1 and "lr=1000" in warned[0]
    assert "0 (1 failed)" in (tmp_path / "table.txt").read_text()
    again = asked(tmp_path, sweeps=("training.lr=1000",), settings=(*SMALL, "run.rounds=60"), seeds="1")
    assert run(again, quiet, quiet)[1] == 7
