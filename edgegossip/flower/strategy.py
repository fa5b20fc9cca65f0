"""`compressed(strategy, codec)`: any Flower strategy, with boards that answer in compressed changes of the model.

What goes down is the model as a frame, whole and exact or, with `downlink`, as an encoded difference to the one that a board has
(`downlink.py`). What comes up is a board's encoded change, which is decoded, checked and added to the model before the strategy
sees it; so FedAvg averages models, FedMedian takes medians of models, and so on, each as Flower wrote it. A reply that does
not stand the checks is refused and the strategy never sees it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower.averaging import Averager, Share
from edgegossip.flower.channel import finite_sum
from edgegossip.flower.downlink import FULL, Downlink
from edgegossip.flower.payload import FRAME, Channel, frame_array
from edgegossip.flower.records import RecordLayout, all_finite, conform, split_frame
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import PeerError, Round, Vec

META = "edgegossip"  # ConfigRecord of a message that tells the client mod what it needs to know
Refused = Callable[[Message, str], None]


@dataclass(slots=True)
class Traffic:
    """Bytes of model frames so far, and what the same models would have been as fp32."""

    down_bytes: int = 0
    up_bytes: int = 0
    plain_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times smaller than fp32."""
        return self.plain_bytes / max(1, self.down_bytes + self.up_bytes)


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
        self._codec, self._run_id = codec, run_id
        self._on_refused = on_refused or _log_refused
        self._down_codec = downlink or codecs.get(FULL)
        self._levels = ServerLevels.of(codec)
        self._down: Downlink | None = None
        self._average: Averager | None = None
        self._record: RecordLayout | None = None
        self._dtypes: dict[str, str] = {}  # of the first model's arrays
        self._model: Vec | None = None  # the latest, as the strategy has it
        self._model_id = ""  # its object id
        self._holds: dict[int, Round] = {}  # node -> number of the model that it has for certain

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._begin(arrays)
        return self._packed(self.inner.configure_train(server_round, arrays, config, grid), server_round - 1)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._begin(arrays)
        return self._packed(self.inner.configure_evaluate(server_round, arrays, config, grid), server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self._heard(replies, server_round - 1)
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
        self._heard(replies, server_round)
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()

    def _begin(self, arrays: ArrayRecord) -> None:
        if self._record is None:
            self._record = RecordLayout.of(arrays)
            self._dtypes = {name: array.dtype for name, array in arrays.items()}
        self._model, _ = self._record.flatten(conform(arrays, self._dtypes))
        self._model_id = arrays.object_id

    def _packed(self, messages: Iterable[Message], number: Round) -> list[Message]:
        """The same messages with frames for models. Each distinct frame is made once, however many boards get it."""
        assert self._record is not None and self._model is not None
        done: dict[tuple[str, str], ArrayRecord] = {}
        out = list(messages)
        for message in out:
            run_id, node = _run_id(self._run_id, message), message.metadata.dst_node_id
            if self._down is None:
                self._down = Downlink(self._record.layout, run_id, self._down_codec)
            small = self._publish(number)
            content, held = RecordDict(dict(message.content)), False
            for name, record in message.content.array_records.items():
                ours = record.object_id == self._model_id
                held = ours and self._down.compresses and self._holds.get(node) == number
                follows = ours and small is not None and self._holds.get(node) == number - 1
                form = "held" if held else "difference" if follows else "whole"
                if not ours:
                    self._holds.pop(node, None)  # what it gets is not the reference
                key = (record.object_id, form)
                if key not in done:
                    done[key] = self._packed_record(record, form, small, number, run_id)
                content[name] = done[key]
                self._count_down(done[key])
            content[META] = self._meta(number, run_id, held)
            message.content = content
        return out

    def _publish(self, number: Round) -> Frame | None:
        """Model `number` is the latest one. The difference to the one before, where there is one."""
        assert self._down is not None and self._model is not None
        if self._published is None or self._published[0] != number:
            self._published = number, self._down.publish(self._model, number).difference
        return self._published[1]

    _published: tuple[Round, Frame | None] | None = None

    def _packed_record(
        self, record: ArrayRecord, form: str, small: Frame | None, number: Round, run_id: bytes
    ) -> ArrayRecord:
        assert self._record is not None and self._down is not None
        x, rest = self._record.flatten(conform(record, self._dtypes))
        if form == "held":
            return ArrayRecord(rest)
        if form == "difference":
            assert small is not None
            return ArrayRecord({FRAME: frame_array(small, self._record.layout), **rest})
        down = self._down
        if record.object_id != self._model_id:
            down = Downlink(self._record.layout, run_id, codecs.get(FULL))
            down.publish(x, number)
        return ArrayRecord({FRAME: frame_array(down.whole(number), self._record.layout), **rest})

    def _meta(self, number: Round, run_id: bytes, held: bool) -> ConfigRecord:
        assert self._record is not None
        fields: dict[str, Any] = {"layout": self._record.to_json(), "run-id": run_id, "number": number, "held": held}
        if self._levels is not None and self._levels.levels:
            fields["levels"] = self._levels.levels
        return ConfigRecord(fields)

    def _count_down(self, record: ArrayRecord) -> None:
        assert self._record is not None
        self.traffic.down_bytes += len(record[FRAME].data) if FRAME in record else 0
        self.traffic.plain_bytes += 4 * self._record.layout.size

    def _heard(self, replies: Sequence[Message], number: Round) -> None:
        """Who answered holds the model that it was asked about."""
        for reply in replies:
            if not reply.has_error():
                self._holds[reply.metadata.src_node_id] = number
            else:
                self._holds.pop(reply.metadata.src_node_id, None)

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
        assert self._record is not None
        return Channel.of(self._record.layout, _run_id(self._run_id, message), self._codec)

    def _plain(self, checked: Sequence[tuple[Message, Frame | None]]) -> list[Message]:
        """Replies with plain models, as `inner` aggregates them. It counts failed ones itself."""
        assert self._record is not None and self._model is not None
        good: list[Message] = []
        for reply, frame in checked:
            if frame is not None:
                try:
                    delta = self._codec.decode(frame.body, self._record.layout)
                    model = finite_sum(self._model, delta)
                    reply.content = self._with(reply, lambda rest, model=model: self._record.restore(model, rest))  # type: ignore[misc]
                except PeerError as error:
                    self._on_refused(reply, str(error))
                    continue
            good.append(reply)
        return good

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
        assert self._record is not None and self._model is not None
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
        made = self._average(self._model, shares)
        for key, reason in made.refused.items():
            self._on_refused(framed[key][0], reason)
        used = [framed[share.name][0] for share in shares if share.name not in made.refused]
        for reply in used:
            reply.content = self._with(reply, ArrayRecord)
        if made.model is None:
            return None, None
        arrays, metrics = inner.aggregate_train(0, used)
        return self._record.restore(made.model, dict(arrays or {})), metrics


def _weight(reply: Message, key: str) -> float:
    """What FedAvg weights a reply by. Raises PeerError when it does not say."""
    metrics = next(iter(reply.content.metric_records.values()), None)
    value = None if metrics is None else metrics.get(key)
    if not isinstance(value, (int, float)) or not 0 < value < np.inf:
        raise PeerError(f"the reply has no metric {key!r} above 0 to weight it by")
    return float(value)


def _tells_loss(frame: Frame) -> bool:
    return all(tag in frame.aux for tag in (Aux.LOSS, Aux.EXAMPLES, Aux.LEARNING_RATE))


def _run_id(given: bytes | None, message: Message) -> bytes:
    """16 bytes for the run a message belongs to."""
    return given or hashlib.sha256(f"flower run {message.metadata.run_id}".encode()).digest()[:16]


def _log(text: str) -> None:
    logging.getLogger("flwr").info("edgegossip: %s", text)


def _log_refused(reply: Message, reason: str) -> None:
    logging.getLogger("edgegossip.flower").warning(
        "refused the update of node %d: %s", reply.metadata.src_node_id, reason
    )
