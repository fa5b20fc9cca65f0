"""For how many rounds a board is left out whose updates are refused again and again. Pure; the mesh has the same by the clock
(security/quarantine.py).

A board that is refused `PATIENCE` times in a row is not asked for `FIRST` rounds, each further time for twice as many, at most
`LONGEST`. It is then on probation: the next refusal counts as one of that many. A round in which its update was used clears what
is in a row; `FORGET` of them in a row take one time away. A coordinator that is started again has forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgegossip.types import NodeId, Round

PATIENCE, FIRST, LONGEST, FORGET = 2, 2, 64, 20


@dataclass(frozen=True, slots=True)
class _Record:
    in_a_row: int = 0
    times: int = 0
    until: Round = 0  # the first round in which it may take part again
    used: int = 0  # rounds in a row
    reason: str = ""


class Quarantine:
    """Of all boards, by name."""

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}

    def refused(self, board: NodeId, round: Round, reason: str) -> int:
        """Its update of this round was; for how many rounds from now on it is left out."""
        record = self._records.get(board, _Record())
        record = replace(record, in_a_row=record.in_a_row + 1, used=0, reason=reason)
        length = 0
        if record.in_a_row >= PATIENCE:
            length = min(FIRST * 2**record.times, LONGEST)
            record = replace(record, times=record.times + 1, until=round + 1 + length, in_a_row=PATIENCE - 1)
        self._records[board] = record
        return length

    def used(self, board: NodeId) -> None:
        """Its update was."""
        record = self._records.get(board)
        if record is None:
            return
        record = replace(record, in_a_row=0, used=record.used + 1)
        if record.used >= FORGET:
            record = replace(record, times=max(0, record.times - 1), used=0)
        self._records[board] = record

    def reason(self, board: NodeId, round: Round) -> str:
        """Why it is left out of this round; empty when it is not."""
        record = self._records.get(board)
        return "" if record is None or record.until <= round else record.reason

    def spared(self, board: NodeId) -> None:
        """It is asked although it would be left out: too few others are there. That time does not count."""
        record = self._records.get(board)
        if record is not None:
            self._records[board] = replace(record, times=max(0, record.times - 1), until=0)
