"""Records as lines of JSON: what a board prints, what metrics.jsonl and events.jsonl hold.

A number that is not finite is written as null, because JSON has no word for it; the reader gets
None, also for one so large that a sum of such would be infinite. A line that is not a valid record
is text of a log: a board's standard output may carry what a user's model prints between the
records.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edgegossip.telemetry.records import Value
from edgegossip.types import NodeId, Round, UsageError

MAX_LINE_BYTES = 65_536  # a longer line is no record


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """What one node measured in one round; `values` has the names of records.METRICS and may have
    more."""

    node: NodeId
    step: Round
    t_s: float  # seconds since the run started on that node's monotonic clock
    values: Mapping[str, Value]

    def number(self, name: str) -> float | None:
        """The value as a finite number, or None when it is missing, null or no number."""
        value = self.values.get(name)
        if type(value) is float:  # by far the most, and a report asks millions of times
            return value if math.isfinite(value) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened to a node; `name` is a word for programs, `text` a sentence for
    people."""

    node: NodeId
    t_s: float
    name: str
    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogText:
    """A line that is no record, without its line end."""

    text: str


Record: TypeAlias = MetricsRecord | EventRecord

_MAX_INT = 2**63
_MAX_FLOAT = 1e100
_METRICS_KEYS = frozenset({"node", "step", "t_s"})
_EVENT_KEYS = frozenset({"node", "t_s", "event", "text"})
_OWN_KEYS = _METRICS_KEYS | _EVENT_KEYS
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), allow_nan=False).encode


def plain(value: Any) -> Value:
    """A scalar as JSON can hold it: numpy scalars become Python's, a number that is not finite
    becomes None."""
    if type(value) is float:  # by far the most
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int or isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # numpy's bool and 0-d arrays
        return plain(value.item())
    raise UsageError(f"a record holds numbers, text, true/false and null, not {type(value).__name__}")


def to_line(record: Record) -> bytes:
    """One line of JSON with its line end. Raises UsageError for a value that is no scalar and for a
    field that would hide one of the record's own."""
    body: dict[str, Value]
    if isinstance(record, MetricsRecord):
        body, extra = {"node": record.node, "step": int(record.step), "t_s": plain(record.t_s)}, record.values
    else:
        body = {"node": record.node, "t_s": plain(record.t_s), "event": record.name, "text": record.text}
        extra = record.fields
    if hiding := sorted(_OWN_KEYS & extra.keys()):
        raise UsageError(f"{hiding[0]!r} is a record's own field and cannot be a value as well")
    for name, value in extra.items():
        body[name] = plain(value)
    return (_encode(body) + "\n").encode("utf-8", "replace")


def parse_record(line: bytes | str, node: NodeId | None = None) -> Record | LogText:
    """The record in a line, or LogText for anything else. With `node` given, a record that names
    another node is no record: a board speaks for itself only."""
    text = (line.decode("utf-8", "replace") if isinstance(line, bytes) else line).rstrip("\r\n")
    if not text.startswith("{") or len(text) > MAX_LINE_BYTES:
        return LogText(text[:MAX_LINE_BYTES])
    try:
        body = json.loads(text, parse_constant=lambda _word: None)
    except (ValueError, RecursionError):
        return LogText(text)
    record = _record(body) if isinstance(body, dict) else None
    if record is None or (node is not None and record.node != node):
        return LogText(text)
    return record


def _scalar(value: Any) -> bool:
    """Whole numbers end at 64 bits: beyond, they do not even fit a float."""
    return value is None or isinstance(value, (float, str)) or (isinstance(value, int) and abs(value) < _MAX_INT)


def _record(body: dict[str, Any]) -> Record | None:
    for key in [k for k, v in body.items() if type(v) is float and not -_MAX_FLOAT <= v <= _MAX_FLOAT]:
        body[key] = None
    node, t_s = body.get("node"), body.get("t_s")
    if not isinstance(node, str) or not node or isinstance(t_s, bool) or not isinstance(t_s, (int, float)):
        return None
    if not all(type(value) is float or _scalar(value) for value in body.values()):
        return None
    if "event" in body:
        name, text = body["event"], body.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            return None
        return EventRecord(node, float(t_s), name, text, {k: v for k, v in body.items() if k not in _EVENT_KEYS})
    step = body.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        return None
    return MetricsRecord(node, step, float(t_s), {k: v for k, v in body.items() if k not in _METRICS_KEYS})
