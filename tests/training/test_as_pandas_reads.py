"""Random tables and arrays: the tensors that reach training equal what pandas and numpy read, or
the input is refused in a sentence that names the file and the line or column."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgegossip.recipe import DataSection
from edgegossip.training.data import DataSet, open_data
from edgegossip.training.loader import Normalize, in_order
from edgegossip.types import EdgegossipError

pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument")
WORDS = ("ok", "worn", "broken", "Übel", "a b", "x,y", 'say "no"', "two\nlines")
# Texts that are numbers to nobody, to Python only, or to people only; and those that are missing.
ODD = (
    "1_1",
    "\u0661\u0662",
    "nan",
    "inf",
    "NA",
    "",
    "1,5",
    "1.234,5",
    "5%",
    "$3",
    "0x10",
    "2024-01-31",
    "7 C",
    "True",
    "\u00bd",
    " ",
)
CLEAN = {
    "real": st.floats(-1e6, 1e6, width=32).map(repr),
    "fixed": st.integers(-99_999, 99_999).map(lambda v: f"{v / 100:.2f}"),
    "whole": st.integers(-500, 500).map(str),
    "small": st.floats(1e-9, 1e-3).map(lambda v: f"{v:.3e}"),
}
TARGETS = {
    **CLEAN,
    "class": st.integers(0, 3).map(str),
    "words": st.sampled_from(WORDS),
    "codes": st.integers(0, 3).map(lambda v: f"00{v}"),
    "pointed": st.integers(0, 3).map(lambda v: f"{v}.0"),
    "wells": st.sampled_from(["1E5", "2E3", "3E1"]),
    "case": st.sampled_from(["Yes", "yes", "NO"]),
}


def tensors(data: DataSet) -> tuple[np.ndarray, np.ndarray | None]:
    """All training examples as a model gets them."""
    batch = next(iter(in_order(data.name, data.train, data.about, len(data.train), len(data.train))))
    return Normalize.of(data.about)(batch.inputs).numpy(), batch.targets


def told(error: EdgegossipError, folder: str) -> None:
    """A refusal names the folder, and a line, a row, a column, a place or a key in it."""
    text = str(error)
    assert folder in text, text
    assert re.search(
        r"line \d+|row \d+|columns? |data\.\w+|(inputs|targets)\[\d+\]|(target|example) \d+|(inputs|targets) are", text
    ), text


@dataclass
class Written:
    """A table as somebody saved it."""

    header: list[str]
    rows: list[list[str]]
    encoding: str
    end: str
    delimiter: str
    quoting: int
    blank: bool
    ragged: int  # the row with one value too many; -1: none

    def save(self, path: Path) -> None:
        out = io.StringIO()
        quoting = csv.QUOTE_ALL if self.end == "\r" else self.quoting  # else it leaves a line feed bare
        writer = csv.writer(out, delimiter=self.delimiter, quoting=quoting, lineterminator=self.end)
        writer.writerow(self.header)
        for k, row in enumerate(self.rows):
            writer.writerow([*row, "9"] if k == self.ragged else row)
            if self.blank and k % 3 == 0:
                out.write(self.end)
        path.write_bytes(out.getvalue().encode(self.encoding, "replace"))


@st.composite
def tables(draw, odd: bool = False) -> tuple[Written, str]:
    """A table whose last column is the target, and the kind of that."""
    width, count = draw(st.integers(1, 4)), draw(st.integers(6, 40))
    kinds = [draw(st.sampled_from(sorted(CLEAN))) for _ in range(width)]
    kind = draw(st.sampled_from(sorted(TARGETS)))
    columns = [draw(st.lists(CLEAN[k], min_size=count, max_size=count)) for k in kinds]
    columns.append(draw(st.lists(TARGETS[kind], min_size=count, max_size=count)))
    header = [f"{name}{k}" for k, name in enumerate(draw(st.permutations(["a", "größe", "b c", "t"])))][:width]
    ragged = -1
    if odd:
        for _ in range(draw(st.integers(0, 2))):
            columns[draw(st.integers(0, width))][draw(st.integers(0, count - 1))] = draw(st.sampled_from(ODD))
        header = draw(st.sampled_from([header, [*header[:-1], ""], [header[0]] * width, [c[0] for c in columns[:-1]]]))
        ragged = draw(st.sampled_from([-1, -1, -1, count // 2]))
    encodings = ("utf-8", "utf-8-sig", "utf-16", "utf-32", *(("latin-1", "utf-16-le") if odd else ()))
    written = Written(
        [*header, "kind"],
        [list(row) for row in zip(*columns, strict=True)],
        draw(st.sampled_from(encodings)),
        draw(st.sampled_from(["\n", "\r\n", "\r"])),
        draw(st.sampled_from([",", ";", "\t"])),
        draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        draw(st.booleans()),
        ragged,
    )
    return written, kind


def section(name: str, folder: str, written: Written | None = None, **keys) -> DataSection:
    params = {} if written is None else {"target": "kind", "delimiter": written.delimiter}
    return DataSection(name=name, dir=folder, partition="local", params=params, **keys)


def reference(path: Path, written: Written) -> pandas.DataFrame:
    kind = {"sep": written.delimiter, "encoding": written.encoding, "index_col": False}
    return pandas.read_csv(path, float_precision="round_trip", **kind)


def agrees(data: DataSet, frame: pandas.DataFrame, texts: list[str]) -> None:
    """The tensors are the frame's; classes by name are the texts of the file."""
    inputs, targets = tensors(data)
    np.testing.assert_array_equal(inputs, frame.iloc[:, :-1].to_numpy(np.float64).astype(np.float32))
    assert targets is not None
    if data.about.names:
        assert [data.about.names[k] for k in targets] == [text.strip() for text in texts]
    else:
        expected = frame.iloc[:, -1].to_numpy(np.float64)
        np.testing.assert_array_equal(targets, expected.astype(targets.dtype))


