"""What a column of a table is taken for, what is asked, and what boards compare of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from edgegossip.agreement import Agreement, difference
from edgegossip.recipe import DataSection
from edgegossip.training.data import DataSet, open_data
from edgegossip.types import ConfigError, DataError


def table(folder: Path, text: str | bytes, **keys) -> DataSet:
    """The only table of a folder, opened."""
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    params = {"target": "y"} | keys.pop("params", {})
    return open_data(DataSection(name="csv", dir=str(folder), partition="local", params=params, **keys))


def of(targets: list[str]) -> str:
    """A table with these targets, five times over; the first stands in line 2."""
    return "a,y\n" + "".join(f"1.5,{text}\n" for text in 5 * targets)


@pytest.mark.parametrize(
    ("targets", "keys", "classes", "names"),
    [
        (["001", "003", "002"], {}, [0, 2, 1], ("001", "002", "003")),
        (["001", "003", "002"], {"labels": ["003", "002", "001"]}, [2, 0, 1], ("003", "002", "001")),
        (["2", "0", "1"], {"labels": ["2", "0", "1"]}, [0, 1, 2], ("2", "0", "1")),
        (["2.0", "0.0"], {"labels": ["2", "0"]}, [0, 1], ("2", "0")),
        (["2.0", "0.0", "1.0"], {"labels": ["ok", "worn", "broken"]}, [2, 0, 1], ("ok", "worn", "broken")),
        (["2.0", "0.0"], {"classes": 3}, [2, 0], ()),
        (["1.00e+00", "0.00e+00"], {"classes": 2}, [1, 0], ()),
        (["1.0", "0.0"], {"target": "class"}, [1, 0], ()),
        (["1E5", "2E3"], {"labels": ["1E5", "2E3"]}, [0, 1], ("1E5", "2E3")),
        (["1_1", "11"], {"target": "class"}, [1, 0], ("11", "1_1")),
        (["1_1", "11"], {"labels": ["1_1", "11"]}, [0, 1], ("1_1", "11")),
        (["True", "False"], {}, [1, 0], ("False", "True")),
        (["None", "Mild"], {}, [1, 0], ("Mild", "None")),
        (["NA", "ok"], {"labels": ["NA", "ok"]}, [0, 1], ("NA", "ok")),
        (["10%", "20%"], {"target": "class"}, [0, 1], ("10%", "20%")),
        (["5 mg", "7 g", "12 mg"], {"target": "class"}, [1, 2, 0], ("12 mg", "5 mg", "7 g")),
        (["1st", "2nd", "3rd", "4th", "5th"], {}, [0, 1, 2, 3, 4], ("1st", "2nd", "3rd", "4th", "5th")),
        (["1a", "1b", "2a"], {}, [0, 1, 2], ("1a", "1b", "2a")),
        (["5 mm", "1 in"], {}, [1, 0], ("1 in", "5 mm")),
        (["3'", "3\u201d"], {}, [0, 1], ("3'", "3\u201d")),
        (["x (1)", "x (2)"], {}, [0, 1], ("x (1)", "x (2)")),
        (["0x10", "0x20"], {}, [0, 1], ("0x10", "0x20")),
        (["+1", "0"], {}, [1, 0], ()),
        (["9" * 5000, "0"], {"labels": ["0", "9" * 5000]}, [1, 0], ("0", "9" * 5000)),
    ],
)
def test_labels_that_look_like_numbers_are_what_is_written(tmp_path, targets, keys, classes, names):
    data = table(tmp_path, of(targets), **keys)
    assert (data.about.target, data.about.names) == ("class", names)
    assert data.train.labels[: len(targets)].tolist() == classes


@pytest.mark.parametrize(
    ("targets", "keys", "message"),
    [
        (["1,5", "2,25"], {"params": {"delimiter": ";"}}, "line 2: column y holds '1,5', a decimal comma .data.params.decimal"),
        (["1.234,5", "2.000,0"], {"params": {"delimiter": ";"}}, "line 2: .* marks of thousands"),
        (["12%", "7.5%"], {}, "line 2: .* a percent sign, and is the target"),
        (["$5", "$7.50"], {}, "line 2: .* a currency"),
        (["20.1 C", "7 C"], {}, "line 2: .* the unit C"),
        (["5 mg", "7 g", "12 mg"], {}, "line 4: .* '12 mg', the unit mg; .* line 3: .* '7 g', the unit g, and is the target"),
        ([f"{k} {unit}" for k in range(11) for unit in ("l", "ml")] + ["trace"], {}, "line 2: .* the unit l; .* the unit ml"),
        (["2024-01-31", "2024-02-01"], {}, "line 2: .* a date"),
        (["31.01.2024", "1.2.2024"], {}, "line 3: .* a date"),
        (["1 Jan 2024", "12 Feb 2024"], {}, "line 2: .* a date"),
        (["2024-01", "2024-02"], {}, "line 2: .* a month, a week or a quarter"),
        (["2024Q1", "2024Q2"], {}, "line 2: .* a month, a week or a quarter"),
        (["2024-W01", "2024-W02"], {}, "line 2: .* a month, a week or a quarter"),
        (["12:30", "7:05"], {}, "a time of day"),
        (["\u0661", "\u0662"], {}, "line 2: .* written as no number is"),
        (["1.5", "2,5", "7.5"], {"params": {"delimiter": ";"}}, "line 3: .* '2,5', a decimal comma .* among numbers"),
        (["1_1", "11", "12", "13"], {}, "line 2: column y holds '1_1'.* among numbers"),
        (["x", "NA"], {}, "line 3: column y holds 'NA', as where a value is missing"),
        (["Yes", "yes"], {}, "line 3: .* holds 'yes', and .* line 2: .* 'Yes': write them alike"),
        (["New York", "NewYork"], {}, "line 3: .* holds 'NewYork', and .* line 2: .* 'New York': write them alike"),
        (["ok", "'ok'"], {}, "line 3: .*, and .* line 2: .*: write them alike"),
        (["ok", "\u201cok\u201d"], {}, "line 3: .*, and .* line 2: .*: write them alike"),
        (["ok", "ok (2)"], {}, "line 3: .* holds 'ok .2.', and .* line 2: .* 'ok': write them alike"),
        (["01", "1"], {}, "line 3: .* holds '1', and .* line 2: .* '01': write them alike"),
        (["0.0", "1.0"], {}, "line 2: .* classes or values"),
        (["1E5", "2E3"], {}, "line 2: .* classes or values"),
        (["90210", "10001"], {}, "column y: 2 different whole numbers, and found the label 90210"),
        (["-1", "1"], {}, "column y: expected labels from 0, found -1; .* data.target = \"values\""),
        (["1", "2"], {"classes": 2}, "line 3: column y holds '2', which is no class of 0 to 1"),
        (["1.5", "0"], {"classes": 2}, "line 2: column y holds '1.5', which is no class"),
        (["a", "b"], {"classes": 3}, "column y has 2 names .a, b., and data.classes = 3: declare data.labels"),
        (["ok", "1"], {"labels": ["ok", "worn"]}, "line 3: column y holds '1', which is not one of data.labels"),
        (["1", "07", "7"], {"labels": ["1", "7"]}, "line 3: column y holds '07', which is not one of data.labels"),
        (["1", "01", "0"], {"labels": ["ok", "worn"]}, "line 3: column y holds '01', which is not one of data.labels"),
        (["3", "0"], {"labels": ["ok", "worn"]}, "line 2: column y holds '3', .* by place they are 0 to 1"),
        (["9" * 5000, "0"], {}, "line 2: column y holds '9999.* which is no class"),
        (["9" * 5000, "0"], {"labels": ["a", "b"]}, "line 2: column y holds '9999.* not one of data.labels"),
        (["5", "x"], {"target": "values"}, "line 3: column y holds 'x', and values are numbers"),
    ],
)  # fmt: skip
def test_a_target_that_may_be_two_things_is_asked_about(tmp_path, targets, keys, message):
    text = of(targets).replace("a,y", "a;y").replace("1.5,", "1.5;", -1) if "params" in keys else of(targets)
    with pytest.raises(DataError, match=message) as caught:
        table(tmp_path, text, **keys)
    assert str(tmp_path / "train.csv") in str(caught.value)


def test_padded_numbers_are_numbers_where_some_have_a_fraction(tmp_path):
    data = table(tmp_path, of(["007", "012.5", "001"]))
    assert (data.about.target, data.train.labels[:3].tolist()) == ("values", [7.0, 12.5, 1.0])


def test_values_have_no_classes(tmp_path):
    with pytest.raises(ConfigError, match="leave data.classes and data.labels out"):
        table(tmp_path, of(["1.5"]), target="values", classes=3)


def test_nearly_as_many_classes_as_examples_are_none(tmp_path):
    for texts in ([f"p{k}" for k in range(30)], [str(k) for k in range(30)]):
        rows = "a,y\n" + "".join(f"1,{text}\n" for text in texts)
        with pytest.raises(DataError, match="column y: 30 different values in 30 examples are hardly classes"):
            table(tmp_path, rows)
        assert table(tmp_path, rows, target="class").about.classes == 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1_0,x\n2,y\n", "line 2: column a holds '1_0'.* and inputs are numbers"),
        ("\u0661,x\n2,y\n", "line 2: column a holds '\u0661'"),
        ("1,x\n\n1;5,y\n", "line 4: column a holds '1;5'"),
        ('1,"x\nz"\n,y\n', "line 4: column a is empty"),
        ("1e39,x\n2,y\n", r"line 2: column a holds 1e\+39, and float32 has no such number"),
        ("1700000000,x\n1700000001,y\n", "column a has numbers from 1700000000.* too close together for float32"),
        ('1,"x\n2,y\n', "line 3: cannot be read as csv: unexpected end"),
    ],
)
def test_inputs_are_numbers_and_nothing_else(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        table(tmp_path, "a,y\n" + text)


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        (
            "5.1,3.5,u\n4.9,3.0,u\n6.1,2.9,v\n",
            {"target": "u"},
            "line 1: it holds numbers .5.1. and no names of columns",
        ),
        ("1,2,u\n1.5,2.2,u\n0.7,1.8,v\n", {"target": "u"}, "line 1: it holds numbers"),
        (",a,y\n0,1.5,u\n1,2.5,v\n", {}, "column 1 of 3 has no name"),
        ("a,y,\n1,u,\n2,v,\n", {}, "column 3 of 3 has no name"),
        ("a;y\n1;u\n2;v\n", {}, "line 1: there is no ',' in it, and ';' is: set data.params.delimiter"),
        ("a\ty\n1\tu\n", {"delimiter": ";"}, "line 1: there is no ';' in it"),
        ("a;y\n1.5;u\n", {"delimiter": ";", "decimal": ","}, "line 2: column a holds '1.5'"),
    ],
)
def test_a_first_line_that_is_not_what_it_should_be(tmp_path, text, params, message):
    with pytest.raises(DataError, match=message):
        table(tmp_path, text, params=params)


def test_columns_may_be_numbered_and_be_wavelengths(tmp_path):
    numbered = table(tmp_path, "0,1,y\n0.5,1.2,u\n0.7,0.8,v\n")
    waves = table(tmp_path, "400.5,401.0,y\n0.5,1.2,u\n0.7,0.8,v\n")
    assert (numbered.about.columns, waves.about.columns) == (("0", "1"), ("400.5", "401.0"))


def test_a_decimal_comma_is_read_where_it_is_said(tmp_path):
    params = {"delimiter": ";", "decimal": ","}
    data = table(tmp_path, "a;y\n1,5;-2,25\n2,5;1e1\n", params=params)
    assert data.about.target == "values"
    assert data.train.inputs.take(np.arange(2)).tolist() == [[1.5], [2.5]]
    assert data.train.labels.tolist() == [-2.25, 10.0]
    with pytest.raises(ConfigError, match="it is a point or a comma"):
        table(tmp_path, "a;y\n1;u\n", params={"decimal": ";"})


def test_boards_compare_columns_and_names_of_classes(tmp_path):
    texts = {"one": "a,b,y\n1,2,u\n3,4,v\n", "turned": "b,a,y\n2,1,u\n4,3,v\n", "other": "a,b,y\n1,2,v\n3,4,w\n"}
    facts = {name: Agreement(table(tmp_path / name, text).about.facts()) for name, text in texts.items()}
    assert "the columns of an input is 2: a, b" in difference(facts["one"], facts["turned"])
    assert "data.params.columns" in difference(facts["one"], facts["turned"])
    assert "the labels is 2: u, v" in difference(facts["one"], facts["other"])
    declared = [table(tmp_path / n, texts[n], labels=["u", "v", "w"], params={"columns": ["a", "b"]}) for n in texts]
    assert len({str(data.about.facts()) for data in declared}) == 1
    assert [data.train.labels.tolist() for data in declared] == [[0, 1], [0, 1], [1, 2]]


def test_the_index_that_pandas_writes_into_parquet_is_no_input(tmp_path):
    import pandas

    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "y": ["u", "v", "u"]}, index=[5, 7, 9])
    frame.to_parquet(tmp_path / "train.parquet")
    data = open_data(DataSection(name="parquet", dir=str(tmp_path), partition="local", params={"target": "y"}))
    assert data.about.columns == ("a",)
    assert data.train.account()["left_out"] == ["__index_level_0__"]


def test_labels_of_huggingface_go_by_their_names(tmp_path):
    import datasets

    features = datasets.Features({"x": datasets.Value("float32"), "y": datasets.ClassLabel(names=["cat", "ant"])})
    part = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "y": [0, 1, 1]}, features=features)
    part.save_to_disk(str(tmp_path / "named"))
    datasets.Dataset.from_dict({"x": [1.0, 2.0], "y": ["b", "a"]}).save_to_disk(str(tmp_path / "texts"))

    def opened(name: str, **keys) -> DataSet:
        return open_data(
            DataSection(name="huggingface", dir=str(tmp_path / name), partition="local", params={"target": "y"}, **keys)
        )

    assert (opened("named").about.names, opened("named").train.labels.tolist()) == (("cat", "ant"), [0, 1, 1])
    assert opened("named", labels=["ant", "cat"]).train.labels.tolist() == [1, 0, 0]
    assert (opened("texts").about.names, opened("texts").train.labels.tolist()) == (("a", "b"), [1, 0])


def test_masks_of_huggingface_are_targets_as_they_are_stored(tmp_path):
    import datasets
    from PIL import Image

    masks = [np.full((2, 3), k, np.uint8) for k in range(4)]
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32")), "y": datasets.Image()})
    rows = {"x": [[1.0, 2.0]] * 4, "y": [Image.fromarray(mask) for mask in masks]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path))
    data = open_data(DataSection(name="huggingface", dir=str(tmp_path), partition="local", params={"target": "y"}))
    assert (data.about.target, data.about.target_shape) == ("places", (2, 3))
    assert (data.train.take(np.arange(4)).targets == np.stack(masks)).all()


X, Y = np.arange(48, dtype=np.float32).reshape(24, 2), np.arange(24) % 3


class Own(torch.utils.data.Dataset):
    """Examples that come one at a time."""

    def __init__(self, target) -> None:
        self.target = target

    def __len__(self) -> int:
        return 24

    def __getitem__(self, k: int):
        return X[k].astype(">f4"), self.target(k)


@pytest.fixture
def custom(tmp_path, monkeypatch):
    """Open what a user's function returns."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / f"{name}.py").write_text("def data(folder):\n    return GIVEN\n")
    module = __import__(name)

    def opened(given, **keys) -> DataSet:
        module.GIVEN = given
        return open_data(DataSection(name=f"{name}:data", partition="local", **keys))

    return opened


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ((X, Y[:, None]), {}),
        ((X, np.eye(3, dtype=np.int32)[Y]), {}),
        ((X.astype(">f8"), Y.astype(">u2")), {}),
        ((np.asfortranarray(X), Y.astype(np.float16)), {"classes": 3}),
        ((X.astype(np.longdouble), np.eye(3, dtype=bool)[Y]), {"target": "class"}),
        ((torch.from_numpy(X).bfloat16(), torch.from_numpy(Y)), {}),
        (Own(lambda k: np.array([k % 3])), {}),
        (Own(lambda k: np.eye(3, dtype=np.int64)[k % 3]), {}),
        (Own(lambda k: float(k % 3)), {"labels": ["a", "b", "c"]}),
    ],
)
def test_arrays_and_data_sets_may_have_classes_in_any_form(custom, given, keys):
    data = custom(given, **keys)
    taken = data.train.take(np.arange(24))
    assert (data.about.target, data.about.classes) == ("class", 3)
    assert taken.targets.tolist() == Y.tolist() and taken.targets.dtype == np.int64
    assert (taken.inputs == X).all() and taken.inputs.dtype.isnative


