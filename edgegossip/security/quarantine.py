"""How long a board that broke the protocol is kept out. Pure: the caller passes monotonic seconds.

The first time for `FIRST_S`, each further time twice as long, at most `LONGEST_S`; a board that
behaves for `FORGET_S` after it was let in again has one time less against it. Only what a
certificate proves counts: a name that anybody can claim would let a stranger lock a board out."""

from __future__ import annotations

from dataclasses import dataclass

from edgegossip.types import NodeId

FIRST_S, LONGEST_S, FORGET_S = 5.0, 600.0, 600.0


@dataclass(frozen=True, slots=True)
class _Record:
    times: int
    until_s: float
    length_s: float
    reason: str


class Quarantine:
    """Keeps account of all boards, by name."""

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}

    def strike(self, board: NodeId, reason: str, now_s: float) -> float:
        """Note that it misbehaved; return for how many seconds it is kept out from now on. 0 when
        it is kept out already: what was on its way when that began is no second time."""
        if self.reason(board, now_s):
            return 0.0
        times = self._times(board, now_s) + 1
        length_s = min(FIRST_S * 2.0 ** (times - 1), LONGEST_S)
        self._records[board] = _Record(times, now_s + length_s, length_s, reason)
        return length_s

    def reason(self, board: NodeId, now_s: float) -> str:
        """Return why it is kept out at this moment, and for how long in all; empty when it is not.
        Without a count-down, which would make each line of a log another one."""
        record = self._records.get(board)
        if record is None or record.until_s <= now_s:
            return ""
        return f"in quarantine for {record.length_s:g} s: {record.reason}"

    def _times(self, board: NodeId, now_s: float) -> int:
        record = self._records.get(board)
        if record is None:
            return 0
        return max(0, record.times - max(0, int((now_s - record.until_s) // FORGET_S)))
