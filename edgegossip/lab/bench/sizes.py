"""Sizes as users write them. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from edgegossip.layout import MAX_VALUES
from edgegossip.types import ConfigError

DEFAULT = ("8MB", "100MB")  # of float32; neither fits a core's caches together with its copy
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|M|G|Ki|Mi|Gi)?(B)?")


def parse_size(text: str) -> int:
    """Number of values: "250000", "2M" (values), "8MB", "4MiB" (bytes of float32). Raises
    ConfigError, also for what is no whole number of values."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"--size {text}: write a number of values (250000, 2M) or of bytes of float32 (8MB, 100MB, 4MiB)"
        )
    number, factor, is_bytes = found.groups()
    # Decimal: 4.35k is 4350, and not the 4349.999... of float64.
    values = Decimal(number) * _FACTORS[factor or ""] / (4 if is_bytes else 1)
    if not 1 <= values <= MAX_VALUES:
        raise ConfigError(f"--size {text}: a vector has 1 to {MAX_VALUES} values")
    if values != int(values):
        unit = "float32, 4 bytes each" if is_bytes else "values"
        raise ConfigError(f"--size {text} is no whole number of {unit}")
    return int(values)
