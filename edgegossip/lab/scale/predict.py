"""Seconds of a round, from what boards do in one and how large their messages are: an event
simulation in virtual time.

One gossip round as a board plays it: a board computes, encodes, hands over a message for each
out-neighbour, then takes in the messages of its in-neighbours one after the other; when it has all
of the round it begins the next one. Messages share links as `flows` says. One server round: the
coordinator encodes and sends to every board; a board decodes, computes, encodes and answers; the
coordinator decodes the answers as they come.

The parts are those of `profiling.records.PARTS` and add up to the round: blocked time is `transmit`
while a message of one's own is under way, `wait` after that. What they are calculated from is
modelled, so everything here is labelled modelled where it is shown. Deviations: no retransmission,
no deadline, no asynchronous algorithm (`ad-psgd`); from round to round only computing varies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgegossip.lab.scale.devices import DeviceProfile, LinkProfile
from edgegossip.lab.scale.rounds import BoardWork, Message, RoundParts
from edgegossip.lab.scale.server_round import ServerRound
from edgegossip.lab.scale.timeline import Timeline
from edgegossip.types import Round, UsageError

_FILL = 4  # rounds that only fill the pipe
_EVEN, _UNEVEN = 4, 20  # rounds that count; where computing does not take equally long every time
_MOST_SPREAD = 3.0  # standard deviations
VALUE_BYTES = 4


Messages = Callable[[int], Sequence[Message]]  # round -> its messages


def work_of(
    device: DeviceProfile,
    *,
    flops: float,
    values: int,
    codec: str,
    precision: str = "fp32",
    threads: int = 1,
    accelerated: bool = False,
    other_s: float = 0.0,
) -> BoardWork:
    """A board's work from its profile. `flops`: operations of one round's local training; `values`:
    n of the model."""
    size_bytes = VALUE_BYTES * values
    return BoardWork(
        compute_s=flops / device.training_rate(precision, threads, accelerated),
        encode_s=size_bytes / device.encode_rate(codec),
        decode_s=size_bytes / device.decode_rate(codec),
        link_bits_per_s=device.link_bits_per_s,
        other_s=other_s,
        spread=device.update_spread or 0.0,
    )


def gossip_rounds(
    works: Sequence[BoardWork], messages: Messages, link: LinkProfile, rounds: int
) -> tuple[tuple[RoundParts, ...], ...]:
    """[round][board] of so many rounds from a standing start. Raises UsageError for a message from
    or to nobody."""
    return _Gossip(works, [tuple(messages(r)) for r in range(rounds)], link).run()


def gossip_round(
    works: Sequence[BoardWork], messages: Messages, link: LinkProfile, period: int = 1
) -> tuple[RoundParts, ...]:
    """[board] of a round once the run is under way: the mean over rounds that are simulated after
    those that fill the pipe. `period`: after so many rounds the messages are as before."""
    fill = -(-_FILL // period) * period
    counted = -(-_counted(works) // period) * period
    return _mean(gossip_rounds(works, messages, link, fill + counted)[fill:])


def server_round(
    works: Sequence[BoardWork],
    coordinator: BoardWork,
    down_bytes: int,
    up_bytes: int,
    link: LinkProfile,
) -> tuple[RoundParts, ...]:
    """[board, ..., coordinator]: one round through a coordinator, which nobody begins before all
    answers of the last one are in. A board's `decode_s` is of what comes down; the coordinator's of
    one answer, its `encode_s` of what goes down."""
    played = []
    for round in range(_counted(works)):
        drawn = [replace(w, compute_s=w.compute_s * _drawn(w.spread, k, round)) for k, w in enumerate(works)]
        played.append(ServerRound(drawn, coordinator, down_bytes, up_bytes, link).run())
    return _mean(played)


def _counted(works: Sequence[BoardWork]) -> int:
    return _UNEVEN if any(work.spread for work in works) else _EVEN


def round_seconds(parts: Sequence[RoundParts]) -> float:
    """Of a run: the mean over boards, which are the same for all unless boards go separate ways."""
    return sum(p.round_s for p in parts) / len(parts)


@dataclass(slots=True)
class _Board:
    """A board in the simulation."""

    round: int = 0
    began_s: float = 0.0
    free_s: float = 0.0  # until when its processor is busy
    sending: bool = False  # this round's messages have been handed over
    taking: bool = False  # busy with a message
    inbox: list[int] = field(default_factory=list)  # rounds of messages that have come and are not taken in
    taken: dict[int, int] = field(default_factory=dict)  # round -> messages taken in
    compute_s: float = 0.0
    under_way: int = 0
    blocked_s: float | None = None  # since when it is
    transmit_s: float = 0.0
    wait_s: float = 0.0
    decode_s: float = 0.0


class _Gossip:
    def __init__(self, works: Sequence[BoardWork], messages: Sequence[Sequence[Message]], link: LinkProfile) -> None:
        everybody = range(len(works))
        for message in (m for of_round in messages for m in of_round):
            if message.sender not in everybody or message.receiver not in everybody:
                raise UsageError(f"{message} is not between two of {len(works)} boards")
        self._works, self._messages = works, messages
        self._line = Timeline([work.link_bits_per_s for work in works], link)
        self._boards = [_Board() for _ in works]
        self._parts: list[list[RoundParts]] = [[] for _ in works]
        self._expected = [[sum(m.receiver == board for m in of_round) for of_round in messages] for board in everybody]

    def run(self) -> tuple[tuple[RoundParts, ...], ...]:
        for board in range(len(self._works)):
            self._begin(board)
        while self._line.step():
            pass
        return tuple(zip(*self._parts, strict=True))

    def _begin(self, index: int) -> None:
        board, work, now_s = self._boards[index], self._works[index], self._line.now_s
        board.began_s, board.sending = now_s, False
        board.transmit_s = board.wait_s = board.decode_s = 0.0
        board.compute_s = work.compute_s * _drawn(work.spread, index, board.round)
        self._line.at(now_s + work.other_s + board.compute_s + work.encode_s, lambda: self._hand_over(index))

    def _hand_over(self, index: int) -> None:
        board = self._boards[index]
        board.sending = True
        for message in self._messages[board.round]:
            if message.sender == index:
                board.under_way += 1
                self._line.send(
                    index, message.receiver, message.size_bytes, self._arrival(index, message.receiver, board.round)
                )
        self._go_on(index)

    def _arrival(self, sender: int, receiver: int, round: int) -> Callable[[], None]:
        def arrives() -> None:
            self._settle(sender)
            self._boards[sender].under_way -= 1
            self._boards[receiver].inbox.append(round)
            self._go_on(receiver)

        return arrives

    def _settle(self, index: int) -> None:
        """Charge blocked time up to now."""
        board, now_s = self._boards[index], self._line.now_s
        if board.blocked_s is not None:
            if board.under_way:
                board.transmit_s += now_s - board.blocked_s
            else:
                board.wait_s += now_s - board.blocked_s
            board.blocked_s = now_s

    def _go_on(self, index: int) -> None:
        """The next message if one is there, the end of the round if none is missing; else it is
        blocked."""
        board = self._boards[index]
        if not board.sending or board.taking:
            return
        self._settle(index)
        if board.taken.get(board.round, 0) >= self._expected[index][board.round]:
            board.blocked_s = None
            self._finish(index)
        elif board.inbox:
            board.blocked_s, board.taking = None, True
            round, decode_s = board.inbox.pop(0), self._works[index].decode_s
            self._line.at(self._line.now_s + decode_s, lambda: self._taken(index, round))
        elif board.blocked_s is None:
            board.blocked_s = self._line.now_s

    def _taken(self, index: int, round: int) -> None:
        board = self._boards[index]
        board.taking = False
        board.decode_s += self._works[index].decode_s
        board.taken[round] = board.taken.get(round, 0) + 1
        self._go_on(index)

    def _finish(self, index: int) -> None:
        board, work = self._boards[index], self._works[index]
        board.taken.pop(board.round, None)
        self._parts[index].append(
            RoundParts(
                board.compute_s,
                work.encode_s,
                board.transmit_s,
                board.decode_s,
                board.wait_s,
                work.other_s,
                self._line.now_s - board.began_s,
            )
        )
        board.round += 1
        if board.round < len(self._messages):
            self._begin(index)
        else:
            board.sending = False


def _drawn(spread: float, board: int, round: Round) -> float:
    """A factor on that round's computing, of mean 1 and this standard deviation: normal, cut off.
    Equal for equal arguments."""
    if not spread:
        return 1.0
    drawn = np.random.default_rng([board, round]).standard_normal()
    return max(0.05, 1.0 + spread * min(max(drawn, -_MOST_SPREAD), _MOST_SPREAD))


def _mean(played: Sequence[Sequence[RoundParts]]) -> tuple[RoundParts, ...]:
    """[board] over rounds."""
    names = RoundParts.__slots__

    def of(board: int) -> RoundParts:
        return RoundParts(*(sum(getattr(r[board], name) for r in played) / len(played) for name in names))

    return tuple(of(board) for board in range(len(played[0])))
