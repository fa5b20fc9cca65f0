"""Seconds of a round, from what boards do in one and how large their messages are: an event
simulation in virtual time.

In a gossip round a board computes, encodes, hands over a message for each
out-neighbour, then takes in the messages of its in-neighbours one after the other; when it has all
of the round it begins the next one. One server round: the coordinator encodes and sends to every
board; a board decodes, computes, encodes and answers; the coordinator decodes the answers as they
come.

Messages under way are fluids (`Network`): each moves at a rate, and rates are shared out max-min
fairly, as TCP shares links over seconds (Bertsekas, Gallager: Data Networks, 2nd edition, section
6.5.2, progressive filling). Constraints are each board's interface, one way and the other, and the
capacity that all share; by radio a message takes that one `crossings` times.

The parts are those of `telemetry.records.PARTS` and add up to the round: blocked time is `transmit`
while a message of one's own is under way, `wait` after that. What they are calculated from is
modelled, so everything here is labelled modelled where it is shown. Deviations from a real run: no
TCP slow start, loss or retransmission, and shares of a link follow a change at once; no deadline,
no asynchronous algorithm (`ad-psgd`); from round to round only computing varies.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from edgegossip.scale.devices import DeviceProfile, LinkProfile
from edgegossip.types import Round, UsageError


@dataclass(frozen=True, slots=True)
class BoardWork:
    """Says what one board does in a round, in seconds on its own, beside sending."""

    compute_s: float
    encode_s: float
    decode_s: float  # of one message
    link_bits_per_s: float  # of its own interface, each way
    other_s: float = 0.0  # evaluation, records, the machinery around a round
    spread: float = 0.0  # of compute_s from round to round: its standard deviation by its mean


@dataclass(frozen=True, slots=True)
class PredictedMessage:
    """Is one message of a round, between boards by index."""

    sender: int
    receiver: int
    size_bytes: int  # on the wire: payload and overhead


@dataclass(frozen=True, slots=True)
class RoundParts:
    """Says where a round's wall time goes on one board; the parts add up to `round_s`."""

    compute_s: float
    encode_s: float
    transmit_s: float
    decode_s: float
    wait_s: float
    other_s: float
    round_s: float


_DONE_BYTES = 1e-3  # what is left of a message after rounding


@dataclass(slots=True)
class _Flow:
    key: Hashable
    uses: list[tuple[int, float]]  # what a byte/s of it takes of each constraint
    left_bytes: float


class Network:
    """Carries messages between boards 0 to n-1 with interfaces of so many bits/s each way, on
    one link. Raises UsageError for a capacity that is none. Time is what the caller says it is."""

    def __init__(self, interfaces_bits_per_s: Sequence[float], link: LinkProfile) -> None:
        if not all(bits > 0 for bits in interfaces_bits_per_s):
            raise UsageError("every interface has a rate above 0")
        boards, interfaces = len(interfaces_bits_per_s), [bits / 8 for bits in interfaces_bits_per_s]
        shared = [] if link.shared_bits_per_s is None else [link.shared_bits_per_s / 8]
        self._room = [*interfaces, *interfaces, *shared]  # bytes/s of each constraint
        self._received, self._shared = boards, 2 * boards if shared else None  # where those are
        self._crossings = link.crossings
        self._flows: list[_Flow] = []
        self._rates: list[float] | None = None  # bytes/s of each flow; None: not known any more

    def add(self, key: Hashable, sender: int, receiver: int, size_bytes: float) -> None:
        """Start a message. Its `key` comes back when it has arrived."""
        shared = [] if self._shared is None else [(self._shared, float(self._crossings))]
        uses = [(sender, 1.0), (self._received + receiver, 1.0), *shared]
        self._flows.append(_Flow(key, uses, max(float(size_bytes), _DONE_BYTES)))
        self._rates = None

    def next_s(self) -> float | None:
        """Return the seconds until the next message is through if none starts before; None while
        nothing is under way."""
        if not self._flows:
            return None
        return min(flow.left_bytes / rate for flow, rate in zip(self._flows, self._known_rates(), strict=True))

    def advance(self, seconds: float) -> list[Hashable]:
        """Let time pass, no more than `next_s`; return the keys of the messages that are
        through, in the order in which they began."""
        if not self._flows:
            return []
        for flow, rate in zip(self._flows, self._known_rates(), strict=True):
            flow.left_bytes -= rate * seconds
        through = [flow.key for flow in self._flows if flow.left_bytes <= _DONE_BYTES]
        if through:
            self._flows = [flow for flow in self._flows if flow.left_bytes > _DONE_BYTES]
            self._rates = None
        return through

    def _known_rates(self) -> list[float]:
        if self._rates is None:
            self._rates = self._fair_rates()
        return self._rates

    def _fair_rates(self) -> list[float]:
        """Progressive filling: all rates grow together; the flows of a constraint that is full stop
        growing."""
        uses = [flow.uses for flow in self._flows]
        room, load = list(self._room), [0.0] * len(self._room)
        for use in uses:
            for at, share in use:
                load[at] += share
        rates, growing, grown = [0.0] * len(uses), set(range(len(uses))), 0.0
        while growing:
            steps = {at: room[at] / load[at] for at in {at for k in growing for at, _ in uses[k]}}
            step = max(min(steps.values()), 0.0)
            grown += step
            full = {at for at, it in steps.items() if it <= step * (1 + 1e-12)}
            for at in steps:
                room[at] = max(room[at] - step * load[at], 0.0)
            for k in [k for k in growing if any(at in full for at, _ in uses[k])]:
                growing.remove(k)
                rates[k] = grown
                for at, share in uses[k]:
                    load[at] -= share
        return rates


