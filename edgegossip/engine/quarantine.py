"""Leaves boards out for a while whose messages were refused, and takes them in again.

Pure: refusals go in, names come out. A gossip board and a coordinator keep the same account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from edgegossip.types import NodeId, Round

FIRST, LONGEST, FORGET = 2, 64, 20  # rounds


@dataclass(frozen=True, slots=True)
class _Record:
    in_a_row: int = 0
    times: int = 0
    until: Round = 0  # the first round in which it may take part again
    used: int = 0  # rounds in a row
    reason: str = ""


class RoundQuarantine:
    """Counts refusals of boards and says for how many rounds each is left out.

    A board that is refused `patience` times in a row is left out for FIRST rounds, each further
    time for twice as many, at most LONGEST. It is then on probation: the next refusal counts as one
    of that many. What was used of it clears what is in a row; FORGET of them in a row take one time
    away. A process that is started again has forgotten."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._records: dict[NodeId, _Record] = {}

    def refused(self, board: NodeId, round: Round, reason: str) -> int:
        """Take note that what came of it in this round was refused; return for how many rounds it
        is left out from the next one on."""
        record = self._records.get(board, _Record())
        record = replace(record, in_a_row=record.in_a_row + 1, used=0, reason=reason)
        length = 0
        if record.in_a_row >= self._patience:
            length = min(FIRST * 2**record.times, LONGEST)
            record = replace(record, times=record.times + 1, until=round + 1 + length, in_a_row=self._patience - 1)
        self._records[board] = record
        return length

    def used(self, board: NodeId) -> None:
        """Take note that what came of it was used."""
        record = self._records.get(board)
        if record is None:
            return
        record = replace(record, in_a_row=0, used=record.used + 1)
        if record.used >= FORGET:
            record = replace(record, times=max(0, record.times - 1), used=0)
        self._records[board] = record

    def reason(self, board: NodeId, round: Round) -> str:
        """Return why it is left out of this round; empty when it is not."""
        record = self._records.get(board)
        return "" if record is None or record.until <= round else record.reason

    def spared(self, board: NodeId) -> None:
        """Take note that it is asked all the same, since too few others are there.

        That time does not count."""
        record = self._records.get(board)
        if record is not None:
            self._records[board] = replace(record, times=max(0, record.times - 1), until=0)


PATIENCE = 2  # updates in a row that a coordinator refuses, before it leaves a board out


class Reputation:
    """Chooses whose updates are asked for, and says who is left out and who takes part again.

    `log(event, text, peer=board, ...)` hears of it. `last_reason` is that of the last refusal, with
    the board's name."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log, self._left_out = log, RoundQuarantine(PATIENCE)
        self._bad: dict[NodeId, str] = {}  # whose update of this round was refused, and why
        self._sentenced: dict[NodeId, str] = {}  # to be left out from the next round on, and what is said then
        self._out: set[NodeId] = set()  # of whom that has been said
        self.last_reason = "nobody answered"

    def trusted(self, idle: Sequence[NodeId], round: Round, least: int) -> list[NodeId]:
        """Return the idle boards without those that are left out, in the same order.

        Where fewer than `least` would remain all are asked, and none is left out any more."""
        some = [name for name in idle if not self._left_out.reason(name, round)]
        if len(some) < least:
            for name in sorted(set(idle) - set(some)):
                self._left_out.spared(name)
            some = list(idle)
        self._announce(idle, some)
        return some

    def _announce(self, idle: Iterable[NodeId], asked: Iterable[NodeId]) -> None:
        back = set(asked)
        for name in sorted(idle):
            words = self._sentenced.pop(name, "")
            if name in back and name in self._out:
                self._out.discard(name)
                self._log("readmitted", f"{name} takes part again", peer=name)
            elif name not in back and words:
                self._out.add(name)
                self._log("quarantine", words, peer=name)

    def refused(self, name: NodeId, reason: str) -> None:
        """Take note that the update of this board is of no use."""
        self.last_reason = f"{name}: {reason}"
        self._bad[name] = reason
        self._log("refused", f"refused the update of {name}: {reason}", peer=name, what="update", cause=reason)

    def judge(self, round: Round, used: Sequence[NodeId]) -> None:
        """End a round: who was refused again and again is left out.

        Where nothing was of use the fault may be ours."""
        bad, self._bad = self._bad, {}
        for name in used:
            self._left_out.used(name)
        for name, reason in bad.items() if used else ():
            if length := self._left_out.refused(name, round, reason):
                words = f"{name} is left out for {length} rounds: its updates were refused again and again, the last one since "
                self._sentenced[name] = words + reason
