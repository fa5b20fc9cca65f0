"""What a board's owner may tell of its data, so that all boards can declare the same: kinds,
counts and sums, never an example. `edgegossip data describe` and `combine`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from edgegossip.recipe import DataSection
from edgegossip.training.data import open_data, schema
from edgegossip.training.data.base import Board, Description, Examples, Items
from edgegossip.training.data.doubts import doubts
from edgegossip.types import DataError

_CHANNELS = 64  # whose ranges are told one by one


def overview(section: DataSection, board: Board) -> dict[str, Any]:
    """Return what `board` holds, as JSON can have it: what one example is, how many there are of
    each class, what was read and passed over, the sums that normalisation is made of, and for the
    owner's own eyes the ranges of inputs and what is doubtful. Raises as `open_data` does."""
    data = open_data(section, board)
    about, train = data.about, data.train
    counts = schema.counts(train, about)
    document: dict[str, Any] = {
        "data": section.name,
        "board": board.name,
        "shape": list(about.shape),
        "dtype": about.dtype,
        "target": about.target,
        "target_shape": list(about.target_shape),
        "classes": about.classes,
        "labels": list(about.names),
        "examples": len(train) if isinstance(train, Examples) else train.length,
        "test_examples": 0 if data.test is None else len(data.test),
        "counts": None if counts is None else counts.tolist(),
        "doubts": doubts(train, about, whole=True, test=data.test),
    }
    if isinstance(train, Examples):
        read = train.account()
        tested = {} if data.test is None else data.test.account()
        document |= read | {f"test_{key}": value for key, value in tested.items() if value != read.get(key)}
        document |= _ranges(train, about)
    if isinstance(train, Examples) and about.dtype != "int64":
        sums = schema.Sums.of(train)
        document["count"] = sums.count
        document |= {"sum": sums.sum.tolist(), "squares": sums.squares.tolist()}
    return document


def _ranges(train: Examples, about: Description) -> dict[str, Any]:
    """The least and the largest value of the inputs, by column or channel where these are few, and
    of targets that are values. Of examples that come one at a time, nothing."""
    if isinstance(train, Items):
        return {}
    names = about.columns or tuple(f"channel {k}" for k in range(about.shape[0]))
    if about.dtype == "int64" or len(names) > _CHANNELS or len(names) != about.shape[0]:
        names = ("inputs",)
    found: dict[str | None, tuple[float, float]] = {}
    for batch in schema.chunks(train):
        parts = np.moveaxis(batch.inputs.reshape(len(batch.inputs), len(names), -1), 1, 0)
        seen: dict[str | None, Any] = dict(zip(names, parts, strict=True))
        if about.target == "values" and batch.targets is not None:
            seen[None] = batch.targets  # an input may be called target
        for name, values in seen.items():
            low, high = found.get(name, (math.inf, -math.inf))
            found[name] = min(low, values.min().item()), max(high, values.max().item())
    said = {name: f"{low:g} to {high:g}" for name, (low, high) in found.items()}
    target = {"target_range": said.pop(None)} if None in said else {}
    return {"ranges": said, **target}


def combine(files: Sequence[Path]) -> dict[str, Any]:
    """Return the [data] keys that hold for the boards whose overviews these JSON files are: mean
    and std of all their examples together, and the larger number of classes.

    Raises DataError for a file that is no overview, and for overviews of other kinds of data."""
    documents = [_read(file) for file in files]
    first = documents[0]
    shaped = ("target_shape",) if first["target"] in ("values", "places") else ()
    for key in ("shape", "dtype", "target", *shaped, "labels", "columns"):
        said = [(file, document.get(key)) for file, document in zip(files, documents, strict=True)]
        if key in ("labels", "columns"):  # names, which some kinds of files do not have
            said = [(file, value) for file, value in said if value]
        for file, theirs in said[1:]:
            if theirs != said[0][1]:
                raise DataError(
                    f"{key} is {said[0][1]} in {said[0][0]} and {theirs} in {file}; boards train together on one kind of data "
                    "(declare data.labels to give classes one order, data.params.columns for that of columns)"
                )
    keys: dict[str, Any] = {key: first[key] for key in ("shape", "dtype", "target")}
    if first["target"] == "values":
        keys["target_shape"] = first["target_shape"]
    if names := next((document["labels"] for document in documents if document["labels"]), None):
        keys["labels"] = names
    elif classes := max(int(d["classes"]) for d in documents):
        keys["classes"] = classes
    if all("sum" in d for d in documents):
        parts = [(d["count"], np.array(d["sum"]), np.array(d["squares"])) for d in documents]
        total = schema.Sums(*parts[0])
        for part in parts[1:]:
            total = total + schema.Sums(*part)
        mean, std = total.moments()
        keys |= {"normalise": "declared", "mean": list(mean), "std": list(std)}
    return {key: value for key, value in keys.items() if value != []}


def as_recipe(keys: dict[str, Any]) -> str:
    """Return the keys as a recipe has them."""
    return tomli_w.dumps({"data": keys})


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    wanted = ("shape", "dtype", "target", "target_shape", "classes", "labels")
    whole = isinstance(document, dict) and all(key in document for key in wanted)
    if not whole or not isinstance(document["shape"], list) or type(document["classes"]) is not int:
        raise DataError(f"{file} is not what `edgegossip data describe --json` writes")
    if "sum" in document:
        sums = [document.get(key) for key in ("sum", "squares")]
        channels, count = document["shape"][:1], document.get("count")
        fits = all(isinstance(s, list) and [len(s)] == channels and all(map(_is_number, s)) for s in sums)
        if not fits or type(count) is not int or count < 1:
            raise DataError(
                f"{file} is not what `edgegossip data describe --json` writes: its sums do not fit its shape"
            )
    return dict(document)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
