"""`compressed(strategy, codec)` wraps any Flower strategy; boards then answer in compressed changes
of the model.

What goes down is the model as a frame, whole and exact or, with `downlink`, as an encoded
difference to the one that a board has (`engine/server_frames.py`). What comes up is a board's
encoded change, which is decoded, checked and added to the model before the strategy sees it; so
FedAvg averages models, FedMedian takes medians of models, and so on, each as Flower wrote it. A
reply that does not stand the checks is refused and the strategy never sees it.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)
from typing_extensions import override

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.engine.combine import Combined, Mean, WeightedUpdate
from edgegossip.engine.plausible import MAX_EXAMPLES, Examples, NormFilter, ServerLevels, check_reported, length
from edgegossip.engine.server_frames import FULL, Channel, Downlink, finite_sum
from edgegossip.flower.messages import FRAME, STYPE, frame_array
from edgegossip.flower.records import (
    CLIPPING_NORM,
    META,
    RecordLayout,
    all_finite,
    by_hash,
    conform,
    from_hash,
    split_frame,
)
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import PeerError, Round, UsageError, Vec
from edgegossip.untrusted import printable

Refused = Callable[[Message, str], None]
_PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
# What Flower's mods say that come before ours: there are two configs then, and a frame for arrays.
_MET_A_FRAME = ("expects exactly one ConfigRecord", "expects the keys in the ArrayRecord", STYPE)
_HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


def compressed(
    strategy: Strategy,
    codec: Codec[Any],
    *,
    downlink: Codec[Any] | None = None,
    run_id: bytes | None = None,
    on_refused: Refused | None = None,
) -> CompressedStrategy:
    """Wrap `strategy` so that updates travel as `codec` makes them.

        strategy = compressed(FedAvg(), codecs.get("co3"))  # 2 to 3 bits a value

    Boards need `compression_mod` with the same codecs.

    `downlink`: codec of what goes down, as differences; without one models go down whole. `run_id`
    (16 bytes) tells one run's frames from another's; by default it is derived from Flower's id of
    the run. `on_refused(reply, reason)` hears of every reply that was not used; by default a
    warning is logged. `.traffic` says what has travelled. Wrap last:
    `compressed(DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...), codec)`. Raises
    ConfigError for a downlink codec with error feedback of its own.
    """
    return CompressedStrategy(strategy, codec, run_id, on_refused, downlink)


class CompressedStrategy(Strategy):
    """Wraps a strategy; see `compressed`.

    What is not its own (`traffic`, `inner`) is the wrapped strategy's, to read and to set. Like
    every Flower strategy it keeps the state of one run. Model number k is that after Flower's round
    k; boards train from number k in round k + 1, and their frames have round k."""

    def __init__(
        self,
        strategy: Strategy,
        codec: Codec[Any],
        run_id: bytes | None = None,
        on_refused: Refused | None = None,
        downlink: Codec[Any] | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise UsageError(
                f"{type(strategy).__name__} is no strategy of flwr.serverapp: those of flwr.server, which secure aggregation "
                "plays, go uncompressed, without edgegossip"
            )
        self.traffic = Traffic()
        self._codec = codec
        self._on_refused = on_refused or _log_refused
        self._levels = ServerLevels.of(codec)
        self._sender = ModelSender(downlink or codecs.get(FULL), run_id, self.traffic)
        self._mean_of: Mean | None = None
        self._proportion = NormFilter()
        self._privacy = Privacy(hides=False, most=None)
        self._train, self._evaluate = (ReplySchemas(), ReplyWeights()), (ReplySchemas(), ReplyWeights())
        self._told_order = False
        self._own: dict[str, Callable[..., Any]] = {}  # the wrapped strategy's methods while ours stand in their place
        self.inner = strategy

    def __getattr__(self, name: str) -> Any:
        if "inner" not in self.__dict__ or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        ours = "inner" not in self.__dict__ or name in self.__dict__ or hasattr(type(self), name)
        if ours or not hasattr(self.inner, name):
            super().__setattr__(name, value)
        else:
            setattr(self.inner, name, value)

    @override
    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Play all rounds: as Flower does, or as the wrapped strategy does where it has a way of
        its own."""
        if type(self.inner).start is Strategy.start:
            return super().start(*args, **kwargs)
        with self._patched():
            return self.inner.start(*args, **kwargs)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Put our methods in place of its own while a strategy plays the rounds itself; ours call
        its."""
        before = {name: vars(self.inner)[name] for name in _HOOKS if name in vars(self.inner)}
        self._own = {name: getattr(self.inner, name) for name in _HOOKS}
        try:
            for name in _HOOKS:
                setattr(self.inner, name, getattr(self, name))
            yield
        finally:
            self._own = {}
            for name in _HOOKS:
                delattr(self.inner, name)
            vars(self.inner).update(before)

    def _inner_method(self, name: str) -> Callable[..., Any]:
        """Return the wrapped strategy's own method."""
        return self._own.get(name) or getattr(self.inner, name)

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sender.begin(arrays, private=_is_private(self.inner))
        hides = _is_private(self.inner)
        shown = self._sender.coded(arrays) if hides else arrays
        messages = list(self._inner_method("configure_train")(server_round, shown, config, grid))
        for message in messages if shown is not arrays else ():
            for name, record in message.content.array_records.items():
                if record.object_id == shown.object_id:
                    message.content[name] = arrays
        self._privacy = Privacy(hides, _clipping_norm(messages))
        if self._levels is not None and self._privacy:
            raise UsageError(
                f"codec {self._codec.name} chooses levels from every client's loss, which no noise hides: with differential "
                "privacy take one whose levels are fixed, such as 4-bit-elastiquant"
            )
        return self._sender.packed(messages, server_round - 1, self._levels)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sender.begin(arrays, private=_is_private(self.inner))
        messages = self._inner_method("configure_evaluate")(server_round, arrays, config, grid)
        return self._sender.packed(messages, server_round, self._levels)

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self._tell_order(replies)
        self._sender.acknowledged(replies, server_round - 1)
        checked = self._checked(replies, server_round - 1)
        method = self._inner_method("aggregate_train")
        made: tuple[ArrayRecord | None, MetricRecord | None]
        if getattr(method, "__func__", None) is FedAvg.aggregate_train and not self._privacy:
            made = self._mean(server_round, checked)
        else:
            plain = self._plain(checked)
            same = self._unchanged(plain) if _is_flowers(method) and not self._privacy else {}
            made = method(server_round, plain)
            if made[0] is not None and self._privacy.hides:
                made = self._sender.completed(made[0]), made[1]
            elif made[0] is not None:  # FedAdam and its kin make NaN of infinity less infinity
                made[0].update(same)
        ratio = self.traffic.ratio
        logging.getLogger("flwr").info(
            "edgegossip: round %d: %.1f times fewer bytes than fp32 so far", server_round, ratio
        )
        return made

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        self._sender.acknowledged(replies, server_round)
        good: list[Message] = []
        for reply in replies:
            try:
                if not reply.has_error():
                    self._open_evaluation(reply, server_round)
                good.append(reply)
            except PeerError as error:
                self._on_refused(reply, str(error))
        metrics: MetricRecord | None = self._inner_method("aggregate_evaluate")(
            server_round, self._compatible(good, *self._evaluate)
        )
        return metrics

    @override
    def summary(self) -> None:
        self.inner.summary()

    def _checked(self, replies: Sequence[Message], number: Round) -> list[tuple[Message, Frame | None]]:
        """Return replies with their frames, not decoded yet; failed ones without; refused ones are
        left out."""
        frames: dict[int, Frame] = {}
        good: list[Message] = []
        for reply in replies:
            try:
                if not reply.has_error():
                    frames[id(reply)] = self._check(reply, number)
                good.append(reply)
            except PeerError as error:
                self._on_refused(reply, str(error))
        return [(reply, frames.get(id(reply))) for reply in self._compatible(good, *self._train)]

    def _tell_order(self, replies: Sequence[Message]) -> None:
        """Say once what a mod that met a frame in place of arrays does not say itself."""
        reasons = {r.metadata.src_node_id: r.error.reason or "" for r in replies if r.has_error()}
        found = [(node, reason) for node, reason in reasons.items() if any(word in reason for word in _MET_A_FRAME)]
        if found and not self._told_order:
            self._told_order = True
            logging.getLogger("edgegossip.flower").warning(
                "node %d: %s; compression_mod has to come before mods that work on arrays: mods=[compression_mod(...), ...]",
                found[0][0],
                printable(found[0][1], 500),
            )

    def _compatible(self, replies: Sequence[Message], schemas: ReplySchemas, weights: ReplyWeights) -> list[Message]:
        """Leave out those that Flower's strategies cannot take together with the others, or that
        would drown them. One of the user's own takes what it likes."""
        if (key := _weighted_by(self.inner)) is None:
            return list(replies)
        good = [reply for reply in replies if not reply.has_error()]
        for refused in (schemas.refused, lambda some: weights.refused(some, key)):
            bad = refused(good)
            for k, reason in bad.items():
                self._on_refused(good[k], reason)
            good = [reply for k, reply in enumerate(good) if k not in bad]
        kept = {id(reply) for reply in good}
        return [reply for reply in replies if reply.has_error() or id(reply) in kept]

    def _open_evaluation(self, reply: Message, number: Round) -> None:
        """Check what a client found, and put its model in place of the frame where it sent one."""
        if not any(FRAME in record for record in reply.content.array_records.values()):
            self._check_metrics(reply)
            return
        frame = self._check(reply, number)
        model = finite_sum(self._sender.model, self._codec.decode(frame.body, self._sender.record.layout))
        reply.content = self._with(reply, partial(self._sender.record.restore, model))

    def _check_metrics(self, reply: Message) -> None:
        require_finite(reply)
        if (key := _weighted_by(self.inner)) is not None:
            weight(reply, key)

    def _check(self, reply: Message, number: Round) -> Frame:
        """Return the frame of a reply, and put arrays in the place of their hashes."""
        records = reply.content.array_records
        if len(records) != 1 and (_is_flowers(self._inner_method("aggregate_train")) or not records):
            raise PeerError(f"the reply has {len(records)} array records instead of one")
        name = next((name for name, record in records.items() if FRAME in record), next(iter(records)))
        data, rest = split_frame(records[name])
        sent = self._sender.sent_to(reply.metadata.src_node_id)
        whole = {k: from_hash(rest if k == name else record, sent.arrays) for k, record in records.items()}
        self._sender.record.check_beside(whole[name], sent.beside, sent.arrays)
        self._check_metrics(reply)
        frame = self._channel(reply).check(data, Kind.UPDATE, number)
        check_reported(frame, self._levels is not None)
        self.traffic.up_bytes += sum(map(_bytes, records.values()))
        self.traffic.plain_bytes += 4 * self._channel(reply).layout.size + sum(map(_bytes, whole.values()))
        whole[name][FRAME] = records[name][FRAME]
        reply.content = RecordDict({**reply.content, **{k: ArrayRecord(arrays) for k, arrays in whole.items()}})
        return frame

    def _channel(self, message: Message) -> Channel:
        return Channel.of(self._sender.record.layout, self._sender.run_id(message), self._codec)

    def _plain(self, checked: Sequence[tuple[Message, Frame | None]]) -> list[Message]:
        """Return replies with plain models, as `inner` aggregates them.

        It counts failed ones itself."""
        deltas: dict[int, Vec] = {}
        refused: dict[int, str] = {}
        for k, (_, frame) in enumerate(checked):
            try:
                if frame is not None:
                    deltas[k] = self._codec.decode(frame.body, self._sender.record.layout)
            except PeerError as error:
                refused[k] = str(error)
        names = [str(reply.metadata.src_node_id) for reply, _ in checked]
        lengths = {names[k]: length(delta) for k, delta in deltas.items()}
        bad = {} if self._privacy else self._proportion.refused(lengths, self._sender.model)
        refused |= {k: bad[names[k]] for k in deltas if names[k] in bad}
        for k in sorted(deltas.keys() - refused.keys()):
            try:
                reply, model = checked[k][0], self._moved(deltas.pop(k))
                reply.content = self._with(reply, partial(self._restored, model))
            except PeerError as error:
                refused[k] = str(error)
        for k in sorted(refused):
            self._on_refused(checked[k][0], refused[k])
        used = {name: v for name, v in lengths.items() if name not in {names[k] for k in refused}}
        self._proportion.used(used, self._sender.model)
        self._learn([frame for k, (_, frame) in enumerate(checked) if frame is not None and k not in refused])
        return [reply for k, (reply, _) in enumerate(checked) if k not in refused]

    def _moved(self, delta: Vec) -> Vec:
        """Return the model after an update, which is cut where it is longer than allowed. Measured
        is what the strategy will see: a sum of floats can be longer than what was added."""
        x, most = self._sender.model, self._privacy.most
        if most is None:
            return finite_sum(x, delta)
        norm = length(delta)
        for k in range(-12, 1):
            if norm > most:
                delta *= np.float32(most / norm * (1 - 4.0**k))
            model = finite_sum(x, delta)
            change = np.subtract(self._sender.record.rounded(model), x, dtype=np.float64)
            if (norm := math.sqrt(np.einsum("i,i->", change, change))) <= most:
                return model
        return x

    def _restored(self, model: Vec, rest: Mapping[str, Array]) -> ArrayRecord:
        """Return a model as the strategy may see it: what was not clipped, or noise does not hide,
        is as it was sent, or not there."""
        whole = self._sender.record.restore(model, self._sender.beside if self._privacy else rest)
        return self._sender.coded(whole) if self._privacy.hides else whole

    def _with(self, reply: Message, restore: Callable[[dict[str, Array]], ArrayRecord]) -> RecordDict:
        content = RecordDict(dict(reply.content))
        for name, record in reply.content.array_records.items():
            if FRAME in record:
                content[name] = restore(split_frame(record)[1])
        content.pop(META, None)
        return content

    def _mean(
        self, server_round: int, checked: Sequence[tuple[Message, Frame | None]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average as plain FedAvg does, without a model a board.

        Flower averages the arrays beside the frames that any board changed, whatever their type,
        and counts and logs failed replies."""
        key = self.inner.weighted_by_key  # type: ignore[attr-defined]
        failed = [reply for reply, frame in checked if frame is None]
        framed = {str(r.metadata.src_node_id): (r, frame) for r, frame in checked if frame is not None}
        shares = [WeightedUpdate(k, frame, weight(reply, key)) for k, (reply, frame) in framed.items()]
        made = Combined(None, {})
        if shares:
            self._mean_of = self._mean_of or Mean(self._channel(checked[0][0]))
            made = self._mean_of.combine(server_round - 1, self._sender.model, shares)
        for k, reason in made.refused.items():
            self._on_refused(framed[k][0], reason)
        used = [framed[k] for k in framed if made.model is not None and k not in made.refused]
        same = self._unchanged([reply for reply, _ in used])
        for reply, _ in used:
            reply.content = self._with(
                reply, lambda rest: ArrayRecord({k: a for k, a in rest.items() if k not in same})
            )
        self._learn([frame for _, frame in used])
        arrays, metrics = self._inner_method("aggregate_train")(server_round, [*(reply for reply, _ in used), *failed])
        if made.model is None:
            return None, None
        return self._sender.record.restore(made.model, {**same, **(arrays or {})}), metrics

    def _unchanged(self, replies: Sequence[Message]) -> dict[str, Array]:
        """Return the arrays that go as they are and are in all replies as they were sent."""
        answered = [record for r in replies if not r.has_error() for record in r.content.array_records.values()]
        beside = self._sender.beside
        return {k: a for k, a in beside.items() if all(record[k].object_id == a.object_id for record in answered)}

    def _learn(self, frames: Sequence[Frame]) -> None:
        """Choose levels for the next round, from updates that counted."""
        if self._levels is not None:
            needed = {Aux.LOSS, Aux.EXAMPLES, Aux.LEARNING_RATE}
            self._levels = self._levels.after([frame for frame in frames if needed <= frame.aux.keys()])


@dataclass(frozen=True, slots=True)
class Privacy:
    """Says what a round's differential privacy asks of us, and is false where there is none.

    A codec's rounding, and the error memory of clients, make an update longer than its client
    clipped it. The noise is for a sum that no client moves by more than the clipping norm, so
    updates are clipped once they are decoded; whatever a client remembers of earlier rounds is in
    that norm, too. For the same reason nothing that noise does not hide may depend on a client: no
    update is refused because others are shorter, and what no codec sees stays as the server has
    it."""

    hides: bool  # the strategy sees coded arrays alone: others have no norm and take no noise
    most: float | None  # the norm that clients clip to; the strategy's own clipping comes later

    def __bool__(self) -> bool:
        return self.hides or self.most is not None


def _clipping_norm(messages: Sequence[Message]) -> float | None:
    """Return the norm that the clients of a round are told to clip to."""
    configs = (config for message in messages for config in message.content.config_records.values())
    norms = [value for config in configs if isinstance(value := config.get(CLIPPING_NORM), (int, float))]
    return min(norms, default=None)


def _is_private(strategy: Any) -> bool:
    """Return whether a strategy, or one that it wraps, is of Flower's for differential privacy."""
    return isinstance(strategy, _PRIVATE) or (hasattr(strategy, "strategy") and _is_private(strategy.strategy))


def _weighted_by(strategy: Any) -> str | None:
    """Return the metric that Flower's strategies weight by; of wrappers, that of what they wrap.

    None: it has none."""
    inner = getattr(strategy, "strategy", None)
    key = getattr(strategy, "weighted_by_key", None) or getattr(inner, "weighted_by_key", None)
    return key if isinstance(key, str) else None


def _bytes(arrays: Mapping[str, Array]) -> int:
    return sum(len(array.data) for array in arrays.values())


def _is_flowers(method: Callable[..., Any]) -> bool:
    """Return whether a strategy's method is as Flower wrote it."""
    return str(getattr(method, "__module__", "")).startswith("flwr.")


def _log_refused(reply: Message, reason: str) -> None:
    logging.getLogger("edgegossip.flower").warning(
        "refused the answer of node %d: %s", reply.metadata.src_node_id, reason
    )


# -- what goes down: each model whole or as a difference, by what a board has already


@dataclass(slots=True)
class Traffic:
    """Counts bytes of models so far, with what travels beside their frames, and what the same would
    have been without edgegossip, as fp32."""

    down_bytes: int = 0
    up_bytes: int = 0
    plain_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times smaller than fp32 that is."""
        return self.plain_bytes / max(1, self.down_bytes + self.up_bytes)


@dataclass(slots=True)
class Sent:
    """Holds what messages of one round brought a board besides frames."""

    beside: Mapping[str, Array]  # of its model
    arrays: dict[str, Array]  # of all records, by hash
    kept: set[str]  # hashes of those that it keeps once it has answered


class ModelSender:
    """Makes what the boards of one run are sent, and knows what they hold of it."""

    def __init__(self, codec: Codec[Any], run_id: bytes | None, traffic: Traffic) -> None:
        self._codec, self._given_run_id, self._traffic = codec, run_id, traffic
        self._down: Downlink | None = None
        self._record: RecordLayout | None = None
        self._dtypes: dict[str, str] = {}  # of the first model's arrays
        self._model: Vec | None = None
        self._model_id = ""  # its object id
        self._holds: dict[int, Round] = {}  # node -> number of the model that it has for certain
        self._apart: set[int] = set()  # nodes that were last sent something else than the reference
        self._sent: dict[int, Sent] = {}  # node -> what it was sent last
        self._keeps: dict[int, set[str]] = {}  # node -> hashes of arrays that it has for certain
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
        """Take the latest model, as the strategy has it. `private`: what is not coded is not
        trained, so all is that can be."""
        if self._record is None:
            self._record = RecordLayout.of(arrays, exact=not private)
            self._dtypes = {name: array.dtype for name, array in arrays.items()}
        self._model, self.beside = self._record.flatten(conform(arrays, self._dtypes))
        self._model_id = arrays.object_id

    def coded(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what codecs see of a model."""
        return ArrayRecord({k: a for k, a in arrays.items() if k not in self.beside}) if self.beside else arrays

    def completed(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return a model of which these are the arrays that codecs see, with the others as they
        are."""
        return ArrayRecord({k: arrays[k] if k in arrays else self.beside[k] for k in self.record.specs})

    def packed(self, messages: Iterable[Message], number: Round, levels: ServerLevels | None) -> list[Message]:
        """Return the same messages with frames for models.

        Each distinct frame is made once, however many boards get it."""
        done: dict[tuple[str, str], ArrayRecord] = {}
        out = list(messages)
        keeps = {message.metadata.dst_node_id: self._keeps.pop(message.metadata.dst_node_id, set()) for message in out}
        for node in keeps:
            self._sent.pop(node, None)
        for message in out:
            if not (records := message.content.array_records):
                continue
            run_id, node = self.run_id(message), message.metadata.dst_node_id
            if self._down is None:
                self._down = Downlink(self.record.layout, run_id, self._codec)
            difference = self._publish(number)
            name = self._model_in(records)
            ours = records[name].object_id == self._model_id
            held = ours and self._down.compresses and self._holds.get(node) == number
            follows = ours and difference is not None and self._holds.get(node) == number - 1
            form = "held" if held else "difference" if follows else "whole"
            (self._apart.discard if ours else self._apart.add)(node)
            if not ours:
                self._holds.pop(node, None)
            key = (records[name].object_id, form)
            if key not in done:
                done[key] = self._packed_record(records[name], form, difference, number, run_id)
            plain = {**records, name: done[key]}
            self._note(node, name, plain)
            small = {k: by_hash(record, keeps[node]) for k, record in plain.items()}
            self._traffic.down_bytes += sum(map(_bytes, small.values()))
            meta = self._meta(name, number, run_id, held, levels)
            message.content = RecordDict(
                {**message.content, **{k: ArrayRecord(arrays) for k, arrays in small.items()}, META: meta}
            )
        return out

    def _model_in(self, records: Mapping[str, ArrayRecord]) -> str:
        """Return the name of the record that is a model: the latest one, or one like it. Where none
        is, the first one is what its reader complains of."""
        latest = [name for name, record in records.items() if record.object_id == self._model_id]
        return next(iter([*latest, *(name for name, record in records.items() if self.record.fits(record)), *records]))

    def _note(self, node: int, name: str, records: Mapping[str, ArrayRecord]) -> None:
        """Take note of what a board is sent as it is. Of several messages in a round it keeps the
        arrays of the one that it read last, whichever that is."""
        plain = {k: {n: a for n, a in record.items() if n != FRAME} for k, record in records.items()}
        arrays = {a.object_id: a for record in plain.values() for a in record.values()}
        sent = self._sent.setdefault(node, Sent({}, {}, set(arrays)))
        sent.beside, sent.arrays, sent.kept = plain[name], sent.arrays | arrays, sent.kept & arrays.keys()
        self._traffic.plain_bytes += 4 * self.record.layout.size + sum(map(_bytes, plain.values()))

    def sent_to(self, node: int) -> Sent:
        """Return what a board was sent last."""
        return self._sent.get(node) or Sent(self.beside, {}, set())

    def _publish(self, number: Round) -> Frame | None:
        """Publish the latest model as `number`; return the difference to the one before, where
        there is one. A strategy that plays the rounds itself may change the model after boards have
        been asked to evaluate it, and begin again at any number: nobody holds such a model."""
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
            difference = self._down.publish(self.model, number)
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

    def _meta(self, name: str, number: Round, run_id: bytes, held: bool, levels: ServerLevels | None) -> ConfigRecord:
        fields: dict[str, Any] = {
            "layout": self.record.to_json(),
            "record": name,
            "run-id": run_id,
            "number": number,
            "held": held,
        }
        if levels is not None and levels.levels:
            fields["levels"] = levels.levels
        return ConfigRecord(fields)

    def acknowledged(self, replies: Sequence[Message], number: Round) -> None:
        """Take note that who answered holds the model that it was asked about, and the arrays that
        came beside it."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if not reply.has_error():
                self._keeps[node] = self.sent_to(node).kept
            if reply.has_error() or node in self._apart:
                self._holds.pop(node, None)
            else:
                self._holds[node] = number


# -- replies that do not go with the others: Flower's strategies end the app at the first whose
# metrics or records are not those of the rest, so it is refused before they see it

# The names of its array records; then of each metric record its name, and metrics with their sizes.
ReplySchema = tuple[tuple[str, ...], ...]


def weight(reply: Message, key: str) -> float:
    """Return what strategies weight a reply by.

    Raises PeerError when it does not say, or nonsense."""
    metrics = next(iter(reply.content.metric_records.values()), None)
    value = None if metrics is None else metrics.get(key)
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PeerError(f"the reply has no metric {key!r} above 0 to weight it by")
    if value > MAX_EXAMPLES:
        raise PeerError(f"the reply claims {key!r} = {value:g}, more than {MAX_EXAMPLES:g}")
    return float(value)


class ReplyWeights:
    """Judges what replies of one kind claim to weigh, round after round, by Flower's id of who sent
    them."""

    def __init__(self) -> None:
        self._examples = Examples[int]()

    def refused(self, replies: Sequence[Message], key: str) -> dict[int, str]:
        """Return which of these replies (by their place), whose weights are sound, would drown the
        others, and why."""
        claims = {reply.metadata.src_node_id: weight(reply, key) for reply in replies}
        reasons = self._examples.refused(claims)
        self._examples.used({node: claim for node, claim in claims.items() if node not in reasons})
        found = {k: reasons.get(reply.metadata.src_node_id, "") for k, reply in enumerate(replies)}
        return {k: reason for k, reason in found.items() if reason}


def require_finite(reply: Message) -> None:
    """Raise PeerError unless every metric in a reply is finite."""
    if not all(all_finite(metrics) for metrics in reply.content.metric_records.values()):
        raise PeerError("a metric in the reply is not a finite number")


class ReplySchemas:
    """Judges what replies of one kind look like, round after round."""

    def __init__(self) -> None:
        self._usual: ReplySchema | None = None

    def refused(self, replies: Sequence[Message]) -> Mapping[int, str]:
        """Return which of these replies (by their place) are not like most of the others, and why.

        Where as many look one way as another, those are right that look as they did in the round
        before."""
        schemas = [_schema(reply) for reply in replies]
        if not schemas:
            return {}
        counts = Counter(schemas)
        most = max(counts.values())
        best = [form for form, count in counts.items() if count == most]
        usual = self._usual if self._usual in best else best[0]
        self._usual = usual
        return {k: _difference(form, usual) for k, form in enumerate(schemas) if form != usual}


def _schema(reply: Message) -> ReplySchema:
    arrays = tuple(sorted(reply.content.array_records))
    metrics = []
    for name, record in sorted(reply.content.metric_records.items()):
        sizes = (f"{key} ({len(value)} values)" if isinstance(value, list) else key for key, value in record.items())
        metrics.append((name, *sorted(sizes)))
    return (arrays, *metrics)


def _difference(form: ReplySchema, usual: ReplySchema) -> str:
    ours, theirs = ({word for words in one for word in words} for one in (form, usual))
    more, less = (", ".join(map(repr, sorted(words))) for words in (ours - theirs, theirs - ours))
    found = [f"it lacks {less}" if less else "", f"it has {more} besides" if more else ""]
    return "the reply is not like the others': " + printable(
        " and ".join(filter(None, found)) or "in other records", 500
    )
