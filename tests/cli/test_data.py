"""`edgegossip data describe` and `combine`: from each board's own data to what all boards
declare."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgegossip import recipe as recipes
from edgegossip.training.data import Board, open_data


@pytest.fixture
def described(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What `describe --json` says on three boards with other examples each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text('[data]\nname = "npz"\ndir = "data/{board}-{index}"\npartition = "local"\n')
    files = []
    for k in range(3):
        folder = tmp_path / "data" / f"pi-{k}"
        folder.mkdir(parents=True)
        x = np.random.default_rng(k).standard_normal((5 + 3 * k, 4)) * (k + 1) + k
        np.savez(folder / "data.npz", train_inputs=x.astype(np.float32), train_targets=np.arange(len(x)) % (k + 2))
        files.append(tmp_path / f"pi-{k}.json")
        code, out, _ = command("data", "describe", "own.toml", "--name", "pi", "--index", str(k), "--json")
        assert code == 0
        files[-1].write_text(out)
    return files


def test_what_a_board_may_tell_of_its_data_has_no_example_in_it(command, described: list[Path]) -> None:
    document = json.loads(described[1].read_text())
    assert document["shape"] == [4]
    assert (document["examples"], document["classes"], document["counts"]) == (8, 3, [3, 3, 2])
    assert len(json.dumps(document)) < 600
    assert "examples       8" in command("data", "describe", "own.toml", "--name", "pi", "--index", "1")[1]


@pytest.mark.parametrize(("shape", "names"), [((2, 3, 3), ("channel 0", "channel 1")), ((100, 2), ("inputs",))])
def test_ranges_are_of_channels_where_these_are_few(command, tmp_path: Path, shape: tuple, names: tuple) -> None:
    x = np.zeros((2, *shape), np.float32)
    for k in range(len(names)):
        x[0, k], x[1, k, ..., 1] = k + 1, -k - 2
    np.savez(tmp_path / "data.npz", train_inputs=x, train_targets=np.arange(2))
    (tmp_path / "own.toml").write_text(f'[data]\nname = "npz"\ndir = "{tmp_path}"\npartition = "local"\n')
    out = command("data", "describe", str(tmp_path / "own.toml"))[1]
    for k, name in enumerate(names):
        assert f"{name}: {-k - 2} to {k + 1}\n" in out


def test_what_was_read_of_a_folder_is_said(command, tmp_path: Path) -> None:
    for path, mode in (("train/ant/a", "L"), ("train/bee/2023/b", "RGB"), ("train/bee/c", "RGB"), ("test/bee/d", "P")):
        file = tmp_path / "data" / f"{path}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (4, 3), 9 if mode != "RGB" else (1, 2, 250)).save(file)
    (tmp_path / "data" / "train" / "bee" / "Thumbs.db").write_bytes(b"\xd0")
    (tmp_path / "data" / ".DS_Store").write_bytes(b"Bud1")
    keys = {"name": "image-folder", "dir": str(tmp_path / "data"), "partition": "local"}
    (tmp_path / "own.toml").write_text("[data]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()))
    text = command("data", "describe", str(tmp_path / "own.toml"))[1]
    assert text.split("counts")[1] == (
        """         ant: 1
               bee: 2
folders        train/ant: 1
               train/bee/2023: 1
               train/bee: 1
               test/bee: 1
skipped        hidden: 1
               .db (no picture): 1
pictures       PNG RGB: 2
               PNG L: 1