def test_tables_of_pandas_are_arrays(custom):
    import pandas

    data = custom((pandas.DataFrame(X), pandas.Series(Y)))
    assert (data.train.inputs.take(np.arange(24)) == X).all()
    assert data.train.labels.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("given", "keys", "error", "message"),
    [
        ((X, Y.astype(float)), {}, DataError, "all of them whole numbers; classes or values"),
        ((X, np.eye(3)[Y]), {}, DataError, "all of them one-hot; classes or values"),
        ((X, 1.0 - np.eye(3)[Y]), {}, DataError, 'whole numbers; labels or values. set data.target = "labels"'),
        ((X, Y + 0.5), {"classes": 3}, DataError, "training part: target 0 is 0.5, which is no class"),
        ((X, np.ones((24, 3))), {"classes": 3}, DataError, r"targets are float64\[3\] and not one-hot, and 3 classes"),
        ((X, Y.astype(np.uint64) + 2**63), {}, DataError, "target 0 is 9223372036854775808, which is no class"),
        ((X.astype(np.uint64) + 2**63, Y), {}, DataError, r"inputs\[0\] holds .* a number too large"),
        (
            (1.7e9 + X.astype(float) / 100, Y),
            {},
            DataError,
            r"float32 cannot tell the values at \[0\] of an input apart",
        ),
        ((np.ma.masked_greater(X, 40), Y), {}, DataError, r"inputs\[20\] holds a NaN"),
        ((X, np.linspace(0, 1e300, 24)), {}, DataError, r"targets\[1\] holds .* a number too large"),
        ((X, Y * 1000), {}, DataError, "found the label 2000, which makes 2001 classes"),
        ((X, Y), {"labels": ["2", "0", "1"]}, ConfigError, "data.labels has '2' as place 0"),
        (Own(lambda k: float(k % 3)), {}, DataError, "classes or values"),
    ],
)
def test_arrays_that_may_be_two_things_are_asked_about(custom, given, keys, error, message):
    with pytest.raises(error, match=message):
        custom(given, **keys)


