"""`compression_mod(codec)` makes a Flower ClientApp receive models as frames and answer with
compressed changes.

The app itself does not change: it finds plain arrays in the message and puts plain arrays into its
reply. What a codec remembers (error memory, levels) and the model that differences build on are
kept in Flower's own Context of the client, which outlives the process that Flower starts for each
message, on SuperNodes as in its simulation engine.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from numpy.typing import NDArray

from edgegossip import codecs
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.checkpoint.registry import RunContext, check_structure
from edgegossip.codecs.base import Codec, Ctx
from edgegossip.engine.plausible import ServerLevels, length
from edgegossip.engine.server_frames import FULL, Channel, Replica, frame_key
from edgegossip.flower.messages import FRAME, frame_array
from edgegossip.flower.records import (
    META,
    RecordLayout,
    by_hash,
    from_hash,
    require_finite_beside,
    split_frame,
)
from edgegossip.frame import Aux, Kind
from edgegossip.layout import Layout
from edgegossip.types import DecodeError, EdgegossipError, Round, UsageError, Vec

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]
# Our records in the client's Context, for each strategy of the run: its state, and the last
# message's arrays that came as they are, by hash.
STATE, ARRAYS = "edgegossip", "edgegossip-arrays"
STRATEGIES = 4  # of one run that a client remembers
LOSSES = ("train-loss", "train_loss", "loss")
RATES = ("lr", "learning-rate", "learning_rate")
EXAMPLES = ("num-examples", "num_examples")


def compression_mod(codec: Codec[Any], *, downlink: Codec[Any] | None = None) -> Mod:
    """Return a mod that sends a ClientApp's updates as `codec` makes them; the server wraps its
    strategy in `compressed` with the same codecs.

        app = ClientApp(mods=[compression_mod(codecs.get("co3"))])

    Put it first, before Flower's own mods, and on train and evaluate alike. Messages without a
    frame pass unchanged, with a warning where they hold arrays. Codecs that follow the training
    (elasticl) take the loss from the reply's metrics (`train-loss`, `train_loss` or `loss`) and the
    learning rate from the message's config (`lr`). The mod raises PeerError when the server sent
    something bad, and UsageError when the app returned values that are not finite, or for a codec
    that tells the loss among mods that hide it; Flower reports either to the server as a failed
    reply.
    """
    down, told = downlink or codecs.get(FULL), False

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        nonlocal told
        if not message.has_content() or META not in message.content.config_records:
            if message.has_content() and message.content.array_records and not told:
                told = True
                logging.getLogger("edgegossip.flower").warning(
                    "the server sends arrays uncompressed: wrap its strategy, strategy = compressed(strategy, codec, ...)"
                )
            return call_next(message, context)
        if ServerLevels.of(codec) is not None and _adds_noise(call_next):
            raise UsageError(
                f"codec {codec.name} tells the server the loss, which a mod for local differential privacy does not hide: take "
                "one whose levels are fixed, such as 4-bit-elastiquant"
            )
        request = _Request.of(message)
        client = _ClientState.of(context, request, codec, down)
        message.content, x = _opened(message.content, request, client)
        sent = dict(message.content.array_records[request.record])
        reply = call_next(message, context)
        if reply.has_content():
            rate = _learning_rate(message.content, reply.content)
            reply.content = _packed(reply, request, x, sent, client, rate)
        client.save(context)
        return reply

    return mod


def _adds_noise(call: Callable[..., Any]) -> bool:
    """Return whether a mod for local differential privacy is among those that this calls: Flower
    makes each call of a mod a function around it and the next."""
    if not inspect.isfunction(call) or not call.__module__.startswith("flwr."):
        return hasattr(call, "epsilon")
    return any(_adds_noise(part) for part in inspect.getclosurevars(call).nonlocals.values())


@dataclass(frozen=True, slots=True)
class _Request:
    """Holds what the server says of the run and this message."""

    layout: RecordLayout
    record: str  # that is the model
    run_id: bytes
    strategy: str  # which of the run's it is
    message: int  # the server's number of this one, which the answer has too
    number: Round  # of the model
    held: bool  # it comes without the model, because we have it
    private: bool  # what no codec sees stays as it is, for differential privacy
    exact: tuple[str, ...]  # patterns of arrays that travel as they are
    levels: int | None
    trains: bool

    @classmethod
    def of(cls, message: Message) -> _Request:
        meta: Mapping[str, Any] = message.content.config_records[META]
        kinds = {
            "layout": str,
            "run-id": bytes,
            "record": str,
            "number": int,
            "message": int,
            "exact": list,
            "strategy": str,
        }
        sound = all(isinstance(meta.get(key), kind) for key, kind in kinds.items())
        if not sound or meta["record"] not in message.content.array_records:
            raise DecodeError(f"the message's {META!r} record does not describe the model")
        levels = meta.get("levels")
        return cls(
            layout=RecordLayout.from_json(meta["layout"]),
            record=meta["record"],
            run_id=meta["run-id"],
            strategy=meta["strategy"],
            message=meta["message"],
            number=meta["number"],
            held=bool(meta.get("held")),
            private=bool(meta.get("private")),
            exact=tuple(map(str, meta["exact"])),
            levels=levels if isinstance(levels, int) else None,
            trains=message.metadata.message_type.partition(".")[0] == MessageType.TRAIN,
        )


@dataclass(slots=True)
class _ClientState:
    """Holds what this client remembers of a run's strategy from one message to the next. Each has a
    model of its own, and what a codec lost of one is no part of another."""

    strategy: str
    codec: Codec[Any]
    lossless: bool  # both ways
    run_id: bytes
    layout: str  # of the model, as its hash
    state: Any  # the codec's
    sent: int
    replica: Replica
    arrays: Mapping[str, Array]  # that came as they are, by hash

    @classmethod
    def of(cls, context: Context, request: _Request, codec: Codec[Any], down: Codec[Any]) -> _ClientState:
        layout = request.layout.layout
        arrays = dict(context.state.array_records.get(f"{ARRAYS}-{request.strategy}", {}))
        lossless = codec.wire_id == down.wire_id == codecs.get(FULL).wire_id

        def new() -> _ClientState:
            replica, identity = Replica(layout, request.run_id, down), f"{layout.hash:016x}"
            state = codec.init(layout)
            return cls(request.strategy, codec, lossless, request.run_id, identity, state, 0, replica, arrays)

        client, record = new(), context.state.get(f"{STATE}-{request.strategy}")
        same = {"run-id": client.run_id, "layout": client.layout}
        if isinstance(record, ConfigRecord) and same.items() <= record.items():
            try:
                client._restore(record, layout)
            except (EdgegossipError, KeyError, TypeError, ValueError) as error:
                logging.getLogger("edgegossip.flower").warning("what this client kept cannot be used: %s", error)
                return new()
        return client

    def _restore(self, record: Mapping[str, Any], layout: Layout) -> None:
        state = from_bytes(record["state"], RunContext(layout=layout))
        check_structure(state, self.codec.init(layout), layout)
        self.state, self.sent = state, int(record["sent"])
        if record["model"]:
            self.replica.restore(np.frombuffer(record["model"], np.float32).copy(), int(record["number"]))

    def save(self, context: Context) -> None:
        model, number = self.replica.kept
        record: dict[str, Any] = {
            "run-id": self.run_id,
            "layout": self.layout,
            "state": to_bytes(self.state),
            "sent": self.sent,
            "model": b"" if model is None else model.tobytes(),
            "number": -1 if number is None else number,
        }
        kept = context.state
        others = [k.removeprefix(f"{STATE}-") for k in kept.config_records if k.startswith(f"{STATE}-")]
        others = [k for k in others if k != self.strategy]
        for strategy in (self.strategy, *others[: 1 - STRATEGIES]):  # the latest comes last
            kept.pop(f"{STATE}-{strategy}", None)
            kept.pop(f"{ARRAYS}-{strategy}", None)
        arrays = {array.object_id: array for array in self.arrays.values()}
        kept[f"{STATE}-{self.strategy}"] = ConfigRecord(record)
        kept[f"{ARRAYS}-{self.strategy}"] = ArrayRecord(arrays)


def _opened(content: RecordDict, request: _Request, client: _ClientState) -> tuple[RecordDict, Vec]:
    """Return the message as the app sees it, and the model in it."""
    records: dict[str, Mapping[str, Array]] = dict(content.array_records)
    if request.held:
        x = client.replica.held(request.number)
    else:
        data, records[request.record] = split_frame(records[request.record])
        x = client.replica.open(data)[1]
    whole = {name: from_hash(record, client.arrays) for name, record in records.items()}
    client.arrays = {array.object_id: array for record in whole.values() for array in record.values()}
    plain = RecordDict({k: v for k, v in content.items() if k != META})
    for name, record in whole.items():
        plain[name] = request.layout.restore(x, record) if name == request.record else ArrayRecord(record)
    return plain, request.layout.overlaid(x, whole[request.record])


def _packed(
    reply: Message,
    request: _Request,
    x: Vec,
    sent: Mapping[str, Array],
    client: _ClientState,
    lr: float | None,
) -> RecordDict:
    """Return the reply with the change of the model in place of the model, and hashes in place of
    arrays that are as they came."""
    records, layout = reply.content.array_records, request.layout
    parts = {name: layout.parted(record) for name, record in records.items()}
    name = next((k for k in (request.record, *records) if k in parts and parts[k][0]), None)
    if request.private and records and (name is None or not layout.fits(records[name])):
        raise UsageError(
            "the arrays are not those that the server sent: names, shapes or dtypes differ, and with differential privacy "
            "each needs its share of the noise"
        )
    said: dict[str, Any] = {"message": request.message}
    small = {k: by_hash(record, client.arrays) for k, record in records.items()}
    if name is not None:
        inside, beside = parts[name]
        y = layout.layout.flatten({**layout.layout.views(x), **inside})
        if request.private:  # what no codec sees is in no norm: it stays as it was
            beside = {k: sent[k] for k in beside}
        for k in () if client.lossless else layout.exact(x, y, request.exact):
            if k in inside:
                del inside[k]
                beside[k] = records[name][k]
        require_finite_beside(beside, sent)
        without = [k for k in layout.specs if k not in inside and k not in beside]
        frame, said["from-zero"] = _frame(
            reply, request, x, inside, client, lr, [k for k in without if layout.specs[k].coded]
        )
        said["without"] = without
        small[name] = by_hash(beside, client.arrays) | {FRAME: frame}
    content = {**reply.content, **{k: ArrayRecord(arrays) for k, arrays in small.items()}}
    return RecordDict({**content, META: ConfigRecord(said)})


def _frame(
    reply: Message,
    request: _Request,
    x: Vec,
    inside: Mapping[str, NDArray[np.float32]],
    client: _ClientState,
    lr: float | None,
    unanswered: Collection[str],
) -> tuple[Array, bool]:
    """Return the frame of arrays that an app answered, and whether it holds them by themselves, and
    not what changed in them: so nothing is rounded where no codec rounds, and an app that answers
    differences has these coded, and not their distance from the model. `unanswered`: arrays that
    the app did not answer."""
    layout = request.layout.layout
    zeros = {k: np.zeros(view.shape, np.float32) for k, view in layout.views(x).items()}
    values = layout.flatten({**zeros, **inside})
    change = layout.flatten({**zeros, **{k: v - layout.views(x)[k] for k, v in inside.items()}})
    alone = client.lossless or length(values) < length(change)
    loss, examples = _metric(reply.content, LOSSES), _metric(reply.content, EXAMPLES)
    channel = Channel.of(layout, request.run_id, client.codec)
    key = frame_key(request.run_id, str(reply.metadata.src_node_id), request.number)
    ctx = Ctx(key=key, round=request.number, loss=loss, lr=lr or 0.0, levels=request.levels)
    known = {Aux.LOSS: loss, Aux.EXAMPLES: examples, Aux.LEARNING_RATE: lr}
    aux = {int(tag): value for tag, value in known.items() if value is not None}
    client.sent += 1
    # Nobody adds up what an evaluation answers, so it takes nothing from error memory.
    # What is owed of arrays that are not in the answer is for the next one that has them.
    zeros = {k: zeros[k] for k in unanswered}
    before = _overlaid(client.state, layout, zeros) if request.trains else client.codec.init(layout)
    frame, after = channel.frame(Kind.UPDATE, values if alone else change, before, ctx, client.sent, aux)
    if request.trains:
        client.state = _overlaid(after, layout, zeros, client.state)
    return frame_array(frame, layout), alone


def _overlaid(state: Any, layout: Layout, values: Mapping[str, NDArray[np.float32]], other: Any = None) -> Any:
    """Return a codec's state with these values of arrays wherever it holds a whole model's, or with
    the `other` state's where one is given and has such."""
    if isinstance(state, np.ndarray) and state.shape == (layout.size,) and values:
        theirs = layout.views(other) if isinstance(other, np.ndarray) else {}
        return layout.flatten({**layout.views(state), **{k: theirs.get(k, v) for k, v in values.items()}})
    if not is_dataclass(state) or isinstance(state, (type, Layout)) or not values:
        return state
    parts = {field.name: getattr(state, field.name) for field in fields(state) if field.init}
    return replace(state, **{k: _overlaid(v, layout, values, getattr(other, k, None)) for k, v in parts.items()})


def _metric(content: RecordDict, names: tuple[str, ...]) -> float | None:
    """Return the first finite number of one of these names in the reply's metrics."""
    for record in content.metric_records.values():
        for name in names:
            value = record.get(name)
            if isinstance(value, (int, float)) and np.isfinite(value):
                return float(value)
    return None


def _learning_rate(request: RecordDict, answered: RecordDict) -> float | None:
    """Return the learning rate from the message's config, or from the reply's metrics."""
    for record in request.config_records.values():
        for name in RATES:
            value = record.get(name)
            if isinstance(value, (int, float)) and np.isfinite(value):
                return float(value)
    return _metric(answered, RATES)
