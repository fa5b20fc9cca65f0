"""A board that misbehaves on the wire."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgegossip.flower._private import link


@contextmanager
def malformed() -> Iterator[None]:
    """The SuperLink cannot read this process's answer of the second round, nor its repetition."""
    to_proto, pushed = link.message_to_proto, itertools.count(1)

    def without_value(message: Any) -> Any:
        proto = to_proto(message)
        if next(pushed) in (3, 4):  # after hello and the first round
            item = proto.content.items.add()
            item.key = "metrics"
            item.metric_record.items.add().key = "loss"
        return proto

    link.message_to_proto = without_value  # type: ignore[assignment]
    try:
        yield
    finally:
        link.message_to_proto = to_proto  # type: ignore[assignment]