def frame(count: int = 12):
    """A table of pandas whose columns differ in range, so that a swap of two shows."""
    import pandas

    rows = np.arange(count)
    return pandas.DataFrame({"a": rows / 8, "b": 100 + rows, "y": np.array(["ok", "worn"])[rows % 2]})


def saved(made, path: Path, kind: str) -> None:
    if kind == "csv":
        made.to_csv(path, index=False)
    else:
        made.to_parquet(path)


def opened(folder: Path, kind: str, **params) -> DataSet:
    return open_data(DataSection(name=kind, dir=str(folder), partition="local", params={"target": "y", **params}))


def inputs_of(part) -> np.ndarray:
    return part.take(np.arange(len(part))).inputs


@pytest.mark.parametrize("kind", ["csv", "parquet", "huggingface"])
@pytest.mark.parametrize("order", [["b", "a", "y"], ["y", "more", "a", "b"]])
def test_a_test_table_is_read_in_the_order_of_the_training_table(tmp_path, kind, order):
    made = frame()
    other = made.assign(more=1.5)[order]
    if kind == "huggingface":
        datasets = pytest.importorskip("datasets")
        parts = {"train": datasets.Dataset.from_pandas(made), "test": datasets.Dataset.from_pandas(other)}
        datasets.DatasetDict(parts).save_to_disk(str(tmp_path))
    else:
        saved(made, tmp_path / f"train.{kind}", kind)
        saved(other, tmp_path / f"test.{kind}", kind)
    data = opened(tmp_path, kind)
    assert data.test is not None
    np.testing.assert_array_equal(inputs_of(data.test), made[["a", "b"]].to_numpy(np.float32))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_test_table_without_a_column_of_the_training_table_is_refused(tmp_path, kind):
    saved(frame(), tmp_path / f"train.{kind}", kind)
    saved(frame().rename(columns={"b": "c"}), tmp_path / f"test.{kind}", kind)
    with pytest.raises(DataError, match=rf"test\.{kind}: there is no column 'b'"):
        opened(tmp_path, kind)


