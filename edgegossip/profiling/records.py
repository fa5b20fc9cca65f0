"""What the profiler writes: one metrics record a node and round, and events. The seam between measuring and showing.

metrics.jsonl, one JSON object a line:
    {"node": "board-0", "step": 12, "t_s": 3.21, "train/loss": 0.61, "time/compute_s": 0.012, ...}
events.jsonl:
    {"node": "board-0", "t_s": 1.02, "event": "peer-down", "text": "lost board-2: connection refused", ...}
`t_s` is seconds since the run started on that node's monotonic clock; `step` is the round, counted from 0. Every
`time/` and `net/` value is of that round alone, not a running sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from edgegossip.types import NodeId, Round

Value: TypeAlias = float | int | str | bool | None

PARTS = ("compute", "encode", "transmit", "decode", "wait", "other")  # they add up to time/round_s
METRICS = (
    "train/loss",
    "train/lr",
    "train/examples",
    "eval/loss",
    "eval/accuracy",
    *(f"time/{part}_s" for part in PARTS),
    "time/round_s",
    "time/cpu_s",  # CPU time of the whole process in the round, all threads
    "net/payload_bytes",  # what the codec made
    "net/overhead_bytes",  # frame headers and the messages around frames
    "net/sent_bytes",  # what the kernel says left on this process's TCP sockets, retransmissions included
    "net/link_bytes",  # the same with the headers of TCP, IP and Ethernet, from the kernel's count of segments
    "net/received_bytes",
    "codec/bits_per_value",  # 8 * payload / values, of the messages sent in the round
    "codec/relative_error",
    "gossip/consensus_distance",
    "sys/cpu_percent",
    "sys/rss_bytes",
    "sys/threads",
    "sys/descriptors",
    "sys/tasks",  # coroutines under way on the mesh's loop
)


SPARSE = ("eval/loss", "eval/accuracy")  # are there in some rounds only

# What went to one neighbour: link/<peer>_bytes, frames and what carries them, counted when acknowledged; link/<peer>_s,
# seconds in which something was under way to it. Of the time since the record before that has them.
LINK_PREFIX, LINK_BYTES, LINK_SECONDS = "link/", "_bytes", "_s"
SPANS = "time/spans"  # text: the parts of some rounds in their order, see spans.RoundTimes.spans


class Sink(Protocol):
    """Where records go: a run folder, the parent process's pipe, an exporter."""

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Value]) -> None: ...

    def event(self, node: NodeId, name: str, text: str, **fields: Value) -> None: ...

    def close(self) -> None: ...
