"""Data sets: by name, a user's own files, or a user's own function. Readers are imported on use;
none of the package's own needs torch."""

from __future__ import annotations

from edgegossip.training.data.base import Batch, Board, DataSet, Description, Examples, Stream
from edgegossip.training.data.registry import boards_of, describe, is_declared, is_users, locate, open_data

__all__ = [
    "Batch",
    "Board",
    "DataSet",
    "Description",
    "Examples",
    "Stream",
    "boards_of",
    "describe",
    "is_declared",
    "is_users",
    "locate",
    "open_data",
]