def test_an_index_with_a_name_is_no_input(tmp_path):
    import pandas

    made = frame()
    named = made.set_index(pandas.Index([*range(60, 60 + len(made) - 1), 7], name="id"))
    named.to_parquet(tmp_path / "train.parquet")
    data = opened(tmp_path, "parquet")
    assert data.about.columns == ("a", "b")
    assert data.train.account()["left_out"] == ["id"]
    assert opened(tmp_path, "parquet", columns=["id"]).about.columns == ("id",)


def test_whole_numbers_of_huggingface_are_inputs_as_those_of_other_tables(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = frame()[["b", "y"]].assign(c=range(12))
    datasets.Dataset.from_pandas(made).save_to_disk(str(tmp_path))
    data = opened(tmp_path, "huggingface")
    assert data.about.dtype == "float32"
    np.testing.assert_array_equal(inputs_of(data.train), made[["b", "c"]].to_numpy(np.float32))


def test_seconds_since_1970_are_refused_in_huggingface_too(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(frame().assign(a=1.7e9 + np.arange(12))).save_to_disk(str(tmp_path))
    with pytest.raises(DataError, match="column a .* too close together"):
        opened(tmp_path, "huggingface")


@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
def test_windows_of_16_bits_are_no_tokens(tmp_path, kind):
    windows = [[k, -k, 7] for k in range(12)]
    if kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = arrow.table({"w": arrow.array(windows, arrow.list_(arrow.int16())), "y": list("ab" * 6)})
        parquet.write_table(table, tmp_path / "train.parquet")
    else:
        datasets = pytest.importorskip("datasets")
        of = {"w": datasets.Sequence(datasets.Value("int16")), "y": datasets.Value("string")}
        given = {"w": windows, "y": list("ab" * 6)}
        datasets.Dataset.from_dict(given, datasets.Features(of)).save_to_disk(str(tmp_path))
    data = opened(tmp_path, kind)
    assert data.about.dtype == "float32"
    np.testing.assert_array_equal(inputs_of(data.train), windows)


def test_a_view_of_texts_is_texts(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kinds = arrow.array(list("ab" * 6)).cast(arrow.string_view())
    parquet.write_table(arrow.table({"a": range(12), "y": kinds}), tmp_path / "train.parquet")
    assert opened(tmp_path, "parquet").about.names == ("a", "b")


THOUSANDS = "a;y\n950;ok\n1.200;worn\n2.350;ok\n"


def test_points_that_may_be_marks_of_thousands_are_asked_about(tmp_path):
    with pytest.raises(DataError, match=r"line 3: column a holds '1\.200', and line 2 '950'.*data\.params\.decimal"):
        table(tmp_path, THOUSANDS, params={"delimiter": ";"})
    data = table(tmp_path, THOUSANDS, params={"delimiter": ";", "decimal": "."})
    np.testing.assert_array_equal(inputs_of(data.train), np.array([[950], [1.2], [2.35]], np.float32))


@pytest.mark.parametrize(
    "numbers", [["1.250", "2.125"], ["0", "1.250"], ["950", "1.25"], ["5", "0.125"], ["1200", "1.250"]]
)
def test_fractions_of_three_digits_are_fractions(tmp_path, numbers):
    data = table(tmp_path, "a,y\n" + "".join(f"{v},{'ab'[k]}\n" for k, v in enumerate(numbers)))
    np.testing.assert_array_equal(inputs_of(data.train)[:, 0], np.array(numbers, np.float32))


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("0,126", r'a decimal comma \(data\.params\.decimal = "," reads it\)'),
        ("12,345", r'marks of thousands or a decimal comma \(which data\.params\.decimal = "," reads\)'),
        ("12,34,567.50", "marks of thousands"),
    ],
)
def test_what_a_comma_may_be_is_said(tmp_path, cell, words):
    with pytest.raises(DataError, match=rf"line 2: column a holds '{cell}', {words}, and inputs are numbers"):
        table(tmp_path, f"a;y\n{cell};ok\n", params={"delimiter": ";"})


@pytest.mark.parametrize("cell", [r"\N", "#DIV/0!", "#VALUE!", "#NA", "n.a.", "1.#IND", "-nan", "(null)"])
def test_what_programs_write_for_a_missing_value_is_no_class(tmp_path, cell):
    with pytest.raises(DataError, match="line 4: column y holds .* as where a value is missing"):
        table(tmp_path, f"a,y\n1,ok\n2,worn\n3,{cell}\n4,ok\n")


def test_a_missing_target_of_parquet_is_named(tmp_path):
    frame().assign(y=[0.0, 1.0, 0.0, 1.0, 0.0, float("nan")] * 2).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"row 6: column y holds (nothing|nan)"):
        opened(tmp_path, "parquet")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    of_nan = arrow.table({"a": [1.0, 2.0, 3.0], "y": arrow.array([0.0, float("nan"), 1.0])})
    parquet.write_table(of_nan, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"row 2: column y holds nan"):
        opened(tmp_path, "parquet")