@given(tables())
def test_clean_tables_are_read_as_pandas_reads_them(made):
    """Nothing here is doubtful once it is said whether numbers are classes."""
    written, kind = made
    texts = [row[-1] for row in written.rows]
    assume(len(set(texts)) > 1)
    classes = kind in ("class", "words", "codes", "pointed", "wells", "case")
    keys: dict = {"target": "class" if classes else "values"}
    if kind in ("wells", "case"):
        keys["labels"] = sorted(set(texts))
    with tempfile.TemporaryDirectory() as folder:
        written.save(Path(folder) / "train.csv")
        data = open_data(section("csv", folder, written, **keys))
        assert data.about.target == keys["target"]
        agrees(data, reference(Path(folder) / "train.csv", written), texts)


@given(tables(odd=True), st.sampled_from(["auto", "auto", "class", "values"]))
def test_odd_tables_are_read_as_pandas_reads_them_or_refused(made, target):
    written, _ = made
    with tempfile.TemporaryDirectory() as folder:
        written.save(Path(folder) / "train.csv")
        try:
            data = open_data(section("csv", folder, written, target=target))
        except EdgegossipError as error:
            told(error, folder)
            return
        agrees(data, reference(Path(folder) / "train.csv", written), [row[-1] for row in written.rows])


TYPES = (
    "int8",
    "uint16",
    "int32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "boolean",
    "Int64",
    "decimal",
    "category",
)
TYPES += ("timestamp", "string", "binary")


def column(kind: str, numbers: list[int], hole: int | None, base: int):
    """A column of pyarrow of this kind; a `hole` is where nothing is known."""
    import pyarrow as pa

    texts = [WORDS[v] for v in numbers]
    if kind in ("category", "string"):
        return pa.array(texts).dictionary_encode() if kind == "category" else pa.array(texts)
    if kind == "decimal":
        return pa.array([Decimal(v) / 4 for v in numbers], pa.decimal128(10, 2))
    if kind == "binary":
        return pa.array([text.encode() for text in texts], pa.binary())
    if kind == "timestamp":
        return pa.array(numbers, pa.timestamp("us"))
    if kind == "boolean":
        return pa.array([v > 2 for v in numbers])
    if kind == "Int64":
        return pa.array([None if k == hole else v for k, v in enumerate(numbers)], pa.int64())
    return pa.array(np.array(numbers, kind) + np.array(base, kind))


