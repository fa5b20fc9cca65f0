"""Checks that model builders share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgegossip.types import ConfigError


def image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width). Raises ConfigError when inputs are not images."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"model.name = {model!r} needs images (channels, height, width); this data set's inputs have shape "
            f"{input_shape}: use mlp or a model of your own"
        )
    return input_shape


def widths(key: str, value: Any) -> tuple[int, ...]:
    """A list of layer widths. Raises ConfigError unless all are integers of at least 1."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(type(w) is int and w >= 1 for w in value):
        raise ConfigError(f"{key} = {value!r} must be a list of whole numbers of at least 1, such as [128, 64]")
    return tuple(value)


def width(key: str, value: Any) -> int:
    """One layer width. Raises ConfigError unless it is an integer of at least 1."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{key} = {value!r} must be a whole number of at least 1, such as 128")
    return value