def test_excels_line_about_the_delimiter_is_no_line_of_names(tmp_path):
    for params in ({}, {"delimiter": ";"}):
        with pytest.raises(DataError, match=r"line 1: 'sep=;' tells Excel .* data\.params\.delimiter = ';'"):
            table(tmp_path, "sep=;\r\na;y\r\n1;ok\r\n", params=params)


def test_tables_are_found_as_systems_name_them(tmp_path):
    saved(frame(), tmp_path / "Train.CSV", "csv")
    (tmp_path / "._Train.CSV").write_bytes(b"\0\5\x16\7")
    saved(frame(), tmp_path / "val.csv", "csv")
    data = opened(tmp_path, "csv")
    assert data.test is None
    assert data.train.account()["skipped"] == {"val.csv": "neither train.csv nor test.csv"}


@pytest.mark.parametrize("name", ["test", "Validation", "test-00000-of-00001"])
def test_a_test_table_alone_is_not_trained_on(tmp_path, name):
    saved(frame(), tmp_path / f"{name}.csv", "csv")
    with pytest.raises(DataError, match=rf"{name}\.csv is the only table"):
        opened(tmp_path, "csv")


def test_parts_of_huggingface_that_are_not_read_are_said(tmp_path):
    datasets = pytest.importorskip("datasets")
    part = datasets.Dataset.from_pandas(frame())
    datasets.DatasetDict(train=part, validation=part).save_to_disk(str(tmp_path))
    assert opened(tmp_path, "huggingface").train.account()["skipped"] == {"validation": "neither train nor test"}


