"""Tables: what a column is taken for, what is asked, and that pandas reads the same."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgegossip.agreement import Agreement, difference
from edgegossip.recipe import DataSection
from edgegossip.training.data import Board, DataSet, locate, open_data
from edgegossip.types import ConfigError, DataError, EdgegossipError


def opened(folder: Path, kind: str = "csv", params: dict | None = None, **keys) -> DataSet:
    params = {"target": "y"} | (params or {})
    return open_data(DataSection(name=kind, dir=str(folder), partition="local", params=params, **keys))


def table(folder: Path, text: str, **keys) -> DataSet:
    """The only table of a folder, opened."""
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(text)
    return opened(folder, **keys)


def of(targets: list[str]) -> str:
    """A table with these targets, five times over; the first stands in row 1."""
    return "a;y\n" + "".join(f"1.5;{text}\n" for text in 5 * targets)


def frame(count: int = 12) -> pandas.DataFrame:
    """A table whose columns differ in range, so that a swap of two shows."""
    rows = np.arange(count)
    return pandas.DataFrame({"a": rows / 8, "b": 100 + rows, "y": np.array(["ok", "worn"])[rows % 2]})


def saved(made: pandas.DataFrame, folder: Path, kind: str, part: str = "train") -> None:
    """A part of a data set, in a kind of file."""
    if kind == "csv":
        made.to_csv(folder / f"{part}.csv", index=False)
    elif kind == "parquet":
        made.to_parquet(folder / f"{part}.parquet")


def stored(folder: Path, **parts) -> None:
    """A data set of the package datasets."""
    import datasets

    datasets.DatasetDict(parts).save_to_disk(str(folder))


def inputs_of(part) -> np.ndarray:
    return part.take(np.arange(len(part))).inputs


# -- what a column is taken for -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_a_table_by_name(tmp_path, kind):
    made = pandas.DataFrame(
        {"t": [1.5, 2.5, -1], "h": [2, 3, 4], "kind": ["ant", "bee", "ant"], "price": [10, 20.5, 30]}
    )
    saved(made, tmp_path, kind)
    saved(made[:1], tmp_path, kind, "test")

    def read(predicted, columns, **keys) -> DataSet:
        return opened(tmp_path, kind, {"target": predicted, "columns": columns}, **keys)

    data = read("kind", ["h", "t"])
    assert inputs_of(data.train).tolist() == [[2, 1.5], [3, 2.5], [4, -1]]
    assert (inputs_of(data.train).dtype, data.train.labels.tolist()) == (np.float32, [0, 1, 0])
    assert (data.about.names, data.about.columns, len(data.test)) == (("ant", "bee"), ("h", "t"), 1)
    assert data.train.account()["left_out"] == ["price"]
    values = read("price", ["h", "t"])
    assert (values.about.target, values.train.labels.tolist()) == ("values", [10.0, 20.5, 30.0])
    several = read(["price", "h"], "t")
    assert (several.about.target, several.about.outputs) == ("values", 2)
    assert (read("h", ["t"]).about.target, read("h", ["t"]).about.classes) == ("class", 5)
    assert read("h", ["t"], target="values").about.target == "values"


@pytest.mark.parametrize("target", ["c", ["c"], ["c", "d"]])
def test_columns_of_0_and_1_may_be_labels(tmp_path, target):
    params = {"target": target, "columns": "a"}
    data = table(tmp_path, "a,c,d\n1.5,0,1\n2.5,1,1\n", target="labels", params=params)
    expected = [[0, 1], [1, 1]] if "d" in target else [[0], [1]]
    assert (data.about.target, data.train.labels.tolist()) == ("labels", expected)
    with pytest.raises(DataError, match="row 2: column c holds 2, and with data.target = labels all are 0 or 1"):
        table(tmp_path, "a,c,d\n1.5,0,1\n2.5,2,1\n", target="labels", params=params)


@pytest.mark.parametrize(
    ("targets", "keys", "classes", "names"),
    [
        (["001", "003", "002"], {}, [0, 2, 1], ("001", "002", "003")),
        (["001", "003", "002"], {"labels": ["003", "002", "001"]}, [2, 0, 1], ("003", "002", "001")),
        (["2", "0", "1"], {"labels": ["2", "0", "1"]}, [0, 1, 2], ("2", "0", "1")),
        (["2.0", "0.0", "1.0"], {"labels": ["ok", "worn", "broken"]}, [2, 0, 1], ("ok", "worn", "broken")),
        (["2.0", "0.0"], {"classes": 3}, [2, 0], ()),
        (["1E5", "2E3"], {"labels": ["1E5", "2E3"]}, [0, 1], ("1E5", "2E3")),
        (["True", "False"], {}, [1, 0], ("False", "True")),
        (["None", "Mild"], {}, [1, 0], ("Mild", "None")),
        (["NA", "ok"], {"labels": ["NA", "ok"]}, [0, 1], ("NA", "ok")),
        (["5 mg", "7 g", "12 mg"], {"target": "class"}, [1, 2, 0], ("12 mg", "5 mg", "7 g")),
        (["+1", "0"], {}, [1, 0], ()),
        (["b", "a"], {"classes": 2}, [1, 0], ("a", "b")),
    ],
)  # fmt: skip
def test_labels_that_look_like_numbers_are_what_is_written(tmp_path, targets, keys, classes, names):
    data = table(tmp_path, of(targets), params={"delimiter": ";"}, **keys)
    assert (data.about.target, data.about.names) == ("class", names)
    assert data.train.labels[: len(targets)].tolist() == classes


@pytest.mark.parametrize(
    ("targets", "keys", "message"),
    [
        (["1,5", "2,25"], {}, "row 1: column y holds '1,5', and is the target: a number or the name of a class"),
        (["$5", "$7.50"], {}, r"row 1: .* '\$5', and is the target"),
        (["1.5", "x"], {}, "row 1: .* '1.5', and is the target"),
        (["2024-01-31", "2024-02-01"], {}, "row 1: .* and is the target"),
        (["x", "NA"], {}, "row 2: column y holds 'NA', as where a value is missing"),
        (["x", ""], {}, "row 2: column y holds '', as where a value is missing"),
        (["Yes", "yes"], {}, "row 2: .* holds 'yes', and .* row 1: .* 'Yes': write them alike"),
        (["0.0", "1.0"], {}, "all of them whole numbers; classes or values"),
        (["90210", "10001"], {}, "2 different whole numbers, and found the label 90210"),
        (["1", "2"], {"classes": 2}, "found the label 2, but with data.classes = 2"),
        (["a", "b"], {"classes": 3}, "column y has 2 names .a, b., and data.classes = 3: declare data.labels"),
        (["ok", "1"], {"labels": ["ok", "worn"]}, "row 2: column y holds '1', which is not one of data.labels"),
        (["1", "07", "7"], {"labels": ["1", "7"]}, "row 2: column y holds '07', which is not one of data.labels"),
        (["3", "0"], {"labels": ["ok", "worn"]}, "found the label 3, but with 2 names labels are 0 to 1"),
        (["5", "x"], {"target": "values"}, "row 2: column y holds 'x', and values are numbers"),
        ([f"p{k}" for k in range(30)][::5], {"target": "class", "classes": 3}, "column y has 6 names"),
    ],
)  # fmt: skip
def test_a_target_that_may_be_two_things_is_asked_about(tmp_path, targets, keys, message):
    with pytest.raises(DataError, match=message) as caught:
        table(tmp_path, of(targets), params={"delimiter": ";"}, **keys)
    assert str(tmp_path) in str(caught.value)


def test_nearly_as_many_classes_as_examples_are_none(tmp_path):
    rows = "a,y\n" + "".join(f"1,p{k}\n" for k in range(30))
    with pytest.raises(DataError, match="column y: 30 different values in 30 examples are hardly classes"):
        table(tmp_path, rows)
    assert table(tmp_path, rows, target="class").about.classes == 30


def test_a_decimal_comma_is_read_where_it_is_said(tmp_path):
    params = {"delimiter": ";", "decimal": ","}
    data = table(tmp_path, "a;y\n1,5;-2,25\n2,5;1e1\n", params=params)
    assert (data.about.target, data.train.labels.tolist()) == ("values", [-2.25, 10.0])
    assert inputs_of(data.train).tolist() == [[1.5], [2.5]]
    with pytest.raises(DataError, match="row 1: column y holds '1.5', and is the target"):
        table(tmp_path, "a;y\n1,5;1.5\n2,5;2.5\n", params=params)


def test_a_column_of_true_and_false_is_1_and_0(tmp_path):
    data = table(tmp_path, "a,y\nTrue,u\nfalse,v\nTRUE,u\n")
    assert inputs_of(data.train).tolist() == [[1], [0], [1]]


def test_boards_compare_columns_and_names_of_classes(tmp_path):
    texts = {"one": "a,b,y\n1,2,u\n3,4,v\n", "turned": "b,a,y\n2,1,u\n4,3,v\n", "other": "a,b,y\n1,2,v\n3,4,w\n"}
    facts = {name: Agreement(table(tmp_path / name, text).about.facts()) for name, text in texts.items()}
    assert "the columns of an input is 2: a, b" in difference(facts["one"], facts["turned"])
    assert "data.params.columns" in difference(facts["one"], facts["turned"])
    assert "the labels is 2: u, v" in difference(facts["one"], facts["other"])
    declared = [table(tmp_path / n, texts[n], labels=["u", "v", "w"], params={"columns": ["a", "b"]}) for n in texts]
    assert len({str(data.about.facts()) for data in declared}) == 1
    assert [data.train.labels.tolist() for data in declared] == [[0, 1], [0, 1], [1, 2]]


# -- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        ("a,y\n1_0,x\n2,y\n", {}, "row 1: column a holds '1_0', and inputs are numbers: mend it, .* data.params.delimiter"),
        ("a,y\n1,u\nTrue,v\n", {}, "row 2: column a holds 'True', and inputs are numbers"),
        ("a,y\nnan,u\n1,v\n", {}, "row 1: column a holds nothing: fill it, or leave the row out"),
        ("a,b,y\n1,,u\n", {}, "row 1: column b holds nothing"),
        (f"a,y\n{'9' * 400},u\n1,v\n", {}, "column a holds numbers beyond those of float64"),
        ("a,y\n1e39,x\n2,y\n", {}, r"row 1: column a holds 1e\+39, and float32 has no such number"),
        ("a,y\n1700000000,x\n1700000001,y\n", {}, "column a has numbers from 1700000000.* too close together for float32"),
        ('a,y\n1,"x\n2,y\n', {}, r"train\.csv cannot be read as csv: .*EOF inside string"),
        ("a,y\n1,u\n2,v,3\n", {}, r"train\.csv cannot be read as csv: .*Expected 2 fields in line 3, saw 3"),
        ("a,y\n1,u,3\n2,v,3\n", {}, r"train\.csv cannot be read as csv: Length of header"),
        ("a,b,y\n1,2,u\n3\n", {}, "row 2: column (b|y) holds (nothing|'')"),
        ("", {}, r"train\.csv cannot be read as csv"),
        ("a,y\n", {}, "there are no examples"),
        (",a,y\n0,1.5,u\n1,2.5,v\n", {}, "column 1 of 3 has no name"),
        ("a,y,\n1,u,\n2,v,\n", {}, "column 3 of 3 has no name"),
        ("a,y,a\n1,u,3\n", {}, "there are 2 columns 'a'; give each a name of its own"),
        ("a,why\n1,u\n", {}, "there is no column 'y'; did you mean why. .columns: a, why."),
        ("y\nu\n", {}, "no column is left for the inputs"),
        ("5.1,3.5,y\n4.9,3.0,u\n6.1,2.9,v\n", {}, "its first line holds numbers .5.1. and no names of columns"),
        ("a;y\n1;u\n", {}, "there is no column 'y'.* .columns: a;y."),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(tmp_path, text, params, message):
    with pytest.raises(DataError, match=message):
        table(tmp_path, text, params=params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"taget": "y"}, "did you mean target"),
        ({"target": 3}, "name a column or a list of columns"),
        ({"delimiter": "::"}, "it is one character"),
        ({"decimal": ";"}, "it is one character, such as ,"),
        ({"columns": ["y"]}, "'y' is an input and the target"),
    ],
)
def test_parameters_that_cannot_be(tmp_path, params, message):
    with pytest.raises(ConfigError, match=message):
        table(tmp_path, "a,y\n1,u\n2,v\n", params=params)


def test_columns_may_be_numbered_and_be_wavelengths(tmp_path):
    numbered = table(tmp_path, "0,1,y\n0.5,1.2,u\n0.7,0.8,v\n")
    params = {"columns": ["400.5", "401.0"]}
    waves = table(tmp_path, "400.5,401.0,y\n0.5,1.2,u\n0.7,0.8,v\n", params=params)
    assert (numbered.about.columns, waves.about.columns) == (("0", "1"), ("400.5", "401.0"))


def test_which_table_it_is_must_be_clear(tmp_path):
    section = DataSection(name="csv", dir=str(tmp_path), partition="local")
    with pytest.raises(DataError, match=r"expected train\.csv .* there is none"):
        locate(section, Board())
    for name in ("a.csv", "b.csv"):
        saved(frame(), tmp_path, "csv", name[0])
    with pytest.raises(DataError, match=r"there are a\.csv, b\.csv"):
        locate(section, Board())
    (tmp_path / "a.csv").rename(tmp_path / "Train.CSV")
    (tmp_path / "._Train.CSV").write_bytes(b"\0\5\x16\7")
    data = opened(tmp_path)
    assert (data.test, data.train.account()["skipped"]) == (None, {"b.csv": "neither train.csv nor test.csv"})
    (tmp_path / "Train.CSV").write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(DataError, match=r"Train\.CSV cannot be read as csv: line 2: not text in UTF-8"):
        opened(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        opened(tmp_path, "parquet")


def test_a_test_table_alone_is_not_trained_on(tmp_path):
    saved(frame(), tmp_path, "csv", "Validation")
    with pytest.raises(DataError, match=r"Validation\.csv is the only table"):
        opened(tmp_path)
    (tmp_path / "Validation.csv").rename(tmp_path / "mine.csv")
    assert opened(tmp_path).about.columns == ("a", "b")


def test_a_class_of_the_test_table_alone_must_be_declared(tmp_path):
    saved(frame(), tmp_path, "csv")
    (tmp_path / "test.csv").write_text("a,b,y\n1,2,ok\n1,2,wrn\n")
    with pytest.raises(DataError, match=r"test\.csv, row 2: column y holds 'wrn', .*; did you mean worn\?"):
        opened(tmp_path)
    assert opened(tmp_path, labels=["ok", "worn", "wrn"]).about.classes == 3


@pytest.mark.parametrize("kind", ["csv", "parquet", "huggingface"])
def test_a_test_table_is_read_in_the_order_of_the_training_table(tmp_path, kind):
    made, turned = frame(), frame().assign(more=1.5)[["y", "more", "b", "a"]]
    if kind == "huggingface":
        import datasets

        stored(tmp_path, train=datasets.Dataset.from_pandas(made), test=datasets.Dataset.from_pandas(turned))
    saved(made, tmp_path, kind)
    saved(turned, tmp_path, kind, "test")
    data = opened(tmp_path, kind)
    np.testing.assert_array_equal(inputs_of(data.test), made[["a", "b"]].to_numpy(np.float32))
    if kind == "csv":
        saved(made.rename(columns={"b": "c"}), tmp_path, kind, "test")
        with pytest.raises(DataError, match=r"test\.csv: there is no column 'b'"):
            opened(tmp_path, kind)


# -- parquet --------------------------------------------------------------------------------------


def test_the_index_that_pandas_saves_is_no_input(tmp_path):
    made = frame()
    made.set_index(pandas.Index([*range(60, 71), 7], name="id")).to_parquet(tmp_path / "train.parquet")
    assert opened(tmp_path, "parquet").about.columns == ("a", "b")


def test_types_of_parquet_are_what_they_hold(tmp_path):
    made = frame().assign(
        d=[Decimal(k) / 4 for k in range(12)],
        i=pandas.array(range(12), "Int64"),
        t=[True, False] * 6,
        y=pandas.Categorical(["ok", "worn"] * 6),
    )
    saved(made, tmp_path, "parquet")
    data = opened(tmp_path, "parquet", {"columns": ["d", "i", "t"]})
    np.testing.assert_array_equal(inputs_of(data.train), made[["d", "i", "t"]].to_numpy(np.float32))
    assert data.about.names == ("ok", "worn")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pandas.array([1, None] * 6, "Int64"), "row 2: column a holds nothing"),
        (pandas.date_range("2024-01-31", periods=12), "column a holds datetime64, and columns hold numbers"),
        ([[k] * (1 + k % 2) for k in range(12)], "column a holds mixed, .* lists of numbers that are all as long"),
        ([[k, k] for k in range(12)], "column a holds lists, which cannot stand beside others"),
    ],
)
def test_columns_of_parquet_that_are_no_input(tmp_path, column, message):
    saved(frame().assign(a=column), tmp_path, "parquet")
    with pytest.raises(DataError, match=message):
        opened(tmp_path, "parquet")


@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
@pytest.mark.parametrize(("bits", "dtype"), [("int64", "int64"), ("int16", "float32")])
def test_lists_are_tokens_unless_they_have_few_bits(tmp_path, kind, bits, dtype):
    import datasets
    import pyarrow
    import pyarrow.parquet

    windows = [[k, k + 1, 7] for k in range(12)]
    of = {"w": datasets.Sequence(datasets.Value(bits)), "y": datasets.ClassLabel(names=["worn", "ok"])}
    part = datasets.Dataset.from_dict({"w": windows, "y": [0, 1] * 6}, datasets.Features(of))
    if kind == "parquet":
        made = pyarrow.table({"w": pyarrow.array(windows, pyarrow.list_(getattr(pyarrow, bits)())), "y": [0, 1] * 6})
        pyarrow.parquet.write_table(made, tmp_path / "train.parquet")
    else:
        stored(tmp_path, train=part)
    data = opened(tmp_path, kind)
    assert (data.about.dtype, data.about.classes) == (dtype, 2)
    assert data.about.names == (("worn", "ok") if kind == "huggingface" else ())
    np.testing.assert_array_equal(inputs_of(data.train), windows)
    turned = opened(tmp_path, kind, {"target": "w", "columns": "y"}, target="values")
    assert (turned.about.target, turned.about.target_shape) == ("values", (3,))


# -- huggingface ----------------------------------------------------------------------------------


def test_classes_of_huggingface_go_by_their_names(tmp_path):
    import datasets

    def part(names: list[str], kinds: list[str]):
        features = datasets.Features({"x": datasets.Value("int64"), "y": datasets.ClassLabel(names=names)})
        rows = {"x": list(range(len(kinds))), "y": [names.index(kind) for kind in kinds]}
        return datasets.Dataset.from_dict(rows, features=features)

    train = part(["cat", "bee", "ant"], ["cat", "bee", "ant", "bee"])
    stored(tmp_path / "one", train=train, validation=train)
    data = opened(tmp_path / "one", "huggingface")
    assert (data.about.names, data.train.labels.tolist()) == (("cat", "bee", "ant"), [0, 1, 2, 1])
    assert (data.about.dtype, data.train.account()["skipped"]) == ("float32", {"validation": "neither train nor test"})
    assert opened(tmp_path / "one", "huggingface", labels=["ant", "bee", "cat"]).train.labels.tolist() == [2, 1, 0, 1]
    stored(tmp_path / "two", train=train, test=part(["ant", "cat"], ["ant", "cat"]))
    assert opened(tmp_path / "two", "huggingface").test.labels.tolist() == [2, 0]
    stored(tmp_path / "three", train=train, test=part(["dog"], ["dog"]))
    with pytest.raises(DataError, match="row 1: column y holds 'dog', which is not one of"):
        opened(tmp_path / "three", "huggingface")
    stored(tmp_path / "four", train=train, test=train.map(lambda row: {"y": -1}))
    with pytest.raises(DataError, match="row 1: column y holds -1, which is none of its 3 classes"):
        opened(tmp_path / "four", "huggingface")
    stored(tmp_path / "five", validation=train)
    with pytest.raises(DataError, match='expected a part named "train" .and "test"., found validation'):
        opened(tmp_path / "five", "huggingface")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"is not what Dataset\.save_to_disk wrote"):
        opened(tmp_path / "none", "huggingface")


def test_masks_of_huggingface_are_targets_as_they_are_stored(tmp_path):
    import datasets

    masks = [np.full((2, 3), k, np.uint8) for k in range(4)]
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32")), "y": datasets.Image()})
    rows = {"x": [[1.0, 2.0]] * 4, "y": [Image.fromarray(mask) for mask in masks]}
    stored(tmp_path, train=datasets.Dataset.from_dict(rows, features=features))
    data = opened(tmp_path, "huggingface")
    assert (data.about.target, data.about.target_shape) == ("places", (2, 3))
    assert (data.train.take(np.arange(4)).targets == np.stack(masks)).all()


# -- as pandas reads them -------------------------------------------------------------------------

NUMBERS = {
    "real": st.floats(-1e6, 1e6, width=32).map(repr),
    "fixed": st.integers(-99_999, 99_999).map(lambda v: f"{v / 100:.2f}"),
    "whole": st.integers(-500, 500).map(str),
}
TARGETS = NUMBERS | {
    "class": st.integers(0, 3).map(str),
    "words": st.sampled_from(["ok", "worn", "Übel", "a b", "x,y", 'say "no"', "two\nlines"]),
    "codes": st.integers(0, 3).map(lambda v: f"00{v}"),
}
ODD = ("1_1", "\u0661", "nan", "inf", "NA", "", "1,5", "5%", "0x10", "2024-01-31", "True", " ")


@st.composite
def written(draw) -> pandas.DataFrame:
    """Texts of a table, whose last column is the target; some of them odd."""
    count = draw(st.integers(6, 30))
    kinds = [draw(st.sampled_from(sorted(NUMBERS))) for _ in range(draw(st.integers(1, 3)))]
    columns = [draw(st.lists(NUMBERS[kind], min_size=count, max_size=count)) for kind in kinds]
    target = TARGETS[draw(st.sampled_from(sorted(TARGETS)))]
    columns.append(draw(st.lists(target, min_size=count, max_size=count)))
    for _ in range(draw(st.integers(0, 1))):
        columns[draw(st.integers(0, len(kinds)))][draw(st.integers(0, count - 1))] = draw(st.sampled_from(ODD))
    return pandas.DataFrame(dict(zip([*"abc"[: len(kinds)], "y"], columns, strict=True)))


@given(written(), st.sampled_from(["auto", "class", "values"]), st.sampled_from([",", ";", "\t"]))
def test_a_table_is_read_as_pandas_reads_it_or_refused(tmp_path_factory, texts, target, delimiter):
    path = tmp_path_factory.mktemp("table") / "train.csv"
    texts.to_csv(path, index=False, sep=delimiter)
    expected = pandas.read_csv(path, sep=delimiter)
    try:
        data = opened(path.parent, params={"delimiter": delimiter}, target=target)
    except EdgegossipError as error:
        if str(path.parent) not in str(error):
            raise
        return
    columns = [name for name in texts if name != "y"]
    np.testing.assert_array_equal(inputs_of(data.train), expected[columns].to_numpy(np.float64).astype(np.float32))
    targets = data.train.take(np.arange(len(texts))).targets
    if data.about.names:
        assert [data.about.names[k] for k in targets] == [text.strip() for text in texts["y"]]
    else:
        np.testing.assert_array_equal(targets, expected["y"].to_numpy(np.float64).astype(targets.dtype))