sizes          4x3
range          [1, 250]
test_pictures  PNG P: 1
test_range     [0, 0]
"""
    )
    told = json.loads(command("data", "describe", str(tmp_path / "own.toml"), "--json")[1])
    assert told["pictures"] == {"PNG RGB": 2, "PNG L": 1}
    assert not {"folders", "skipped", "range", "test_range", "doubts"} & {*told}, "files may be called after people"


def test_declared_keys_are_those_of_all_examples_together(command, described: list[Path], tmp_path: Path) -> None:
    keys = tomllib.loads(command("data", "combine", *map(str, described))[1])["data"]
    every = np.concatenate([np.load(f)["train_inputs"] for f in sorted(tmp_path.glob("data/*/data.npz"))])
    assert np.allclose(keys["mean"], every.mean(0, dtype=np.float64), atol=1e-6)
    assert np.allclose(keys["std"], every.std(0, dtype=np.float64), atol=1e-6)
    assert keys["classes"] == 4
    text = (tmp_path / "own.toml").read_text() + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
    (tmp_path / "own.toml").write_text(text)
    facts = {json.dumps(dict(open_data(recipes.load("own.toml").data, Board("pi", k)).about.facts())) for k in range(3)}
    assert len(facts) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [4, 2]}, r"shape is \[4\] in .*pi-0\.json and \[4, 2\] in .*pi-1\.json"),
        ({"labels": None}, None),
        ({"columns": ["b", "a"]}, None),
        ({"sum": [1.0]}, "its sums do not fit its shape"),
        ({"squares": [1.0, 2.0, float("nan"), 4.0]}, "its sums do not fit its shape"),
        ({"shape": 4}, "is not what `edgegossip data describe --json` writes"),
        (None, "is not what `edgegossip data describe --json` writes"),
    ],
)
def test_files_that_do_not_fit(command, described: list[Path], change: dict | None, message: str | None) -> None:
    document = {} if change is None else json.loads(described[1].read_text()) | change
    described[1].write_text(json.dumps(document))
    code, out, err = command("data", "combine", *map(str, described))
    if message is None:
        assert code == 0 and "mean" in out
    else:
        assert code == 3 and re.search(message, err)


@pytest.mark.parametrize("key", ["labels", "columns"])
def test_names_are_compared_and_carried_whatever_file_comes_first(command, described: list[Path], key: str) -> None:
    documents = [json.loads(file.read_text()) for file in described]
    for names in (["cat", "dog"], ["dog", "cat"]):
        for file, document, own in zip(described, documents, ([], ["cat", "dog"], names), strict=True):
            file.write_text(json.dumps({**document, key: own}))
        code, out, err = command("data", "combine", *map(str, described))
        if names == ["cat", "dog"]:
            assert code == 0 and (key != "labels" or tomllib.loads(out)["data"]["labels"] == names)
        else:
            assert code == 3 and f"{key} is ['cat', 'dog'] in {described[1]} and ['dog', 'cat'] in" in err


def test_a_board_with_a_folder_of_its_own_is_told_that_it_will_be_shared_out(command, tmp_path: Path) -> None:
    """Before it looks for its peers; here that ends it, as one of three is named."""
    np.savez(tmp_path / "data.npz", train_inputs=np.eye(4, dtype=np.float32), train_targets=np.arange(4) % 2)
    own = ("--set", "data.name=npz", "--set", f"data.dir={tmp_path}", "--set", "run.nodes=3")
    arguments = ("node", "quickstart-gossip", "--name", "pi-01", "--peer", "pi-02=127.0.0.1:7", *own)
    runs = ("--runs", str(tmp_path / "runs"))
    code, _, err = command(*arguments, *runs)
    assert code == 2 and "run.nodes = 3" in err
    assert "trains on its share, about 1/3 of them" in err and 'set data.partition = "local"' in err
    code, _, err = command(*arguments, *runs, "--set", "data.partition=local", "--set", "data.classes=2")
    assert code == 2 and "!!" not in err


def test_a_dry_run_looks_at_the_data_of_each_board(command, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32) + np.array([0, 1013], np.float32)
    for k in range(2):
        (tmp_path / f"board-{k}").mkdir()
        np.savez(tmp_path / f"board-{k}" / "data.npz", train_inputs=x[:, : 2 - k], train_targets=np.arange(40) % 2)
    declared = (
        "data.classes=2",
        "data.shape=[2]",
        "data.partition=local",
        "data.name=npz",
        f"data.dir={tmp_path}/{{board}}",
    )
    arguments = ("run", "quickstart-gossip", "--boards", "2", "--dry-run", *(w for s in declared for w in ("--set", s)))
    code, _, err = command(*arguments)
    assert code == 3 and "board-1: an input has the shape [1], but data.shape = [2]" in err
    np.savez(tmp_path / "board-1" / "data.npz", train_inputs=x, train_targets=np.arange(40) % 2)
    code, out, _ = command(*arguments, "--json")
    (said,) = json.loads(out)["notices"]
    assert code == 0 and said.startswith("the data of board-0, board-1: channel 2 of 2 has values of about 1.01")
    np.savez(tmp_path / "board-1" / "data.npz", train_inputs=x / [0.001, 1], train_targets=np.arange(40) % 2)
    _, out, _ = command(*arguments, "--json")
    said = json.loads(out)["notices"][-1]
    assert re.match(r"channel 1 of 2 is about [0-9]+ times as large on board-1 as on others: give all boards", said)


def test_a_dry_run_refuses_boards_that_would_refuse_each_other(command, tmp_path: Path) -> None:
    for k, head in enumerate(("a,b,kind", "b,a,kind")):
        (tmp_path / f"board-{k}").mkdir()
        (tmp_path / f"board-{k}" / "train.csv").write_text(
            head + "\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(9))
        )
    (tmp_path / "own.toml").write_text(
        f'[data]\nname = "csv"\ndir = "{tmp_path}/{{board}}"\npartition = "local"\nparams = {{ target = "kind" }}\n'
        "shape = [2]\nclasses = 2\n"
    )
    code, _, err = command("run", str(tmp_path / "own.toml"), "--boards", "2", "--dry-run")
    assert code == 3 and "board-0 and board-1 cannot train together: the columns" in err


def test_what_is_read_of_a_table_is_said(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, counts by class, what was left out and passed over, and ranges; these not in what is
    handed on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text("id,temp,kind\n1,20.5,002\n\n2,-3,001\n3,7,002\n")
    (tmp_path / "own.toml").write_text(
        '[data]\nname = "csv"\ndir = "."\npartition = "local"\nparams = { target = "kind", columns = ["temp"] }\n'
    )
    code, out, _ = command("data", "describe", "own.toml")
    assert code == 0
    said = {line[:15].strip() or "more": line[15:] for line in out.splitlines()}
    assert (said["counts"], said["more"]) == ("001: 1", "002: 2")
    assert (said["columns"], said["left_out"]) == ("['temp']", "['id']")
    assert said["ranges"] == "temp: -3 to 20.5"
    document = json.loads(command("data", "describe", "own.toml", "--json")[1])
    assert (document["columns"], document["counts"]) == (["temp"], [1, 2])
    assert not {"ranges", "left_out"} & set(document)


def test_the_range_of_the_target_is_none_of_an_input(command, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("target,y\n1,100.5\n2,200.5\n")
    (tmp_path / "own.toml").write_text(
        f'[data]\nname = "csv"\ndir = "{tmp_path}"\npartition = "local"\nparams = {{ target = "y" }}\n'
    )
    out = command("data", "describe", str(tmp_path / "own.toml"))[1]
    assert "ranges         target: 1 to 2\n" in out and "target_range   100.5 to 200.5\n" in out
    assert "100.5" not in command("data", "describe", str(tmp_path / "own.toml"), "--json")[1]


def test_boards_whose_columns_stand_in_another_order_are_not_combined(command, tmp_path: Path) -> None:
    files = []
    for k, (first, second) in enumerate((("temp", "hum"), ("hum", "temp"))):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / "train.csv").write_text(f"{first},{second},y\n1,2,u\n3,4,v\n")
        own = ("--set", "data.name=csv", "--set", f"data.dir={folder}", "--set", 'data.params={ target = "y" }')
        code, out, _ = command("data", "describe", "quickstart-gossip", *own, "--set", "data.partition=local", "--json")
        assert code == 0
        files.append(tmp_path / f"{k}.json")
        files[-1].write_text(out, encoding="utf-16")  # as PowerShell's > writes
    code, _, err = command("data", "combine", *map(str, files))
    assert code == 3 and "columns is ['temp', 'hum'] in" in err and "data.params.columns" in err
