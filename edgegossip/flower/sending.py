"""Makes what the clients of `compressed` are sent, and remembers of each what it holds.

A model goes down whole and exact or, with a downlink codec, as an encoded difference to the one
that a client has (`engine/server_frames.py`). A client has for certain what it has answered to. So
whoever has not answered the last message it was sent, by a failure or because its answer was lost,
gets the next model whole.

Each message has a number, which is in its answer. So an answer is opened with the model that its
client was sent: strategies send groups models of their own, and take answers late.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.engine.plausible import ServerLevels
from edgegossip.engine.server_frames import FULL, Downlink
from edgegossip.flower.messages import FRAME, frame_array
from edgegossip.flower.records import META, RecordLayout, by_hash, conform
from edgegossip.frame import Frame
from edgegossip.types import PeerError, Round, Vec


@dataclass(slots=True)
class ModelTraffic:
    """Counts bytes of models so far, with what travels beside their frames, and what the same would
    have been without edgegossip, as fp32."""

    down_bytes: int = 0
    up_bytes: int = 0
    plain_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times smaller than fp32 that is."""
        return self.plain_bytes / max(1, self.down_bytes + self.up_bytes)

    def add_plain(
        self, layout: RecordLayout, arrays: Mapping[str, Array], other: Iterable[Mapping[str, Array]]
    ) -> None:
        """Count a message with a model of this layout, `arrays` of which lie beside its frame, and
        `other` records."""
        coded = {name for name, spec in layout.specs.items() if spec.coded}
        beside = {name: array for name, array in arrays.items() if name not in coded}
        self.plain_bytes += 4 * layout.layout.size + sum(map(size_of, [beside, *other]))


def size_of(arrays: Mapping[str, Array]) -> int:
    """Return how many bytes the data of arrays are, but for a frame."""
    return sum(len(array.data) for name, array in arrays.items() if name != FRAME)


@dataclass(slots=True)
class Held:
    """Holds what a client has once it has answered the last messages that it was sent."""

    number: Round | None  # of the model; None: of another one
    arrays: set[str]  # hashes of those that came as they are
    certain: bool = False  # it has answered


