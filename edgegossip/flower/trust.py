"""Whose updates are asked for: boards that were refused again and again are left out for a while, and everybody is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgegossip.flower.downlink import COORDINATOR
from edgegossip.flower.quarantine import Quarantine
from edgegossip.profiling.records import Sink
from edgegossip.types import NodeId, Round


class Trust:
    """Of the boards of one run. `last_reason`: of the last refusal, with the board's name."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._quarantine = sink, Quarantine()
        self._bad: dict[NodeId, str] = {}  # whose update of this round was refused, and why
        self.last_reason = "nobody answered"

    def trusted(self, idle: Mapping[int, NodeId], round: Round, least: int) -> dict[int, NodeId]:
        """Without the boards in quarantine, unless fewer than `least` would be left."""
        for name in sorted(idle.values()):
            if self._quarantine.returns(name, round):
                self._say("readmitted", f"{name} takes part again", name)
        some = {i: name for i, name in idle.items() if not self._quarantine.reason(name, round)}
        return some if len(some) >= least else dict(idle)

    def refused(self, name: NodeId, reason: str) -> None:
        """The update of this board is of no use."""
        self.last_reason = f"{name}: {reason}"
        self._bad[name] = reason
        self._say("refused", f"refused the update of {name}: {reason}", name)

    def judge(self, round: Round, used: Sequence[NodeId]) -> None:
        """At the end of a round. Who was refused again and again is left out for a while. Where nothing was of use the fault may
        be ours."""
        bad, self._bad = self._bad, {}
        for name in used:
            self._quarantine.used(name)
        for name, reason in bad.items() if used else ():
            if length := self._quarantine.refused(name, round, reason):
                words = f"{name} is left out for {length} rounds: its updates were refused again and again, the last one since "
                self._say("quarantine", words + reason, name)

    def _say(self, event: str, text: str, name: NodeId) -> None:
        self._sink.event(COORDINATOR, event, text, peer=name)
