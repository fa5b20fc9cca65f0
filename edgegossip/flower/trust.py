"""Whose updates are asked for: boards that were refused again and again are left out for a while, and everybody is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edgegossip.flower.downlink import COORDINATOR
from edgegossip.flower.quarantine import Quarantine
from edgegossip.profiling.records import Sink
from edgegossip.types import NodeId, Round


class Trust:
    """Of the boards of one run. `last_reason`: of the last refusal, with the board's name."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._quarantine = sink, Quarantine()
        self._bad: dict[NodeId, str] = {}  # whose update of this round was refused, and why
        self._sentenced: dict[NodeId, str] = {}  # to be left out from the next round on, and what is said then
        self._out: set[NodeId] = set()  # of whom that has been said
        self.last_reason = "nobody answered"

    def trusted(self, idle: Mapping[int, NodeId], round: Round, least: int) -> dict[int, NodeId]:
        """Without the boards in quarantine, unless fewer than `least` would be left: then they are asked, and none is in
        quarantine any more."""
        some = {i: name for i, name in idle.items() if not self._quarantine.reason(name, round)}
        bad = sorted(set(idle.values()) - set(some.values()))
        if len(some) < least:
            for name in bad:
                self._quarantine.spared(name)
            some = dict(idle)
        self._tell(idle.values(), some.values())
        return some

    def _tell(self, idle: Iterable[NodeId], asked: Iterable[NodeId]) -> None:
        """Who is left out from now on, and who is not any more."""
        back = set(asked)
        for name in sorted(idle):
            words = self._sentenced.pop(name, "")
            if name in back and name in self._out:
                self._out.discard(name)
                self._say("readmitted", f"{name} takes part again", name)
            elif name not in back and words:
                self._out.add(name)
                self._say("quarantine", words, name)

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
                self._sentenced[name] = words + reason

    def _say(self, event: str, text: str, name: NodeId) -> None:
        self._sink.event(COORDINATOR, event, text, peer=name)
