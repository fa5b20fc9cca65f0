"""One round through a coordinator in virtual time, see `predict`."""

from __future__ import annotations

from collections.abc import Sequence

from edgegossip.lab.scale.devices import LinkProfile
from edgegossip.lab.scale.rounds import BoardWork, RoundParts
from edgegossip.lab.scale.timeline import Timeline


class ServerRound:
    def __init__(
        self,
        works: Sequence[BoardWork],
        coordinator: BoardWork,
        down_bytes: int,
        up_bytes: int,
        link: LinkProfile,
    ) -> None:
        self._works, self._coordinator = works, coordinator
        self._down_bytes, self._up_bytes = down_bytes, up_bytes
        self._line = Timeline([*(work.link_bits_per_s for work in works), coordinator.link_bits_per_s], link)
        self._got_s = [0.0] * len(works)
        self._answered_s = [0.0] * len(works)
        self._busy_until_s = 0.0
        self._blocked = [0.0, 0.0]  # of the coordinator: while it sends, while it waits

    def run(self) -> tuple[RoundParts, ...]:
        line, coordinator = self._line, self._coordinator
        line.at(coordinator.other_s + coordinator.compute_s + coordinator.encode_s, self._send_down)
        while line.step():
            pass
        end_s = max(line.now_s, self._busy_until_s)
        return (*(self._board(k, end_s) for k in range(len(self._works))), self._of_coordinator(end_s))

    def _send_down(self) -> None:
        for k in range(len(self._works)):
            self._line.send(len(self._works), k, self._down_bytes, lambda k=k: self._arrived(k))  # type: ignore[misc]

    def _arrived(self, k: int) -> None:
        work = self._works[k]
        self._got_s[k] = self._line.now_s
        ready_s = self._line.now_s + work.other_s + work.decode_s + work.compute_s + work.encode_s
        self._line.at(ready_s, lambda: self._line.send(k, len(self._works), self._up_bytes, lambda: self._answer(k)))

    def _answer(self, k: int) -> None:
        self._answered_s[k] = self._line.now_s
        self._busy_until_s = max(self._busy_until_s, self._line.now_s) + self._coordinator.decode_s

    def _board(self, k: int, end_s: float) -> RoundParts:
        """A board pulls from the moment on at which the coordinator has encoded, and waits before
        it and after its answer."""
        work, coordinator = self._works[k], self._coordinator
        sent_s = coordinator.other_s + coordinator.compute_s + coordinator.encode_s
        own_s = work.other_s + work.decode_s + work.compute_s + work.encode_s
        transmit_s = (self._got_s[k] - sent_s) + (self._answered_s[k] - self._got_s[k] - own_s)
        wait_s = sent_s + end_s - self._answered_s[k]
        return RoundParts(work.compute_s, work.encode_s, transmit_s, work.decode_s, wait_s, work.other_s, end_s)

    def _of_coordinator(self, end_s: float) -> RoundParts:
        coordinator = self._coordinator
        sent_s = coordinator.other_s + coordinator.compute_s + coordinator.encode_s
        transmit_s = max(self._got_s) - sent_s
        decode_s = coordinator.decode_s * len(self._works)
        return RoundParts(
            coordinator.compute_s,
            coordinator.encode_s,
            transmit_s,
            decode_s,
            end_s - sent_s - transmit_s - decode_s,
            coordinator.other_s,
            end_s,
        )
