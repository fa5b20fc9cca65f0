"""When a round's record is put down."""

from __future__ import annotations

import time

from edgegossip.node.gossip_node import PROMPT_S, Records
from tests.node.fakes import ListSink


def steps(sink: ListSink) -> list[int]:
    return [step for _, step, _ in sink.rows]


def test_the_record_of_a_short_round_waits_for_a_better_moment_and_is_never_lost() -> None:
    sink = ListSink()
    records = Records("a", sink)
    records.add(0, lambda: {"train/loss": 1.0}, PROMPT_S / 2)
    assert steps(sink) == []
    time.sleep(0.05)
    records.flush()
    records.flush()
    assert steps(sink) == [0]
    assert sink.ago_s[0] >= 0.05, "what is drawn begins with the round, not with its record"
    records.add(1, dict, PROMPT_S / 2)
    records.add(2, dict, PROMPT_S / 2)  # nobody had a moment
    assert steps(sink) == [0, 1]
    records.add(3, dict, PROMPT_S)
    assert steps(sink) == [0, 1, 2, 3]
