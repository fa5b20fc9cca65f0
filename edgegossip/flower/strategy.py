"""`compressed(strategy, codec)`: any Flower strategy, with boards that answer in compressed changes of the model.

What goes down is the model as a frame, whole and exact or, with `downlink`, as an encoded difference to the one that a board has
(`downlink.py`). What comes up is a board's encoded change, which is decoded, checked and added to the model before the strategy
sees it; so FedAvg averages models, FedMedian takes medians of models, and so on, each as Flower wrote it. A reply that does
not stand the checks is refused and the strategy never sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower.averaging import Averaged, Averager, Share
from edgegossip.flower.channel import finite_sum
from edgegossip.flower.downlink import FULL
from edgegossip.flower.lengths import Proportion, length
from edgegossip.flower.outgoing import META, Outgoing, Traffic
from edgegossip.flower.payload import Channel
from edgegossip.flower.records import split_frame
from edgegossip.flower.replies import Forms, Weights, require_finite, weight
from edgegossip.flower.reported import check_reported
from edgegossip.flower.server_levels import ServerLevels
from edgegossip.frame import Aux, Frame, Kind
from edgegossip.types import PeerError, Round, Vec

Refused = Callable[[Message, str], None]
_HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


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
    """See `compressed`. What is not its own (`traffic`, `inner`) is the wrapped strategy's, to read and to set. Like every Flower
    strategy it keeps the state of one run. Model number k is that after Flower's round k; boards train from number k in round
    k + 1, and their frames have round k."""

    def __init__(
        self,
        strategy: Strategy,
        codec: Codec[Any],
        run_id: bytes | None = None,
        on_refused: Refused | None = None,
        downlink: Codec[Any] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self._codec = codec
        self._on_refused = on_refused or _log_refused
        self._levels = ServerLevels.of(codec)
        self._out = Outgoing(downlink or codecs.get(FULL), run_id, self.traffic)
        self._average: Averager | None = None
        self._proportion = Proportion()
        self._train, self._evaluate = (Forms(), Weights()), (Forms(), Weights())
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

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """All rounds: as Flower plays them, or as the wrapped strategy does where it has a way of its own."""
        if type(self.inner).start is Strategy.start:
            return super().start(*args, **kwargs)
        with self._in_its_place():
            return self.inner.start(*args, **kwargs)

    @contextmanager
    def _in_its_place(self) -> Iterator[None]:
        """A strategy that plays the rounds itself calls its own methods: meanwhile those are ours, which call its."""
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

    def _its(self, name: str) -> Callable[..., Any]:
        """The wrapped strategy's own method."""
        return self._own.get(name) or getattr(self.inner, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._out.begin(arrays)
        messages = self._its("configure_train")(server_round, arrays, config, grid)
        return self._out.packed(messages, server_round - 1, self._levels)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._out.begin(arrays)
        messages = self._its("configure_evaluate")(server_round, arrays, config, grid)
        return self._out.packed(messages, server_round, self._levels)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self._out.heard(replies, server_round - 1)
        checked = self._checked(replies, server_round - 1)
        if getattr(self._its("aggregate_train"), "__func__", None) is FedAvg.aggregate_train:
            made = self._mean(server_round, checked)
        else:
            made = self._its("aggregate_train")(server_round, self._plain(checked))
        _log(f"round {server_round}: {self.traffic.ratio:.1f} times fewer bytes than fp32 so far")
        return made

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        self._out.heard(replies, server_round)
        good: list[Message] = []
        for reply in replies:
            try:
                if not reply.has_error():
                    self._check_metrics(reply)
                good.append(reply)
            except PeerError as error:
                self._on_refused(reply, str(error))
        metrics: MetricRecord | None = self._its("aggregate_evaluate")(server_round, self._alike(good, *self._evaluate))
        return metrics

    def summary(self) -> None:
        self.inner.summary()

    def _checked(self, replies: Sequence[Message], number: Round) -> list[tuple[Message, Frame | None]]:
        """Replies with their frames, not decoded yet; failed ones without; refused ones are left out."""
        frames: dict[int, Frame] = {}
        good: list[Message] = []
        for reply in replies:
            try:
                if not reply.has_error():
                    frames[id(reply)] = self._check(reply, number)
                good.append(reply)
            except PeerError as error:
                self._on_refused(reply, str(error))
        return [(reply, frames.get(id(reply))) for reply in self._alike(good, *self._train)]

    def _alike(self, replies: Sequence[Message], forms: Forms, weights: Weights) -> list[Message]:
        """Without those that Flower's strategies cannot take together with the others, or that would drown them. One of the
        user's own takes what it likes."""
        if (key := _weighted_by(self.inner)) is None:
            return list(replies)
        told = [reply for reply in replies if not reply.has_error()]
        for refused in (forms.refused, lambda some: weights.refused(some, key)):
            bad = refused(told)
            for k, reason in bad.items():
                self._on_refused(told[k], reason)
            told = [reply for k, reply in enumerate(told) if k not in bad]
        kept = {id(reply) for reply in told}
        return [reply for reply in replies if reply.has_error() or id(reply) in kept]

    def _check_metrics(self, reply: Message) -> None:
        require_finite(reply)
        if (key := _weighted_by(self.inner)) is not None:
            weight(reply, key)

    def _check(self, reply: Message, number: Round) -> Frame:
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise PeerError(f"the reply has {len(records)} array records instead of one")
        data, rest = split_frame(records[0])
        self._out.record.check_beside(rest)
        self._check_metrics(reply)
        frame = self._channel(reply).check(data, Kind.UPDATE, number)
        check_reported(frame, self._levels is not None)
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
        names = [str(reply.metadata.src_node_id) for reply, _ in checked]
        lengths = {names[k]: length(delta) for k, delta in deltas.items()}
        bad = self._proportion.refused(lengths, self._out.model)
        refused |= {k: bad[names[k]] for k in deltas if names[k] in bad}
        for k in sorted(deltas.keys() - refused.keys()):
            try:
                self._fill(checked[k][0], deltas.pop(k))
            except PeerError as error:
                refused[k] = str(error)
        for k in sorted(refused):
            self._on_refused(checked[k][0], refused[k])
        used = {name: v for name, v in lengths.items() if name not in {names[k] for k in refused}}
        self._proportion.used(used, self._out.model)
        self._learn([frame for k, (_, frame) in enumerate(checked) if frame is not None and k not in refused])
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
        self, server_round: int, checked: Sequence[tuple[Message, Frame | None]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Plain FedAvg: the same mean without a model a board. Flower averages the arrays beside the frames, and counts and logs
        failed replies."""
        key = self.inner.weighted_by_key  # type: ignore[attr-defined]
        failed = [reply for reply, frame in checked if frame is None]
        framed = {str(r.metadata.src_node_id): (r, frame) for r, frame in checked if frame is not None}
        shares = [Share(k, frame, weight(reply, key)) for k, (reply, frame) in framed.items()]
        made = Averaged(None, {})
        if shares:
            self._average = self._average or Averager(self._channel(checked[0][0]))
            made = self._average(self._out.model, shares)
        for k, reason in made.refused.items():
            self._on_refused(framed[k][0], reason)
        used = [framed[k] for k in framed if made.model is not None and k not in made.refused]
        for reply, _ in used:
            reply.content = self._with(reply, ArrayRecord)
        self._learn([frame for _, frame in used])
        arrays, metrics = self._its("aggregate_train")(server_round, [*(reply for reply, _ in used), *failed])
        if made.model is None:
            return None, None
        return self._out.record.restore(made.model, dict(arrays or {})), metrics

    def _learn(self, frames: Sequence[Frame]) -> None:
        """Levels for the next round, from updates that counted."""
        if self._levels is not None:
            self._levels = self._levels.after([frame for frame in frames if _tells_loss(frame)])


def _weighted_by(strategy: Any) -> str | None:
    """The metric that Flower's strategies weight by; of wrappers, that of what they wrap. None: it has none."""
    inner = getattr(strategy, "strategy", None)
    key = getattr(strategy, "weighted_by_key", None) or getattr(inner, "weighted_by_key", None)
    return key if isinstance(key, str) else None


def _tells_loss(frame: Frame) -> bool:
    return all(tag in frame.aux for tag in (Aux.LOSS, Aux.EXAMPLES, Aux.LEARNING_RATE))


def _log(text: str) -> None:
    logging.getLogger("flwr").info("edgegossip: %s", text)


def _log_refused(reply: Message, reason: str) -> None:
    logging.getLogger("edgegossip.flower").warning(
        "refused the answer of node %d: %s", reply.metadata.src_node_id, reason
    )
