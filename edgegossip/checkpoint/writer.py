"""Writes checkpoints off the critical path: a thread writes the newest state that it was given, the
training goes on.

What is promised. With an offer after every round, a power cut or kill -9 costs the round in
progress and at most one that was finished; where rounds are shorter than `slack_s`, at most
`slack_s` of finished ones (plus what the last write took). To keep that on a disk that is slower
than the rounds, `ready` before a round is called finished (and an offer, of those before it) waits
until what was offered is durable, for PATIENCE_S at most. Short rounds are not written one by one:
a write begins PACE_S after the one before it, or a quarter of the slack if that is less, so 40
rounds a second are 4 files a second. With a bound on the bytes of a day, for cards that wear, a
write also leaves time for what it took of them, and that time may be lost, too; what is offered
last is written whatever it takes. A disk that is full, broken or hangs is said once, then every
WARN_S at most, and holds nobody: the training goes on without.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgegossip.checkpoint.store import Store
from edgegossip.threads import THREADS, Threads
from edgegossip.types import EdgegossipError

WARN_S = 600.0  # between two warnings of a disk that fails
RETRY_S, MOST_RETRY_S = 5.0, 300.0  # between two tries on such a disk: twice as long each time
PATIENCE_S = 30.0  # for a disk that does not answer
ANNOUNCE_S = 5.0
DAY_S = 86_400.0
PACE_S = 0.25  # from the beginning of a write to that of the next, where rounds are shorter

Say = Callable[[str, str], None]  # (event, sentence)


@dataclass(frozen=True, slots=True)
class _Offer:
    round: int
    value: Any
    meta: dict[str, Any]


class Writer:
    """Saves to a store on a thread of its own, which begins with the first offer.

    `say(event, sentence)` hears of what goes wrong; it is called on either thread and must not
    raise. `slack_s`: so many seconds of finished rounds may be lost; `patience_s`: for a disk that
    does not answer; `daily_bytes`: at most so many are written in a day, beside one checkpoint.
    """

    def __init__(
        self,
        store: Store,
        say: Say,
        slack_s: float = 1.0,
        patience_s: float = PATIENCE_S,
        daily_bytes: float = math.inf,
        threads: Threads = THREADS,
    ) -> None:
        self._store, self._say, self._slack_s, self._patience_s = store, say, slack_s, patience_s
        self._threads, self._clock, self._daily_bytes = threads, threads.now, daily_bytes
        self._condition = threads.condition()
        self._waiting: _Offer | None = None  # the newest that nobody writes yet
        self._writing: _Offer | None = None
        self._pending: deque[tuple[int, float]] = deque()  # (round, when) of offers that are not durable, oldest first
        self._closing = self._hangs = self._broken = False
        self._flushing = 0  # calls of `flush` that wait
        self._next_write_s = -math.inf  # not before, for the sake of short rounds
        self._spent_until_s = -math.inf  # nor before that, for the sake of the bytes of a day
        self._begun = False
        self._failures, self._retry_at_s, self._retry_s, self._warned_s = 0, 0.0, RETRY_S, -WARN_S
        self._durable: int | None = None

    @property
    def durable(self) -> int | None:
        """The round of the newest checkpoint that is durable."""
        with self._condition:
            return self._durable

    def resume_from(self, round: int) -> None:
        """Take note, before the first offer, of the round that an earlier process kept."""
        self._durable = round

    def offer(self, round: int, value: Any, **meta: Any) -> None:
        """Keep `value`, unless a newer one comes before it is written. Neither it nor an array in
        it may be changed afterwards."""
        with self._condition:
            now = self._clock()
            if self._broken or now < self._retry_at_s:
                return
            idle, self._waiting = self._waiting is None, _Offer(round, value, meta)
            if self._hangs and len(self._pending) > 1:  # however long it hangs
                self._pending.pop()
            self._pending.append((round, now))
            if not self._begun:
                self._begun = True
                self._threads.start(self._work, "checkpoint")
            if idle:
                self._condition.notify_all()
            self._catch_up(round, now)

    def ready(self) -> None:
        """Wait, before another round is called finished, until no offer has been pending for longer
        than the slack."""
        with self._condition:
            self._catch_up(None, self._clock())

    def close(self, patience_s: float) -> bool:
        """Write what was offered last, for so long at most; return whether all of it is durable."""
        with self._condition:
            self._closing = True
            settled = self._settle(patience_s)
            if self._writing is None:
                self._store.close()
            return settled

    def flush(self, patience_s: float) -> bool:
        """Wait until everything that was offered is durable or has failed, for so long at most;
        return whether that is so."""
        with self._condition:
            self._flushing += 1
            settled = self._settle(patience_s)
            self._flushing -= 1
            return settled

    def _settle(self, patience_s: float) -> bool:
        until = self._clock() + patience_s
        self._condition.notify_all()
        while self._pending and (left := until - self._clock()) > 0:
            self._condition.wait(left)
        return not self._pending

    def _catch_up(self, but: int | None, began_s: float) -> None:
        """Wait until no offer, but that of the present round if there is one, has been pending for
        longer than the slack."""
        announce_s = began_s + ANNOUNCE_S
        while not self._hangs and self._pending and self._pending[0][0] != but:
            now = self._clock()
            overdue_s = max(self._pending[0][1], self._spent_until_s) + self._slack_s
            if now < overdue_s:
                return
            if now >= began_s + self._patience_s:
                self._hangs = True
                self._warn(f"the disk has not finished a checkpoint for {self._patience_s:.0f} s")
                return
            if now >= announce_s:
                self._say(
                    "waiting", f"waiting for the disk to keep round {self._pending[0][0]} for {now - began_s:.0f} s"
                )
                announce_s = now + ANNOUNCE_S
            self._condition.wait(min(announce_s, began_s + self._patience_s) - now)

    def _work(self) -> None:
        while (offer := self._next()) is not None:
            try:
                size = self._store.save(offer.value, round=offer.round, **offer.meta)
            except OSError as error:
                self._ended(offer, error.strerror or str(error))
            except EdgegossipError as error:  # a state that no table knows, or a folder that is another's: so it stays
                self._broken = True
                self._ended(offer, str(error))
            except MemoryError:
                self._ended(offer, "there is no memory left")
            except (
                Exception
            ) as error:  # ours or a model's mistake: the disk is not to blame, and nobody is to wait for it
                self._broken = True
                self._ended(offer, f"{type(error).__name__}: {error}")
            else:
                self._ended(offer, None, size)
            del offer

    def _next(self) -> _Offer | None:
        with self._condition:
            while self._waiting is None or self._pause_s() > 0.0:
                if self._waiting is None and self._closing:
                    return None
                self._condition.wait(None if self._waiting is None else self._pause_s())
            self._next_write_s = self._clock() + min(PACE_S, self._slack_s / 4)
            self._writing, self._waiting = self._waiting, None
            return self._writing

    def _pause_s(self) -> float:
        """Return how long the next write may wait for a newer state; 0 when somebody waits for
        it."""
        until_s = max(self._next_write_s, self._spent_until_s)
        return 0.0 if self._closing or self._flushing else until_s - self._clock()

    def _ended(self, offer: _Offer, fault: str | None, size: int = 0) -> None:
        with self._condition:
            self._writing = None
            if pause_s := size / self._daily_bytes * DAY_S:
                self._spent_until_s = self._clock() + pause_s
            while self._pending and self._pending[0][0] <= offer.round:
                self._pending.popleft()
            if fault is None:
                self._succeeded(offer.round)
            else:
                self._failed(fault)
            self._condition.notify_all()

    def _succeeded(self, round: int) -> None:
        self._durable, self._hangs = round, False
        if self._failures:
            self._say("checkpoint-back", f"checkpoints are kept again, after {self._failures} that failed")
        self._failures, self._retry_s, self._warned_s = 0, RETRY_S, -WARN_S

    def _failed(self, fault: str) -> None:
        self._failures += 1
        self._retry_at_s, self._retry_s = self._clock() + self._retry_s, min(2 * self._retry_s, MOST_RETRY_S)
        self._warn(fault)

    def _warn(self, fault: str) -> None:
        now = self._clock()
        if now - self._warned_s < WARN_S:
            return
        self._warned_s = now
        cure = "this process tries no more" if self._broken else "free space or mend the disk"
        back = "from its beginning" if self._durable is None else f"from round {self._durable}"
        self._say(
            "checkpoint-failed",
            f"cannot keep a checkpoint in {self._store.folder}: {fault}; the training goes on, and after a power cut it would "
            f"begin again {back}; {cure}, or switch this off with checkpoint.every = 0",
        )
