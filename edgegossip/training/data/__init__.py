"""Data sets, by name or a user's own. Loaders are imported on use; none needs torch."""

from __future__ import annotations

from edgegossip.training.data.base import DataSet, Description, Examples
from edgegossip.training.data.registry import describe, names, open_data

__all__ = ["DataSet", "Description", "Examples", "describe", "names", "open_data"]