@dataclass(frozen=True, slots=True)
class Sent:
    """Holds what a message brought a client, and its answer builds on."""

    message: Message
    layout: RecordLayout
    number: Round  # of the model
    x: Vec  # the model as the strategy has it, float32[n]
    beside: Mapping[str, Array]  # arrays of the model that are not in x
    arrays: Mapping[str, Array]  # of all records, by hash
    held: Held


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Holds what is common to messages that go at once."""

    number: Round  # of the latest model
    levels: ServerLevels | None
    key: str  # of the record that is the model, where there are several
    private: bool
    counts: Mapping[int, int]  # messages by node
    known: Mapping[int, Held]  # what clients hold for certain
    # by a model's object id and form: its layout, itself, and what goes for it
    made: dict[tuple[str, str], tuple[RecordLayout, Vec, Mapping[str, Array]]]


class ModelSender:
    """Makes what the clients of one run are sent, and knows what they hold of it. `exact`: patterns
    of arrays that are not coded."""

    def __init__(self, codec: Codec[Any], run_id: bytes | None, traffic: ModelTraffic, exact: Collection[str]) -> None:
        self._codec, self._given_run_id, self._traffic, self._exact = codec, run_id, traffic, tuple(exact)
        # An app may have several strategies, of whose models clients keep one each.
        self._strategy = run_id.hex() if run_id else secrets.token_hex(8)
        self._down: Downlink | None = None
        self._record: RecordLayout | None = None
        self._dtypes: dict[str, str] = {}  # of the first model's arrays
        self._model: Vec | None = None
        self._model_id = ""  # its object id
        self._held: dict[int, Held] = {}  # by node
        self._sent: dict[int, Sent] = {}  # by the message's number
        self._messages = 0
        self.beside: Mapping[str, Array] = {}  # arrays of the latest model that go as they are
        self._published: tuple[Round, str, Frame | None] | None = None  # number, object id, difference

    @property
    def record(self) -> RecordLayout:
        """The arrays of the model."""
        assert self._record is not None, "begin comes first"
        return self._record

    @property
    def model(self) -> Vec:
        """The latest model, float32[n]."""
        assert self._model is not None, "begin comes first"
        return self._model

    def run_id(self, message: Message) -> bytes:
        """Return 16 bytes for the run a message belongs to."""
        return self._given_run_id or hashlib.sha256(f"flower run {message.metadata.run_id}".encode()).digest()[:16]

    def begin(self, arrays: ArrayRecord, private: bool) -> None:
        """Take the latest model, as the strategy has it. One of other arrays than the last begins
        anew. `private`: what is not coded is not trained, so all is that can be."""
        fitting = self._fitting(arrays)
        if fitting is None:
            self._record = RecordLayout.of(arrays, exact=not private)
            self._dtypes = {name: array.dtype for name, array in arrays.items()}
            self._down = self._published = None
        self._model, self.beside = self.record.flatten(fitting or arrays)
        self._model_id = arrays.object_id
        if fitting is None:
            self._tell_exact()

    def _tell_exact(self) -> None:
        """Warn where most of the model is of arrays that are not coded."""
        names = set(self.record.exact(self.model, self.model, self._exact))
        layout = self.record.layout
        share = sum(t.size for t in layout.tensors if t.name in names) / max(1, layout.size)
        if share > 0.5:
            logging.getLogger("edgegossip.flower").warning(
                "%.0f %% of the model travel uncompressed: what is nowhere negative must not change its sign",
                100 * share,
            )

    def _fitting(self, record: ArrayRecord) -> ArrayRecord | None:
        """Return a record with the types of the model's arrays; None where it has other arrays."""
        conformed = conform(record, self._dtypes)
        return conformed if self._record is not None and self._record.fits(conformed) else None

    def coded(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what codecs see of a model."""
        return ArrayRecord({k: a for k, a in arrays.items() if k not in self.beside}) if self.beside else arrays

    def completed(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a model of which these are the arrays that codecs see, with the others as they
        are."""
        return ArrayRecord({k: arrays[k] if k in arrays else self.beside[k] for k in self.record.specs})

    def packed(
        self,
        messages: Iterable[Message],
        number: Round,
        levels: ServerLevels | None = None,
        key: str = "",
        private: bool = False,
    ) -> list[Message]:
        """Return the same messages with frames for models. `key`: the record that is the model,
        where there are several. `private`: what is not coded stays as it is.

        Each distinct frame is made once, however many clients get it."""
        out = list(messages)
        self._sent = {k: sent for k, sent in self._sent.items() if sent.number in (number - 1, number)}
        counts = Counter(message.metadata.dst_node_id for message in out)
        if any(message.content.array_records for message in out):
            self._publish(number, self.run_id(out[0]))
        held = {node: self._held.pop(node, None) for node in counts}
        known = {node: was for node, was in held.items() if was is not None and was.certain}
        batch = MessageBatch(number, levels, key, private, counts, known, {})
        for message in out:
            if message.content.array_records:
                self._pack(message, batch)
        return out

    def _pack(self, message: Message, batch: MessageBatch) -> None:
        records, node, number = message.content.array_records, message.metadata.dst_node_id, batch.number
        name = self._model_in(records, batch.key)
        known = batch.known.get(node) or Held(None, set())
        form = self._form(records[name], number, known, batch.counts[node] > 1)
        made = (records[name].object_id, form)
        if made not in batch.made:
            batch.made[made] = self._packed_record(records[name], form, number, batch.private, self.run_id(message))
        layout, x, packed = batch.made[made]
        beside = {k: a for k, a in packed.items() if k != FRAME}
        plain = {**records, name: ArrayRecord(beside)}
        arrays = {a.object_id: a for record in plain.values() for a in record.values()}
        # Of several messages a client keeps the arrays of the one that it read last.
        held = self._held.setdefault(node, Held(number, set(arrays)))
        held.arrays &= arrays.keys()
        held.number = held.number if form != "own" else None
        small = {k: by_hash(record, known.arrays) for k, record in {**records, name: packed}.items()}
        self._traffic.down_bytes += sum(len(a.data) for record in small.values() for a in record.values())
        self._traffic.add_plain(layout, beside, (record for k, record in records.items() if k != name))
        self._messages += 1
        self._sent[self._messages] = Sent(message, layout, number, x, beside, arrays, held)
        fields: dict[str, Any] = {
            "layout": layout.to_json(),
            "record": name,
            "run-id": self.run_id(message),
            "strategy": self._strategy,
            "message": self._messages,
            "number": number,
            "held": form == "held",
            "private": batch.private,
            "exact": list(self._exact),
        }
        if batch.levels is not None and batch.levels.levels:
            fields["levels"] = batch.levels.levels
        content = {**message.content, **{k: ArrayRecord(arrays) for k, arrays in small.items()}}
        message.content = RecordDict({**content, META: ConfigRecord(fields)})

    def _model_in(self, records: Mapping[str, ArrayRecord], key: str) -> str:
        """Return the name of the record that is a model: the strategy's own, the latest one, or one
        like it. Where none is, the first one is what its reader complains of."""
        alike = [name for name, record in records.items() if self._fitting(record) is not None]
        latest = [name for name in alike if records[name].object_id == self._model_id]
        return next(iter([*(name for name in (key,) if name in records), *latest, *alike, *records]))

    def _form(self, record: ArrayRecord, number: Round, known: Held, several: bool) -> str:
        """Return how a model goes to a client that holds what is `known`."""
        assert self._down is not None and self._published is not None
        if record.object_id != self._model_id:
            return "own"
        if known.number == number and self._down.compresses:
            return "held"
        follows = known.number == number - 1 and not several and self._published[2] is not None
        return "difference" if follows else "whole"

    def _publish(self, number: Round, run_id: bytes) -> None:
        """Publish the latest model as `number`, with the difference to the one before, where there
        is one. A strategy that plays the rounds itself may change the model after clients have been
        asked to evaluate it, and begin again at any number: nobody holds such a model."""
        if self._down is None:
            self._down = Downlink(self.record.layout, run_id, self._codec)
        before, before_id, _ = self._published or (None, "", None)
        if (before, before_id) == (number, self._model_id):
            return
        difference = None
        if before == number:
            self._down.replace(self.model, number)
        else:
            difference = self._down.publish(self.model, number)
        if before is None or before != number - 1:
            for held in self._held.values():
                held.number = None
        self._published = number, self._model_id, difference

    def _packed_record(
        self, record: ArrayRecord, form: str, number: Round, private: bool, run_id: bytes
    ) -> tuple[RecordLayout, Vec, Mapping[str, Array]]:
        """Return a model's layout, the model, and what goes for it."""
        assert self._down is not None and self._published is not None
        if form == "own":
            fitting = self._fitting(record)
            layout = self.record if fitting is not None else RecordLayout.of(record, exact=not private)
            x, beside = layout.flatten(fitting or record)
            down = Downlink(layout.layout, run_id, codecs.get(FULL))
            down.publish(x, number)
            return layout, x, {FRAME: frame_array(down.whole(number), layout.layout), **beside}
        layout, x, beside = self.record, self.model, dict(self.beside)
        if self._down.compresses:
            arrays = conform(record, self._dtypes)
            beside |= {k: arrays[k] for k in layout.exact(x, x, self._exact)}
        if form == "held":
            return layout, x, beside
        frame = self._published[2] if form == "difference" else self._down.whole(number)
        assert frame is not None
        return layout, x, {FRAME: frame_array(frame, layout.layout), **beside}

    def was_sent(self, reply: Message) -> Sent | None:
        """Return what the message brought to which this is the answer, after which its client holds
        it for certain; None where the client was sent no model.

        Raises PeerError when it does not say, or nonsense."""
        node = reply.metadata.src_node_id
        said = reply.content.config_records.get(META)
        if said is None:
            if node not in self._held or not reply.content.array_records:
                return None
            raise PeerError(
                "the answer holds no compressed frame: its app needs the mod, ClientApp(mods=[compression_mod(codec, ...)])"
            )
        number = said.get("message")
        sent = self._sent.get(number) if isinstance(number, int) else None
        if sent is None or sent.message.metadata.dst_node_id != node:
            raise PeerError("the answer is to no message of this round or the one before")
        sent.held.certain = True
        return sent
