"""Flower's own average of updates, to measure ours against."""

from __future__ import annotations

from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

__all__ = ["aggregate_arrayrecords"]
