"""The models in a strategy's messages as frames: each whole or as a difference, by what a board has already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower.downlink import FULL, Downlink
from edgegossip.flower.payload import FRAME, frame_array
from edgegossip.flower.records import RecordLayout, conform
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.frame import Frame
from edgegossip.types import Round, Vec

META = "edgegossip"  # ConfigRecord of a message that tells the client mod what it needs to know


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


class Outgoing:
    """What the boards of one run are sent, and what they hold of it."""

    def __init__(self, codec: Codec[Any], run_id: bytes | None, traffic: Traffic) -> None:
        self._codec, self._given_run_id, self._traffic = codec, run_id, traffic
        self._down: Downlink | None = None
        self._record: RecordLayout | None = None
        self._dtypes: dict[str, str] = {}  # of the first model's arrays
        self._model: Vec | None = None
        self._model_id = ""  # its object id
        self._holds: dict[int, Round] = {}  # node -> number of the model that it has for certain
        self._apart: set[int] = set()  # nodes that were last sent something else than the reference
        self._published: tuple[Round, str, Frame | None] | None = None  # number, object id, difference

    @property
    def record(self) -> RecordLayout:
        assert self._record is not None, "begin comes first"
        return self._record

    @property
    def model(self) -> Vec:
        """float32[n]"""
        assert self._model is not None, "begin comes first"
        return self._model

    def run_id(self, message: Message) -> bytes:
        """16 bytes for the run a message belongs to."""
        return self._given_run_id or hashlib.sha256(f"flower run {message.metadata.run_id}".encode()).digest()[:16]

    def begin(self, arrays: ArrayRecord) -> None:
        """The latest model, as the strategy has it."""
        if self._record is None:
            self._record = RecordLayout.of(arrays)
            self._dtypes = {name: array.dtype for name, array in arrays.items()}
        self._model, _ = self._record.flatten(conform(arrays, self._dtypes))
        self._model_id = arrays.object_id

    def packed(self, messages: Iterable[Message], number: Round, levels: ServerLevels | None) -> list[Message]:
        """The same messages with frames for models. Each distinct frame is made once, however many boards get it."""
        done: dict[tuple[str, str], ArrayRecord] = {}
        out = list(messages)
        for message in out:
            run_id, node = self.run_id(message), message.metadata.dst_node_id
            if self._down is None:
                self._down = Downlink(self.record.layout, run_id, self._codec)
            small = self._publish(number)
            content, held = RecordDict(dict(message.content)), False
            for name, record in message.content.array_records.items():
                ours = record.object_id == self._model_id
                held = ours and self._down.compresses and self._holds.get(node) == number
                follows = ours and small is not None and self._holds.get(node) == number - 1
                form = "held" if held else "difference" if follows else "whole"
                (self._apart.discard if ours else self._apart.add)(node)
                if not ours:
                    self._holds.pop(node, None)
                key = (record.object_id, form)
                if key not in done:
                    done[key] = self._packed_record(record, form, small, number, run_id)
                content[name] = done[key]
                self._count_down(done[key])
            content[META] = self._meta(number, run_id, held, levels)
            message.content = content
        return out

    def _publish(self, number: Round) -> Frame | None:
        """Model `number` is the latest one. The difference to the one before, where there is one. A strategy that plays the
        rounds itself may change the model after boards have been asked to evaluate it, and begin again at any number: nobody
        holds such a model."""
        assert self._down is not None
        before, before_id, difference = self._published or (None, "", None)
        if (before, before_id) == (number, self._model_id):
            return difference
        if before is None or before != number - 1:
            self._holds.clear()
        if before == number:
            self._down.replace(self.model, number)
            difference = None
        else:
            difference = self._down.publish(self.model, number).difference
        self._published = number, self._model_id, difference
        return difference

    def _packed_record(
        self, record: ArrayRecord, form: str, small: Frame | None, number: Round, run_id: bytes
    ) -> ArrayRecord:
        assert self._down is not None
        x, rest = self.record.flatten(conform(record, self._dtypes))
        if form == "held":
            return ArrayRecord(rest)
        if form == "difference":
            assert small is not None
            return ArrayRecord({FRAME: frame_array(small, self.record.layout), **rest})
        down = self._down
        if record.object_id != self._model_id:
            down = Downlink(self.record.layout, run_id, codecs.get(FULL))
            down.publish(x, number)
        return ArrayRecord({FRAME: frame_array(down.whole(number), self.record.layout), **rest})

    def _meta(self, number: Round, run_id: bytes, held: bool, levels: ServerLevels | None) -> ConfigRecord:
        fields: dict[str, Any] = {"layout": self.record.to_json(), "run-id": run_id, "number": number, "held": held}
        if levels is not None and levels.levels:
            fields["levels"] = levels.levels
        return ConfigRecord(fields)

    def _count_down(self, record: ArrayRecord) -> None:
        self._traffic.down_bytes += len(record[FRAME].data) if FRAME in record else 0
        self._traffic.plain_bytes += 4 * self.record.layout.size

    def heard(self, replies: Sequence[Message], number: Round) -> None:
        """Who answered holds the model that it was asked about."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error() or node in self._apart:
                self._holds.pop(node, None)
            else:
                self._holds[node] = number