@st.composite
def frames(draw):
    """A table as pyarrow has it; the column "kind" is the target."""
    import pyarrow as pa

    count = draw(st.integers(4, 30))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=4))
    columns = {}
    for k, kind in enumerate(kinds):
        numbers = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
        base = draw(st.sampled_from([0, 0, 0, 2**63])) if kind == "uint64" else 0
        name = f"c{k}" if k < len(kinds) - 1 else "kind"
        columns[name] = column(kind, numbers, draw(st.sampled_from([None, None, count // 2])), base)
    return pa.table(columns)


@given(frames(), st.sampled_from(["auto", "class", "values"]))
def test_parquet_is_read_as_pandas_reads_it_or_refused(table, target):
    import pyarrow.parquet as parquet

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.parquet"
        parquet.write_table(table, path)
        try:
            data = open_data(
                DataSection(name="parquet", dir=folder, partition="local", target=target, params={"target": "kind"})
            )
        except EdgegossipError as error:
            told(error, folder)
            return
        agrees(data, pandas.read_parquet(path), [str(v) for v in table.column("kind").to_pylist()])


DTYPES = (
    "<f4",
    ">f4",
    "<f8",
    ">f8",
    "<f2",
    ">f2",
    "longdouble",
    "|i1",
    "|u1",
    "<i2",
    ">i2",
    ">u2",
    "<i4",
    ">i8",
    ">u8",
)
DTYPES += ("|b1", "<c8", "<M8[s]", "<U3")


@st.composite
def arrays(draw) -> tuple[np.ndarray, np.ndarray, dict]:
    count, width = draw(st.integers(4, 30)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes = draw(st.integers(2, 4))
    y = random.integers(0, classes, count)
    y[:classes] = np.arange(classes)
    x = random.integers(0, 9, (count, width)).astype(draw(st.sampled_from(DTYPES)))
    form = draw(st.sampled_from(["plain", "column", "one-hot", "real"]))
    targets = {"plain": y, "column": y[:, None], "one-hot": np.eye(classes)[y], "real": random.normal(size=count)}[form]
    targets = targets.astype(draw(st.sampled_from([d for d in DTYPES if form != "real" or "f" in d])))
    if draw(st.booleans()):
        x = np.asfortranarray(x)
    if x.dtype.kind == "f" and draw(st.integers(0, 4)) == 0:
        x[draw(st.integers(0, count - 1)), 0] = draw(st.sampled_from([np.nan, np.inf]))
    said = draw(
        st.sampled_from([{}, {}, {"classes": classes}, {"target": "class"}, {"labels": ["a", "b", "c", "d"][:classes]}])
    )
    return x, targets, {**said, "dtype": draw(st.sampled_from(["auto", "float32"]))}


def as_classes(targets: np.ndarray) -> np.ndarray:
    """The reference: one number an example, however it is stored."""
    return (
        targets.reshape(len(targets), -1).argmax(1) if targets.ndim == 2 and targets.shape[1] > 1 else targets.ravel()
    )


@given(arrays(), st.sampled_from(["data.npz", "train_inputs.npy"]))
def test_arrays_are_read_as_numpy_reads_them_or_refused(made, kind):
    x, y, keys = made
    with tempfile.TemporaryDirectory() as folder:
        if kind == "data.npz":
            np.savez(Path(folder) / kind, train_inputs=x, train_targets=y)
        else:
            np.save(Path(folder) / kind, x)
            np.save(Path(folder) / "train_targets.npy", y)
        try:
            data = open_data(section("npz", folder, **keys))
            inputs, targets = tensors(data)
        except EdgegossipError as error:
            told(error, folder)
            return
        wanted = np.int64 if data.about.dtype == "int64" else np.float32
        np.testing.assert_array_equal(inputs, x.astype(wanted))
        assert inputs.dtype == wanted
        if data.about.target == "class":
            np.testing.assert_array_equal(targets, as_classes(y).astype(np.int64))
            assert data.about.classes == (keys.get("classes") or len(keys.get("labels", ())) or int(targets.max()) + 1)
        else:
            assert not {"classes", "labels"} & set(keys) or data.about.target in ("labels", "places")
            np.testing.assert_array_equal(targets, y.astype(targets.dtype))


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "|u1", "<f4", ">f8"])
@pytest.mark.parametrize("form", ["plain", "column", "one-hot"])
def test_declared_classes_are_classes_in_every_form(tmp_path, dtype, form):
    y = np.arange(30) % 3
    targets = {"plain": y, "column": y[:, None], "one-hot": np.eye(3)[y]}[form].astype(dtype)
    np.savez(tmp_path / "data.npz", train_inputs=np.ones((30, 2), np.float32), train_targets=targets)
    for keys in ({"classes": 3}, {"labels": ["a", "b", "c"]}, {"target": "class"}):
        data = open_data(section("npz", str(tmp_path), **keys))
        assert (data.about.target, data.about.classes) == ("class", 3)
        assert tensors(data)[1].tolist() == y.tolist()
