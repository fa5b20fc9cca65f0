"""Pictures in a column of the package datasets, stored as the files that they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgegossip.recipe import DataSection
from edgegossip.training.data.pictures import PARAMS, File, PictureForm, Pictures, all_grey
from edgegossip.types import ConfigError, DataError


def find(root: Path, features: Mapping[str, Any], inputs: Sequence[str], section: DataSection) -> str:
    """Return the column of pictures that is the input; "" where that is something else. Raises
    DataError for pictures in lists or beside other columns, ConfigError for parameters of none."""
    for name in inputs:
        picture, of_lists = (type(found).__name__ == "Image" for found in (features[name], _inside(features[name])))
        if of_lists or (picture and len(inputs) > 1):
            raise DataError(
                f"{root}: column {name} holds {'lists of ' * of_lists}pictures; an input is one picture and nothing beside "
                "it: choose one such column with data.params.columns"
            )
        if picture:
            return name
    if key := next((key for key in PARAMS if key in section.params), None):
        raise ConfigError(f"data.params.{key}: no column of {root} that is an input holds pictures; leave it out")
    return ""


def _inside(feature: Any) -> Any:
    """What a list holds, and a list of lists at the end; else None."""
    found = getattr(feature, "feature", None)
    return found and (_inside(found) or found)


def kind_of(feature: Any) -> str:
    """Return the type of a column's numbers, or of those in its lists."""
    return str(getattr(_inside(feature) or feature, "dtype", ""))


def read(
    root: Path,
    dataset: Any,
    column: str,
    section: DataSection,
    targets: NDArray[Any] | None,
    target: Callable[[int], NDArray[Any]] | None,
) -> Pictures:
    """Look through the pictures of a column: grey where all of them are, unless the recipe says
    otherwise. `targets` [n, ...], or else `target`, has what belongs to each."""
    stored = dataset.select_columns([column]).with_format(None)
    stored = stored.cast_column(column, type(dataset.features[column])(decode=False))

    def file(k: int) -> File:
        found = stored[k][column]
        name = f"{root}: row {k + 1} of {dataset.split or 'the data'}, column {column}"
        if found is None:
            raise DataError(f"{name}: there is no picture")
        return name, Path(found["path"]) if found["bytes"] is None else BytesIO(found["bytes"])

    grey = section.shape[:1] == [1] if section.shape else all_grey(file(k) for k in range(len(stored)))
    return Pictures.of(file, len(stored), PictureForm.of(section, grey), targets, target)
