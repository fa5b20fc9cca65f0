"""The example scripts: what `make_data.py` makes, and that train.py is plain.py but for ten
lines."""

from __future__ import annotations

import difflib
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgegossip.training.data import boards_of
from edgegossip.training.script import ScriptWorkload
from tests.training.fakes import recipe

EXAMPLES = Path(__file__).parents[2] / "examples/scripts"
# name -> (arguments of make_data.py, arguments of the script beside --data, its argument for two
# rounds)
SCRIPTS = {
    "images": ("--train 160 --test 40", "--batch-size 8", "--epochs 2"),
    "segmentation": ("--train 40 --test 8", "--batch-size 4 --width 4", "--epochs 2"),
    "forecast": ("", "--batch-size 64 --hidden 4", "--epochs 2"),
    "text": ("--words 8 --test 40", "--batch-size 16 --classes 3", "--epochs 2"),
    "gpt": ("", "--batch-size 4 --width 16 --layers 1 --every 3", "--steps 6"),
    "anomalies": ("--train 160 --test 64", "--batch-size 8", "--epochs 2"),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three texts that every Python has: pages of its own manual."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("texts")
    for name in ("class", "if", "while"):
        (folder / f"{name}.txt").write_text(topics[name][:4000], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Any:
    """Folder of an example's data, made once; more arguments make other data."""
    made: dict[tuple[str, ...], Path] = {}

    def data(kind: str, *more: str) -> Path:
        key = (kind, *more)
        if key not in made:
            made[key] = tmp_path_factory.mktemp(kind)
            source = ["--from", str(texts)] if kind in ("text", "gpt") else []
            words = [kind, "--out", str(made[key]), *source, *SCRIPTS[kind][0].split(), *more]
            run(EXAMPLES / "make_data.py", *words)
        return made[key]

    return data


def run(path: Path, *arguments: str) -> dict[str, Any]:
    """Run a script in this process; its variables at the end."""
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


def arguments(kind: str, folder: Path) -> list[str]:
    return ["--data", str(folder), *SCRIPTS[kind][1].split(), *SCRIPTS[kind][2].split()]


@pytest.mark.parametrize("kind", SCRIPTS)
def test_ten_lines_are_changed_at_most(kind: str) -> None:
    """Lines taken out and lines put in, each counted, without blank ones."""
    plain, train = (EXAMPLES / kind / name for name in ("plain.py", "train.py"))
    lines = difflib.ndiff(plain.read_text().splitlines(), train.read_text().splitlines())
    changed = [line for line in lines if line[0] in "+-" and line[1:].strip()]
    assert 4 <= len(changed) <= 10, changed


@pytest.mark.parametrize("kind", SCRIPTS)
def test_by_itself_it_trains_what_the_plain_script_trains(kind: str, data: Any) -> None:
    """Bit for bit, on all data, without a run."""
    words = arguments(kind, data(kind) / "all")
    plain = run(EXAMPLES / kind / "plain.py", *words)["model"].state_dict()
    train = run(EXAMPLES / kind / "train.py", *words)["model"].state_dict()
    assert plain.keys() == train.keys()
    assert all(plain[name].equal(train[name]) for name in plain)


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_board_trains_and_evaluates(kind: str, data: Any) -> None:
    where = f"{data(kind)}/{{board}}"
    section = {"script": str(EXAMPLES / kind / "train.py"), "nodes": 4, "rounds": 2}
    section["script_args"] = ["--data", where, *SCRIPTS[kind][1].split(), *SCRIPTS[kind][2].split()]
    workload = ScriptWorkload(recipe(run=section), 1, "board-1")
    x = workload.initial(1)
    for round in range(2):
        update = workload.local_update(x, round)
        assert update.delta.any() and update.holds > 1
        x = x + update.delta
    found = workload.evaluate(x)
    assert found is not None and math.isfinite(found.loss) and found.scores
    workload.over(x)


@pytest.mark.parametrize("kind", ["images", "segmentation", "forecast", "anomalies"])
def test_boards_have_parts_of_their_own_and_one_test_set(kind: str, data: Any) -> None:
    folders = [data(kind) / f"board-{k}" for k in range(4)]
    parts = [arrays(folder / "train.npz") for folder in folders]
    name = "series" if kind == "forecast" else "x"
    rows = [{row.tobytes() for row in part[name]} for part in parts]
    assert all(rows) and not set.union(*(a & b for a in rows for b in rows if a is not b))
    union = {row.tobytes() for row in arrays(data(kind) / "all/train.npz")[name]}
    assert union == set.union(*rows)
    test = arrays(data(kind) / "all/test.npz")
    for folder in folders:
        own = arrays(folder / "test.npz")
        assert all(np.array_equal(own[key], test[key]) for key in test)
    if kind != "forecast":  # whose test set begins with hours that a first forecast looks back on
        assert not {row.tobytes() for row in test[name]} & union


@pytest.mark.parametrize("kind", ["text", "gpt"])
def test_boards_have_texts_of_their_own(kind: str, data: Any) -> None:
    name = "train.tsv" if kind == "text" else "train.txt"
    parts = [(data(kind) / f"board-{k}" / name).read_text() for k in range(4)]
    whole = (data(kind) / "all" / name).read_text()
    assert sorted("".join(parts)) == sorted(whole) and all(parts)
    tests = {(data(kind) / f"board-{k}" / name.replace("train", "test")).read_text() for k in range(4)}
    assert len(tests) == 1


def test_folders_have_the_names_that_a_run_gives_its_boards(data: Any) -> None:
    for boards in (10, 11):
        names = {path.name for path in data("anomalies", "--boards", str(boards)).iterdir()}
        assert names == {board.name for board in boards_of(boards)} | {"all"}


def test_by_class_no_two_boards_have_the_same_class(data: Any) -> None:
    folder = data("images", "--by-class", "--boards", "3")
    held = [set(arrays(folder / f"board-{k}" / "train.npz")["y"].tolist()) for k in range(3)]
    assert sorted(c for classes in held for c in classes) == list(range(10))
    folder = data("text", "--by-class", "--boards", "3")
    speakers = [{line[0] for line in (folder / f"board-{k}" / "train.tsv").read_text().splitlines()} for k in range(3)]
    assert speakers == [{"0"}, {"1"}, {"2"}]


def test_a_plays_speakers_are_its_classes(tmp_path: Path) -> None:
    play = "ANN:\nGood day, good day to you.\n\nBOB:\nAnd a better one to you, my friend!\n\nANN:\nSo it be.\n"
    (tmp_path / "play.txt").write_text(play)
    words = ["--from", str(tmp_path / "play.txt"), "--out", str(tmp_path / "out"), "--boards", "2"]
    run(EXAMPLES / "make_data.py", "text", *words, "--words", "3", "--classes", "2", "--test", "1")
    assert (tmp_path / "out/all/classes.txt").read_text().split() == ["ANN", "BOB"]
    assert "0\tGood day ,\n" in "".join((tmp_path / "out/all" / name).read_text() for name in ("train.tsv", "test.tsv"))


def test_articles_are_classes(tmp_path: Path) -> None:
    text = " = Ants = \n\n ants walk in lines \n\n = = Food = = \n\n they like sugar \n = Bees = \n\n bees fly \n"
    (tmp_path / "wiki.txt").write_text(text)
    words = ["--from", str(tmp_path / "wiki.txt"), "--out", str(tmp_path / "out"), "--boards", "2"]
    run(EXAMPLES / "make_data.py", "text", *words, "--words", "2", "--test", "1")
    lines = [(tmp_path / "out/all" / name).read_text() for name in ("train.tsv", "test.tsv")]
    assert sorted("".join(lines).splitlines()) == [
        *("0\tFood they", "0\tants walk", "0\tin lines", "0\tlike sugar", "1\tbees fly")
    ]


def test_a_text_has_to_be_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(EXAMPLES / "make_data.py", "gpt", "--out", str(tmp_path))
    assert "gpt needs --from FILE" in capsys.readouterr().err


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
