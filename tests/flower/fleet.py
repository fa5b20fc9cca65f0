"""Clients around one of Flower's strategies, whose rounds are played step by step and without a
network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from edgegossip import codecs
from edgegossip.codecs.base import Codec
from edgegossip.flower import compressed, compression_mod
from edgegossip.flower.combine import BoardGrid

NODES = (1, 2, 3, 4)
CONFIG: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}


class Contexts(dict[int, Context]):
    """One a client, as Flower keeps them."""

    def __missing__(self, node: int) -> Context:
        self[node] = Context(run_id=77, node_id=0, node_config={}, state=RecordDict(), run_config={})
        return self[node]


def replied(message: Message, record: Any, name: str = "arrays", **metrics: Any) -> Message:
    """An answer with these arrays."""
    content = {name: ArrayRecord(dict(record)), "metrics": MetricRecord({"num-examples": 1, **metrics})}
    return Message(RecordDict(content), reply_to=message)


def size_of(message: Message) -> int:
    """How many bytes its arrays are."""
    return sum(len(a.data) for record in message.content.array_records.values() for a in record.values())


def plus_one(message: Message, context: Context) -> Message:
    """An app that adds 1 to w."""
    record = message.content["arrays"]
    return replied(message, {**record, "w": Array(record["w"].numpy() + np.float32(1))})


def _wrapped(mod: Any, call: Any) -> Any:
    return lambda message, context: mod(message, context, call)


class Fleet:
    """Clients of `app` around a strategy. `codec` None: without compression. `downlink`: codec of
    what goes down. `mods`: Flower's, which come after ours. `options`: of `compressed`. `failed`
    and `refused`: client and reason; `sizes`: bytes down and up of each round."""

    def __init__(
        self,
        strategy: Strategy,
        codec: str | Codec[Any] | None,
        app: Any = plus_one,
        downlink: str | None = None,
        nodes: Sequence[int] = NODES,
        mods: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        for mod in reversed(mods):
            app = _wrapped(mod, app)
        down = None if downlink is None else codecs.get(downlink)
        self.refused: list[tuple[int, str]] = []
        self.failed: list[tuple[int, str]] = []
        self.sizes: list[tuple[int, int]] = []
        self.strategy, self.app, self.contexts, self.mod, self.nodes = strategy, app, Contexts(), None, nodes
        if codec is not None:
            up = codecs.get(codec) if isinstance(codec, str) else codec
            self.strategy = compressed(strategy, up, downlink=down, on_refused=self._refused, **options)
            self.mod = compression_mod(up, downlink=down)

    def _refused(self, reply: Message, reason: str) -> None:
        self.refused.append((reply.metadata.src_node_id, reason))

    def ask(self, kind: str, number: int, arrays: ArrayRecord) -> list[Message]:
        """What the strategy sends in a round, in the clients' order."""
        configure = getattr(self.strategy, f"configure_{kind}")
        found = list(configure(number, arrays, ConfigRecord(), BoardGrid(self.nodes)))
        return sorted(found, key=lambda m: m.metadata.dst_node_id)

    def answer(self, messages: Iterable[Message]) -> list[Message]:
        """What the clients say to it."""
        replies = []
        for message in messages:
            call, node = self.app, message.metadata.dst_node_id
            try:
                context = self.contexts[node]
                replies.append(call(message, context) if self.mod is None else self.mod(message, context, call))
            except Exception as error:
                self.failed.append((node, str(error)))
                replies.append(Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message))
        return replies

    def trained(self, number: int, messages: Iterable[Message]) -> ArrayRecord:
        """The model that is made of the answers to these."""
        new, _ = self.strategy.aggregate_train(number, self.answer(messages))
        assert new is not None
        return new

    def round(self, number: int, arrays: ArrayRecord) -> ArrayRecord | None:
        """Play a round of training; the next model, if one comes of it."""
        messages = self.ask("train", number, arrays)
        down = sum(map(size_of, messages))
        replies = self.answer(messages)
        self.sizes.append((down, sum(size_of(reply) for reply in replies if reply.has_content())))
        return self.strategy.aggregate_train(number, replies)[0]

    def train(self, number: int, arrays: ArrayRecord) -> ArrayRecord:
        """Play a round of training; the next model."""
        new = self.round(number, arrays)
        assert new is not None
        return new

    def evaluate(self, number: int, arrays: ArrayRecord) -> None:
        """Play a round of evaluation."""
        self.strategy.aggregate_evaluate(number, self.answer(self.ask("evaluate", number, arrays)))
