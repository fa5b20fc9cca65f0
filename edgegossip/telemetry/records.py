"""What the profiler writes: one metrics record a node and round, and events; and both as lines of
JSON, as a board prints them and run folders keep them.

metrics.jsonl, one JSON object a line:
    {"node": "board-0", "step": 12, "t_s": 3.21, "train/loss": 0.61, "time/compute_s": 0.012, ...}
events.jsonl: {"node": "board-0", "t_s": 1.02, "event": "peer-down", "text": "lost board-2:
    connection refused", ...}
`t_s` is seconds since the run started on that node's monotonic clock; `step` is the round, counted
from 0. Every `time/` and `net/` value is of that round alone, not a running sum; but what the
kernel counted on sockets is in some records only where rounds are short, and is then of the time
since the record before that has it.

A number that is not finite is written as null, because JSON has no word for it; the reader gets
None, also for one so large that a sum of such would be infinite. A line that is not a valid record
is text of a log: a board's standard output may carry what a user's model prints between the
records.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from edgegossip.types import NodeId, Round, UsageError

Value: TypeAlias = float | int | str | bool | None

PARTS = ("compute", "encode", "transmit", "decode", "wait", "other")  # they add up to time/round_s
STAGES = ("forward", "backward", "optimiser")  # of compute, where the workload tells; the rest is data and copies
METRICS = (
    "train/loss",
    "train/lr",
    "train/examples",
    "train/share",  # of a round's work, where the board does less to spare itself (node/guard.py)
    "eval/loss",
    "eval/accuracy",
    *(f"time/{part}_s" for part in PARTS),
    "time/round_s",
    "time/cpu_s",  # CPU time of the whole process in the round, all threads
    *(
        f"cpu/{part}_s" for part in PARTS
    ),  # the same, by what the round's own thread was at meanwhile; they add up to it
    *(f"time/{stage}_s" for stage in STAGES),
    "net/payload_bytes",  # what the codec made
    "net/overhead_bytes",  # frame headers and the messages around frames
    "net/sent_bytes",  # what the kernel says left on this process's TCP sockets, retransmissions included
    "net/link_bytes",  # the same with the headers of TCP, IP and Ethernet, from the kernel's count of segments
    "net/received_bytes",
    "codec/bits_per_value",  # 8 * payload / values, of the messages sent in the round
    "codec/relative_error",
    "gossip/consensus_distance",
    "gossip/heard",  # neighbours whose news counted in the round
    "sys/cpu_percent",
    "sys/machine_percent",  # load of the whole machine
    "sys/rss_bytes",
    "sys/peak_rss_bytes",
    "sys/threads",
    "sys/descriptors",
    "sys/tasks",  # coroutines under way on the mesh's loop
    # Of the whole machine, where it has a sensor for it (sensors.py):
    "sys/temperature_c",  # the hottest zone
    "sys/frequency_hz",  # mean clock of the cores
    "sys/throttled",  # 1 while heat or a weak supply holds the clock down, else 0
    "sys/battery_percent",  # charge of its emptiest battery, or of its UPS
    "sys/on_battery",  # 1 while that drains, else 0
    "sys/available_bytes",  # memory that programs can have before it swaps
    "sys/swap_bytes",  # swapped out
    "sys/power_w",  # at the end of the round
    "sys/energy_j",  # in the round
)


# Of rounds with an evaluation: eval/loss, eval/examples, and eval/<name> for each of its scores,
# the one that the task goes by first.
EVALUATED, NO_SCORES = "eval/", ("eval/loss", "eval/examples")

# What went to one neighbour: link/<peer>_bytes, frames and what carries them, counted when
# acknowledged; link/<peer>_s, seconds in which something was under way to it. Of the time since the
# record before that has them.
LINK_PREFIX, LINK_BYTES, LINK_SECONDS = "link/", "_bytes", "_s"
# far/<board>: how many times as far as the median board's model that one's lay from the board that
# writes the record; where a coordinator does, how many times as far its update was turned away from
# most others. Of those far beyond the others (gossip.robust.far_beyond).
FAR_PREFIX = "far/"
# long/<board>: how many times as long as the median board's direction that one's was, where
# directions travel; of those far beyond the others, and the board that writes it is one of these.
LONG_PREFIX = "long/"
# rate/<peer>_bits, rate/<peer>_mbit: bits a value of the last message to it and the Mbit/s that its
# link is taken to carry, where the codec is auto.
RATE_PREFIX = "rate/"
SPANS = "time/spans"  # text: the parts of some rounds in their order, see spans.RoundTimes.spans


def scores_in(values: Mapping[str, Value]) -> list[str]:
    """Return the names of the scores in the record of a round, in their order: ["accuracy"]; []
    where nothing was evaluated or the loss says it all."""
    found = (name for name in values if name.startswith(EVALUATED) and name not in NO_SCORES)
    return [name.removeprefix(EVALUATED) for name in found]


def in_order(known: Iterable[str], more: Iterable[str]) -> list[str]:
    """Return the names of both in an order that suits both: a board that leaves a score out, as one
    that is no number, changes nothing of which one comes first.

    Example:
        >>> in_order(["f1"], ["auc", "f1", "iou"])
        ['auc', 'f1', 'iou']
    """
    names, at = list(known), 0
    for name in more:
        if name not in names:
            names.insert(at, name)
        at = names.index(name) + 1
    return names


def shown_scores(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in an evaluation's figures by name, the loss where there is only that."""
    found = {name: values.get(f"{EVALUATED}{name}") for name in scores_in(values) or ["loss"]}
    return {name: float(value) for name, value in found.items() if isinstance(value, float | int)}


