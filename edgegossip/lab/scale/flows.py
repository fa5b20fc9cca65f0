"""Messages under way as fluids: each moves at a rate, and rates are shared out max-min fairly, as
TCP shares links over seconds.

Bertsekas, Gallager: Data Networks, 2nd edition, section 6.5.2 (progressive filling). Constraints
are each board's interface, one way and the other, and the capacity that all share; by radio a
message takes that one `crossings` times. Deviations from real TCP: no slow start, no loss, and
shares follow a change at once. Pure; time is what the caller says it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgegossip.lab.scale.devices import LinkProfile
from edgegossip.types import UsageError

_DONE_BYTES = 1e-3  # what is left of a message after rounding


@dataclass(slots=True)
class _Flow:
    key: Hashable
    sender: int
    receiver: int
    left_bytes: float


class Network:
    """Boards 0 to n-1 with interfaces of so many bits/s each way, on one link. Raises UsageError
    for a capacity that is none."""

    def __init__(self, interfaces_bits_per_s: Sequence[float], link: LinkProfile) -> None:
        if not all(bits > 0 for bits in interfaces_bits_per_s):
            raise UsageError("every interface has a rate above 0")
        self._interfaces = np.asarray(interfaces_bits_per_s, np.float64) / 8
        self._shared = None if link.shared_bits_per_s is None else link.shared_bits_per_s / 8
        self._crossings = link.crossings
        self._flows: list[_Flow] = []
        self._rates: NDArray[np.float64] | None = None  # bytes/s of each flow; None: not known any more

    def add(self, key: Hashable, sender: int, receiver: int, size_bytes: float) -> None:
        """A message starts. Its `key` comes back when it has arrived."""
        self._flows.append(_Flow(key, sender, receiver, max(float(size_bytes), _DONE_BYTES)))
        self._rates = None

    def next_s(self) -> float | None:
        """Seconds until the next message is through if none starts before; None while nothing is
        under way."""
        if not self._flows:
            return None
        left = np.array([flow.left_bytes for flow in self._flows])
        return float(np.min(left / self._known_rates()))

    def advance(self, seconds: float) -> list[Hashable]:
        """Let time pass, no more than `next_s`; the keys of the messages that are through, in the
        order in which they began."""
        if not self._flows:
            return []
        for flow, rate in zip(self._flows, self._known_rates(), strict=True):
            flow.left_bytes -= rate * seconds
        through = [flow.key for flow in self._flows if flow.left_bytes <= _DONE_BYTES]
        if through:
            self._flows = [flow for flow in self._flows if flow.left_bytes > _DONE_BYTES]
            self._rates = None
        return through

    def _known_rates(self) -> NDArray[np.float64]:
        if self._rates is None:
            self._rates = self._fair_rates()
        return self._rates

    def _fair_rates(self) -> NDArray[np.float64]:
        """Progressive filling: all rates grow together; the flows of a constraint that is full stop
        growing."""
        use = self._use()
        room = np.concatenate([self._interfaces, self._interfaces, [] if self._shared is None else [self._shared]])
        rates, growing = np.zeros(len(self._flows)), np.ones(len(self._flows), bool)
        while growing.any():
            load = use[:, growing].sum(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                steps = np.where(load > 0, room / load, np.inf)
            step = max(float(steps.min()), 0.0)
            rates[growing] += step
            room = np.maximum(room - step * load, 0.0)
            full = (load > 0) & (steps <= step * (1 + 1e-12))
            growing &= ~(use[full] > 0).any(axis=0)
        return rates

    def _use(self) -> NDArray[np.float64]:
        """float64[constraints, flows]: what a byte/s of each flow takes of each constraint."""
        boards, flows = len(self._interfaces), len(self._flows)
        use = np.zeros((2 * boards + (self._shared is not None), flows))
        at = np.arange(flows)
        use[[flow.sender for flow in self._flows], at] = 1
        use[[boards + flow.receiver for flow in self._flows], at] = 1
        if self._shared is not None:
            use[-1] = self._crossings
        return use
