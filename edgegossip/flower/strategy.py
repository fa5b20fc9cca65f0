"""`compressed(strategy, codec)` wraps any Flower strategy; boards then answer in compressed changes
of the model.

What goes down is made by `sending.py`. What comes up is a board's encoded change, which is decoded,
checked and added to the model that the board was sent, before the strategy sees it; so FedAvg
averages models, FedMedian takes medians of models, and so on, each as Flower wrote it. In place of
a reply that does not stand the checks the strategy sees that its board failed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from typing_extensions import override

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.engine.plausible import NormFilter, ServerLevels, check_reported, length
from edgegossip.engine.server_frames import FULL, Channel, finite_sum
from edgegossip.flower.messages import FRAME, STYPE
from edgegossip.flower.records import META, STATISTICS, from_hash, split_frame
from edgegossip.flower.replies import Judge, core_of, failed, is_flowers
from edgegossip.flower.sending import ModelSender, ModelTraffic, Sent, size_of
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import PeerError, UsageError, Vec
from edgegossip.untrusted import printable

Refused = Callable[[Message, str], None]
CLIPPING_NORM = "clipping_norm"  # in the config of what goes down: Flower's clients clip to it
# What apps and Flower's mods say that meet a frame for arrays, and a second config.
_MET_A_FRAME = ("expects exactly one ConfigRecord", "expects the keys in the ArrayRecord", STYPE, f'"{FRAME}"')
_OTHER_CODEC = "the peer sent"  # says an end whose codec is not the other's
_HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


def compressed(
    strategy: Strategy,
    codec: Codec[Any],
    *,
    downlink: Codec[Any] | None = None,
    run_id: bytes | None = None,
    on_refused: Refused | None = None,
    exact: Collection[str] = STATISTICS,
) -> CompressedStrategy:
    """Wrap `strategy` so that updates travel as `codec` makes them.

        strategy = compressed(FedAvg(), codecs.get("co3"))  # 2 to 3 bits a value

    Boards need `compression_mod` with the same codecs.

    `downlink`: codec of what goes down, as differences; without one models go down whole. `run_id`
    (16 bytes) tells one run's frames from another's; by default it is derived from Flower's id of
    the run. `on_refused(reply, reason)` hears of every reply that was not used; by default a
    warning is logged. `exact`: patterns of names, such as `"*.running_var"`, of arrays that travel
    as they are; so do those that are nowhere negative. `.traffic` says what has travelled. Wrap
    last: `compressed(DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...), codec)`. Raises
    ConfigError for a downlink codec with error feedback of its own.
    """
    return CompressedStrategy(strategy, codec, run_id, on_refused, downlink, exact)


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
        exact: Collection[str] = STATISTICS,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise UsageError(
                f"{type(strategy).__name__} is no strategy of flwr.serverapp: those of flwr.server, which secure aggregation "
                "plays, go uncompressed, without edgegossip"
            )
        self.traffic = ModelTraffic()
        self._codec = codec
        self._on_refused = on_refused or _log_refused
        self._levels = ServerLevels.of(codec)
        self._sender = ModelSender(downlink or codecs.get(FULL), run_id, self.traffic, exact)
        self._proportion = NormFilter()
        self._privacy = Privacy(hides=False, most=None)
        self._train, self._evaluate = Judge("train_metrics_aggr_fn"), Judge("evaluate_metrics_aggr_fn")
        self._told = False  # that apps are wired wrongly
        self._heard = set[str]()  # hooks of whose messages a mod of ours has answered some
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
        hides = _adds_noise(self.inner)
        self._sender.begin(arrays, private=hides)
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
        return self._packed(messages, server_round - 1)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sender.begin(arrays, private=_adds_noise(self.inner))
        return self._packed(self._inner_method("configure_evaluate")(server_round, arrays, config, grid), server_round)

    def _packed(self, messages: Iterable[Message], number: int) -> list[Message]:
        key = getattr(core_of(self.inner), "arrayrecord_key", "")
        return self._sender.packed(messages, number, self._levels, key, bool(self._privacy))

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        plain = self._opened(list(replies), "aggregate_train", self._train)
        method = self._inner_method("aggregate_train")
        same = self._unchanged(plain) if is_flowers(method) and not self._privacy else {}
        if getattr(method, "__func__", None) is FedAvg.aggregate_train:  # the mean needs no other arrays
            _remove(same, plain)
        arrays: ArrayRecord | None
        arrays, metrics = method(server_round, plain)
        if arrays is not None and self._privacy.hides:
            arrays = self._sender.completed(arrays)
        elif arrays is not None and same:  # FedAdam and its kin make NaN of infinity less infinity
            both = {**arrays, **same}
            arrays = ArrayRecord({k: both[k] for k in [*self._sender.record.specs, *both] if k in both})
        ratio = self.traffic.ratio
        logging.getLogger("flwr").info(
            "edgegossip: round %d: %.1f times fewer bytes than fp32 so far", server_round, ratio
        )
        return arrays, metrics

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        plain = self._opened(list(replies), "aggregate_evaluate", self._evaluate)
        metrics: MetricRecord | None = self._inner_method("aggregate_evaluate")(server_round, plain)
        return metrics

    @override
    def summary(self) -> None:
        self.inner.summary()

    def _opened(self, replies: Sequence[Message], hook: str, judge: Judge) -> list[Message]:
        """Return replies with plain models, as the wrapped strategy aggregates them. It counts
        those that failed, as does each that is refused here."""
        sent: dict[int, Sent] = {}
        frames: dict[int, Frame] = {}
        lengths: dict[int, float] = {}
        good: dict[int, Message] = {}
        refused: dict[int, str] = {}
        for k, reply in enumerate(replies):
            if reply.has_error():
                continue
            try:
                if (to := self._sender.was_sent(reply)) is not None:
                    sent[k] = to
                    if (opened := self._open(reply, to, bool(self._privacy) and judge is self._train)) is not None:
                        frames[k], lengths[k] = opened
                good[k] = reply
            except PeerError as error:
                refused[k] = str(error)
        self._heard.update([hook] if sent else [])
        self._tell(replies, hook)
        core = core_of(self.inner)
        method = self._inner_method(hook) if core is self.inner else getattr(core, hook)
        refused |= judge.refused(good, core, method)
        if judge is self._train:
            refused |= self._out_of_proportion({k: v for k, v in lengths.items() if k not in refused}, replies)
            self._learn([frame for k, frame in frames.items() if k not in refused])
        for k in sorted(refused):
            self._on_refused(replies[k], refused[k])
        asked = {k: sent[k].message if k in sent else None for k in refused}
        return [failed(r, asked[k], refused[k]) if k in refused else r for k, r in enumerate(replies)]

    def _open(self, reply: Message, sent: Sent, private: bool) -> tuple[Frame, float] | None:
        """Put plain arrays in the place of a frame and hashes. Return the frame and how long the
        update is; None where there is no frame. `private`: noise is for its norm."""
        content, layout = RecordDict(dict(reply.content)), sent.layout
        said = content.pop(META)
        records = {k: from_hash(record, sent.arrays) for k, record in reply.content.array_records.items()}
        content.update({k: ArrayRecord(arrays) for k, arrays in records.items()})
        self.traffic.up_bytes += sum(len(a.data) for r in reply.content.array_records.values() for a in r.values())
        name = next((name for name, record in records.items() if FRAME in record), None)
        if name is None:
            self.traffic.plain_bytes += sum(map(size_of, records.values()))
            reply.content = content
            return None
        data, beside = split_frame(records[name])
        others = (record for k, record in records.items() if k != name)
        self.traffic.add_plain(layout, beside, others)
        layout.check_beside(beside, sent.beside, sent.arrays)
        channel = Channel.of(layout.layout, self._sender.run_id(reply), self._codec)
        frame = channel.check(data, Kind.UPDATE, sent.number)
        decoded = channel.codec.decode(frame.body, layout.layout)
        model = layout.overlaid(decoded if said.get("from-zero") else finite_sum(sent.x, decoded), beside)
        change = model - sent.x
        if private:
            beside = {k: a for k, a in sent.beside.items() if not layout.specs[k].coded}
            model = self._clipped(change, sent)
        without = said.get("without")
        record = layout.restore(model, beside, set(map(str, without)) if isinstance(without, list) else ())
        content[name] = self._sender.coded(record) if private and self._privacy.hides else record
        reply.content = content
        return frame, length(change)

    def _clipped(self, change: Vec, sent: Sent) -> Vec:
        """Return the model after an update, which is cut, in place, where it is longer than
        allowed. Measured is what the strategy will see: a sum of floats can be longer than what was
        added."""
        x, most = sent.x, self._privacy.most
        if most is None:
            return finite_sum(x, change)
        norm = length(change)
        for k in range(-12, 1):
            if norm > most:
                change *= np.float32(most / norm * (1 - 4.0**k))
            model = finite_sum(x, change)
            moved = np.subtract(sent.layout.rounded(model), x, dtype=np.float64)
            if (norm := math.sqrt(np.einsum("i,i->", moved, moved))) <= most:
                return model
        return x

    def _out_of_proportion(self, lengths: Mapping[int, float], replies: Sequence[Message]) -> dict[int, str]:
        """Return whose update would drown the others, and why. With differential privacy nobody
        hears of the others' lengths."""
        names = {k: str(replies[k].metadata.src_node_id) for k in lengths}
        longest = {names[k]: lengths[k] for k in sorted(lengths, key=lambda k: lengths[k])}
        bad = {} if self._privacy else self._proportion.refused(longest, self._sender.model)
        self._proportion.used({name: v for name, v in longest.items() if name not in bad}, self._sender.model)
        return {k: bad[name] for k, name in names.items() if name in bad}

    def _unchanged(self, replies: Sequence[Message]) -> dict[str, Array]:
        """Return the arrays that no codec sees and are in all replies as they were sent."""
        answered = [record for r in replies if not r.has_error() for record in r.content.array_records.values()]
        return {
            name: array
            for name, array in self._sender.beside.items()
            if all(name in record and record[name].object_id == array.object_id for record in answered)
        }

    def _learn(self, frames: Sequence[Frame]) -> None:
        """Choose levels for the next round, from updates that counted and claim what makes
        sense."""
        if self._levels is None:
            return
        claims = []
        for frame in frames:
            try:
                check_reported(frame, levels=True)
            except PeerError:
                continue
            if {Aux.LOSS, Aux.EXAMPLES, Aux.LEARNING_RATE} <= frame.aux.keys():
                claims.append(frame)
        self._levels = self._levels.after(claims)

    def _tell(self, replies: Sequence[Message], hook: str) -> None:
        """Say once what clients do not say that meet a frame in place of arrays, as their mod comes
        after others or is not there, or a frame of another codec."""
        words = [*_MET_A_FRAME, *(() if hook in self._heard else map(repr, self._sender.record.specs))]
        reasons = {r.metadata.src_node_id: r.error.reason or "" for r in replies if r.has_error()}
        both = "compressed and compression_mod need the same codec and the same downlink, at the server and in every client"
        before = (
            "compression_mod has to come before whatever reads arrays, in every client, in training and evaluation: "
            "ClientApp(mods=[compression_mod(codec, ...), ...])"
        )
        for node, reason in reasons.items():
            remedy = both if _OTHER_CODEC in reason else before if any(word in reason for word in words) else ""
            if remedy and not self._told:
                self._told = True
                logging.getLogger("edgegossip.flower").warning("node %d: %s; %s", node, printable(reason, 500), remedy)


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


def _remove(names: Collection[str], replies: Sequence[Message]) -> None:
    """Leave out arrays of these names."""
    for reply in replies:
        for name, record in reply.content.array_records.items() if reply.has_content() else ():
            reply.content[name] = ArrayRecord({k: a for k, a in record.items() if k not in names})


def _adds_noise(strategy: Any) -> bool:
    """Return whether a strategy, or one that it wraps, adds noise for differential privacy."""
    inner = getattr(strategy, "strategy", None)
    return hasattr(strategy, "noise_multiplier") or (isinstance(inner, Strategy) and _adds_noise(inner))


def _log_refused(reply: Message, reason: str) -> None:
    logging.getLogger("edgegossip.flower").warning(
        "refused the answer of node %d: %s", reply.metadata.src_node_id, reason
    )
