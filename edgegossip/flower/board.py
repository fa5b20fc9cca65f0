"""A board's work in one server run: decode the model, train, encode the change. No connection: messages in, contents out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, Message, RecordDict

from edgegossip import codecs, heap
from edgegossip.checkpoint.fits import require_fit
from edgegossip.codecs.base import Body, Codec, Ctx
from edgegossip.flower import protocol
from edgegossip.flower.channel import update_aux
from edgegossip.flower.downlink import FULL, Replica
from edgegossip.flower.payload import STYPE, Channel, frame_bytes, frame_content, frame_key
from edgegossip.frame import Aux, Kind
from edgegossip.profiling.records import Value
from edgegossip.profiling.spans import RoundClock
from edgegossip.training.base import Workload, stage_metrics
from edgegossip.types import LocalUpdate, NodeId, Round, Vec


@dataclass(frozen=True, slots=True)
class _Answered:
    """What was sent for a round, and for which model."""

    round: Round
    model_crc: int
    array: Array
    report: dict[str, Value]


class Board:
    """Model, data and codec of one board. `sent_bytes` says what its connection has sent so far.

    A coordinator that was killed may ask for a round again that it had not finished. The same model gets the same answer, and
    neither momentum nor error memory moves twice.
    """

    def __init__(
        self,
        name: NodeId,
        workload: Workload,
        channel: Channel,
        downlink: Codec[Any],
        sent_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._name, self.workload, self._channel = name, workload, channel
        self._replica = Replica(channel.layout, channel.run_id, downlink)
        self._codec_state = channel.codec.init(channel.layout)
        self._sequence = 0
        self._sent_bytes, self._sent_before = sent_bytes, sent_bytes()
        self._answered: _Answered | None = None
        self._report: dict[str, Value] = {}
        self.round = 0
        self.instance = ""  # of the run, see protocol.Hello

    @property
    def run_id(self) -> bytes:
        return self._channel.run_id

    def train(self, message: Message, clock: RoundClock) -> RecordDict:
        """Decode the model, evaluate it if asked to, train from it, encode the change. Raises PeerError, LocalError."""
        examples = protocol.read_evaluate_request(message.content)
        aux, x = self._open(message, clock)
        found = self._evaluate(examples, x, clock)
        content = self._again(x) or self._work(aux, x, clock)
        return content if found is None else RecordDict({**content, protocol.EVALUATION: found})

    def evaluate(self, message: Message, clock: RoundClock) -> RecordDict:
        examples = protocol.read_evaluate_request(message.content)
        found = self._evaluate(examples, self._open(message, clock)[1], clock)
        return RecordDict({} if found is None else {protocol.EVALUATION: found})

    def take_report(self) -> dict[str, Value]:
        """Metrics of the round that was just answered."""
        sent = self._sent_bytes()
        payload = int(self._report["net/payload_bytes"])  # type: ignore[arg-type]
        report = self._report | {"net/overhead_bytes": sent - self._sent_before - payload}
        self._sent_before = sent
        return report

    def snapshot(self) -> dict[str, Any]:
        """What another process needs to go on for this one; arrays in it are not written to afterwards."""
        done = self._answered
        return {
            "round": self.round,
            "training": dict(self.workload.snapshot()),
            "codec": self._codec_state,
            "sequence": self._sequence,
            "instance": self.instance,
            "answered": None if done is None else [done.round, done.model_crc, done.array.data, done.report],
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """What `snapshot` gave. Raises LocalError, KeyError, TypeError or ValueError when it is of something else."""
        layout = self._channel.layout
        require_fit(found["codec"], self._channel.codec.init(layout), layout)
        self.workload.restore(found["training"])
        self._codec_state, self._sequence, self.round = found["codec"], int(found["sequence"]), int(found["round"])
        self.instance = str(found.get("instance", ""))
        if found["answered"] is not None:
            round, crc, data, report = found["answered"]
            array = Array(dtype="float32", shape=(layout.size,), stype=STYPE, data=bytes(data))
            self._answered = _Answered(round, crc, array, dict(report))

    def _open(self, message: Message, clock: RoundClock) -> tuple[Mapping[int, float], Vec]:
        """What came beside the model, and the model. The message is emptied, record by record: it is as large as the model, and
        Flower's records refer to each other, so that they would wait for the garbage collector."""
        with clock.span("decode"):
            frame, x = self._replica.open(frame_bytes(message.content))
            for record in list(message.content.array_records.values()):
                record.clear()
            message.content = RecordDict()
            heap.give_back()
        self.round = frame.round
        return frame.aux, x

    def _again(self, x: Vec) -> RecordDict | None:
        """The answer that this round and model had before."""
        done = self._answered
        if done is None or done.round != self.round or done.model_crc != zlib.crc32(x.data):
            return None
        self._report = dict(done.report)
        return frame_content(done.array)

    def _work(self, aux: Mapping[int, float], x: Vec, clock: RoundClock) -> RecordDict:
        self._answered = None  # before the next one is made: each may be as large as the model
        with clock.span("compute"):
            update = self.workload.local_update(x, self.round)
        with clock.span("encode"):
            array = self._pack(update, aux)
            self._report |= stage_metrics(update.stages_s)
            self._answered = _Answered(self.round, zlib.crc32(x.data), array, dict(self._report))
        return frame_content(array)

    def _evaluate(self, examples: int | None, x: Vec, clock: RoundClock) -> Any:
        if examples is None:
            return None
        with clock.span("other"):
            return protocol.evaluation(self.workload.evaluate(x, examples or None))

    def _error(self, x: Vec, body: Body) -> float:
        """What the codec lost, relative."""
        if self._channel.codec.name == FULL:
            return 0.0
        return codecs.relative_error(x, self._channel.codec.decode(body, self._channel.layout))

    def _pack(self, update: LocalUpdate, asked: Mapping[int, float]) -> Array:
        """The change as a frame; the metrics of it are kept for `take_report`."""
        self._sequence += 1
        levels = asked.get(Aux.LEVELS)
        ctx = Ctx(
            key=frame_key(self._channel.run_id, self._name, self.round),
            round=self.round,
            loss=update.loss,
            lr=update.lr,
            levels=None if levels is None else int(levels),
        )
        packed, self._codec_state = self._channel.pack(
            Kind.UPDATE, update.delta, self._codec_state, ctx, self._sequence, update_aux(update)
        )
        self._report = {
            "train/loss": update.loss,
            "train/lr": update.lr,
            "train/examples": update.examples,
            "net/payload_bytes": len(packed.body),
            "codec/bits_per_value": codecs.bits_per_value(packed.body, self._channel.layout),
            "codec/relative_error": self._error(update.delta, packed.body),
        }
        return packed.array