class Timeline:
    """Lets things happen at a time, and carries messages between boards with such interfaces on
    one link."""

    def __init__(self, interfaces_bits_per_s: Sequence[float], link: LinkProfile) -> None:
        self.now_s = 0.0
        self._network, self._latency_s = Network(interfaces_bits_per_s, link), link.latency_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._arrivals: dict[int, Callable[[], None]] = {}
        self._count = 0

    def at(self, time_s: float, happens: Callable[[], None]) -> None:
        """Let something happen at a time, in seconds from the beginning."""
        self._count += 1
        heapq.heappush(self._due, (time_s, self._count, happens))

    def send(self, sender: int, receiver: int, size_bytes: int, arrives: Callable[[], None]) -> None:
        """Send a message now; `arrives` is called when it has, after the link's latency."""
        self._count += 1
        self._arrivals[self._count] = arrives
        self._network.add(self._count, sender, receiver, size_bytes)

    def step(self) -> bool:
        """Go to what happens next; tell whether anything does."""
        flow_s = self._network.next_s()
        due_s = self._due[0][0] if self._due else None
        if flow_s is None and due_s is None:
            return False
        until_s = min(s for s in (None if flow_s is None else self.now_s + flow_s, due_s) if s is not None)
        for key in self._network.advance(max(until_s - self.now_s, 0.0)):
            assert isinstance(key, int)
            self.at(until_s + self._latency_s, self._arrivals.pop(key))
        self.now_s = until_s
        while self._due and self._due[0][0] <= self.now_s:
            heapq.heappop(self._due)[2]()
        return True


_FILL = 4  # rounds that only fill the pipe
_EVEN, _UNEVEN = 4, 20  # rounds that count; where computing does not take equally long every time
_MOST_SPREAD = 3.0  # standard deviations
VALUE_BYTES = 4


Messages: TypeAlias = Callable[[int], Sequence[PredictedMessage]]  # round -> its messages


def work_of(
    device: DeviceProfile,
    *,
    flops: float,
    values: int,
    codec: str,
    precision: str = "fp32",
    threads: int = 1,
    accelerated: bool = False,
) -> BoardWork:
    """Return a board's work from its profile. `flops`: operations of one round's local training;
    `values`: n of the model."""
    size_bytes = VALUE_BYTES * values
    return BoardWork(
        compute_s=flops / device.training_rate(precision, threads, accelerated),
        encode_s=size_bytes / device.encode_rate(codec),
        decode_s=size_bytes / device.decode_rate(codec),
        link_bits_per_s=device.link_bits_per_s,
        spread=device.update_spread or 0.0,
    )


def gossip_rounds(
    works: Sequence[BoardWork], messages: Messages, link: LinkProfile, rounds: int
) -> tuple[tuple[RoundParts, ...], ...]:
    """Return [round][board] of so many rounds from a standing start. Raises UsageError for a
    message from or to nobody."""
    return _Gossip(works, [tuple(messages(r)) for r in range(rounds)], link).run()


def gossip_round(
    works: Sequence[BoardWork], messages: Messages, link: LinkProfile, period: int = 1
) -> tuple[RoundParts, ...]:
    """Return [board] of a round once the run is under way: the mean over rounds that are
    simulated after those that fill the pipe. `period`: after so many rounds the messages are as
    before."""
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
    """Return [board, ..., coordinator]: one round through a coordinator, which nobody begins
    before all answers of the last one are in. A board's `decode_s` is of what comes down; the
    coordinator's of one answer, its `encode_s` of what goes down."""
    simulated = []
    for round in range(_counted(works)):
        drawn = [replace(w, compute_s=w.compute_s * _drawn(w.spread, k, round)) for k, w in enumerate(works)]
        simulated.append(_ServerRound(drawn, coordinator, down_bytes, up_bytes, link).run())
    return _mean(simulated)


def _counted(works: Sequence[BoardWork]) -> int:
    return _UNEVEN if any(work.spread for work in works) else _EVEN


def round_seconds(parts: Sequence[RoundParts]) -> float:
    """Return the seconds of a round of the run: the mean over boards, which are the same for all
    unless boards go separate ways."""
    return sum(p.round_s for p in parts) / len(parts)


@dataclass(slots=True)
class _Board:
    """A board in the simulation."""

    round: int = 0
    began_s: float = 0.0
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
    def __init__(
        self, works: Sequence[BoardWork], messages: Sequence[Sequence[PredictedMessage]], link: LinkProfile
    ) -> None:
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
    return max(0.05, 1.0 + spread * _normal(board, round)) if spread else 1.0


@functools.cache
def _normal(board: int, round: Round) -> float:
    """Draw from the standard normal distribution, cut off."""
    drawn = float(np.random.default_rng([board, round]).standard_normal())
    return min(max(drawn, -_MOST_SPREAD), _MOST_SPREAD)


def _mean(simulated: Sequence[Sequence[RoundParts]]) -> tuple[RoundParts, ...]:
    """[board] over rounds."""
    names = RoundParts.__slots__

    def of(board: int) -> RoundParts:
        return RoundParts(*(sum(getattr(r[board], name) for r in simulated) / len(simulated) for name in names))

    return tuple(of(board) for board in range(len(simulated[0])))


class _ServerRound:
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
