"""`compressed(strategy, codec)`: any Flower strategy, with boards that answer in compressed changes of the model.

What goes down is the model as a frame (fp32: exact). What comes up is a board's encoded change, which is decoded, checked and
added to the model that was sent before the strategy sees it; so FedAvg averages models, FedMedian takes medians of models, and
so on, each as Flower wrote it. A reply that does not stand the checks is refused and the strategy never sees it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from edgegossip import codecs
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.flower.channel import finite_sum
from edgegossip.flower.payload import FRAME, Channel, frame_key
from edgegossip.flower.records import RecordLayout, all_finite, conform, split_frame
from edgegossip.frame import Kind
from edgegossip.layout import Layout
from edgegossip.types import PeerError, Round, Vec

META = "edgegossip"  # ConfigRecord of a message that tells the client mod what it needs to know
Refused = Callable[[Message, str], None]


def compressed(
    strategy: Strategy, codec: Codec[Any], *, run_id: bytes | None = None, on_refused: Refused | None = None
) -> CompressedStrategy:
    """Wrap `strategy` so that updates travel as `codec` makes them. Boards need `compression_mod` with the same codec.

    `run_id` (16 bytes) tells one run's frames from another's; by default it is derived from Flower's id of the run.
    `on_refused(reply, reason)` hears of every reply that was not used; by default a warning is logged.
    Wrap last: `compressed(DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...), codec)`.
    """
    return CompressedStrategy(strategy, codec, run_id, on_refused)


class CompressedStrategy(Strategy):
    """See `compressed`. Like every Flower strategy it keeps the state of one run. Frames number rounds from 0, Flower from 1."""

    def __init__(
        self,
        strategy: Strategy,
        codec: Codec[Any],
        run_id: bytes | None = None,
        on_refused: Refused | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.inner = strategy
        self._codec, self._run_id, self._layout = codec, run_id, layout
        self._on_refused = on_refused or _log_refused
        self._downlink = codecs.get("fp32")
        self._record: RecordLayout | None = None
        self._dtypes: dict[str, str] = {}  # of the first model's arrays
        self._sent: Vec | None = None  # the model that boards of the round in progress start from
        self._sequence = 0

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
        return self.inner.aggregate_train(server_round, self.unpacked(replies, server_round))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()

    def _begin(self, arrays: ArrayRecord) -> None:
        if self._record is None:
            self._record = RecordLayout.of(arrays, self._layout)
            self._dtypes = {name: array.dtype for name, array in arrays.items()}
        self._sent, _ = self._record.flatten(conform(arrays, self._dtypes))

    def packed_model(self, arrays: ArrayRecord, round: Round) -> ArrayRecord:
        """Model number `round` (0: the first) as a frame; needs the `run_id` that was given."""
        self._begin(arrays)
        assert self._run_id is not None
        return self._pack(arrays, round, self._run_id)[0]

    def _packed(self, messages: Iterable[Message], round: Round) -> list[Message]:
        """The same messages with frames for models; each distinct record is encoded once, however many boards get it."""
        assert self._record is not None
        done: dict[str, tuple[ArrayRecord, ConfigRecord]] = {}
        out = list(messages)
        for message in out:
            content = RecordDict(dict(message.content))
            for name, record in message.content.array_records.items():
                key = record.object_id
                if key not in done:
                    done[key] = self._pack(record, round, _run_id(self._run_id, message))
                content[name], content[META] = done[key]
            message.content = content
        return out

    def _pack(self, record: ArrayRecord, round: Round, run_id: bytes) -> tuple[ArrayRecord, ConfigRecord]:
        assert self._record is not None
        x, rest = self._record.flatten(conform(record, self._dtypes))
        self._sequence += 1
        channel = Channel.of(self._record.layout, run_id, self._downlink)
        state = self._downlink.init(self._record.layout)
        ctx = Ctx(key=frame_key(run_id, "coordinator", round), round=round)
        packed, _ = channel.pack(Kind.MODEL, x, state, ctx, self._sequence)
        meta = ConfigRecord({"layout": self._record.to_json(), "run-id": run_id})
        return ArrayRecord({FRAME: packed.array, **rest}), meta

    def unpacked(self, replies: Iterable[Message], server_round: int) -> list[Message]:
        """Replies with plain models, as `inner` aggregates them; refused ones are left out."""
        good: list[Message] = []
        for reply in replies:
            if reply.has_error():
                good.append(reply)  # the strategy counts failures itself
                continue
            try:
                reply.content = self._decode(reply, server_round - 1)
            except PeerError as error:
                self._on_refused(reply, str(error))
            else:
                good.append(reply)
        return good

    def _decode(self, reply: Message, round: Round) -> RecordDict:
        """The reply's content with a plain model in place of the frame."""
        assert self._record is not None and self._sent is not None
        channel = Channel.of(self._record.layout, _run_id(self._run_id, reply), self._codec)
        content = RecordDict(dict(reply.content))
        for name, record in reply.content.array_records.items():
            data, rest = split_frame(record)
            _, delta = channel.open(data, Kind.UPDATE, round)
            content[name] = self._record.restore(finite_sum(self._sent, delta), rest)
        if not all(all_finite(metrics) for metrics in reply.content.metric_records.values()):
            raise PeerError("a metric in the reply is not a finite number")
        content.pop(META, None)
        return content


def _run_id(given: bytes | None, message: Message) -> bytes:
    """16 bytes for the run a message belongs to."""
    return given or hashlib.sha256(f"flower run {message.metadata.run_id}".encode()).digest()[:16]


def _log_refused(reply: Message, reason: str) -> None:
    logging.getLogger("edgegossip.flower").warning(
        "refused the update of node %d: %s", reply.metadata.src_node_id, reason
    )
