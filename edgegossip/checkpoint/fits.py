"""Whether a state that came from a disk has the form of one that this run's algorithm makes.

Types were checked when it was read (`annotations`). What is left are sizes, and which scheme's
state it is: both are held against a state that the algorithm has just made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from edgegossip.layout import Layout
from edgegossip.types import DataError

_OUTSIDE = ("NodeView", "Here", "Layout", "Frame")


def require_fit(value: Any, template: Any, layout: Layout) -> None:
    """Raises DataError unless `value` is built as `template`, another state of the same run, is:
    the same classes where both have one, arrays of the same shape, and those that the template
    lacks of the layout's size."""
    _check(value, template, layout.size, "the state")


def _check(value: Any, template: Any, size: int, where: str) -> None:
    if (is_dataclass(template) or isinstance(template, Mapping)) and type(value) is not type(template):
        raise DataError(f"{where} is a {type(value).__name__}, where the recipe makes a {type(template).__name__}")
    if isinstance(value, np.ndarray):
        shape = template.shape if isinstance(template, np.ndarray) else (size,)
        if value.shape != shape:
            raise DataError(f"{where} has the shape {value.shape}, where the model's is {shape}")
        if not (value.flags.c_contiguous and value.flags.aligned):
            raise DataError(f"{where} is not one piece of memory")
    elif type(value).__name__ in _OUTSIDE:
        return
    elif is_dataclass(value):
        own = getattr(value, "layout", None)
        size = own.size if isinstance(own, Layout) else size
        for field in fields(value):
            _check(getattr(value, field.name), getattr(template, field.name, None), size, f"{where}.{field.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check(item, None, size, f"{where}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        same = type(template) is type(value) and len(template) == len(value)
        for k, item in enumerate(value):
            _check(item, template[k] if same else None, size, f"{where}[{k}]")
