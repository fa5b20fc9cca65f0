"""Attributes of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def attribute(package: str, homes: Mapping[str, str], name: str) -> Any:
    """`name` from the module of `package` that `homes` says it lives in. Raises AttributeError where that says nothing."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
