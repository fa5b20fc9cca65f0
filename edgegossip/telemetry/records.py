"""What the profiler writes: one metrics record a node and round, and events. The seam between
measuring and showing.

metrics.jsonl, one JSON object a line:
    {"node": "board-0", "step": 12, "t_s": 3.21, "train/loss": 0.61, "time/compute_s": 0.012, ...}
events.jsonl: {"node": "board-0", "t_s": 1.02, "event": "peer-down", "text": "lost board-2:
    connection refused", ...}
`t_s` is seconds since the run started on that node's monotonic clock; `step` is the round, counted
from 0. Every `time/` and `net/` value is of that round alone, not a running sum; but what the
kernel counted on sockets is in some records only where rounds are short, and is then of the time
since the record before that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from edgegossip.types import NodeId, Round

Value: TypeAlias = float | int | str | bool | None

PARTS = ("compute", "encode", "transmit", "decode", "wait", "other")  # they add up to time/round_s
STAGES = ("forward", "backward", "optimiser")  # of compute, where the workload tells; the rest is data and copies
METRICS = (
    "train/loss",
    "train/lr",
    "train/examples",
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
    "sys/cpu_percent",
    "sys/machine_percent",  # load of the whole machine
    "sys/rss_bytes",
    "sys/peak_rss_bytes",
    "sys/threads",
    "sys/descriptors",
    "sys/tasks",  # coroutines under way on the mesh's loop
    # Of the whole machine, where it has a sensor for it (sensors/):
    "sys/temperature_c",  # the hottest zone
    "sys/frequency_hz",  # mean clock of the cores
    "sys/throttled",  # 1 while heat or a weak supply holds the clock down, else 0
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
SPANS = "time/spans"  # text: the parts of some rounds in their order, see spans.RoundTimes.spans


def scores_in(values: Mapping[str, Value]) -> list[str]:
    """Names of the scores in the record of a round, in their order: ["accuracy"]; [] where nothing
    was evaluated or the loss says it all."""
    found = (name for name in values if name.startswith(EVALUATED) and name not in NO_SCORES)
    return [name.removeprefix(EVALUATED) for name in found]


class Sink(Protocol):
    """Where records go: a run folder, the parent process's pipe, an exporter."""

    def metrics(self, node: NodeId, step: Round, values: Mapping[str, Value]) -> None:
        """Take what `node` measured in round `step`."""

    def event(self, node: NodeId, name: str, text: str, **fields: Value) -> None: ...

    def close(self) -> None: ...
