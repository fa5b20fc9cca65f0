"""`compressed(strategy, codec)`: any Flower strategy, with boards that answer in compressed changes of the model.

What goes down is the model as a frame, whole and exact or, with `downlink`, as an encoded difference to the one that a board has
(`downlink.py`). What comes up is a board's encoded change, which is decoded, checked and added to the model before the strategy
sees it; so FedAvg averages models, FedMedian takes medians of models, and so on, each as Flower wrote it. A reply that does
not stand the checks is refused and the strategy never sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower.averaging import Averager, Share
from edgegossip.flower.channel import finite_sum
from edgegossip.flower.downlink import FULL
from edgegossip.flower.lengths import Proportion, length
from edgegossip.flower.outgoing import META, Outgoing, Traffic
from edgegossip.flower.payload import Channel
from edgegossip.flower.records import all_finite, split_frame
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import PeerError, Round, Vec

Refused = Callable[[Message, str], None]


def compressed(
    strategy: Strategy,
    codec: Codec[Any],
    *,
    downlink: Codec[Any] | None = None,
    run_id: bytes | None = None,
    on_refused: Refused | None = None,
) -> CompressedStrategy:
    """Wrap `strategy` so that updates travel as `codec` makes them. Boards need `compression_mod` with the same codecs.

    `downlink`: codec of what goes down, as differences; without one models go down whole. `run_id` (16 bytes) tells one run's
    frames from another's; by default it is derived from Flower's id of the run. `on_refused(reply, reason)` hears of every reply
    that was not used; by default a warning is logged. `.traffic` says what has travelled.
    Wrap last: `compressed(DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...), codec)`. Raises ConfigError for a
    downlink codec with error feedback of its own.
    """
    return CompressedStrategy(strategy, codec, run_id, on_refused, downlink)


class CompressedStrategy(Strategy):
    """See `compressed`. Like every Flower strategy it keeps the state of one run. Model number k is that after Flower's round k;
    boards train from number k in round k + 1, and their frames have round k."""

    def __init__(
        self,
        strategy: Strategy,
        codec: Codec[Any],
        run_id: bytes | None = None,
        on_refused: Refused | None = None,
        downlink: Codec[Any] | None = None,
    ) -> None:
        self.inner, self.traffic = strategy, Traffic()
        self._codec = codec
        self._on_refused = on_refused or _log_refused
        self._levels = ServerLevels.of(codec)
        self._out = Outgoing(downlink or codecs.get(FULL), run_id, self.traffic)
        self._average: Averager | None = None
        self._proportion = Proportion()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._out.begin(arrays)
        messages = self.inner.configure_train(server_round, arrays, config, grid)
        return self._out.packed(messages, server_round - 1, self._levels)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._out.begin(arrays)
        messages = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return self._out.packed(messages, server_round, self._levels)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self._out.heard(replies, server_round - 1)
        checked = self._checked(replies, server_round - 1)
        if self._levels is not None:
            self._levels = self._levels.after([f for _, f in checked if f is not None and _tells_loss(f)])
        inner = self.inner
        if isinstance(inner, FedAvg) and type(inner).aggregate_train is FedAvg.aggregate_train:
            made = self._mean(inner, checked)
        else:
            made = inner.aggregate_train(server_round, self._plain(checked))
        _log(f"round {server_round}: {self.traffic.ratio:.1f} times fewer bytes than fp32 so far")
        return made

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        self._out.heard(replies, server_round)
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()

    def _checked(self, replies: Sequence[Message], number: Round) -> list[tuple[Message, Frame | None]]:
        """Replies with their frames, not decoded yet; failed ones without; refused ones are left out."""
        good: list[tuple[Message, Frame | None]] = []
        for reply in replies:
            try:
                good.append((reply, None if reply.has_error() else self._check(reply, number)))
            except PeerError as error:
                self._on_refused(reply, str(error))
        return good

    def _check(self, reply: Message, number: Round) -> Frame:
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise PeerError(f"the reply has {len(records)} array records instead of one")
        data, _ = split_frame(records[0])
        if not all(all_finite(metrics) for metrics in reply.content.metric_records.values()):
            raise PeerError("a metric in the reply is not a finite number")
        frame = self._channel(reply).check(data, Kind.UPDATE, number)
        self.traffic.up_bytes += len(data)
        self.traffic.plain_bytes += 4 * self._channel(reply).layout.size
        return frame

    def _channel(self, message: Message) -> Channel:
        return Channel.of(self._out.record.layout, self._out.run_id(message), self._codec)

    def _plain(self, checked: Sequence[tuple[Message, Frame | None]]) -> list[Message]:
        """Replies with plain models, as `inner` aggregates them. It counts failed ones itself."""
        deltas: dict[int, Vec] = {}
        refused: dict[int, str] = {}
        for k, (_, frame) in enumerate(checked):
            try:
                if frame is not None:
                    deltas[k] = self._codec.decode(frame.body, self._out.record.layout)
            except PeerError as error:
                refused[k] = str(error)
        lengths = {k: length(delta) for k, delta in deltas.items()}
        refused |= self._proportion.refused(lengths, self._out.model)
        for k in sorted(deltas.keys() - refused.keys()):
            try:
                self._fill(checked[k][0], deltas.pop(k))
            except PeerError as error:
                refused[k] = str(error)
        for k in sorted(refused):
            self._on_refused(checked[k][0], refused[k])
        self._proportion.used(v for k, v in lengths.items() if k not in refused)
        return [reply for k, (reply, _) in enumerate(checked) if k not in refused]

    def _fill(self, reply: Message, delta: Vec) -> None:
        """The model in place of the frame. Raises PeerError."""
        model = finite_sum(self._out.model, delta)
        reply.content = self._with(reply, lambda rest: self._out.record.restore(model, rest))

    def _with(self, reply: Message, restore: Callable[[dict[str, Array]], ArrayRecord]) -> RecordDict:
        content = RecordDict(dict(reply.content))
        for name, record in reply.content.array_records.items():
            content[name] = restore(split_frame(record)[1])
        content.pop(META, None)
        return content

    def _mean(
        self, inner: FedAvg, checked: Sequence[tuple[Message, Frame | None]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Plain FedAvg: the same mean without a model a board. The arrays beside the frames are averaged by Flower."""
        framed = {str(k): (reply, frame) for k, (reply, frame) in enumerate(checked) if frame is not None}
        if not framed:
            return inner.aggregate_train(0, [reply for reply, _ in checked])
        self._average = self._average or Averager(self._channel(checked[0][0]))
        shares = []
        for key, (reply, frame) in framed.items():
            try:
                shares.append(Share(key, frame, _weight(reply, inner.weighted_by_key)))
            except PeerError as error:
                self._on_refused(reply, str(error))
        made = self._average(self._out.model, shares)
        for key, reason in made.refused.items():
            self._on_refused(framed[key][0], reason)
        used = [framed[share.name][0] for share in shares if share.name not in made.refused]
        for reply in used:
            reply.content = self._with(reply, ArrayRecord)
        if made.model is None:
            return None, None
        arrays, metrics = inner.aggregate_train(0, used)
        return self._out.record.restore(made.model, dict(arrays or {})), metrics


def _weight(reply: Message, key: str) -> float:
    """What FedAvg weights a reply by. Raises PeerError when it does not say."""
    metrics = next(iter(reply.content.metric_records.values()), None)
    value = None if metrics is None else metrics.get(key)
    if not isinstance(value, (int, float)) or not 0 < value < np.inf:
        raise PeerError(f"the reply has no metric {key!r} above 0 to weight it by")
    return float(value)


def _tells_loss(frame: Frame) -> bool:
    return all(tag in frame.aux for tag in (Aux.LOSS, Aux.EXAMPLES, Aux.LEARNING_RATE))


def _log(text: str) -> None:
    logging.getLogger("flwr").info("edgegossip: %s", text)


def _log_refused(reply: Message, reason: str) -> None:
    logging.getLogger("edgegossip.flower").warning(
        "refused the update of node %d: %s", reply.metadata.src_node_id, reason
    )