@pytest.mark.parametrize("words", [("True", "False"), ("true", "false"), ("TRUE", "FALSE")])
def test_a_column_of_true_and_false_is_1_and_0_as_in_parquet(tmp_path, words):
    data = table(tmp_path, "a,b,y\n" + "".join(f"{words[k % 3 == 0]},{k},{'ab'[k % 2]}\n" for k in range(9)))
    assert inputs_of(data.train)[:, 0].tolist() == [float(k % 3 != 0) for k in range(9)]


@pytest.mark.parametrize(
    ("cells", "line"), [(["True", "1", "False"], 3), (["0", "True"], 3), (["True", "False", "yes"], 4)]
)
def test_true_among_numbers_is_refused(tmp_path, cells, line):
    with pytest.raises(DataError, match=rf"line {line}: column a holds .* and inputs are numbers"):
        table(tmp_path, "a,y\n" + "".join(f"{cell},{'ab'[k % 2]}\n" for k, cell in enumerate(cells)))


def test_what_lies_there_instead_of_a_table_is_named(tmp_path):
    (tmp_path / "data.tsv").write_text("a\ty\n")
    with pytest.raises(DataError, match=r"there is none, but data\.tsv"):
        opened(tmp_path, "csv")


def test_a_class_of_the_test_table_alone_must_be_declared(tmp_path):
    saved(frame(), tmp_path / "train.csv", "csv")
    (tmp_path / "test.csv").write_text("a,b,y\n1,2,ok\n1,2,wrn\n")
    with pytest.raises(
        DataError, match=r"test\.csv, line 3: column y holds 'wrn', a class without examples to train on"
    ):
        opened(tmp_path, "csv")
    section = {"name": "csv", "dir": str(tmp_path), "partition": "local", "params": {"target": "y"}}
    assert open_data(DataSection(**section, labels=["ok", "worn", "wrn"])).about.classes == 3