def score_text(name: str, value: float | None) -> str:
    """Return a score for people: an accuracy as "97.18 %", any other one as "0.9718", "-" where it
    is not known."""
    if value is None:
        return "-"
    if name == "accuracy":
        return f"{100 * value:.2f} %"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3g}"


class Sink(Protocol):
    """Takes records, as a run folder, the parent process's pipe or an exporter does."""

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Value]) -> None:
        """Take what `node` measured in round `step`."""

    def event(self, node: NodeId, name: str, text: str, **fields: Value) -> None:
        """Take in that something happened to `node`, as `RecordSink.event` does."""

    def close(self) -> None:
        """End: nothing more will come."""


MAX_LINE_BYTES = 65_536  # a longer line is no record


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """Says what one node measured in one round; `values` has the names of records.METRICS and may
    have more."""

    node: NodeId
    step: Round
    t_s: float  # seconds since the run started on that node's monotonic clock
    values: Mapping[str, Value]

    def number(self, name: str) -> float | None:
        """Return the value as a finite number, or None when it is missing, null or no number."""
        value = self.values.get(name)
        if type(value) is float:  # by far the most, and a report asks millions of times
            return value if math.isfinite(value) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return None
        return float(value)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Tells something that happened to a node; `name` is a word for programs, `text` a sentence for
    people."""

    node: NodeId
    t_s: float
    name: str
    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogText:
    """Is a line that is no record, without its line end."""

    text: str


Record: TypeAlias = MetricsRecord | EventRecord

_MAX_INT = 2**63
_MAX_FLOAT = 1e100
_METRICS_KEYS = frozenset({"node", "step", "t_s"})
_EVENT_KEYS = frozenset({"node", "t_s", "event", "text"})
_OWN_KEYS = _METRICS_KEYS | _EVENT_KEYS
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), allow_nan=False).encode


def plain(value: Any) -> Value:
    """Return a scalar as JSON can hold it: numpy scalars become Python's, a number that is not
    finite becomes None."""
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
    """Return one line of JSON with its line end. Raises UsageError for a value that is no scalar
    and for a field that would hide one of the record's own."""
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
    """Return the record in a line, or LogText for anything else. With `node` given, a record that
    names another node is no record: a board speaks for itself only."""
    text = (line.decode("utf-8", "replace") if isinstance(line, bytes) else line).rstrip("\r\n")
    if not text.startswith("{") or len(text) > MAX_LINE_BYTES:
        return LogText(text[:MAX_LINE_BYTES])
    try:
        body = json.loads(text, parse_constant=lambda _word: None)
        if "\\u" in text:
            body = whole_characters(body)
    except (ValueError, RecursionError):
        return LogText(text)
    record = _record(body) if isinstance(body, dict) else None
    if record is None or (node is not None and record.node != node):
        return LogText(text)
    return record


def whole_characters(document: Any) -> Any:
    """Return a document of JSON with "?" for each half of a character, as `to_line` has it: JSON
    can say one, and no file or page can hold it."""
    return json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))


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
